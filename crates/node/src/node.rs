//! The node: builds all components and runs their tasks.

mod build;
mod tasks;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::admission::sysctls::AllowedSysctls;
use podwright_core::backoff::BackoffLimits;
use podwright_core::cgroup::{CgroupConfig, Driver, MemoryReserve, PodPolicy, PodTree};
use podwright_core::config::NodeFacts;
use podwright_core::event::EventRate;
use podwright_core::ids::PodUid;
use podwright_core::lifecycle::Kill;
use podwright_core::log::RotationPolicy;
use podwright_core::node_status::{self, MachineResources, Pressure};
use podwright_core::pod::features::PodFeatures;
use podwright_core::throttle::RequestLimit;
use podwright_core::users::UserRange;
use podwright_cri as cri;
use podwright_host::cgroup::{CgroupError, Cgroups as HostCgroups};
use podwright_host::clock::Clock;
use podwright_host::files::FileError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::request_rate::RequestRate;
use crate::eviction::EvictionSettings;
use crate::pods::mirrors::Mirrors;
use crate::pods::shutdown::ShutdownSettings;
use crate::pods::{self, EndError, PodIndex};
use crate::report::events::{EventLimiter, Recorder, Severity};
use crate::report::heartbeat::Timing;
use crate::report::heartbeat::host_addresses::HostAddresses;
use crate::report::heartbeat::own_node::OwnNode;
use crate::resources::cgroups::node_limits::{NodeLimitsError, ProcessGroups};
use crate::resources::cgroups::{Reserved, ReservedError};
use crate::runtime::gc::{self, Gc};
use crate::runtime::images;
use crate::runtime::logs::LogDirs;
use crate::runtime::state::NodeState;
use crate::server::ServerDependencies;
use crate::server::debug_socket::LocalServer;
use crate::sources::problems::{ManifestProblems, ManifestReporter};
use crate::sources::url::ManifestUrl;
use crate::telemetry::metrics::RequestMetrics;
use crate::telemetry::stats::{DiskUsage, StatsDependencies};
use tasks::Tasks;

/// Reason of the Event for memory-backed volumes that may be swapped.
const VOLUMES_ON_DISK: &str = "PossibleMemoryBackedVolumesOnDisk";

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
    /// Memory that lower QoS classes leave free.
    pub memory_reserve: Option<MemoryReserve>,
    /// Processes that are moved to cgroups of their own.
    pub process_groups: ProcessGroups,
    /// Cgroups limited to what is reserved for them.
    pub reserved: Vec<Reserved>,
    pub crash_backoff: BackoffLimits,
    /// Feature gates that change what a pod means.
    pub features: PodFeatures,
    /// How long a pod rests at most before it is synced again.
    pub resync: Duration,
    pub images: images::ImageSettings,
    /// IDs for pods with a user namespace.
    pub user_range: UserRange,
    pub gc: gc::GcSettings,
    pub eviction: EvictionSettings,
    /// `volumeStatsAggPeriod`: maximum age of measured disk usage; zero: nothing is measured.
    pub volume_period: Duration,
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
    /// `kubeAPIQPS` and `kubeAPIBurst`.
    pub request_limit: RequestLimit,
    /// `podCIDR`: pod addresses while the Node object has none. Empty: unknown.
    pub pod_ranges: String,
    /// `makeIPTablesUtilChains`: directories of the packet filter programs. `None`: no chains are
    /// created.
    pub packet_filter: Option<Vec<PathBuf>>,
    /// `None`: pods are not ended before the machine shuts down.
    pub shutdown: Option<ShutdownSettings>,
    /// Swap is on, and the kernel cannot keep memory-backed volumes out of it.
    pub swaps_volumes: bool,
    /// The kernel's log, for events about kills of the machine; `None`: it is not read.
    pub kernel_log: Option<PathBuf>,
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
    /// Why the runtime is down, if this process supervises it.
    pub runtime_problem: Option<watch::Receiver<Option<String>>>,
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

impl From<NodeLimitsError> for StartError {
    fn from(error: NodeLimitsError) -> Self {
        match error {
            NodeLimitsError::Cgroups(error) => Self::Cgroups(error),
            NodeLimitsError::Reserved(error) => Self::Reserved(error),
        }
    }
}

/// A running node.
pub struct Node {
    pub pod_index: Arc<PodIndex>,
    pub gc: Arc<Gc>,
    events: Recorder,
    host_ips: Vec<IpAddr>,
    runtime_state: watch::Receiver<NodeState>,
    server: ServerDependencies,
    local_server: LocalServer,
    stats: StatsDependencies,
    tasks: Tasks,
}

impl Node {
    /// Starts every task of the node. [`cri::Client::version`] must have succeeded before.
    pub async fn start(
        config: Config,
        dependencies: NodeDependencies,
        version: cri::Version,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let NodeDependencies {
            runtime,
            reports_cgroup_driver,
            cgroups,
            clock,
            api,
            requests,
            runtime_problem,
        } = dependencies;
        let rate = RequestRate::new(config.request_limit, clock.clone());
        // For changes of Ready, which never wait.
        let urgent = api.clone();
        let api = api.map(|client| rate.limit(client));
        let (node_name, identity) = (config.node_name.clone(), Arc::new(config.identity.clone()));
        let runtime_version = format!("{}://{}", version.runtime_name, version.runtime_version);
        let pod_index = Arc::<PodIndex>::default();
        let (state, runtime_state) = watch::channel(NodeState::default());
        let (shown, own_node) = watch::channel(OwnNode::default());
        let (shutdown_state, shutting_down) = watch::channel(false);
        let (pressed, pressure) = watch::channel(Pressure::default());

        let settings =
            build::worker_settings(&config, version.runtime_name.clone(), clock.now().wall);
        let metrics = build::metrics(reports_cgroup_driver, requests);
        let runtime = build::runtime(runtime, clock, &metrics, config.gc.containers);
        let clock = &runtime.clock;
        let resources = build::resources(&config, cgroups, clock, api.clone())?;
        let volumes = &resources.volumes;
        let (reporting, occurrences) =
            build::reporting(&pod_index, volumes, clock, metrics, version.runtime_name);
        let events = reporting.events.clone();
        events.node(&node_name, Severity::Normal, "Starting", "Starting kubelet.".into());
        if config.swaps_volumes {
            let message = "swap is on and this kernel has no tmpfs without it: volumes in memory, \
                           such as secrets, may be written to disk. Fix: turn swap off, or boot \
                           Linux 6.4 or later";
            events.node(&node_name, Severity::Warning, VOLUMES_ON_DISK, message.into());
        }
        let limits = build::node_limits(&config, &resources.cgroups, &events).await?;
        let inputs = build::AdmissionInputs {
            own_node,
            state: runtime_state.clone(),
            shutting_down: shutting_down.clone(),
            pressure: pressure.clone(),
        };
        let admission = build::admission(&config, identity.clone(), inputs)?;
        let objects = &resources.objects;
        let images = build::images(&config, &runtime, objects, &reporting, api.clone()).await?;
        let gc = build::gc(&config, &pod_index, &runtime, &reporting, &images);
        let (host_addresses, addresses) = HostAddresses::new(
            identity.clone(),
            clock.clone(),
            shown.subscribe(),
            config.facts.host_ips.clone(),
        );
        let states = build::NodeStates { runtime: runtime_state.clone(), shutting_down, addresses };
        let disks = DiskUsage::new(volumes.clone(), clock.clone(), config.volume_period);
        let worker =
            build::worker(&config, settings, &runtime, resources, reporting, images, states);
        let (resources, reporting) = (&worker.resources, &worker.reporting);
        let log_dirs = Arc::new(LogDirs::new(worker.facts.pod_logs_dir.as_ref()));
        let evictions = build::evictions(
            config.eviction,
            &pod_index,
            &runtime,
            &worker,
            (&gc, &disks),
            (&node_name, pressed),
        );

        let tasks = Tasks::new(stop);
        tasks.watch_runtime(&runtime, &pod_index, state, runtime_problem);
        tasks.collect_garbage(
            &gc,
            build::rotation(config.log_rotation, &pod_index, &runtime, &log_dirs),
        );
        tasks.evict_pods(&evictions, &disks);
        tasks.record_admissions(&admission);
        tasks.follow_addresses(host_addresses);
        tasks.limit_cgroups(&resources.cgroups, config.all_pods, limits);
        tasks.keep_processes(&resources.cgroups, config.process_groups);
        tasks.set_up_network(&runtime, config.pod_ranges, shown.subscribe(), config.packet_filter);
        if let (Some(client), Some(presence)) = (api.clone(), config.presence) {
            let (lease, heartbeat) = build::node_object(
                presence,
                identity,
                node_name.clone(),
                &runtime,
                runtime_version,
                &worker,
                (shown.subscribe(), pressure),
            );
            tasks.maintain_node_object(client, shown, lease, heartbeat);
        }
        let (manifest_problems, local_server) =
            (ManifestProblems::default(), LocalServer::default());
        let debug_socket = build::debug_socket(
            &node_name,
            &pod_index,
            &admission,
            &worker,
            &log_dirs,
            &evictions,
            (manifest_problems.clone(), local_server.clone()),
        );
        tasks.serve_debug_socket(&config.root_dir, debug_socket);
        let adoption = build::adoption(&config.root_dir, &worker)?;
        let reporter = ManifestReporter {
            problems: manifest_problems,
            events: events.clone(),
            node: node_name.clone(),
        };
        let (sources, deliveries) = tasks.start_sources(
            config.features,
            (reporter, runtime.clock.clone()),
            config.manifests,
            config.manifest_url,
            adoption,
            api.clone(),
        );
        tasks.refresh_volumes(resources, &node_name, &pod_index, &runtime.pleg, &events);
        let limiter = EventLimiter::new(config.event_rate, runtime.clock.clone());
        let own_node = admission.own_node();
        tasks.deliver_events(occurrences, limiter, api.clone(), node_name.clone(), own_node);
        if let (Some(client), Some(urgent)) = (api, urgent) {
            let (pod_index, node_name) = (pod_index.clone(), node_name.clone());
            let mirrors = Mirrors { client, pod_index, node_name };
            tasks.report_pods(mirrors, &reporting.status, urgent, rate);
        }
        if let Some(settings) = config.shutdown {
            tasks.delay_shutdowns(build::shutdown(
                settings,
                &node_name,
                &pod_index,
                &worker,
                shutdown_state,
            ));
        }
        if let Some(log) = config.kernel_log {
            tasks.report_oom_kills(log, &events, &node_name);
        }
        let pods = build::pods(&pod_index, &admission, &runtime, &worker);
        tasks.manage_pods(pods, sources, deliveries);
        tasks.close();
        let cgroup_version = resources.cgroups.host().version();
        Ok(Self {
            gc,
            events,
            server: build::server(
                &node_name,
                &pod_index,
                &runtime,
                reporting,
                &log_dirs,
                cgroup_version,
            ),
            stats: build::stats(&node_name, &pod_index, &runtime, &worker, &disks),
            pod_index,
            runtime_state,
            local_server,
            host_ips: worker.facts.host_ips.clone(),
            tasks,
        })
    }

    /// The cgroup driver in use.
    pub fn cgroup_driver(&self) -> Driver {
        self.stats.cgroups.host().driver()
    }

    /// The addresses of this machine when the agent started.
    pub fn host_ips(&self) -> &[IpAddr] {
        &self.host_ips
    }

    /// The state of the container runtime.
    pub fn runtime_state(&self) -> NodeState {
        self.runtime_state.borrow().clone()
    }

    /// The recorder of Events.
    pub fn recorder(&self) -> Recorder {
        self.events.clone()
    }

    /// Ends a pod as [`pods::end`] does.
    pub async fn end_pod(&self, uid: &PodUid, kill: Kill) -> Result<(), EndError> {
        pods::end(&self.events, &self.pod_index, uid, kill).await
    }

    /// Stops all pods, each with its own grace period, and starts none from now on.
    pub fn stop_pods(&self) {
        self.pod_index.stop_pods();
    }

    /// Waits until the node has stopped. Containers keep running.
    pub async fn stopped(&self) {
        self.tasks.wait().await;
    }

    pub(crate) fn server_dependencies(&self) -> &ServerDependencies {
        &self.server
    }

    /// Where the debug socket finds the kubelet server.
    pub(crate) fn local_server(&self) -> &LocalServer {
        &self.local_server
    }

    pub(crate) fn stats_dependencies(&self) -> &StatsDependencies {
        &self.stats
    }
}
