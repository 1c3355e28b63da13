//! Backup of a standalone node: objects, keys, manifests and, on request, the data of its
//! PersistentVolumeClaims, in one archive.
//!
//! The archive is a gzip-compressed tar file. Its first entry describes it; the others have the paths
//! of the state directory. Images are not part of it: they are pulled or loaded again.

mod extract;
mod objects;
mod tree;

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use podwright_host::files::Root;
use serde::{Deserialize, Serialize};

pub use objects::{CopyObjects, serve as serve_objects};

use super::lock::NodeLock;
use super::up_options::UpOptions;
use super::{Layout, TEMPORARY, state_dir};
use tree::Skipped;

/// The first entry of an archive.
const DESCRIPTION: &str = "podwright-backup.json";
const KIND: &str = "backup of podwright up";
/// Increased when an archive can no longer be restored by older versions.
const FORMAT: u32 = 1;
const OBJECTS: &str = "objects.redb";
/// Files of the API server, beside the objects.
const API_FILES: [&str; 6] =
    ["ca.crt", "ca.key", "client-ca.crt", "client-ca.key", "token.key", "port"];
const MAX_API_FILE: u64 = 1 << 20;
const LOADED_IMAGES: &str = "images.json";

/// Whether the data of PersistentVolumeClaims is included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeData {
    Included,
    LeftOut,
}

/// What an archive contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    #[serde(rename = "kind")]
    kind: String,
    #[serde(rename = "format")]
    format: u32,
    /// Version of the program that wrote it.
    #[serde(rename = "version")]
    pub version: String,
    #[serde(rename = "created")]
    pub created: Timestamp,
    /// PersistentVolumes have paths in it.
    #[serde(rename = "stateDir")]
    pub state_dir: String,
    /// Pods are bound to it.
    #[serde(rename = "hostname")]
    pub hostname: String,
    #[serde(rename = "volumes")]
    pub volumes: bool,
    /// Options of `podwright up`, if the node was up.
    #[serde(rename = "upOptions", default)]
    pub up_options: Option<UpOptions>,
}

/// Outcome of a backup or restore.
#[derive(Debug)]
pub struct Summary {
    pub description: Description,
    /// Files that are neither regular files, directories nor links.
    pub skipped: u64,
}

/// Writes an archive of the node. Its pods keep running: the objects are those of one moment, files
/// of volumes are read one after the other.
pub fn write(
    layout: &Layout,
    _lock: &NodeLock,
    volumes: VolumeData,
    output: impl Write,
) -> anyhow::Result<Summary> {
    state_dir::check_access(layout)?;
    if !state_dir::is_node(layout)? {
        bail!("{} is not the state directory of a node", layout.state().display());
    }
    let description = Description {
        kind: KIND.to_owned(),
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created: Timestamp::now(),
        state_dir: layout.state_text(),
        hostname: hostname(),
        volumes: volumes == VolumeData::Included,
        up_options: layout.record()?.map(|record| record.up_options),
    };
    let mut archive = tar::Builder::new(GzEncoder::new(output, Compression::default()));
    let text = serde_json::to_vec_pretty(&description)?;
    append(&mut archive, Path::new(DESCRIPTION), &text)?;
    let objects = objects::snapshot(layout)?;
    let size = objects.metadata()?.len();
    append_from(&mut archive, &Path::new("api").join(OBJECTS), size, objects)?;
    let api = Root::open(layout.api())?;
    for name in API_FILES {
        match api.read(name, MAX_API_FILE) {
            Ok(content) => append(&mut archive, &Path::new("api").join(name), &content)?,
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let state = Root::open(layout.state())?;
    match state.read(LOADED_IMAGES, MAX_API_FILE) {
        Ok(content) => append(&mut archive, Path::new(LOADED_IMAGES), &content)?,
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    let mut skipped = Skipped::default();
    let mut directories = vec![("manifests", layout.manifests())];
    if volumes == VolumeData::Included {
        directories.push(("volumes", layout.volumes()));
    }
    for (name, directory) in directories {
        match Root::open(&directory) {
            Ok(root) => tree::append(&mut archive, Path::new(name), &root, &mut skipped)?,
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let mut output = archive.into_inner().and_then(GzEncoder::finish).context("cannot write")?;
    output.flush().context("cannot write")?;
    Ok(Summary { description, skipped: skipped.files })
}

fn append(
    archive: &mut tar::Builder<impl Write>,
    path: &Path,
    content: &[u8],
) -> anyhow::Result<()> {
    append_from(archive, path, u64::try_from(content.len())?, content)
}

fn append_from(
    archive: &mut tar::Builder<impl Write>,
    path: &Path,
    size: u64,
    content: impl Read,
) -> anyhow::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(size);
    header.set_mode(0o600);
    header.set_mtime(u64::try_from(Timestamp::now().as_second()).unwrap_or(0));
    archive
        .append_data(&mut header, path, content.take(size))
        .with_context(|| format!("cannot write {} to the backup", path.display()))
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What to do with the content of an existing node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    Replace,
}

/// Restores a node that is not up. Nothing is changed until the whole archive was checked.
pub fn restore(
    layout: &Layout,
    lock: &mut NodeLock,
    archive: impl Read,
    existing: Existing,
) -> anyhow::Result<Summary> {
    let state = layout.state();
    if layout.record()?.is_some() {
        bail!("the node in {} is up. Fix: run podwright down first", state.display());
    }
    state_dir::examine(layout)?;
    if existing == Existing::Refuse
        && let Some(found) = content_of(layout)?
    {
        bail!(
            "the node in {} has content ({}); nothing was changed. Fix: restore to another machine, \
             or replace it with --overwrite",
            state.display(),
            found.display()
        );
    }
    state_dir::claim(layout)?;
    lock.take_made_directory(layout, &|_| {})?;
    let staging = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .tempdir_in(state)
        .with_context(|| format!("cannot create a directory in {}", state.display()))?;
    let available = available(state)?;
    let new = staging.path().join("new");
    std::fs::create_dir(&new)?;
    let archive = tar::Archive::new(MultiGzDecoder::new(archive));
    let Summary { description, skipped } =
        extract::extract(archive, &new, available, |found| check_description(found, layout))
            .context("cannot restore; nothing was changed")?;
    check_objects(&new.join("api").join(OBJECTS))?;
    let old = staging.path().join("old");
    std::fs::create_dir(&old)?;
    swap(state, &new, &old, description.volumes)?;
    // Its content is removed beneath the directory, whatever links are in it.
    let name = staging.keep();
    let name = name.file_name().context("the temporary directory has no name")?.to_owned();
    Root::open(state)?.remove_dir_all(&name).with_context(|| {
        format!("restored, but cannot remove what was replaced: {}", state.join(&name).display())
    })?;
    Ok(Summary { description, skipped })
}

fn check_description(description: &Description, layout: &Layout) -> anyhow::Result<()> {
    if description.kind != KIND {
        bail!("it is not a backup of podwright up");
    }
    if description.format > FORMAT {
        bail!(
            "it was written by a newer version ({}). Fix: upgrade podwright",
            description.version
        );
    }
    if description.state_dir != layout.state_text() {
        let from = &description.state_dir;
        bail!(
            "it is of the node in {from}, and PersistentVolumes name directories there. \
             Fix: restore with --state-dir {from}"
        );
    }
    Ok(())
}

/// Content that a restore would replace.
fn content_of(layout: &Layout) -> anyhow::Result<Option<PathBuf>> {
    let objects = layout.api().join(OBJECTS);
    if objects.exists() {
        return Ok(Some(objects));
    }
    for directory in [layout.manifests(), layout.volumes()] {
        match Root::open(&directory) {
            Ok(root) if root.list("")?.is_empty() => {}
            Ok(_) => return Ok(Some(directory)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Space for the extracted files, with a reserve for the node.
fn available(state: &Path) -> anyhow::Result<u64> {
    const RESERVE: u64 = 256 << 20;
    let space = rustix::fs::statvfs(state)
        .with_context(|| format!("cannot read the free space of {}", state.display()))?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize).saturating_sub(RESERVE))
}

/// Opens the objects as the API server will.
fn check_objects(path: &Path) -> anyhow::Result<()> {
    use podwright_apiserver::{Clock, Limits, Store};
    if !path.exists() {
        bail!("cannot restore; nothing was changed: the archive has no objects");
    }
    Store::open(path, Limits::default(), Clock::system())
        .map(drop)
        .context("cannot restore; nothing was changed: the objects in the archive are corrupt")
}

/// Moves the new entries into place and the existing ones away; undone on failure.
fn swap(state: &Path, new: &Path, old: &Path, volumes: bool) -> anyhow::Result<()> {
    let mut entries = vec!["api", "manifests", LOADED_IMAGES];
    if volumes {
        entries.push("volumes");
    }
    let mut done: Vec<(PathBuf, PathBuf)> = Vec::new();
    let mut moved = |from: PathBuf, to: PathBuf| -> anyhow::Result<()> {
        if std::fs::symlink_metadata(&from).is_err() {
            return Ok(());
        }
        match std::fs::rename(&from, &to) {
            Ok(()) => {
                done.push((from, to));
                Ok(())
            }
            Err(error) => {
                for (from, to) in done.drain(..).rev() {
                    // The first error is reported.
                    let _ = std::fs::rename(to, from);
                }
                Err(error).with_context(|| {
                    format!(
                        "cannot restore; nothing was changed: cannot replace {}",
                        from.display()
                    )
                })
            }
        }
    };
    for name in entries {
        moved(state.join(name), old.join(name))?;
        moved(new.join(name), state.join(name))?;
    }
    File::open(state).and_then(|directory| directory.sync_all()).context("cannot sync")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
