//! A program that a bed runs in the background: its log in a file, its end noticed.
//!
//! Why not tokio's child: one bed may serve many tests, each with a runtime of its own, and tokio's
//! needs the runtime it was born in.

mod command;
mod talk;

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
pub use talk::Talk;

/// How long a process may take to vanish after SIGKILL.
const DEATH: Duration = Duration::from_secs(60);

pub struct Daemon {
    name: String,
    log: PathBuf,
    pid: u32,
    child: Mutex<Child>,
}

impl Daemon {
    /// Starts `command`. What it says is appended to `log`, so that a restart keeps the story of
    /// the life before.
    pub fn spawn(
        name: impl Into<String>,
        log: impl Into<PathBuf>,
        mut command: Command,
    ) -> Result<Self> {
        let (name, log) = (name.into(), log.into());
        if let Some(folder) = log.parent() {
            fs::create_dir_all(folder)?;
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

    /// Everything the program has said so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map_or_else(
            |error| format!("(cannot read {}: {error})", self.log.display()),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(child.try_wait()?)
    }

    /// Sends a signal. The child is not yet waited for, so the pid cannot be someone else's.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(status) = child.try_wait()? {
            bail!("{self} already ended with {status}");
        }
        kill_process(Pid::from_child(&child), signal).with_context(|| format!("signalling {self}"))
    }

    /// SIGTERM, and SIGKILL when it has not ended `grace` later.
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

    /// SIGKILL; returns when it is gone.
    pub async fn kill(&self) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        self.signal(Signal::KILL)?;
        self.wait(DEATH).await
    }

    /// Waits for its end.
    pub async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        wait::until(format_args!("the end of {self}"), limit, async || self.ended()).await
    }

    /// Waits for a condition that this program is to bring about; fails at once, with its last
    /// words, when it ends instead.
    pub async fn until<T>(
        &self,
        what: impl Display,
        limit: Duration,
        mut question: impl AsyncFnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let outcome = wait::until(&what, limit, async || match question().await {
            Ok(None) | Err(_) if self.ended()?.is_some() => Ok(Some(Err(anyhow!("{self} ended")))),
            Ok(answer) => Ok(answer.map(Ok)),
            Err(error) => Err(error),
        });
        outcome.await.flatten().with_context(|| {
            format!("waiting for {what}; the end of its log:\n{}", last_lines(&self.log(), 20))
        })
    }
}

impl Drop for Daemon {
    /// Ends it, and takes its exit code: a zombie would keep the bed's cgroup busy.
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
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let daemon = Daemon::spawn("shell", folder.path().join("log"), command).unwrap();
        (folder, daemon)
    }

    #[tokio::test]
    async fn stopping_a_program_that_ignores_sigterm_kills_it() {
        let (_folder, daemon) = shell("trap '' TERM; echo deaf; exec tail -f /dev/null");
        let deaf = wait::until_true("the trap", DEATH, async || Ok(daemon.log().contains("deaf")));
        deaf.await.unwrap();
        let status = daemon.stop(Duration::from_millis(50)).await.unwrap();
        assert!(!status.success(), "{status}");
    }

    #[tokio::test]
    async fn waiting_on_a_program_that_ends_fails_at_once_with_its_last_words() {
        let (_folder, daemon) = shell("echo no such luck; exit 3");
        let never = daemon.until::<()>("a miracle", Duration::from_secs(3600), async || Ok(None));
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
