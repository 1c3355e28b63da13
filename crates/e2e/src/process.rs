//! Background process of a bed, with its log in a file.
//!
//! Not tokio's child: one bed may serve many tests, each with its own runtime, and a tokio child is
//! bound to the runtime that created it.

mod command;
mod interactive;

use std::fmt::{self, Display};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::wait;

pub(crate) use command::wait_until;
pub use command::{COMMAND_LIMIT, Stdin, everything, output, output_of, run};
pub use interactive::InteractiveCommand;

/// Time limit for a process to exit after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(60);

pub struct Daemon {
    name: String,
    log: PathBuf,
    pid: u32,
    child: Mutex<Child>,
}

impl Daemon {
    /// Starts `command`. Its output is appended to `log`, so that a restart keeps the earlier
    /// output.
    pub fn spawn(
        name: impl Into<String>,
        log: impl Into<PathBuf>,
        mut command: Command,
    ) -> Result<Self> {
        let (name, log) = (name.into(), log.into());
        if let Some(directory) = log.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("opening the log {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("starting {name}: {command:?}"))?;
        Ok(Self { name, log, pid: child.id(), child: Mutex::new(child) })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The whole output of the program so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map_or_else(
            |error| format!("(cannot read {}: {error})", self.log.display()),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// The exit status, if it has exited.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(child.try_wait()?)
    }

    /// Sends a signal. The child is not reaped yet, so the pid cannot be reused.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(status) = child.try_wait()? {
            bail!("{self} already exited with {status}");
        }
        kill_process(Pid::from_child(&child), signal).with_context(|| format!("signalling {self}"))
    }

    /// Sends SIGTERM, and SIGKILL if it has not exited after `grace`.
    pub async fn stop(&self, grace: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        self.signal(Signal::TERM)?;
        match self.wait(grace).await {
            Ok(status) => Ok(status),
            Err(_) => self.kill().await,
        }
    }

    /// Sends SIGKILL and waits for the exit.
    pub async fn kill(&self) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        self.signal(Signal::KILL)?;
        self.wait(KILL_LIMIT).await
    }

    /// Waits for the exit.
    pub async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        wait::until(format_args!("{self} to exit"), limit, async || self.ended()).await
    }

    /// Waits for a condition that this program brings about; if it exits first, fails immediately
    /// with the end of its log.
    pub async fn until<T>(
        &self,
        what: impl Display,
        limit: Duration,
        mut condition: impl AsyncFnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let outcome = wait::until(&what, limit, async || match condition().await {
            Ok(None) | Err(_) if self.ended()?.is_some() => Ok(Some(Err(anyhow!("{self} ended")))),
            Ok(value) => Ok(value.map(Ok)),
            Err(error) => Err(error),
        });
        outcome.await.flatten().with_context(|| {
            format!("waiting for {what}; the end of its log:\n{}", last_lines(&self.log(), 20))
        })
    }
}

impl Drop for Daemon {
    /// Kills and reaps it: a zombie would keep the bed's cgroup busy.
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Display for Daemon {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (pid {})", self.name, self.pid)
    }
}

/// The last `count` lines of `text`.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Daemon) {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let daemon = Daemon::spawn("shell", directory.path().join("log"), command).unwrap();
        (directory, daemon)
    }

    #[tokio::test]
    async fn stopping_a_program_that_ignores_sigterm_kills_it() {
        let (_directory, daemon) = shell("trap '' TERM; echo trapped; exec tail -f /dev/null");
        let trapped =
            wait::until_true("the trap", KILL_LIMIT, async || Ok(daemon.log().contains("trapped")));
        trapped.await.unwrap();
        let status = daemon.stop(Duration::from_millis(50)).await.unwrap();
        assert!(!status.success(), "{status}");
    }

    #[tokio::test]
    async fn waiting_on_exited_program_fails_at_once_with_its_output() {
        let (_directory, daemon) = shell("echo no such luck; exit 3");
        let never = daemon.until::<()>(
            "a condition that never holds",
            Duration::from_secs(3600),
            async || Ok(None),
        );
        let error = format!("{:#}", never.await.unwrap_err());
        assert!(error.contains("no such luck"), "{error}");
    }

    #[test]
    fn last_lines_of_a_short_text_are_the_text() {
        for (text, count, want) in [("a\nb\nc", 2, "b\nc"), ("a", 2, "a"), ("", 2, "")] {
            assert_eq!(last_lines(text, count), want);
        }
    }
}
