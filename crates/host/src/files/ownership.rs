//! Group ownership of a whole tree (fsGroup).
//!
//! The tree is a container's: it may contain links to files of the host, pipes, devices and mounts.
//! Every file is opened with `O_PATH`, without following a link, and changed through that handle;
//! nothing behind a link or a mount is touched.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::change;

use super::{Kind, Result, Root, entries, open_beneath};

/// Owner, group and mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    pub user: u32,
    pub group: u32,
    /// With the set-id and sticky bits.
    pub mode: u32,
}

impl Root {
    /// Of the root itself.
    pub fn ownership(&self) -> Result<Ownership> {
        let stat =
            rustix::fs::fstat(self).map_err(|errno| self.error("look at", Path::new(""), errno))?;
        Ok(Ownership { user: stat.st_uid, group: stat.st_gid, mode: stat.st_mode & 0o7777 })
    }

    /// Sets the mode of the root itself.
    pub fn set_own_mode(&self, mode: u32) -> Result<()> {
        self.set_mode(self.as_fd(), mode, Path::new(""))
    }

    /// Changes the group of the root and everything beneath it; `mode` maps the mode of a file or
    /// directory. Links get only the group.
    pub fn give_to_group(&self, group: u32, mode: impl Fn(Kind, u32) -> u32) -> Result<()> {
        self.give_one(self.as_fd(), Path::new(""), group, &mode)?;
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            let open = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = match open_beneath(self.as_fd(), &directory, open, resolve) {
                Ok(dir) => dir,
                // Gone meanwhile, or a mount, which is not ours.
                Err(Errno::NOENT | Errno::XDEV) => continue,
                Err(errno) => return Err(self.error("open directory", &directory, errno)),
            };
            for (name, kind) in entries(&dir).map_err(|e| self.error("list", &directory, e))? {
                let path = directory.join(&name);
                let hold = OFlags::PATH | OFlags::NOFOLLOW;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV;
                match open_beneath(dir.as_fd(), Path::new(&name), hold, resolve) {
                    Ok(file) => self.give_one(file.as_fd(), &path, group, &mode)?,
                    Err(Errno::NOENT | Errno::XDEV) => continue,
                    Err(errno) => return Err(self.error("look at", &path, errno)),
                }
                if kind == Kind::Directory {
                    directories.push(path);
                }
            }
        }
        Ok(())
    }

    /// Changes the group of the root only.
    pub fn give_itself_to_group(&self, group: u32, mode: impl Fn(Kind, u32) -> u32) -> Result<()> {
        self.give_one(self.as_fd(), Path::new(""), group, &mode)
    }

    fn give_one(
        &self,
        file: BorrowedFd<'_>,
        path: &Path,
        group: u32,
        mode: &impl Fn(Kind, u32) -> u32,
    ) -> Result<()> {
        let stat = rustix::fs::fstat(file).map_err(|errno| self.error("look at", path, errno))?;
        if stat.st_gid != group {
            change::chownat(file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)
                .map_err(|errno| self.error("change the group of", path, errno))?;
        }
        let kind = Kind::from(FileType::from_raw_mode(stat.st_mode));
        if kind == Kind::Symlink {
            return Ok(());
        }
        let wanted = mode(kind, stat.st_mode & 0o7777);
        // Changing the group clears the set-id bits, so they are set again.
        if wanted == stat.st_mode & 0o7777 && stat.st_gid == group {
            return Ok(());
        }
        // The kernel does not change the mode through an O_PATH handle, but does through its name
        // in /proc.
        let held = format!("/proc/self/fd/{}", file.as_raw_fd());
        change::chmodat(CWD, held, Mode::from_raw_mode(wanted))
            .map_err(|errno| self.error("set the mode of", path, errno))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn group_change_applies_to_links_and_not_to_their_targets() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (volume, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(host.path().join("shadow"), "x").unwrap();
        std::fs::create_dir_all(volume.path().join("deep/er")).unwrap();
        std::fs::write(volume.path().join("deep/er/file"), "x").unwrap();
        symlink(host.path().join("shadow"), volume.path().join("deep/link")).unwrap();
        symlink(host.path(), volume.path().join("folder")).unwrap();
        let before = std::fs::metadata(host.path().join("shadow")).unwrap();

        let root = Root::open(volume.path()).unwrap();
        let mode = |kind, mode| match kind {
            Kind::Directory => mode | 0o2770,
            Kind::File | Kind::Symlink | Kind::Other => mode | 0o660,
        };
        root.give_to_group(4321, mode).unwrap();

        let of = |path: &str| {
            let stat = std::fs::symlink_metadata(volume.path().join(path)).unwrap();
            (stat.gid(), stat.mode() & 0o7777)
        };
        assert_eq!(of("deep/er/file"), (4321, 0o664));
        assert_eq!(of("deep/er"), (4321, 0o2775));
        assert_eq!(root.ownership().unwrap().group, 4321);
        assert_eq!(of("deep/link").0, 4321);
        let after = std::fs::metadata(host.path().join("shadow")).unwrap();
        assert_eq!((after.gid(), after.mode()), (before.gid(), before.mode()));
        assert_ne!(std::fs::metadata(host.path()).unwrap().gid(), 4321);
    }
}
