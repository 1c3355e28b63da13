//! Processes directly in a group: their states and open files.
//!
//! Each costs a read of its directory of open files. A pod may have any number of processes and
//! files, so only a limited number is read; the counts are then lower bounds.

use std::path::Path;

const MOST_PROCESSES: usize = 1000;
const MOST_FILES: u64 = 20_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// All of them.
    pub count: u64,
    pub open_files: u64,
    /// Of the open files.
    pub sockets: u64,
    pub running: u64,
    pub sleeping: u64,
    /// Uninterruptible sleep: they wait for a device and ignore signals.
    pub uninterruptible: u64,
    pub stopped: u64,
    /// Limit of open files of the oldest process.
    pub most_files: Option<u64>,
}

/// Of the processes in the text of `cgroup.procs`; `proc` is where procfs is mounted. A process
/// that ends meanwhile is not counted further.
pub(super) fn read(proc: &Path, listed: &str) -> Processes {
    // Zero stands for a process outside our pid namespace.
    let pids = listed.lines().filter_map(|line| line.trim().parse::<u32>().ok());
    let mut pids: Vec<u32> = pids.filter(|pid| *pid != 0).collect();
    pids.sort_unstable();
    let mut all = Processes { count: pids.len() as u64, ..Processes::default() };
    for (place, pid) in pids.iter().take(MOST_PROCESSES).enumerate() {
        let directory = proc.join(pid.to_string());
        if place == 0 {
            let limits = std::fs::read_to_string(directory.join("limits"));
            all.most_files = limits.ok().and_then(|limits| soft_limit_of_files(&limits));
        }
        let stat = std::fs::read_to_string(directory.join("stat")).unwrap_or_default();
        match state(&stat) {
            Some('R') => all.running += 1,
            Some('S' | 'I') => all.sleeping += 1,
            Some('D') => all.uninterruptible += 1,
            Some('T' | 't') => all.stopped += 1,
            Some(_) | None => {}
        }
        count_files(&directory.join("fd"), &mut all);
    }
    all
}

fn count_files(directory: &Path, all: &mut Processes) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if all.open_files >= MOST_FILES {
            return;
        }
        all.open_files += 1;
        let leads_to = std::fs::read_link(entry.path()).unwrap_or_default();
        if leads_to.as_os_str().as_encoded_bytes().starts_with(b"socket:") {
            all.sockets += 1;
        }
    }
}

/// The letter after the name, which is in parentheses and may contain anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn soft_limit_of_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_ascii_whitespace().next()? {
        // Upstream reports -1 for no limit; the kernel has a largest number.
        "unlimited" => None,
        soft => soft.parse().ok(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_counted_with_their_open_files() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, stat, open) in [
            (7, "7 (a) b) S 1", &["socket:[1]", "/dev/null", "pipe:[2]"][..]),
            (9, "9 (sh) R 7", &["socket:[3]"]),
            (11, "11 (dd) D 7", &[]),
        ] {
            let directory = proc.path().join(pid.to_string());
            std::fs::create_dir_all(directory.join("fd")).unwrap();
            std::fs::write(directory.join("stat"), stat).unwrap();
            let limits = format!("Limit  Soft\nMax open files  {}  4096  files\n", pid * 100);
            std::fs::write(directory.join("limits"), limits).unwrap();
            for (number, target) in open.iter().enumerate() {
                let link = directory.join("fd").join(number.to_string());
                std::os::unix::fs::symlink(target, link).unwrap();
            }
        }
        let want = Processes {
            count: 4,
            open_files: 4,
            sockets: 2,
            running: 1,
            sleeping: 1,
            uninterruptible: 1,
            stopped: 0,
            most_files: Some(700),
        };
        assert_eq!(read(proc.path(), "9\n0\n7\n11\n400\nx\n"), want, "one has ended");
        assert_eq!(read(proc.path(), ""), Processes::default());
        assert_eq!(soft_limit_of_files("Max open files  unlimited unlimited files"), None);
    }
}
