//! Stop record: a file that says since when a container is being stopped.
//!
//! An agent that is killed during a termination and started again continues it: it neither runs the
//! preStop hook a second time nor grants the whole grace period again. The time between a stop that
//! failed and the next one does not count: the container may not have received SIGTERM. The record
//! is in the directory that holds the container's termination messages and is removed with the stop.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::ids::ContainerId;
use podwright_core::time::Now;
use podwright_host::files::{Durability, FileError, Root};
use serde::{Deserialize, Serialize};

const MODE: u32 = 0o640;
const DIRECTORY_MODE: u32 = 0o750;
/// A record is much smaller; more is not one of ours.
const LIMIT: u64 = 4096;

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    #[serde(rename = "began")]
    began: Timestamp,
    /// No stop is in progress, because the last one failed: seconds spent until then.
    #[serde(rename = "spent", default, skip_serializing_if = "Option::is_none")]
    spent: Option<u64>,
}

pub(super) struct StopRecord {
    pod_directory: Root,
    path: PathBuf,
}

impl StopRecord {
    /// `None`: the ID cannot be a file name.
    pub(super) fn new(
        pod_directory: Root,
        container: &str,
        instance: &ContainerId,
    ) -> Option<Self> {
        let id = instance.as_str();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if id.is_empty() || id.len() > 128 || !id.chars().all(plain) {
            return None;
        }
        let path = Path::new("containers").join(container).join(format!("{id}.stopping"));
        Some(Self { pod_directory, path })
    }

    /// Records that the stop begins. Returns the time already spent if it had begun before; a record
    /// that cannot be understood says that it did, but not when.
    pub(super) fn begin(&self, now: Now) -> Result<Option<Duration>, FileError> {
        match self.pod_directory.read(&self.path, LIMIT) {
            Ok(bytes) => {
                let Ok(content) = serde_json::from_slice::<Content>(&bytes) else {
                    return Ok(Some(Duration::ZERO));
                };
                let Some(spent) = content.spent.map(Duration::from_secs) else {
                    return Ok(Some(now.age_of(content.began, Duration::MAX)));
                };
                let began = now.wall.checked_sub(spent).unwrap_or(now.wall);
                if let Err(error) = self.write(&Content { began, spent: None }) {
                    tracing::warn!(%error, "record stop failed, after a restart its time does not count");
                }
                Ok(Some(spent))
            }
            Err(error) if error.is_not_found() => {
                if let Some(parent) = self.path.parent() {
                    self.pod_directory.create_dir_all(parent, DIRECTORY_MODE)?;
                }
                self.write(&Content { began: now.wall, spent: None })?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Records that the stop failed: no time counts until the next one begins.
    pub(super) fn pause(&self, spent: Duration, now: Now) -> Result<(), FileError> {
        self.write(&Content { began: now.wall, spent: Some(spent.as_secs()) })
    }

    fn write(&self, content: &Content) -> Result<(), FileError> {
        let bytes = serde_json::to_vec(content).unwrap_or_default();
        // Survives the process; after a reboot no container is left to stop.
        self.pod_directory.write_atomic(&self.path, &bytes, MODE, Durability::Cache)
    }

    /// Removes the record: the container has stopped.
    pub(super) fn end(&self) -> Result<(), FileError> {
        self.pod_directory.remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use podwright_core::builders::t;

    use super::*;

    fn record(directory: &Path, id: &str) -> Option<StopRecord> {
        StopRecord::new(Root::open(directory).unwrap(), "app", &ContainerId::new(id))
    }

    #[test]
    fn second_begin_reports_the_time_since_the_first_until_the_stop_ends() {
        let directory = tempfile::tempdir().unwrap();
        let first = record(directory.path(), "c1").unwrap();
        assert_eq!(first.begin(t(100)).unwrap(), None);
        let second = record(directory.path(), "c1").unwrap();
        assert_eq!(second.begin(t(112)).unwrap(), Some(Duration::from_secs(12)));
        // The clock was set back: the stop began now.
        assert_eq!(second.begin(t(50)).unwrap(), Some(Duration::ZERO));
        second.end().unwrap();
        assert_eq!(first.begin(t(113)).unwrap(), None);
    }

    #[test]
    fn time_between_a_failed_stop_and_the_next_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let record = record(directory.path(), "c1").unwrap();
        assert_eq!(record.begin(t(100)).unwrap(), None);
        record.pause(Duration::from_secs(7), t(107)).unwrap();
        assert_eq!(record.begin(t(150)).unwrap(), Some(Duration::from_secs(7)));
        // The agent is killed during the second stop.
        assert_eq!(record.begin(t(153)).unwrap(), Some(Duration::from_secs(10)));
        let path = directory.path().join("containers/app/c1.stopping");
        std::fs::write(path, r#"{"began":"2023-11-14T00:00:00Z","spent":18446744073709551615}"#)
            .unwrap();
        assert_eq!(record.begin(t(200)).unwrap(), Some(Duration::from_secs(u64::MAX)));
    }

    #[test]
    fn unreadable_record_says_that_the_stop_began_but_not_when() {
        let directory = tempfile::tempdir().unwrap();
        let record = record(directory.path(), "c1").unwrap();
        assert_eq!(record.begin(t(100)).unwrap(), None);
        std::fs::write(directory.path().join("containers/app/c1.stopping"), "{").unwrap();
        assert_eq!(record.begin(t(200)).unwrap(), Some(Duration::ZERO));
    }

    #[test]
    fn id_that_is_not_a_plain_name_has_no_record() {
        let directory = tempfile::tempdir().unwrap();
        for id in ["", "..", "../x", "a/b", "a\0"] {
            assert!(record(directory.path(), id).is_none(), "{id:?}");
        }
    }
}
