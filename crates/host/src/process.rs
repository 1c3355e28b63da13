//! This process's limits, and identification of other processes.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::process::{Resource, Rlimit, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

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

/// Limits of a process that its children inherit.
///
/// The agent changes its own; a runtime that it starts gets those it had before, or containers would
/// have other limits depending on who started their runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InheritedLimits {
    oom_score_adj: i32,
    /// Soft and hard limit; `None` is unlimited.
    open_files: (Option<u64>, Option<u64>),
}

impl InheritedLimits {
    pub fn of_this_process(proc: &Path) -> Result<Self, ProcessError> {
        let pid = std::process::id();
        let text = std::fs::read_to_string(proc.join("self/oom_score_adj"))
            .map_err(|source| ProcessError::Inspect { pid, source })?;
        let oom_score_adj = text.trim().parse().map_err(|error| {
            let source = io::Error::new(io::ErrorKind::InvalidData, error);
            ProcessError::Inspect { pid, source }
        })?;
        let files = rustix::process::getrlimit(Resource::Nofile);
        Ok(Self { oom_score_adj, open_files: (files.current, files.maximum) })
    }

    /// Sets them for this process. A value that may not be lowered stays.
    pub fn apply(self, proc: &Path) -> Result<(), ProcessError> {
        set_own_oom_score_adj(proc, self.oom_score_adj)?;
        let (current, maximum) = self.open_files;
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum }).map_err(|errno| {
            let wanted = current.unwrap_or(u64::MAX);
            ProcessError::OpenFiles { wanted, source: errno.into() }
        })
    }
}

impl std::fmt::Display for InheritedLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let (soft, hard) = self.open_files;
        write!(f, "{}:{}:{}", self.oom_score_adj, number(soft), number(hard))
    }
}

impl std::str::FromStr for InheritedLimits {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "not OOM_SCORE_ADJ:SOFT:HARD";
        let mut parts = text.split(':');
        let oom_score_adj = parts.next().and_then(|part| part.parse().ok()).ok_or(wrong)?;
        let mut limit = || match parts.next() {
            Some("-") => Ok(None),
            part => part.and_then(|part| part.parse().ok()).map(Some).ok_or(wrong),
        };
        let open_files = (limit()?, limit()?);
        if parts.next().is_some() {
            return Err(wrong);
        }
        Ok(Self { oom_score_adj, open_files })
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

/// A process that is awaited through its pidfd, child of this process or not.
#[derive(Debug)]
pub struct WatchedProcess(AsyncFd<OwnedFd>);

/// How a child of this process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Status(i32),
    Signal(i32),
}

impl WatchedProcess {
    /// Call it within a tokio runtime.
    pub fn new(pidfd: OwnedFd) -> io::Result<Self> {
        #[allow(unsafe_code, reason = "tokio requires that the descriptor stays open")]
        // SAFETY: the descriptor is owned by the `AsyncFd`, never replaced and closed after it.
        let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
        registered.map(Self).map_err(|error| error.into_parts().1)
    }

    /// Waits until the process has ended. Cancel-safe, and returns at once from then on.
    pub async fn ended(&self) -> io::Result<()> {
        self.0.readable().await.map(drop)
    }

    /// Reaps the ended process; `None` if it is not a child of this process.
    pub fn reap(&self) -> Option<Ended> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::PidFd(self.0.get_ref().as_fd()), options).ok().flatten()?;
        let signal = status.terminating_signal().map(Ended::Signal);
        signal.or_else(|| status.exit_status().map(Ended::Status))
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

    #[allow(clippy::zombie_processes, reason = "WatchedProcess reaps it")]
    #[tokio::test]
    async fn end_of_a_process_is_awaited_and_a_child_is_reaped() {
        for (command, want) in
            [("exit 3", Ended::Status(3)), ("kill -9 $$", Ended::Signal(nix::libc::SIGKILL))]
        {
            let mut child = Command::new("sh")
                .args(["-c", &format!("read x; {command}")])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let pid = rustix::process::Pid::from_child(&child);
            let flags = rustix::process::PidfdFlags::empty();
            let watched =
                WatchedProcess::new(rustix::process::pidfd_open(pid, flags).unwrap()).unwrap();
            let soon = std::time::Duration::from_millis(50);
            assert!(tokio::time::timeout(soon, watched.ended()).await.is_err(), "it still runs");
            assert_eq!(watched.reap(), None);
            drop(child.stdin.take());
            watched.ended().await.unwrap();
            watched.ended().await.unwrap();
            assert_eq!(watched.reap(), Some(want));
            assert_eq!(watched.reap(), None, "only once");
        }
    }

    #[test]
    fn inherited_limits_are_passed_as_text() {
        let limits = InheritedLimits::of_this_process(Path::new(PROC)).unwrap();
        assert_eq!(limits.to_string().parse(), Ok(limits));
        for (text, valid) in [
            ("-999:1024:-", true),
            ("0:-:-", true),
            ("0:1024", false),
            ("0:1024:2048:1", false),
            ("x:1:1", false),
            ("0:-1:1", false),
            ("", false),
        ] {
            let read = text.parse::<InheritedLimits>();
            assert_eq!(read.map(|read| read.to_string()).ok(), valid.then(|| text.to_owned()));
        }
    }

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
