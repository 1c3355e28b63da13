//! What a process costs, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
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

/// CPU time of a process so far. The scheduler's own account: the clock of `stat` ticks in 10 ms.
pub fn cpu(pid: u32) -> Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut nanoseconds = 0;
    for thread in fs::read_dir(&folder).with_context(|| format!("reading {folder}"))? {
        // A thread may end while we read.
        let Ok(line) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let ran: u64 = line.split(' ').next().unwrap_or("0").parse()?;
        nanoseconds += ran;
    }
    Ok(Duration::from_nanos(nanoseconds))
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
    fn a_process_has_memory_and_has_run() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.resident >= memory.anonymous && memory.anonymous > 0.0, "{memory:?}");
        assert!(cpu(std::process::id()).unwrap() > Duration::ZERO);
    }
}
