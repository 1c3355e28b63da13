//! Removing a tree that a container filled.
//!
//! It may hold links to anywhere, mounts that somebody forgot, and directories nested so deep that
//! neither a path nor a stack nor our file descriptors reach the bottom. Each directory is entered
//! through its parent's handle, and the kernel is told to cross neither links nor mounts. Below a
//! certain depth a directory is first moved up to the top, so the depth at hand stays bounded.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::change;

use super::{FileError, Kind, Result, Root, entries, open_beneath, temporary_name};

const MAX_DEPTH: usize = 64;

struct Removal<'a> {
    root: &'a Root,
    /// The directory that is being emptied.
    top: OwnedFd,
}

pub(super) fn remove(root: &Root, path: &Path) -> Result<()> {
    let (parent, name) = match root.parent(path) {
        Ok(found) => found,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error),
    };
    let top = match enter(parent.as_fd(), name) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(refused(root, path, errno)),
    };
    let removal = Removal { root, top };
    // Directories that were moved up are found by the next pass.
    while removal.empty(removal.top.as_fd(), path, 0)? == Emptied::SomeMovedUp {}
    change::unlinkat(&parent, name, AtFlags::REMOVEDIR).map_err(|errno| refused(root, path, errno))
}

#[derive(PartialEq, Eq)]
enum Emptied {
    Wholly,
    SomeMovedUp,
}

impl Removal<'_> {
    /// `path` is for messages only.
    fn empty(&self, dir: BorrowedFd<'_>, path: &Path, depth: usize) -> Result<Emptied> {
        let mut emptied = Emptied::Wholly;
        let listed = entries(dir).map_err(|source| self.root.error("list", path, source))?;
        for (name, kind) in listed {
            let path = path.join(&name);
            match kind {
                Kind::Directory => {
                    if self.remove_child(dir, &name, &path, depth)? == Emptied::SomeMovedUp {
                        emptied = Emptied::SomeMovedUp;
                    }
                }
                Kind::File | Kind::Symlink | Kind::Other => unlink(dir, &name, AtFlags::empty())
                    .map_err(|errno| refused(self.root, &path, errno))?,
            }
        }
        Ok(emptied)
    }

    fn remove_child(
        &self,
        dir: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
        depth: usize,
    ) -> Result<Emptied> {
        let refused = |errno| refused(self.root, path, errno);
        let child = match enter(dir, name) {
            Ok(child) => child,
            Err(Errno::NOENT) => return Ok(Emptied::Wholly),
            Err(errno) => return Err(refused(errno)),
        };
        if depth == MAX_DEPTH {
            let up = temporary_name(OsStr::new("deep"));
            change::renameat(dir, name, &self.top, up).map_err(refused)?;
            return Ok(Emptied::SomeMovedUp);
        }
        let emptied = self.empty(child.as_fd(), path, depth + 1)?;
        unlink(dir, name, AtFlags::REMOVEDIR).map_err(refused)?;
        Ok(emptied)
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

/// Here a crossing can only be a mount: links are not entered, they are removed.
fn refused(root: &Root, path: &Path, errno: Errno) -> FileError {
    match errno {
        Errno::XDEV => FileError::Mounted { attempt: "remove", path: root.path.join(path) },
        errno => root.error("remove", path, errno),
    }
}
