//! A container's termination message: what it wrote to its file, else the end of its log.

use std::path::Path;

use podwright_core::observed::State;
use podwright_cri::SeenContainer;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::logs::read;

const FROM_FILE: u64 = 4096;
const FROM_LOG: usize = 2048;
const LOG_LINES: u64 = 80;

/// Adds the termination message to an exited container's status.
pub(crate) async fn complete(seen: &mut SeenContainer) {
    let State::Exited(exit) = &mut seen.instance.state else { return };
    let mut words = match &seen.termination.host_path {
        Some(path) => tail(Path::new(path), FROM_FILE).await,
        None => String::new(),
    };
    let failed = exit.code != 0 && exit.reason != "ContainerCannotRun";
    if words.is_empty()
        && seen.termination.fallback_to_logs
        && failed
        && let Some(log) = &seen.instance.log_path
    {
        words = read::last_words(Path::new(log), LOG_LINES, FROM_LOG).await.unwrap_or_default();
    }
    exit.message = match (exit.message.is_empty(), words.is_empty()) {
        (true, _) => words,
        (false, true) => std::mem::take(&mut exit.message),
        (false, false) => format!("{}: {words}", exit.message),
    };
}

/// The last bytes of a file. A container may put anything at that path: only a regular file is
/// read, and never more than asked for.
async fn tail(path: &Path, bytes: u64) -> String {
    let read = async {
        let metadata = tokio::fs::symlink_metadata(path).await?;
        if !metadata.is_file() {
            return Ok(Vec::new());
        }
        let mut file = tokio::fs::File::open(path).await?;
        file.seek(std::io::SeekFrom::Start(metadata.len().saturating_sub(bytes))).await?;
        let mut buffer = Vec::new();
        file.take(bytes).read_to_end(&mut buffer).await?;
        Ok::<_, std::io::Error>(buffer)
    };
    match read.await {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "no termination message");
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn row_41_the_end_of_the_log_is_cut_at_the_front() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("0.log");
        let line = |n: usize| format!("2026-01-01T00:00:00Z stderr F {n:04} {}\n", "x".repeat(60));
        std::fs::write(&log, (0..200).map(line).collect::<String>()).unwrap();
        let words = read::last_words(&log, LOG_LINES, FROM_LOG).await.unwrap();
        assert!(words.len() <= FROM_LOG && words.ends_with(&format!("0199 {}\n", "x".repeat(60))));
        let few = read::last_words(&log, 2, FROM_LOG).await.unwrap();
        assert!(few.starts_with("0198 ") && few.lines().count() == 2);
    }

    #[tokio::test]
    async fn only_the_end_of_a_regular_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("message");
        std::fs::write(&file, "a".repeat(9000) + "END").unwrap();
        let words = tail(&file, FROM_FILE).await;
        assert!(words.len() == 4096 && words.ends_with("END"));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert_eq!(tail(&link, FROM_FILE).await, "");
    }
}
