//! A part of a volume, for one container.
//!
//! A container that can write to a volume can make a link in it that leads to `/etc`, and swap it
//! in while we look. So the part is found by the kernel in one step that cannot leave the volume,
//! held, and bound from that hold: what names do meanwhile does not matter.

use std::path::{Path, PathBuf};

use podwright_host::files::{Durability, FileError, Links, Root};
use podwright_host::mounts::{self, InUse, MountError, Propagation};

use super::FOLDER_MODE;

#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    #[error("cannot make the part of the volume")]
    Create(#[source] FileError),
    #[error("cannot get hold of the part of the volume")]
    File(#[from] FileError),
    #[error("cannot bind the part of the volume")]
    Mount(#[from] MountError),
    #[error("the work on it was cut off")]
    CutOff,
}

/// Binds `sub_path` of `volume` to `place` in the pod's folder and returns where that is. As
/// upstream, what is mounted below it now is left out; what is mounted there later is passed on.
pub(super) fn bind(
    pod_folder: &Root,
    volume: &Path,
    sub_path: &str,
    place: &Path,
    propagation: Propagation,
) -> Result<PathBuf, SubPathError> {
    let inside = Root::open(volume)?;
    let pinned = match inside.pin(sub_path, Links::FollowBeneath) {
        Ok(pinned) => pinned,
        Err(error) if error.is_not_found() => {
            let mode = inside.ownership()?.mode;
            inside.create_dirs_following(sub_path, mode).map_err(SubPathError::Create)?;
            inside.pin(sub_path, Links::FollowBeneath)?
        }
        Err(error) => return Err(error.into()),
    };
    let is_folder = rustix::fs::fstat(&pinned)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
    let relative = Path::new("volume-subpaths").join(place);
    let target = pod_folder.path().join(&relative);
    if mounts::is_mount_point(&target)? {
        if mounts::shows(&target, &pinned)? {
            return Ok(target);
        }
        // From an earlier start; the volume has another file there now.
        mounts::detach_own(&target, InUse::Detach)?;
    }
    make_target(pod_folder, &relative, is_folder)?;
    mounts::bind_pinned(&pinned, &target, propagation)?;
    Ok(target)
}

/// A folder is bound on a folder, anything else on a file.
fn make_target(pod_folder: &Root, relative: &Path, is_folder: bool) -> Result<(), FileError> {
    use podwright_host::files::Kind;
    let fits = |kind| (kind == Kind::Directory) == is_folder;
    match pod_folder.kind(relative)? {
        Some(kind) if fits(kind) => return Ok(()),
        Some(Kind::Directory) => pod_folder.remove_dir(relative)?,
        Some(Kind::File | Kind::Symlink | Kind::Other) => pod_folder.remove_file(relative)?,
        None => {}
    }
    if is_folder {
        return pod_folder.create_dir_all(relative, FOLDER_MODE);
    }
    if let Some(parent) = relative.parent() {
        pod_folder.create_dir_all(parent, FOLDER_MODE)?;
    }
    pod_folder.write_atomic(relative, b"", 0o640, Durability::Cache)
}

#[cfg(test)]
mod tests;
