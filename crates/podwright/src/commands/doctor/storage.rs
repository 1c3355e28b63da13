//! Checks of disk space and swap.

use std::path::{Path, PathBuf};

use super::{Finding, Machine, Plan, Space};
use crate::config::host::active_swap;

const DISK: &str = "disk";
const SWAP: &str = "swap";

/// With less, images and logs do not fit.
const MIN_FREE: u64 = 1 << 30;

/// Below this the default eviction thresholds report disk pressure.
const MIN_PERCENT: u64 = 10;

pub(super) fn examine(machine: &dyn Machine, plan: &Plan) -> Vec<Finding> {
    let mut findings: Vec<Finding> = [
        plan.options.root_dir.as_path(),
        Path::new("/var/lib/containerd"),
        Path::new(&plan.configuration.pod_logs_dir),
    ]
    .into_iter()
    .map(|directory| disk(machine, directory))
    .collect();
    findings.push(swap(machine, plan));
    findings
}

fn disk(machine: &dyn Machine, directory: &Path) -> Finding {
    let shown = directory.display();
    let space = match machine.space(&nearest_existing(machine, directory)) {
        Ok(space) => space,
        Err(error) => {
            let fix = "check that the file system is mounted and readable";
            return Finding::failure(DISK, format!("{shown}: {error}"), fix);
        }
    };
    let free = space.bytes_free >> 20;
    let fix = format!("free space on the file system of {shown}, or mount a larger one there");
    if space.bytes_free < MIN_FREE {
        return Finding::failure(DISK, format!("{shown}: only {free} MiB free"), fix);
    }
    let Space { bytes, bytes_free, inodes, inodes_free } = space;
    for (what, all, rest) in [("space", bytes, bytes_free), ("inodes", inodes, inodes_free)] {
        // Some file systems do not count inodes.
        if all > 0 && u128::from(rest) * 100 < u128::from(all) * u128::from(MIN_PERCENT) {
            return Finding::warning(
                DISK,
                format!("{shown}: less than {MIN_PERCENT}% of {what} free"),
                fix,
            );
        }
    }
    Finding::ok(DISK, format!("{shown}: {free} MiB free"))
}

/// The directory itself, or its nearest existing ancestor.
fn nearest_existing(machine: &dyn Machine, directory: &Path) -> PathBuf {
    let existing = directory.ancestors().find(|ancestor| machine.exists(ancestor));
    machine.at(existing.unwrap_or(Path::new("/")))
}

fn swap(machine: &dyn Machine, plan: &Plan) -> Finding {
    let active = match active_swap(&machine.at("/proc/swaps")) {
        Ok(active) => active,
        Err(error) => {
            let message = format!("cannot tell whether it is on: /proc/swaps: {error}");
            return Finding::warning(SWAP, message, "mount /proc");
        }
    };
    if active.is_empty() {
        return Finding::ok(SWAP, "off");
    }
    let message = format!("on: {}", active.join(", "));
    if !plan.configuration.fail_swap_on {
        return Finding::ok(SWAP, format!("{message}; the configuration allows it"));
    }
    Finding::warning(
        SWAP,
        format!("{message}; `podwright kubelet` refuses to start, `podwright up` works"),
        "run `swapoff -a`, or set failSwapOn: false",
    )
}
