//! Volume manager: the pod directories on this node and the volumes in them.
//!
//! The pod's spec gives the desired volumes, [`volume::VolumeState`](podwright_core::volume::VolumeState)
//! holds the state of each, and `core` decides what each volume needs; this module does it. A
//! volume type is one row in [`volume_type`] and usually one file. The pod worker sets the volumes up before a
//! container starts and releases them after the last one is gone; in between [`refresh`] keeps
//! their content current. The rest of the pod directory, above all the termination messages of
//! its containers, stays as long as a source names the pod ([`orphans`]).
//!
//! Work on one pod is serialized by a lock per pod, so a mount that hangs affects only its pod.

mod claim;
mod content;
mod empty_dir;
mod host_path;
mod image;
mod memory;
mod orphans;
mod pod;
mod refresh;
mod refresh_schedule;
mod refused;
mod release;
mod sub_path;
mod tokens;
mod volume_type;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_api::qos::ResourceList;
use podwright_core::config::mounts::Volumes as MountedVolumes;
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_core::start_order::{Rank, StartStep};
use podwright_core::time::resync;
use podwright_core::volume::teardown::{Plugin, Scope};
use podwright_core::volume::{self, VolumeNeed};
use podwright_host::clock::Clock;
use podwright_host::files::{FileError, Root};
use podwright_host::mounts::{MountError, Propagation};
use podwright_host::threads;

use crate::pods::pod_changes::ChangedPods;
use crate::resources::objects::{FileRead, Objects};
use crate::resources::users::Users;
use crate::worker::start_limiter::StartLimiter;
use orphans::OrphanedDirectories;
use pod::PodVolumes;
use volume_type::{
    FailurePhase, PodDirectory, Sources, VOLUME_TYPES, VolumeProblem, VolumeRequest,
};

pub use release::seen_mount;
pub use sub_path::SubPathError;

/// Mode of everything below `pods/`, as upstream.
const DIRECTORY_MODE: u32 = 0o750;
/// Pods whose volumes are set up at the same time. One that hangs gives its permit back.
const PARALLEL_PODS: usize = 4;
/// Default interval of the resync.
const RESYNC: Duration = Duration::from_secs(300);
/// Maximum size of an env file.
const ENV_FILE_LIMIT: u64 = 1 << 20;

/// Mount types of all volume plugins, by their directories below `volumes/`.
pub fn plugins() -> Vec<Plugin> {
    VOLUME_TYPES.iter().flat_map(|kind| kind.plugins()).copied().collect()
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("MountVolume.SetUp failed for volume {volume:?} : {problem}")]
    SetUp { volume: String, problem: String },
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
         failed to process volumes=[{volume}]: {problem}"
    )]
    Process { volume: String, problem: String },
    #[error("pod {uid}: cannot access the pod directory")]
    PodDirectoryAccess { uid: PodUid, source: FileError },
    #[error("pod {uid}: cannot unmount {}", path.display())]
    Unmount { uid: PodUid, path: PathBuf, source: MountError },
    #[error(
        "pod {uid}: {} is mounted in the pod directory, but not by this agent; nothing of the pod \
         is removed while it is mounted. Fix: umount {}", path.display(), path.display()
    )]
    Foreign { uid: PodUid, path: PathBuf },
    #[error("{} is not a pod directory; leaving it in place", path.display())]
    NotPodDirectory { path: PathBuf },
    #[error("pod {uid}: the directory of an earlier pod with this UID is still being removed")]
    BeingRemoved { uid: PodUid },
    #[error("cannot read the mount table")]
    Mounts(#[source] MountError),
    #[error("pod {uid}: volume operation was interrupted")]
    Interrupted { uid: PodUid },
}

/// Some volumes are not mounted yet.
#[derive(Debug)]
pub struct NotMounted {
    /// The failures of this attempt.
    pub errors: Vec<VolumeError>,
    /// All missing volumes, in one line.
    pub waiting_for: String,
    pub retry_in: Duration,
}

pub struct Volumes {
    pods: Root,
    /// The ranges of user IDs, whose records are in the pod directories.
    users: Arc<Users>,
    sources: Arc<Sources>,
    start_limiter: StartLimiter,
    resync: Duration,
    known: Mutex<BTreeMap<PodUid, Arc<PodVolumes>>>,
    /// Pods whose entry in `known` was published or removed; the volume refresh is their reader.
    published: Arc<ChangedPods>,
    /// Pod directories left by an earlier process and not yet taken over.
    left: Mutex<BTreeSet<PodUid>>,
    orphans: OrphanedDirectories,
}

/// Result of setting a pod's volumes up.
struct SetUpOutcome {
    errors: Vec<VolumeError>,
    missing: Vec<String>,
    wake_at: Option<podwright_core::time::Mono>,
}

impl Volumes {
    /// Volumes of pods below `<root_dir>/pods`.
    pub fn new(
        root_dir: &Path,
        users: Arc<Users>,
        objects: Arc<Objects>,
        allocatable: ResourceList,
        clock: Clock,
    ) -> Result<Self, FileError> {
        let root = Root::create(root_dir, DIRECTORY_MODE)?;
        root.create_dir_all("pods", DIRECTORY_MODE)?;
        let this = Self {
            pods: root.sub("pods")?,
            users,
            sources: Arc::new(Sources { objects, allocatable, clock }),
            start_limiter: StartLimiter::new(PARALLEL_PODS),
            resync: RESYNC,
            known: Mutex::default(),
            published: Arc::default(),
            left: Mutex::default(),
            orphans: OrphanedDirectories::default(),
        };
        *this.left.lock() = this.pods_on_disk()?.into_iter().collect();
        Ok(this)
    }

    /// Content that follows API objects is compared with them at this interval, even without a
    /// notification.
    #[must_use]
    pub fn resync_every(self, resync: Duration) -> Self {
        Self { resync, ..self }
    }

    /// The path of the pod directory.
    pub fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods.path().join(uid.as_str())
    }

    pub fn open_pod_dir(&self, uid: &PodUid) -> Result<Root, FileError> {
        self.pods.sub(uid.as_str())
    }

    pub fn make_directories(&self, pod: &Pod) -> Result<(), VolumeError> {
        if self.orphans.is_being_removed(&pod.uid) {
            return Err(VolumeError::BeingRemoved { uid: pod.uid.clone() });
        }
        let make = || {
            for below in ["", "volumes", "plugins", "containers"] {
                self.pods
                    .create_dir_all(Path::new(pod.uid.as_str()).join(below), DIRECTORY_MODE)?;
            }
            Ok(())
        };
        make().map_err(|source| VolumeError::PodDirectoryAccess { uid: pod.uid.clone(), source })
    }

    /// Sets up every volume that a container of the pod uses and that is not set up yet.
    pub async fn mount(&self, pod: &Arc<Pod>) -> Result<(), NotMounted> {
        self.left.lock().remove(&pod.uid);
        let outcome = self.set_up_volumes(pod).await;
        if outcome.missing.is_empty() {
            return Ok(());
        }
        let now = self.sources.clock.now().mono;
        Err(NotMounted {
            errors: outcome.errors,
            waiting_for: outcome.missing.join("; "),
            retry_in: outcome.wake_at.map_or(Duration::from_secs(1), |at| at.since(now)),
        })
    }

    /// Sets up each volume whose plan says so. Dropping this is safe: work on the node runs to its
    /// end and holds the lock of the pod until then.
    async fn set_up_volumes(&self, pod: &Arc<Pod>) -> SetUpOutcome {
        let entry = self.entry(pod);
        let mut work = entry.lock_work().await;
        let now = self.sources.clock.now().mono;
        work.mark_changed(entry.take_change());
        let mut prepared = Vec::new();
        if !work.closed {
            let due = volume::used(pod).filter(|volume| {
                let actual = work.actual(&volume.name);
                volume::plan(actual, now) == VolumeNeed::SetUp
            });
            let asks = due.map(|volume| {
                let request =
                    VolumeRequest { pod, volume, sources: &self.sources, tokens: &entry.tokens };
                async move {
                    let kind = VOLUME_TYPES.into_iter().find(|kind| kind.covers(volume));
                    let result = match kind {
                        Some(kind) => kind.prepare(request).await,
                        None => Err(VolumeProblem::processing("no volume plugin matched")),
                    };
                    (volume.name.clone(), result)
                }
            });
            prepared = futures::future::join_all(asks).await;
        }
        if prepared.is_empty() {
            entry.publish(pod, &work, now);
            self.published.note([pod.uid.clone()]);
            return work.set_up_outcome(pod, now, Vec::new());
        }
        let resync = resync::delay(&pod.uid, self.resync);
        let (clock, this_pod, directory) =
            (self.sources.clock.clone(), pod.clone(), self.open_pod_dir(&pod.uid));
        let published = self.published.clone();
        let set_up = async move {
            threads::blocking(move || {
                let errors = match directory {
                    Ok(directory) => {
                        work.set_up(&PodDirectory(directory), prepared, resync, &clock)
                    }
                    Err(source) => {
                        vec![VolumeError::PodDirectoryAccess { uid: this_pod.uid.clone(), source }]
                    }
                };
                let now = clock.now().mono;
                entry.publish(&this_pod, &work, now);
                published.note([this_pod.uid.clone()]);
                let outcome = work.set_up_outcome(&this_pod, now, errors);
                drop(work);
                outcome
            })
            .await
        };
        let uid = pod.uid.clone();
        let permit = self.start_limiter.acquire(Rank::of(pod, StartStep::SetUpVolume)).await;
        permit.during(set_up).await.unwrap_or_else(|_| SetUpOutcome {
            missing: vec!["all volumes".into()],
            errors: vec![VolumeError::Interrupted { uid }],
            wake_at: None,
        })
    }

    fn entry(&self, pod: &Arc<Pod>) -> Arc<PodVolumes> {
        let mut known = self.known.lock();
        let entry = known.entry(pod.uid.clone());
        entry.or_insert_with(|| Arc::new(PodVolumes::new(pod.clone()))).clone()
    }

    /// The pod's ready volumes, for its containers.
    pub fn mounted(&self, uid: &PodUid) -> MountedVolumes {
        let entry = self.known.lock().get(uid).cloned();
        entry.map(|entry| entry.mounted()).unwrap_or_default()
    }

    /// Supplemental groups that the pod's volumes require.
    pub fn groups(&self, uid: &PodUid) -> Vec<i64> {
        let entry = self.known.lock().get(uid).cloned();
        entry.map(|entry| entry.groups()).unwrap_or_default()
    }

    /// Keeps a pod's volumes unchanged until the guard is dropped. While a container starts, the
    /// runtime bind-mounts files that were bound before; removing the edition they belong to would
    /// fail the start.
    pub(crate) async fn hold(&self, uid: &PodUid) -> Option<pod::VolumesGuard> {
        let entry = self.known.lock().get(uid).cloned()?;
        Some(entry.lock_work().await)
    }

    /// Bind-mounts a path inside a volume for one container.
    pub async fn bind_sub_path(
        &self,
        uid: &PodUid,
        volume: &str,
        sub_path: &str,
        place: &str,
        propagation: Propagation,
    ) -> Result<PathBuf, SubPathError> {
        let directory = self.open_pod_dir(uid)?;
        let (volume, sub_path) = (PathBuf::from(volume), sub_path.to_owned());
        let place = PathBuf::from(place);
        let bound = threads::blocking(move || {
            sub_path::bind(&directory, &volume, &sub_path, &place, propagation)
        });
        bound.await.unwrap_or(Err(SubPathError::Interrupted))
    }

    /// Reads an env file from one of the pod's volumes.
    /// `None`: there is no such volume; `Some(None)`: the file cannot be read.
    pub async fn env_file(
        &self,
        uid: &PodUid,
        volume: &str,
        path: &str,
    ) -> Option<Option<FileRead>> {
        let mounted = self.mounted(uid);
        let directory = mounted.get(volume)?.directory()?.to_owned();
        let path = path.to_owned();
        let read = threads::blocking(move || {
            let root = Root::open(&directory).ok()?;
            let content = root.read_following(&path, ENV_FILE_LIMIT).ok()?;
            Some(FileRead { path: format!("{directory}/{path}"), content })
        });
        Some(read.await.unwrap_or_default())
    }

    /// Unmounts and removes the volumes of a pod whose containers are gone. The pod directory stays,
    /// with what its containers left there, until no source names the pod.
    pub async fn release(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let entry = self.known.lock().get(uid).cloned();
        let guard = match &entry {
            Some(entry) => {
                let mut work = entry.lock_work().await;
                work.closed = true;
                Some(work)
            }
            None => None,
        };
        self.tear_down(uid, Scope::Volumes, guard).await?;
        self.forget(uid);
        Ok(())
    }

    fn forget(&self, uid: &PodUid) {
        self.known.lock().remove(uid);
        self.left.lock().remove(uid);
        self.published.note([uid.clone()]);
        self.sources.objects.release(uid);
    }

    async fn tear_down(
        &self,
        uid: &PodUid,
        scope: Scope,
        guard: Option<pod::VolumesGuard>,
    ) -> Result<(), VolumeError> {
        let (uid, users) = (uid.clone(), self.users.clone());
        let pods = self
            .pods
            .again()
            .map_err(|source| VolumeError::PodDirectoryAccess { uid: uid.clone(), source })?;
        let cut_off = VolumeError::Interrupted { uid: uid.clone() };
        let done = threads::blocking(move || {
            let _guard = guard;
            let result = release::tear_down(&pods, &uid, scope);
            users.note_removed(&pods, &uid);
            result
        });
        done.await.unwrap_or(Err(cut_off))
    }

    /// Whether the pod has volumes on this node. An error while checking counts as yes.
    pub fn has_volumes(&self, uid: &PodUid) -> bool {
        release::has_volumes(&self.pods, uid)
    }

    /// The parent of all pod directories.
    pub fn pods(&self) -> &Root {
        &self.pods
    }

    /// All entries of the pods directory, including those that are not of a pod.
    pub fn pods_on_disk(&self) -> Result<Vec<PodUid>, FileError> {
        let entries = self.pods.list("")?;
        Ok(entries.into_iter().filter_map(|(name, _)| name.to_str().map(PodUid::new)).collect())
    }
}

impl VolumeError {
    fn new(volume: &str, problem: VolumeProblem) -> Self {
        let VolumeProblem { at, text: problem } = problem;
        match at {
            FailurePhase::Processing => Self::Process { volume: volume.to_owned(), problem },
            FailurePhase::SetUp(name) => {
                let volume = name.unwrap_or_else(|| volume.to_owned());
                Self::SetUp { volume, problem }
            }
        }
    }
}

#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod tests;
