//! `/metrics/resource`: usage for autoscalers.

use jiff::Timestamp;

use super::exposition::{Exposition, Family, Labels, MetricKind, Sample, Stability};
use crate::telemetry::stats::{CgroupUsage, ContainerSnapshot, PodSnapshot, Snapshot};

const fn family(
    name: &'static str,
    kind: MetricKind,
    stability: Stability,
    help: &'static str,
) -> Family {
    Family { name, help, kind, stability }
}

const CONTAINER_CPU: Family = family(
    "container_cpu_usage_seconds_total",
    MetricKind::Counter,
    Stability::Stable,
    "CPU time that the container used, in core-seconds",
);
const CONTAINER_MEMORY: Family = family(
    "container_memory_working_set_bytes",
    MetricKind::Gauge,
    Stability::Stable,
    "Working set of the container in bytes",
);
const CONTAINER_START: Family = family(
    "container_start_time_seconds",
    MetricKind::Gauge,
    Stability::Stable,
    "Start time of the container since unix epoch in seconds",
);
const CONTAINER_SWAP_LIMIT: Family = family(
    "container_swap_limit_bytes",
    MetricKind::Gauge,
    Stability::Alpha,
    "Current amount of the container swap limit in bytes",
);
const CONTAINER_SWAP: Family = family(
    "container_swap_usage_bytes",
    MetricKind::Gauge,
    Stability::Alpha,
    "Current amount of the container swap usage in bytes",
);
const NODE_CPU: Family = family(
    "node_cpu_usage_seconds_total",
    MetricKind::Counter,
    Stability::Stable,
    "CPU time that the node used, in core-seconds",
);
const NODE_MEMORY: Family = family(
    "node_memory_working_set_bytes",
    MetricKind::Gauge,
    Stability::Stable,
    "Working set of the node in bytes",
);
const NODE_SWAP: Family = family(
    "node_swap_usage_bytes",
    MetricKind::Gauge,
    Stability::Alpha,
    "Current swap usage of the node in bytes",
);
const POD_CPU: Family = family(
    "pod_cpu_usage_seconds_total",
    MetricKind::Counter,
    Stability::Stable,
    "CPU time that the pod used, in core-seconds",
);
const POD_MEMORY: Family = family(
    "pod_memory_working_set_bytes",
    MetricKind::Gauge,
    Stability::Stable,
    "Working set of the pod in bytes",
);
const POD_SWAP: Family = family(
    "pod_swap_usage_bytes",
    MetricKind::Gauge,
    Stability::Alpha,
    "Current amount of the pod swap usage in bytes",
);
const ERROR: Family = family(
    "resource_scrape_error",
    MetricKind::Gauge,
    Stability::Stable,
    "1 if there was an error while getting container metrics, 0 otherwise",
);

/// `swap_limit`: the swap limit of a container, if it is the same for all.
pub fn write(snapshot: &Snapshot, swap_limit: Option<u64>, out: &mut Exposition) {
    containers(snapshot, &CONTAINER_CPU, out, |c| cpu(&c.group));
    containers(snapshot, &CONTAINER_MEMORY, out, |c| working_set(&c.group));
    let start = |c: &ContainerSnapshot| Some((seconds(c.started), None));
    containers(snapshot, &CONTAINER_START, out, start);
    let limit = |c: &ContainerSnapshot| Some((swap_limit? as f64, Some(c.group.at)));
    containers(snapshot, &CONTAINER_SWAP_LIMIT, out, limit);
    containers(snapshot, &CONTAINER_SWAP, out, |c| swap(&c.group));
    let node = &snapshot.node;
    for (family, value) in
        [(&NODE_CPU, cpu(node)), (&NODE_MEMORY, working_set(node)), (&NODE_SWAP, swap(node))]
    {
        out.family(family, value.map(|(value, at)| Sample { labels: vec![], value, at }));
    }
    for (family, read) in [
        (&POD_CPU, cpu as fn(&CgroupUsage) -> Reading),
        (&POD_MEMORY, working_set),
        (&POD_SWAP, swap),
    ] {
        let samples = snapshot.pods.iter().filter_map(|pod| {
            let (value, at) = read(&pod.group)?;
            Some(Sample { labels: pod_labels(pod).into(), value, at })
        });
        out.family(family, samples);
    }
    let error = if snapshot.incomplete { 1.0 } else { 0.0 };
    out.family(&ERROR, [Sample::now(vec![], error)]);
}

/// A value and when it was read; `None`: unknown.
type Reading = Option<(f64, Option<Timestamp>)>;

fn containers(
    snapshot: &Snapshot,
    family: &Family,
    out: &mut Exposition,
    read: impl Fn(&ContainerSnapshot) -> Reading,
) {
    let samples = snapshot.pods.iter().flat_map(|pod| {
        let read = &read;
        pod.containers.iter().filter_map(move |container| {
            let (value, at) = read(container)?;
            let mut labels: Labels<'_> = vec![("container", &container.name)];
            labels.extend(pod_labels(pod));
            Some(Sample { labels, value, at })
        })
    });
    out.family(family, samples);
}

fn pod_labels(pod: &PodSnapshot) -> [(&str, &str); 2] {
    [("namespace", &pod.name().namespace), ("pod", &pod.name().name)]
}

fn cpu(group: &CgroupUsage) -> Reading {
    Some((group.usage.cpu_nanos? as f64 / 1e9, Some(group.at)))
}

fn working_set(group: &CgroupUsage) -> Reading {
    Some((group.usage.memory?.working_set as f64, Some(group.at)))
}

fn swap(group: &CgroupUsage) -> Reading {
    Some((group.usage.memory?.swap.unwrap_or_default() as f64, Some(group.at)))
}

fn seconds(at: Timestamp) -> f64 {
    at.as_nanosecond() as f64 / 1e9
}
