//! Simulator: the whole node on an in-memory runtime and API server, with virtual time.
//!
//! The agent is the one that ships, from its sources to its runtime client. Around it are the fake
//! runtime ([`podwright_fake_runtime`]), the real embedded API server, a directory, and tokio's paused
//! time: an hour passes as soon as no task can make progress. One seed drives everything random, so
//! a failed run can be repeated.
//!
//! *Not* under the seed: tokio's own choice between ready arms of a `select!` that is not biased
//! (none of ours depends on it), in which order it wakes several receivers of one watch channel, and
//! when the kernel reports a changed manifest within one moment.
//!
//! [`Sim`] is the simulated node with its user; [`invariants`] are the invariants; [`chaos`] generates a
//! schedule of user actions, faults and crashes from a seed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a simulation that cannot go on should say so at once"
)]

pub mod api;
pub mod chaos;
pub mod crash_point;
pub mod environment;
pub mod invariants;
pub mod journal;
pub mod random;
pub mod record;
mod resume;
pub mod test_pod;

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use podwright_api::qos::ResourceList;
use podwright_apiserver::store::Change;
use podwright_apiserver::{Limits, Store};
use podwright_core::admission::sysctls::AllowedSysctls;
use podwright_core::backoff::BackoffLimits;
use podwright_core::cgroup::{CgroupConfig, CgroupName, PodPolicy, PodTree};
use podwright_core::config::{CgroupVersion, Machine as MachineFacts, NodeFacts};
use podwright_core::event::EventRate;
use podwright_core::eviction::{Sources, Thresholds};
use podwright_core::gc::{ContainerPolicy, Disk, ImagePolicy};
use podwright_core::image::access::Verification;
use podwright_core::log::RotationPolicy;
use podwright_core::node_status::{self, MachineResources};
use podwright_core::pod::features::PodFeatures;
use podwright_core::shutdown::ShutdownGroups;
use podwright_core::throttle::RequestLimit;
use podwright_core::users::{BLOCK, UserRange};
use podwright_cri::Timeouts;
use podwright_fake_runtime::{Fake, FakeOptions, Features};
use podwright_host::change::guard;
use podwright_host::clock::Clock;
use podwright_host::machine::Machine;
use podwright_node::client::request_timeout::with_request_timeout;
use podwright_node::eviction::EvictionSettings;
use podwright_node::node::{Config, Node, NodeDependencies, Presence};
use podwright_node::pods::shutdown::{Announcements, ShutdownSettings};
use podwright_node::report::heartbeat::Timing;
use podwright_node::resources::cgroups::node_limits::ProcessGroups;
use podwright_node::runtime::{gc, images};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crash_point::{Counted, CrashPoint, Moment};
use environment::Environment;
use journal::Journal;
use record::Record;
use test_pod::{NODE, TestPod};

/// Polling interval while waiting for a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Deadline of a runtime call: shorter than the default, so that a run is short.
const CALL: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub features: Features,
    /// Feature gates of the agent.
    pub gates: PodFeatures,
    /// If false: only static pods.
    pub api: bool,
    pub max_pods: usize,
    /// CPUs of the node, all of them allocatable.
    pub cpus: u32,
    /// The node also runs its periodic tasks: node status, log rotation and image garbage
    /// collection.
    pub chores: bool,
    /// Limit of requests to the API server.
    pub request_limit: RequestLimit,
    /// `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`, in seconds.
    pub shutdown: Option<(u64, u64)>,
    /// Hard eviction thresholds, see [`Environment::use_memory`].
    pub eviction: &'static [(&'static str, &'static str)],
}

impl Default for Options {
    fn default() -> Self {
        let features = Features::containerd_1_6();
        let (gates, request_limit) = (PodFeatures::DEFAULT, RequestLimit::NONE);
        let (api, max_pods, cpus, chores) = (true, 110, 4, false);
        let (seed, shutdown, eviction) = (0, None, &[]);
        Self {
            seed,
            features,
            gates,
            api,
            max_pods,
            cpus,
            chores,
            request_limit,
            shutdown,
            eviction,
        }
    }
}

/// One simulated node, its user, and its agent.
pub struct Sim {
    pub options: Options,
    pub fake: Fake,
    pub api: api::Api,
    pub clock: Clock,
    pub environment: Environment,
    pub record: Record,
    user: kube::Client,
    /// Whether the machine shuts down.
    announced: watch::Sender<bool>,
    agent: Option<Agent>,
    began: Instant,
    panics: u64,
}

/// One run of the agent.
struct Agent {
    node: Node,
    end: CancellationToken,
}

impl Sim {
    /// A simulation without an agent.
    pub async fn new(options: Options) -> Self {
        let clock = Clock::simulated(Timestamp::constant(1_767_225_600, 0));
        let empty = |clock| Store::in_memory(Limits::default(), clock).expect("a store in memory");
        let this = Self::around(options, clock, Environment::new(), empty, Vec::new()).await;
        test_pod::stock(&this.fake);
        let node: v1::Node =
            serde_json::from_value(serde_json::json!({ "metadata": { "name": NODE },
                "spec": { "podCIDR": "10.88.0.0/16" } }))
            .unwrap();
        let nodes: Api<v1::Node> = Api::all(this.user.clone());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        this
    }

    /// A simulation in these directories, with an API server on this store and these objects in it.
    async fn around(
        options: Options,
        clock: Clock,
        environment: Environment,
        store: impl FnOnce(podwright_apiserver::Clock) -> Store,
        objects: Vec<Change>,
    ) -> Self {
        let began = Instant::now();
        let journal = Journal::of_next_simulation(options.seed, environment.path());
        let wall = clock.clone();
        let fake = Fake::start(FakeOptions {
            seed: options.seed,
            wall: Arc::new(move || wall.now().wall),
            features: options.features,
            writes_below: Some(environment.path().to_owned()),
            observer: journal.of_calls(),
            ..FakeOptions::default()
        });
        let api = api::Api::start(options.seed, clock.clone(), store, objects, journal).await;
        let user = api.users_client();
        let record = Record::start(user.clone());
        let panics = count_panics();
        let announced = watch::Sender::new(false);
        let agent = None;
        Self {
            options,
            fake,
            api,
            clock,
            environment,
            record,
            user,
            announced,
            agent,
            began,
            panics,
        }
    }

    /// A simulation with a running agent.
    pub async fn started(options: Options) -> Self {
        let mut this = Self::new(options).await;
        this.start().await;
        this
    }

    // === The agent ===

    /// Starts the agent on the state that the previous one left. One that ends because its disk
    /// cannot be written is started again, as by systemd.
    pub async fn start(&mut self) {
        assert!(self.agent.is_none(), "the agent is already running");
        loop {
            let disk_fails = self.environment.writes_fail();
            let Err(error) = self.try_start().await else { return };
            assert!(disk_fails, "no node: {error}");
            self.fake.hang_up();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn try_start(&mut self) -> Result<(), podwright_node::node::StartError> {
        let end = CancellationToken::new();
        Self::guard_changes(end.clone());
        let runtime = self.fake.client_until(Timeouts { call: CALL }, end.clone());
        let version = loop {
            match runtime.version().await {
                Ok(version) => break version,
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        };
        let dependencies = NodeDependencies {
            runtime,
            reports_cgroup_driver: true,
            cgroups: self.environment.cgroups(),
            clock: self.clock.clone(),
            api: self
                .options
                .api
                .then(|| with_request_timeout(self.api.agents_client(end.clone()))),
            requests: Arc::default(),
            runtime_problem: None,
        };
        let presence = self.options.chores.then(|| Presence {
            client: with_request_timeout(self.api.agents_client(end.clone())),
            register: true,
            timing: Timing {
                look: MINUTE / 6,
                report: MINUTE * 5,
                lease: MINUTE * 2 / 3,
                random: || 0.5,
            },
            amounts: MachineResources {
                cpus: 4,
                memory: 8 << 30,
                storage: Some(100 << 30),
                ..MachineResources::default()
            },
        });
        let config = Config { presence, ..self.config() };
        match Node::start(config, dependencies, version, end.clone()).await {
            Ok(node) => self.agent = Some(Agent { node, end }),
            Err(error) => {
                end.cancel();
                return Err(error);
            }
        }
        Ok(())
    }

    /// The agent changes files, mounts and cgroups until its end, and not afterwards. Its clients of
    /// the runtime and the API end with it as well.
    fn guard_changes(end: CancellationToken) {
        guard::post(move || !end.is_cancelled());
    }

    /// Kills the agent; everything else goes on. A killed process runs no destructors: from
    /// now on those of its tasks can change nothing ([`Self::guard_changes`]).
    pub async fn crash(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        agent.end.cancel();
        self.fake.hang_up();
        agent.node.stopped().await;
    }

    pub async fn restart(&mut self) {
        self.crash().await;
        self.start().await;
    }

    /// Announces a shutdown of the machine, or that it was cancelled.
    pub fn announce_shutdown(&self, active: bool) {
        self.announced.send_replace(active);
    }

    /// Reboots the machine: no process and no cgroup survives.
    pub async fn reboot(&mut self) {
        self.crash().await;
        self.announce_shutdown(false);
        self.fake.reboot();
        self.environment.lose_cgroups();
        self.start().await;
    }

    pub fn is_running(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| !agent.end.is_cancelled())
    }

    pub fn node(&self) -> &Node {
        &self.agent.as_ref().expect("an agent").node
    }

    /// Kills the agent at its `at`th step from now.
    pub fn trip(&self, at: u64, moment: Moment, counted: Counted) -> Arc<CrashPoint> {
        let end = self.agent.as_ref().expect("an agent").end.clone();
        let crash_point = CrashPoint::new(at, moment, end);
        crash_point.install(&self.fake, &self.api, counted);
        crash_point
    }

    /// Removes a crash point that was not reached.
    pub fn untrip(&self) {
        self.api.arm(None);
        match &self.agent {
            Some(agent) => Self::guard_changes(agent.end.clone()),
            None => guard::leave(),
        }
    }

    fn config(&self) -> Config {
        let chores = self.options.chores;
        let ip = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        Config {
            node_name: NODE.into(),
            root_dir: self.environment.root(),
            log_links_dir: self.environment.logs(),
            manifests: Some((self.environment.manifests(), Duration::from_secs(20))),
            manifest_url: None,
            facts: self.facts(ip),
            pod_tree: PodTree::below(&CgroupName::ROOT),
            pod_policy: PodPolicy::default(),
            all_pods: CgroupConfig::default(),
            features: self.options.gates,
            crash_backoff: BackoffLimits::capped(Duration::from_secs(20)),
            resync: Duration::from_secs(300),
            images: images::ImageSettings {
                parallel: 4,
                per_second: 0,
                burst: 0,
                verification: Verification::default(),
                docker_configs: Vec::new(),
                plugins: Vec::new(),
                plugins_dir: PathBuf::new(),
            },
            user_range: UserRange::for_pods(110, BLOCK),
            gc: gc::GcSettings {
                containers: ContainerPolicy::default(),
                images: ImagePolicy {
                    high: if chores { 85 } else { 100 },
                    low: 80,
                    min_age: Duration::ZERO,
                    max_age: None,
                },
                kept_images: Vec::new(),
                disk: |_| Ok(Disk { capacity: 1 << 40, available: 1 << 36 }),
            },
            eviction: self.eviction(),
            volume_period: MINUTE,
            log_rotation: RotationPolicy {
                max_size: chores.then_some(1),
                max_files: 5,
                workers: 1,
                every: Duration::from_secs(2),
            },
            parallel_starts: 4,
            event_rate: EventRate::default(),
            request_limit: self.options.request_limit,
            reserved: Vec::new(),
            process_groups: ProcessGroups::default(),
            memory_reserve: None,
            identity: node_status::Settings {
                name: NODE.into(),
                // An IP address, so that no DNS lookup is needed.
                hostname: ip.to_string(),
                max_pods: self.options.max_pods,
                ..node_status::Settings::default()
            },
            sysctls: AllowedSysctls::default(),
            apparmor: false,
            presence: None,
            pod_ranges: String::new(),
            packet_filter: None,
            shutdown: self.shutdown(),
            swaps_volumes: false,
            kernel_log: None,
        }
    }

    fn shutdown(&self) -> Option<ShutdownSettings> {
        let (whole, critical) = self.options.shutdown?;
        let (whole, critical) = (Duration::from_secs(whole), Duration::from_secs(critical));
        Some(ShutdownSettings {
            groups: ShutdownGroups::with_critical(whole, critical)?,
            records: true,
            announcements: Announcements::Simulated(self.announced.subscribe()),
        })
    }

    fn eviction(&self) -> EvictionSettings {
        let hard = self.options.eviction.iter();
        let hard = hard.map(|(signal, amount)| ((*signal).to_owned(), (*amount).to_owned()));
        let sources = Sources { hard: hard.collect(), ..Sources::default() };
        EvictionSettings {
            thresholds: Thresholds::parse(&sources).expect("thresholds"),
            transition: Duration::from_secs(60),
            machine: Machine::at(self.environment.machine()),
            ..EvictionSettings::none()
        }
    }

    fn facts(&self, ip: IpAddr) -> NodeFacts {
        let cpus = self.options.cpus.to_string();
        let allocatable = [("cpu", &*cpus), ("memory", "8Gi"), ("ephemeral-storage", "100Gi")];
        let allocatable: ResourceList =
            allocatable.iter().map(|(k, v)| ((*k).to_owned(), v.parse().unwrap())).collect();
        let pods = self.options.max_pods.to_string();
        let allocatable = allocatable.into_iter().chain([("pods".into(), pods.parse().unwrap())]);
        let allocatable = allocatable.collect();
        NodeFacts {
            host_ips: vec![ip],
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            standalone: false,
            resolv_conf: String::new(),
            root_dir: self.environment.root().to_string_lossy().into_owned(),
            pod_logs_dir: self.environment.logs().to_string_lossy().into_owned(),
            seccomp_default: false,
            selinux: false,
            thermal_paths: Vec::new(),
            allocatable,
            machine: MachineFacts {
                memory: 8 << 30,
                hugepage_sizes: Vec::new(),
                cgroups: CgroupVersion::V1,
                cpu_quota_period: Some(100_000),
                whole_container_oom: false,
                swap: None,
                memory_qos: None,
            },
            handlers: Vec::new(),
        }
    }

    // === The user ===

    fn pods(&self) -> Api<v1::Pod> {
        Api::namespaced(self.user.clone(), "default")
    }

    pub fn users_client(&self) -> kube::Client {
        self.user.clone()
    }

    /// Creates a pod and returns its UID.
    pub async fn create(&self, test_pod: &TestPod) -> String {
        let pod: v1::Pod = serde_json::from_value(test_pod.value().clone()).expect("a pod");
        let made = self.pods().create(&PostParams::default(), &pod).await.expect("a new pod");
        made.metadata.uid.unwrap()
    }

    /// Deletes it, with the grace period of its spec if none is given. False: there is none.
    pub async fn delete(&self, name: &str, grace: Option<u32>) -> bool {
        let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        self.pods().delete(name, &params).await.is_ok()
    }

    /// Merges this into the pod. False: there is none, or the server refused.
    pub async fn patch(&self, name: &str, patch: Value) -> bool {
        let patch = Patch::Merge(&patch);
        self.pods().patch(name, &PatchParams::default(), &patch).await.is_ok()
    }

    pub async fn patch_status(&self, name: &str, patch: Value) -> bool {
        let patch = Patch::Strategic(&patch);
        self.pods().patch_status(name, &PatchParams::default(), &patch).await.is_ok()
    }

    pub async fn set_image(&self, name: &str, container: &str, image: &str) -> bool {
        let patch = serde_json::json!({
            "spec": { "containers": [{ "name": container, "image": image }] },
        });
        let patch = Patch::Strategic(&patch);
        self.pods().patch(name, &PatchParams::default(), &patch).await.is_ok()
    }

    /// Resizes a running container. False: the server refused.
    pub async fn resize(&self, name: &str, container: &str, requests: Value) -> bool {
        let resources = serde_json::json!({ "requests": requests });
        let container = serde_json::json!({ "name": container, "resources": resources });
        let patch = serde_json::json!({ "spec": { "containers": [container] } });
        let patch = Patch::Strategic(&patch);
        self.pods().patch_subresource("resize", name, &PatchParams::default(), &patch).await.is_ok()
    }

    /// Adds an ephemeral container. False: the server refused.
    pub async fn add_ephemeral_container(&self, pod: &str, name: &str, image: &str) -> bool {
        let container = serde_json::json!({ "name": name, "image": image });
        let patch = serde_json::json!({ "spec": { "ephemeralContainers": [container] } });
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&patch));
        self.pods().patch_subresource("ephemeralcontainers", pod, &params, &patch).await.is_ok()
    }

    /// Creates another object, such as a ConfigMap, with these fields.
    pub async fn make<K: kube::Resource<DynamicType = ()>>(&self, name: &str, fields: Value) {
        let kind = ApiResource::erase::<K>(&());
        let objects: Api<DynamicObject> = Api::namespaced_with(self.user.clone(), "default", &kind);
        let object = DynamicObject::new(name, &kind).data(fields);
        objects.create(&PostParams::default(), &object).await.expect("a new object");
    }

    /// Writes a manifest atomically, as an editor does.
    pub fn write_manifest(&self, file: &str, text: &str) {
        let directory = self.environment.manifests();
        let hidden = directory.join(format!(".{file}"));
        std::fs::write(&hidden, text).expect("a manifest");
        std::fs::rename(hidden, directory.join(file)).expect("a manifest");
    }

    pub fn remove_manifest(&self, file: &str) {
        let _ = std::fs::remove_file(self.environment.manifests().join(file));
    }

    /// The names and reasons of all events of a pod, oldest first.
    pub async fn events(&self, pod: &str) -> Vec<String> {
        let events: Api<v1::Event> = Api::namespaced(self.user.clone(), "default");
        let mut all = events.list(&kube::api::ListParams::default()).await.expect("events").items;
        all.retain(|event| event.involved_object.name.as_deref() == Some(pod));
        all.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        all.into_iter().filter_map(|event| event.reason).collect()
    }

    // === Time ===

    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Time since the simulation began.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until the condition holds; panics if it does not within `limit`.
    pub async fn until(&self, what: &str, limit: Duration, holds: impl FnMut(&Self) -> bool) {
        if !self.eventually(limit, holds).await {
            panic!("not within {limit:?}: {what}\n{}", self.history());
        }
    }

    /// Whether the condition holds within `limit`.
    pub async fn eventually(&self, limit: Duration, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let end = Instant::now() + limit;
        loop {
            if holds(self) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a pod is Ready.
    pub async fn until_ready(&self, name: &str) {
        let ready = |sim: &Self| sim.record.pod(name).is_some_and(|pod| record::is_ready(&pod));
        self.until(&format!("{name} is Ready"), Duration::from_secs(120), ready).await;
    }

    /// Waits until the API has no pod of this name.
    pub async fn until_gone(&self, name: &str) {
        let gone = |sim: &Self| sim.record.pod(name).is_none();
        self.until(&format!("{name} is gone"), Duration::from_secs(120), gone).await;
    }

    /// Whether a task of this simulation panicked; its message is in the output.
    pub fn panicked(&self) -> bool {
        count_panics() != self.panics
    }

    /// The agent's actions, newest last, for debugging.
    pub fn history(&self) -> String {
        let mut lines: Vec<(Duration, String)> = Vec::new();
        for call in self.fake.calls().iter().filter(|c| c.rpc.changes_pods()) {
            lines.push((call.at, format!("runtime {call}")));
        }
        for change in self.fake.instance_changes() {
            lines.push((change.at, format!("runtime {change}")));
        }
        for call in self.api.calls().iter().filter(|call| call.writes()) {
            lines.push((call.at, format!("api     {call}")));
        }
        for recorded in self.record.recorded_pods() {
            let pod = &recorded.pod;
            let shown = if recorded.gone { "gone".into() } else { pod_summary(pod) };
            lines.push((
                recorded.at,
                format!("shown   {:?} {} {shown}", recorded.at, recorded.name()),
            ));
        }
        lines.sort_by_key(|(at, _)| *at);
        let tail = lines.len().saturating_sub(150);
        let lines: Vec<String> = lines.into_iter().skip(tail).map(|(_, line)| line).collect();
        lines.join("\n")
    }
}

fn pod_summary(pod: &v1::Pod) -> String {
    let ready = if record::is_ready(pod) { "ready" } else { "not ready" };
    let deleting = pod.metadata.deletion_grace_period_seconds;
    let deleting = deleting.map(|grace| format!(" deleting within {grace}")).unwrap_or_default();
    format!("{} {ready}{deleting}", record::phase(pod).as_str())
}

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// Panics on this thread so far. A simulation runs on one thread, so a task's panic, which tokio
/// returns only to a caller that joins the task, is counted here.
fn count_panics() -> u64 {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with(|panics| panics.set(panics.get() + 1));
            before(info);
        }));
    });
    PANICS.with(Cell::get)
}

/// Runs a simulation on paused time, on this thread.
pub fn run<F: Future>(simulation: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let output = runtime.block_on(simulation);
    journal::close();
    // Remaining tasks of the killed agent do not matter any more.
    runtime.shutdown_background();
    output
}
