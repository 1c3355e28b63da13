//! What pods use, as far as an eviction needs it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::eviction::{
    ContainerUsage, DiskUsage as PodDiskUsage, PodUsage, PodUsed, Resource, VolumeUsage,
};
use podwright_core::pod::Pod;
use podwright_core::stats::Used;
use tokio::time::timeout;

use super::EvictionManager;
use crate::telemetry::stats::{MeasureRequest, PodDisk};

/// How long the runtime may take for the sizes of writable layers.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sizes of writable layers by container id.
type Layers = HashMap<String, Used>;

impl EvictionManager {
    /// All active pods, with what they use of a resource.
    pub(super) async fn usage(&self, resource: Resource) -> Vec<PodUsage> {
        let pods = self.dependencies.pod_index.active_pods();
        let layers = match resource {
            Resource::EphemeralStorage | Resource::Inodes => self.layers().await,
            Resource::Memory | Resource::Pids => Layers::new(),
        };
        let mut all = Vec::with_capacity(pods.len());
        for pod in pods {
            let used = match resource {
                Resource::Memory => self.memory(&pod).await,
                Resource::Pids => self.processes(&pod).await,
                Resource::EphemeralStorage | Resource::Inodes => self.disk(&pod, &layers),
            };
            all.push(PodUsage { pod, used });
        }
        all
    }

    /// All active pods with everything that is known about them now.
    pub(super) async fn all_usage(&self) -> Vec<PodUsage> {
        let layers = self.layers().await;
        let mut all = Vec::new();
        for pod in self.dependencies.pod_index.active_pods() {
            let (memory, processes) = (self.memory(&pod).await, self.processes(&pod).await);
            let disk = self.disk(&pod, &layers);
            let is_measured = memory.is_some() || processes.is_some() || disk.is_some();
            let used = is_measured.then(|| PodUsed {
                memory: memory.and_then(|used| used.memory),
                processes: processes.and_then(|used| used.processes),
                ..disk.unwrap_or_default()
            });
            all.push(PodUsage { pod, used });
        }
        all
    }

    /// The pods that have limits of local storage, with what they use.
    pub(super) async fn usage_of_limited(&self, pods: Vec<Arc<Pod>>) -> Vec<PodUsage> {
        let layers = self.layers().await;
        let usage = |pod: Arc<Pod>| {
            let used = self.disk(&pod, &layers);
            PodUsage { pod, used }
        };
        pods.into_iter().map(usage).collect()
    }

    /// Adds the memory of its containers to a victim, for its message.
    pub(super) async fn add_container_memory(&self, victim: &mut PodUsage) {
        let Some(used) = &mut victim.used else { return };
        let host = self.dependencies.cgroups.host();
        let Ok(name) = self.dependencies.cgroups.name_of(&victim.pod) else { return };
        for (container, entry) in self.entries(&victim.pod).await {
            let memory = host.memory_of_child(&name, &entry).await.ok().flatten();
            let memory = memory.map(|memory| memory.working_set);
            used.containers.push(ContainerUsage {
                name: container,
                memory,
                ..ContainerUsage::default()
            });
        }
    }

    async fn memory(&self, pod: &Pod) -> Option<PodUsed> {
        let name = self.dependencies.cgroups.name_of(pod).ok()?;
        match self.dependencies.cgroups.host().memory(&name).await {
            Ok(memory) => Some(PodUsed { memory: Some(memory?.working_set), ..PodUsed::default() }),
            Err(error) => {
                tracing::debug!(%error, pod = %pod.name, "cannot read the memory of a pod");
                None
            }
        }
    }

    async fn processes(&self, pod: &Pod) -> Option<PodUsed> {
        let host = self.dependencies.cgroups.host();
        let name = self.dependencies.cgroups.name_of(pod).ok()?;
        let mut processes = None;
        for (_, entry) in self.entries(pod).await {
            let counted = host.usage_of_child(&name, &entry).await.ok().and_then(|u| u.processes);
            processes =
                counted.map(|more| more.saturating_add(processes.unwrap_or(0))).or(processes);
        }
        Some(PodUsed { processes: Some(processes?), ..PodUsed::default() })
    }

    /// The running containers of a pod, with the directories of their cgroups in the pod's.
    async fn entries(&self, pod: &Pod) -> Vec<(Arc<str>, String)> {
        let host = self.dependencies.cgroups.host();
        let Some(seen) = self.dependencies.pleg.cached(&pod.uid) else { return Vec::new() };
        let Ok(name) = self.dependencies.cgroups.name_of(pod) else { return Vec::new() };
        let Ok(children) = host.children(&name).await else { return Vec::new() };
        let entry = |id: &str| children.iter().find(|child| child.contains(id)).cloned();
        let running = seen.running();
        running.filter_map(|c| Some((c.container.clone(), entry(c.id.as_str())?))).collect()
    }

    /// From the runtime, as far as it responds.
    async fn layers(&self) -> Layers {
        let stats = timeout(PATIENCE, self.dependencies.runtime.container_stats()).await;
        let stats = match stats {
            Ok(Ok(stats)) => stats,
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot get container stats from the runtime");
                return Layers::new();
            }
            Err(_) => {
                tracing::debug!("timed out waiting for container stats from the runtime");
                return Layers::new();
            }
        };
        let layer = |stats: podwright_proto::cri::ContainerStats| {
            let (layer, attributes) = (stats.writable_layer?, stats.attributes?);
            let used = Used {
                bytes: layer.used_bytes.map_or(0, |value| value.value),
                inodes: layer.inodes_used.map_or(0, |value| value.value),
            };
            Some((attributes.id, used))
        };
        stats.into_iter().filter_map(layer).collect()
    }

    /// `None`: it has not started, or nothing of it was measured.
    fn disk(&self, pod: &Pod, layers: &Layers) -> Option<PodUsed> {
        let seen = self.dependencies.pleg.cached(&pod.uid)?;
        seen.ready_sandbox()?;
        let measured = self.dependencies.disks.latest(&pod.uid);
        let logs = |name: &Arc<str>| measured.as_ref().and_then(|disk| disk.logs(name));
        let containers = seen.running().map(|instance| ContainerUsage {
            name: instance.container.clone(),
            memory: None,
            layer: layers.get(instance.id.as_str()).copied(),
            logs: logs(&instance.container),
        });
        let containers = containers.collect();
        let disk = measured.as_deref().map(disk_usage);
        Some(PodUsed { containers, disk, ..PodUsed::default() })
    }

    /// Schedules the measurement of pods whose disk usage is older than this, and returns whether
    /// any was.
    pub(super) fn measure(&self, pods: &[Arc<Pod>], most_age: Duration) -> bool {
        let requests = pods.iter().filter_map(|pod| {
            let seen = self.dependencies.pleg.cached(&pod.uid)?;
            seen.ready_sandbox()?;
            let logs = seen.running().filter_map(|instance| {
                let directory = Path::new(instance.log_path.as_ref()?).parent()?;
                Some((instance.container.clone(), directory.to_owned()))
            });
            Some(MeasureRequest { pod: pod.clone(), logs: logs.collect() })
        });
        self.dependencies.disks.request(requests.collect(), most_age)
    }
}

fn disk_usage(disk: &PodDisk) -> PodDiskUsage {
    let volumes = disk.volumes.iter().map(|volume| VolumeUsage {
        name: volume.name.clone(),
        used: Used {
            bytes: volume.fs.used_bytes.unwrap_or_default(),
            inodes: volume.fs.inodes_used.unwrap_or_default(),
        },
    });
    PodDiskUsage { volumes: volumes.collect(), local: disk.local }
}
