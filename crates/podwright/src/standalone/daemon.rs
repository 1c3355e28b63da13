//! Processes that outlive the command that starts them, and are found again by the next.
//!
//! A command may be killed at any moment, so none of them is started directly. This program is, as
//! `podwright daemon`: it writes the pid file, gives up the node's lock, and becomes the other
//! program, with the same process id. Whoever takes the lock next finds the pid file.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use podwright_host::process::ProcessIdentity;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::lock::{self, NodeLock};
use super::{log, unreadable, write_private};
use crate::cli::DaemonArgs;

/// Writing a pid file takes moments, unless the machine hangs.
const START_PATIENCE: Duration = Duration::from_secs(30);
const PROC: &str = "/proc";
const POLL: Duration = Duration::from_millis(20);

/// A process known by a file that holds its identity.
pub struct Daemon {
    pid_file: PathBuf,
}

impl Daemon {
    pub fn new(pid_file: PathBuf) -> Self {
        Self { pid_file }
    }

    /// The process, if it still runs. A number that belongs to someone else by now is not it.
    pub fn running(&self) -> anyhow::Result<Option<ProcessIdentity>> {
        let text = match std::fs::read_to_string(&self.pid_file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error, &self.pid_file)),
        };
        // It may well run, and nothing else says as what.
        let damaged = || {
            let file = self.pid_file.display();
            format!(
                "{file} is damaged. Fix: end the process it was written for, if that runs, and \
                 delete the file"
            )
        };
        let identity: ProcessIdentity = serde_json::from_str(&text).with_context(damaged)?;
        let alive = identity.is_running(Path::new(PROC))?;
        Ok(alive.then_some(identity))
    }

    /// Starts it in a process group of its own, its output in a file. When this returns, or at
    /// the latest when the lock is free again, it can be found by its pid file.
    pub fn start(
        &self,
        program: &Path,
        arguments: &[&OsStr],
        output: &Path,
        lock: Held<'_>,
    ) -> anyhow::Result<ProcessIdentity> {
        let name = program.display();
        let file = log::open(output)?;
        let this = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(this);
        command.arg("daemon").arg("--pid-file").arg(&self.pid_file);
        let lock = match lock {
            Held::UntilStarted(lock) => lock,
            Held::ByDaemon(lock) => {
                command.arg("--keep-lock");
                lock
            }
        };
        command.arg("--").arg(program).args(arguments);
        command
            .stdin(lock.share()?)
            .stdout(file.try_clone()?)
            .stderr(file)
            .current_dir("/")
            // Ctrl-C in the terminal is not meant for it.
            .process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            if let Some(identity) = self.running()?
                && identity.pid == child.id()
            {
                return Ok(identity);
            }
            if child.try_wait()?.is_some() {
                anyhow::bail!("{name} ended at once; see {}", output.display());
            }
            if Instant::now() >= deadline {
                anyhow::bail!("{name} was started as process {} and hangs", child.id());
            }
            std::thread::sleep(POLL);
        }
    }

    /// Writes down who we are, when we are the daemon ourselves.
    pub fn note_self(&self) -> anyhow::Result<()> {
        let me = ProcessIdentity::of(Path::new(PROC), std::process::id())?;
        self.note(&me.context("this process is not in /proc")?)
    }

    fn note(&self, identity: &ProcessIdentity) -> anyhow::Result<()> {
        write_private(&self.pid_file, &serde_json::to_vec(identity)?)
    }

    /// Asks it to end, and makes it after `patience`. True if it ran.
    pub fn stop(&self, patience: Duration) -> anyhow::Result<bool> {
        let Some(identity) = self.running()? else {
            self.forget();
            return Ok(false);
        };
        end(&identity, patience)?;
        self.forget();
        Ok(true)
    }

    pub fn forget(&self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.pid_file);
    }
}

/// Who gives up the lock that a daemon is started with.
#[derive(Clone, Copy)]
pub enum Held<'a> {
    /// It is given up before the program runs.
    UntilStarted(&'a NodeLock),
    /// The program gives it up itself.
    ByDaemon(&'a NodeLock),
}

/// Becomes the program, once the pid file says so. Returns only if it cannot.
pub fn become_program(arguments: &DaemonArgs) -> anyhow::Result<Infallible> {
    let [program, rest @ ..] = arguments.command.as_slice() else {
        anyhow::bail!("no program to start")
    };
    let daemon = Daemon::new(arguments.pid_file.clone());
    daemon.note_self()?;
    if !arguments.keep_lock {
        lock::give_up_inherited()?;
    }
    let error = Command::new(program).args(rest).exec();
    daemon.forget();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

/// Sends a signal. That the process is gone already is no error, and another one that has its
/// number by now gets none: the handle is of one process, and that is looked at after it is opened.
pub fn signal(identity: &ProcessIdentity, signal: Signal) -> anyhow::Result<()> {
    let failed = || format!("cannot end process {}", identity.pid);
    let Some(pid) = Pid::from_raw(i32::try_from(identity.pid)?) else { return Ok(()) };
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(()),
        Err(errno) => return Err(errno).with_context(failed),
    };
    if !identity.is_running(Path::new(PROC))? {
        return Ok(());
    }
    match pidfd_send_signal(&process, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno).with_context(failed),
    }
}

/// SIGTERM, then SIGKILL.
pub fn end(identity: &ProcessIdentity, patience: Duration) -> anyhow::Result<()> {
    for (signal, patience) in [(Signal::TERM, patience), (Signal::KILL, patience)] {
        if !identity.is_running(Path::new(PROC))? {
            return Ok(());
        }
        self::signal(identity, signal)?;
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if !identity.is_running(Path::new(PROC))? {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }
    anyhow::bail!("process {} does not end, not even with SIGKILL", identity.pid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn damaged_pid_file_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let daemon = Daemon::new(directory.path().join("agent.pid"));
        for text in ["", "17", "{}"] {
            std::fs::write(&daemon.pid_file, text).unwrap();
            for outcome in [daemon.running().map(drop), daemon.stop(Duration::ZERO).map(drop)] {
                let told = format!("{:#}", outcome.unwrap_err());
                assert!(told.contains("agent.pid is damaged. Fix: "), "{text:?}: {told}");
            }
        }
    }

    #[test]
    fn signal_reaches_the_process_that_is_meant_and_no_other_with_its_number() {
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
    fn who_may_not_look_is_told_so_and_not_that_nothing_runs() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::new(folder.path().join("agent.pid"));
        assert!(daemon.running().unwrap().is_none(), "nothing is there");
        daemon.note_self().unwrap();
        assert!(daemon.running().unwrap().is_some());
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o000)).unwrap();
        // Root may look everywhere; this thread is somebody else for files.
        nix::unistd::setfsuid(nix::unistd::Uid::from_raw(65534));
        let refused = format!("{:#}", daemon.running().unwrap_err());
        nix::unistd::setfsuid(nix::unistd::geteuid());
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(refused.contains("try sudo"), "{refused}");
    }
}
