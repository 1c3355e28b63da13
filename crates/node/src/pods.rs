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
pub mod pod_handle;
mod pod_index;
mod resizes;
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
use admitting::Parked;
pub use ending::{EndError, end};
use housekeeping::{HousekeepingScans, ScanResult};
pub use pod_index::{CHANGE_DEBOUNCE, PodIndex};
pub use resizes::NodeCapacity;
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
    dependencies: PodManagerDependencies,
    pod_index: Arc<PodIndex>,
    merge: SourceMerger,
    /// Configured sources. No pod counts as deleted before each of them has delivered once.
    sources: Vec<Source>,
    /// Static pods that wait until an earlier static pod of the same name has ended.
    queues: BTreeMap<PodName, VecDeque<PodUid>>,
    /// Pods with a resize request that was not evaluated yet.
    undecided: BTreeSet<PodUid>,
    workers: TaskTracker,
    ended: (mpsc::UnboundedSender<PodUid>, mpsc::UnboundedReceiver<PodUid>),
    /// Orphaned pods of the runtime that are being stopped.
    orphans: BTreeSet<PodUid>,
    /// Pods that start when the orphaned runtime pod with their UID has ended.
    after_orphan: BTreeSet<PodUid>,
    orphan_ended: (mpsc::UnboundedSender<PodUid>, mpsc::UnboundedReceiver<PodUid>),
    scans: HousekeepingScans,
    scan_results: (mpsc::UnboundedSender<ScanResult>, mpsc::UnboundedReceiver<ScanResult>),
    /// Pods that are neither admitted nor rejected yet.
    parked: Vec<Parked>,
    stop: CancellationToken,
}

impl PodManager {
    pub fn new(
        dependencies: PodManagerDependencies,
        sources: Vec<Source>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            pod_index: dependencies.pod_index.clone(),
            dependencies,
            merge: SourceMerger::default(),
            sources,
            queues: BTreeMap::new(),
            undecided: BTreeSet::new(),
            workers: TaskTracker::new(),
            ended: mpsc::unbounded_channel(),
            orphans: BTreeSet::new(),
            after_orphan: BTreeSet::new(),
            orphan_ended: mpsc::unbounded_channel(),
            scans: HousekeepingScans::default(),
            scan_results: mpsc::unbounded_channel(),
            parked: Vec::new(),
            stop,
        }
    }

    /// Runs until stopped, then waits for the workers. Containers keep running.
    pub async fn run(mut self, mut deliveries: mpsc::Receiver<Delivery>) {
        let stop = self.stop.clone();
        // Which pods have running containers is unknown before the first relist.
        if stop.run_until_cancelled(self.dependencies.runtime.pleg.first_relist()).await.is_none() {
            return;
        }
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING_INTERVAL);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut node = self.dependencies.admission.own_node();
        let mut stopping = self.pod_index.stopping();
        loop {
            self.pod_index.note_loop(self.dependencies.runtime.clock.now().mono);
            tokio::select! { biased;
                () = stop.cancelled() => break,
                Ok(()) = stopping.changed() => self.stop_all(),
                // All arms are cancel-safe: nothing is received without being handled below.
                Some(uid) = self.ended.1.recv() => self.forget_or_restart(&uid),
                Some(uid) = self.orphan_ended.1.recv() => {
                    self.orphans.remove(&uid);
                    self.dependencies.reporting.metrics.pods.ending_orphans.set(self.orphans.len());
                    self.dependencies.runtime.pleg.gc_wakeup().notify_one();
                    self.scans.list_cgroups_soon();
                    self.start_after_orphan(&uid);
                }
                Some(delivery) = deliveries.recv() => self.receive(delivery),
                Ok(()) = node.changed() => {}
                Some(finding) = self.scan_results.1.recv() => self.handle_scan(finding),
                _ = housekeeping.tick() => self.housekeep(),
            }
            if !self.pod_index.is_stopping() {
                self.retry_parked();
            }
        }
        self.workers.close();
        self.workers.wait().await;
    }

    /// Merges one delivery and applies the changes, in upstream's order.
    fn receive(&mut self, delivery: Delivery) {
        let now = self.dependencies.runtime.clock.now().wall;
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
            self.dependencies.reporting.events.record(
                object.clone(),
                severity,
                "FailedValidation",
                text,
            );
        }
        for pod in changes.removed {
            self.remove(&pod);
        }
        let mut added = changes.added;
        // Pods that already run are admitted first, so that new pods cannot take their resources.
        added.sort_by_key(|pod| (!self.is_settled(pod), created(pod)));
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
        self.pod_index.put(pod.clone());
        if is_mirror(&pod) {
            return self.mirror_changed(&pod);
        }
        if let Some(handle) = self.pod_index.handle(&pod.uid) {
            handle.update(self.resized(&pod), Request::Create);
            return;
        }
        if !self.may_start(&pod) {
            return;
        }
        let over = pod.api_phase.is_terminal() || pod.deletion.is_some();
        if over { self.start_in_order(pod) } else { self.admit(pod) }
    }

    fn update(&mut self, pod: Arc<Pod>) {
        self.pod_index.put(pod.clone());
        if is_mirror(&pod) {
            return self.mirror_changed(&pod);
        }
        if pod.deletion.is_some() {
            self.dependencies.reporting.status.recheck(&pod.uid);
        }
        match self.pod_index.handle(&pod.uid) {
            Some(handle) => drop(handle.update(self.resized(&pod), Request::Update)),
            // A rejected pod that is being deleted still needs a worker to finish it.
            None if self.update_parked(&pod) => {}
            None if pod.deletion.is_some() => self.start_in_order(pod),
            None => {}
        }
    }

    fn remove(&mut self, pod: &Arc<Pod>) {
        self.pod_index.remove(pod);
        if is_mirror(pod) {
            return self.mirror_changed(pod);
        }
        self.forget_parked(&pod.uid);
        if let Some(handle) = self.pod_index.handle(&pod.uid) {
            handle.request(Request::Kill(Kill::default()));
        }
    }

    /// Handles a change of the status in the API only: usually our own report.
    fn reconcile(&mut self, pod: &Arc<Pod>) {
        self.pod_index.put(pod.clone());
        let Some(handle) = self.pod_index.handle(&pod.uid) else { return };
        let granted = self.dependencies.resources.allocations.granted(pod);
        // A readiness gate changed, or another client set a terminal phase.
        if ready_is_stale(pod) || pod.api_phase.is_terminal() {
            handle.update(granted, Request::Update);
        } else {
            handle.refresh(granted);
        }
    }

    /// Wakes the worker of the static pod that a mirror pod belongs to.
    fn mirror_changed(&self, mirror: &Pod) {
        self.dependencies.reporting.status.mirror_changed();
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

    fn start_after_orphan(&mut self, uid: &PodUid) {
        if self.after_orphan.remove(uid)
            && let Some(pod) = self.pod_index.pod(uid)
            && self.may_start(&pod)
        {
            self.start_in_order(pod);
        }
    }

    fn start(&mut self, pod: Arc<Pod>) {
        // Two tasks must not act on one UID.
        if self.orphans.contains(&pod.uid) {
            tracing::info!(pod = %pod.name, uid = %pod.uid, "start waits for the orphaned pod of this UID");
            self.after_orphan.insert(pod.uid.clone());
            return;
        }
        let requested = pod;
        let pod = self.dependencies.resources.allocations.admit(&requested);
        if !Arc::ptr_eq(&pod, &requested) {
            self.undecided.insert(pod.uid.clone());
        }
        let alive = self.dependencies.runtime.pleg.is_alive(&pod.uid);
        let mut lifecycle = Lifecycle::begin(&pod, alive);
        lifecycle.request(Request::Update, &pod);
        if self.pod_index.is_stopping() {
            lifecycle.request(Request::StopNode, &pod);
        }
        let handle = PodHandle::new(pod.clone(), lifecycle);
        self.pod_index.insert_handle(&pod.uid, handle.clone());
        if let Some(prober) = Prober::new(handle.clone(), self.dependencies.prober.clone()) {
            self.workers.spawn(prober.run(self.stop.clone()));
        }
        let worker = Worker::new(handle, self.dependencies.worker.clone());
        let (ended, stop) = (self.ended.0.clone(), self.stop.clone());
        // Not the pod: the task would hold its first version as long as the pod runs.
        let uid = pod.uid.clone();
        self.workers.spawn(async move {
            match worker.run(stop).await {
                // The receiver outlives this task.
                WorkerOutcome::Finished => drop(ended.send(uid)),
                WorkerOutcome::Stopped => {}
            }
        });
    }

    /// Handles the end of a worker. The pod may be wanted again, or a static pod may wait for its
    /// name.
    fn forget_or_restart(&mut self, uid: &PodUid) {
        let Some(handle) = self.pod_index.handle(uid) else { return };
        self.dependencies.runtime.pleg.gc_wakeup().notify_one();
        self.scans.list_cgroups_soon();
        let (pod, lifecycle) = (handle.pod(), handle.lifecycle());
        if lifecycle.is_recreated()
            && let Some(pod) = self.pod_index.pod(uid)
            && self.may_start(&pod)
        {
            self.pod_index.remove_handle(uid);
            let metrics = &self.dependencies.reporting.metrics.pods;
            if pod.is_static() { &metrics.restarted_static } else { &metrics.restarted }.inc();
            self.start_in_order(pod);
        } else if self.pod_index.pod(uid).is_none() {
            self.pod_index.remove_handle(uid);
            self.dependencies.runtime.pleg.forget(uid);
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
                !started
                    && stopping::may_start(&self.dependencies.runtime.pleg, &self.pod_index, pod)
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
    fn queued(&self) -> impl Iterator<Item = Arc<Pod>> {
        let waiting = self.queues.values().flatten().chain(&self.after_orphan);
        waiting.filter_map(|uid| self.pod_index.pod(uid))
    }
}

fn created(pod: &Pod) -> Option<jiff::Timestamp> {
    pod.object.metadata.creation_timestamp.as_ref().map(|time| time.0)
}
