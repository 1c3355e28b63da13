//! This process's limits, and identification of other processes.

use std::io;
use std::path::Path;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("cannot set our oom_score_adj to {value}")]
    OomScore { value: i32, source: io::Error },
    #[error("cannot raise our limit of open files to {wanted}")]
    OpenFiles { wanted: u64, source: io::Error },
    #[error("cannot inspect process {pid}")]
    Inspect { pid: u32, source: io::Error },
}

/// Whether the kernel allowed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permitted {
    Yes,
    /// A capability is missing. The node works without; log it once.
    No,
}

/// How readily the OOM killer picks the agent; `proc` is where procfs is mounted.
pub fn set_own_oom_score_adj(proc: &Path, value: i32) -> Result<Permitted, ProcessError> {
    match std::fs::write(proc.join("self/oom_score_adj"), value.to_string()) {
        Ok(()) => Ok(Permitted::Yes),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Permitted::No),
        Err(source) => Err(ProcessError::OomScore { value, source }),
    }
}

/// Raises the limit of open files to `wanted`, or as far as allowed. Returns the new limit.
pub fn raise_open_files(wanted: u64) -> Result<u64, ProcessError> {
    let now = rustix::process::getrlimit(Resource::Nofile);
    let set = |current, maximum| {
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum })
    };
    if now.current.is_none_or(|current| current >= wanted) {
        return Ok(now.current.unwrap_or(u64::MAX));
    }
    let within = now.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    // Raising the hard limit takes a capability; raising the soft limit up to it does not.
    if within < wanted && set(wanted, Some(wanted)).is_ok() {
        return Ok(wanted);
    }
    match set(within, now.maximum) {
        Ok(()) => Ok(within),
        Err(errno) => Err(ProcessError::OpenFiles { wanted, source: errno.into() }),
    }
}

/// Returns memory that is free inside the allocator to the kernel.
///
/// The default allocator keeps what a burst of pods once needed; measured, this returns nine tenths
/// of it. Call it after bursts and now and then, not often: it walks the whole heap.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    {
        #[allow(unsafe_code, reason = "glibc's malloc_trim has no safe binding")]
        unsafe extern "C" {
            /// Takes the bytes to keep at the top of the heap, touches only the allocator's own
            /// state under its own locks, and may be called by any thread at any time.
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}

/// A process identity that distinguishes it from a later process with the same pid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    #[serde(rename = "pid")]
    pub pid: u32,
    /// Clock ticks from boot to its start.
    #[serde(rename = "started")]
    started: u64,
    /// Start ticks repeat after a reboot.
    #[serde(rename = "boot")]
    boot: String,
}

impl ProcessIdentity {
    /// The process that has this pid now; `None` if there is none, or only a zombie.
    pub fn of(proc: &Path, pid: u32) -> Result<Option<Self>, ProcessError> {
        let failed = |source| ProcessError::Inspect { pid, source };
        let stat = match std::fs::read(proc.join(pid.to_string()).join("stat")) {
            Ok(stat) => stat,
            // ESRCH: it ended between open and read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => return Ok(None),
            Err(source) => return Err(failed(source)),
        };
        let Some((state, started)) = parse_stat(&stat) else {
            return Err(failed(io::Error::new(
                io::ErrorKind::InvalidData,
                "unexpected format of its stat file",
            )));
        };
        if matches!(state, b'Z' | b'X' | b'x') {
            return Ok(None);
        }
        let boot =
            std::fs::read_to_string(proc.join("sys/kernel/random/boot_id")).map_err(failed)?;
        Ok(Some(Self { pid, started, boot: boot.trim().to_owned() }))
    }

    pub fn is_running(&self, proc: &Path) -> Result<bool, ProcessError> {
        Ok(Self::of(proc, self.pid)?.as_ref() == Some(self))
    }
}

/// State and start time. The name, in parentheses, may itself contain spaces and parentheses.
fn parse_stat(stat: &[u8]) -> Option<(u8, u64)> {
    let end_of_name = stat.iter().rposition(|b| *b == b')')?;
    let after = std::str::from_utf8(stat.get(end_of_name + 1..)?).ok()?;
    let mut fields = after.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    // The state is field 3 of proc(5), the start time field 22.
    let started = fields.nth(22 - 4)?.parse().ok()?;
    Some((state, started))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::process::{Command, Stdio};

    use super::*;

    const PROC: &str = "/proc";

    #[test]
    fn process_is_identified_until_it_ends() {
        let proc = Path::new(PROC);
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let identity = ProcessIdentity::of(proc, child.id()).unwrap().unwrap();
        assert!(identity.is_running(proc).unwrap());
        let later = ProcessIdentity { started: identity.started + 1, ..identity.clone() };
        assert!(!later.is_running(proc).unwrap());
        let rebooted =
            ProcessIdentity { boot: "another".into(), started: identity.started, ..later };
        assert!(!rebooted.is_running(proc).unwrap());

        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!identity.is_running(proc).unwrap());
    }

    #[test]
    fn process_name_does_not_break_parsing() {
        let tail = "S 1 2 3 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        for name in ["cat", "a b", "evil) S 1 2 3", "((", "\u{fffd}"] {
            let stat = format!("42 ({name}) {tail}");
            assert_eq!(parse_stat(stat.as_bytes()), Some((b'S', 4711)), "{name}");
        }
        for stat in ["", "42 (cat", "42 (cat)", "42 (cat) S 1 2", "42 (cat) S 1 2 3 x"] {
            assert_eq!(parse_stat(stat.as_bytes()), None, "{stat}");
        }
    }

    #[test]
    fn the_oom_score_is_written_or_reported_as_not_permitted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("self")).unwrap();
        assert_eq!(set_own_oom_score_adj(dir.path(), -999).unwrap(), Permitted::Yes);
        let written = std::fs::read_to_string(dir.path().join("self/oom_score_adj")).unwrap();
        assert_eq!(written, "-999");
        set_own_oom_score_adj(Path::new("/no/proc"), 0).unwrap_err();
        // raising one's own score is always allowed; leave it as it is
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        set_own_oom_score_adj(Path::new(PROC), own.trim().parse().unwrap()).unwrap();
    }

    #[test]
    fn open_files_are_raised_as_far_as_allowed() {
        let before = rustix::process::getrlimit(Resource::Nofile).current.unwrap();
        assert_eq!(raise_open_files(before - 1).unwrap(), before, "never lowered");
        let got = raise_open_files(u64::from(u32::MAX)).unwrap();
        assert!(got >= before);
        assert_eq!(rustix::process::getrlimit(Resource::Nofile).current, Some(got));
    }

    #[test]
    fn trimming_the_heap_returns() {
        drop(vec![0u8; 64 << 20]);
        trim_heap();
    }
}
