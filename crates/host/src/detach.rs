//! Unmounting of one mount without touching any other.
//!
//! An unmount affects more than its path. Mounts below it are unmounted too, and also in all peers
//! if the mount is shared; and a path names the topmost mount there. So the mount is first checked,
//! then made a recursive slave, and only then detached.
//!
//! [`mounts::detach_own`] unmounts everything at a path where only we mount. This module is for
//! paths where our mount may be stacked on a foreign one; the same checks are made first.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};

use crate::change;
use crate::mounts::{self, Mount, MountError, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    Yes,
    /// It was already gone.
    Gone,
    /// Something else is mounted over it, or over a directory above it. It was left alone.
    Hidden,
}

/// Detaches exactly this mount. Mounts below it are detached with it, in this mount tree only; if a
/// mount would be lost, nothing is unmounted, and the error names it.
pub fn detach(mount: &Mount) -> Result<Detached> {
    let failed = |attempt| {
        move |errno: Errno| MountError::Change {
            attempt,
            target: mount.point.clone(),
            source: errno.into(),
        }
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(CWD, &mount.point, flags, StatxFlags::MNT_ID) {
        Ok(seen) if seen.stx_mask & StatxFlags::MNT_ID.bits() == 0 => {
            return Err(failed("identify the mount at")(Errno::NOSYS));
        }
        Ok(seen) if seen.stx_mnt_id == mount.id => {}
        Ok(_) => return Ok(Detached::Hidden),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Detached::Gone),
        Err(errno) => return Err(failed("look at")(errno)),
    }
    check(&mounts::table(Path::new("/proc"))?, mount)?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    change::propagate(&mount.point, slave).map_err(failed("make a slave mount of"))?;
    match change::unmount(&mount.point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
        Ok(()) => Ok(Detached::Yes),
        Err(Errno::INVAL | Errno::NOENT) => Ok(Detached::Gone),
        Err(errno) => Err(failed("unmount")(errno)),
    }
}

/// Like [`mounts::check_own`], but for a mount that may be stacked on another one.
fn check(table: &[Mount], mount: &Mount) -> Result<()> {
    let elsewhere = |other: &&Mount| {
        other.point != mount.point || other.id == mount.id || is_on(table, other, mount.id)
    };
    let table: Vec<Mount> = table.iter().filter(elsewhere).cloned().collect();
    mounts::check_own(&table, std::slice::from_ref(&mount.point))
}

fn is_on(table: &[Mount], mount: &Mount, below: u64) -> bool {
    let mut parent = mount.parent;
    // A path through the table is no longer than the table.
    for _ in table {
        match table.iter().find(|other| other.id == parent) {
            Some(_) if parent == below => return true,
            Some(next) if next.parent != parent => parent = next.parent,
            Some(_) | None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_stacked_on_another_is_checked_by_itself() {
        let disk = "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /s rw - ext4 b rw\n\
                    3 2 8:3 / /s/users rw - ext4 c rw\n4 2 8:2 / /s rw - ext4 b rw\n";
        let is_free = |more: &str| {
            let table = mounts::parse(format!("{disk}{more}").as_bytes());
            table.iter().find(|mount| mount.id == 4).is_some_and(|own| check(&table, own).is_ok())
        };
        assert!(is_free(""), "the mount on the disk below stays");
        assert!(is_free("5 4 8:3 / /s/users rw - ext4 c rw\n"), "a copy");
        assert!(!is_free("5 4 8:9 / /s/new rw - ext4 d rw\n"), "mounted on ours only");
        assert!(!is_free("5 4 8:9 / /s rw - ext4 d rw\n"), "mounted over ours");
    }
}
