//! Background processes that outlive the command that starts them, found by their pid file.
//!
//! A command may be killed at any moment, so it starts none of them directly. It starts this
//! program as `podwright daemon`, which writes the pid file, releases the node lock and then
//! executes the daemon with the same process id. The next command that takes the lock finds the pid
//! file.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use podwright_host::process::{InheritedLimits, ProcessIdentity};
use podwright_host::trusted_path;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::lock::{self, NodeLock};
use super::{log, unreadable, write_private};
use crate::cli::DaemonArgs;

/// Generous: writing a pid file takes milliseconds unless the machine hangs.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const PROC: &str = "/proc";
const POLL: Duration = Duration::from_millis(20);

/// A process identified by a pid file.
pub struct Daemon {
    pid_file: PathBuf,
}

impl Daemon {
    pub fn new(pid_file: PathBuf) -> Self {
        Self { pid_file }
    }

    /// The process, if it is still running. A reused pid does not count.
    pub fn running(&self) -> anyhow::Result<Option<ProcessIdentity>> {
        let text = match std::fs::read_to_string(&self.pid_file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error, &self.pid_file)),
        };
        // The process may be running, and nothing else identifies it.
        let damaged = || {
            let file = self.pid_file.display();
            format!(
                "{file} is corrupt. Fix: stop the process it was written for, if it is running, and \
                 delete the file"
            )
        };
        let identity: ProcessIdentity = serde_json::from_str(&text).with_context(damaged)?;
        let running = identity.is_running(Path::new(PROC))?;
        Ok(running.then_some(identity))
    }

    /// Starts it in a new process group, with its output in a file. Its pid file exists when this
    /// returns, and in any case before the lock is released.
    pub fn start(
        &self,
        program: &Path,
        arguments: &[&OsStr],
        output: &Path,
        lock: LockRelease<'_>,
        limits: Option<InheritedLimits>,
    ) -> anyhow::Result<ProcessIdentity> {
        let name = program.display();
        let file = log::open(output)?;
        let this = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(this);
        command.arg("daemon").arg("--pid-file").arg(&self.pid_file);
        let lock = match lock {
            LockRelease::UntilStarted(lock) => lock,
            LockRelease::ByDaemon(lock) => {
                command.arg("--keep-lock");
                lock
            }
        };
        if let Some(limits) = limits {
            command.arg("--limits").arg(limits.to_string());
        }
        command.arg("--").arg(program).args(arguments);
        // It finds programs of its own by name: containerd its shim and runc, plugins iptables.
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .env("PATH", trusted_path::search_path(&path))
            .stdin(lock.share()?)
            .stdout(file.try_clone()?)
            .stderr(file)
            .current_dir("/")
            // Ctrl-C in the terminal must not reach it.
            .process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(identity) = self.running()?
                && identity.pid == child.id()
            {
                return Ok(identity);
            }
            if let Some(status) = child.try_wait()? {
                let log = output.display();
                anyhow::bail!("{name} exited immediately with {status}; see {log}");
            }
            if Instant::now() >= deadline {
                anyhow::bail!("{name} hangs after it was started as process {}", child.id());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Writes the pid file of this process.
    pub fn write_own_pid_file(&self) -> anyhow::Result<()> {
        let me = ProcessIdentity::of(Path::new(PROC), std::process::id())?;
        self.note(&me.context("this process is not in /proc")?)
    }

    fn note(&self, identity: &ProcessIdentity) -> anyhow::Result<()> {
        write_private(&self.pid_file, &serde_json::to_vec(identity)?)
    }

    /// Stops it: SIGTERM, then SIGKILL after `timeout`. Returns whether it was running.
    pub fn stop(&self, timeout: Duration) -> anyhow::Result<bool> {
        let Some(identity) = self.running()? else {
            self.forget();
            return Ok(false);
        };
        end(&identity, timeout)?;
        self.forget();
        Ok(true)
    }

    pub fn forget(&self) {
        // The file may already be gone.
        let _ = std::fs::remove_file(&self.pid_file);
    }
}

/// When the lock that a daemon is started with is released.
#[derive(Clone, Copy)]
pub enum LockRelease<'a> {
    /// Before the program is executed.
    UntilStarted(&'a NodeLock),
    /// By the program itself.
    ByDaemon(&'a NodeLock),
}

/// Writes the pid file and executes the program. Returns only on failure.
pub fn become_program(arguments: &DaemonArgs) -> anyhow::Result<Infallible> {
    let [program, rest @ ..] = arguments.command.as_slice() else {
        anyhow::bail!("no program to start")
    };
    let daemon = Daemon::new(arguments.pid_file.clone());
    daemon.write_own_pid_file()?;
    if !arguments.keep_lock {
        lock::give_up_inherited()?;
    }
    if let Some(limits) = arguments.limits
        && let Err(error) = limits.apply(Path::new(PROC))
    {
        // Its output is the log of the program.
        let error = anyhow::Error::new(error);
        let _ = writeln!(std::io::stderr(), "podwright daemon: cannot set limits: {error:#}");
    }
    let error = Command::new(program).args(rest).exec();
    daemon.forget();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// A pidfd of the process; none if it has exited. The identity is checked after the pidfd is opened,
/// so it never refers to a process that reused the pid.
pub fn open(identity: &ProcessIdentity) -> anyhow::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(i32::try_from(identity.pid)?) else { return Ok(None) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(None),
        Err(errno) => {
            return Err(errno).with_context(|| format!("cannot watch process {}", identity.pid));
        }
    };
    Ok(identity.is_running(Path::new(PROC))?.then_some(process))
}

/// Sends a signal. A process that has already exited is no error, and a process that reused its pid
/// is not signalled.
pub fn signal(identity: &ProcessIdentity, signal: Signal) -> anyhow::Result<()> {
    let failed = || format!("cannot signal process {}", identity.pid);
    let Some(process) = open(identity)? else { return Ok(()) };
    match pidfd_send_signal(&process, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno).with_context(failed),
    }
}

/// SIGTERM, then SIGKILL.
pub fn end(identity: &ProcessIdentity, timeout: Duration) -> anyhow::Result<()> {
    for signal in [Signal::TERM, Signal::KILL] {
        if !identity.is_running(Path::new(PROC))? {
            return Ok(());
        }
        self::signal(identity, signal)?;
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            if !identity.is_running(Path::new(PROC))? {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }
    anyhow::bail!("process {} is still running after SIGKILL", identity.pid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn corrupt_pid_file_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let daemon = Daemon::new(directory.path().join("agent.pid"));
        for text in ["", "17", "{}"] {
            std::fs::write(&daemon.pid_file, text).unwrap();
            for outcome in [daemon.running().map(drop), daemon.stop(Duration::ZERO).map(drop)] {
                let error = format!("{:#}", outcome.unwrap_err());
                assert!(error.contains("agent.pid is corrupt. Fix: "), "{text:?}: {error}");
            }
        }
    }

    #[test]
    fn signal_is_not_sent_to_a_process_that_reused_the_pid() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let identity = ProcessIdentity::of(Path::new(PROC), child.id()).unwrap().unwrap();
        let mut other = serde_json::to_value(&identity).unwrap();
        other["started"] = 1.into();
        let other: ProcessIdentity = serde_json::from_value(other).unwrap();
        signal(&other, Signal::KILL).unwrap();
        assert!(identity.is_running(Path::new(PROC)).unwrap());
        signal(&identity, Signal::KILL).unwrap();
        child.wait().unwrap();
        signal(&identity, Signal::KILL).unwrap();
    }

    #[test]
    fn unreadable_pid_file_is_an_error_and_not_a_stopped_process() {
        let directory = tempfile::tempdir().unwrap();
        let daemon = Daemon::new(directory.path().join("agent.pid"));
        assert!(daemon.running().unwrap().is_none(), "no pid file");
        daemon.write_own_pid_file().unwrap();
        assert!(daemon.running().unwrap().is_some());
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o000)).unwrap();
        // Root bypasses permissions, so this thread accesses files as another user.
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
        let refused = format!("{:#}", daemon.running().unwrap_err());
        nix::unistd::setfsuid(nix::unistd::geteuid());
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(refused.contains("run with sudo"), "{refused}");
    }
}
