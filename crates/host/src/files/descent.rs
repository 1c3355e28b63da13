//! Creation of directories in a volume that a container can change at the same time.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::change;

use super::{FileError, Result, Root, open_beneath};

impl Root {
    /// Creates the missing directories of a path, following links that stay beneath the root. Each
    /// is created in the directory we hold open, even if its name leads elsewhere by then.
    pub fn create_dirs_following(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let path = path.as_ref();
        let mut parent: Option<OwnedFd> = None;
        let mut so_far = PathBuf::new();
        for component in path.components() {
            let Component::Normal(name) = component else {
                let path = self.path.join(path);
                return Err(FileError::Escapes { attempt: "create directory", path });
            };
            so_far.push(name);
            let failed = |errno: Errno| self.error("create directory", &so_far, errno);
            let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            let found = match open_beneath(self.fd.as_fd(), &so_far, OFlags::PATH, beneath) {
                Ok(found) => found,
                Err(Errno::NOENT) => {
                    let dir = parent.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
                    make(dir, name, mode).map_err(failed)?
                }
                Err(errno) => return Err(failed(errno)),
            };
            parent = Some(found);
        }
        Ok(())
    }
}

fn make(
    dir: std::os::fd::BorrowedFd<'_>,
    name: &std::ffi::OsStr,
    mode: u32,
) -> rustix::io::Result<OwnedFd> {
    let made = match change::mkdirat(dir, name, Mode::from_raw_mode(mode & 0o777)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno),
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let open = OFlags::RDONLY | OFlags::DIRECTORY;
    let child = open_beneath(dir, Path::new(name), open, resolve)?;
    if made {
        // The set-group-id bit of the parent directory is inherited and stays.
        let inherited = rustix::fs::fstat(&child)?.st_mode & 0o2000;
        change::fchmod(&child, Mode::from_raw_mode(mode & 0o5777 | inherited))?;
    }
    Ok(child)
}
