//! The log of an agent in the background, which must not fill the disk.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::{dup2_stderr, dup2_stdout};

/// A log that grew past this is set aside, in the place of the one set aside before.
const LIMIT: u64 = 8 * 1024 * 1024;
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Opens a log to append to, setting aside what is there if it is too long.
pub fn open(log: &Path) -> anyhow::Result<File> {
    let open = || {
        if is_too_long(log) {
            std::fs::rename(log, log.with_extension("log.1"))?;
        }
        OpenOptions::new().create(true).append(true).open(log)
    };
    open().with_context(|| format!("cannot open the log {}", log.display()))
}

fn is_too_long(log: &Path) -> bool {
    std::fs::metadata(log).is_ok_and(|metadata| metadata.len() > LIMIT)
}

/// Moves this process's output to a new file whenever the old one has grown. Nothing is lost: both
/// are open while one takes the place of the other.
pub async fn rotate(log: PathBuf) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if !is_too_long(&log) {
            continue;
        }
        let moved = open(&log).and_then(|file| {
            dup2_stdout(&file)?;
            dup2_stderr(&file)?;
            Ok(())
        });
        if let Err(error) = moved {
            tracing::warn!(%error, "cannot set the log aside; it grows on");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_too_long_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("agent.log");
        open(&log).unwrap();
        open(&log).unwrap();
        assert!(!folder.path().join("agent.log.1").exists());
        OpenOptions::new().write(true).open(&log).unwrap().set_len(LIMIT + 1).unwrap();
        assert_eq!(open(&log).unwrap().metadata().unwrap().len(), 0);
        assert_eq!(std::fs::metadata(folder.path().join("agent.log.1")).unwrap().len(), LIMIT + 1);
    }
}
