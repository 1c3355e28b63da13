//! What a process costs, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde::Serialize;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// Resident, in MB as the kernel counts them for humans: 1,000,000 bytes.
    pub resident: f64,
    /// Of it what no file backs.
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

/// CPU time of a process so far, with its threads that have ended. The kernel's own clock of it:
/// that of `stat` ticks in 10 ms, and `schedstat` knows only threads that live.
pub fn cpu(pid: u32) -> Result<Duration> {
    let process = Pid::from_raw(pid.try_into().context("a process id")?);
    let clock = ClockId::pid_cpu_clock_id(process).with_context(|| format!("process {pid}"))?;
    Ok(clock.now().with_context(|| format!("the CPU time of process {pid}"))?.into())
}

/// Thousandths of one core, over a while.
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
    fn what_a_thread_used_counts_when_it_has_ended() {
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
