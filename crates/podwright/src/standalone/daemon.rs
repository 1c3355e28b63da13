//! Processes that outlive the command that starts them, and are found again by the next.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwright_host::process::ProcessIdentity;

use super::log;

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
        let Ok(text) = std::fs::read_to_string(&self.pid_file) else { return Ok(None) };
        let Ok(identity) = serde_json::from_str::<ProcessIdentity>(&text) else { return Ok(None) };
        let alive = identity.is_running(Path::new(PROC))?;
        Ok(alive.then_some(identity))
    }

    /// Starts it in a session of its own, its output in a file.
    pub fn start(&self, command: &mut Command, output: &Path) -> anyhow::Result<ProcessIdentity> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file = log::open(output)?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .current_dir("/")
            // Its own group: Ctrl-C in the terminal is not meant for it.
            .process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let identity = ProcessIdentity::of(Path::new(PROC), child.id())?
            .with_context(|| format!("{name} ended at once; see {}", output.display()))?;
        self.note(&identity)?;
        Ok(identity)
    }

    /// Writes down who we are, when we are the daemon ourselves.
    pub fn note_self(&self) -> anyhow::Result<()> {
        let me = ProcessIdentity::of(Path::new(PROC), std::process::id())?;
        self.note(&me.context("this process is not in /proc")?)
    }

    fn note(&self, identity: &ProcessIdentity) -> anyhow::Result<()> {
        let text = serde_json::to_string(identity)?;
        std::fs::write(&self.pid_file, text)
            .with_context(|| format!("cannot write {}", self.pid_file.display()))
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

/// SIGTERM, then SIGKILL.
pub fn end(identity: &ProcessIdentity, patience: Duration) -> anyhow::Result<()> {
    for (signal, patience) in [(Signal::SIGTERM, patience), (Signal::SIGKILL, patience)] {
        if !identity.is_running(Path::new(PROC))? {
            return Ok(());
        }
        let pid = Pid::from_raw(i32::try_from(identity.pid)?);
        if kill(pid, signal).is_err() {
            return Ok(());
        }
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
