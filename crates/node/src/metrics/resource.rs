//! `/metrics/resource`: what autoscalers need and nothing else.

use jiff::Timestamp;

use super::exposition::{Exposition, Family, Kind, Labels, Sample, Stability};
use crate::stats::{ContainerSnapshot, Group, PodSnapshot, Snapshot};

const fn family(
    name: &'static str,
    kind: Kind,
    stability: Stability,
    help: &'static str,
) -> Family {
    Family { name, help, kind, stability }
}

const CONTAINER_CPU: Family = family(
    "container_cpu_usage_seconds_total",
    Kind::Counter,
    Stability::Stable,
    "CPU time that the container used, in core-seconds",
);
const CONTAINER_MEMORY: Family = family(
    "container_memory_working_set_bytes",
    Kind::Gauge,
    Stability::Stable,
    "Working set of the container in bytes",
);
const CONTAINER_START: Family = family(
    "container_start_time_seconds",
    Kind::Gauge,
    Stability::Stable,
    "When the container started, in seconds since 1970",
);
const CONTAINER_SWAP_LIMIT: Family = family(
    "container_swap_limit_bytes",
    Kind::Gauge,
    Stability::Alpha,
    "How much the container may swap, in bytes",
);
const CONTAINER_SWAP: Family = family(
    "container_swap_usage_bytes",
    Kind::Gauge,
    Stability::Alpha,
    "How much the container has swapped, in bytes",
);
const NODE_CPU: Family = family(
    "node_cpu_usage_seconds_total",
    Kind::Counter,
    Stability::Stable,
    "CPU time that the node used, in core-seconds",
);
const NODE_MEMORY: Family = family(
    "node_memory_working_set_bytes",
    Kind::Gauge,
    Stability::Stable,
    "Working set of the node in bytes",
);
const NODE_SWAP: Family = family(
    "node_swap_usage_bytes",
    Kind::Gauge,
    Stability::Alpha,
    "How much the node has swapped, in bytes",
);
const POD_CPU: Family = family(
    "pod_cpu_usage_seconds_total",
    Kind::Counter,
    Stability::Stable,
    "CPU time that the pod used, in core-seconds",
);
const POD_MEMORY: Family = family(
    "pod_memory_working_set_bytes",
    Kind::Gauge,
    Stability::Stable,
    "Working set of the pod in bytes",
);
const POD_SWAP: Family = family(
    "pod_swap_usage_bytes",
    Kind::Gauge,
    Stability::Alpha,
    "How much the pod has swapped, in bytes",
);
const ERROR: Family = family(
    "resource_scrape_error",
    Kind::Gauge,
    Stability::Stable,
    "1 if something could not be measured, else 0",
);

/// `swap_limit`: what a container may swap at most, if that is the same for all.
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
    for (family, read) in
        [(&POD_CPU, cpu as fn(&Group) -> Reading), (&POD_MEMORY, working_set), (&POD_SWAP, swap)]
    {
        let samples = snapshot.pods.iter().filter_map(|pod| {
            let (value, at) = read(&pod.group)?;
            Some(Sample { labels: pod_labels(pod).into(), value, at })
        });
        out.family(family, samples);
    }
    let error = if snapshot.incomplete { 1.0 } else { 0.0 };
    out.family(&ERROR, [Sample::now(vec![], error)]);
}

/// A value and when it was read; `None`: it is not known.
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

fn cpu(group: &Group) -> Reading {
    Some((group.usage.cpu_nanos? as f64 / 1e9, Some(group.at)))
}

fn working_set(group: &Group) -> Reading {
    Some((group.usage.memory?.working_set as f64, Some(group.at)))
}

fn swap(group: &Group) -> Reading {
    Some((group.usage.memory?.swap.unwrap_or_default() as f64, Some(group.at)))
}

fn seconds(at: Timestamp) -> f64 {
    at.as_nanosecond() as f64 / 1e9
}
