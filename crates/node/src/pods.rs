//! Which pods this node runs: sources in, workers out.
//!
//! One task hears all sources, merges what they say, and folds each change into the pod's cell;
//! the pod's worker does the rest. It never waits for a pod, so one that hangs delays nobody.
//! Every two seconds it looks for what nobody takes care of any more.

mod admitting;
mod directory;
mod ending;
mod housekeeping;
mod orphan;
mod resizes;
mod stopping;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::{Kill, Lifecycle, Request};
use podwright_core::pod::merge::{Changes, Merge, News, Refused};
use podwright_core::pod::registry::is_mirror;
use podwright_core::pod::{Pod, Source};
use podwright_core::status::conditions::ready_is_stale;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use admitting::Parked;
pub use directory::{BURST, Directory};
pub use ending::{EndError, end};
use housekeeping::{Finding, Looks};
pub use stopping::{StoppingPod, StoppingPods};

use crate::cell::PodCell;
use crate::events::Severity;
use crate::probes::Prober;
use crate::tools::Tools;
use crate::worker::{Outcome, Worker};

const HOUSEKEEPING: Duration = Duration::from_secs(2);

/// News from a source, as it arrives here.
#[derive(Debug)]
pub struct Delivery {
    pub source: Source,
    pub news: News,
}

pub struct Pods {
    tools: Arc<Tools>,
    directory: Arc<Directory>,
    merge: Merge,
    /// The sources this node has; until all were heard nothing is taken for gone.
    sources: Vec<Source>,
    /// Static pods that wait for another one of their name to end.
    queues: BTreeMap<PodName, VecDeque<PodUid>>,
    /// Pods that wish for other resources than they have and were not answered yet.
    undecided: BTreeSet<PodUid>,
    workers: TaskTracker,
    ended: (mpsc::UnboundedSender<PodUid>, mpsc::UnboundedReceiver<PodUid>),
    /// Pods of the runtime that are being ended.
    orphans: BTreeSet<PodUid>,
    orphan_ended: (mpsc::UnboundedSender<PodUid>, mpsc::UnboundedReceiver<PodUid>),
    looks: Looks,
    findings: (mpsc::UnboundedSender<Finding>, mpsc::UnboundedReceiver<Finding>),
    /// Pods that are neither taken nor turned away yet.
    parked: Vec<Parked>,
    stop: CancellationToken,
}

impl Pods {
    pub fn new(
        tools: Arc<Tools>,
        directory: Arc<Directory>,
        sources: Vec<Source>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            tools,
            directory,
            merge: Merge::default(),
            sources,
            queues: BTreeMap::new(),
            undecided: BTreeSet::new(),
            workers: TaskTracker::new(),
            ended: mpsc::unbounded_channel(),
            orphans: BTreeSet::new(),
            orphan_ended: mpsc::unbounded_channel(),
            looks: Looks::default(),
            findings: mpsc::unbounded_channel(),
            parked: Vec::new(),
            stop,
        }
    }

    /// Runs until stopped, then waits for the workers; containers run on.
    pub async fn run(mut self, mut deliveries: mpsc::Receiver<Delivery>) {
        let stop = self.stop.clone();
        // Before the first look at the runtime nobody knows which pods are alive.
        if stop.run_until_cancelled(self.tools.pleg.first_relist()).await.is_none() {
            return;
        }
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut node = self.tools.admission.shown();
        let mut stopping = self.directory.stopping();
        loop {
            self.directory.turned(self.tools.clock.now().mono);
            tokio::select! { biased;
                () = stop.cancelled() => break,
                Ok(()) = stopping.changed() => self.stop_all(),
                // All are cancel-safe: nothing is taken that is not handled below.
                Some(uid) = self.ended.1.recv() => self.forget_or_restart(&uid),
                Some(uid) = self.orphan_ended.1.recv() => {
                    self.orphans.remove(&uid);
                    self.tools.metrics.pods.ending_orphans.set(self.orphans.len());
                    self.tools.pleg.leftovers().notify_one();
                    self.looks.groups_soon();
                }
                Some(delivery) = deliveries.recv() => self.hear(delivery),
                Ok(()) = node.changed() => {}
                Some(finding) = self.findings.1.recv() => self.take_in(finding),
                _ = housekeeping.tick() => self.keep_house(),
            }
            if !self.directory.is_stopping() {
                self.judge_parked();
            }
        }
        self.workers.close();
        self.workers.wait().await;
    }

    /// Folds one delivery in and hands the changes on, in upstream's order.
    fn hear(&mut self, delivery: Delivery) {
        let now = self.tools.clock.now().wall;
        let changes = self.merge.fold(delivery.source, delivery.news, now);
        self.handle(changes);
        let heard = self.sources.iter().all(|source| self.merge.has_delivered(*source));
        self.directory.set_sources_ready(heard);
        self.directory.set_api_heard(self.merge.has_delivered(Source::Api));
    }

    fn handle(&mut self, changes: Changes) {
        for Refused { object, reason } in &changes.refused {
            let (namespace, name) = (&object.namespace, &object.name);
            tracing::warn!(namespace, name, reason, "cannot run this pod");
            let (severity, text) = (Severity::Warning, reason.clone());
            self.tools.events.record(object.clone(), severity, "FailedValidation", text);
        }
        for pod in changes.removed {
            self.remove(&pod);
        }
        let mut added = changes.added;
        // Whoever is here already is counted first.
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
        self.directory.put(pod.clone());
        if is_mirror(&pod) {
            return self.mirror_changed(&pod);
        }
        if let Some(cell) = self.directory.cell(&pod.uid) {
            cell.update(self.resized(&pod), Request::Create);
            return;
        }
        if !self.may_start(&pod) {
            return;
        }
        let over = pod.api_phase.is_terminal() || pod.deletion.is_some();
        if over { self.start_in_order(pod) } else { self.admit(pod) }
    }

    fn update(&mut self, pod: Arc<Pod>) {
        self.directory.put(pod.clone());
        if is_mirror(&pod) {
            return self.mirror_changed(&pod);
        }
        if pod.deletion.is_some() {
            self.tools.status.look_again(&pod.uid);
        }
        match self.directory.cell(&pod.uid) {
            Some(cell) => drop(cell.update(self.resized(&pod), Request::Update)),
            // A rejected pod that is now to be deleted still has to be finished.
            None if self.update_parked(&pod) => {}
            None if pod.deletion.is_some() => self.start_in_order(pod),
            None => {}
        }
    }

    fn remove(&mut self, pod: &Arc<Pod>) {
        self.directory.remove(pod);
        if is_mirror(pod) {
            return self.mirror_changed(pod);
        }
        self.forget_parked(&pod.uid);
        if let Some(cell) = self.directory.cell(&pod.uid) {
            cell.request(Request::Kill(Kill::default()));
        }
    }

    /// Only the status changed in the API: usually our own report coming back.
    fn reconcile(&mut self, pod: &Arc<Pod>) {
        self.directory.put(pod.clone());
        let Some(cell) = self.directory.cell(&pod.uid) else { return };
        let granted = self.tools.allocations.granted(pod);
        // A readiness gate that someone turned, or an end that someone else declared.
        if ready_is_stale(pod) || pod.api_phase.is_terminal() {
            cell.update(granted, Request::Update);
        } else {
            cell.refresh(granted);
        }
    }

    /// The static pod behind a mirror looks after it.
    fn mirror_changed(&self, mirror: &Pod) {
        self.tools.status.mirror_changed();
        let cell = self.directory.behind(mirror).and_then(|pod| self.directory.cell(&pod.uid));
        if let Some(cell) = cell {
            cell.retry();
        }
    }

    /// A static pod waits until the one before it under the same name has ended.
    fn start_in_order(&mut self, pod: Arc<Pod>) {
        if !pod.is_static() {
            return self.start(pod);
        }
        let running = self.directory.other_static(&pod);
        let queue = self.queues.entry(pod.name.clone()).or_default();
        if running || !queue.is_empty() {
            tracing::info!(pod = %pod.name, "waits for the static pod of the same name to end");
            queue.push_back(pod.uid.clone());
            return;
        }
        self.start(pod);
    }

    fn start(&mut self, pod: Arc<Pod>) {
        let wished = pod;
        let pod = self.tools.allocations.admit(&wished);
        if !Arc::ptr_eq(&pod, &wished) {
            self.undecided.insert(pod.uid.clone());
        }
        let alive = self.tools.pleg.is_alive(&pod.uid);
        let mut life = Lifecycle::begin(&pod, alive);
        life.request(Request::Update, &pod);
        if self.directory.is_stopping() {
            life.request(Request::StopNode, &pod);
        }
        let cell = PodCell::new(pod.clone(), life);
        self.directory.put_cell(pod.uid.clone(), cell.clone());
        if let Some(prober) = Prober::new(cell.clone(), &self.tools) {
            self.workers.spawn(prober.run(self.stop.clone()));
        }
        let worker = Worker::new(cell, self.tools.clone());
        let (ended, stop) = (self.ended.0.clone(), self.stop.clone());
        self.workers.spawn(async move {
            match worker.run(stop).await {
                // The receiver lives as long as the task that spawned us.
                Outcome::Finished => drop(ended.send(pod.uid.clone())),
                Outcome::Stopped => {}
            }
        });
    }

    /// A life ended. The UID may be wanted again, its name by another static pod.
    fn forget_or_restart(&mut self, uid: &PodUid) {
        let Some(cell) = self.directory.cell(uid) else { return };
        self.tools.pleg.leftovers().notify_one();
        self.looks.groups_soon();
        let (pod, life) = (cell.pod(), cell.life());
        if life.is_wanted_again()
            && let Some(pod) = self.directory.pod(uid)
            && self.may_start(&pod)
        {
            self.directory.drop_cell(uid);
            let metrics = &self.tools.metrics.pods;
            if pod.is_static() { &metrics.restarted_static } else { &metrics.restarted }.inc();
            self.start_in_order(pod);
        } else if self.directory.pod(uid).is_none() {
            self.directory.drop_cell(uid);
            self.tools.pleg.forget(uid);
        }
        if pod.is_static() {
            self.start_next(&pod.name);
        }
    }

    fn start_next(&mut self, name: &PodName) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        while let Some(uid) = queue.pop_front() {
            // One that was removed before it could start has nothing to end.
            if let Some(pod) = self.directory.pod(&uid)
                && stopping::may_start(&self.tools, &self.directory, &pod)
            {
                return self.start(pod);
            }
        }
        self.queues.remove(name);
    }
}

fn created(pod: &Pod) -> Option<jiff::Timestamp> {
    pod.object.metadata.creation_timestamp.as_ref().map(|time| time.0)
}
