//! System calls that change files, mounts and control groups.
//!
//! The agent can be killed between any two of them, and a test that tries each such moment has to
//! stop it there. So each call passes [`guard`] first, which does nothing in the shipped program.

#![allow(clippy::disallowed_methods, reason = "this is where they are called")]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Result;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::path::Arg;

#[cfg(feature = "guard")]
pub mod guard {
    use std::cell::RefCell;
    use std::path::{Path, PathBuf};

    use rustix::io::Errno;

    type Guard = Box<dyn Fn() -> bool>;
    type Writes = Box<dyn FnMut() -> Option<DiskFault>>;

    /// How a write to a disk fails.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DiskFault {
        /// ENOSPC
        Full,
        /// EIO
        Broken,
    }

    thread_local! {
        static GUARD: RefCell<Option<Guard>> = const { RefCell::new(None) };
        static DISK_FAULT: RefCell<Option<Writes>> = const { RefCell::new(None) };
        static UNMOUNTED: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    }

    /// From now on this thread makes a change only if the guard, called before each change, allows
    /// it.
    pub fn post(guard: impl Fn() -> bool + 'static) {
        GUARD.with_borrow_mut(|place| *place = Some(Box::new(guard)));
    }

    /// Removes the guard and the disk fault of this thread.
    pub fn leave() {
        GUARD.with_borrow_mut(|place| *place = None);
        DISK_FAULT.with_borrow_mut(|place| *place = None);
    }

    /// From now on each change of this thread that takes space on a disk fails if this returns a
    /// fault.
    pub fn fail_writes(fault: impl FnMut() -> Option<DiskFault> + 'static) {
        DISK_FAULT.with_borrow_mut(|place| *place = Some(Box::new(fault)));
    }

    /// What this thread has unmounted since the last call.
    pub fn take_unmounted() -> Vec<PathBuf> {
        UNMOUNTED.take()
    }

    pub(super) fn pass() -> rustix::io::Result<()> {
        let passes = GUARD.with_borrow(|guard| guard.as_ref().is_none_or(|guard| guard()));
        if passes { Ok(()) } else { Err(Errno::OWNERDEAD) }
    }

    /// As [`pass`], for a change that takes space on a disk.
    pub(super) fn pass_write() -> rustix::io::Result<()> {
        pass()?;
        let fault = DISK_FAULT.with_borrow_mut(|fault| fault.as_mut().and_then(|fault| fault()));
        match fault {
            None => Ok(()),
            Some(DiskFault::Full) => Err(Errno::NOSPC),
            Some(DiskFault::Broken) => Err(Errno::IO),
        }
    }

    /// As [`pass_write`], for a change that takes no space if there is something already.
    pub(super) fn pass_new(exists: impl FnOnce() -> bool) -> rustix::io::Result<()> {
        if exists() { pass() } else { pass_write() }
    }

    pub(super) fn note_unmount(target: &Path) {
        UNMOUNTED.with_borrow_mut(|unmounted| unmounted.push(target.to_owned()));
    }
}

#[cfg(not(feature = "guard"))]
mod guard {
    pub(super) fn pass() -> rustix::io::Result<()> {
        Ok(())
    }

    pub(super) fn pass_write() -> rustix::io::Result<()> {
        Ok(())
    }

    pub(super) fn pass_new(_: impl FnOnce() -> bool) -> rustix::io::Result<()> {
        Ok(())
    }

    pub(super) fn note_unmount(_: &std::path::Path) {}
}

// === Names ===

pub(crate) fn mkdirat(dir: impl AsFd, path: impl Arg, mode: Mode) -> Result<()> {
    let dir = dir.as_fd();
    path.into_with_c_str(|path| {
        let exists = || rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        guard::pass_new(exists)?;
        rustix::fs::mkdirat(dir, path, mode)
    })
}

/// Creates the directory and its missing parents.
pub fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    guard::pass_new(|| path.is_dir())?;
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

pub(crate) fn renameat(
    from: impl AsFd,
    from_name: impl Arg,
    to: impl AsFd,
    to_name: impl Arg,
) -> Result<()> {
    guard::pass()?;
    rustix::fs::renameat(from, from_name, to, to_name)
}

pub(crate) fn symlinkat(target: impl Arg, dir: impl AsFd, name: impl Arg) -> Result<()> {
    guard::pass_write()?;
    rustix::fs::symlinkat(target, dir, name)
}

pub fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    Ok(symlinkat(target, rustix::fs::CWD, link)?)
}

pub(crate) fn unlinkat(dir: impl AsFd, name: impl Arg, flags: AtFlags) -> Result<()> {
    guard::pass()?;
    rustix::fs::unlinkat(dir, name, flags)
}

pub fn remove_file(path: &Path) -> io::Result<()> {
    Ok(unlinkat(rustix::fs::CWD, path, AtFlags::empty())?)
}

pub(crate) fn rmdir(path: &Path) -> Result<()> {
    unlinkat(rustix::fs::CWD, path, AtFlags::REMOVEDIR)
}

// === Content, modes, owners ===

/// Creates a file, readable only by its owner.
pub(crate) fn create(dir: impl AsFd, name: impl Arg) -> Result<OwnedFd> {
    guard::pass_write()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
}

pub(crate) fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    guard::pass_write()?;
    file.write_all(bytes)
}

/// Writes to an existing file.
pub(crate) fn set(path: &Path, value: &str) -> io::Result<()> {
    guard::pass()?;
    OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}

pub(crate) fn fchmod(file: impl AsFd, mode: Mode) -> Result<()> {
    guard::pass()?;
    rustix::fs::fchmod(file, mode)
}

pub(crate) fn chmodat(dir: impl AsFd, path: impl Arg, mode: Mode) -> Result<()> {
    guard::pass()?;
    rustix::fs::chmodat(dir, path, mode, AtFlags::empty())
}

pub(crate) fn chownat(
    dir: impl AsFd,
    path: impl Arg,
    owner: Option<Uid>,
    group: Option<Gid>,
    flags: AtFlags,
) -> Result<()> {
    guard::pass()?;
    rustix::fs::chownat(dir, path, owner, group, flags)
}

// === Mounts ===

pub(crate) fn mount(
    source: &str,
    target: &Path,
    fs_type: &str,
    flags: MountFlags,
    options: &std::ffi::CStr,
) -> Result<()> {
    guard::pass()?;
    rustix::mount::mount(source, target, fs_type, flags, options)
}

pub(crate) fn bind(source: &Path, target: &Path) -> Result<()> {
    guard::pass()?;
    rustix::mount::mount_bind(source, target)
}

pub(crate) fn bind_recursive(source: &Path, target: &Path) -> Result<()> {
    guard::pass()?;
    rustix::mount::mount_bind_recursive(source, target)
}

pub(crate) fn remount(target: &Path, flags: MountFlags, options: &std::ffi::CStr) -> Result<()> {
    guard::pass()?;
    rustix::mount::mount_remount(target, flags, options)
}

pub(crate) fn propagate(target: &Path, flags: MountPropagationFlags) -> Result<()> {
    guard::pass()?;
    rustix::mount::mount_change(target, flags)
}

pub(crate) fn unmount(target: &Path, flags: UnmountFlags) -> Result<()> {
    guard::pass()?;
    guard::note_unmount(target);
    rustix::mount::unmount(target, flags)
}
