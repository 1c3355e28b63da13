//! `/stats/summary`, from a snapshot and the runtime's disk usage.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::config::SwapBehaviour;
use podwright_core::stats::{
    ContainerStats, CpuStats, FsStats, IoStats, MemoryStats, Moment, NodeStats, PodReference,
    PodStats, ProcessStats, Psi, PsiData, RlimitStats, RuntimeStats, Summary, SwapStats, Used,
    network,
};
use podwright_host::cgroup::{Pressure, Stall};
use podwright_host::machine;
use podwright_proto::cri;

use super::disks::{PodDisk, fs_stats};
use super::{CgroupUsage, PodSnapshot, Snapshot, Stats};

/// Timeout of the runtime for a page.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(2);

/// Disk usage from the runtime.
#[derive(Default)]
struct Layers {
    image_fs: Option<FsStats>,
    container_fs: Option<FsStats>,
    by_container: HashMap<String, (Moment, Used)>,
}

/// Sizes of the writable layers of containers.
#[derive(Default)]
pub struct WritableLayers {
    /// The directory of the layers.
    pub layers_dir: Option<PathBuf>,
    /// Bytes, by container ID.
    pub by_container: HashMap<String, u64>,
}

impl Stats {
    pub async fn summary(&self) -> Summary {
        let snapshot = self.snapshot().await;
        let layers = self.layers().await;
        let disks = self.disks.of(&snapshot);
        let pods = snapshot.pods.iter();
        let swap = self.swap_of_containers();
        let pods =
            pods.map(|pod| pod_stats(pod, &layers, disks.get(pod.uid()).map(|d| &**d), swap));
        let pods = pods.collect();
        Summary { node: self.node_stats(&snapshot, layers), pods }
    }

    /// The swap limit of a container: zero, unless the node allows swap.
    pub fn swap_of_containers(&self) -> Option<u64> {
        match self.dependencies.node.swap {
            Some(SwapBehaviour::NoSwap) | None => Some(0),
            Some(SwapBehaviour::LimitedSwap) => None,
        }
    }

    fn node_stats(&self, snapshot: &Snapshot, layers: Layers) -> NodeStats {
        let now = Moment(snapshot.at);
        let capacity = self.machine.capacity().ok();
        let memory = capacity.as_ref().map(|capacity| capacity.memory);
        let swap = capacity.as_ref().map(|capacity| capacity.swap);
        let rlimit = self.machine.tasks().ok().map(|tasks| RlimitStats {
            time: now,
            maxpid: tasks.pid_max.min(tasks.threads_max),
            curproc: tasks.current,
        });
        let interfaces = self.machine.interfaces(None).unwrap_or_default();
        let root_dir = &self.dependencies.node.root_dir;
        let fs = machine::disk(root_dir).ok();
        let node = &snapshot.node;
        // The root group of cgroup v2 does not count swap.
        let counted = node.usage.memory.as_ref().and_then(|memory| memory.swap);
        let swapped = counted.or_else(|| self.machine.swap_in_use().ok());
        let started = self.machine.boot_time().unwrap_or(self.dependencies.node.agent_started);
        let daemons = snapshot.daemons.iter();
        let daemons = daemons.map(|(daemon, started, group)| (daemon.as_str(), *started, group));
        let pods = ("pods", self.dependencies.node.agent_started, &snapshot.all_pods);
        let system_containers = daemons.chain([pods]).map(system_container).collect();
        NodeStats {
            node_name: self.dependencies.node.name.to_string(),
            system_containers,
            start_time: Moment(started),
            cpu: cpu(node),
            memory: memory_stats(node, memory),
            io: Some(io(node)),
            network: network(now, &interfaces),
            fs: fs.map(|disk| fs_stats(&disk, now)),
            runtime: Some(RuntimeStats {
                container_fs: layers.container_fs.or_else(|| layers.image_fs.clone()),
                image_fs: layers.image_fs,
            }),
            rlimit,
            swap: swapped.map(|used| swap_use(node, used, swap)),
        }
    }

    /// From the runtime, with a timeout so that it does not block the rest of the page.
    pub async fn written(&self) -> WritableLayers {
        let runtime = &self.dependencies.runtime;
        let queries = async { tokio::join!(runtime.container_stats(), runtime.image_directory()) };
        let Ok((stats, layers_dir)) = tokio::time::timeout(RUNTIME_TIMEOUT, queries).await else {
            tracing::debug!("timed out waiting for container stats from the runtime");
            return WritableLayers::default();
        };
        let size = |stats: cri::ContainerStats| {
            let bytes = used(&stats.writable_layer?).bytes;
            Some((stats.attributes?.id, bytes))
        };
        let by_container = stats.unwrap_or_default().into_iter().filter_map(size).collect();
        WritableLayers { layers_dir: layers_dir.ok(), by_container }
    }

    /// The sizes of images and writable layers, from the runtime.
    async fn layers(&self) -> Layers {
        let runtime = &self.dependencies.runtime;
        let (stats, filesystems) = tokio::join!(runtime.container_stats(), runtime.image_fs_info());
        let mut layers = Layers::default();
        match filesystems {
            Ok(usage) => {
                layers.image_fs = usage.image_filesystems.first().and_then(reported_fs);
                layers.container_fs = usage.container_filesystems.first().and_then(reported_fs);
            }
            Err(error) => tracing::debug!(%error, "cannot get image file system info"),
        }
        match stats {
            Ok(stats) => {
                let layer = |stats: cri::ContainerStats| {
                    let (layer, attributes) = (stats.writable_layer?, stats.attributes?);
                    Some((attributes.id, (time(layer.timestamp), used(&layer))))
                };
                layers.by_container = stats.into_iter().filter_map(layer).collect();
            }
            Err(error) => tracing::debug!(%error, "cannot get container stats from the runtime"),
        }
        layers
    }
}

/// A cgroup without disk usage.
fn system_container((name, started, group): (&str, Timestamp, &CgroupUsage)) -> ContainerStats {
    ContainerStats {
        name: name.into(),
        start_time: Moment(started),
        cpu: cpu(group),
        memory: memory_stats(group, None),
        io: Some(io(group)),
        rootfs: None,
        logs: None,
        swap: swap_stats(group, None),
    }
}

fn pod_stats(
    pod: &PodSnapshot,
    layers: &Layers,
    disk: Option<&PodDisk>,
    swap: Option<u64>,
) -> PodStats {
    let container_fs = layers.container_fs.as_ref().or(layers.image_fs.as_ref());
    let containers = pod.containers.iter().map(|container| {
        let group = &container.group;
        let layer = layers.by_container.get(container.id.as_str());
        let logs = disk.and_then(|disk| Some((disk.time(), disk.logs(&container.name)?)));
        let part = |(time, used): (Moment, Used)| Some(container_fs?.part(time, used));
        ContainerStats {
            name: container.name.to_string(),
            start_time: Moment(container.started),
            cpu: cpu(group),
            memory: memory_stats(group, None),
            io: Some(io(group)),
            rootfs: layer.copied().and_then(part),
            logs: logs.and_then(part),
            swap: swap_stats(group, swap),
        }
    });
    let containers: Vec<ContainerStats> = containers.collect();
    let (name, group) = (pod.name(), &pod.group);
    PodStats {
        pod_ref: PodReference {
            name: name.name.to_string(),
            namespace: name.namespace.to_string(),
            uid: pod.uid().to_string(),
        },
        start_time: Moment(pod.started),
        cpu: cpu(group),
        memory: memory_stats(group, None),
        io: Some(io(group)),
        network: network(Moment(group.at), &pod.interfaces),
        volume: disk.map(|disk| disk.volumes.clone()).unwrap_or_default(),
        ephemeral_storage: container_fs.map(|fs| ephemeral(fs, &containers, disk)),
        process_stats: processes(pod),
        swap: swap_stats(group, None),
        containers,
    }
}

/// The number of processes in the pod's containers, without threads and without the sandbox.
fn processes(pod: &PodSnapshot) -> Option<ProcessStats> {
    let of_containers = pod.containers.iter().map(|container| container.group.usage.processes);
    let process_count = of_containers.flatten().reduce(u64::saturating_add)?;
    Some(ProcessStats { process_count })
}

/// The ephemeral storage of a pod.
fn ephemeral(fs: &FsStats, containers: &[ContainerStats], disk: Option<&PodDisk>) -> FsStats {
    let parts = containers.iter().flat_map(|container| [&container.rootfs, &container.logs]);
    let used = |fs: &FsStats| Used {
        bytes: fs.used_bytes.unwrap_or_default(),
        inodes: fs.inodes_used.unwrap_or_default(),
    };
    let own: Used = parts.flatten().map(used).sum();
    let newest = containers.iter().filter_map(|container| Some(container.rootfs.as_ref()?.time));
    let time = newest.chain(disk.map(PodDisk::time)).max().unwrap_or(fs.time);
    fs.part(time, own + disk.map(|disk| disk.local).unwrap_or_default())
}

fn cpu(group: &CgroupUsage) -> Option<CpuStats> {
    let nanos = group.usage.cpu_nanos?;
    Some(CpuStats {
        time: Moment(group.at),
        usage_nano_cores: group.nano_cores,
        usage_core_nano_seconds: Some(nanos),
        psi: psi(group.usage.cpu_pressure.as_ref()),
    })
}

/// `most`: the total, for a cgroup without a limit.
fn memory_stats(group: &CgroupUsage, most: Option<u64>) -> Option<MemoryStats> {
    let memory = group.usage.memory.as_ref()?;
    let limit = most.or(memory.limit);
    Some(MemoryStats {
        time: Moment(group.at),
        available_bytes: limit.map(|limit| limit.saturating_sub(memory.working_set)),
        usage_bytes: Some(memory.usage),
        working_set_bytes: Some(memory.working_set),
        rss_bytes: Some(memory.rss),
        page_faults: Some(memory.page_faults),
        major_page_faults: Some(memory.major_page_faults),
        psi: psi(group.usage.memory_pressure.as_ref()),
    })
}

fn io(group: &CgroupUsage) -> IoStats {
    IoStats { time: Moment(group.at), psi: psi(group.usage.io_pressure.as_ref()) }
}

fn swap_stats(group: &CgroupUsage, total: Option<u64>) -> Option<SwapStats> {
    let memory = group.usage.memory.as_ref()?;
    Some(swap_use(group, memory.swap.unwrap_or_default(), total))
}

fn swap_use(group: &CgroupUsage, used: u64, total: Option<u64>) -> SwapStats {
    SwapStats {
        time: Moment(group.at),
        swap_available_bytes: total.map(|total| total.saturating_sub(used)),
        swap_usage_bytes: Some(used),
    }
}

/// Zero if the kernel does not support PSI.
fn psi(pressure: Option<&Pressure>) -> Psi {
    let data = |stall: &Stall| PsiData {
        total: stall.total_micros,
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
    };
    pressure.map_or_else(Psi::default, |pressure| Psi {
        full: data(&pressure.full),
        some: data(&pressure.some),
    })
}

/// A file system of the runtime: the runtime's usage, and the kernel's totals.
fn reported_fs(usage: &cri::FilesystemUsage) -> Option<FsStats> {
    let disk = machine::disk(usage.fs_id.as_ref()?.mountpoint.as_ref()).ok()?;
    let time = time(usage.timestamp);
    Some(fs_stats(&disk, time).part(time, used(usage)))
}

fn used(usage: &cri::FilesystemUsage) -> Used {
    Used {
        bytes: usage.used_bytes.as_ref().map_or(0, |value| value.value),
        inodes: usage.inodes_used.as_ref().map_or(0, |value| value.value),
    }
}

fn time(nanos: i64) -> Moment {
    Moment(Timestamp::from_nanosecond(nanos.into()).unwrap_or_default())
}
