//! Removal of a container's log, before the container: its path is known only while it exists.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use podwright_host::files::{FileError, Root};
use podwright_host::threads;

/// Removes a container's log and its rotated files.
pub(crate) async fn remove(pod_logs: &str, log: String) -> Result<(), FileError> {
    let pod_logs = PathBuf::from(pod_logs);
    let removed = threads::blocking(move || remove_now(&pod_logs, Path::new(&log))).await;
    // The thread is interrupted only when the agent stops.
    removed.unwrap_or(Ok(()))
}

/// The same, on a thread that may block. Ignores a path outside of the pod logs, which this node did
/// not assign.
pub(crate) fn remove_now(pod_logs: &Path, log: &Path) -> Result<(), FileError> {
    let (Ok(below), Some(stem)) = (log.strip_prefix(pod_logs), log.file_name()) else {
        return Ok(());
    };
    let Some(directory) = below.parent() else { return Ok(()) };
    let absent = |error: &FileError| error.is_not_found();
    let root = match Root::open(pod_logs) {
        Err(error) if absent(&error) => return Ok(()),
        root => root?,
    };
    let entries = match root.list(directory) {
        Err(error) if absent(&error) => return Ok(()),
        entries => entries?,
    };
    for (name, _) in entries.iter().filter(|(name, _)| begins_with(name, stem)) {
        root.remove_file(directory.join(name))?;
    }
    Ok(())
}

fn begins_with(name: &OsStr, stem: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(stem.as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn log_is_removed_with_its_rotated_files_only() {
        let directory = tempfile::tempdir().unwrap();
        let logs = directory.path().join("pods");
        let own = logs.join("ns_web_uid/app");
        std::fs::create_dir_all(&own).unwrap();
        let names = ["0.log", "0.log.20260101-000000", "0.log.20260101-000000.gz", "1.log"];
        for name in names {
            std::fs::write(own.join(name), "x").unwrap();
        }
        let outside = directory.path().join("0.log");
        std::fs::write(&outside, "x").unwrap();
        let place = logs.to_str().unwrap();
        let of = |path: &Path| path.to_str().unwrap().to_owned();
        remove(place, of(&own.join("0.log"))).await.unwrap();
        remove(place, of(&own.join("0.log"))).await.unwrap();
        remove(place, of(&outside)).await.unwrap();
        remove(place, of(&logs.join("gone/app/0.log"))).await.unwrap();
        let left: Vec<_> =
            std::fs::read_dir(&own).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["1.log"]);
        assert!(outside.exists());
    }
}
