//! What is written down of pulls: begun, and by whose credentials they were done.
//!
//! One small file each, in upstream's form and place, so that either agent can go on from the
//! other. A pull that a crash cut short left its first file behind: what it may have brought is
//! then closed to everybody until somebody proves himself.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use podwright_core::image;
use podwright_core::image::access::{Known, Pass, PullIntent, PulledRecord};
use podwright_core::time::Now;
use podwright_host::files::{Durability, FileError, Root};
use serde::Serialize;
use sha2::{Digest, Sha256};

const PULLING: &str = "pulling";
const PULLED: &str = "pulled";
const LARGEST: u64 = 1 << 20;

pub(super) struct Records {
    root: Root,
    /// Pulls under way of each image, and those whose outcome is not written down; the file goes
    /// with the last.
    intents: Mutex<HashMap<String, usize>>,
    /// Records are read, changed and written as one.
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

    /// Images whose pull was cut short.
    pub(super) fn left_intents(&self) -> Vec<PullIntent> {
        // Whatever cannot be read stays, and with it the image stays closed.
        let unknown = |error: String| {
            tracing::warn!(
                error,
                "cannot read which pulls were cut short; their images stay closed"
            );
        };
        let files = self.root.list(PULLING).unwrap_or_else(|error| {
            unknown(error.to_string());
            Vec::new()
        });
        let read = |(name, _): (std::ffi::OsString, _)| {
            let bytes = self.root.read(format!("{PULLING}/{}", name.to_str()?), LARGEST);
            let bytes = bytes.map_err(|error| unknown(error.to_string())).ok()?;
            serde_json::from_slice(&bytes).map_err(|error| unknown(error.to_string())).ok()
        };
        files.into_iter().filter_map(read).collect()
    }

    /// What a pull that was cut short brought is not known yet: its note stays.
    pub(super) fn hold(&self, intent: &PullIntent) {
        *self.intents.lock().entry(intent.image.clone()).or_default() += 1;
    }

    /// Takes a pull that was cut short for one that brought this image, for nobody.
    pub(super) fn close(&self, intent: &PullIntent, image_ref: Option<&str>, now: Now) {
        if let (Some(image_ref), Ok(repository)) = (image_ref, image::repository(&intent.image))
            && self.read(image_ref) == Known::Nothing
        {
            let record = PulledRecord::closed(image_ref, &repository, now.wall);
            self.write(PULLED, image_ref, &record);
        }
        self.remove(PULLING, &intent.image);
    }

    /// Notes that a pull begins. Without the note what it brings might count as everybody's.
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

    /// Writes down that an image was had with this pass; without one it is everybody's. False: it
    /// is not written, and the note of the pull has to stay.
    pub(super) fn pulled(
        &self,
        image: &str,
        image_ref: &str,
        pass: Option<&Pass>,
        now: Now,
    ) -> bool {
        let Ok(repository) = image::repository(image) else { return false };
        let _alone = self.changing.lock();
        let mut record = match self.read(image_ref) {
            Known::Record(record) => record,
            Known::Nothing | Known::Unreadable => {
                PulledRecord::closed(image_ref, &repository, now.wall)
            }
        };
        record.note_pull(&repository, pass, now.wall);
        self.write(PULLED, image_ref, &record)
    }

    /// What is known of an image that a pod names so. One that a pull may have brought, and nobody
    /// wrote down for whom, is nobody's.
    pub(super) fn known(&self, image: &str, image_ref: &str) -> Known {
        match self.read(image_ref) {
            Known::Nothing if self.is_noted(image) => Known::Unreadable,
            known => known,
        }
    }

    fn is_noted(&self, image: &str) -> bool {
        match self.root.read(format!("{PULLING}/{}", file_name(image)), LARGEST) {
            Ok(_) => true,
            Err(error) => !error.is_not_found(),
        }
    }

    pub(super) fn keep(&self, record: &PulledRecord) {
        let _alone = self.changing.lock();
        self.write(PULLED, &record.image_ref, record);
    }

    pub(super) fn read(&self, image_ref: &str) -> Known {
        match self.root.read(format!("{PULLED}/{}", file_name(image_ref)), LARGEST) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_or(Known::Unreadable, Known::Record),
            Err(error) if error.is_not_found() => Known::Nothing,
            Err(error) => {
                tracing::warn!(%error, "cannot read by whose credentials an image came");
                Known::Unreadable
            }
        }
    }

    /// Images that are gone need no record any more.
    pub(super) fn forget_all_but(&self, image_refs: &[&str]) {
        let kept: BTreeSet<String> = image_refs.iter().map(|image| file_name(image)).collect();
        for (name, _) in self.root.list(PULLED).unwrap_or_default() {
            if let Some(name) = name.to_str().filter(|name| !kept.contains(*name)) {
                // Left for the next time if it cannot go now.
                let _ = self.root.remove_file(format!("{PULLED}/{name}"));
            }
        }
    }

    fn write(&self, folder: &str, of: &str, content: &impl Serialize) -> bool {
        let written = self.try_write(folder, of, content);
        if let Err(error) = &written {
            tracing::warn!(%error, image = of, "cannot write down by whose credentials it came");
        }
        written.is_ok()
    }

    fn try_write(&self, folder: &str, of: &str, content: &impl Serialize) -> Result<(), FileError> {
        let path = format!("{folder}/{}", file_name(of));
        // Plain data always has a form; without one nothing would be readable later either.
        let bytes = serde_json::to_vec(content).unwrap_or_default();
        self.root.write_atomic(&path, &bytes, 0o600, Durability::Disk)
    }

    fn remove(&self, folder: &str, of: &str) {
        if let Err(error) = self.root.remove_file(format!("{folder}/{}", file_name(of))) {
            tracing::warn!(%error, image = of, "cannot remove the note of its pull");
        }
    }
}

fn file_name(of: &str) -> String {
    format!("sha256-{}", hex(&Sha256::digest(of.as_bytes())))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
