//! subPath mounts: a part of a volume for one container.
//!
//! A container that can write to a volume can replace the path with a symbolic link to `/etc`
//! between check and mount. So the kernel resolves the path in one step that cannot leave the
//! volume, and the mount is made from the resulting descriptor; later renames do not matter.

use std::path::{Path, PathBuf};

use podwright_host::files::{Durability, FileError, Links, Root};
use podwright_host::mounts::{self, InUse, MountError, Propagation};

use super::DIRECTORY_MODE;

#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    #[error("cannot create the subPath in the volume")]
    Create(#[source] FileError),
    #[error("cannot open the subPath in the volume")]
    File(#[from] FileError),
    #[error("cannot bind-mount the subPath")]
    Mount(#[from] MountError),
    #[error("subPath mount was interrupted")]
    Interrupted,
}

/// Binds `sub_path` of `volume` to `place` in the pod directory and returns the target. As
/// upstream, existing mounts below it are left out; later mounts below it propagate.
pub(super) fn bind(
    pod_directory: &Root,
    volume: &Path,
    sub_path: &str,
    place: &Path,
    propagation: Propagation,
) -> Result<PathBuf, SubPathError> {
    let inside = Root::open(volume)?;
    let inner = match inside.pin(sub_path, Links::FollowBeneath) {
        // The kernel rejects every absolute link here, even one that stays in the volume.
        Err(error @ FileError::Escapes { .. }) => resolve(volume, sub_path).ok_or(error)?,
        Ok(_) | Err(_) => PathBuf::from(sub_path),
    };
    let pinned = match inside.pin(&inner, Links::FollowBeneath) {
        Ok(pinned) => pinned,
        Err(error) if error.is_not_found() => {
            let mode = inside.ownership()?.mode;
            inside.create_dirs_following(&inner, mode).map_err(SubPathError::Create)?;
            inside.pin(&inner, Links::FollowBeneath)?
        }
        Err(error) => return Err(error.into()),
    };
    let is_directory = rustix::fs::fstat(&pinned)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
    let relative = Path::new("volume-subpaths").join(place);
    let target = pod_directory.path().join(&relative);
    if mounts::is_mount_point(&target)? {
        if mounts::shows(&target, &pinned)? {
            return Ok(target);
        }
        // From an earlier container start; the volume now has a different file there.
        mounts::detach_own(&target, InUse::Detach)?;
    }
    make_target(pod_directory, &relative, is_directory)?;
    mounts::bind_pinned(&pinned, &target, propagation)?;
    Ok(target)
}

/// The path in the volume that `sub_path` resolves to; `None` if it leaves the volume. As upstream,
/// an absolute link is resolved on the host. The result may be replaced at any time, so it is
/// pinned beneath the volume like any other path.
fn resolve(volume: &Path, sub_path: &str) -> Option<PathBuf> {
    let base = std::fs::canonicalize(volume).ok()?;
    // The rest of the path may not exist yet.
    for existing in Path::new(sub_path).ancestors() {
        if let Ok(real) = std::fs::canonicalize(base.join(existing)) {
            let missing = Path::new(sub_path).strip_prefix(existing).ok()?;
            return Some(real.strip_prefix(&base).ok()?.join(missing));
        }
    }
    None
}

/// Creates the mount target: a directory for a directory, a file for anything else.
fn make_target(pod_directory: &Root, relative: &Path, is_directory: bool) -> Result<(), FileError> {
    use podwright_host::files::Kind;
    let fits = |kind| (kind == Kind::Directory) == is_directory;
    match pod_directory.kind(relative)? {
        Some(kind) if fits(kind) => return Ok(()),
        Some(Kind::Directory) => pod_directory.remove_dir(relative)?,
        Some(Kind::File | Kind::Symlink | Kind::Other) => pod_directory.remove_file(relative)?,
        None => {}
    }
    if is_directory {
        return pod_directory.create_dir_all(relative, DIRECTORY_MODE);
    }
    if let Some(parent) = relative.parent() {
        pod_directory.create_dir_all(parent, DIRECTORY_MODE)?;
    }
    pod_directory.write_atomic(relative, b"", 0o640, Durability::Cache)
}

#[cfg(test)]
mod tests;
