//! The process that outlives a bed's owner and clears up behind it.
//!
//! It reads from a pipe whose other end only the owner has. Nothing is ever written: the pipe ends
//! when the owner lets go of it, be it in good order or because it was killed, and then the bed
//! goes. There is no second way to take a bed down.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::case;
use crate::process::wait_until;
use crate::remains::Remains;
use crate::roster::Roster;

/// What the guardian says once it holds its locks.
const READY: &str = "guarding";

/// How long a guardian may take to be ready, and to clear a bed away.
const LIMIT: Duration = Duration::from_secs(300);

/// Dropped, it lets go of the bed and waits; [`Guardian::dismiss`] also tells how that went.
pub(crate) struct Guardian(Child);

impl Guardian {
    /// Starts the guardian of a bed and waits until it is on its post.
    pub(crate) fn start(bed: &Path) -> Result<Self> {
        let program = program()?;
        let mut child = Command::new(&program)
            .arg(bed)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0) // an interrupt typed at the tests is not for the guardian
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let (send, said) = std::sync::mpsc::channel();
        let stdout = child.stdout.take();
        std::thread::spawn(move || {
            let mut said = String::new();
            if let Some(stdout) = stdout {
                let _ = BufReader::new(stdout).read_line(&mut said);
            }
            let _ = send.send(said);
        });
        let said = said.recv_timeout(LIMIT);
        let said = said.with_context(|| format!("{} says nothing", program.display()))?;
        if said.trim() != READY {
            bail!("{} is not on its post: {said:?}", program.display());
        }
        Ok(Self(child))
    }

    /// Lets go of the bed and waits until it is cleared away.
    pub(crate) fn dismiss(mut self) -> Result<()> {
        let status = self.release().context("waiting for the guardian")?;
        if !status.success() {
            bail!("the guardian could not clear the bed away: {status}; its words are above");
        }
        Ok(())
    }

    fn release(&mut self) -> Result<ExitStatus> {
        drop(self.0.stdin.take());
        let _waiting = case::waiting_for("a bed's guardian to clear it away".to_owned());
        let ended = wait_until(&mut self.0, Instant::now() + LIMIT)?;
        ended.with_context(|| format!("it did not clear the bed away in {} s", LIMIT.as_secs()))
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        // It says itself, on standard error, what it could not do.
        let _ = self.release();
    }
}

/// Guards the bed in `folder` until `owner` ends, then clears it away: a guardian's whole life.
pub fn guard(folder: &Path, mut owner: impl Read, mut ready: impl Write) -> Result<()> {
    let roster = Roster::of(folder)?;
    let _held = Roster::guard(folder)?;
    writeln!(ready, "{READY}")?;
    ready.flush()?;
    let mut nothing = [0; 64];
    while owner.read(&mut nothing).context("listening for the owner's end")? > 0 {}
    let remains = Remains::of(folder)?;
    remains.clear()?;
    roster.retire(&remains)
}

/// Cargo puts the guardian beside the programs it builds, and tests one folder below.
fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PODWRIGHT_BED_GUARDIAN") {
        return Ok(path.into());
    }
    let me = std::env::current_exe().context("finding this program")?;
    let beside = me.ancestors().skip(1).take(2).map(|folder| folder.join("bed-guardian"));
    beside.into_iter().find(|path| path.exists()).with_context(|| {
        format!(
            "no bed-guardian beside {}: cargo build -p podwright-e2e --bins, or name it in \
             PODWRIGHT_BED_GUARDIAN",
            me.display()
        )
    })
}
