//! `/metrics/cadvisor`: containers, pods and the machine in the series that dashboards use.
//!
//! Names and labels are those of cAdvisor, which upstream embeds. A row is a cgroup: the root, the
//! cgroup of all pods and those of the QoS classes, those of the system daemons, and each pod,
//! sandbox and container.

mod disks;

use jiff::Timestamp;
use podwright_core::stats::Interface;
use podwright_host::cgroup::{Detail, Stall};
use podwright_host::machine::{Capacity, Identity};

pub use self::disks::Disks;
use super::exposition::{Exposition, Family, Labels, MetricKind, Sample, Stability};
use crate::telemetry::stats::CgroupUsage;

/// One cgroup with its labels.
#[derive(Clone)]
pub struct Row<'a> {
    pub container: &'a str,
    pub id: &'a str,
    pub image: &'a str,
    pub name: &'a str,
    pub namespace: &'a str,
    pub pod: &'a str,
    pub group: &'a CgroupUsage,
    pub detail: Detail,
    pub started: Option<Timestamp>,
    /// Bytes that a container has written to its writable layer.
    pub layer: Option<u64>,
    /// The memory of the machine, for the root cgroup, which has no limit itself.
    pub machine_memory: Option<u64>,
}

impl<'a> Row<'a> {
    /// A cgroup that belongs to no pod.
    pub fn of(group: &'a CgroupUsage) -> Self {
        Self {
            container: "",
            id: &group.path,
            image: "",
            name: "",
            namespace: "",
            pod: "",
            group,
            detail: Detail::default(),
            started: None,
            layer: None,
            machine_memory: None,
        }
    }

    /// The limits of the root cgroup are the capacity of the machine.
    pub fn limit_by_machine(&mut self, capacity: &Capacity) {
        self.machine_memory = Some(capacity.memory);
        self.detail.swap_limit = Some(capacity.swap);
    }

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

/// The interfaces of a network namespace, in the row of the cgroup that they belong to.
pub struct Network<'a> {
    pub row: Row<'a>,
    pub interfaces: &'a [Interface],
}

/// A family with one value per row.
struct Plain {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    read: fn(&Row<'_>) -> Option<f64>,
}

const fn counter(
    name: &'static str,
    help: &'static str,
    read: fn(&Row<'_>) -> Option<f64>,
) -> Plain {
    Plain { name, kind: MetricKind::Counter, help, read }
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&Row<'_>) -> Option<f64>) -> Plain {
    Plain { name, kind: MetricKind::Gauge, help, read }
}

const PLAIN: &[Plain] = &[
    counter(
        "container_cpu_cfs_periods_total",
        "Number of elapsed enforcement period intervals.",
        |row| Some(row.detail.throttling?.periods as f64),
    ),
    counter(
        "container_cpu_cfs_throttled_periods_total",
        "Number of throttled period intervals.",
        |row| Some(row.detail.throttling?.throttled_periods as f64),
    ),
    counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        |row| nanos(Some(row.detail.throttling?.throttled_nanos)),
    ),
    counter(
        "container_cpu_system_seconds_total",
        "Cumulative system cpu time consumed in seconds.",
        |row| nanos(row.detail.system_nanos),
    ),
    counter(
        "container_cpu_user_seconds_total",
        "Cumulative user cpu time consumed in seconds.",
        |row| nanos(row.detail.user_nanos),
    ),
    gauge("container_file_descriptors", "Open files", |row| {
        Some(row.detail.processes?.open_files as f64)
    }),
    gauge("container_last_seen", "When the container was last seen", |row| {
        Some(row.group.at.as_second() as f64)
    }),
    gauge("container_memory_cache", "Page cache in bytes", |row| number(row.detail.cache)),
    counter("container_memory_failcnt", "Number of memory usage hits limits", |row| {
        number(row.detail.limit_hits)
    }),
    gauge("container_memory_kernel_usage", "Memory of the kernel in bytes", |row| {
        number(row.detail.kernel)
    }),
    gauge("container_memory_mapped_file", "Mapped files in bytes", |row| {
        number(row.detail.mapped_file)
    }),
    gauge("container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes", |row| {
        number(row.detail.peak)
    }),
    gauge("container_memory_rss", "Anonymous memory in bytes", |row| {
        Some(row.group.usage.memory?.rss as f64)
    }),
    gauge("container_memory_swap", "Swapped memory in bytes", |row| {
        Some(row.group.usage.memory?.swap.unwrap_or_default() as f64)
    }),
    gauge(
        "container_memory_total_active_file_bytes",
        "Current total active file in bytes.",
        |row| number(row.detail.active_file),
    ),
    gauge(
        "container_memory_total_inactive_file_bytes",
        "Current total inactive file in bytes.",
        |row| number(row.detail.inactive_file),
    ),
    gauge("container_memory_usage_bytes", "Current memory usage in bytes", |row| {
        Some(row.group.usage.memory?.usage as f64)
    }),
    gauge("container_memory_working_set_bytes", "Current working set in bytes.", |row| {
        Some(row.group.usage.memory?.working_set as f64)
    }),
    counter(
        "container_oom_events_total",
        "Count of out of memory events observed for the container",
        |row| number(row.detail.oom_kills),
    ),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Time in which no task could run for lack of CPU.",
        |row| micros(row.group.usage.cpu_pressure?.full),
    ),
    counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Time in which a task waited for CPU.",
        |row| micros(row.group.usage.cpu_pressure?.some),
    ),
    counter(
        "container_pressure_io_stalled_seconds_total",
        "Time in which no task could run because of I/O.",
        |row| micros(row.group.usage.io_pressure?.full),
    ),
    counter(
        "container_pressure_io_waiting_seconds_total",
        "Time in which a task waited for I/O.",
        |row| micros(row.group.usage.io_pressure?.some),
    ),
    counter(
        "container_pressure_memory_stalled_seconds_total",
        "Time in which no task could run for lack of memory.",
        |row| micros(row.group.usage.memory_pressure?.full),
    ),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Time in which a task waited for memory.",
        |row| micros(row.group.usage.memory_pressure?.some),
    ),
    gauge("container_processes", "Number of processes running inside the container.", |row| {
        Some(row.detail.processes?.count as f64)
    }),
    gauge("container_sockets", "Open sockets", |row| Some(row.detail.processes?.sockets as f64)),
    gauge("container_spec_cpu_period", "Period of the CPU quota in microseconds", |row| {
        number(row.detail.cpu_period_micros)
    }),
    gauge("container_spec_cpu_quota", "CPU quota of the container.", |row| {
        number(row.detail.cpu_quota_micros)
    }),
    gauge("container_spec_cpu_shares", "CPU share of the container.", |row| {
        number(row.detail.cpu_shares)
    }),
    gauge("container_spec_memory_limit_bytes", "Memory limit for the container.", |row| {
        let memory = row.group.usage.memory?;
        Some(row.machine_memory.or(memory.limit).unwrap_or_default() as f64)
    }),
    gauge(
        "container_spec_memory_reservation_limit_bytes",
        "Memory reservation limit for the container.",
        |row| number(row.detail.memory_reservation),
    ),
    gauge(
        "container_spec_memory_swap_limit_bytes",
        "Memory swap limit for the container.",
        |row| number(row.detail.swap_limit),
    ),
    gauge("container_start_time_seconds", "When the container started", |row| {
        Some(row.started?.as_second() as f64)
    }),
    gauge("container_threads", "Number of threads running inside the container", |row| {
        number(row.group.usage.pids)
    }),
    gauge(
        "container_threads_max",
        "Maximum number of threads allowed inside the container",
        |row| number(row.detail.most_tasks),
    ),
];

/// Writes all families.
pub fn write(
    incomplete: bool,
    rows: &[Row<'_>],
    networks: &[Network<'_>],
    disks: &Disks,
    identity: Option<&Identity>,
    capacity: Option<&Capacity>,
    out: &mut Exposition,
) {
    version(identity, out);
    for Plain { name, kind, help, read } in PLAIN {
        let family = Family { name, help, kind: *kind, stability: Stability::Unspecified };
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
    network(networks, out);
    machine(identity, capacity, out);
    let failed = if incomplete { 1.0 } else { 0.0 };
    for (name, help, value) in [
        (
            "container_scrape_error",
            "1 if there was an error while getting container metrics, 0 otherwise",
            failed,
        ),
        (
            "machine_scrape_error",
            "1 if there was an error while getting machine metrics, 0 otherwise.",
            if identity.is_some() && capacity.is_some() { 0.0 } else { 1.0 },
        ),
    ] {
        out.family(&cadvisor_family(name, help, MetricKind::Gauge), [Sample::now(vec![], value)]);
    }
}

const fn cadvisor_family(name: &'static str, help: &'static str, kind: MetricKind) -> Family {
    Family { name, help, kind, stability: Stability::Unspecified }
}

fn cpu(rows: &[Row<'_>], out: &mut Exposition) {
    let family =
        cadvisor_family("container_cpu_usage_seconds_total", "CPU time used", MetricKind::Counter);
    let samples = rows.iter().filter_map(|row| {
        let mut labels = row.labels();
        labels.push(("cpu", "total"));
        let value = nanos(row.group.usage.cpu_nanos)?;
        Some(Sample { labels, value, at: Some(row.group.at) })
    });
    out.family(&family, samples);
}

fn faults(rows: &[Row<'_>], out: &mut Exposition) {
    let family =
        cadvisor_family("container_memory_failures_total", "Page faults", MetricKind::Counter);
    let samples = rows.iter().flat_map(|row| {
        let memory = row.group.usage.memory.unwrap_or_default();
        let kinds = [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)];
        kinds.into_iter().map(move |(kind, count)| {
            let mut labels = row.labels();
            // The kernel's counts include the child cgroups.
            labels.extend([("failure_type", kind), ("scope", "hierarchy")]);
            Sample { labels, value: count as f64, at: Some(row.group.at) }
        })
    });
    out.family(&family, samples);
}

fn tasks(rows: &[Row<'_>], out: &mut Exposition) {
    let family =
        cadvisor_family("container_tasks_state", "Processes by their state", MetricKind::Gauge);
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

/// Soft limits of the first process of a container or sandbox.
fn ulimits(rows: &[Row<'_>], out: &mut Exposition) {
    let family = cadvisor_family(
        "container_ulimits_soft",
        "Soft limits of the first process",
        MetricKind::Gauge,
    );
    let containers = rows.iter().filter(|row| !row.name.is_empty());
    let samples = containers.filter_map(|row| {
        let mut labels = row.labels();
        labels.push(("ulimit", "max_open_files"));
        let value = row.detail.processes?.most_files? as f64;
        Some(Sample { labels, value, at: Some(row.group.at) })
    });
    out.family(&family, samples);
}

/// The network of the machine, and of each pod in the row of its sandbox.
fn network(networks: &[Network<'_>], out: &mut Exposition) {
    type Read = fn(&Interface) -> u64;
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
    for (name, read) in families {
        let samples = networks.iter().flat_map(|Network { row, interfaces }| {
            interfaces.iter().map(move |interface| Sample {
                labels: vec![
                    ("container", ""),
                    ("id", row.id),
                    ("image", row.image),
                    ("interface", &interface.name),
                    ("name", row.name),
                    ("namespace", row.namespace),
                    ("pod", row.pod),
                ],
                value: read(interface) as f64,
                at: Some(row.group.at),
            })
        });
        out.family(
            &cadvisor_family(name, "Cumulative count of a network interface", MetricKind::Counter),
            samples,
        );
    }
}

fn version(identity: Option<&Identity>, out: &mut Exposition) {
    let help = "A metric with a constant '1' value labeled by kernel version and OS version.";
    let family = cadvisor_family("cadvisor_version_info", help, MetricKind::Gauge);
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
        out.family(&cadvisor_family(name, help, MetricKind::Gauge), [Sample::now(labels, value)]);
    }
}

fn nanos(nanos: Option<u64>) -> Option<f64> {
    Some(nanos? as f64 / 1e9)
}

fn micros(stall: Stall) -> Option<f64> {
    Some(stall.total_micros as f64 / 1e6)
}

fn number(number: Option<u64>) -> Option<f64> {
    Some(number? as f64)
}

#[cfg(test)]
mod tests {
    use podwright_host::cgroup::{MemoryUsage, Pressure, Usage};

    use super::*;

    #[test]
    fn pressure_is_reported_where_the_kernel_counts_it() {
        let stall = |total_micros| Stall { total_micros, ..Stall::default() };
        let pressure = Pressure { some: stall(1_500_000), full: stall(250_000) };
        let mut group = CgroupUsage::default();
        group.usage = Usage { cpu_pressure: Some(pressure), ..Usage::default() };
        let rows = [Row::of(&group)];
        let mut out = Exposition::default();
        write(false, &rows, &[], &Disks::default(), None, None, &mut out);
        let page = out.into_page();
        let found: Vec<(&str, &str)> = page
            .lines()
            .filter(|line| line.starts_with("container_pressure_"))
            .filter_map(|line| Some((line.split_once('{')?.0, line.split(' ').nth(1)?)))
            .collect();
        let want = [
            ("container_pressure_cpu_stalled_seconds_total", "0.25"),
            ("container_pressure_cpu_waiting_seconds_total", "1.5"),
        ];
        assert_eq!(found, want, "nothing for memory and I/O, which are not counted");
    }

    #[test]
    fn limits_of_root_cgroup_are_machine_capacity() {
        let memory = Some(MemoryUsage::default());
        let mut group = CgroupUsage::default();
        group.usage = Usage { memory, ..Usage::default() };
        let detail = Detail { swap_limit: Some(0), ..Detail::default() };
        let mut row = Row { id: "/", detail, ..Row::of(&group) };
        let value = |row: &Row<'_>, family: &str| {
            PLAIN.iter().find(|plain| plain.name == family).and_then(|plain| (plain.read)(row))
        };
        assert_eq!(value(&row, "container_spec_memory_limit_bytes"), Some(0.0));
        let (cpu_list, hugepages) = (String::new(), Default::default());
        let capacity = Capacity { cpus: 1, cpu_list, memory: 4096, swap: 512, hugepages };
        row.limit_by_machine(&capacity);
        assert_eq!(value(&row, "container_spec_memory_limit_bytes"), Some(4096.0));
        assert_eq!(value(&row, "container_spec_memory_swap_limit_bytes"), Some(512.0));
    }
}
