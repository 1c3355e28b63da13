//! Resource usage of this process, under the usual exporter names.

use podwright_host::self_usage::SelfUsage;

use super::exposition::{Exposition, Family, MetricKind, Sample, Stability};

const fn family(name: &'static str, help: &'static str, kind: MetricKind) -> Family {
    Family { name, help, kind, stability: Stability::Alpha }
}

/// Writes the known values; the rest is left out.
pub fn write(usage: &SelfUsage, out: &mut Exposition) {
    use MetricKind::{Counter, Gauge};
    for (family, value) in [
        (
            family("process_cpu_seconds_total", "CPU time spent, in seconds.", Counter),
            usage.cpu_seconds,
        ),
        (family("process_open_fds", "Number of open file descriptors.", Gauge), usage.open_files),
        (
            family("process_max_fds", "Maximum number of open file descriptors.", Gauge),
            usage.most_files,
        ),
        (
            family("process_resident_memory_bytes", "Resident memory size in bytes.", Gauge),
            usage.resident_bytes,
        ),
        (
            family("process_virtual_memory_bytes", "Virtual memory size in bytes.", Gauge),
            usage.virtual_bytes,
        ),
    ] {
        out.family(&family, value.map(|value| Sample::now(vec![], value)));
    }
    write_start(usage.started_seconds, out);
}

/// On every page: scrapers detect a restart of the counters by it.
pub(super) fn write_start(seconds: Option<f64>, out: &mut Exposition) {
    let help = "Start time of the process since unix epoch in seconds.";
    let family = family("process_start_time_seconds", help, MetricKind::Gauge);
    out.family(&family, seconds.map(|value| Sample::now(vec![], value)));
}
