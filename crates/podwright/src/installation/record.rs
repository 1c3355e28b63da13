//! Record of an installation.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::{PlannedFile, check_path, metadata, write};

const WRITABLE_BY_OTHERS: u32 = 0o022;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(rename = "files")]
    pub(super) files: Vec<InstalledFile>,
    /// Directories that were created, parents first.
    #[serde(rename = "directories")]
    pub(super) directories: Vec<PathBuf>,
}

/// A file, which may be listed twice with different hashes while it is being replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InstalledFile {
    #[serde(rename = "path")]
    pub(super) path: PathBuf,
    #[serde(rename = "sha256")]
    pub(super) sha256: String,
}

impl InstalledFile {
    pub(super) fn of(file: &PlannedFile) -> Self {
        Self { path: file.path.clone(), sha256: file.sha256.clone() }
    }
}

impl Record {
    /// `None` if nothing is installed.
    pub(super) fn read(path: &Path) -> anyhow::Result<Option<Self>> {
        let shown = path.display();
        let Some(found) = metadata(path)? else { return Ok(None) };
        let owner = found.uid();
        let own = owner == 0 || owner == rustix::process::geteuid().as_raw();
        if !found.is_file() || !own || found.mode() & WRITABLE_BY_OTHERS != 0 {
            bail!("{shown} could have been written by another user. Fix: check it, then delete it");
        }
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        let record: Self = serde_json::from_slice(&text).with_context(|| {
            format!(
                "{shown} is corrupt, so it is unknown what is installed. Fix: delete the installed \
                 files and this one"
            )
        })?;
        // They are deleted.
        for path in record.files.iter().map(|file| &file.path).chain(&record.directories) {
            check_path(path).with_context(|| format!("{shown} is corrupt"))?;
        }
        Ok(Some(record))
    }

    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        write(path, &serde_json::to_vec_pretty(self)?, 0o644)
    }
}
