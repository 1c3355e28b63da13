//! Resource usage of a process, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde::Serialize;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Resident set in MB of 1,000,000 bytes.
    pub resident: f64,
    /// The part that is not backed by a file.
    pub anonymous: f64,
}

impl Memory {
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kibibytes: f64 =
                line.trim_start_matches(':').trim().split(' ').next()?.parse().ok()?;
            Some(kibibytes * 1024.0 / 1e6)
        };
        Ok(Self {
            resident: field("VmRSS").with_context(|| format!("{path} has no VmRSS"))?,
            anonymous: field("RssAnon").with_context(|| format!("{path} has no RssAnon"))?,
        })
    }
}

/// CPU time of a process so far, including exited threads. Uses the kernel's CPU clock of the
/// process: `stat` counts in 10 ms ticks, and `schedstat` covers live threads only.
pub fn cpu(pid: u32) -> Result<Duration> {
    let process = Pid::from_raw(pid.try_into().context("process id out of range")?);
    let clock = ClockId::pid_cpu_clock_id(process).with_context(|| format!("process {pid}"))?;
    Ok(clock.now().with_context(|| format!("reading the CPU time of process {pid}"))?.into())
}

/// Average usage over `over`, in thousandths of one core.
pub async fn millicores(pid: u32, over: Duration) -> Result<f64> {
    let before = cpu(pid)?;
    tokio::time::sleep(over).await;
    let used = cpu(pid)?.saturating_sub(before);
    Ok(used.as_secs_f64() / over.as_secs_f64() * 1000.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.resident >= memory.anonymous && memory.anonymous > 0.0, "{memory:?}");
    }

    #[test]
    fn cpu_time_includes_ended_threads() {
        let before = cpu(std::process::id()).unwrap();
        let used = std::thread::spawn(|| {
            let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
            while Duration::from(clock.now().unwrap()) < Duration::from_millis(30) {}
            Duration::from(clock.now().unwrap())
        });
        let used = used.join().unwrap();
        let counted = cpu(std::process::id()).unwrap() - before;
        assert!(counted >= used, "{counted:?} of {used:?}");
    }
}
