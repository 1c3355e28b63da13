//! Checkpoints: state kept across restarts of the agent.
//!
//! Allocated resources and similar facts are kept neither by the API nor by the runtime. Each
//! checkpoint is one JSON file, replaced atomically and synced, with a version and a checksum, so
//! that a torn or foreign file is detected. Such a file is moved aside, never deleted: the node
//! goes on without it, and an administrator can still inspect it.

mod incremental;

use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

pub use incremental::IncrementalCheckpoint;

use crate::files::{Durability, FileError, Root};

/// Larger than any checkpoint of a node, and small enough to read.
const MAX_BYTES: u64 = 64 << 20;
/// How many corrupt files are kept; then the last one is replaced.
const KEPT_ASIDE: u32 = 8;

/// One file with one version of its content.
#[derive(Debug)]
pub struct Checkpoint {
    dir: Root,
    name: String,
    version: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("checkpoint {name}")]
    File { name: String, source: FileError },
    #[error("checkpoint {name} cannot be written as JSON")]
    Encode { name: String, source: serde_json::Error },
    #[error(
        "checkpoint {} is corrupt ({why}); moved to {}, continuing without it",
        path.display(), moved_to.display()
    )]
    Corrupt { path: PathBuf, moved_to: PathBuf, why: String },
}

#[derive(Serialize)]
struct Written<'a> {
    #[serde(rename = "version")]
    version: u32,
    #[serde(rename = "sha256")]
    sha256: String,
    #[serde(rename = "data")]
    data: &'a RawValue,
}

#[derive(Deserialize)]
struct Read<'a> {
    #[serde(rename = "version")]
    version: u32,
    #[serde(rename = "sha256")]
    sha256: String,
    #[serde(rename = "data", borrow)]
    data: &'a RawValue,
}

/// Content that was read, and its checksum.
struct Content<T> {
    data: T,
    checksum: String,
}

impl Checkpoint {
    /// `version` is that of the content's format: increase it when an old file must not be read.
    pub fn new(dir: Root, name: impl Into<String>, version: u32) -> Self {
        Self { dir, name: name.into(), version }
    }

    pub fn save<T: Serialize>(&self, data: &T) -> Result<(), CheckpointError> {
        self.save_content(data).map(drop)
    }

    /// Returns the checksum of the content.
    fn save_content<T: Serialize>(&self, data: &T) -> Result<String, CheckpointError> {
        let (bytes, checksum) = self.encode(data)?;
        self.dir
            .write_atomic(&self.name, &bytes, 0o600, Durability::Disk)
            .map_err(self.file_error())?;
        Ok(checksum)
    }

    fn encode<T: Serialize>(&self, data: &T) -> Result<(Vec<u8>, String), CheckpointError> {
        let encode = |source| CheckpointError::Encode { name: self.name.clone(), source };
        let data = serde_json::value::to_raw_value(data).map_err(encode)?;
        let sha256 = checksum(&data);
        let file = Written { version: self.version, sha256: sha256.clone(), data: &data };
        Ok((serde_json::to_vec(&file).map_err(encode)?, sha256))
    }

    /// The last saved content, or `None` if nothing was saved.
    ///
    /// After [`CheckpointError::Corrupt`] the file is moved aside: report the error and go on as
    /// for `None`.
    pub fn load<T: DeserializeOwned>(&self) -> Result<Option<T>, CheckpointError> {
        Ok(self.load_content()?.map(|content| content.data))
    }

    fn load_content<T: DeserializeOwned>(&self) -> Result<Option<Content<T>>, CheckpointError> {
        let why = match self.dir.read(&self.name, MAX_BYTES) {
            Ok(bytes) => match self.decode(&bytes) {
                Ok(content) => return Ok(Some(content)),
                Err(why) => why,
            },
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error @ FileError::TooLarge { .. }) => error.to_string(),
            Err(error) => return Err(self.file_error()(error)),
        };
        let aside = self.move_aside()?;
        let path = self.dir.path();
        Err(CheckpointError::Corrupt {
            path: path.join(&self.name),
            moved_to: path.join(aside),
            why,
        })
    }

    /// Removes the checkpoint.
    pub fn remove(&self) -> Result<(), CheckpointError> {
        self.dir.remove_file(&self.name).map_err(self.file_error())
    }

    fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<Content<T>, String> {
        let read: Read<'_> =
            serde_json::from_slice(bytes).map_err(|error| format!("not a checkpoint: {error}"))?;
        if read.version != self.version {
            return Err(format!("version {}, expected {}", read.version, self.version));
        }
        if read.sha256 != checksum(read.data) {
            return Err("checksum does not match the content".to_owned());
        }
        let data = serde_json::from_str(read.data.get())
            .map_err(|error| format!("unexpected content: {error}"))?;
        Ok(Content { data, checksum: read.sha256 })
    }

    fn move_aside(&self) -> Result<String, CheckpointError> {
        let aside = |number| format!("{}.corrupt-{number}", self.name);
        for number in 1..KEPT_ASIDE {
            if self.dir.kind(aside(number)).map_err(self.file_error())?.is_none() {
                return self.rename_to(aside(number));
            }
        }
        self.rename_to(aside(KEPT_ASIDE))
    }

    fn rename_to(&self, aside: String) -> Result<String, CheckpointError> {
        self.dir.rename(&self.name, &aside).map_err(self.file_error())?;
        Ok(aside)
    }

    fn file_error(&self) -> impl Fn(FileError) -> CheckpointError {
        move |source| CheckpointError::File { name: self.name.clone(), source }
    }
}

fn checksum(data: &RawValue) -> String {
    let hash = Sha256::digest(data.get().as_bytes());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    type Content = BTreeMap<String, u64>;

    fn checkpoint(version: u32) -> (TempDir, Checkpoint) {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(Root::open(dir.path()).unwrap(), "state", version);
        (dir, checkpoint)
    }

    fn content() -> Content {
        BTreeMap::from([("a \"b\"".to_owned(), 1), ("ü".to_owned(), u64::MAX)])
    }

    #[test]
    fn saved_content_is_loaded() {
        let (dir, checkpoint) = checkpoint(1);
        assert_eq!(checkpoint.load::<Content>().unwrap(), None);
        checkpoint.save(&content()).unwrap();
        assert_eq!(checkpoint.load().unwrap(), Some(content()));
        let mode = std::fs::metadata(dir.path().join("state")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        checkpoint.remove().unwrap();
        assert_eq!(checkpoint.load::<Content>().unwrap(), None);
    }

    #[test]
    fn envelope_format_is_stable() {
        let (dir, checkpoint) = checkpoint(1);
        let text = concat!(
            r#"{"version":1,"sha256":"#,
            r#""015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862","data":{"a":1}}"#,
        );
        std::fs::write(dir.path().join("state"), text).unwrap();
        let read: Content = checkpoint.load().unwrap().unwrap();
        assert_eq!(read, Content::from([("a".to_owned(), 1)]));
        checkpoint.save(&read).unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("state")).unwrap(), text);
    }

    #[test]
    fn corrupt_file_is_moved_aside_and_named() {
        for (garbage, why) in [
            ("", "not a checkpoint"),
            ("\0\0\0\0", "not a checkpoint"),
            (r#"{"version":1}"#, "not a checkpoint"),
            (r#"{"version":2,"sha256":"","data":{}}"#, "version 2, expected 1"),
            (r#"{"version":1,"sha256":"00","data":{}}"#, "checksum"),
        ] {
            let (dir, checkpoint) = checkpoint(1);
            std::fs::write(dir.path().join("state"), garbage).unwrap();
            let error = checkpoint.load::<Content>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("state.corrupt-1"), "{error}");
            let aside = std::fs::read_to_string(dir.path().join("state.corrupt-1")).unwrap();
            assert_eq!(aside, garbage);
            assert_eq!(checkpoint.load::<Content>().unwrap(), None, "then it is absent");
        }
    }

    #[test]
    fn content_of_another_shape_is_moved_aside_too() {
        let (_dir, checkpoint) = checkpoint(1);
        checkpoint.save(&["a", "list"]).unwrap();
        let error = checkpoint.load::<Content>().unwrap_err().to_string();
        assert!(error.contains("unexpected content"), "{error}");
    }

    #[test]
    fn number_of_kept_corrupt_files_is_limited() {
        let (dir, checkpoint) = checkpoint(1);
        for round in 0..20 {
            std::fs::write(dir.path().join("state"), format!("round {round}")).unwrap();
            checkpoint.load::<Content>().unwrap_err();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 8);
        let last = std::fs::read_to_string(dir.path().join("state.corrupt-8")).unwrap();
        assert_eq!(last, "round 19");
    }

    #[test]
    fn unreadable_file_is_an_error_and_not_absent() {
        let (dir, checkpoint) = checkpoint(1);
        std::fs::create_dir(dir.path().join("state")).unwrap();
        let error = checkpoint.load::<Content>().unwrap_err();
        assert!(matches!(error, CheckpointError::File { .. }), "{error}");
    }

    #[test]
    fn flipped_or_missing_byte_is_detected() {
        let (dir, checkpoint) = checkpoint(1);
        checkpoint.save(&content()).unwrap();
        let path = dir.path().join("state");
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut flipped = good.clone();
            flipped[at] ^= 1;
            for bad in [&flipped, &good[..at]] {
                std::fs::write(&path, bad).unwrap();
                checkpoint.load::<Content>().expect_err("damaged");
            }
        }
    }

    /// A valid file, and some that are nearly valid.
    fn files() -> Vec<Vec<u8>> {
        let (dir, checkpoint) = checkpoint(1);
        checkpoint.save(&content()).unwrap();
        let good = std::fs::read(dir.path().join("state")).unwrap();
        vec![good, br#"{"version":1,"sha256":"","data":{}}"#.to_vec(), b"{}".to_vec()]
    }

    proptest::proptest! {
        #![proptest_config(podwright_testkit::mutation::config())]

        #[test]
        fn mutated_file_is_never_accepted(bytes in podwright_testkit::mutation::mutated(files())) {
            let (_dir, checkpoint) = checkpoint(1);
            // Only the saved content is accepted.
            if let Ok(read) = checkpoint.decode::<Content>(&bytes) {
                assert_eq!(read.data, content());
            }
        }
    }
}
