//! Processes and loop devices of a machine snapshot.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Entry, Kind};

pub(super) fn entries() -> Result<Vec<Entry>> {
    let mut entries = processes()?;
    entries.extend(loop_devices());
    Ok(entries)
}

/// Start time of a process in ticks since boot: together with the pid it identifies a process.
pub(crate) fn start_time(proc: &Path) -> Option<String> {
    let stat = fs::read_to_string(proc.join("stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(19).map(str::to_owned)
}

fn processes() -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    for proc in fs::read_dir("/proc").context("machine snapshot: listing /proc")?.flatten() {
        let Some(pid) = proc.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let proc = proc.path();
        // A process without a command line is a kernel thread or a zombie.
        if fs::read_link(proc.join("exe")).is_err() {
            continue;
        }
        let Some(started) = start_time(&proc) else { continue };
        let name = fs::read_to_string(proc.join("comm")).unwrap_or_default();
        let command = fs::read(proc.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let detail = format!("{} started at {started}", command.trim());
        found.push(Entry::new(Kind::Process, format!("{pid} {}", name.trim()), detail));
    }
    Ok(found)
}

/// Loop devices of other tests are left out: isolation shares the machine's block devices.
fn loop_devices() -> Vec<Entry> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let used = devices.filter_map(|device| {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let name = device.file_name().to_string_lossy().into_owned();
        let file = file.trim();
        let others = file.starts_with("/var/tmp/podwright-beds/");
        (!others).then(|| Entry::new(Kind::LoopDevice, name, file))
    });
    used.collect()
}
