//! Mounts of one directory, found without the table, which has the mounts of all pods.
//!
//! Each entry is opened with a flag by which the kernel refuses mounts, so this never waits for a
//! mounted filesystem that hangs.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};

use super::{MountError, Result};
use crate::change;

/// Entries that are visited at most. More take longer than to read the table.
pub(super) const MAX_VISITED: usize = 256;

/// Memory-backed filesystems and their `f_type`.
const MEMORY: [(&str, u64); 2] = [("tmpfs", 0x0102_1994), ("hugetlbfs", 0x9584_58f6)];

/// The mounts on the directory `name` in `parent` and below it, by their paths in it; mounts on
/// mounts are not among them. `None` if there are too many entries or one cannot be opened: then
/// only the table says what is mounted.
pub fn mounts_in(parent: impl AsFd, name: &Path) -> Option<Vec<PathBuf>> {
    let top = match open(&parent, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(top) => top,
        Err(Errno::XDEV) => return Some(vec![PathBuf::new()]),
        Err(_) => return None,
    };
    visit(top).ok().flatten()
}

/// `Ok(None)`: there are too many entries.
fn visit(top: OwnedFd) -> rustix::io::Result<Option<Vec<PathBuf>>> {
    let (mut mounts, mut visited) = (Vec::new(), 0);
    let mut unread = vec![(PathBuf::new(), top)];
    while let Some((path, parent)) = unread.pop() {
        for entry in Dir::read_from(&parent)? {
            let entry = entry?;
            let name = Path::new(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
            if matches!(name.as_os_str().as_bytes(), b"." | b"..") {
                continue;
            }
            visited += 1;
            if visited > MAX_VISITED {
                return Ok(None);
            }
            let flags = match entry.file_type() {
                FileType::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
                // A directory for all we know.
                FileType::Unknown => return Ok(None),
                FileType::RegularFile
                | FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice => OFlags::PATH,
            };
            match open(&parent, name, flags) {
                Ok(directory) if flags.contains(OFlags::DIRECTORY) => {
                    unread.push((path.join(name), directory));
                }
                Ok(_) => {}
                Err(Errno::XDEV) => mounts.push(path.join(name)),
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(Some(mounts))
}

fn open(parent: impl AsFd, name: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(parent.as_fd(), name, flags, Mode::empty(), ResolveFlags::NO_XDEV)
}

/// The type of the memory-backed filesystem that is mounted on the directory `name` in `parent`, if
/// it is certain that nothing is mounted on it or in it.
pub fn plain_memory(parent: impl AsFd, name: &Path) -> Option<&'static str> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let root = rustix::fs::openat2(&parent, name, flags, Mode::empty(), resolve).ok()?;
    let f_type = rustix::fs::fstatfs(&root).ok()?.f_type as u64;
    let (fs_type, _) = MEMORY.into_iter().find(|(_, number)| *number == f_type)?;
    // Memory does not hang, so it may be opened.
    mounts_in(&root, Path::new(".")).is_some_and(|mounts| mounts.is_empty()).then_some(fs_type)
}

/// Unmounts our mount at `point`, on which nothing was mounted when it was looked at. As
/// [`super::detach_own`], but without the table. `Ok(false)`: the kernel refuses, because it is in
/// use or something is mounted on it.
pub fn detach_plain(point: &Path) -> Result<bool> {
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    let gone = change::propagate(point, slave)
        .and_then(|()| change::unmount(point, UnmountFlags::NOFOLLOW));
    match gone {
        Ok(()) => Ok(true),
        Err(Errno::BUSY | Errno::INVAL | Errno::NOENT) => Ok(false),
        Err(errno) => Err(MountError::Change {
            attempt: "unmount",
            target: point.into(),
            source: errno.into(),
        }),
    }
}
