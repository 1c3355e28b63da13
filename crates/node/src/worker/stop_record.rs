//! Stop record: a file that says since when a container is being stopped.
//!
//! An agent that is killed during a termination and started again continues it: it neither runs the
//! preStop hook a second time nor grants the whole grace period again. The record is in the
//! directory that holds the container's termination messages and is removed with the stop.

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

    /// Records that the stop begins. Returns how long ago it began if it had already begun; a
    /// record that cannot be understood says that it did, but not when.
    pub(super) fn begin(&self, now: Now) -> Result<Option<Duration>, FileError> {
        match self.pod_directory.read(&self.path, LIMIT) {
            Ok(bytes) => {
                let content: Option<Content> = serde_json::from_slice(&bytes).ok();
                let age = content.map(|content| now.age_of(content.began, Duration::MAX));
                Ok(Some(age.unwrap_or_default()))
            }
            Err(error) if error.is_not_found() => {
                let content = Content { began: now.wall };
                let bytes = serde_json::to_vec(&content).unwrap_or_default();
                if let Some(parent) = self.path.parent() {
                    self.pod_directory.create_dir_all(parent, DIRECTORY_MODE)?;
                }
                // Survives the process; after a reboot no container is left to stop.
                self.pod_directory.write_atomic(&self.path, &bytes, MODE, Durability::Cache)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
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
