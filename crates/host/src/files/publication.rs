//! Atomic publication of a set of files.
//!
//! A program that reads two keys of a ConfigMap must not see one from before an edit and one from
//! after it. So each edition is written completely into a directory of its own, and one rename of
//! the link `..data` makes it the current edition; the names users see lead through that link:
//!
//! ```text
//! key -> ..data/key      ..data -> ..2026_01_31_12_00_00.1      ..2026_01_31_12_00_00.1/key
//! ```
//!
//! Programs watch for exactly this rename, so the names are upstream's.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::AtFlags;

use crate::change;

use super::{Durability, FileError, Kind, Result, Root};

/// The link to the current edition.
pub const CURRENT: &str = "..data";
const NEXT: &str = "..data_tmp";
const DIRECTORY_MODE: u32 = 0o755;

/// One file of an edition.
#[derive(Clone, Copy)]
pub struct NewFile<'a> {
    pub bytes: &'a [u8],
    pub mode: u32,
    /// Owner; root if `None`.
    pub owner: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The current edition has the same content, so nothing was written.
    Unchanged,
    NewEdition,
}

impl Root {
    /// Makes these files, by their paths beneath this root, the current edition.
    ///
    /// `stamp` names the edition and must not have been used before; `finish` may change owners and
    /// modes in its directory before it becomes visible. An edition that fails leaves the previous
    /// one in place.
    pub fn publish(
        &self,
        files: &BTreeMap<PathBuf, NewFile<'_>>,
        stamp: &str,
        finish: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<Published> {
        let current = self.current_edition()?;
        self.sweep_editions(current.as_deref())?;
        if let Some(current) = &current
            && self.has_same_content(current, files)?
        {
            self.show(files)?;
            return Ok(Published::Unchanged);
        }
        let edition = PathBuf::from(format!("..{stamp}"));
        let made = self
            .write_edition(&edition, files)
            .and_then(|()| finish(&self.sub(&edition)?))
            .and_then(|()| self.switch_to(&edition));
        if let Err(error) = made {
            // Best effort: the first error is the one to report.
            let _ = self.remove_dir_all(&edition);
            return Err(error);
        }
        self.show(files)?;
        if let Some(old) = current {
            self.remove_dir_all(old)?;
        }
        Ok(Published::NewEdition)
    }

    /// The directory that `..data` leads to; `None` if there is none or it was tampered with.
    fn current_edition(&self) -> Result<Option<PathBuf>> {
        let target = match rustix::fs::readlinkat(self, CURRENT, Vec::new()) {
            Ok(target) => target,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::INVAL) => return Ok(None),
            Err(errno) => return Err(self.error("read link", Path::new(CURRENT), errno)),
        };
        let target = PathBuf::from(std::ffi::OsStr::from_bytes(target.to_bytes()));
        let mut parts = target.components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        let there = plain && self.kind(&target)? == Some(Kind::Directory);
        Ok(there.then_some(target))
    }

    /// Removes editions that an interrupted process left behind.
    fn sweep_editions(&self, current: Option<&Path>) -> Result<()> {
        for (name, kind) in self.list("")? {
            let edition = kind == Kind::Directory && name.as_bytes().starts_with(b"..");
            if edition && current != Some(Path::new(&name)) {
                self.remove_dir_all(name)?;
            }
        }
        self.remove_file(NEXT)
    }

    /// Only content counts: a changed mode alone does not make a new edition.
    fn has_same_content(
        &self,
        edition: &Path,
        files: &BTreeMap<PathBuf, NewFile<'_>>,
    ) -> Result<bool> {
        let mut there = BTreeSet::new();
        if !self.files_below(edition, Path::new(""), &mut there)? {
            return Ok(false);
        }
        if !there.iter().eq(files.keys()) {
            return Ok(false);
        }
        for (path, file) in files {
            let limit = u64::try_from(file.bytes.len()).unwrap_or(u64::MAX);
            match self.read(edition.join(path), limit) {
                Ok(bytes) if bytes == file.bytes => {}
                Ok(_) | Err(FileError::TooLarge { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// False: there is an entry that no edition has.
    fn files_below(
        &self,
        edition: &Path,
        below: &Path,
        found: &mut BTreeSet<PathBuf>,
    ) -> Result<bool> {
        for (name, kind) in self.list(edition.join(below))? {
            let path = below.join(name);
            match kind {
                Kind::File => drop(found.insert(path)),
                Kind::Directory => {
                    // Deeper than any path we write: not ours.
                    if path.as_os_str().len() > 4096 || !self.files_below(edition, &path, found)? {
                        return Ok(false);
                    }
                }
                Kind::Symlink | Kind::Other => return Ok(false),
            }
        }
        Ok(true)
    }

    fn write_edition(&self, edition: &Path, files: &BTreeMap<PathBuf, NewFile<'_>>) -> Result<()> {
        self.create_dir(edition, DIRECTORY_MODE)?;
        for (path, file) in files {
            let path = edition.join(path);
            let directory = path.parent().unwrap_or(edition);
            if directory != edition {
                self.create_dir_all(directory, DIRECTORY_MODE)?;
            }
            let (parent, name) = self.parent(&path)?;
            self.write_new(&parent, name, file.bytes, file.mode, Durability::Cache, &path)?;
            if let Some(owner) = file.owner {
                let owner = rustix::fs::Uid::from_raw(owner);
                change::chownat(&parent, name, Some(owner), None, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|errno| self.error("change the owner of", &path, errno))?;
            }
        }
        Ok(())
    }

    fn switch_to(&self, edition: &Path) -> Result<()> {
        self.remove_file(NEXT)?;
        self.symlink(edition, NEXT)?;
        self.rename(NEXT, CURRENT)
    }

    /// The names users see: a link for each, and none for removed files.
    fn show(&self, files: &BTreeMap<PathBuf, NewFile<'_>>) -> Result<()> {
        let first = |path: &PathBuf| match path.components().next() {
            Some(Component::Normal(name)) => Some(name.to_owned()),
            _ => None,
        };
        let wanted: BTreeSet<OsString> = files.keys().filter_map(first).collect();
        let mut shown = BTreeSet::new();
        for (name, kind) in self.list("")? {
            if name.as_bytes().starts_with(b"..") {
                continue;
            }
            if kind == Kind::Symlink && !wanted.contains(&name) {
                self.remove_file(&name)?;
            } else {
                // A directory is a mount point of another volume within this one.
                shown.insert(name);
            }
        }
        for name in wanted.difference(&shown) {
            self.symlink(Path::new(CURRENT).join(name), name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
