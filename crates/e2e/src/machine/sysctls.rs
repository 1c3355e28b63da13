//! Kernel settings of a machine snapshot: all of the network namespace, and those of the machine
//! that a node could change.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Entry, Kind};

const KERNEL: &str = "/proc/sys";

/// These exist per network namespace: everything below is compared.
const OF_THE_NAMESPACE: &str = "net";

/// Settings outside of any namespace, as files below /proc/sys.
const OF_THE_MACHINE: [&str; 10] = [
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
    "kernel/core_pattern",
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/max_map_count",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

/// Values that change by themselves.
const VOLATILE: [(&str, &str); 3] = [
    ("net/netfilter/nf_conntrack_count", "a count of connections, not a setting"),
    ("net/ipv4/tcp_available_congestion_control", "grows when another test loads a kernel module"),
    ("net/ipv4/tcp_available_ulp", "grows when another test loads a kernel module"),
];

pub(super) fn entries() -> Vec<Entry> {
    let kernel = Path::new(KERNEL);
    let mut found: Vec<PathBuf> = OF_THE_MACHINE.iter().map(|name| kernel.join(name)).collect();
    let mut open = vec![kernel.join(OF_THE_NAMESPACE)];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(_) => found.push(entry.path()),
                Err(_) => {} // removed with its link
            }
        }
    }
    let settings = found.iter().filter_map(|path| {
        let name = path.strip_prefix(kernel).ok()?.to_str()?;
        let volatile = VOLATILE.iter().any(|(volatile, _)| *volatile == name);
        // Some are write-only, or have no value yet.
        let value = fs::read_to_string(path).ok().filter(|_| !volatile)?;
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(Entry::new(Kind::Sysctl, name, value))
    });
    settings.collect()
}
