//! How much pods keep on the node's disk.
//!
//! Counting files takes as long as there are files, so nobody waits for it: a question is answered
//! with the last measure, and if that is missing or old, a task is told to measure. A node that
//! nobody asks walks no folder.

use std::collections::{BTreeMap, HashMap};
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
use podwright_host::{disk_usage, machine, threads};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{PodSnapshot, Snapshot};
use crate::tools::Tools;

pub(super) struct Disks {
    tools: Arc<Tools>,
    /// How old a measure may be; zero: nothing is measured.
    period: Duration,
    measured: Mutex<HashMap<PodUid, Arc<PodDisk>>>,
    /// Pods to measure, each with its containers' log folders.
    wanted: Mutex<Vec<Wanted>>,
    told: Notify,
}

struct Wanted {
    pod: Arc<podwright_core::pod::Pod>,
    logs: Vec<(Arc<str>, PathBuf)>,
}

/// What one pod keeps on disks.
#[derive(Debug)]
pub(super) struct PodDisk {
    at: Now,
    pub(super) logs: HashMap<Arc<str>, Used>,
    pub(super) volumes: Vec<VolumeStats>,
    /// The part of it that counts against the pod: local volumes and the hosts file.
    pub(super) local: Used,
}

impl PodDisk {
    pub(super) fn time(&self) -> Moment {
        Moment(self.at.wall)
    }
}

impl Disks {
    pub(super) fn new(tools: Arc<Tools>, period: Duration) -> Arc<Self> {
        Arc::new(Self {
            tools,
            period,
            measured: Mutex::default(),
            wanted: Mutex::default(),
            told: Notify::new(),
        })
    }

    /// The last measures; those that are missing or old are ordered.
    pub(super) fn of(&self, snapshot: &Snapshot) -> HashMap<PodUid, Arc<PodDisk>> {
        let now = self.tools.clock.now().mono;
        let mut measured = self.measured.lock();
        measured.retain(|uid, _| snapshot.pods.iter().any(|pod| pod.uid() == uid));
        let is_old = |at: Mono| now.since(at) >= self.period;
        let due: Vec<Wanted> = snapshot
            .pods
            .iter()
            .filter(|pod| measured.get(pod.uid()).is_none_or(|disk| is_old(disk.at.mono)))
            .map(wanted)
            .collect();
        if !due.is_empty() && !self.period.is_zero() {
            *self.wanted.lock() = due;
            self.told.notify_one();
        }
        measured.clone()
    }

    /// How full the volumes behind claims are, each once, by the last measures.
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

    /// Measures what is ordered, one pod at a time, until stopped.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let work = async {
            loop {
                self.told.notified().await;
                let due = std::mem::take(&mut *self.wanted.lock());
                for wanted in due {
                    self.measure(wanted).await;
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn measure(&self, wanted: Wanted) {
        let folder = self.tools.volumes.pod_dir(&wanted.pod.uid);
        let uid = wanted.pod.uid.clone();
        let at = self.tools.clock.now();
        // Walking blocks, and a dead network volume blocks for long: not on a thread of ours.
        let walked = threads::blocking(move || walk(&folder, &wanted, at)).await;
        if let Ok(disk) = walked {
            self.measured.lock().insert(uid, Arc::new(disk));
        }
    }
}

fn wanted(pod: &PodSnapshot) -> Wanted {
    let logs = pod.containers.iter().filter_map(|container| {
        let folder = Path::new(container.log_path.as_ref()?).parent()?;
        Some((container.name.clone(), folder.to_owned()))
    });
    Wanted { pod: pod.pod.clone(), logs: logs.collect() }
}

fn walk(folder: &Path, wanted: &Wanted, at: Now) -> PodDisk {
    let logs = wanted.logs.iter();
    let logs = logs.map(|(name, folder)| (name.clone(), disk_usage::files_in(folder)));
    let hosts = disk_usage::of(&folder.join("etc-hosts")).unwrap_or_default();
    let mut disk = PodDisk {
        at,
        logs: logs.map(|(name, used)| (name, used.unwrap_or_default())).collect(),
        volumes: Vec::new(),
        local: hosts,
    };
    let spec = wanted.pod.object.spec.as_ref();
    for volume in spec.and_then(|spec| spec.volumes.as_ref()).into_iter().flatten() {
        let Some(kept) = kept_at(folder, volume) else { continue };
        let Some((fs, used)) = measure_volume(&kept, volume, Moment(at.wall)) else { continue };
        if is_local_and_ephemeral(volume) {
            disk.local = disk.local + used;
        }
        let pvc_ref = volume.persistent_volume_claim.as_ref().map(|claim| ClaimReference {
            name: claim.claim_name.clone(),
            namespace: wanted.pod.name.namespace.to_string(),
        });
        disk.volumes.push(VolumeStats { fs, name: volume.name.clone(), pvc_ref });
    }
    disk
}

/// Where a volume was put, whatever put it there.
fn kept_at(folder: &Path, volume: &v1::Volume) -> Option<PathBuf> {
    // What lies elsewhere on the node is not the pod's.
    if volume.host_path.is_some() {
        return None;
    }
    let plugins = folder.join("volumes").read_dir().ok()?;
    let places = plugins.flatten().map(|plugin| plugin.path().join(&volume.name));
    let place = places.into_iter().find(|place| place.is_dir())?;
    // CSI drivers mount one level deeper.
    let mount = place.join("mount");
    Some(if volume.empty_dir.is_none() && place.join("vol_data.json").exists() {
        mount
    } else {
        place
    })
}

/// What others keep on a filesystem of their own is as full as that is.
fn measure_volume(place: &Path, volume: &v1::Volume, time: Moment) -> Option<(FsStats, Used)> {
    let disk = machine::disk(place).ok()?;
    let of_its_own = volume.persistent_volume_claim.is_some() || volume.csi.is_some();
    let used = if of_its_own {
        let inodes = disk.inodes.saturating_sub(disk.inodes_free);
        Used { bytes: disk.used, inodes }
    } else {
        disk_usage::below(place).ok()?
    };
    Some((fs_stats(&disk, time).part(time, used), used))
}

/// A whole filesystem.
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
    fn a_pod_is_measured_by_its_folders() {
        let root = tempfile::tempdir().unwrap();
        let (folder, logs) = (root.path().join("pod"), root.path().join("logs"));
        let data = folder.join("volumes/kubernetes.io~empty-dir/data");
        for path in [&data, &logs] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::fs::write(data.join("file"), vec![1; 8192]).unwrap();
        std::fs::write(logs.join("0.log"), "line").unwrap();
        std::fs::write(folder.join("etc-hosts"), "hosts").unwrap();
        let mut object = (*pod("web").container("app").build().object).clone();
        let volumes = serde_json::json!([
            { "name": "data", "emptyDir": {} },
            { "name": "not-mounted", "emptyDir": {} },
            { "name": "node", "hostPath": { "path": "/" } },
        ]);
        object.spec.as_mut().unwrap().volumes = Some(serde_json::from_value(volumes).unwrap());
        let pod =
            podwright_core::pod::Pod::parse(object, podwright_core::pod::Source::Api).unwrap();
        let wanted = Wanted { pod: Arc::new(pod), logs: vec![("app".into(), logs)] };
        let at = Now { wall: jiff::Timestamp::UNIX_EPOCH, mono: Mono::ZERO };
        let disk = walk(&folder, &wanted, at);
        assert_eq!(disk.logs["app"].inodes, 1);
        let names: Vec<&str> = disk.volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["data"]);
        let used = disk.volumes[0].fs.used_bytes.unwrap();
        assert!(used >= 8192, "{used}");
        assert_eq!(disk.local.inodes, 3, "a folder, a file, and the hosts file");
    }
}
