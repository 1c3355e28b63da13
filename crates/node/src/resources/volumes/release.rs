//! Teardown of a pod's volumes and removal of its directory.
//!
//! Two steps, as upstream: volumes are torn down when the pod terminates, and its deletion waits
//! for that; the directory is removed after the pod is gone, and nothing waits for that. Only
//! mounts at paths that this agent uses are unmounted ([`teardown`]), after a check that no
//! foreign mount is in the way; and nothing is ever deleted through a mount.

use std::path::Path;

use podwright_core::ids::PodUid;
use podwright_core::volume::medium::RecordedMedium;
use podwright_core::volume::teardown::{
    self, Plugin, Scope, SeenMount, Teardown, VOLUME_DIRECTORIES,
};
use podwright_host::files::{FileError, Kind as FileKind, Root};
use podwright_host::mounts::{self, InUse, Mount};

use super::VolumeError;
use super::empty_dir::RECORD;
use crate::resources::users;

pub(super) fn tear_down(pods: &Root, uid: &PodUid, scope: Scope) -> Result<(), VolumeError> {
    tear_down_by(pods, uid, scope, || mounts::table(Path::new("/proc")))
}

/// `table` reads the mount table, which has the mounts of all pods.
fn tear_down_by(
    pods: &Root,
    uid: &PodUid,
    scope: Scope,
    table: impl FnOnce() -> mounts::Result<Vec<Mount>>,
) -> Result<(), VolumeError> {
    let failed = |source| VolumeError::PodDirectoryAccess { uid: uid.clone(), source };
    let path = pods.path().join(uid.as_str());
    let kind = pods.kind(uid.as_str()).map_err(failed)?;
    match scope {
        Scope::Directory if kind.is_some() && !is_made_by_agent(pods, uid).map_err(failed)? => {
            return Err(VolumeError::NotPodDirectory { path });
        }
        Scope::Directory | Scope::Volumes => {}
    }
    if !mounts::has_no_mounts(pods, Path::new(uid.as_str())) {
        let table = table().map_err(VolumeError::Mounts)?;
        unmount(&path, &table, uid, scope)?;
    }
    let exists = kind == Some(FileKind::Directory);
    if exists {
        for directory in VOLUME_DIRECTORIES {
            pods.remove_dir_all(Path::new(uid.as_str()).join(directory)).map_err(failed)?;
        }
    }
    match scope {
        Scope::Volumes if exists => users::release(pods, uid).map_err(failed),
        Scope::Volumes => Ok(()),
        Scope::Directory => pods.remove_dir_all(uid.as_str()).map_err(failed),
    }
}

/// Whether an agent made this directory. The owner of anything else is unknown.
fn is_made_by_agent(pods: &Root, uid: &PodUid) -> Result<bool, FileError> {
    if pods.kind(uid.as_str())? != Some(FileKind::Directory) {
        return Ok(false);
    }
    let entries: Vec<_> =
        list(pods, Path::new(uid.as_str()))?.into_iter().map(|(name, _)| name).collect();
    Ok(teardown::is_pod_directory(uid.as_str(), &entries))
}

/// The mount at `point` in a pod directory, with the recorded medium. A record that cannot be
/// read is an error: without it the owner of the mount is unknown.
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

/// Unmounts nothing if there is a foreign mount.
fn unmount(
    directory: &Path,
    table: &[Mount],
    uid: &PodUid,
    scope: Scope,
) -> Result<(), VolumeError> {
    let plugins = super::plugins();
    let seen = mounts::at_or_below(table, directory).into_iter();
    let seen = seen.filter_map(|mount| {
        let point = mount.point.strip_prefix(directory).ok()?;
        Some(seen_mount(directory, point, &mount.fs_type, &plugins))
    });
    let seen: Vec<SeenMount> = seen
        .collect::<Result<_, _>>()
        .map_err(|source| VolumeError::PodDirectoryAccess { uid: uid.clone(), source })?;
    let points = match teardown::plan(&seen, scope, &plugins) {
        Teardown::Unmount(points) => points.into_iter().map(|point| directory.join(point)),
        Teardown::Foreign(point) => {
            // Without the trailing slash that joining an empty path would add.
            let path = directory.components().chain(point.components()).collect();
            return Err(VolumeError::Foreign { uid: uid.clone(), path });
        }
    };
    let points: Vec<_> = points.collect();
    let failed = |path: &Path, source| VolumeError::Unmount {
        uid: uid.clone(),
        path: path.to_owned(),
        source,
    };
    mounts::check_own(table, &points).map_err(|source| failed(directory, source))?;
    for point in points {
        mounts::detach_own(&point, InUse::Fail).map_err(|source| failed(&point, source))?;
    }
    Ok(())
}

pub(super) fn has_volumes(pods: &Root, uid: &PodUid) -> bool {
    let check = || -> Result<bool, FileError> {
        let of_pod = Path::new(uid.as_str());
        for (plugin, kind) in list(pods, &of_pod.join("volumes"))? {
            let plugin = of_pod.join("volumes").join(plugin);
            if kind != FileKind::Directory || !list(pods, &plugin)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(!list(pods, &of_pod.join("volume-subpaths"))?.is_empty())
    };
    check().unwrap_or(true)
}

fn list(pods: &Root, path: &Path) -> Result<Vec<(std::ffi::OsString, FileKind)>, FileError> {
    match pods.list(path) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => listed,
    }
}

#[cfg(test)]
mod tests {
    use podwright_testkit::needs_root;
    use rustix::mount::MountFlags;

    use super::*;

    #[test]
    fn mount_table_is_read_only_if_something_is_mounted() {
        needs_root!();
        let directory = tempfile::tempdir().unwrap();
        let pods = Root::open(directory.path()).unwrap();
        let uid = PodUid::new("pod");
        for (is_mounted, scope) in [
            (false, Scope::Volumes),
            (false, Scope::Directory),
            (true, Scope::Volumes),
            (true, Scope::Directory),
        ] {
            let volume = directory.path().join("pod/volumes/kubernetes.io~secret/s");
            std::fs::create_dir_all(&volume).unwrap();
            std::fs::create_dir_all(directory.path().join("pod/containers/c")).unwrap();
            if is_mounted {
                mounts::mount("tmpfs", "tmpfs", &volume, MountFlags::empty(), "").unwrap();
            }
            let mut is_read = false;
            let table = || {
                is_read = true;
                mounts::table(Path::new("/proc"))
            };
            tear_down_by(&pods, &uid, scope, table).unwrap();
            assert_eq!(is_read, is_mounted, "{scope:?}");
            assert!(!volume.exists());
            assert_eq!(directory.path().join("pod").exists(), scope == Scope::Volumes);
        }
    }
}
