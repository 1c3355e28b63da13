//! The logs of what runs in the background, which must not fill the disk.

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
            std::fs::rename(log, aside(log))?;
        }
        OpenOptions::new().create(true).append(true).open(log)
    };
    open().with_context(|| format!("cannot open the log {}", log.display()))
}

fn is_too_long(log: &Path) -> bool {
    std::fs::metadata(log).is_ok_and(|metadata| metadata.len() > LIMIT)
}

fn aside(log: &Path) -> PathBuf {
    log.with_extension("log.1")
}

/// Looks after the log of this process, if it has one, and that of another.
pub async fn rotate(own: Option<PathBuf>, other: Option<PathBuf>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let rotated = [own.as_deref().map(move_on), other.as_deref().map(cut)];
        for error in rotated.into_iter().flatten().filter_map(Result::err) {
            let error = format!("{error:#}");
            tracing::warn!(error, "cannot set a log aside; it grows on");
        }
    }
}

/// Moves this process's output to a new file when the old one has grown. Nothing is lost: both are
/// open while one takes the place of the other.
fn move_on(log: &Path) -> anyhow::Result<()> {
    if is_too_long(log) {
        let file = open(log)?;
        dup2_stdout(&file)?;
        dup2_stderr(&file)?;
    }
    Ok(())
}

/// Copies and empties the log of another process when it has grown: that process keeps its file,
/// and as [`open`] had it append, it goes on at the beginning. A line that is written in between is
/// lost, and where there is no room for a copy, the copy is.
fn cut(log: &Path) -> anyhow::Result<()> {
    if !is_too_long(log) {
        return Ok(());
    }
    let copied = std::fs::copy(log, aside(log));
    if copied.is_err() {
        // Half a copy takes the room that is missing.
        let _ = std::fs::remove_file(aside(log));
    }
    let emptied = OpenOptions::new().write(true).open(log).and_then(|file| file.set_len(0));
    emptied.with_context(|| format!("cannot empty {}", log.display()))?;
    copied.with_context(|| format!("{} was emptied without a copy", log.display()))?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_log_of_a_process_that_keeps_writing_is_cut_and_goes_on_at_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("containerd.log");
        let mut writer = open(&log).unwrap();
        writer.write_all(b"first").unwrap();
        cut(&log).unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"first", "it is short");
        let long = vec![b'x'; usize::try_from(LIMIT).unwrap()];
        writer.write_all(&long).unwrap();
        cut(&log).unwrap();
        writer.write_all(b"after").unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"after");
        assert_eq!(std::fs::metadata(aside(&log)).unwrap().len(), LIMIT + 5);
    }

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
