//! Disk usage of pods.
//!
//! Walking directories is slow, so requests do not wait for it: they get the last measurement, and if
//! that is missing or old, a background task measures again. A node that is not scraped walks only
//! the directories of pods that have limits of local storage.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_core::ids::PodUid;
use podwright_core::stats::{
    ClaimReference, FsStats, Moment, Used, VolumeStats, is_local_and_ephemeral,
};
use podwright_core::time::{Mono, Now};
use podwright_core::volume::claim::ClaimRef;
use podwright_host::clock::Clock;
use podwright_host::{disk_usage, machine, threads};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{PodSnapshot, Snapshot};
use crate::resources::volumes::Volumes;

/// Walks that may go on at the same time: the current one, and those that hang.
const MOST_WALKS: usize = 8;
/// How long the walk of one pod delays the next.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures the disk usage of pods in the background.
pub struct DiskUsage {
    volumes: Arc<Volumes>,
    clock: Clock,
    /// Maximum age of a measurement; zero: nothing is measured.
    period: Duration,
    measured: Mutex<HashMap<PodUid, Arc<PodDisk>>>,
    /// Pods to measure.
    pending: Mutex<HashMap<PodUid, MeasureRequest>>,
    requested: Notify,
    /// Pods whose walk has not ended, such as on a network volume whose server is dead.
    walking: Arc<Mutex<HashSet<PodUid>>>,
}

/// A pod to measure, with its containers' log directories.
pub(crate) struct MeasureRequest {
    pub(crate) pod: Arc<podwright_core::pod::Pod>,
    pub(crate) logs: Vec<(Arc<str>, PathBuf)>,
}

/// The disk usage of one pod.
#[derive(Debug)]
pub(crate) struct PodDisk {
    at: Now,
    logs: HashMap<Arc<str>, Used>,
    pub(crate) volumes: Vec<VolumeStats>,
    /// The part that counts as the pod's ephemeral storage: local volumes and the hosts file.
    pub(crate) local: Used,
}

impl PodDisk {
    pub(super) fn time(&self) -> Moment {
        Moment(self.at.wall)
    }

    /// The logs of a container, if they were measured.
    pub(crate) fn logs(&self, container: &str) -> Option<Used> {
        self.logs.get(container).copied()
    }
}

impl DiskUsage {
    /// `period`: the maximum age of a measurement; zero: nothing is measured.
    pub(crate) fn new(volumes: Arc<Volumes>, clock: Clock, period: Duration) -> Arc<Self> {
        Arc::new(Self {
            volumes,
            clock,
            period,
            measured: Mutex::default(),
            pending: Mutex::default(),
            requested: Notify::new(),
            walking: Arc::default(),
        })
    }

    /// The last measurements; schedules those that are missing or old.
    pub(super) fn of(&self, snapshot: &Snapshot) -> HashMap<PodUid, Arc<PodDisk>> {
        self.keep(|uid| snapshot.pods.iter().any(|pod| pod.uid() == uid));
        self.request(snapshot.pods.iter().map(request).collect(), self.period);
        self.measured.lock().clone()
    }

    /// Schedules those whose measurement is missing or older than this, and returns whether there
    /// are any.
    pub(crate) fn request(&self, pods: Vec<MeasureRequest>, most_age: Duration) -> bool {
        if self.period.is_zero() {
            return false;
        }
        let now = self.clock.now().mono;
        let measured = self.measured.lock();
        let is_old = |at: Mono| now.since(at) >= most_age;
        let due = pods.into_iter().filter(|request| {
            measured.get(&request.pod.uid).is_none_or(|disk| is_old(disk.at.mono))
        });
        let due: Vec<(PodUid, MeasureRequest)> =
            due.map(|request| (request.pod.uid.clone(), request)).collect();
        if due.is_empty() {
            return false;
        }
        self.pending.lock().extend(due);
        self.requested.notify_one();
        true
    }

    /// The last measurement of a pod.
    pub(crate) fn latest(&self, uid: &PodUid) -> Option<Arc<PodDisk>> {
        self.measured.lock().get(uid).cloned()
    }

    /// Drops the measurements of all other pods.
    pub(crate) fn keep(&self, is_kept: impl Fn(&PodUid) -> bool) {
        self.measured.lock().retain(|uid, _| is_kept(uid));
    }

    /// The maximum age of a measurement.
    pub(crate) fn period(&self) -> Duration {
        self.period
    }

    /// The usage of volumes with claims, each once, by the last measurements.
    pub(super) fn claims(&self) -> Vec<(ClaimReference, FsStats)> {
        let measured = self.measured.lock();
        let volumes = measured.values().flat_map(|disk| &disk.volumes);
        let claimed = volumes.filter_map(|volume| Some((volume.pvc_ref.clone()?, volume)));
        let each: BTreeMap<(String, String), &VolumeStats> =
            claimed.map(|(claim, volume)| ((claim.namespace, claim.name), volume)).collect();
        let claim = |((namespace, name), volume): ((String, String), &VolumeStats)| {
            (ClaimReference { name, namespace }, volume.fs.clone())
        };
        each.into_iter().map(claim).collect()
    }

    /// Measures scheduled pods one at a time, until stopped.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let work = async {
            loop {
                self.requested.notified().await;
                let due = std::mem::take(&mut *self.pending.lock());
                for request in due.into_values() {
                    self.measure(request).await;
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Walking blocks, on a dead network volume for ever, so it has its own thread, and the next pod
    /// does not wait for it for long.
    async fn measure(self: &Arc<Self>, request: MeasureRequest) {
        let pod_dir = self.volumes.pod_dir(&request.pod.uid);
        let (uid, at) = (request.pod.uid.clone(), self.clock.now());
        {
            let mut walking = self.walking.lock();
            if walking.len() >= MOST_WALKS || !walking.insert(uid.clone()) {
                return;
            }
        }
        let this = self.clone();
        let walk = tokio::spawn(async move {
            let walked = threads::blocking(move || walk(&pod_dir, &request, at)).await;
            this.walking.lock().remove(&uid);
            if let Ok(disk) = walked {
                this.measured.lock().insert(uid, Arc::new(disk));
            }
        });
        let _ = tokio::time::timeout(PATIENCE, walk).await;
    }
}

fn request(pod: &PodSnapshot) -> MeasureRequest {
    let logs = pod.containers.iter().filter_map(|container| {
        let log_dir = Path::new(container.log_path.as_ref()?).parent()?;
        Some((container.name.clone(), log_dir.to_owned()))
    });
    MeasureRequest { pod: pod.pod.clone(), logs: logs.collect() }
}

fn walk(pod_dir: &Path, request: &MeasureRequest, at: Now) -> PodDisk {
    let logs = request.logs.iter();
    let logs = logs.map(|(name, log_dir)| (name.clone(), disk_usage::files_in(log_dir)));
    let hosts = disk_usage::of(&pod_dir.join("etc-hosts")).unwrap_or_default();
    // Files beside the directories of the containers.
    let logs_dir = request.logs.first().and_then(|(_, log_dir)| log_dir.parent());
    let beside = logs_dir.and_then(|dir| disk_usage::files_in(dir).ok()).unwrap_or_default();
    let mut disk = PodDisk {
        at,
        logs: logs.map(|(name, used)| (name, used.unwrap_or_default())).collect(),
        volumes: Vec::new(),
        local: hosts + beside,
    };
    let spec = request.pod.object.spec.as_ref();
    for volume in spec.and_then(|spec| spec.volumes.as_ref()).into_iter().flatten() {
        let Some(volume_dir) = volume_path(pod_dir, volume) else { continue };
        let Some((fs, used)) = measure_volume(&volume_dir, volume, Moment(at.wall)) else {
            continue;
        };
        if is_local_and_ephemeral(volume) {
            disk.local = disk.local + used;
        }
        let pvc_ref = ClaimRef::of(&request.pod, volume).map(|claim| ClaimReference {
            name: claim.name,
            namespace: request.pod.name.namespace.to_string(),
        });
        disk.volumes.push(VolumeStats { fs, name: volume.name.clone(), pvc_ref });
    }
    disk
}

/// The directory of a volume, of any plugin.
fn volume_path(pod_dir: &Path, volume: &v1::Volume) -> Option<PathBuf> {
    // A host path does not belong to the pod.
    if volume.host_path.is_some() {
        return None;
    }
    let plugins = pod_dir.join("volumes").read_dir().ok()?;
    let dirs = plugins.flatten().map(|plugin| plugin.path().join(&volume.name));
    let dir = dirs.into_iter().find(|dir| dir.is_dir())?;
    // CSI drivers mount one level deeper.
    let mount = dir.join("mount");
    Some(if volume.empty_dir.is_none() && dir.join("vol_data.json").exists() { mount } else { dir })
}

/// A volume with its own file system is measured by that.
fn measure_volume(dir: &Path, volume: &v1::Volume, time: Moment) -> Option<(FsStats, Used)> {
    let disk = machine::disk(dir).ok()?;
    let own_filesystem = volume.persistent_volume_claim.is_some()
        || volume.ephemeral.is_some()
        || volume.csi.is_some();
    let used = if own_filesystem {
        let inodes = disk.inodes.saturating_sub(disk.inodes_free);
        Used { bytes: disk.used, inodes }
    } else {
        disk_usage::below(dir).ok()?
    };
    Some((fs_stats(&disk, time).part(time, used), used))
}

/// The usage of a whole file system.
pub(super) fn fs_stats(disk: &machine::Disk, time: Moment) -> FsStats {
    FsStats {
        time,
        available_bytes: Some(disk.available),
        capacity_bytes: Some(disk.capacity),
        used_bytes: Some(disk.used),
        inodes_free: Some(disk.inodes_free),
        inodes: Some(disk.inodes),
        inodes_used: Some(disk.inodes.saturating_sub(disk.inodes_free)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use podwright_core::builders::pod;

    use super::*;

    #[test]
    fn pod_usage_is_measured_by_its_directories() {
        let root = tempfile::tempdir().unwrap();
        let (pod_dir, logs) = (root.path().join("pod"), root.path().join("logs"));
        let data = pod_dir.join("volumes/kubernetes.io~empty-dir/data");
        let scratch = pod_dir.join("volumes/kubernetes.io~local-volume/scratch");
        for path in [&data, &scratch, &logs] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::fs::write(data.join("file"), vec![1; 8192]).unwrap();
        std::fs::write(logs.join("0.log"), "line").unwrap();
        std::fs::write(pod_dir.join("etc-hosts"), "hosts").unwrap();
        let mut object = (*pod("web").container("app").build().object).clone();
        let volumes = serde_json::json!([
            { "name": "data", "emptyDir": {} },
            { "name": "scratch", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } },
            { "name": "not-mounted", "emptyDir": {} },
            { "name": "node", "hostPath": { "path": "/" } },
        ]);
        object.spec.as_mut().unwrap().volumes = Some(serde_json::from_value(volumes).unwrap());
        let pod =
            podwright_core::pod::Pod::parse(object, podwright_core::pod::Source::Api).unwrap();
        let request = MeasureRequest { pod: Arc::new(pod), logs: vec![("app".into(), logs)] };
        let at = Now { wall: jiff::Timestamp::UNIX_EPOCH, mono: Mono::ZERO };
        let disk = walk(&pod_dir, &request, at);
        assert_eq!(disk.logs["app"].inodes, 1);
        let names: Vec<&str> = disk.volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["data", "scratch"]);
        let claims = disk.volumes.iter().map(|volume| Some(&*volume.pvc_ref.as_ref()?.name));
        assert_eq!(claims.collect::<Vec<_>>(), [None, Some("web-scratch")]);
        let used = disk.volumes[0].fs.used_bytes.unwrap();
        assert!(used >= 8192, "{used}");
        assert_eq!(disk.local.inodes, 3, "a directory, a file, and the hosts file");
    }
}
