//! The tasks of the node: which component runs in which task.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::cgroup::CgroupConfig;
use podwright_core::pod::Source;
use podwright_core::pod::features::PodFeatures;
use podwright_host::clock::Clock;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::request_rate::RequestRate;
use crate::error_chain::chain;
use crate::eviction::EvictionManager;
use crate::pods::admission::Admission;
use crate::pods::mirrors::Mirrors;
use crate::pods::shutdown::ShutdownManager;
use crate::pods::{Delivery, PodIndex, PodManager, PodManagerDependencies};
use crate::report::events::{self, EventLimiter, Occurrence, Recorder};
use crate::report::heartbeat::host_addresses::HostAddresses;
use crate::report::heartbeat::own_node::{self, OwnNode};
use crate::report::heartbeat::pod_ranges;
use crate::report::heartbeat::{Heartbeat, LeaseRenewer};
use crate::report::oom;
use crate::report::status::StatusManager;
use crate::resources::NodeResources;
use crate::resources::cgroups::Cgroups;
use crate::resources::cgroups::node_limits::{self, LimitEvents, ProcessGroups};
use crate::resources::packet_filter;
use crate::runtime::RuntimeAccess;
use crate::runtime::gc::Gc;
use crate::runtime::logs::rotation::Rotation;
use crate::runtime::pleg::Pleg;
use crate::runtime::state::{self, NodeState};
use crate::server::debug_socket::{self, DebugSocketDependencies};
use crate::sources::adoption::Adoption;
use crate::sources::problems::ManifestReporter;
use crate::sources::{api, file::Manifests, url::ManifestUrl};
use crate::telemetry::stats::DiskUsage;

/// Deliveries that may be queued; a source with more blocks.
const DELIVERIES: usize = 50;

/// Each task runs until `stop` is cancelled.
pub(super) struct Tasks {
    running: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { running: TaskTracker::new(), stop }
    }

    /// No more tasks are started.
    pub(super) fn close(&self) {
        self.running.close();
    }

    /// Waits until all tasks have ended.
    pub(super) async fn wait(&self) {
        self.running.wait().await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(task);
    }

    pub(super) fn watch_runtime(
        &self,
        runtime: &RuntimeAccess,
        pod_index: &Arc<PodIndex>,
        state: watch::Sender<NodeState>,
        problem: Option<watch::Receiver<Option<String>>>,
    ) {
        let RuntimeAccess { client, pleg, clock } = runtime.clone();
        let (relisted, index, stop) = (pleg.clone(), pod_index.clone(), self.stop.clone());
        self.spawn(async move { relisted.relist_loop(&*index, stop).await });
        let (index, stop) = (pod_index.clone(), self.stop.clone());
        self.spawn(async move { pleg.event_loop(&*index, stop).await });
        let stop = self.stop.clone();
        self.spawn(async move {
            stop.run_until_cancelled(state::check_runtime(client, clock, state, problem)).await;
        });
    }

    pub(super) fn collect_garbage(&self, gc: &Arc<Gc>, rotation: Rotation) {
        self.spawn(gc.clone().run_container_gc(self.stop.clone()));
        self.spawn(gc.clone().run_image_gc(self.stop.clone()));
        self.spawn(rotation.run(self.stop.clone()));
    }

    /// Evicts pods, and measures what that and the statistics need.
    pub(super) fn evict_pods(&self, evictions: &Arc<EvictionManager>, disks: &Arc<DiskUsage>) {
        self.spawn(evictions.clone().run(self.stop.clone()));
        self.spawn(disks.clone().run(self.stop.clone()));
    }

    pub(super) fn record_admissions(&self, admission: &Arc<Admission>) {
        self.spawn(admission.clone().keep(self.stop.clone()));
    }

    pub(super) fn follow_addresses(&self, host_addresses: HostAddresses) {
        self.spawn(host_addresses.run(self.stop.clone()));
    }

    pub(super) fn limit_cgroups(
        &self,
        cgroups: &Arc<Cgroups>,
        all_pods: CgroupConfig,
        events: LimitEvents,
    ) {
        self.spawn(node_limits::refresh_classes(cgroups.clone(), self.stop.clone()));
        self.spawn(node_limits::limit_pods(cgroups.clone(), all_pods, events, self.stop.clone()));
    }

    pub(super) fn keep_processes(&self, cgroups: &Arc<Cgroups>, groups: ProcessGroups) {
        self.spawn(node_limits::keep_processes(cgroups.clone(), groups, self.stop.clone()));
    }

    /// Tells the runtime which addresses pods get, and maintains the node's packet filter.
    pub(super) fn set_up_network(
        &self,
        runtime: &RuntimeAccess,
        pod_ranges: String,
        shown: watch::Receiver<OwnNode>,
        packet_filter: Option<Vec<PathBuf>>,
    ) {
        let client = runtime.client.clone();
        self.spawn(pod_ranges::sync_pod_cidrs(client, pod_ranges, shown, self.stop.clone()));
        if let Some(directories) = packet_filter {
            self.spawn(packet_filter::maintain(directories, self.stop.clone()));
        }
    }

    /// Follows the Node object, and maintains it and its lease.
    pub(super) fn maintain_node_object(
        &self,
        client: kube::Client,
        shown: watch::Sender<OwnNode>,
        lease: LeaseRenewer,
        heartbeat: Heartbeat,
    ) {
        let name = lease.node.clone();
        self.spawn(own_node::follow(client, name, shown, self.stop.clone()));
        self.spawn(lease.run(self.stop.clone()));
        self.spawn(heartbeat.run(self.stop.clone()));
    }

    /// Serves the debug socket. A failure is only logged: the agent runs pods without it.
    pub(super) fn serve_debug_socket(&self, root: &Path, dependencies: DebugSocketDependencies) {
        match debug_socket::serve(root, dependencies, self.stop.clone()) {
            Ok(serving) => self.spawn(serving),
            Err(error) => tracing::warn!(
                error = chain(&error),
                "serve debug socket failed, `podwright why` is not available"
            ),
        }
    }

    /// Starts the pod sources and returns which there are.
    pub(super) fn start_sources(
        &self,
        features: PodFeatures,
        (reporter, clock): (ManifestReporter, Clock),
        manifests: Option<(PathBuf, Duration)>,
        manifest_url: Option<ManifestUrl>,
        adoption: Adoption,
        api: Option<kube::Client>,
    ) -> (Vec<Source>, mpsc::Receiver<Delivery>) {
        let (deliveries, received) = mpsc::channel(DELIVERIES);
        let (static_pods, to_adopt) = mpsc::channel(1);
        self.spawn(adoption.run(to_adopt, deliveries.clone(), self.stop.clone()));
        let mut sources = Vec::new();
        let node_name = reporter.node.clone();
        if let Some((path, recheck)) = manifests {
            sources.push(Source::File);
            let manifests = Manifests::new(path, recheck, features, reporter, clock);
            self.spawn(manifests.run(static_pods.clone(), self.stop.clone()));
        }
        if let Some(remote) = manifest_url {
            sources.push(Source::Http);
            self.spawn(remote.run(static_pods, self.stop.clone()));
        }
        if let Some(client) = api {
            sources.push(Source::Api);
            let stop = self.stop.clone();
            self.spawn(async move { api::run(client, &node_name, deliveries, stop).await });
        }
        (sources, received)
    }

    /// Keeps volumes up to date with the objects in them.
    pub(super) fn refresh_volumes(
        &self,
        resources: &NodeResources,
        node_name: &Arc<str>,
        pod_index: &Arc<PodIndex>,
        pleg: &Arc<Pleg>,
        events: &Recorder,
    ) {
        let NodeResources { objects, volumes, .. } = resources.clone();
        self.spawn(objects.follow_services(node_name.clone(), self.stop.clone()));
        let (pod_index, pleg) = (pod_index.clone(), pleg.clone());
        self.spawn(volumes.keep(pod_index, pleg, events.clone(), self.stop.clone()));
    }

    pub(super) fn deliver_events(
        &self,
        occurrences: mpsc::Receiver<Occurrence>,
        limiter: EventLimiter,
        api: Option<kube::Client>,
        node_name: Arc<str>,
        own_node: watch::Receiver<OwnNode>,
    ) {
        let stop = self.stop.clone();
        self.spawn(events::deliver(occurrences, limiter, api, node_name, own_node, stop));
    }

    /// Maintains the pods in the API: mirror pods and statuses.
    /// Statuses are sent by `urgent`, a client without a limit, which keep to the rate themselves.
    pub(super) fn report_pods(
        &self,
        mirrors: Mirrors,
        status: &Arc<StatusManager>,
        urgent: kube::Client,
        rate: Arc<RequestRate>,
    ) {
        self.spawn(mirrors.run(self.stop.clone()));
        self.spawn(status.clone().run(urgent, rate, self.stop.clone()));
    }

    pub(super) fn report_oom_kills(&self, log: PathBuf, events: &Recorder, node: &Arc<str>) {
        let (following, stop) = (oom::follow(log, events.clone(), node.clone()), self.stop.clone());
        self.spawn(async move {
            stop.run_until_cancelled(following).await;
        });
    }

    pub(super) fn delay_shutdowns(&self, manager: ShutdownManager) {
        self.spawn(manager.run(self.stop.clone()));
    }

    pub(super) fn manage_pods(
        &self,
        dependencies: PodManagerDependencies,
        sources: Vec<Source>,
        deliveries: mpsc::Receiver<Delivery>,
    ) {
        let allocations = dependencies.resources.allocations.clone();
        let pods = PodManager::new(dependencies, sources, self.stop.clone());
        self.spawn(pods.run(deliveries));
        self.spawn(allocations.run(self.stop.clone()));
    }
}
