//! Puts the node together and runs it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::admission::sysctls::Allowed;
use podwright_core::attempts::BackoffLimits;
use podwright_core::cgroup::{CgroupConfig, Driver, PodPolicy, PodTree};
use podwright_core::config::NodeFacts;
use podwright_core::log::RotationPolicy;
use podwright_core::node_status::{self, Amounts};
use podwright_core::pod::Source;
use podwright_core::status::NodeAddresses;
use podwright_core::status::manager::Remains;
use podwright_core::users::UserRange;
use podwright_cri as cri;
use podwright_host::cgroup::{CgroupError, Cgroups as HostCgroups};
use podwright_host::checkpoint::Checkpoint;
use podwright_host::clock::Clock;
use podwright_host::files::{FileError, Root};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::{self, Admission, Ground};
use crate::allocations::Allocations;
use crate::causes::chain;
use crate::cgroups::{Cgroups, Refresh, Reserved, ReservedError};
use crate::events::{self, Recorder, Severity};
use crate::gate::Gate;
use crate::gc::{self, Gc};
use crate::heartbeat::own_node::{self, OwnNode};
use crate::heartbeat::pod_ranges;
use crate::heartbeat::{Heartbeat, LeaseKeeper, Look, Timing};
use crate::images::{self, Images};
use crate::inquiry;
use crate::logs::{Logs, rotation::Rotation};
use crate::metrics::{Metrics, RequestMetrics, RuntimeMetrics};
use crate::mirrors::Mirrors;
use crate::objects::Objects;
use crate::pleg::Pleg;
use crate::pods::{Directory, Pods};
use crate::sources::{api, file::Manifests, url::Remote};
use crate::status::StatusManager;
use crate::tools::{NodeState, Settings, Tools};
use crate::users::Users;
use crate::volumes::Volumes;

/// How often the runtime is asked whether it is well.
const RUNTIME_CHECK: Duration = Duration::from_secs(5);
/// And while it is not, or was not heard yet.
const RUNTIME_RECHECK: Duration = Duration::from_millis(500);
/// A runtime that was not heard for so long is down.
const RUNTIME_DOWN: Duration = Duration::from_secs(30);
/// Whoever is not root has no business in the folder of all pods.
const ROOT_DIR_MODE: u32 = 0o750;
const ALLOCATABLE_ENFORCED: &str = "NodeAllocatableEnforced";
/// How often the classes' groups are written although nothing changed.
const QOS_REFRESH: Duration = Duration::from_secs(60);
/// Before limits are tried again that the kernel did not take.
const LIMITS_RETRY: Duration = Duration::from_secs(60);
/// Deliveries that may wait; a source that has more waits itself.
const DELIVERIES: usize = 50;

/// Everything the node is told from outside. Values, not globals.
pub struct Config {
    pub node_name: Arc<str>,
    pub root_dir: PathBuf,
    pub log_links_dir: PathBuf,
    pub manifests: Option<(PathBuf, Duration)>,
    pub manifest_url: Option<Remote>,
    pub facts: NodeFacts,
    pub pod_tree: PodTree,
    pub pod_policy: PodPolicy,
    /// Limits of the group around all pods.
    pub all_pods: CgroupConfig,
    /// Groups that are held to what is reserved for them.
    pub reserved: Vec<Reserved>,
    pub crash_backoff: BackoffLimits,
    pub images: images::Settings,
    /// Ids for pods with users of their own.
    pub user_range: UserRange,
    pub gc: gc::Settings,
    pub log_rotation: RotationPolicy,
    /// Starts that go through the runtime at a time.
    pub parallel_starts: usize,
    /// How the node shows itself in the API.
    pub identity: node_status::Settings,
    /// Kernel settings that pods may have.
    pub sysctls: Allowed,
    /// AppArmor is enabled on this machine.
    pub apparmor: bool,
    /// `None`: somebody else keeps the node's object.
    pub presence: Option<Presence>,
    /// `podCIDR`: the addresses of pods while the node's object has none. Empty: none are known.
    pub pod_ranges: String,
}

/// The parts of the world a node stands on; a simulation brings its own.
pub struct World {
    pub runtime: cri::Client,
    /// The runtime is new enough to tell which cgroup driver it uses.
    pub tells_driver: bool,
    pub cgroups: HostCgroups,
    pub clock: Clock,
    /// `None`: no API server, only static pods.
    pub api: Option<kube::Client>,
    /// Where the clients of the API server count.
    pub requests: Arc<RequestMetrics>,
}

/// How the node is present in the API.
pub struct Presence {
    /// With connections of its own: a busy node still says that it lives.
    pub client: kube::Client,
    /// `registerNode`.
    pub register: bool,
    pub timing: Timing,
    /// What the machine had when the node started.
    pub amounts: Amounts,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot use the root folder; check that it exists and is ours")]
    Folder(#[from] FileError),
    #[error("cannot make the cgroups for pods; is the cgroup root there, and are we root?")]
    Cgroups(#[from] CgroupError),
    #[error(transparent)]
    Reserved(#[from] ReservedError),
    #[error("the runtime uses the cgroup driver {runtime:?}, this node is set to {node:?}")]
    Driver { runtime: Driver, node: Driver },
}

/// A node that runs.
pub struct Node {
    pub directory: Arc<Directory>,
    pub tools: Arc<Tools>,
    pub gc: Arc<Gc>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Node {
    /// Starts every task of the node. The runtime must have answered [`cri::Client::version`].
    pub async fn start(
        config: Config,
        world: World,
        version: cri::Version,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let World { runtime, tells_driver, cgroups, clock, api, requests } = world;
        let runtime_version = format!("{}://{}", version.runtime_name, version.runtime_version);
        let runtime_name = version.runtime_name;
        let of_runtime = RuntimeMetrics::of(tells_driver);
        let metrics = Arc::new(Metrics { runtime: of_runtime, requests, ..Metrics::default() });
        let counted = metrics.clone();
        let meter = Arc::new(move |op, took, ok| counted.runtime.called(op, took, ok));
        let runtime = runtime.metered(meter);
        let started = clock.now().wall;
        let objects = Objects::new(api.clone(), config.node_name.clone());
        let allocatable = config.facts.allocatable.clone();
        let volumes = Volumes::new(&config.root_dir, objects.clone(), allocatable, clock.clone())?;
        let volumes = Arc::new(volumes);
        let allocations = Allocations::open(&config.root_dir)?;
        let cgroups = Arc::new(Cgroups::new(cgroups, config.pod_tree, config.pod_policy));
        let (events, occurrences) = Recorder::new(clock.clone());
        events.node(&config.node_name, Severity::Normal, "Starting", "Starting kubelet.".into());
        cgroups.ensure_tree(&config.all_pods).await?;
        if cgroups.host().version() == 1 {
            let message =
                "This machine uses cgroup v1, which Kubernetes is giving up; move it to cgroup v2";
            events.node(&config.node_name, Severity::Warning, "CgroupV1", message.into());
        }
        for reserved in &config.reserved {
            cgroups.enforce(reserved).await?;
            let (whose, path) = (reserved.whose, cgroups.host().path(&reserved.name));
            let message = format!("Updated limits on {whose} reserved cgroup {path}");
            events.node(&config.node_name, Severity::Normal, ALLOCATABLE_ENFORCED, message);
        }
        let directory = Arc::new(Directory::default());
        let keeps = config.gc.containers;
        let pleg = Pleg::new(runtime.clone(), clock.clone(), metrics.clone(), keeps);
        let status = StatusManager::new(
            directory.clone(),
            leftovers(&directory, &volumes),
            runtime_name.clone(),
            clock.clone(),
            metrics.clone(),
        );
        let (node_state, node) = watch::channel(NodeState::default());
        let (shown, own_node) = watch::channel(OwnNode::default());
        let identity = Arc::new(config.identity);
        let ground = Ground {
            identity: identity.clone(),
            allocatable: config.facts.allocatable.clone(),
            sysctls: Arc::new(config.sysctls),
            apparmor: config.apparmor,
            joined: config.presence.is_some(),
        };
        let folder = Root::create(&config.root_dir, ROOT_DIR_MODE)?;
        let checkpoint = Checkpoint::new(folder, admission::FILE, admission::VERSION);
        let admission = Admission::new(ground, checkpoint, own_node, node.clone());
        let addresses = NodeAddresses { host_ips: config.facts.host_ips.clone() };
        let means = images::Means {
            runtime: runtime.clone(),
            clock: clock.clone(),
            events: events.clone(),
            metrics: metrics.clone(),
            secrets: Arc::new(objects.clone()),
            accounts: Arc::new(images::ApiAccounts(api.clone())),
        };
        let images = Images::new(&config.root_dir, config.images, means)?;
        images.settle().await;
        let tools = Arc::new(Tools {
            images,
            logs: Logs::default(),
            users: Users::new(config.user_range),
            objects,
            starts: Gate::new(config.parallel_starts),
            settings: Settings {
                node_name: config.node_name.clone(),
                log_links_dir: config.log_links_dir,
                crash_backoff: config.crash_backoff,
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
        let gc = Gc::new(&tools, directory.clone(), config.gc);
        let this = Self { directory, tools, gc, tasks: TaskTracker::new(), stop };
        this.watch_runtime(node_state);
        this.clean_up(config.log_rotation);
        this.tasks.spawn(this.tools.admission.clone().keep(this.stop.clone()));
        this.tasks.spawn(refresh_classes(this.tools.cgroups.clone(), this.stop.clone()));
        this.tasks.spawn(limit_pods(
            this.tools.cgroups.clone(),
            config.all_pods,
            this.tools.events.clone(),
            config.node_name.clone(),
            this.stop.clone(),
        ));
        let runtime = this.tools.runtime.clone();
        let ranges =
            pod_ranges::pass_on(runtime, config.pod_ranges, shown.subscribe(), this.stop.clone());
        this.tasks.spawn(ranges);
        if let (Some(client), Some(presence)) = (api.clone(), config.presence) {
            let look = Look::new(
                identity,
                presence.amounts.clone(),
                this.tools.runtime.clone(),
                runtime_version,
                this.tools.pleg.clone(),
                this.tools.node.clone(),
                this.tools.clock.clone(),
            );
            this.show_itself(client, presence, look, shown);
        }
        this.answer(&config.root_dir);
        let sources = this.listen(config.manifests, config.manifest_url, api.as_ref());
        this.report(occurrences, api);
        let pods =
            Pods::new(this.tools.clone(), this.directory.clone(), sources.0, this.stop.clone());
        this.tasks.spawn(pods.run(sources.1));
        this.tasks.spawn(this.tools.allocations.clone().run(this.stop.clone()));
        this.tasks.close();
        Ok(this)
    }

    /// Who makes the groups of pods.
    pub fn cgroup_driver(&self) -> Driver {
        self.tools.cgroups.host().driver()
    }

    /// Stops all pods, each with its own grace period, and starts none from now on.
    pub fn stop_pods(&self) {
        self.directory.stop_pods();
    }

    /// Waits until the node has stopped. Containers run on.
    pub async fn stopped(&self) {
        self.tasks.wait().await;
    }

    fn watch_runtime(&self, state: watch::Sender<NodeState>) {
        let (pleg, directory, stop) =
            (self.tools.pleg.clone(), self.directory.clone(), self.stop.clone());
        self.tasks.spawn(async move { pleg.relist_loop(&*directory, stop).await });
        let (pleg, directory, stop) =
            (self.tools.pleg.clone(), self.directory.clone(), self.stop.clone());
        self.tasks.spawn(async move { pleg.hint_loop(&*directory, stop).await });
        let (tools, stop) = (self.tools.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            let check = check_runtime(tools.runtime.clone(), tools.clock.clone(), state);
            stop.run_until_cancelled(check).await;
        });
    }

    fn clean_up(&self, log_rotation: RotationPolicy) {
        self.tasks.spawn(self.gc.clone().tidy_containers(self.stop.clone()));
        self.tasks.spawn(self.gc.clone().tidy_images(self.stop.clone()));
        let rotation = Rotation {
            runtime: self.tools.runtime.clone(),
            clock: self.tools.clock.clone(),
            pleg: self.tools.pleg.clone(),
            directory: self.directory.clone(),
            policy: log_rotation,
        };
        self.tasks.spawn(rotation.run(self.stop.clone()));
    }

    /// Starts what keeps the node's object and its lease.
    fn show_itself(
        &self,
        client: kube::Client,
        presence: Presence,
        look: Look,
        shown: watch::Sender<OwnNode>,
    ) {
        let Presence { client: own_client, register, timing, amounts: _ } = presence;
        let node = shown.subscribe();
        let name = self.tools.settings.node_name.clone();
        let follow = own_node::follow(client, name.clone(), shown, self.stop.clone());
        self.tasks.spawn(follow);
        let lease = LeaseKeeper {
            client: own_client.clone(),
            node: name,
            timing,
            shown: node.clone(),
            clock: self.tools.clock.clone(),
        };
        self.tasks.spawn(lease.run(self.stop.clone()));
        let heartbeat = Heartbeat {
            client: own_client,
            settings: look.settings().clone(),
            register,
            timing,
            look,
            state: self.tools.node.clone(),
            shown: node,
            events: self.tools.events.clone(),
            clock: self.tools.clock.clone(),
        };
        self.tasks.spawn(heartbeat.run(self.stop.clone()));
    }

    /// Answers people on this machine. An agent that cannot still runs pods.
    fn answer(&self, root: &Path) {
        let (directory, tools) = (self.directory.clone(), self.tools.clone());
        match inquiry::serve(root, directory, tools, self.stop.clone()) {
            Ok(answering) => drop(self.tasks.spawn(answering)),
            Err(error) => tracing::warn!(error = chain(&error), "`podwright why` has no answer"),
        }
    }

    /// Starts the sources and says which there are.
    fn listen(
        &self,
        manifests: Option<(PathBuf, Duration)>,
        manifest_url: Option<Remote>,
        api: Option<&kube::Client>,
    ) -> (Vec<Source>, mpsc::Receiver<crate::pods::Delivery>) {
        let (deliveries, heard) = mpsc::channel(DELIVERIES);
        let mut sources = Vec::new();
        let node_name = self.tools.settings.node_name.clone();
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
        (sources, heard)
    }

    fn report(&self, occurrences: mpsc::Receiver<events::Occurrence>, api: Option<kube::Client>) {
        let node_name = self.tools.settings.node_name.clone();
        let stop = self.stop.clone();
        let services = self.tools.objects.clone().follow_services(node_name.clone(), stop.clone());
        self.tasks.spawn(services);
        self.tasks.spawn(self.tools.volumes.clone().keep(
            self.directory.clone(),
            self.tools.pleg.clone(),
            self.tools.events.clone(),
            self.stop.clone(),
        ));
        self.tasks.spawn(events::deliver(occurrences, api.clone(), node_name, stop));
        if let Some(client) = api {
            let mirrors = Mirrors {
                client: client.clone(),
                directory: self.directory.clone(),
                node_name: self.tools.settings.node_name.clone(),
            };
            self.tasks.spawn(mirrors.run(self.stop.clone()));
            self.tasks.spawn(self.tools.status.clone().run(client, self.stop.clone()));
        }
    }
}

/// What of a pod is still on this node, for the status manager.
fn leftovers(directory: &Arc<Directory>, volumes: &Arc<Volumes>) -> crate::status::Leftovers {
    let (directory, volumes) = (directory.clone(), volumes.clone());
    Arc::new(move |uid| {
        let finished = directory.standing(uid, |standing| standing.is_finished());
        Remains {
            containers: directory.standing(uid, |s| s.could_have_running_containers()),
            volumes: volumes.has_volumes(uid),
            // The cgroup is destroyed right before a life is finished.
            cgroup: !finished,
        }
    })
}

/// Writes the QoS classes' groups now and then: who else changed them does not stay unnoticed.
async fn refresh_classes(cgroups: Arc<Cgroups>, stop: CancellationToken) {
    let work = async {
        loop {
            tokio::time::sleep(QOS_REFRESH).await;
            if let Err(error) = cgroups.refresh_classes(Refresh::Anyway).await {
                tracing::warn!(%error, "cannot update the cgroups of the QoS classes");
            }
        }
    };
    stop.run_until_cancelled(work).await;
}

/// Says that pods are held to what is theirs, and on which kind of cgroups.
/// Holds all pods together to what is theirs. On a node that is full it may not succeed before some
/// of them have gone.
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

/// Asks the runtime how it is, again and again, and tells whoever wants to know.
async fn check_runtime(runtime: cri::Client, clock: Clock, state: watch::Sender<NodeState>) {
    let mut heard = None;
    loop {
        // A read, which may be dropped: one that hangs is no answer.
        let asked = tokio::time::timeout(RUNTIME_DOWN, runtime.status()).await;
        let problem = match asked {
            Ok(Ok(status)) => {
                heard = Some(clock.now().mono);
                let now = state_of(status);
                state.send_if_modified(|old| std::mem::replace(old, now.clone()) != now);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {RUNTIME_DOWN:?}")),
        };
        if let Some(problem) = problem {
            tracing::warn!(problem, "the runtime does not say how it is");
            if heard.is_some_and(|at| clock.now().mono.since(at) >= RUNTIME_DOWN) {
                state.send_if_modified(|state| {
                    let down = Err("container runtime is down".to_owned());
                    std::mem::replace(&mut state.answering, down.clone()) != down
                });
            }
        }
        let well = {
            let NodeState { answering, network, runtime, .. } = &*state.borrow();
            answering.is_ok() && network.is_ok() && runtime.is_ok()
        };
        tokio::time::sleep(if well { RUNTIME_CHECK } else { RUNTIME_RECHECK }).await;
    }
}

fn state_of(status: cri::RuntimeStatus) -> NodeState {
    let not_ready = |what: &'static str| move |problem| format!("{what} not ready: {problem}");
    NodeState {
        answering: Ok(()),
        network: status.network.map_err(not_ready("container runtime network")),
        runtime: status.runtime.map_err(not_ready("container runtime")),
        handlers: status.handlers,
        features: status.features,
    }
}
