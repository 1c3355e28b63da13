//! A container's termination message: what it wrote to its file, else the end of its log.

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use podwright_core::observed::State;
use podwright_cri::ObservedContainer;
use rustix::fs::OFlags;

use crate::runtime::logs::read;

const FROM_FILE: u64 = 4096;
const FROM_LOG: usize = 2048;
const LOG_LINES: u64 = 80;

/// Adds the termination message to an exited container's status.
pub(crate) async fn complete(seen: &mut ObservedContainer) {
    let State::Exited(exit) = &mut seen.instance.state else { return };
    let mut message = match &seen.termination.host_path {
        Some(path) => tail(Path::new(path), FROM_FILE),
        None => String::new(),
    };
    let failed = exit.code != 0 && exit.reason != "ContainerCannotRun";
    if message.is_empty()
        && seen.termination.fallback_to_logs
        && failed
        && let Some(log) = &seen.instance.log_path
    {
        message = read::log_tail(Path::new(log), LOG_LINES, FROM_LOG).await.unwrap_or_default();
    }
    exit.message = match (exit.message.is_empty(), message.is_empty()) {
        (true, _) => message,
        (false, true) => std::mem::take(&mut exit.message),
        (false, false) => format!("{}: {message}", exit.message),
    };
}

/// The last bytes of a file. A container may put anything at that path, so only a regular file is
/// read, and never more than the limit. A few kilobytes need no blocking thread.
fn tail(path: &Path, bytes: u64) -> String {
    match read_tail(path, bytes) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "read termination message failed");
            String::new()
        }
    }
}

fn read_tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    // Opened before its type is checked: in between, a container could replace it by a link.
    // Non-blocking: it could be a pipe without a writer.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let mut file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(Vec::new());
    }
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(bytes)))?;
    let mut buffer = Vec::new();
    file.take(bytes).read_to_end(&mut buffer)?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn log_tail_keeps_the_last_lines_within_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("0.log");
        let line = |n: usize| format!("2026-01-01T00:00:00Z stderr F {n:04} {}\n", "x".repeat(60));
        std::fs::write(&log, (0..200).map(line).collect::<String>()).unwrap();
        let tail = read::log_tail(&log, LOG_LINES, FROM_LOG).await.unwrap();
        assert!(tail.len() <= FROM_LOG && tail.ends_with(&format!("0199 {}\n", "x".repeat(60))));
        let few = read::log_tail(&log, 2, FROM_LOG).await.unwrap();
        assert!(few.starts_with("0198 ") && few.lines().count() == 2);
    }

    #[test]
    fn only_the_end_of_a_regular_file_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("message");
        std::fs::write(&file, "a".repeat(9000) + "END").unwrap();
        let text = tail(&file, FROM_FILE);
        assert!(text.len() == 4096 && text.ends_with("END"));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert_eq!(tail(&link, FROM_FILE), "");
        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(tail(&pipe, FROM_FILE), "", "a pipe without a writer does not block");
    }
}
