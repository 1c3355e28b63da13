//! Resource usage of containers, pods and the node.
//!
//! Values are read from the kernel's counters on request and cached for a second: no thread watches
//! containers, and a node that is not scraped measures nothing. The size of directories is measured in
//! the background, see [`disks`]. The runtime is queried only for the size of writable layers and
//! images, and for containers without a cgroup on this machine because they are virtual machines.

mod disks;
mod sandbox_images;
mod summary;
mod usage;

pub use disks::DiskUsage;
pub(crate) use disks::{MeasureRequest, PodDisk};
pub use summary::WritableLayers;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podwright_api::qos::QosClass;
use podwright_core::cgroup::CgroupName;
use podwright_core::config::SwapBehaviour;
use podwright_core::ids::{ContainerId, PodName, PodUid, SandboxId};
use podwright_core::observed::{Instance, ObservedPod, State};
use podwright_core::pod::Pod;
use podwright_core::stats::usage::UsageSample;
use podwright_core::stats::{ClaimReference, Daemon, DaemonGroups, FsStats, Interface, rate};
use podwright_core::time::Mono;
use podwright_core::volume::claim::ClaimRef;
use podwright_host::cgroup::{Cgroups as Host, Detail, Usage};
use podwright_host::clock::Clock;
use podwright_host::machine::Machine;
use podwright_proto::cri;
use tokio::sync::Mutex;

use crate::node::Node;
use crate::pods::PodIndex;
use crate::resources::cgroups::Cgroups;
use crate::runtime::pleg::Pleg;
use sandbox_images::SandboxImages;

/// Scrapers often come in pairs; the second gets the same snapshot.
const SNAPSHOT_TTL: Duration = Duration::from_secs(1);
/// Minimum period of a rate, if there are enough readings.
const MIN_RATE_PERIOD: Duration = Duration::from_secs(5);

/// The components of the node that statistics are read from.
#[derive(Clone)]
pub struct StatsDependencies {
    pub runtime: podwright_cri::Client,
    pub pleg: Arc<Pleg>,
    pub pod_index: Arc<PodIndex>,
    pub clock: Clock,
    pub cgroups: Arc<Cgroups>,
    pub disks: Arc<DiskUsage>,
    pub node: MeasuredNode,
}

/// The facts of the node that its statistics show.
#[derive(Clone, Debug)]
pub struct MeasuredNode {
    pub name: Arc<str>,
    pub root_dir: PathBuf,
    pub swap: Option<SwapBehaviour>,
    pub agent_started: Timestamp,
}

pub struct Stats {
    dependencies: StatsDependencies,
    machine: Machine,
    disks: Arc<DiskUsage>,
    daemons: DaemonGroups,
    cache: Mutex<StatsCache>,
    samples: Mutex<Vec<UsageSample>>,
    sandbox_images: SandboxImages,
}

/// State between two snapshots.
#[derive(Default)]
struct StatsCache {
    last: Option<(Mono, Arc<Snapshot>)>,
    readings: HashMap<String, Readings>,
    /// The cgroup names of containers, which the runtime chooses.
    entries: HashMap<ContainerId, String>,
    /// A process in each sandbox's network namespace.
    processes: HashMap<SandboxId, u32>,
}

/// Two readings of a CPU time counter, some seconds apart.
#[derive(Clone, Copy)]
struct Readings {
    older: (u64, Mono),
    newer: (u64, Mono),
}

/// The usage of everything at one moment.
pub struct Snapshot {
    pub at: Timestamp,
    /// The same on the monotonic clock.
    pub read: Mono,
    pub node: CgroupUsage,
    /// The cgroup of all pods.
    pub all_pods: CgroupUsage,
    /// The cgroups of the QoS classes below it.
    pub classes: Vec<CgroupUsage>,
    /// The cgroups of the system daemons, each with its start time.
    pub daemons: Vec<(Daemon, Timestamp, CgroupUsage)>,
    pub pods: Vec<PodSnapshot>,
    /// Some values could not be read.
    pub incomplete: bool,
}

/// The usage of one cgroup.
#[derive(Clone, Debug, Default)]
pub struct CgroupUsage {
    /// Its path in the cgroup tree.
    pub path: String,
    /// The same for the cgroup reader; `None`: it has no cgroup on this machine.
    cgroup: Option<Location>,
    pub at: Timestamp,
    pub usage: Usage,
    pub nano_cores: Option<u64>,
}

/// A cgroup as the cgroup reader finds it.
#[derive(Clone, Debug)]
enum Location {
    Named(CgroupName),
    /// A child that the runtime named.
    Child(CgroupName, String),
    /// Not managed by the agent.
    Path(String),
}

pub struct PodSnapshot {
    pub pod: Arc<Pod>,
    pub started: Timestamp,
    pub group: CgroupUsage,
    pub sandbox: SandboxId,
    /// Empty for a pod in the host network.
    pub interfaces: Vec<Interface>,
    pub containers: Vec<ContainerSnapshot>,
}

pub struct ContainerSnapshot {
    pub name: Arc<str>,
    pub id: ContainerId,
    /// The reference in the pod spec, as upstream, not the digest.
    pub image: String,
    pub started: Timestamp,
    pub group: CgroupUsage,
    pub log_path: Option<String>,
}

impl PodSnapshot {
    pub fn name(&self) -> &PodName {
        &self.pod.name
    }

    pub fn uid(&self) -> &PodUid {
        &self.pod.uid
    }
}

impl Stats {
    pub fn new(node: &Node, daemons: DaemonGroups) -> Arc<Self> {
        let dependencies = node.stats_dependencies().clone();
        Arc::new(Self {
            disks: dependencies.disks.clone(),
            dependencies,
            machine: Machine::at("/"),
            daemons,
            cache: Mutex::default(),
            samples: Mutex::default(),
            sandbox_images: SandboxImages::default(),
        })
    }

    /// The current usage, at most a second old.
    pub async fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot_within(SNAPSHOT_TTL).await
    }

    /// The usage, younger than `age`.
    async fn snapshot_within(&self, age: Duration) -> Arc<Snapshot> {
        let mut cache = self.cache.lock().await;
        let now = self.dependencies.clock.now().mono;
        if let Some((at, snapshot)) = &cache.last
            && now.since(*at) < age
        {
            return snapshot.clone();
        }
        let snapshot = Arc::new(self.take(&mut cache).await);
        cache.last = Some((self.dependencies.clock.now().mono, snapshot.clone()));
        snapshot
    }

    /// Further counters of a cgroup.
    pub async fn detail(&self, group: &CgroupUsage) -> Detail {
        let host = self.dependencies.cgroups.host();
        let detail = match &group.cgroup {
            Some(Location::Named(name)) => host.detail(name, None).await,
            Some(Location::Child(name, entry)) => host.detail(name, Some(entry)).await,
            Some(Location::Path(path)) => host.detail_at(path).await,
            None => return Detail::default(),
        };
        detail.unwrap_or_else(|error| {
            // It may have been removed since the snapshot.
            tracing::debug!(%error, path = group.path, "cannot read cgroup");
            Detail::default()
        })
    }

    /// The cgroups of the sandboxes, which only `/metrics/cadvisor` shows.
    pub async fn sandboxes(&self, snapshot: &Snapshot) -> HashMap<SandboxId, CgroupUsage> {
        let host = self.dependencies.cgroups.host();
        let mut found = HashMap::new();
        for pod in &snapshot.pods {
            let Some(Location::Named(name)) = &pod.group.cgroup else { continue };
            let entry = find_entry(host, name, pod.sandbox.as_str()).await;
            let Some(entry) = entry else { continue };
            let at = self.dependencies.clock.now().wall;
            match host.usage_of_child(name, &entry).await {
                Ok(usage) => {
                    let path = format!("{}/{entry}", pod.group.path);
                    let cgroup = Some(Location::Child(name.clone(), entry));
                    let group = CgroupUsage { path, cgroup, at, usage, nano_cores: None };
                    found.insert(pod.sandbox.clone(), group);
                }
                Err(error) => tracing::debug!(%error, entry, "cannot read cgroup of a sandbox"),
            }
        }
        found
    }

    /// The images of sandboxes.
    pub async fn sandbox_images(&self, snapshot: &Snapshot) -> HashMap<SandboxId, String> {
        self.sandbox_images.of(snapshot, &self.dependencies.runtime).await
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The usage of volumes with claims, by the last measurements; old ones are scheduled again. Free if
    /// no pod has a claim.
    pub async fn claims(&self) -> Vec<(ClaimReference, FsStats)> {
        let has_claim = |pod: &Arc<Pod>| {
            let volumes = pod.object.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
            volumes.into_iter().flatten().any(|volume| ClaimRef::of(pod, volume).is_some())
        };
        if !self.dependencies.pod_index.pods().iter().any(has_claim) {
            return Vec::new();
        }
        self.disks.of(&*self.snapshot().await);
        self.disks.claims()
    }

    async fn take(&self, cache: &mut StatsCache) -> Snapshot {
        let mut builder =
            SnapshotBuilder { stats: self, cache, next: StatsCache::default(), incomplete: false };
        let node = builder.group(&CgroupName::ROOT).await;
        let all_pods = builder.group(self.dependencies.cgroups.tree().all()).await;
        let mut classes = Vec::new();
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            classes.push(builder.group(&self.dependencies.cgroups.tree().class(class)).await);
        }
        let mut daemons = Vec::new();
        for (daemon, path) in self.daemons.iter() {
            daemons.extend(builder.daemon(daemon, path).await);
        }
        let mut pods = Vec::new();
        for pod in self.dependencies.pod_index.pods() {
            if let Some(seen) = self.dependencies.pleg.cached(&pod.uid)
                && let Some(pod) = builder.pod(pod, &seen).await
            {
                pods.push(pod);
            }
        }
        if pods.iter().flat_map(|pod| &pod.containers).any(|c| c.group.usage.cpu_nanos.is_none()) {
            builder.query_runtime(&mut pods).await;
        }
        let SnapshotBuilder { next, incomplete, .. } = builder;
        *cache = next;
        let now = self.dependencies.clock.now();
        let (at, read) = (now.wall, now.mono);
        Snapshot { at, read, node, all_pods, classes, daemons, pods, incomplete }
    }
}

/// One snapshot being taken. State of cgroups that are gone is dropped.
struct SnapshotBuilder<'a> {
    stats: &'a Stats,
    cache: &'a mut StatsCache,
    next: StatsCache,
    incomplete: bool,
}

impl SnapshotBuilder<'_> {
    async fn group(&mut self, name: &CgroupName) -> CgroupUsage {
        let host = self.stats.dependencies.cgroups.host();
        let usage = host.usage(name).await;
        let path = host.path(name);
        self.read(path, Location::Named(name.clone()), usage)
    }

    /// `None`: the cgroup does not exist.
    async fn daemon(
        &mut self,
        daemon: Daemon,
        path: &str,
    ) -> Option<(Daemon, Timestamp, CgroupUsage)> {
        let host = self.stats.dependencies.cgroups.host();
        let made = host.made_at(path).await.ok().flatten()?;
        let usage = host.usage_at(path).await;
        let started = match daemon {
            Daemon::Kubelet => self.stats.dependencies.node.agent_started,
            Daemon::Runtime | Daemon::Misc => Timestamp::try_from(made).ok()?,
        };
        Some((daemon, started, self.read(path.to_owned(), Location::Path(path.to_owned()), usage)))
    }

    fn read(
        &mut self,
        path: String,
        cgroup: Location,
        usage: Result<Usage, podwright_host::cgroup::CgroupError>,
    ) -> CgroupUsage {
        let now = self.stats.dependencies.clock.now();
        let usage = usage.unwrap_or_else(|error| {
            tracing::debug!(%error, path, "cannot read cgroup");
            self.incomplete = true;
            Usage::default()
        });
        let nano_cores = usage.cpu_nanos.and_then(|nanos| self.rate(&path, nanos, now.mono));
        CgroupUsage { path, cgroup: Some(cgroup), at: now.wall, usage, nano_cores }
    }

    fn rate(&mut self, path: &str, nanos: u64, now: Mono) -> Option<u64> {
        let reading = (nanos, now);
        let Some(mut readings) = self.cache.readings.get(path).copied() else {
            let first = Readings { older: reading, newer: reading };
            self.next.readings.insert(path.to_owned(), first);
            return None;
        };
        let rate = rate(readings.older.0, nanos, now.since(readings.older.1));
        if now.since(readings.newer.1) >= MIN_RATE_PERIOD || rate.is_none() {
            readings = Readings { older: readings.newer, newer: reading };
        }
        self.next.readings.insert(path.to_owned(), readings);
        rate
    }

    /// `None`: the pod has no running sandbox.
    async fn pod(&mut self, pod: Arc<Pod>, seen: &ObservedPod) -> Option<PodSnapshot> {
        let sandbox = seen.ready_sandbox()?;
        let name = self.stats.dependencies.cgroups.name_of(&pod).ok()?;
        let group = self.group(&name).await;
        let mut containers = Vec::new();
        for instance in seen.running() {
            containers.push(self.container(&name, &group.path, instance).await);
        }
        containers.sort_by(|a, b| a.name.cmp(&b.name));
        let interfaces = match sandbox.host_network {
            Some(true) => Vec::new(),
            Some(false) | None if pod.host_network => Vec::new(),
            Some(false) | None => self.interfaces(&name, &sandbox.id).await,
        };
        Some(PodSnapshot {
            pod,
            started: sandbox.created,
            group,
            sandbox: sandbox.id.clone(),
            interfaces,
            containers,
        })
    }

    async fn container(
        &mut self,
        pod: &CgroupName,
        pod_path: &str,
        instance: &Instance,
    ) -> ContainerSnapshot {
        let entry = self.entry(pod, &instance.id).await;
        let group = match &entry {
            Some(entry) => {
                let usage = self.stats.dependencies.cgroups.host().usage_of_child(pod, entry).await;
                let cgroup = Location::Child(pod.clone(), entry.clone());
                self.read(format!("{pod_path}/{entry}"), cgroup, usage)
            }
            None => CgroupUsage {
                path: format!("{pod_path}/{}", instance.id),
                ..CgroupUsage::default()
            },
        };
        let started = match &instance.state {
            State::Running { started } => *started,
            State::Created | State::Exited(_) | State::Unknown => instance.created,
        };
        ContainerSnapshot {
            name: instance.container.clone(),
            id: instance.id.clone(),
            image: instance.image.clone(),
            started,
            group,
            log_path: instance.log_path.clone(),
        }
    }

    /// The child of the pod cgroup that the runtime created for a container or sandbox.
    async fn entry(&mut self, pod: &CgroupName, id: &ContainerId) -> Option<String> {
        let entry = match self.cache.entries.get(id) {
            Some(entry) => entry.clone(),
            None => find_entry(self.stats.dependencies.cgroups.host(), pod, id.as_str()).await?,
        };
        self.next.entries.insert(id.clone(), entry.clone());
        Some(entry)
    }

    async fn interfaces(&mut self, pod: &CgroupName, sandbox: &SandboxId) -> Vec<Interface> {
        let process = match self.cache.processes.get(sandbox) {
            Some(process) => Some(*process),
            None => self.process_in(pod, sandbox).await,
        };
        let Some(process) = process else { return Vec::new() };
        let Ok(interfaces) = self.stats.machine.interfaces(Some(process)) else {
            // The process exited; the next snapshot looks for another one.
            return Vec::new();
        };
        self.next.processes.insert(sandbox.clone(), process);
        interfaces
    }

    async fn process_in(&self, pod: &CgroupName, sandbox: &SandboxId) -> Option<u32> {
        let host = self.stats.dependencies.cgroups.host();
        let entry = find_entry(host, pod, sandbox.as_str()).await?;
        let pids = host.pids_of_child(pod, &entry).await.ok()?;
        pids.first().copied()
    }

    /// Fills in containers without a cgroup on this machine.
    async fn query_runtime(&mut self, pods: &mut [PodSnapshot]) {
        let stats = match self.stats.dependencies.runtime.container_stats().await {
            Ok(stats) => stats,
            Err(error) => {
                tracing::debug!(%error, "cannot get container stats from the runtime");
                self.incomplete = true;
                return;
            }
        };
        let by_id: HashMap<&str, &cri::ContainerStats> = stats
            .iter()
            .filter_map(|stats| Some((stats.attributes.as_ref()?.id.as_str(), stats)))
            .collect();
        for container in pods.iter_mut().flat_map(|pod| &mut pod.containers) {
            if container.group.usage.cpu_nanos.is_none()
                && let Some(reported) = by_id.get(container.id.as_str())
            {
                container.group =
                    reported_usage(std::mem::take(&mut container.group.path), reported);
            }
        }
    }
}

/// The child of the pod cgroup that the runtime created for a container or sandbox.
async fn find_entry(host: &Host, pod: &CgroupName, id: &str) -> Option<String> {
    match host.children(pod).await {
        // `<id>`, `cri-containerd-<id>.scope`, `crio-<id>.scope`
        Ok(entries) => entries.into_iter().find(|entry| entry.contains(id)),
        Err(error) => {
            tracing::debug!(%error, id, "cannot list the pod cgroup");
            None
        }
    }
}

/// A container's usage as reported by its runtime.
fn reported_usage(path: String, reported: &cri::ContainerStats) -> CgroupUsage {
    let value = |value: &Option<cri::UInt64Value>| value.as_ref().map(|value| value.value);
    let cpu = reported.cpu.unwrap_or_default();
    let at = Timestamp::from_nanosecond(cpu.timestamp.into()).unwrap_or_default();
    let memory = reported.memory.as_ref().map(|memory| {
        let working_set = value(&memory.working_set_bytes).unwrap_or_default();
        podwright_host::cgroup::MemoryUsage {
            usage: value(&memory.usage_bytes).unwrap_or(working_set),
            working_set,
            rss: value(&memory.rss_bytes).unwrap_or_default(),
            page_faults: value(&memory.page_faults).unwrap_or_default(),
            major_page_faults: value(&memory.major_page_faults).unwrap_or_default(),
            limit: value(&memory.available_bytes)
                .filter(|available| *available > 0)
                .map(|available| available.saturating_add(working_set)),
            swap: reported.swap.as_ref().and_then(|swap| value(&swap.swap_usage_bytes)),
        }
    });
    let usage =
        Usage { cpu_nanos: value(&cpu.usage_core_nano_seconds), memory, ..Usage::default() };
    CgroupUsage { path, cgroup: None, at, usage, nano_cores: value(&cpu.usage_nano_cores) }
}
