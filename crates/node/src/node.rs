//! The node: builds all components and runs their tasks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::admission::sysctls::AllowedSysctls;
use podwright_core::attempts::BackoffLimits;
use podwright_core::cgroup::{CgroupConfig, Driver, PodPolicy, PodTree};
use podwright_core::config::NodeFacts;
use podwright_core::event::EventRate;
use podwright_core::log::RotationPolicy;
use podwright_core::node_status::{self, MachineResources};
use podwright_core::pod::Source;
use podwright_core::status::NodeAddresses;
use podwright_core::status::manager::PodLeftovers;
use podwright_core::users::UserRange;
use podwright_cri as cri;
use podwright_host::cgroup::{CgroupError, Cgroups as HostCgroups};
use podwright_host::checkpoint::{Checkpoint, IncrementalCheckpoint};
use podwright_host::clock::Clock;
use podwright_host::files::{FileError, Root};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::context::{NodeContext, NodeState, Settings};
use crate::error_chain::chain;
use crate::pods::admission::{self, Admission, AdmissionSettings};
use crate::pods::allocations::Allocations;
use crate::pods::mirrors::Mirrors;
use crate::pods::{PodIndex, PodManager};
use crate::report::events::{self, EventLimiter, Recorder, Severity};
use crate::report::heartbeat::own_node::{self, OwnNode};
use crate::report::heartbeat::pod_ranges;
use crate::report::heartbeat::{Heartbeat, LeaseRenewer, StatusObserver, Timing};
use crate::report::status::StatusManager;
use crate::resources::cgroups::{Cgroups, Refresh, Reserved, ReservedError};
use crate::resources::objects::Objects;
use crate::resources::packet_filter;
use crate::resources::users::Users;
use crate::resources::volumes::Volumes;
use crate::runtime::gc::{self, Gc};
use crate::runtime::images::{self, Images};
use crate::runtime::logs::{Logs, rotation::Rotation};
use crate::runtime::pleg::Pleg;
use crate::server::debug_socket;
use crate::sources::{api, file::Manifests, url::ManifestUrl};
use crate::telemetry::metrics::{Metrics, RequestMetrics, RuntimeMetrics};
use crate::worker::start_limiter::StartLimiter;

/// Interval of runtime status checks.
const RUNTIME_CHECK: Duration = Duration::from_secs(5);
/// Interval while the runtime is not ready or its status is unknown.
const RUNTIME_RECHECK: Duration = Duration::from_millis(500);
/// A runtime without a successful status check for this long is down.
const RUNTIME_DOWN: Duration = Duration::from_secs(30);
/// The pod directories are not readable for other users.
const ROOT_DIR_MODE: u32 = 0o750;
const ALLOCATABLE_ENFORCED: &str = "NodeAllocatableEnforced";
/// Interval at which the QoS cgroups are written even if nothing changed.
const QOS_REFRESH: Duration = Duration::from_secs(60);
/// Delay before limits that the kernel rejected are written again.
const LIMITS_RETRY: Duration = Duration::from_secs(60);
/// Deliveries that may be queued; a source with more blocks.
const DELIVERIES: usize = 50;

/// Configuration of the node.
pub struct Config {
    pub node_name: Arc<str>,
    pub root_dir: PathBuf,
    pub log_links_dir: PathBuf,
    pub manifests: Option<(PathBuf, Duration)>,
    pub manifest_url: Option<ManifestUrl>,
    pub facts: NodeFacts,
    pub pod_tree: PodTree,
    pub pod_policy: PodPolicy,
    /// Limits of the cgroup that holds all pods.
    pub all_pods: CgroupConfig,
    /// Cgroups limited to what is reserved for them.
    pub reserved: Vec<Reserved>,
    pub crash_backoff: BackoffLimits,
    /// How long a pod rests at most before it is synced again.
    pub resync: Duration,
    pub images: images::ImageSettings,
    /// IDs for pods with a user namespace.
    pub user_range: UserRange,
    pub gc: gc::GcSettings,
    pub log_rotation: RotationPolicy,
    /// Maximum number of concurrent starts.
    pub parallel_starts: usize,
    /// Name, labels and addresses of the Node object.
    pub identity: node_status::Settings,
    /// Sysctls that pods may set.
    pub sysctls: AllowedSysctls,
    /// AppArmor is enabled on this machine.
    pub apparmor: bool,
    /// `None`: the agent does not maintain the Node object.
    pub presence: Option<Presence>,
    /// `eventRecordQPS` and `eventBurst`.
    pub event_rate: EventRate,
    /// `podCIDR`: pod addresses while the Node object has none. Empty: unknown.
    pub pod_ranges: String,
    /// `makeIPTablesUtilChains`: directories of the packet filter programs. `None`: no chains are
    /// created.
    pub packet_filter: Option<Vec<PathBuf>>,
}

/// External dependencies of a node; a simulation supplies its own.
pub struct NodeDependencies {
    pub runtime: cri::Client,
    /// The runtime reports which cgroup driver it uses.
    pub reports_cgroup_driver: bool,
    pub cgroups: HostCgroups,
    pub clock: Clock,
    /// `None`: no API server, only static pods.
    pub api: Option<kube::Client>,
    /// Request metrics of the API server clients.
    pub requests: Arc<RequestMetrics>,
}

/// Settings for maintaining the Node object and its lease.
pub struct Presence {
    /// A client with its own connections, so that a busy node still sends heartbeats.
    pub client: kube::Client,
    /// `registerNode`.
    pub register: bool,
    pub timing: Timing,
    /// Resources of the machine when the node started.
    pub amounts: MachineResources,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot use the root directory. Fix: check that it exists and is owned by this user")]
    RootDirectory(#[from] FileError),
    #[error(
        "cannot create the cgroups for pods. Fix: check that the cgroup root exists and run as root"
    )]
    Cgroups(#[from] CgroupError),
    #[error(transparent)]
    Reserved(#[from] ReservedError),
    #[error("the runtime uses the cgroup driver {runtime:?}, this node is configured for {node:?}")]
    Driver { runtime: Driver, node: Driver },
}

/// A running node.
pub struct Node {
    pub pod_index: Arc<PodIndex>,
    pub context: Arc<NodeContext>,
    pub gc: Arc<Gc>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Node {
    /// Starts every task of the node. [`cri::Client::version`] must have succeeded before.
    pub async fn start(
        config: Config,
        dependencies: NodeDependencies,
        version: cri::Version,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let NodeDependencies { runtime, reports_cgroup_driver, cgroups, clock, api, requests } =
            dependencies;
        let runtime_version = format!("{}://{}", version.runtime_name, version.runtime_version);
        let runtime_name = version.runtime_name;
        let runtime_metrics = RuntimeMetrics::of(reports_cgroup_driver);
        let metrics =
            Arc::new(Metrics { runtime: runtime_metrics, requests, ..Metrics::default() });
        let counted = metrics.clone();
        let meter = Arc::new(move |op, took, ok| counted.runtime.called(op, took, ok));
        let runtime = runtime.metered(meter);
        let started = clock.now().wall;
        let objects = Objects::new(api.clone(), config.node_name.clone());
        let allocatable = config.facts.allocatable.clone();
        let users = Arc::new(Users::new(config.user_range));
        let (of_pods, time) = (objects.clone(), clock.clone());
        let volumes = Volumes::new(&config.root_dir, users.clone(), of_pods, allocatable, time)?;
        let volumes = Arc::new(volumes);
        let allocations = Allocations::open(&config.root_dir)?;
        let cgroups = Arc::new(Cgroups::new(cgroups, config.pod_tree, config.pod_policy));
        let (events, occurrences) = Recorder::new(clock.clone());
        events.node(&config.node_name, Severity::Normal, "Starting", "Starting kubelet.".into());
        cgroups.ensure_tree(&config.all_pods).await?;
        if cgroups.host().version() == 1 {
            let message =
                "cgroup v1 is deprecated in Kubernetes. Fix: migrate this machine to cgroup v2";
            events.node(&config.node_name, Severity::Warning, "CgroupV1", message.into());
        }
        for reserved in &config.reserved {
            cgroups.enforce(reserved).await?;
            let (owner, path) = (reserved.owner, cgroups.host().path(&reserved.name));
            let message = format!("Updated limits on {owner} reserved cgroup {path}");
            events.node(&config.node_name, Severity::Normal, ALLOCATABLE_ENFORCED, message);
        }
        let pod_index = Arc::new(PodIndex::default());
        let keeps = config.gc.containers;
        let pleg = Pleg::new(runtime.clone(), clock.clone(), metrics.clone(), keeps);
        let status = StatusManager::new(
            pod_index.clone(),
            leftovers(&pod_index, &volumes),
            runtime_name.clone(),
            clock.clone(),
            metrics.clone(),
        );
        let (node_state, node) = watch::channel(NodeState::default());
        let (shown, own_node) = watch::channel(OwnNode::default());
        let identity = Arc::new(config.identity);
        let admission_settings = AdmissionSettings {
            identity: identity.clone(),
            allocatable: config.facts.allocatable.clone(),
            sysctls: Arc::new(config.sysctls),
            apparmor: config.apparmor,
            joined: config.presence.is_some(),
        };
        let root = Root::create(&config.root_dir, ROOT_DIR_MODE)?;
        let checkpoint = Checkpoint::new(root, admission::FILE, admission::VERSION);
        let checkpoint = IncrementalCheckpoint::new(checkpoint)?;
        let admission = Admission::new(admission_settings, checkpoint, own_node, node.clone());
        let addresses = NodeAddresses { host_ips: config.facts.host_ips.clone() };
        let means = images::ImageDependencies {
            runtime: runtime.clone(),
            clock: clock.clone(),
            events: events.clone(),
            metrics: metrics.clone(),
            secrets: Arc::new(objects.clone()),
            accounts: Arc::new(images::ApiAccounts(api.clone())),
        };
        let images = Images::new(&config.root_dir, config.images, means)?;
        images.settle().await;
        let context = Arc::new(NodeContext {
            images,
            logs: Logs::new(Path::new(&config.facts.pod_logs_dir)),
            users,
            objects,
            starts: StartLimiter::new(config.parallel_starts),
            settings: Settings {
                node_name: config.node_name.clone(),
                log_links_dir: config.log_links_dir,
                crash_backoff: config.crash_backoff,
                resync: config.resync,
                addresses,
                runtime_name,
            },
            facts: config.facts,
            runtime,
            pleg,
            clock,
            events,
            status,
            volumes,
            cgroups,
            allocations,
            admission: Arc::new(admission),
            metrics,
            node,
            started,
        });
        let gc = Gc::new(&context, pod_index.clone(), config.gc);
        let this = Self { pod_index, context, gc, tasks: TaskTracker::new(), stop };
        this.watch_runtime(node_state);
        this.start_gc(config.log_rotation);
        this.tasks.spawn(this.context.admission.clone().keep(this.stop.clone()));
        this.tasks.spawn(refresh_classes(this.context.cgroups.clone(), this.stop.clone()));
        this.tasks.spawn(limit_pods(
            this.context.cgroups.clone(),
            config.all_pods,
            this.context.events.clone(),
            config.node_name.clone(),
            this.stop.clone(),
        ));
        let runtime = this.context.runtime.clone();
        let ranges = pod_ranges::sync_pod_cidrs(
            runtime,
            config.pod_ranges,
            shown.subscribe(),
            this.stop.clone(),
        );
        this.tasks.spawn(ranges);
        if let Some(directories) = config.packet_filter {
            this.tasks.spawn(packet_filter::maintain(directories, this.stop.clone()));
        }
        if let (Some(client), Some(presence)) = (api.clone(), config.presence) {
            let look = StatusObserver::new(
                identity,
                presence.amounts.clone(),
                this.context.runtime.clone(),
                runtime_version,
                this.context.pleg.clone(),
                this.context.node.clone(),
                this.context.clock.clone(),
            );
            this.maintain_node_object(client, presence, look, shown);
        }
        this.serve_debug_socket(&config.root_dir);
        let sources = this.start_sources(config.manifests, config.manifest_url, api.as_ref());
        let limiter = EventLimiter::new(config.event_rate, this.context.clock.clone());
        this.report(occurrences, limiter, api);
        let pods = PodManager::new(
            this.context.clone(),
            this.pod_index.clone(),
            sources.0,
            this.stop.clone(),
        );
        this.tasks.spawn(pods.run(sources.1));
        this.tasks.spawn(this.context.allocations.clone().run(this.stop.clone()));
        this.tasks.close();
        Ok(this)
    }

    /// The cgroup driver in use.
    pub fn cgroup_driver(&self) -> Driver {
        self.context.cgroups.host().driver()
    }

    /// Stops all pods, each with its own grace period, and starts none from now on.
    pub fn stop_pods(&self) {
        self.pod_index.stop_pods();
    }

    /// Waits until the node has stopped. Containers keep running.
    pub async fn stopped(&self) {
        self.tasks.wait().await;
    }

    fn watch_runtime(&self, state: watch::Sender<NodeState>) {
        let (pleg, pod_index, stop) =
            (self.context.pleg.clone(), self.pod_index.clone(), self.stop.clone());
        self.tasks.spawn(async move { pleg.relist_loop(&*pod_index, stop).await });
        let (pleg, pod_index, stop) =
            (self.context.pleg.clone(), self.pod_index.clone(), self.stop.clone());
        self.tasks.spawn(async move { pleg.event_loop(&*pod_index, stop).await });
        let (context, stop) = (self.context.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            let check = check_runtime(context.runtime.clone(), context.clock.clone(), state);
            stop.run_until_cancelled(check).await;
        });
    }

    fn start_gc(&self, log_rotation: RotationPolicy) {
        self.tasks.spawn(self.gc.clone().run_container_gc(self.stop.clone()));
        self.tasks.spawn(self.gc.clone().run_image_gc(self.stop.clone()));
        let rotation = Rotation {
            runtime: self.context.runtime.clone(),
            clock: self.context.clock.clone(),
            pleg: self.context.pleg.clone(),
            pod_index: self.pod_index.clone(),
            policy: log_rotation,
            dirs: self.context.logs.dirs.clone(),
        };
        self.tasks.spawn(rotation.run(self.stop.clone()));
    }

    /// Starts the tasks that maintain the Node object and its lease.
    fn maintain_node_object(
        &self,
        client: kube::Client,
        presence: Presence,
        look: StatusObserver,
        shown: watch::Sender<OwnNode>,
    ) {
        let Presence { client: own_client, register, timing, amounts: _ } = presence;
        let node = shown.subscribe();
        let name = self.context.settings.node_name.clone();
        let follow = own_node::follow(client, name.clone(), shown, self.stop.clone());
        self.tasks.spawn(follow);
        let lease = LeaseRenewer {
            client: own_client.clone(),
            node: name,
            timing,
            shown: node.clone(),
            clock: self.context.clock.clone(),
        };
        self.tasks.spawn(lease.run(self.stop.clone()));
        let heartbeat = Heartbeat {
            client: own_client,
            settings: look.settings().clone(),
            register,
            timing,
            look,
            state: self.context.node.clone(),
            shown: node,
            events: self.context.events.clone(),
            clock: self.context.clock.clone(),
        };
        self.tasks.spawn(heartbeat.run(self.stop.clone()));
    }

    /// Serves the debug socket. A failure is only logged: the agent runs pods without it.
    fn serve_debug_socket(&self, root: &Path) {
        let (pod_index, context) = (self.pod_index.clone(), self.context.clone());
        match debug_socket::serve(root, pod_index, context, self.stop.clone()) {
            Ok(serving) => drop(self.tasks.spawn(serving)),
            Err(error) => tracing::warn!(
                error = chain(&error),
                "serve debug socket failed, `podwright why` is not available"
            ),
        }
    }

    /// Starts the configured pod sources and returns them.
    fn start_sources(
        &self,
        manifests: Option<(PathBuf, Duration)>,
        manifest_url: Option<ManifestUrl>,
        api: Option<&kube::Client>,
    ) -> (Vec<Source>, mpsc::Receiver<crate::pods::Delivery>) {
        let (deliveries, received) = mpsc::channel(DELIVERIES);
        let mut sources = Vec::new();
        let node_name = self.context.settings.node_name.clone();
        if let Some((path, recheck)) = manifests {
            sources.push(Source::File);
            let manifests = Manifests::new(path, node_name.clone(), recheck);
            self.tasks.spawn(manifests.run(deliveries.clone(), self.stop.clone()));
        }
        if let Some(remote) = manifest_url {
            sources.push(Source::Http);
            self.tasks.spawn(remote.run(deliveries.clone(), self.stop.clone()));
        }
        if let Some(client) = api.cloned() {
            sources.push(Source::Api);
            let (deliveries, stop) = (deliveries, self.stop.clone());
            self.tasks.spawn(async move { api::run(client, &node_name, deliveries, stop).await });
        }
        (sources, received)
    }

    fn report(
        &self,
        occurrences: mpsc::Receiver<events::Occurrence>,
        limiter: EventLimiter,
        api: Option<kube::Client>,
    ) {
        let node_name = self.context.settings.node_name.clone();
        let stop = self.stop.clone();
        let services =
            self.context.objects.clone().follow_services(node_name.clone(), stop.clone());
        self.tasks.spawn(services);
        self.tasks.spawn(self.context.volumes.clone().keep(
            self.pod_index.clone(),
            self.context.pleg.clone(),
            self.context.events.clone(),
            self.stop.clone(),
        ));
        self.tasks.spawn(events::deliver(
            occurrences,
            limiter,
            api.clone(),
            node_name,
            self.context.admission.own_node(),
            stop,
        ));
        if let Some(client) = api {
            let mirrors = Mirrors {
                client: client.clone(),
                pod_index: self.pod_index.clone(),
                node_name: self.context.settings.node_name.clone(),
            };
            self.tasks.spawn(mirrors.run(self.stop.clone()));
            self.tasks.spawn(self.context.status.clone().run(client, self.stop.clone()));
        }
    }
}

/// What a pod still has on this node, for the status manager.
fn leftovers(
    pod_index: &Arc<PodIndex>,
    volumes: &Arc<Volumes>,
) -> crate::report::status::Leftovers {
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

/// Rewrites the QoS cgroups periodically, which reverts changes made by other processes.
async fn refresh_classes(cgroups: Arc<Cgroups>, stop: CancellationToken) {
    let work = async {
        loop {
            tokio::time::sleep(QOS_REFRESH).await;
            if let Err(error) = cgroups.refresh_classes(Refresh::Anyway).await {
                tracing::warn!(%error, "update QoS cgroups failed, retrying");
            }
        }
    };
    stop.run_until_cancelled(work).await;
}

/// Limits all pods together to the allocatable resources. On a full node this may fail until some
/// pods have ended.
async fn limit_pods(
    cgroups: Arc<Cgroups>,
    limits: CgroupConfig,
    events: Recorder,
    node: Arc<str>,
    stop: CancellationToken,
) {
    let work = async {
        while let Err(error) = cgroups.limit_all(&limits).await {
            let path = cgroups.host().path(cgroups.tree().all());
            let message =
                format!("Failed to update Node Allocatable Limits {path:?}: {}", chain(&error));
            events.node(&node, Severity::Warning, "FailedNodeAllocatableEnforcement", message);
            tokio::time::sleep(LIMITS_RETRY).await;
        }
        let message = "Updated Node Allocatable limit across pods".into();
        events.node(&node, Severity::Normal, ALLOCATABLE_ENFORCED, message);
    };
    stop.run_until_cancelled(work).await;
}

/// Checks the runtime status periodically and publishes the result.
async fn check_runtime(runtime: cri::Client, clock: Clock, state: watch::Sender<NodeState>) {
    let mut last_success = None;
    loop {
        // A read, so it may be dropped when it hangs.
        let checked = tokio::time::timeout(RUNTIME_DOWN, runtime.status()).await;
        let problem = match checked {
            Ok(Ok(status)) => {
                last_success = Some(clock.now().mono);
                let now = state_of(status);
                state.send_if_modified(|old| std::mem::replace(old, now.clone()) != now);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no response within {RUNTIME_DOWN:?}")),
        };
        if let Some(problem) = problem {
            tracing::warn!(error = problem, "check runtime status failed, retrying");
            if last_success.is_some_and(|at| clock.now().mono.since(at) >= RUNTIME_DOWN) {
                state.send_if_modified(|state| {
                    let down = Err("container runtime is down".to_owned());
                    std::mem::replace(&mut state.reachable, down.clone()) != down
                });
            }
        }
        let well = {
            let NodeState { reachable, network, runtime, .. } = &*state.borrow();
            reachable.is_ok() && network.is_ok() && runtime.is_ok()
        };
        tokio::time::sleep(if well { RUNTIME_CHECK } else { RUNTIME_RECHECK }).await;
    }
}

fn state_of(status: cri::RuntimeStatus) -> NodeState {
    let not_ready = |what: &'static str| move |problem| format!("{what} not ready: {problem}");
    NodeState {
        reachable: Ok(()),
        network: status.network.map_err(not_ready("container runtime network")),
        runtime: status.runtime.map_err(not_ready("container runtime")),
        handlers: status.handlers,
        features: status.features,
    }
}
