//! Pod manager: merges the pod sources and starts a worker for each pod.
//!
//! One task receives the updates of all sources, merges them and passes each change to the handle
//! of the pod; the pod worker does the rest. The task never waits for a pod, so a pod that hangs
//! does not delay others. Housekeeping runs every two seconds and removes orphans.

pub mod admission;
mod admitting;
pub mod allocations;
mod ending;
mod housekeeping;
pub mod journal;
pub mod mirrors;
mod orphan;
pub(crate) mod pod_changes;
pub mod pod_handle;
mod pod_index;
mod resizes;
pub mod shutdown;
mod stopping;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::{Kill, Lifecycle, Request};
use podwright_core::pod::desired::is_mirror;
use podwright_core::pod::merge::{Changes, RefusedPod, SourceMerger, SourceUpdate};
use podwright_core::pod::{Pod, Source};
use podwright_core::status::conditions::ready_is_stale;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use admission::Admission;
use admitting::Admitting;
use allocations::Allocations;
pub use ending::{EndError, end};
use housekeeping::{Housekeeping, HousekeepingDependencies, ScanResult};
pub use orphan::OrphanHandle;
pub use pod_index::{CHANGE_DEBOUNCE, PodIndex};
use pod_index::{Entry, Part};
pub use resizes::NodeCapacity;
use resizes::Resizes;
pub use stopping::{StoppingPod, StoppingPods};

use crate::pods::pod_handle::PodHandle;
use crate::report::Reporting;
use crate::report::events::Severity;
use crate::resources::NodeResources;
use crate::runtime::RuntimeAccess;
use crate::worker::context::WorkerContext;
use crate::worker::probes::{ProbeContext, Prober};
use crate::worker::{Worker, WorkerOutcome};

const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(2);

/// An update from a pod source.
#[derive(Debug)]
pub struct Delivery {
    pub source: Source,
    pub news: SourceUpdate,
}

/// The components of the node that the pod manager uses.
pub struct PodManagerDependencies {
    pub pod_index: Arc<PodIndex>,
    pub admission: Arc<Admission>,
    pub resources: NodeResources,
    pub reporting: Reporting,
    pub runtime: RuntimeAccess,
    pub capacity: NodeCapacity,
    pub worker: Arc<WorkerContext>,
    pub prober: Arc<ProbeContext>,
}

pub struct PodManager {
    pod_index: Arc<PodIndex>,
    runtime: RuntimeAccess,
    reporting: Reporting,
    allocations: Arc<Allocations>,
    workers: Workers,
    merge: SourceMerger,
    /// Configured sources. No pod counts as deleted before each of them has delivered once.
    sources: Vec<Source>,
    /// Static pods that wait until an earlier static pod of the same name has ended.
    queues: BTreeMap<PodName, VecDeque<PodUid>>,
    admitting: Admitting,
    resizes: Resizes,
    housekeeping: Housekeeping,
    scan_results: mpsc::UnboundedReceiver<ScanResult>,
    ended: mpsc::UnboundedReceiver<PodUid>,
    orphan_ended: mpsc::UnboundedReceiver<PodUid>,
    stop: CancellationToken,
}

/// Starts the tasks of pods.
struct Workers {
    worker: Arc<WorkerContext>,
    prober: Arc<ProbeContext>,
    /// All tasks of the pod manager.
    tasks: TaskTracker,
    ended: mpsc::UnboundedSender<PodUid>,
    stop: CancellationToken,
}

impl Workers {
    fn start(&self, handle: Arc<PodHandle>) {
        if let Some(prober) = Prober::new(handle.clone(), self.prober.clone()) {
            self.tasks.spawn(prober.run(self.stop.clone()));
        }
        // Not the pod: the task would hold its first version as long as the pod runs.
        let uid = handle.pod().uid.clone();
        let worker = Worker::new(handle, self.worker.clone());
        let (ended, stop) = (self.ended.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            match worker.run(stop).await {
                // The receiver outlives this task.
                WorkerOutcome::Finished => drop(ended.send(uid)),
                WorkerOutcome::Stopped => {}
            }
        });
    }
}

impl PodManager {
    pub fn new(
        dependencies: PodManagerDependencies,
        sources: Vec<Source>,
        stop: CancellationToken,
    ) -> Self {
        let PodManagerDependencies {
            pod_index,
            admission,
            resources,
            reporting,
            runtime,
            capacity,
            worker,
            prober,
        } = dependencies;
        let allocations = resources.allocations.clone();
        let features = worker.settings.features;
        let tasks = TaskTracker::new();
        let (ended_sender, ended) = mpsc::unbounded_channel();
        let (orphan_ended_sender, orphan_ended) = mpsc::unbounded_channel();
        let admitting = Admitting {
            pod_index: pod_index.clone(),
            admission: admission.clone(),
            allocations: allocations.clone(),
            reporting: reporting.clone(),
            runtime: runtime.clone(),
            parked: Vec::new(),
        };
        let resizes = Resizes {
            pod_index: pod_index.clone(),
            admission: admission.clone(),
            allocations: allocations.clone(),
            events: reporting.events.clone(),
            clock: runtime.clock.clone(),
            capacity,
            undecided: BTreeSet::new(),
            evaluated: None,
        };
        let (housekeeping, scan_results) = Housekeeping::new(HousekeepingDependencies {
            pod_index: pod_index.clone(),
            admission,
            resources,
            reporting: reporting.clone(),
            runtime: runtime.clone(),
            tasks: tasks.clone(),
            orphan_ended: orphan_ended_sender,
            stop: stop.clone(),
        });
        Self {
            pod_index,
            runtime,
            reporting,
            allocations,
            workers: Workers { worker, prober, tasks, ended: ended_sender, stop: stop.clone() },
            merge: SourceMerger::new(features),
            sources,
            queues: BTreeMap::new(),
            admitting,
            resizes,
            housekeeping,
            scan_results,
            ended,
            orphan_ended,
            stop,
        }
    }

    /// Runs until stopped, then waits for the workers. Containers keep running.
    pub async fn run(mut self, mut deliveries: mpsc::Receiver<Delivery>) {
        let stop = self.stop.clone();
        // Which pods have running containers is unknown before the first relist.
        if stop.run_until_cancelled(self.runtime.pleg.first_relist()).await.is_none() {
            return;
        }
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING_INTERVAL);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut node = self.admitting.admission.own_node();
        let mut stopping = self.pod_index.stopping();
        loop {
            self.pod_index.note_loop(self.runtime.clock.now().mono);
            tokio::select! { biased;
                () = stop.cancelled() => break,
                Ok(()) = stopping.changed() => self.stop_all(),
                // All arms are cancel-safe: nothing is received without being handled below.
                Some(uid) = self.ended.recv() => self.forget_or_restart(&uid),
                Some(uid) = self.orphan_ended.recv() => self.forget_orphan(&uid),
                Some(delivery) = deliveries.recv() => self.receive(delivery),
                Ok(()) = node.changed() => {}
                Some(finding) = self.scan_results.recv() => self.housekeeping.handle_scan(finding),
                _ = housekeeping.tick() => self.housekeep(),
            }
            if !self.pod_index.is_stopping() {
                self.retry_parked();
            }
        }
        self.workers.tasks.close();
        self.workers.tasks.wait().await;
    }

    /// Merges one delivery and applies the changes, in upstream's order.
    fn receive(&mut self, delivery: Delivery) {
        let now = self.runtime.clock.now().wall;
        let changes = self.merge.fold(delivery.source, delivery.news, now);
        self.apply(changes);
        let delivered = self.sources.iter().all(|source| self.merge.has_delivered(*source));
        self.pod_index.set_sources_ready(delivered);
        self.pod_index.set_api_synced(self.merge.has_delivered(Source::Api));
    }

    fn apply(&mut self, changes: Changes) {
        for RefusedPod { object, reason } in &changes.refused {
            let (namespace, name) = (&object.namespace, &object.name);
            tracing::warn!(namespace, name, reason, "validate pod: rejected, not running it");
            let (severity, text) = (Severity::Warning, reason.clone());
            self.reporting.events.record(object.clone(), severity, "FailedValidation", text);
        }
        for pod in changes.removed {
            self.remove(&pod);
        }
        let mut added = changes.added;
        // Pods that already run are admitted first, so that new pods cannot take their resources.
        added.sort_by_key(|pod| (!self.admitting.is_settled(pod), created(pod)));
        for pod in added {
            self.add(pod);
        }
        for pod in changes.updated.into_iter().chain(changes.deleting) {
            self.update(pod);
        }
        for pod in changes.reconciled {
            self.reconcile(&pod);
        }
    }

    fn add(&mut self, pod: Arc<Pod>) {
        self.pod_index.upsert(Entry::Desired(pod.clone()));
        if is_mirror(&pod) {
            return self.mirror_changed(&pod);
        }
        if let Some(handle) = self.pod_index.handle(&pod.uid) {
            handle.update(self.resizes.resized(&pod), Request::Create);
            return;
        }
        if !self.may_start(&pod) {
            return;
        }
        let over = pod.api_phase.is_terminal() || pod.deletion.is_some();
        if over {
            return self.start_in_order(pod);
        }
        let queued = self.queued();
        if let Some(admitted) = self.admitting.admit(pod, &queued) {
            self.start_in_order(admitted);
        }
    }

    fn update(&mut self, pod: Arc<Pod>) {
        self.pod_index.upsert(Entry::Desired(pod.clone()));
        if is_mirror(&pod) {
            return self.mirror_changed(&pod);
        }
        if pod.deletion.is_some() {
            self.reporting.status.recheck(&pod.uid);
        }
        match self.pod_index.handle(&pod.uid) {
            Some(handle) => drop(handle.update(self.resizes.resized(&pod), Request::Update)),
            // A rejected pod that is being deleted still needs a worker to finish it.
            None if self.admitting.update_parked(&pod) => {}
            None if pod.deletion.is_some() => self.start_in_order(pod),
            None => {}
        }
    }

    fn remove(&mut self, pod: &Arc<Pod>) {
        self.pod_index.remove(Part::Desired(pod));
        if is_mirror(pod) {
            return self.mirror_changed(pod);
        }
        self.admitting.forget_parked(&pod.uid);
        if let Some(handle) = self.pod_index.handle(&pod.uid) {
            handle.request(Request::Kill(Kill::default()));
        }
    }

    /// Handles a change of the status in the API only: usually our own report.
    fn reconcile(&mut self, pod: &Arc<Pod>) {
        self.pod_index.upsert(Entry::Desired(pod.clone()));
        let Some(handle) = self.pod_index.handle(&pod.uid) else { return };
        let granted = self.allocations.granted(pod);
        // A readiness gate changed, or another client set a terminal phase.
        if ready_is_stale(pod) || pod.api_phase.is_terminal() {
            handle.update(granted, Request::Update);
        } else {
            handle.refresh(granted);
        }
    }

    /// Wakes the worker of the static pod that a mirror pod belongs to.
    fn mirror_changed(&self, mirror: &Pod) {
        self.reporting.status.mirror_changed();
        let handle =
            self.pod_index.static_pod_of(mirror).and_then(|pod| self.pod_index.handle(&pod.uid));
        if let Some(handle) = handle {
            handle.retry();
        }
    }

    /// Starts a pod; a static pod waits until earlier static pods of the same name have ended.
    fn start_in_order(&mut self, pod: Arc<Pod>) {
        if !pod.is_static() {
            return self.start(pod);
        }
        let running = self.pod_index.other_static(&pod);
        let queue = self.queues.entry(pod.name.clone()).or_default();
        if running || !queue.is_empty() {
            tracing::info!(pod = %pod.name, "start static pod: waiting for the previous pod of the same name to end");
            queue.push_back(pod.uid.clone());
            return;
        }
        self.start(pod);
    }

    fn start(&mut self, pod: Arc<Pod>) {
        // Two tasks must not act on one UID.
        if let Some(orphan) = self.pod_index.orphan(&pod.uid) {
            tracing::info!(pod = %pod.name, uid = %pod.uid, "start waits for the orphaned pod of this UID");
            orphan.note_successor(&pod);
            return;
        }
        let requested = pod;
        let pod = self.allocations.admit(&requested);
        if !Arc::ptr_eq(&pod, &requested) {
            self.resizes.evaluate_later(&pod.uid);
        }
        let alive = self.runtime.pleg.is_alive(&pod.uid);
        let mut lifecycle = Lifecycle::begin(&pod, alive);
        lifecycle.request(Request::Update, &pod);
        if self.pod_index.is_stopping() {
            lifecycle.request(Request::StopNode, &pod);
        }
        let handle = PodHandle::new(pod, lifecycle);
        self.pod_index.upsert(Entry::Worker(handle.clone()));
        self.workers.start(handle);
    }

    fn retry_parked(&mut self) {
        for parked in self.admitting.take_due() {
            let queued = self.queued();
            if let Some(admitted) = self.admitting.admit_parked(parked, &queued) {
                self.start_in_order(admitted);
            }
        }
    }

    /// One round, every two seconds.
    fn housekeep(&mut self) {
        let Some(pods) = self.housekeeping.pods_to_check() else { return };
        for uid in self.housekeeping.end_unwanted(&pods) {
            self.forget_or_restart(&uid);
        }
        self.housekeeping.clean_up(&pods);
        self.resizes.retry();
    }

    /// Handles the end of an orphaned pod. A pod with its UID may wait.
    fn forget_orphan(&mut self, uid: &PodUid) {
        let Some(orphan) = self.pod_index.orphan(uid) else { return };
        self.pod_index.remove(Part::Handle(uid));
        self.runtime.pleg.forget(uid);
        self.reporting.metrics.pods.ending_orphans.set(self.pod_index.orphans().len());
        self.runtime.pleg.gc_wakeup().notify_one();
        self.housekeeping.list_cgroups_soon();
        if orphan.has_successor()
            && let Some(pod) = self.pod_index.pod(uid)
            && self.may_start(&pod)
        {
            self.start_in_order(pod);
        }
    }

    /// Handles the end of a worker. The pod may be wanted again, or a static pod may wait for its
    /// name.
    fn forget_or_restart(&mut self, uid: &PodUid) {
        let Some(handle) = self.pod_index.handle(uid) else { return };
        self.runtime.pleg.gc_wakeup().notify_one();
        self.housekeeping.list_cgroups_soon();
        let (pod, lifecycle) = (handle.pod(), handle.lifecycle());
        if lifecycle.is_recreated()
            && let Some(pod) = self.pod_index.pod(uid)
            && self.may_start(&pod)
        {
            self.pod_index.remove(Part::Handle(uid));
            let metrics = &self.reporting.metrics.pods;
            if pod.is_static() { &metrics.restarted_static } else { &metrics.restarted }.inc();
            self.start_in_order(pod);
        } else if self.pod_index.pod(uid).is_none() {
            self.pod_index.remove(Part::Handle(uid));
            self.runtime.pleg.forget(uid);
        }
        if pod.is_static() {
            self.start_next(&pod.name);
        }
    }

    fn start_next(&mut self, name: &PodName) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        while let Some(uid) = queue.front().cloned() {
            // A pod that was removed before its start needs no worker.
            let pod = self.pod_index.pod(&uid).filter(|pod| {
                let started = self.pod_index.handle(&uid).is_some();
                !started && stopping::may_start(&self.runtime.pleg, &self.pod_index, pod)
            });
            // Another one may have started meanwhile; its end calls this again.
            if pod.as_ref().is_some_and(|pod| self.pod_index.other_static(pod)) {
                return;
            }
            queue.pop_front();
            if let Some(pod) = pod {
                return self.start(pod);
            }
        }
        self.queues.remove(name);
    }

    /// Admitted pods that wait for another one with their name or UID to end.
    fn queued(&self) -> Vec<Arc<Pod>> {
        let orphans = self.pod_index.orphans();
        let after_orphan =
            orphans.iter().filter(|orphan| orphan.has_successor()).map(|orphan| orphan.uid());
        let waiting = self.queues.values().flatten().chain(after_orphan);
        waiting.filter_map(|uid| self.pod_index.pod(uid)).collect()
    }

    /// Requests that every pod stops. Pods found running later are stopped when they are found.
    fn stop_all(&mut self) {
        tracing::info!("stopping all pods because the node is being stopped");
        for (_, handle) in self.pod_index.handles() {
            handle.request(Request::StopNode);
        }
    }

    fn may_start(&self, pod: &Pod) -> bool {
        stopping::may_start(&self.runtime.pleg, &self.pod_index, pod)
    }
}

fn created(pod: &Pod) -> Option<jiff::Timestamp> {
    pod.object.metadata.creation_timestamp.as_ref().map(|time| time.0)
}
