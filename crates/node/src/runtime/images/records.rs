//! Pull records: pulls in progress, and the credentials with which images were pulled.
//!
//! One small file each, in upstream's format and location, so that the kubelet and this agent can
//! replace each other. A pull interrupted by a crash leaves its intent file; its image then stays
//! unusable for every pod until one proves access.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use podwright_api::image_name;
use podwright_core::image::access::{PullCredential, PullIntent, PulledRecord, StoredPullRecord};
use podwright_core::time::Now;
use podwright_host::files::{Durability, FileError, Root};
use serde::Serialize;
use sha2::{Digest, Sha256};

const PULLING: &str = "pulling";
const PULLED: &str = "pulled";
const MAX_RECORD_SIZE: u64 = 1 << 20;

pub(super) struct Records {
    root: Root,
    /// Number of pulls in progress or with an unrecorded result, by image; the intent file is
    /// removed with the last one.
    intents: Mutex<HashMap<String, usize>>,
    /// Serializes read-modify-write of the records.
    changing: Mutex<()>,
}

impl Records {
    pub(super) fn open(root_dir: &std::path::Path) -> Result<Self, FileError> {
        let root = Root::create(root_dir.join("image_manager"), 0o700)?;
        root.create_dir_all(PULLING, 0o700)?;
        root.create_dir_all(PULLED, 0o700)?;
        root.sweep_temporaries(PULLING)?;
        root.sweep_temporaries(PULLED)?;
        Ok(Self { root, intents: Mutex::default(), changing: Mutex::default() })
    }

    /// Intents of interrupted pulls.
    pub(super) fn left_intents(&self) -> Vec<PullIntent> {
        // An unreadable intent stays, and so does the protection of its image.
        let unknown = |error: String| {
            tracing::warn!(
                error,
                "cannot read the intent of an interrupted pull, its image needs credentials"
            );
        };
        let files = self.root.list(PULLING).unwrap_or_else(|error| {
            unknown(error.to_string());
            Vec::new()
        });
        let read = |(name, _): (std::ffi::OsString, _)| {
            let bytes = self.root.read(format!("{PULLING}/{}", name.to_str()?), MAX_RECORD_SIZE);
            let bytes = bytes.map_err(|error| unknown(error.to_string())).ok()?;
            serde_json::from_slice(&bytes).map_err(|error| unknown(error.to_string())).ok()
        };
        files.into_iter().filter_map(read).collect()
    }

    /// Keeps the intent of an interrupted pull whose result is unknown.
    pub(super) fn hold(&self, intent: &PullIntent) {
        *self.intents.lock().entry(intent.image.clone()).or_default() += 1;
    }

    /// Records an interrupted pull as complete, without access for any pod.
    pub(super) fn close(&self, intent: &PullIntent, image_ref: Option<&str>, now: Now) {
        if let (Some(image_ref), Ok(repository)) =
            (image_ref, image_name::repository(&intent.image))
            && self.read(image_ref) == StoredPullRecord::Nothing
        {
            let record = PulledRecord::closed(image_ref, &repository, now.wall);
            self.write(PULLED, image_ref, &record);
        }
        self.remove(PULLING, &intent.image);
    }

    /// Records the intent to pull. Without it the image could later count as usable by every pod.
    pub(super) fn begin(&self, image: &str) -> Result<(), FileError> {
        let mut intents = self.intents.lock();
        let count = intents.get(image).copied().unwrap_or(0);
        if count == 0 {
            self.try_write(PULLING, image, &PullIntent::new(image))?;
        }
        intents.insert(image.to_owned(), count + 1);
        Ok(())
    }

    pub(super) fn end(&self, image: &str) {
        let mut intents = self.intents.lock();
        let left = intents.get_mut(image).map_or(0, |count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == 0 {
            intents.remove(image);
            self.remove(PULLING, image);
        }
    }

    /// Records that an image was pulled with this credential; without one every pod may use it.
    /// False: writing failed, and the intent has to stay.
    pub(super) fn pulled(
        &self,
        image: &str,
        image_ref: &str,
        pass: Option<&PullCredential>,
        now: Now,
    ) -> bool {
        let Ok(repository) = image_name::repository(image) else { return false };
        let _lock = self.changing.lock();
        let mut record = match self.read(image_ref) {
            StoredPullRecord::Record(record) => record,
            StoredPullRecord::Nothing | StoredPullRecord::Unreadable => {
                PulledRecord::closed(image_ref, &repository, now.wall)
            }
        };
        record.note_pull(&repository, pass, now.wall);
        self.write(PULLED, image_ref, &record)
    }

    /// The record of an image as named by a pod. An image without a record but with an intent counts
    /// as unreadable, so that no pod may use it without credentials.
    pub(super) fn known(&self, image: &str, image_ref: &str) -> StoredPullRecord {
        match self.read(image_ref) {
            StoredPullRecord::Nothing if self.has_intent(image) => StoredPullRecord::Unreadable,
            known => known,
        }
    }

    fn has_intent(&self, image: &str) -> bool {
        match self.root.read(format!("{PULLING}/{}", file_name(image)), MAX_RECORD_SIZE) {
            Ok(_) => true,
            Err(error) => !error.is_not_found(),
        }
    }

    pub(super) fn keep(&self, record: &PulledRecord) {
        let _lock = self.changing.lock();
        self.write(PULLED, &record.image_ref, record);
    }

    pub(super) fn read(&self, image_ref: &str) -> StoredPullRecord {
        match self.root.read(format!("{PULLED}/{}", file_name(image_ref)), MAX_RECORD_SIZE) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_or(StoredPullRecord::Unreadable, StoredPullRecord::Record),
            Err(error) if error.is_not_found() => StoredPullRecord::Nothing,
            Err(error) => {
                tracing::warn!(%error, "cannot read pull record, image needs credentials");
                StoredPullRecord::Unreadable
            }
        }
    }

    /// Removes the records of images that are gone.
    pub(super) fn forget_all_but(&self, image_refs: &[&str]) {
        let kept: BTreeSet<String> = image_refs.iter().map(|image| file_name(image)).collect();
        for (name, _) in self.root.list(PULLED).unwrap_or_default() {
            if let Some(name) = name.to_str().filter(|name| !kept.contains(*name)) {
                // Retried on the next call.
                let _ = self.root.remove_file(format!("{PULLED}/{name}"));
            }
        }
    }

    fn write(&self, directory: &str, of: &str, content: &impl Serialize) -> bool {
        let written = self.try_write(directory, of, content);
        if let Err(error) = &written {
            tracing::warn!(%error, image = of, "cannot write pull record");
        }
        written.is_ok()
    }

    fn try_write(
        &self,
        directory: &str,
        of: &str,
        content: &impl Serialize,
    ) -> Result<(), FileError> {
        let path = format!("{directory}/{}", file_name(of));
        // Serialization of plain data does not fail; an empty file would be unreadable, so safe.
        let bytes = serde_json::to_vec(content).unwrap_or_default();
        self.root.write_atomic(&path, &bytes, 0o600, Durability::Disk)
    }

    fn remove(&self, directory: &str, of: &str) {
        if let Err(error) = self.root.remove_file(format!("{directory}/{}", file_name(of))) {
            tracing::warn!(%error, image = of, "cannot remove pull intent");
        }
    }
}

fn file_name(of: &str) -> String {
    format!("sha256-{}", hex(&Sha256::digest(of.as_bytes())))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
