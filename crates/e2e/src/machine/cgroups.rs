//! Cgroups of a machine snapshot, with their limits.
//!
//! They are shared with the whole machine even in isolation: a cgroup namespace would hide the root
//! of the hierarchy from the node under test, which must find it. Other tests, systemd and other
//! programs create and remove cgroups at any time, so only those with a name of the test count, see
//! [`of_others`]. Bystanders represent the others: they are in cgroups below the bed's.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::{Entry, Kind};
use crate::{cgroup, mounts};

/// Limits of cgroup v1 and v2 that a node sets.
const LIMITS: [&str; 12] = [
    "cgroup.subtree_control",
    "cpu.cfs_quota_us",
    "cpu.max",
    "cpu.shares",
    "cpu.weight",
    "cpuset.cpus",
    "cpuset.mems",
    "memory.limit_in_bytes",
    "memory.max",
    "memory.min",
    "memory.oom_control",
    "pids.max",
];

pub(super) fn entries() -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    for mount in mounts::all()? {
        if !mount.kind.starts_with("cgroup") {
            continue;
        }
        let mut directories = Vec::new();
        cgroup::below(&mount.point, &mut directories);
        for directory in directories {
            let name = directory.display().to_string();
            found.push(Entry::new(Kind::Cgroup, name, limits_of(&directory)));
        }
    }
    Ok(found)
}

fn limits_of(directory: &Path) -> String {
    let limits = LIMITS.iter().filter_map(|file| {
        let text = fs::read_to_string(directory.join(file)).ok()?;
        // Of oom_control only the switch is a limit; the rest are counters.
        let value = text.lines().next().unwrap_or_default().trim();
        (!value.is_empty()).then(|| format!("{file}={value}"))
    });
    limits.collect::<Vec<_>>().join(" ")
}

/// Whether a cgroup belongs to others. `names` mark those of this test: the ids of its beds, and
/// the instance name of a node made by `up`.
pub(super) fn of_others(path: &str, names: &[&str]) -> bool {
    !names.iter().any(|name| path.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_of_others_are_filtered_by_name() {
        for (path, want) in [
            ("/sys/fs/cgroup/memory/pw-0a1b2c3d/node-1", true),
            ("/sys/fs/cgroup/memory/pw-99999999/node-1", false),
            ("/sys/fs/cgroup/memory/podwright-abc/kubepods", true),
            ("/sys/fs/cgroup/system.slice/cron.service", true),
            ("/sys/fs/cgroup/memory/another-service", true),
        ] {
            assert_eq!(of_others(path, &["99999999"]), want, "{path}");
        }
    }
}
