//! Cleanup process: removes a bed after its owner has ended.
//!
//! It reads from a pipe whose other end only the owner has. Nothing is ever written: the pipe
//! reaches end of file when the owner closes it or is killed, and then the bed is removed. This is
//! the only way a bed is removed.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bed_list::BedList;
use crate::case;
use crate::leftovers::Leftovers;
use crate::process::wait_until;

/// Printed by the cleanup process after it has acquired its locks.
const READY: &str = "ready";

/// Time limit for a cleanup process to become ready, and to remove a bed.
const LIMIT: Duration = Duration::from_secs(300);

/// On drop, releases the bed and waits; [`CleanupProcess::finish`] also returns the result.
pub(crate) struct CleanupProcess(Child);

impl CleanupProcess {
    /// Starts the cleanup process of a bed and waits until it is ready.
    pub(crate) fn start(bed: &Path) -> Result<Self> {
        let program = program()?;
        let mut child = Command::new(&program)
            .arg(bed)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0) // Ctrl-C must not reach the cleanup process
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let (send, output) = std::sync::mpsc::channel();
        let stdout = child.stdout.take();
        std::thread::spawn(move || {
            let mut output = String::new();
            if let Some(stdout) = stdout {
                let _ = BufReader::new(stdout).read_line(&mut output);
            }
            let _ = send.send(output);
        });
        let output = output.recv_timeout(LIMIT);
        let output =
            output.with_context(|| format!("reading the output of {}", program.display()))?;
        if output.trim() != READY {
            bail!("{} is not ready: {output:?}", program.display());
        }
        Ok(Self(child))
    }

    /// Releases the bed and waits until it is removed.
    pub(crate) fn finish(mut self) -> Result<()> {
        let status = self.release().context("waiting for the cleanup process")?;
        if !status.success() {
            bail!("the cleanup process failed to remove the bed: {status}; its output is above");
        }
        Ok(())
    }

    fn release(&mut self) -> Result<ExitStatus> {
        drop(self.0.stdin.take());
        let _waiting = case::waiting_for("the cleanup process to remove a bed".to_owned());
        let ended = wait_until(&mut self.0, Instant::now() + LIMIT)?;
        ended.with_context(|| format!("bed not removed within {} s", LIMIT.as_secs()))
    }
}

impl Drop for CleanupProcess {
    fn drop(&mut self) {
        // Its errors go to standard error.
        let _ = self.release();
    }
}

/// Main function of the cleanup process: waits until `owner` ends, then removes the bed in
/// `directory`.
pub fn guard(directory: &Path, mut owner: impl Read, mut ready: impl Write) -> Result<()> {
    let bed_list = BedList::of(directory)?;
    let _held = BedList::guard(directory)?;
    writeln!(ready, "{READY}")?;
    ready.flush()?;
    let mut nothing = [0; 64];
    while owner.read(&mut nothing).context("waiting for the owner to end")? > 0 {}
    let leftovers = Leftovers::of(directory)?;
    leftovers.clear()?;
    bed_list.remove_bed(&leftovers)
}

/// Cargo puts the cleanup program beside the programs it builds, and tests one directory below.
fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PODWRIGHT_BED_CLEANUP") {
        return Ok(path.into());
    }
    let me = std::env::current_exe().context("finding this program")?;
    let beside = me.ancestors().skip(1).take(2).map(|directory| directory.join("bed-cleanup"));
    beside.into_iter().find(|path| path.exists()).with_context(|| {
        format!(
            "no bed-cleanup beside {}: cargo build -p podwright-e2e --bins, or name it in \
             PODWRIGHT_BED_CLEANUP",
            me.display()
        )
    })
}
