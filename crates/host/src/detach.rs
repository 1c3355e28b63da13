//! Taking one mount off the machine without touching any other.
//!
//! An unmount goes further than its path says. What is mounted below goes along, and goes from all
//! peers as well if the mount is shared; and a path names whatever was mounted there last. So the
//! mount is first looked at, then made a recursive slave, and only then detached.

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};

use crate::change;
use crate::mounts::{Mount, MountError, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    Yes,
    /// It was gone already.
    Gone,
    /// Something else is mounted over it, or over a directory above it. It was left alone.
    Hidden,
}

/// Detaches exactly this mount. What is mounted below it goes with it, in this mount tree only.
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
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    change::propagate(&mount.point, slave).map_err(failed("make a slave of"))?;
    match change::unmount(&mount.point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
        Ok(()) => Ok(Detached::Yes),
        Err(Errno::INVAL | Errno::NOENT) => Ok(Detached::Gone),
        Err(errno) => Err(failed("unmount")(errno)),
    }
}
