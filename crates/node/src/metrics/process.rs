//! What this process itself uses, under the names that every exporter gives it.

use podwright_host::self_usage::SelfUsage;

use super::exposition::{Exposition, Family, Kind, Sample, Stability};

const fn family(name: &'static str, help: &'static str, kind: Kind) -> Family {
    Family { name, help, kind, stability: Stability::Alpha }
}

/// Writes what is known; the rest is left out.
pub fn write(usage: &SelfUsage, out: &mut Exposition) {
    use Kind::{Counter, Gauge};
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

/// On every page: readers notice by it that counters began anew.
pub(super) fn write_start(seconds: Option<f64>, out: &mut Exposition) {
    let help = "When the process started, since 1970.";
    let family = family("process_start_time_seconds", help, Kind::Gauge);
    out.family(&family, seconds.map(|value| Sample::now(vec![], value)));
}
