//! Usage of the machine and of processes.

use jiff::Timestamp;
use podwright_core::stats::Interface;

use super::{Machine, Result};

impl Machine {
    /// The interfaces of the network namespace that a process is in; `None`: ours.
    pub fn interfaces(&self, pid: Option<u32>) -> Result<Vec<Interface>> {
        let file = match pid {
            Some(pid) => format!("proc/{pid}/net/dev"),
            None => "proc/self/net/dev".to_owned(),
        };
        Ok(podwright_core::stats::interfaces(&self.read(&file)?))
    }

    /// Boot time.
    pub fn boot_time(&self) -> Result<Timestamp> {
        let stat = self.read("proc/stat")?;
        let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
        line.and_then(|seconds| Timestamp::from_second(seconds.trim().parse().ok()?).ok())
            .ok_or_else(|| self.unexpected("proc/stat", "the boot time"))
    }
}
