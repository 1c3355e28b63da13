//! A pod's folder on this node, and the volumes in it.
//!
//! What is wanted is in the pod's spec, what is there is kept as data
//! ([`volume::Actual`](podwright_core::volume::Actual)), and `core` says what each volume needs;
//! here it is done. A kind of volume is one file and one row ([`kind`]). The pod's worker has its
//! volumes set up before a container starts and released when the last one is gone; in between
//! the [`keeper`] brings them up to date. The rest of the pod's folder, its containers' termination
//! messages above all, stays as long as the pod is wanted ([`orphans`]).
//!
//! All work on one pod is done in turn, and each pod has its own turn: a mount that hangs is the
//! trouble of its pod and of nobody else.

mod claim;
mod config_map;
mod content;
mod downward_api;
mod empty_dir;
mod host_path;
mod image;
mod keeper;
mod kind;
mod memory;
mod orphans;
mod pod;
mod projected;
mod refused;
mod release;
mod secret;
mod sub_path;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::config::mounts::Volumes as MountedVolumes;
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_core::qos::ResourceList;
use podwright_core::volume::teardown::{Plugin, Scope};
use podwright_core::volume::{self, Need};
use podwright_host::clock::Clock;
use podwright_host::files::{FileError, Root};
use podwright_host::mounts::{MountError, Propagation};
use podwright_host::threads;

use crate::gate::{Act, Gate, Rank};
use crate::objects::{FileRead, Objects};
use kind::{Ask, KINDS, PodFolder, Problem, Sources, Stage};
use orphans::Orphans;
use pod::PodVolumes;

pub use release::seen_mount;
pub use sub_path::SubPathError;

/// Upstream's mode for everything below `pods/`.
const FOLDER_MODE: u32 = 0o750;
/// Pods whose volumes are worked on at a time; one that hangs does not count for long.
const AT_ONCE: usize = 4;
/// What a file with variables may hold.
const ENV_FILE: u64 = 1 << 20;

/// What volumes of all kinds are mounted as, by the directories that they are in.
pub fn plugins() -> Vec<Plugin> {
    KINDS.iter().flat_map(|kind| kind.plugins()).copied().collect()
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
    #[error("pod {uid}: folder")]
    Folder { uid: PodUid, source: FileError },
    #[error("pod {uid}: cannot unmount {}", path.display())]
    Unmount { uid: PodUid, path: PathBuf, source: MountError },
    #[error(
        "pod {uid}: {} is mounted in its directory, and not by this agent: nothing of the pod is \
         removed before it is gone. Fix: umount {}", path.display(), path.display()
    )]
    Foreign { uid: PodUid, path: PathBuf },
    #[error("{} is not the directory of a pod: nothing in it is removed", path.display())]
    NotAPods { path: PathBuf },
    #[error("pod {uid}: its directory is still being removed from an earlier life")]
    BeingRemoved { uid: PodUid },
    #[error("cannot read the mounts of this machine")]
    Mounts(#[source] MountError),
    #[error("the work on the volumes of pod {uid} was cut off")]
    CutOff { uid: PodUid },
}

/// Some volumes are not there yet.
#[derive(Debug)]
pub struct NotMounted {
    /// What was tried now and failed.
    pub errors: Vec<VolumeError>,
    /// Everything that is missing, in one line.
    pub waiting_for: String,
    pub retry_in: Duration,
}

pub struct Volumes {
    pods: Root,
    sources: Arc<Sources>,
    gate: Gate,
    known: Mutex<BTreeMap<PodUid, Arc<PodVolumes>>>,
    /// Folders that an earlier process left and that nobody took over yet.
    left: Mutex<BTreeSet<PodUid>>,
    orphans: Orphans,
}

/// What came of bringing a pod's volumes up.
struct Outcome {
    errors: Vec<VolumeError>,
    missing: Vec<String>,
    wake_at: Option<podwright_core::time::Mono>,
}

impl Volumes {
    /// Volumes of pods below `<root_dir>/pods`.
    pub fn new(
        root_dir: &Path,
        objects: Arc<Objects>,
        allocatable: ResourceList,
        clock: Clock,
    ) -> Result<Self, FileError> {
        let root = Root::create(root_dir, FOLDER_MODE)?;
        root.create_dir_all("pods", FOLDER_MODE)?;
        let this = Self {
            pods: root.sub("pods")?,
            sources: Arc::new(Sources { objects, allocatable, clock }),
            gate: Gate::new(AT_ONCE),
            known: Mutex::default(),
            left: Mutex::default(),
            orphans: Orphans::default(),
        };
        *this.left.lock() = this.pods_on_disk()?.into_iter().collect();
        Ok(this)
    }

    /// The pod's folder as a path.
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
                self.pods.create_dir_all(Path::new(pod.uid.as_str()).join(below), FOLDER_MODE)?;
            }
            Ok(())
        };
        make().map_err(|source| VolumeError::Folder { uid: pod.uid.clone(), source })
    }

    /// Sets up every volume that a container of the pod uses, as far as it is not.
    pub async fn mount(&self, pod: &Arc<Pod>) -> Result<(), NotMounted> {
        self.left.lock().remove(&pod.uid);
        let outcome = self.bring_up(pod).await;
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

    /// Does what the plan of each volume says. Dropping this is safe: what touches the node goes
    /// on to its end and keeps the pod's turn until then.
    async fn bring_up(&self, pod: &Arc<Pod>) -> Outcome {
        let entry = self.entry(pod);
        let mut work = entry.turn().await;
        let now = self.sources.clock.now().mono;
        work.hear(entry.take_news());
        let mut prepared = Vec::new();
        if !work.closed {
            let due = volume::used(pod).filter(|volume| {
                let actual = work.actual(&volume.name);
                volume::plan(actual, now) == Need::SetUp
            });
            let asks = due.map(|volume| {
                let ask = Ask { pod, volume, sources: &self.sources, tokens: &entry.tokens };
                async move {
                    let kind = KINDS.into_iter().find(|kind| kind.covers(volume));
                    let result = match kind {
                        Some(kind) => kind.prepare(ask).await,
                        None => Err(Problem::processing("no volume plugin matched")),
                    };
                    (volume.name.clone(), result)
                }
            });
            prepared = futures::future::join_all(asks).await;
        }
        if prepared.is_empty() {
            entry.show(pod, &work, now);
            return work.outcome(pod, now, Vec::new());
        }
        let (clock, this_pod, folder) =
            (self.sources.clock.clone(), pod.clone(), self.open_pod_dir(&pod.uid));
        let act = async move {
            threads::blocking(move || {
                let errors = match folder {
                    Ok(folder) => work.act(&PodFolder(folder), prepared, &clock),
                    Err(source) => {
                        vec![VolumeError::Folder { uid: this_pod.uid.clone(), source }]
                    }
                };
                let now = clock.now().mono;
                entry.show(&this_pod, &work, now);
                let outcome = work.outcome(&this_pod, now, errors);
                drop(work);
                outcome
            })
            .await
        };
        let uid = pod.uid.clone();
        let place = self.gate.enter(Rank::of(pod, Act::SetUpVolume)).await;
        place.during(act).await.unwrap_or_else(|_| Outcome {
            missing: vec!["its volumes".into()],
            errors: vec![VolumeError::CutOff { uid }],
            wake_at: None,
        })
    }

    fn entry(&self, pod: &Arc<Pod>) -> Arc<PodVolumes> {
        let mut known = self.known.lock();
        let entry = known.entry(pod.uid.clone());
        entry.or_insert_with(|| Arc::new(PodVolumes::new(pod.clone()))).clone()
    }

    /// The pod's volumes that are ready, for its containers.
    pub fn mounted(&self, uid: &PodUid) -> MountedVolumes {
        let entry = self.known.lock().get(uid).cloned();
        entry.map(|entry| entry.mounted()).unwrap_or_default()
    }

    /// Groups that the users of the pod's volumes have to be in.
    pub fn groups(&self, uid: &PodUid) -> Vec<i64> {
        let entry = self.known.lock().get(uid).cloned();
        entry.map(|entry| entry.groups()).unwrap_or_default()
    }

    /// Makes a path inside a volume available to one container.
    pub async fn bind_sub_path(
        &self,
        uid: &PodUid,
        volume: &str,
        sub_path: &str,
        place: &str,
        propagation: Propagation,
    ) -> Result<PathBuf, SubPathError> {
        let folder = self.open_pod_dir(uid)?;
        let (volume, sub_path) = (PathBuf::from(volume), sub_path.to_owned());
        let place = PathBuf::from(place);
        let bound = threads::blocking(move || {
            sub_path::bind(&folder, &volume, &sub_path, &place, propagation)
        });
        bound.await.unwrap_or(Err(SubPathError::CutOff))
    }

    /// A file with variables in one of the pod's volumes.
    /// `None`: there is no such volume; `Some(None)`: the file cannot be read.
    pub async fn env_file(
        &self,
        uid: &PodUid,
        volume: &str,
        path: &str,
    ) -> Option<Option<FileRead>> {
        let mounted = self.mounted(uid);
        let folder = mounted.get(volume)?.directory()?.to_owned();
        let path = path.to_owned();
        let read = threads::blocking(move || {
            let root = Root::open(&folder).ok()?;
            let content = root.read_following(&path, ENV_FILE).ok()?;
            Some(FileRead { path: format!("{folder}/{path}"), content })
        });
        Some(read.await.unwrap_or_default())
    }

    /// Unmounts and removes the volumes of a pod whose containers are gone. Its folder stays, with
    /// what its containers left there, until the pod is no longer wanted.
    pub async fn release(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let entry = self.known.lock().get(uid).cloned();
        let turn = match &entry {
            Some(entry) => {
                let mut work = entry.turn().await;
                work.closed = true;
                Some(work)
            }
            None => None,
        };
        self.take_down(uid, Scope::Volumes, turn).await?;
        self.forget(uid);
        Ok(())
    }

    fn forget(&self, uid: &PodUid) {
        self.known.lock().remove(uid);
        self.left.lock().remove(uid);
        self.sources.objects.release(uid);
    }

    async fn take_down(
        &self,
        uid: &PodUid,
        scope: Scope,
        turn: Option<pod::Turn>,
    ) -> Result<(), VolumeError> {
        let uid = uid.clone();
        let pods =
            self.pods.again().map_err(|source| VolumeError::Folder { uid: uid.clone(), source })?;
        let cut_off = VolumeError::CutOff { uid: uid.clone() };
        let done = threads::blocking(move || {
            let _turn = turn;
            release::take_down(&pods, &uid, scope)
        });
        done.await.unwrap_or(Err(cut_off))
    }

    /// Whether something of the pod's volumes is on this node. What cannot be seen may be there.
    pub fn has_volumes(&self, uid: &PodUid) -> bool {
        release::has_volumes(&self.pods, uid)
    }

    /// The folder of all pods' folders.
    pub fn pods(&self) -> &Root {
        &self.pods
    }

    /// What is among the directories of pods, whoever it belongs to.
    pub fn pods_on_disk(&self) -> Result<Vec<PodUid>, FileError> {
        let entries = self.pods.list("")?;
        Ok(entries.into_iter().filter_map(|(name, _)| name.to_str().map(PodUid::new)).collect())
    }
}

impl VolumeError {
    fn new(volume: &str, problem: Problem) -> Self {
        let Problem { at, text: problem } = problem;
        match at {
            Stage::Processing => Self::Process { volume: volume.to_owned(), problem },
            Stage::SetUp(name) => {
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
