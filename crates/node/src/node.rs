//! Puts the node together and runs it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::attempts::BackoffLimits;
use podwright_core::cgroup::{CgroupConfig, Driver, PodPolicy, PodTree};
use podwright_core::config::NodeFacts;
use podwright_core::log::RotationPolicy;
use podwright_core::pod::Source;
use podwright_core::status::NodeAddresses;
use podwright_core::status::manager::Remains;
use podwright_core::users::UserRange;
use podwright_cri as cri;
use podwright_host::cgroup::{CgroupError, Cgroups as HostCgroups};
use podwright_host::clock::Clock;
use podwright_host::files::FileError;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission;
use crate::allocations::Allocations;
use crate::cgroups::Cgroups;
use crate::events::{self, Recorder};
use crate::gate::Gate;
use crate::gc::{self, Gc};
use crate::images::{self, Images};
use crate::logs::{Logs, rotation::Rotation};
use crate::metrics::Metrics;
use crate::mirrors::Mirrors;
use crate::objects::Objects;
use crate::patience::patient;
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
/// A runtime that says nothing for this long is down. No pod is touched for that.
const RUNTIME_DOWN: Duration = Duration::from_secs(30);
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
    pub crash_backoff: BackoffLimits,
    pub max_pods: usize,
    pub images: images::Settings,
    /// Ids for pods with users of their own.
    pub user_range: UserRange,
    pub gc: gc::Settings,
    pub log_rotation: RotationPolicy,
    /// Starts that go through the runtime at a time.
    pub parallel_starts: usize,
}

/// The parts of the world a node stands on; a simulation brings its own.
pub struct World {
    pub runtime: cri::Client,
    pub cgroups: HostCgroups,
    pub clock: Clock,
    /// `None`: no API server, only static pods.
    pub api: Option<kube::Client>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot use the root folder; check that it exists and is ours")]
    Folder(#[from] FileError),
    #[error("cannot make the cgroups for pods; is the cgroup root there, and are we root?")]
    Cgroups(#[from] CgroupError),
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
        runtime_name: String,
        stop: CancellationToken,
    ) -> Result<Self, StartError> {
        let World { runtime, cgroups, clock, api } = world;
        let api = api.map(patient);
        let metrics = Arc::new(Metrics::default());
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
        cgroups.ensure_tree(&config.all_pods).await?;
        let (events, occurrences) = Recorder::new(clock.clone());
        let directory = Arc::new(Directory::default());
        let pleg = Pleg::new(runtime.clone(), clock.clone(), metrics.clone());
        let status = StatusManager::new(
            directory.clone(),
            leftovers(&directory, &volumes),
            runtime_name.clone(),
            clock.clone(),
            metrics.clone(),
        );
        let (node_state, node) = watch::channel(NodeState::default());
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
            gate: Gate::new(config.parallel_starts),
            settings: Settings {
                node_name: config.node_name.clone(),
                log_links_dir: config.log_links_dir,
                crash_backoff: config.crash_backoff,
                addresses,
                runtime_name,
                admission: admission::Limits { max_pods: config.max_pods },
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
            metrics,
            node,
            started,
        });
        let gc = Gc::new(&tools, directory.clone(), config.gc);
        let this = Self { directory, tools, gc, tasks: TaskTracker::new(), stop };
        this.watch_runtime(node_state);
        this.clean_up(config.log_rotation);
        let sources = this.listen(config.manifests, config.manifest_url, api.as_ref());
        this.report(occurrences, api);
        let pods =
            Pods::new(this.tools.clone(), this.directory.clone(), sources.0, this.stop.clone());
        this.tasks.spawn(pods.run(sources.1));
        this.tasks.spawn(this.tools.allocations.clone().run(this.stop.clone()));
        this.tasks.close();
        Ok(this)
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
        let (runtime, stop) = (self.tools.runtime.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            stop.run_until_cancelled(check_runtime(runtime, state)).await;
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
            volumes: volumes.pod_dir(uid).exists(),
            // The cgroup is destroyed right before a life is finished.
            cgroup: !finished,
        }
    })
}

/// Asks the runtime how it is, again and again, and tells whoever wants to know.
async fn check_runtime(runtime: cri::Client, state: watch::Sender<NodeState>) {
    let mut heard = tokio::time::Instant::now();
    loop {
        match runtime.status().await {
            Ok(status) => {
                heard = tokio::time::Instant::now();
                let network = status
                    .network
                    .map_err(|problem| format!("container runtime network not ready: {problem}"));
                let runtime = status
                    .runtime
                    .map_err(|problem| format!("container runtime not ready: {problem}"));
                let now = NodeState { network, runtime };
                state.send_if_modified(|old| std::mem::replace(old, now.clone()) != now);
            }
            Err(error) => {
                tracing::warn!(%error, "the runtime does not say how it is");
                if heard.elapsed() >= RUNTIME_DOWN {
                    let down = || Err("container runtime is down".to_owned());
                    state.send_if_modified(|state| {
                        std::mem::replace(&mut state.runtime, down()) != down()
                    });
                }
            }
        }
        let well = {
            let state = state.borrow();
            state.network.is_ok() && state.runtime.is_ok()
        };
        tokio::time::sleep(if well { RUNTIME_CHECK } else { RUNTIME_RECHECK }).await;
    }
}
