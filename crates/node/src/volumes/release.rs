//! Giving back what a pod's volumes hold, and removing its directory.
//!
//! Upstream's two steps: volumes go at the end of the pod's life, and its deletion waits for that;
//! the directory goes with the pod, and nothing waits for that. Only mounts that are ours by their
//! place are unmounted ([`teardown`]), after a look that nothing of others is in the way; and
//! nothing is ever deleted through a mount.

use std::path::Path;

use podwright_core::ids::PodUid;
use podwright_core::volume::medium::RecordedMedium;
use podwright_core::volume::teardown::{
    self, Plugin, Scope, SeenMount, Teardown, VOLUME_DIRECTORIES,
};
use podwright_host::files::{FileError, Kind as FileKind, Root};
use podwright_host::mounts::{self, InUse};

use super::VolumeError;
use super::empty_dir::RECORD;
use crate::users;

pub(super) fn take_down(pods: &Root, uid: &PodUid, scope: Scope) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::Folder { uid: uid.clone(), source };
    let path = pods.path().join(uid.as_str());
    let kind = pods.kind(uid.as_str()).map_err(failed)?;
    match scope {
        Scope::Directory if kind.is_some() && !is_pods(pods, uid).map_err(failed)? => {
            return Err(VolumeError::NotAPods { path });
        }
        Scope::Directory | Scope::Volumes => {}
    }
    unmount(&path, uid, scope)?;
    let is_there = kind == Some(FileKind::Directory);
    if is_there {
        for directory in VOLUME_DIRECTORIES {
            pods.remove_dir_all(Path::new(uid.as_str()).join(directory)).map_err(failed)?;
        }
    }
    match scope {
        Scope::Volumes if is_there => users::give_back(pods, uid).map_err(failed),
        Scope::Volumes => Ok(()),
        Scope::Directory => pods.remove_dir_all(uid.as_str()).map_err(failed),
    }
}

/// Whether an agent made this directory. Of anything else the owner is unknown.
fn is_pods(pods: &Root, uid: &PodUid) -> Result<bool, FileError> {
    if pods.kind(uid.as_str())? != Some(FileKind::Directory) {
        return Ok(false);
    }
    let entries: Vec<_> =
        list(pods, Path::new(uid.as_str()))?.into_iter().map(|(name, _)| name).collect();
    Ok(teardown::is_pod_directory(uid.as_str(), &entries))
}

/// What is mounted at `point` in a pod's directory, with what is recorded of that place. A record that
/// cannot be read is an error: without it the mount may be anyone's.
pub fn seen_mount(
    pod_directory: &Path,
    point: &Path,
    fs_type: &str,
    plugins: &[Plugin],
) -> Result<SeenMount, FileError> {
    let medium = match teardown::record_of(point, plugins) {
        Some(record) => {
            match Root::open(pod_directory).and_then(|root| root.read(&record, RECORD)) {
                Ok(record) => RecordedMedium::parse(&record),
                Err(error) if error.is_not_found() => RecordedMedium::Unrecorded,
                Err(error) => return Err(error),
            }
        }
        None => RecordedMedium::Unrecorded,
    };
    Ok(SeenMount { point: point.to_owned(), fs_type: fs_type.to_owned(), medium })
}

/// Nothing is unmounted if something foreign is in the way.
fn unmount(folder: &Path, uid: &PodUid, scope: Scope) -> Result<(), VolumeError> {
    let table = mounts::table(Path::new("/proc")).map_err(VolumeError::Mounts)?;
    let plugins = super::plugins();
    let seen = mounts::at_or_below(&table, folder).into_iter();
    let seen = seen.filter_map(|mount| {
        let point = mount.point.strip_prefix(folder).ok()?;
        Some(seen_mount(folder, point, &mount.fs_type, &plugins))
    });
    let seen: Vec<SeenMount> = seen
        .collect::<Result<_, _>>()
        .map_err(|source| VolumeError::Folder { uid: uid.clone(), source })?;
    let points = match teardown::plan(&seen, scope, &plugins) {
        Teardown::Unmount(points) => points.into_iter().map(|point| folder.join(point)),
        Teardown::Foreign(point) => {
            // Without the slash that an empty path would add.
            let path = folder.components().chain(point.components()).collect();
            return Err(VolumeError::Foreign { uid: uid.clone(), path });
        }
    };
    let points: Vec<_> = points.collect();
    let failed = |path: &Path, source| VolumeError::Unmount {
        uid: uid.clone(),
        path: path.to_owned(),
        source,
    };
    mounts::check_own(&table, &points).map_err(|source| failed(folder, source))?;
    for point in points {
        mounts::detach_own(&point, InUse::Fail).map_err(|source| failed(&point, source))?;
    }
    Ok(())
}

pub(super) fn has_volumes(pods: &Root, uid: &PodUid) -> bool {
    let look = || -> Result<bool, FileError> {
        let of_pod = Path::new(uid.as_str());
        for (plugin, kind) in list(pods, &of_pod.join("volumes"))? {
            let plugin = of_pod.join("volumes").join(plugin);
            if kind != FileKind::Directory || !list(pods, &plugin)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(!list(pods, &of_pod.join("volume-subpaths"))?.is_empty())
    };
    look().unwrap_or(true)
}

fn list(pods: &Root, path: &Path) -> Result<Vec<(std::ffi::OsString, FileKind)>, FileError> {
    match pods.list(path) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => listed,
    }
}
