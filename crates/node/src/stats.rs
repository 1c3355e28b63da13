//! What containers, pods and the node use.
//!
//! Numbers come straight from the kernel's counters when somebody asks, and are good for a second:
//! no thread watches a container, and a node that nobody asks measures nothing. What the kernel
//! cannot say at once (how much a folder holds) is measured beside, see [`disks`]. The runtime is
//! asked only for what it alone knows: the size of writable layers and of images, and containers
//! that have no group on this machine because they are virtual machines.

mod disks;
mod summary;

pub use summary::Written;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::cgroup::CgroupName;
use podwright_core::ids::{ContainerId, PodName, PodUid, SandboxId};
use podwright_core::observed::{Instance, ObservedPod, State};
use podwright_core::pod::Pod;
use podwright_core::stats::{ClaimReference, Daemon, DaemonGroups, FsStats, Interface, rate};
use podwright_core::time::Mono;
use podwright_host::cgroup::{Detail, Usage};
use podwright_host::machine::Machine;
use podwright_proto::cri;
use tokio::sync::Mutex;

use crate::node::Node;
use crate::pods::Directory;
use crate::tools::Tools;
use disks::Disks;

/// Scrapers come in pairs; the second gets what the first got.
const GOOD_FOR: Duration = Duration::from_secs(1);
/// A rate is over at least so long, as far as there are readings.
const RATE_OVER: Duration = Duration::from_secs(5);

pub struct Stats {
    tools: Arc<Tools>,
    directory: Arc<Directory>,
    machine: Machine,
    disks: Arc<Disks>,
    daemons: DaemonGroups,
    notes: Mutex<Notes>,
}

/// What was known from one look to the next.
#[derive(Default)]
struct Notes {
    last: Option<(Mono, Arc<Snapshot>)>,
    readings: HashMap<String, Readings>,
    /// The names of containers' groups, which the runtime chose.
    entries: HashMap<ContainerId, String>,
    /// A process in each sandbox's network namespace.
    processes: HashMap<SandboxId, u32>,
}

/// Two readings of a counter of CPU time, some seconds apart.
#[derive(Clone, Copy)]
struct Readings {
    older: (u64, Mono),
    newer: (u64, Mono),
}

/// Everything at one moment.
pub struct Snapshot {
    pub at: Timestamp,
    pub node: Group,
    /// The group around all pods.
    pub all_pods: Group,
    /// The groups of the machine's own daemons, each with its start.
    pub daemons: Vec<(Daemon, Timestamp, Group)>,
    pub pods: Vec<PodSnapshot>,
    /// Not everything could be read.
    pub incomplete: bool,
}

/// What one group of processes uses.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Its place in the cgroup tree.
    pub path: String,
    /// The same, as the kernel's reader knows it; `None`: it has no group on this machine, or not
    /// one of ours.
    place: Option<(CgroupName, Option<String>)>,
    pub at: Timestamp,
    pub usage: Usage,
    pub nano_cores: Option<u64>,
}

pub struct PodSnapshot {
    pub pod: Arc<Pod>,
    pub started: Timestamp,
    pub group: Group,
    pub sandbox: SandboxId,
    /// None for a pod in the node's network.
    pub interfaces: Vec<Interface>,
    pub containers: Vec<ContainerSnapshot>,
}

pub struct ContainerSnapshot {
    pub name: Arc<str>,
    pub id: ContainerId,
    pub image: String,
    pub started: Timestamp,
    pub group: Group,
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
    /// `volume_period`: how old a measure of a volume may be.
    pub fn new(node: &Node, volume_period: Duration, daemons: DaemonGroups) -> Arc<Self> {
        let disks = Disks::new(node.tools.clone(), volume_period);
        Arc::new(Self {
            tools: node.tools.clone(),
            directory: node.directory.clone(),
            machine: Machine::at("/"),
            disks,
            daemons,
            notes: Mutex::default(),
        })
    }

    /// What everything uses now, or used less than a second ago.
    pub async fn snapshot(&self) -> Arc<Snapshot> {
        let mut notes = self.notes.lock().await;
        let now = self.tools.clock.now().mono;
        if let Some((at, snapshot)) = &notes.last
            && now.since(*at) < GOOD_FOR
        {
            return snapshot.clone();
        }
        let snapshot = Arc::new(self.take(&mut notes).await);
        notes.last = Some((self.tools.clock.now().mono, snapshot.clone()));
        snapshot
    }

    /// What else the kernel counts of a group.
    pub async fn detail(&self, group: &Group) -> Detail {
        let Some((name, entry)) = &group.place else { return Detail::default() };
        let detail = self.tools.cgroups.host().detail(name, entry.as_deref()).await;
        detail.unwrap_or_else(|error| {
            // It may have ended since the snapshot.
            tracing::debug!(%error, path = group.path, "cannot be measured");
            Detail::default()
        })
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// How full the volumes behind claims are, by the last measures; those that are old are taken
    /// again. Where no pod has a claim it costs nothing.
    pub async fn claims(&self) -> Vec<(ClaimReference, FsStats)> {
        let has_claim = |pod: &Arc<Pod>| {
            let volumes = pod.object.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
            volumes.into_iter().flatten().any(|volume| volume.persistent_volume_claim.is_some())
        };
        if !self.directory.pods().iter().any(has_claim) {
            return Vec::new();
        }
        self.disks.of(&*self.snapshot().await);
        self.disks.claims()
    }

    /// Measures what is asked for beside, until stopped.
    pub async fn measure_disks(&self, stop: tokio_util::sync::CancellationToken) {
        self.disks.clone().run(stop).await;
    }

    async fn take(&self, notes: &mut Notes) -> Snapshot {
        let mut look = Look { stats: self, notes, next: Notes::default(), incomplete: false };
        let node = look.group(&CgroupName::ROOT).await;
        let all_pods = look.group(self.tools.cgroups.tree().all()).await;
        let mut daemons = Vec::new();
        for (daemon, path) in self.daemons.iter() {
            daemons.extend(look.daemon(daemon, path).await);
        }
        let mut pods = Vec::new();
        for pod in self.directory.pods() {
            if let Some(seen) = self.tools.pleg.cached(&pod.uid)
                && let Some(pod) = look.pod(pod, &seen).await
            {
                pods.push(pod);
            }
        }
        if pods.iter().flat_map(|pod| &pod.containers).any(|c| c.group.usage.cpu_nanos.is_none()) {
            look.ask_the_runtime(&mut pods).await;
        }
        let Look { next, incomplete, .. } = look;
        *notes = next;
        Snapshot { at: self.tools.clock.now().wall, node, all_pods, daemons, pods, incomplete }
    }
}

/// One look at everything. What is no longer there is not noted for the next.
struct Look<'a> {
    stats: &'a Stats,
    notes: &'a mut Notes,
    next: Notes,
    incomplete: bool,
}

impl Look<'_> {
    async fn group(&mut self, name: &CgroupName) -> Group {
        let host = self.stats.tools.cgroups.host();
        let usage = host.usage(name).await;
        let path = host.path(name);
        self.read(path, Some((name.clone(), None)), usage)
    }

    /// `None`: nobody has made its group, or it is gone.
    async fn daemon(&mut self, daemon: Daemon, path: &str) -> Option<(Daemon, Timestamp, Group)> {
        let host = self.stats.tools.cgroups.host();
        let made = host.made_at(path).await.ok().flatten()?;
        let usage = host.usage_at(path).await;
        let started = match daemon {
            Daemon::Kubelet => self.stats.tools.started,
            Daemon::Runtime | Daemon::Misc => Timestamp::try_from(made).ok()?,
        };
        Some((daemon, started, self.read(path.to_owned(), None, usage)))
    }

    fn read(
        &mut self,
        path: String,
        place: Option<(CgroupName, Option<String>)>,
        usage: Result<Usage, podwright_host::cgroup::CgroupError>,
    ) -> Group {
        let now = self.stats.tools.clock.now();
        let usage = usage.unwrap_or_else(|error| {
            tracing::debug!(%error, path, "cannot be measured");
            self.incomplete = true;
            Usage::default()
        });
        let nano_cores = usage.cpu_nanos.and_then(|nanos| self.rate(&path, nanos, now.mono));
        Group { path, place, at: now.wall, usage, nano_cores }
    }

    fn rate(&mut self, path: &str, nanos: u64, now: Mono) -> Option<u64> {
        let reading = (nanos, now);
        let Some(mut readings) = self.notes.readings.get(path).copied() else {
            let first = Readings { older: reading, newer: reading };
            self.next.readings.insert(path.to_owned(), first);
            return None;
        };
        let rate = rate(readings.older.0, nanos, now.since(readings.older.1));
        if now.since(readings.newer.1) >= RATE_OVER || rate.is_none() {
            readings = Readings { older: readings.newer, newer: reading };
        }
        self.next.readings.insert(path.to_owned(), readings);
        rate
    }

    /// `None`: nothing of it runs.
    async fn pod(&mut self, pod: Arc<Pod>, seen: &ObservedPod) -> Option<PodSnapshot> {
        let sandbox = seen.ready_sandbox()?;
        let name = self.stats.tools.cgroups.name_of(&pod).ok()?;
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
                let usage = self.stats.tools.cgroups.host().usage_of_child(pod, entry).await;
                let place = (pod.clone(), Some(entry.clone()));
                self.read(format!("{pod_path}/{entry}"), Some(place), usage)
            }
            None => Group { path: format!("{pod_path}/{}", instance.id), ..Group::default() },
        };
        let started = match &instance.state {
            State::Running { started } => *started,
            State::Created | State::Exited(_) | State::Unknown => instance.created,
        };
        ContainerSnapshot {
            name: instance.container.clone(),
            id: instance.id.clone(),
            image: instance.image_ref.clone(),
            started,
            group,
            log_path: instance.log_path.clone(),
        }
    }

    /// The directory below the pod's that the runtime made for a container or sandbox.
    async fn entry(&mut self, pod: &CgroupName, id: &ContainerId) -> Option<String> {
        let entry = match self.notes.entries.get(id) {
            Some(entry) => entry.clone(),
            None => self.find_entry(pod, id.as_str()).await?,
        };
        self.next.entries.insert(id.clone(), entry.clone());
        Some(entry)
    }

    async fn find_entry(&self, pod: &CgroupName, id: &str) -> Option<String> {
        let host = self.stats.tools.cgroups.host();
        match host.children(pod).await {
            // `<id>`, `cri-containerd-<id>.scope`, `crio-<id>.scope`
            Ok(entries) => entries.into_iter().find(|entry| entry.contains(id)),
            Err(error) => {
                tracing::debug!(%error, id, "its group cannot be found");
                None
            }
        }
    }

    async fn interfaces(&mut self, pod: &CgroupName, sandbox: &SandboxId) -> Vec<Interface> {
        let process = match self.notes.processes.get(sandbox) {
            Some(process) => Some(*process),
            None => self.process_in(pod, sandbox).await,
        };
        let Some(process) = process else { return Vec::new() };
        let Ok(interfaces) = self.stats.machine.interfaces(Some(process)) else {
            // It ended; whether the sandbox has another is asked next time.
            return Vec::new();
        };
        self.next.processes.insert(sandbox.clone(), process);
        interfaces
    }

    async fn process_in(&self, pod: &CgroupName, sandbox: &SandboxId) -> Option<u32> {
        let entry = self.find_entry(pod, sandbox.as_str()).await?;
        let pids = self.stats.tools.cgroups.host().pids_of_child(pod, &entry).await.ok()?;
        pids.first().copied()
    }

    /// Fills in what has no group here.
    async fn ask_the_runtime(&mut self, pods: &mut [PodSnapshot]) {
        let stats = match self.stats.tools.runtime.container_stats().await {
            Ok(stats) => stats,
            Err(error) => {
                tracing::debug!(%error, "the runtime does not say what its containers use");
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
                && let Some(told) = by_id.get(container.id.as_str())
            {
                container.group = told_group(std::mem::take(&mut container.group.path), told);
            }
        }
    }
}

/// A container's use as its runtime tells it.
fn told_group(path: String, told: &cri::ContainerStats) -> Group {
    let value = |value: &Option<cri::UInt64Value>| value.as_ref().map(|value| value.value);
    let cpu = told.cpu.unwrap_or_default();
    let at = Timestamp::from_nanosecond(cpu.timestamp.into()).unwrap_or_default();
    let memory = told.memory.as_ref().map(|memory| {
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
            swap: told.swap.as_ref().and_then(|swap| value(&swap.swap_usage_bytes)),
        }
    });
    let usage =
        Usage { cpu_nanos: value(&cpu.usage_core_nano_seconds), memory, ..Usage::default() };
    Group { path, place: None, at, usage, nano_cores: value(&cpu.usage_nano_cores) }
}
