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

    use rustix::io::Errno;

    type Guard = Box<dyn Fn() -> bool>;

    thread_local! {
        static GUARD: RefCell<Option<Guard>> = const { RefCell::new(None) };
    }

    /// From now on this thread makes a change only if the guard, called before each change, allows
    /// it.
    pub fn post(guard: impl Fn() -> bool + 'static) {
        GUARD.with_borrow_mut(|place| *place = Some(Box::new(guard)));
    }

    /// Removes the guard of this thread.
    pub fn leave() {
        GUARD.with_borrow_mut(|place| *place = None);
    }

    pub(super) fn pass() -> rustix::io::Result<()> {
        let passes = GUARD.with_borrow(|guard| guard.as_ref().is_none_or(|guard| guard()));
        if passes { Ok(()) } else { Err(Errno::OWNERDEAD) }
    }
}

#[cfg(not(feature = "guard"))]
mod guard {
    pub(super) fn pass() -> rustix::io::Result<()> {
        Ok(())
    }
}

// === Names ===

pub(crate) fn mkdirat(dir: impl AsFd, path: impl Arg, mode: Mode) -> Result<()> {
    guard::pass()?;
    rustix::fs::mkdirat(dir, path, mode)
}

/// Creates the directory and its missing parents.
pub fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    guard::pass()?;
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
    guard::pass()?;
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
    guard::pass()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)
}

pub(crate) fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    guard::pass()?;
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
    rustix::mount::unmount(target, flags)
}
