//! Rotation of the logs of background processes, which must not fill the disk.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::{dup2_stderr, dup2_stdout};

/// A larger log is rotated; one rotated file is kept.
const LIMIT: u64 = 8 * 1024 * 1024;
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Opens a log for appending, rotating it first if it is too large.
pub fn open(log: &Path) -> anyhow::Result<File> {
    let open = || {
        if is_too_large(log) {
            std::fs::rename(log, rotated(log))?;
        }
        OpenOptions::new().create(true).append(true).open(log)
    };
    open().with_context(|| format!("cannot open the log {}", log.display()))
}

fn is_too_large(log: &Path) -> bool {
    std::fs::metadata(log).is_ok_and(|metadata| metadata.len() > LIMIT)
}

fn rotated(log: &Path) -> PathBuf {
    log.with_extension("log.1")
}

/// Periodically rotates the log of this process and that of another process, if any.
pub async fn rotate(own: Option<PathBuf>, other: Option<PathBuf>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let outcomes = [own.as_deref().map(switch), other.as_deref().map(copy_and_truncate)];
        for error in outcomes.into_iter().flatten().filter_map(Result::err) {
            let error = format!("{error:#}");
            tracing::warn!(error, "cannot rotate log, it keeps growing");
        }
    }
}

/// Switches the output of this process to a new file when the log is too large. No output is lost,
/// because dup2 replaces the descriptor atomically.
fn switch(log: &Path) -> anyhow::Result<()> {
    if is_too_large(log) {
        let file = open(log)?;
        dup2_stdout(&file)?;
        dup2_stderr(&file)?;
    }
    Ok(())
}

/// Copies and truncates the log of another process when it is too large. That process keeps its
/// file open and, because of [`open`]'s append mode, continues at the beginning. A line written in
/// between is lost; if the disk is full, the copy is lost.
fn copy_and_truncate(log: &Path) -> anyhow::Result<()> {
    if !is_too_large(log) {
        return Ok(());
    }
    let copied = std::fs::copy(log, rotated(log));
    if copied.is_err() {
        // A partial copy occupies the missing disk space.
        let _ = std::fs::remove_file(rotated(log));
    }
    let truncated = OpenOptions::new().write(true).open(log).and_then(|file| file.set_len(0));
    truncated.with_context(|| format!("cannot truncate {}", log.display()))?;
    copied.with_context(|| format!("{} was truncated without a copy", log.display()))?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn truncated_log_of_another_process_continues_at_the_beginning() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("containerd.log");
        let mut writer = open(&log).unwrap();
        writer.write_all(b"first").unwrap();
        copy_and_truncate(&log).unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"first", "not too large");
        let long = vec![b'x'; usize::try_from(LIMIT).unwrap()];
        writer.write_all(&long).unwrap();
        copy_and_truncate(&log).unwrap();
        writer.write_all(b"after").unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), b"after");
        assert_eq!(std::fs::metadata(rotated(&log)).unwrap().len(), LIMIT + 5);
    }

    #[test]
    fn large_log_is_rotated_when_opened() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("agent.log");
        open(&log).unwrap();
        open(&log).unwrap();
        assert!(!directory.path().join("agent.log.1").exists());
        OpenOptions::new().write(true).open(&log).unwrap().set_len(LIMIT + 1).unwrap();
        assert_eq!(open(&log).unwrap().metadata().unwrap().len(), 0);
        assert_eq!(
            std::fs::metadata(directory.path().join("agent.log.1")).unwrap().len(),
            LIMIT + 1
        );
    }
}
