//! `/metrics/cadvisor`: containers, pods and the machine in the series that dashboards use.
//!
//! Names and labels are those of cAdvisor, which upstream has inside. A row is a cgroup: the root,
//! the group of all pods, each pod, each container, and each sandbox for its network.

mod disks;

use jiff::Timestamp;
use podwright_host::cgroup::Detail;
use podwright_host::machine::{Capacity, Identity};

pub use self::disks::Disks;
use super::exposition::{Exposition, Family, Kind, Labels, Sample, Stability};
use crate::stats::{Group, Snapshot};

/// One cgroup with its names.
pub struct Row<'a> {
    pub container: &'a str,
    pub id: &'a str,
    pub image: &'a str,
    pub name: &'a str,
    pub namespace: &'a str,
    pub pod: &'a str,
    pub group: &'a Group,
    pub detail: Detail,
    pub started: Option<Timestamp>,
    /// Bytes that a container has written to its own layer.
    pub layer: Option<u64>,
}

impl Row<'_> {
    fn labels(&self) -> Labels<'_> {
        vec![
            ("container", self.container),
            ("id", self.id),
            ("image", self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ]
    }
}

/// A family that has one value per row.
struct Plain {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    read: fn(&Row<'_>) -> Option<f64>,
}

const fn counter(
    name: &'static str,
    help: &'static str,
    read: fn(&Row<'_>) -> Option<f64>,
) -> Plain {
    Plain { name, kind: Kind::Counter, help, read }
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&Row<'_>) -> Option<f64>) -> Plain {
    Plain { name, kind: Kind::Gauge, help, read }
}

const PLAIN: &[Plain] = &[
    counter("container_cpu_cfs_periods_total", "Periods of the CPU quota that passed", |row| {
        Some(row.detail.throttling?.periods as f64)
    }),
    counter(
        "container_cpu_cfs_throttled_periods_total",
        "Periods in which the quota was used up",
        |row| Some(row.detail.throttling?.throttled_periods as f64),
    ),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Time that was waited for the next period",
        |row| nanos(Some(row.detail.throttling?.throttled_nanos)),
    ),
    counter("container_cpu_system_seconds_total", "CPU time spent in the kernel", |row| {
        nanos(row.detail.system_nanos)
    }),
    counter("container_cpu_user_seconds_total", "CPU time spent outside the kernel", |row| {
        nanos(row.detail.user_nanos)
    }),
    gauge("container_file_descriptors", "Open files", |row| {
        Some(row.detail.processes?.open_files as f64)
    }),
    gauge("container_last_seen", "When the container was last seen", |row| {
        Some(row.group.at.as_second() as f64)
    }),
    gauge("container_memory_cache", "Page cache in bytes", |row| number(row.detail.cache)),
    counter("container_memory_failcnt", "How often the limit was met", |row| {
        number(row.detail.limit_hits)
    }),
    gauge("container_memory_kernel_usage", "Memory of the kernel in bytes", |row| {
        number(row.detail.kernel)
    }),
    gauge("container_memory_mapped_file", "Mapped files in bytes", |row| {
        number(row.detail.mapped_file)
    }),
    gauge("container_memory_max_usage_bytes", "The most memory ever used, in bytes", |row| {
        number(row.detail.peak)
    }),
    gauge("container_memory_rss", "Anonymous memory in bytes", |row| {
        Some(row.group.usage.memory?.rss as f64)
    }),
    gauge("container_memory_swap", "Swapped memory in bytes", |row| {
        Some(row.group.usage.memory?.swap.unwrap_or_default() as f64)
    }),
    gauge("container_memory_total_active_file_bytes", "File pages used lately", |row| {
        number(row.detail.active_file)
    }),
    gauge("container_memory_total_inactive_file_bytes", "File pages not used lately", |row| {
        number(row.detail.inactive_file)
    }),
    gauge("container_memory_usage_bytes", "Memory in bytes, whatever it is for", |row| {
        Some(row.group.usage.memory?.usage as f64)
    }),
    gauge("container_memory_working_set_bytes", "Memory that cannot be dropped at once", |row| {
        Some(row.group.usage.memory?.working_set as f64)
    }),
    counter("container_oom_events_total", "Processes killed for want of memory", |row| {
        number(row.detail.oom_kills)
    }),
    gauge("container_processes", "Processes directly in the group", |row| {
        Some(row.detail.processes?.count as f64)
    }),
    gauge("container_sockets", "Open sockets", |row| Some(row.detail.processes?.sockets as f64)),
    gauge("container_spec_cpu_period", "Period of the CPU quota in microseconds", |row| {
        number(row.detail.cpu_period_micros)
    }),
    gauge("container_spec_cpu_quota", "CPU time of each period in microseconds", |row| {
        number(row.detail.cpu_quota_micros)
    }),
    gauge("container_spec_cpu_shares", "Share of the CPU among others", |row| {
        number(row.detail.cpu_shares)
    }),
    gauge("container_spec_memory_limit_bytes", "Limit of memory in bytes, 0 without one", |row| {
        Some(row.group.usage.memory?.limit.unwrap_or_default() as f64)
    }),
    gauge(
        "container_spec_memory_reservation_limit_bytes",
        "Memory that is taken away last, in bytes, 0 without a limit",
        |row| number(row.detail.memory_reservation),
    ),
    gauge(
        "container_spec_memory_swap_limit_bytes",
        "Limit of memory and swap in bytes, 0 without one",
        |row| number(row.detail.swap_limit),
    ),
    gauge("container_start_time_seconds", "When the container started", |row| {
        Some(row.started?.as_second() as f64)
    }),
    gauge("container_threads", "Tasks that run", |row| number(row.group.usage.pids)),
    gauge("container_threads_max", "Tasks that may run", |row| number(row.detail.most_tasks)),
];

/// Writes all of it.
pub fn write(
    snapshot: &Snapshot,
    rows: &[Row<'_>],
    disks: &Disks,
    identity: Option<&Identity>,
    capacity: Option<&Capacity>,
    out: &mut Exposition,
) {
    version(identity, out);
    for Plain { name, kind, help, read } in PLAIN {
        let family = Family { name, help, kind: *kind, stability: Stability::Unsaid };
        let samples = rows.iter().filter_map(|row| {
            Some(Sample { labels: row.labels(), value: read(row)?, at: Some(row.group.at) })
        });
        out.family(&family, samples);
    }
    cpu(rows, out);
    faults(rows, out);
    disks::write(disks, rows, out);
    tasks(rows, out);
    ulimits(rows, out);
    network(snapshot, out);
    machine(identity, capacity, out);
    let failed = if snapshot.incomplete { 1.0 } else { 0.0 };
    for (name, help, value) in [
        ("container_scrape_error", "1 if something could not be measured, else 0", failed),
        (
            "machine_scrape_error",
            "1 if the machine could not be read, else 0",
            if identity.is_some() && capacity.is_some() { 0.0 } else { 1.0 },
        ),
    ] {
        out.family(&unsaid(name, help, Kind::Gauge), [Sample::now(vec![], value)]);
    }
}

const fn unsaid(name: &'static str, help: &'static str, kind: Kind) -> Family {
    Family { name, help, kind, stability: Stability::Unsaid }
}

fn cpu(rows: &[Row<'_>], out: &mut Exposition) {
    let family = unsaid("container_cpu_usage_seconds_total", "CPU time used", Kind::Counter);
    let samples = rows.iter().filter_map(|row| {
        let mut labels = row.labels();
        labels.push(("cpu", "total"));
        let value = nanos(row.group.usage.cpu_nanos)?;
        Some(Sample { labels, value, at: Some(row.group.at) })
    });
    out.family(&family, samples);
}

fn faults(rows: &[Row<'_>], out: &mut Exposition) {
    let family = unsaid("container_memory_failures_total", "Page faults", Kind::Counter);
    let samples = rows.iter().flat_map(|row| {
        let memory = row.group.usage.memory.unwrap_or_default();
        let kinds = [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)];
        kinds.into_iter().map(move |(kind, count)| {
            let mut labels = row.labels();
            // The kernel's counts are with the groups below.
            labels.extend([("failure_type", kind), ("scope", "hierarchy")]);
            Sample { labels, value: count as f64, at: Some(row.group.at) }
        })
    });
    out.family(&family, samples);
}

fn tasks(rows: &[Row<'_>], out: &mut Exposition) {
    let family = unsaid("container_tasks_state", "Processes by their state", Kind::Gauge);
    let samples = rows.iter().flat_map(|row| {
        let states = row.detail.processes.map(|all| {
            [
                ("running", all.running),
                ("sleeping", all.sleeping),
                ("stopped", all.stopped),
                ("uninterruptible", all.uninterruptible),
            ]
        });
        states.into_iter().flatten().map(move |(state, count)| {
            let mut labels = row.labels();
            labels.push(("state", state));
            Sample { labels, value: count as f64, at: Some(row.group.at) }
        })
    });
    out.family(&family, samples);
}

/// Of a container's first process.
fn ulimits(rows: &[Row<'_>], out: &mut Exposition) {
    let family = unsaid("container_ulimits_soft", "Soft limits of the first process", Kind::Gauge);
    let containers = rows.iter().filter(|row| !row.container.is_empty());
    let samples = containers.filter_map(|row| {
        let mut labels = row.labels();
        labels.push(("ulimit", "max_open_files"));
        let value = row.detail.processes?.most_files? as f64;
        Some(Sample { labels, value, at: Some(row.group.at) })
    });
    out.family(&family, samples);
}

/// A pod's network is that of its sandbox.
fn network(snapshot: &Snapshot, out: &mut Exposition) {
    type Read = fn(&podwright_core::stats::Interface) -> u64;
    let families: [(&'static str, Read); 8] = [
        ("container_network_receive_bytes_total", |i| i.rx_bytes),
        ("container_network_receive_errors_total", |i| i.rx_errors),
        ("container_network_receive_packets_dropped_total", |i| i.rx_dropped),
        ("container_network_receive_packets_total", |i| i.rx_packets),
        ("container_network_transmit_bytes_total", |i| i.tx_bytes),
        ("container_network_transmit_errors_total", |i| i.tx_errors),
        ("container_network_transmit_packets_dropped_total", |i| i.tx_dropped),
        ("container_network_transmit_packets_total", |i| i.tx_packets),
    ];
    let ids: Vec<String> =
        snapshot.pods.iter().map(|pod| format!("{}/{}", pod.group.path, pod.sandbox)).collect();
    for (name, read) in families {
        let samples = snapshot.pods.iter().zip(&ids).flat_map(|(pod, id)| {
            pod.interfaces.iter().map(move |interface| Sample {
                labels: vec![
                    ("container", ""),
                    ("id", id),
                    ("image", ""),
                    ("interface", &interface.name),
                    ("name", pod.sandbox.as_str()),
                    ("namespace", &pod.name().namespace),
                    ("pod", &pod.name().name),
                ],
                value: read(interface) as f64,
                at: Some(pod.group.at),
            })
        });
        out.family(&unsaid(name, "Counted by the pod's interfaces", Kind::Counter), samples);
    }
}

fn version(identity: Option<&Identity>, out: &mut Exposition) {
    let family = unsaid("cadvisor_version_info", "What is measured, and by what", Kind::Gauge);
    let labels = vec![
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", identity.map_or("", |identity| identity.kernel_version.as_str())),
        ("osVersion", identity.map_or("", |identity| identity.os_image.as_str())),
    ];
    out.family(&family, [Sample::now(labels, 1.0)]);
}

fn machine(identity: Option<&Identity>, capacity: Option<&Capacity>, out: &mut Exposition) {
    let (Some(identity), Some(capacity)) = (identity, capacity) else { return };
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of CPUs", f64::from(capacity.cpus)),
        ("machine_memory_bytes", "Memory in bytes", capacity.memory as f64),
        ("machine_swap_bytes", "Swap in bytes", capacity.swap as f64),
    ] {
        let labels = vec![
            ("boot_id", identity.boot_id.as_str()),
            ("machine_id", identity.machine_id.as_str()),
            ("system_uuid", identity.system_uuid.as_str()),
        ];
        out.family(&unsaid(name, help, Kind::Gauge), [Sample::now(labels, value)]);
    }
}

fn nanos(nanos: Option<u64>) -> Option<f64> {
    Some(nanos? as f64 / 1e9)
}

fn number(number: Option<u64>) -> Option<f64> {
    Some(number? as f64)
}
