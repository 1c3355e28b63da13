//! Resource usage of this process.

use std::path::Path;

/// As far as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelfUsage {
    pub cpu_seconds: Option<f64>,
    pub resident_bytes: Option<f64>,
    pub virtual_bytes: Option<f64>,
    pub open_files: Option<f64>,
    pub most_files: Option<f64>,
    /// Since 1970.
    pub started_seconds: Option<f64>,
}

/// `proc` is where procfs is mounted.
pub fn read(proc: &Path) -> SelfUsage {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let page = rustix::param::page_size() as f64;
    let stat = std::fs::read_to_string(proc.join("self/stat")).unwrap_or_default();
    // The name is in parentheses and may contain anything; the numbers begin after the last one.
    let numbers = stat.rsplit_once(')').map_or("", |(_, numbers)| numbers);
    let numbers: Vec<&str> = numbers.split_ascii_whitespace().collect();
    // proc(5) counts from 1, and `state` is its third.
    let field = |number: usize| numbers.get(number - 3)?.parse::<f64>().ok();
    let boot = std::fs::read_to_string(proc.join("stat")).unwrap_or_default();
    let boot =
        boot.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    SelfUsage {
        cpu_seconds: field(14).zip(field(15)).map(|(user, system)| (user + system) / ticks),
        started_seconds: boot.zip(field(22)).map(|(boot, start)| boot + start / ticks),
        virtual_bytes: field(23),
        resident_bytes: field(24).map(|pages| pages * page),
        open_files: std::fs::read_dir(proc.join("self/fd")).ok().map(|fds| fds.count() as f64),
        most_files: rustix::process::getrlimit(rustix::process::Resource::Nofile)
            .current
            .map(|most| most as f64),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_files_and_a_start() {
        let usage = read(Path::new("/proc"));
        assert!(usage.resident_bytes.unwrap() > 100_000.0);
        assert!(usage.virtual_bytes.unwrap() > usage.resident_bytes.unwrap());
        assert!(usage.open_files.unwrap() >= 3.0);
        assert!(usage.started_seconds.unwrap() > 1_600_000_000.0);
        assert!(usage.cpu_seconds.unwrap() >= 0.0);
        assert_eq!(read(Path::new("/nowhere")).started_seconds, None);
    }
}
