//! Construction of the components: what each is built from.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use podwright_core::gc::ContainerPolicy;
use podwright_core::log::RotationPolicy;
use podwright_core::node_status::{Pressure, Settings};
use podwright_core::status::NodeAddresses;
use podwright_core::status::manager::PodLeftovers;
use podwright_cri as cri;
use podwright_host::cgroup::Cgroups as HostCgroups;
use podwright_host::checkpoint::{Checkpoint, IncrementalCheckpoint};
use podwright_host::clock::Clock;
use podwright_host::files::Root;
use tokio::sync::{mpsc, watch};

use super::{Config, Presence, StartError};
use crate::eviction::{EvictionDependencies, EvictionManager, EvictionSettings};
use crate::pods::admission::{self, Admission, AdmissionSettings};
use crate::pods::allocations::Allocations;
use crate::pods::shutdown::{ShutdownDependencies, ShutdownManager, ShutdownSettings};
use crate::pods::{NodeCapacity, PodIndex, PodManagerDependencies};
use crate::report::Reporting;
use crate::report::events::{Occurrence, Recorder};
use crate::report::heartbeat::own_node::OwnNode;
use crate::report::heartbeat::{Heartbeat, LeaseRenewer, StatusObserver};
use crate::report::status::{Leftovers, StatusManager};
use crate::resources::NodeResources;
use crate::resources::cgroups::Cgroups;
use crate::resources::cgroups::node_limits::{self, LimitEvents};
use crate::resources::objects::Objects;
use crate::resources::users::Users;
use crate::resources::volumes::Volumes;
use crate::runtime::RuntimeAccess;
use crate::runtime::gc::{Gc, GcDependencies, LogLocations};
use crate::runtime::images::{ApiAccounts, ImageDependencies, Images};
use crate::runtime::logs::rotation::Rotation;
use crate::runtime::logs::{LogDirs, Logs};
use crate::runtime::pleg::Pleg;
use crate::runtime::state::NodeState;
use crate::server::debug_socket::{
    CaseSources, DebugSocketDependencies, EvidenceSources, LocalServer,
};
use crate::server::{ServerDependencies, StreamingDependencies};
use crate::sources::adoption::Adoption;
use crate::sources::problems::ManifestProblems;
use crate::telemetry::metrics::{Metrics, RequestMetrics, RuntimeMetrics};
use crate::telemetry::stats::{DiskUsage, MeasuredNode, StatsDependencies};
use crate::worker::context::{WorkerContext, WorkerSettings};
use crate::worker::probes::ProbeContext;
use crate::worker::start_limiter::StartLimiter;

/// The pod directories are not readable for other users.
const ROOT_DIR_MODE: u32 = 0o750;

pub(super) fn metrics(reports_cgroup_driver: bool, requests: Arc<RequestMetrics>) -> Arc<Metrics> {
    let runtime = RuntimeMetrics::of(reports_cgroup_driver);
    Arc::new(Metrics { runtime, requests, ..Metrics::default() })
}

/// The runtime with counted calls, and its observed state.
pub(super) fn runtime(
    client: cri::Client,
    clock: Clock,
    metrics: &Arc<Metrics>,
    keeps: ContainerPolicy,
) -> RuntimeAccess {
    let counted = metrics.clone();
    let client = client.metered(Arc::new(move |op, took, ok| counted.runtime.called(op, took, ok)));
    let pleg = Pleg::new(client.clone(), clock.clone(), metrics.clone(), keeps);
    RuntimeAccess { client, pleg, clock }
}

pub(super) fn resources(
    config: &Config,
    cgroups: HostCgroups,
    clock: &Clock,
    api: Option<kube::Client>,
) -> Result<NodeResources, StartError> {
    let objects = Objects::new(api, config.node_name.clone());
    let users = Arc::new(Users::new(config.user_range));
    let allocatable = config.facts.allocatable.clone();
    let (of_pods, clock) = (objects.clone(), clock.clone());
    let volumes = Volumes::new(&config.root_dir, users.clone(), of_pods, allocatable, clock)?
        .resync_every(config.resync);
    let host_cgroups = Cgroups::new(cgroups, config.pod_tree.clone(), config.pod_policy)
        .reserving(config.memory_reserve);
    Ok(NodeResources {
        cgroups: Arc::new(host_cgroups),
        volumes: Arc::new(volumes),
        objects,
        users,
        allocations: Allocations::open(&config.root_dir)?,
    })
}

/// The recorder of Events with the queue that it fills, and the status manager.
pub(super) fn reporting(
    pod_index: &Arc<PodIndex>,
    volumes: &Arc<Volumes>,
    clock: &Clock,
    metrics: Arc<Metrics>,
    runtime_name: String,
) -> (Reporting, mpsc::Receiver<Occurrence>) {
    let (events, occurrences) = Recorder::new(clock.clone());
    let status = StatusManager::new(
        pod_index.clone(),
        leftovers(pod_index, volumes),
        runtime_name,
        clock.clone(),
        metrics.clone(),
    );
    (Reporting { events, status, metrics }, occurrences)
}

/// What a pod still has on this node, for the status manager.
fn leftovers(pod_index: &Arc<PodIndex>, volumes: &Arc<Volumes>) -> Leftovers {
    let (pod_index, volumes) = (pod_index.clone(), volumes.clone());
    Arc::new(move |uid| {
        let finished = pod_index.cleanup_policy(uid, |policy| policy.is_finished());
        PodLeftovers {
            containers: pod_index.cleanup_policy(uid, |s| s.could_have_running_containers()),
            volumes: volumes.has_volumes(uid),
            // The cgroup is destroyed right before a pod is finished.
            cgroup: !finished,
        }
    })
}

/// Creates the cgroups of pods and limits the reserved ones.
pub(super) async fn node_limits(
    config: &Config,
    cgroups: &Cgroups,
    events: &Recorder,
) -> Result<LimitEvents, StartError> {
    let events = LimitEvents { events: events.clone(), node: config.node_name.clone() };
    node_limits::create(cgroups, &config.all_pods, &config.reserved, &events).await?;
    Ok(events)
}

/// The state of the node that admission follows.
pub(super) struct AdmissionInputs {
    pub own_node: watch::Receiver<OwnNode>,
    pub state: watch::Receiver<NodeState>,
    pub shutting_down: watch::Receiver<bool>,
    pub pressure: watch::Receiver<Pressure>,
}

/// Admission with its earlier decisions.
pub(super) fn admission(
    config: &Config,
    identity: Arc<Settings>,
    inputs: AdmissionInputs,
) -> Result<Arc<Admission>, StartError> {
    let settings = AdmissionSettings {
        identity,
        allocatable: config.facts.allocatable.clone(),
        sysctls: Arc::new(config.sysctls.clone()),
        apparmor: config.apparmor,
        joined: config.presence.is_some(),
    };
    let root = Root::create(&config.root_dir, ROOT_DIR_MODE)?;
    let checkpoint = Checkpoint::new(root, admission::FILE, admission::VERSION);
    let checkpoint = IncrementalCheckpoint::new(checkpoint)?;
    let AdmissionInputs { own_node, state, shutting_down, pressure } = inputs;
    let admission = Admission::new(settings, checkpoint, own_node, state, shutting_down);
    Ok(Arc::new(admission.under(pressure)))
}

/// The image manager, after it completed the records of interrupted pulls.
pub(super) async fn images(
    config: &Config,
    runtime: &RuntimeAccess,
    objects: &Arc<Objects>,
    reporting: &Reporting,
    api: Option<kube::Client>,
) -> Result<Arc<Images>, StartError> {
    let dependencies = ImageDependencies {
        runtime: runtime.client.clone(),
        clock: runtime.clock.clone(),
        events: reporting.events.clone(),
        metrics: reporting.metrics.clone(),
        secrets: Arc::new(objects.clone()),
        accounts: Arc::new(ApiAccounts(api)),
    };
    let images = Images::new(&config.root_dir, config.images.clone(), dependencies)?;
    images.settle().await;
    Ok(images)
}

/// The settings of pod workers. `started`: when this process began.
pub(super) fn worker_settings(
    config: &Config,
    runtime_name: String,
    started: Timestamp,
) -> WorkerSettings {
    WorkerSettings {
        log_links_dir: config.log_links_dir.clone(),
        crash_backoff: config.crash_backoff,
        features: config.features,
        resync: config.resync,
        runtime_name,
        agent_started: started,
    }
}

/// What changes while the node runs.
pub(super) struct NodeStates {
    pub(super) runtime: watch::Receiver<NodeState>,
    pub(super) shutting_down: watch::Receiver<bool>,
    pub(super) addresses: watch::Receiver<NodeAddresses>,
}

pub(super) fn worker(
    config: &Config,
    settings: WorkerSettings,
    runtime: &RuntimeAccess,
    resources: NodeResources,
    reporting: Reporting,
    images: Arc<Images>,
    states: NodeStates,
) -> Arc<WorkerContext> {
    Arc::new(WorkerContext {
        runtime: runtime.client.clone(),
        pleg: runtime.pleg.clone(),
        clock: runtime.clock.clone(),
        resources,
        reporting,
        images,
        starts: StartLimiter::new(config.parallel_starts),
        facts: Arc::new(config.facts.clone()),
        node: states.runtime,
        shutting_down: states.shutting_down,
        addresses: states.addresses,
        settings,
    })
}

/// The pod manager's dependencies, with those of the workers and probers that it starts.
/// The adoption of static pods that an earlier node agent started.
pub(super) fn adoption(
    root_dir: &Path,
    worker: &Arc<WorkerContext>,
) -> Result<Adoption, StartError> {
    Ok(Adoption::open(worker.clone(), Root::create(root_dir, ROOT_DIR_MODE)?))
}

/// Graceful node shutdown.
pub(super) fn shutdown(
    settings: ShutdownSettings,
    node_name: &Arc<str>,
    pod_index: &Arc<PodIndex>,
    worker: &WorkerContext,
    state: watch::Sender<bool>,
) -> ShutdownManager {
    let dependencies = ShutdownDependencies {
        node_name: node_name.clone(),
        root_dir: Path::new(&worker.facts.root_dir).to_owned(),
        pod_index: pod_index.clone(),
        cgroups: worker.resources.cgroups.clone(),
        reporting: worker.reporting.clone(),
        clock: worker.clock.clone(),
        state,
    };
    ShutdownManager::new(settings, dependencies)
}

pub(super) fn pods(
    pod_index: &Arc<PodIndex>,
    admission: &Arc<Admission>,
    runtime: &RuntimeAccess,
    worker: &Arc<WorkerContext>,
) -> PodManagerDependencies {
    PodManagerDependencies {
        pod_index: pod_index.clone(),
        admission: admission.clone(),
        runtime: runtime.clone(),
        resources: worker.resources.clone(),
        reporting: worker.reporting.clone(),
        capacity: NodeCapacity::of(&worker.facts, worker.settings.features),
        worker: worker.clone(),
        prober: Arc::new(ProbeContext {
            runtime: runtime.client.clone(),
            pleg: runtime.pleg.clone(),
            clock: runtime.clock.clone(),
            events: worker.reporting.events.clone(),
            status: worker.reporting.status.clone(),
            metrics: worker.reporting.metrics.clone(),
            addresses: worker.addresses.clone(),
            agent_started: worker.settings.agent_started,
        }),
    }
}

/// The two tasks that maintain the Node object and its lease.
pub(super) fn node_object(
    presence: Presence,
    identity: Arc<Settings>,
    node_name: Arc<str>,
    runtime: &RuntimeAccess,
    runtime_version: String,
    worker: &WorkerContext,
    (shown, pressure): (watch::Receiver<OwnNode>, watch::Receiver<Pressure>),
) -> (LeaseRenewer, Heartbeat) {
    let Presence { client, register, timing, amounts } = presence;
    let clock = runtime.clock.clone();
    let lease = LeaseRenewer {
        client: client.clone(),
        node: node_name,
        timing,
        shown: shown.clone(),
        clock: clock.clone(),
    };
    let state = worker.node.clone();
    let look = StatusObserver::new(
        identity.clone(),
        amounts,
        runtime.client.clone(),
        runtime_version,
        runtime.pleg.clone(),
        state.clone(),
        clock.clone(),
    )
    .following_shutdown(worker.shutting_down.clone())
    .under(pressure.clone());
    let events = worker.reporting.events.clone();
    let heartbeat = Heartbeat {
        client,
        settings: identity,
        root_dir: Path::new(&worker.facts.root_dir).to_owned(),
        register,
        timing,
        look,
        state,
        shutting_down: worker.shutting_down.clone(),
        pressure,
        shown,
        events,
        clock,
    };
    (lease, heartbeat)
}

pub(super) fn rotation(
    policy: RotationPolicy,
    pod_index: &Arc<PodIndex>,
    runtime: &RuntimeAccess,
    log_dirs: &Arc<LogDirs>,
) -> Rotation {
    let RuntimeAccess { client, pleg, clock } = runtime.clone();
    let (pod_index, dirs) = (pod_index.clone(), log_dirs.clone());
    Rotation { runtime: client, clock, pleg, pod_index, policy, dirs }
}

pub(super) fn gc(
    config: &Config,
    pod_index: &Arc<PodIndex>,
    runtime: &RuntimeAccess,
    reporting: &Reporting,
    images: &Arc<Images>,
) -> Arc<Gc> {
    let dependencies = GcDependencies {
        runtime: runtime.client.clone(),
        clock: runtime.clock.clone(),
        events: reporting.events.clone(),
        metrics: reporting.metrics.clone(),
        pleg: runtime.pleg.clone(),
        pod_index: pod_index.clone(),
        images: images.clone(),
        locations: LogLocations {
            node_name: config.node_name.clone(),
            pod_logs: (&config.facts.pod_logs_dir).into(),
            log_links: config.log_links_dir.clone(),
        },
    };
    Gc::new(dependencies, config.gc.clone())
}

/// `pressed`: where the eviction manager reports the pressure of the node.
pub(super) fn evictions(
    settings: EvictionSettings,
    pod_index: &Arc<PodIndex>,
    runtime: &RuntimeAccess,
    worker: &WorkerContext,
    (gc, disks): (&Arc<Gc>, &Arc<DiskUsage>),
    (node_name, pressed): (&Arc<str>, watch::Sender<Pressure>),
) -> Arc<EvictionManager> {
    let dependencies = EvictionDependencies {
        node_name: node_name.clone(),
        root_dir: Path::new(&worker.facts.root_dir).to_owned(),
        runtime: runtime.client.clone(),
        clock: runtime.clock.clone(),
        pleg: runtime.pleg.clone(),
        pod_index: pod_index.clone(),
        cgroups: worker.resources.cgroups.clone(),
        disks: disks.clone(),
        gc: gc.clone(),
        events: worker.reporting.events.clone(),
        metrics: worker.reporting.metrics.clone(),
    };
    EvictionManager::new(settings, dependencies, pressed)
}

pub(super) fn server(
    node_name: &Arc<str>,
    pod_index: &Arc<PodIndex>,
    runtime: &RuntimeAccess,
    reporting: &Reporting,
    log_dirs: &Arc<LogDirs>,
    cgroup_version: u32,
) -> ServerDependencies {
    let (client, pleg) = (runtime.client.clone(), runtime.pleg.clone());
    let (status, metrics) = (reporting.status.clone(), reporting.metrics.clone());
    let logs = Logs::new(client.clone(), pleg.clone(), status.clone(), log_dirs.clone());
    ServerDependencies {
        streaming: StreamingDependencies { runtime: client, pleg, pod_index: pod_index.clone() },
        clock: runtime.clock.clone(),
        status,
        metrics,
        logs: Arc::new(logs),
        node_name: node_name.clone(),
        cgroup_version,
    }
}

pub(super) fn stats(
    node_name: &Arc<str>,
    pod_index: &Arc<PodIndex>,
    runtime: &RuntimeAccess,
    worker: &WorkerContext,
    disks: &Arc<DiskUsage>,
) -> StatsDependencies {
    let facts = &worker.facts;
    StatsDependencies {
        runtime: runtime.client.clone(),
        pleg: runtime.pleg.clone(),
        pod_index: pod_index.clone(),
        clock: runtime.clock.clone(),
        cgroups: worker.resources.cgroups.clone(),
        disks: disks.clone(),
        node: MeasuredNode {
            name: node_name.clone(),
            root_dir: Path::new(&facts.root_dir).to_owned(),
            swap: facts.machine.swap.as_ref().map(|swap| swap.behaviour),
            agent_started: worker.settings.agent_started,
        },
    }
}

pub(super) fn debug_socket(
    node_name: &Arc<str>,
    pod_index: &Arc<PodIndex>,
    admission: &Arc<Admission>,
    worker: &WorkerContext,
    log_dirs: &Arc<LogDirs>,
    evictions: &Arc<EvictionManager>,
    (manifests, kubelet): (ManifestProblems, LocalServer),
) -> DebugSocketDependencies {
    let status = worker.reporting.status.clone();
    let (runtime, pleg) = (worker.runtime.clone(), worker.pleg.clone());
    DebugSocketDependencies {
        evidence: EvidenceSources {
            logs: Logs::new(runtime.clone(), pleg, status, log_dirs.clone()),
            runtime,
            volumes: worker.resources.volumes.clone(),
        },
        manifests,
        events: worker.reporting.events.recent(),
        kubelet,
        pod_index: pod_index.clone(),
        admission: admission.clone(),
        node_name: node_name.clone(),
        evictions: evictions.clone(),
        cases: CaseSources {
            pleg: worker.pleg.clone(),
            clock: worker.clock.clone(),
            status: worker.reporting.status.clone(),
            cgroups: worker.resources.cgroups.clone(),
            allocations: worker.resources.allocations.clone(),
            node: worker.node.clone(),
            crash_backoff: worker.settings.crash_backoff,
            features: worker.settings.features,
        },
    }
}
