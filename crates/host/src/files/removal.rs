//! Removal of a directory tree that a container filled.
//!
//! It may contain links to anywhere, leftover mounts, directories with millions of entries, and
//! directories nested so deep that neither a path nor a stack nor our file descriptors reach the
//! bottom. Each directory is opened through its parent's handle, with the kernel crossing neither
//! links nor mounts. Entries are read as they are removed, never collected. The open directories
//! are an explicit stack of bounded depth: below that depth a directory is first moved up to the
//! top.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::change;

use super::{FileError, Kind, Result, Root, kind_of, open_beneath, temporary_name};

/// Maximum number of directories that are open at a time.
const MAX_DEPTH: usize = 64;

struct Removal<'a> {
    root: &'a Root,
    /// The tree to remove, relative to the root.
    path: &'a Path,
    /// The directory that holds it.
    parent: OwnedFd,
    /// From the tree's top directory down to the one that is being emptied.
    levels: Vec<Level>,
}

struct Level {
    name: OsString,
    entries: Dir,
    /// An entry was removed since the listing was last started. Some filesystems skip entries when
    /// others are removed meanwhile, so the directory is read again then.
    progress: bool,
}

pub(super) fn remove(root: &Root, path: &Path) -> Result<()> {
    let (parent, name) = match root.parent(path) {
        Ok(found) => found,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut removal = Removal { root, path, parent, levels: Vec::new() };
    removal.descend(name)?;
    while removal.step()? == Removed::NotYet {}
    Ok(())
}

#[derive(PartialEq, Eq)]
enum Removed {
    NotYet,
    Wholly,
}

impl Removal<'_> {
    /// Removes one entry of the current directory, or that directory if it has none.
    fn step(&mut self) -> Result<Removed> {
        let Some(level) = self.levels.last_mut() else { return Ok(Removed::Wholly) };
        match level.entries.read() {
            None => {
                self.ascend()?;
                Ok(if self.levels.is_empty() { Removed::Wholly } else { Removed::NotYet })
            }
            Some(Err(errno)) => Err(self.refused(None, errno)),
            Some(Ok(entry)) => {
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name != "." && name != ".." {
                    let kind = kind_of(self.at_hand(), &entry);
                    let kind = kind.map_err(|errno| self.refused(Some(name), errno))?;
                    self.remove_entry(name, kind)?;
                }
                Ok(Removed::NotYet)
            }
        }
    }

    fn remove_entry(&mut self, name: &OsStr, kind: Option<Kind>) -> Result<()> {
        match kind {
            // Gone since it was listed.
            None => Ok(()),
            Some(Kind::Directory) => self.descend(name),
            Some(Kind::File | Kind::Symlink | Kind::Other) => {
                let removed = unlink(self.at_hand(), name, AtFlags::empty());
                removed.map_err(|errno| self.refused(Some(name), errno))?;
                self.note_progress();
                Ok(())
            }
        }
    }

    /// Opens a directory below the current one, or moves it to the top if the depth limit is
    /// reached.
    fn descend(&mut self, name: &OsStr) -> Result<()> {
        // Opened in any case: this is where the kernel reports a mount.
        let opened = match enter(self.at_hand(), name) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(self.refused(Some(name), errno)),
        };
        if self.levels.len() > MAX_DEPTH {
            let up = temporary_name(OsStr::new("deep"));
            let moved = change::renameat(self.at_hand(), name, self.top(), up);
            moved.map_err(|errno| self.refused(Some(name), errno))?;
            self.note_progress();
            if let Some(top) = self.levels.first_mut() {
                top.progress = true;
            }
            return Ok(());
        }
        let entries = Dir::new(opened).map_err(|errno| self.refused(Some(name), errno))?;
        self.levels.push(Level { name: name.to_owned(), entries, progress: false });
        Ok(())
    }

    /// Removes the current directory, of which all entries were read.
    fn ascend(&mut self) -> Result<()> {
        let Some(mut level) = self.levels.pop() else { return Ok(()) };
        match unlink(self.at_hand(), &level.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.note_progress(),
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.progress => {
                level.progress = false;
                level.entries.rewind();
                self.levels.push(level);
            }
            Err(errno) => return Err(self.refused(Some(&level.name), errno)),
        }
        Ok(())
    }

    fn note_progress(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.progress = true;
        }
    }

    /// The directory whose entries are being removed; the tree's parent at the start and at the
    /// end.
    fn at_hand(&self) -> BorrowedFd<'_> {
        self.opened(self.levels.last())
    }

    /// The tree itself.
    fn top(&self) -> BorrowedFd<'_> {
        self.opened(self.levels.first())
    }

    fn opened<'a>(&'a self, level: Option<&'a Level>) -> BorrowedFd<'a> {
        level.and_then(|level| level.entries.fd().ok()).unwrap_or_else(|| self.parent.as_fd())
    }

    /// Only a mount can be crossed here: links are removed, not followed.
    fn refused(&self, name: Option<&OsStr>, errno: Errno) -> FileError {
        let mut path = self.path.parent().map(PathBuf::from).unwrap_or_default();
        path.extend(self.levels.iter().map(|level| level.name.as_os_str()).chain(name));
        match errno {
            Errno::XDEV => {
                FileError::Mounted { attempt: "remove", path: self.root.path.join(path) }
            }
            errno => self.root.error("remove", &path, errno),
        }
    }
}

fn enter(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    open_beneath(dir, Path::new(name), flags, resolve)
}

fn unlink(dir: BorrowedFd<'_>, name: &OsStr, flags: AtFlags) -> rustix::io::Result<()> {
    match change::unlinkat(dir, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
