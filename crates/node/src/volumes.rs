//! A pod's folder on this node, and the volumes in it.
//!
//! A kind of volume is one file and one row in [`kind_of`]: it knows how to set itself up in its
//! folder and how to take itself down. Everything else, the folder layout, what counts as left
//! over, what must never be deleted through, is here and the same for all.

mod empty_dir;
mod host_path;

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1;
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_host::files::{FileError, Links, Root};
use podwright_host::mounts::{self, Depth, MountError, Unmount};

/// Upstream's mode for everything below `pods/`.
const FOLDER_MODE: u32 = 0o750;

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {problem}")]
    SetUp { volume: String, problem: String },
    #[error("pod {uid}: folder")]
    Folder { uid: PodUid, source: FileError },
    #[error("pod {uid}: cannot unmount {path}")]
    Unmount { uid: PodUid, path: PathBuf, source: MountError },
    #[error("cannot read the mounts of this machine")]
    Mounts(#[source] MountError),
}

/// A volume of one pod, ready to be set up.
pub(crate) struct Place<'a> {
    pub volume: &'a v1::Volume,
    /// The pod's folder.
    pub pod_dir: &'a Root,
    /// The volume's own folder below it, relative.
    pub relative: PathBuf,
}

/// What a kind of volume does.
pub(crate) trait Kind: Sync {
    /// The name of the folder below `volumes/`, with `/` as `~`.
    fn plugin(&self) -> &'static str;

    fn set_up(&self, place: &Place<'_>) -> Result<(), String>;

    /// Where the data is on this node, for a volume that was set up.
    fn data(&self, place: &Place<'_>) -> Option<PathBuf>;
}

/// The row for each kind.
fn kind_of(volume: &v1::Volume) -> Option<&'static dyn Kind> {
    if volume.empty_dir.is_some() {
        return Some(&empty_dir::EmptyDir);
    }
    if volume.host_path.is_some() {
        return Some(&host_path::HostPath);
    }
    None
}

pub struct Volumes {
    pods: Root,
}

impl Volumes {
    /// Volumes of pods below `<root_dir>/pods`.
    pub fn new(root_dir: &Path) -> Result<Self, FileError> {
        let root = Root::create(root_dir, FOLDER_MODE)?;
        root.create_dir_all("pods", FOLDER_MODE)?;
        Ok(Self { pods: root.sub("pods")? })
    }

    /// The pod's folder as a path.
    pub fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods.path().join(uid.as_str())
    }

    pub fn open_pod_dir(&self, uid: &PodUid) -> Result<Root, FileError> {
        self.pods.sub(uid.as_str())
    }

    pub fn make_directories(&self, pod: &Pod) -> Result<(), VolumeError> {
        let make = || {
            for below in ["", "volumes", "plugins", "containers"] {
                self.pods.create_dir_all(Path::new(pod.uid.as_str()).join(below), FOLDER_MODE)?;
            }
            Ok(())
        };
        make().map_err(|source| VolumeError::Folder { uid: pod.uid.clone(), source })
    }

    /// Sets up every volume that a container of the pod uses.
    pub async fn mount(&self, pod: &Pod) -> Result<(), Vec<VolumeError>> {
        let root = self
            .open_pod_dir(&pod.uid)
            .map_err(|source| vec![VolumeError::Folder { uid: pod.uid.clone(), source }])?;
        let mut errors = Vec::new();
        for volume in used(pod) {
            let failed = |problem| VolumeError::SetUp { volume: volume.name.clone(), problem };
            let result = match kind_of(volume) {
                Some(kind) => kind.set_up(&place(volume, kind, &root)),
                None => Err("this kind of volume is not supported".into()),
            };
            errors.extend(result.map_err(failed).err());
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Where a volume's data is, once it was set up.
    pub fn data(&self, pod: &Pod, name: &str) -> Option<PathBuf> {
        let root = self.open_pod_dir(&pod.uid).ok()?;
        let volume = used(pod).find(|volume| volume.name == name)?;
        let kind = kind_of(volume)?;
        kind.data(&place(volume, kind, &root))
    }

    /// Makes a path inside a volume available to one container, proof against links that lead out.
    pub fn bind_sub_path(
        &self,
        uid: &PodUid,
        volume: &Path,
        sub_path: &str,
        place: &str,
    ) -> Result<PathBuf, VolumeError> {
        let folder = |source| VolumeError::Folder { uid: uid.clone(), source };
        let inside = Root::open(volume).map_err(folder)?;
        if inside.kind(sub_path).map_err(folder)?.is_none() {
            inside.create_dir_all(sub_path, FOLDER_MODE).map_err(folder)?;
        }
        // Held open from here on: what a container renames behind our back is not what we bind.
        let pinned = inside.pin(sub_path, Links::Refuse).map_err(folder)?;
        let pod_dir = self.open_pod_dir(uid).map_err(folder)?;
        let target = Path::new("volume-subpaths").join(place);
        pod_dir.create_dir_all(&target, FOLDER_MODE).map_err(folder)?;
        let target = pod_dir.path().join(target);
        let bound = mounts::is_mount_point(&target).map_err(VolumeError::Mounts)?;
        if !bound {
            mounts::bind_pinned(&pinned, &target, Depth::This).map_err(VolumeError::Mounts)?;
        }
        Ok(target)
    }

    /// Unmounts and removes everything of a pod. Never deletes through a mount.
    pub async fn unmount(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let folder = self.pod_dir(uid);
        let table = mounts::table(Path::new("/proc")).map_err(VolumeError::Mounts)?;
        let mut mounted: Vec<PathBuf> =
            mounts::at_or_below(&table, &folder).iter().map(|m| m.point.clone()).collect();
        // The deepest first: what is mounted inside another mount.
        mounted.sort();
        for path in mounted.into_iter().rev() {
            mounts::unmount(&path, Unmount::Now).map_err(|source| VolumeError::Unmount {
                uid: uid.clone(),
                path,
                source,
            })?;
        }
        match self.pods.remove_dir_all(uid.as_str()) {
            Ok(()) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(source) => Err(VolumeError::Folder { uid: uid.clone(), source }),
        }
    }

    /// Folders of pods, whoever they belong to.
    pub fn pods_on_disk(&self) -> Result<Vec<PodUid>, FileError> {
        let entries = self.pods.list("")?;
        Ok(entries.into_iter().filter_map(|(name, _)| name.to_str().map(PodUid::new)).collect())
    }
}

fn place<'a>(volume: &'a v1::Volume, kind: &dyn Kind, pod_dir: &'a Root) -> Place<'a> {
    let relative = Path::new("volumes").join(kind.plugin()).join(&volume.name);
    Place { volume, pod_dir, relative }
}

/// The volumes that some container mounts; the others are not worth a failure.
fn used(pod: &Pod) -> impl Iterator<Item = &v1::Volume> {
    let volumes = pod.object.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter(|volume| {
        pod.containers.iter().any(|container| {
            let mounts = container.spec.volume_mounts.iter().flatten();
            mounts.map(|mount| &mount.name).any(|name| *name == volume.name)
        })
    })
}
