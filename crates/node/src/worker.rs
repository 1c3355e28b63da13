//! Pod worker: one task per pod that observes, decides and executes.
//!
//! In the pod handle the worker writes only the attempts; everything else it reads. It never
//! decides on an observation of the runtime that is older than its last call, or it would start a
//! container twice.

mod announce;
pub(crate) mod call_tracker;
pub mod context;
mod decision;
mod execute;
pub mod hooks;
pub mod probes;
mod resize;
pub(crate) mod start;
pub mod start_limiter;
mod stop;
mod stop_record;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::backoff::{Doubling, Retry};
use podwright_core::ids::{ContainerId, PodName, PodUid};
use podwright_core::lifecycle::{Lifecycle, Stage};
use podwright_core::observed::ObservedPod;
use podwright_core::plan::{Plan, kill};
use podwright_core::pod::{Phase, Pod};
use podwright_core::probe::ProbeVerdicts;
use podwright_core::status::NodeAddresses;
use podwright_core::time::{Now, Stopwatch, resync};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::error_chain::chain;
use crate::pods::pod_handle::{Desired, PodHandle};
use crate::report::events::Severity;
use crate::runtime::state::NodeState;
use crate::telemetry::metrics::Operation;
use call_tracker::CallTracker;
use context::WorkerContext;
use decision::Decision;

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerOutcome {
    /// The pod is finished.
    Finished,
    /// The node stops; containers keep running.
    Stopped,
}

/// First and longest delay before a failed inspection is repeated. A successful relist
/// ends the wait.
const INSPECT_RETRY: Doubling = Doubling::new(Duration::from_millis(100), Duration::from_secs(5));

pub struct Worker {
    uid: PodUid,
    name: PodName,
    handle: Arc<PodHandle>,
    context: Arc<WorkerContext>,
    call_tracker: CallTracker,
    /// Observed after our last call, with the notification count before the inspection.
    observed: Option<(Arc<ObservedPod>, u64)>,
    last_plan: Option<Plan>,
    /// The time of the first status report of the pod, and the time since then by our own clock
    /// once it was read.
    active: Option<(Timestamp, Stopwatch)>,
    /// Number of spec updates at the previous decision.
    updates: Option<u64>,
    /// The metric of the first Running was recorded.
    reported_start: bool,
    /// The last instance of each container whose exit was counted.
    counted_exits: BTreeMap<Arc<str>, ContainerId>,
}

/// Everything that can wake the worker.
struct WakeSources {
    desired: watch::Receiver<Desired>,
    probed: watch::Receiver<ProbeVerdicts>,
    notified: watch::Receiver<u64>,
    node: watch::Receiver<NodeState>,
    addresses: watch::Receiver<NodeAddresses>,
    /// Number of recoveries of the runtime, and how many of them were handled.
    recoveries: watch::Receiver<u64>,
    handled_recoveries: u64,
}

impl WakeSources {
    /// Waits for any change. Cancel-safe: `changed` keeps what it did not report.
    async fn any(&mut self) {
        tokio::select! {
            _ = self.desired.changed() => {}
            _ = self.probed.changed() => {}
            _ = self.notified.changed() => {}
            _ = self.node.changed() => {}
            _ = self.addresses.changed() => {}
            _ = self.recoveries.changed() => {}
        }
    }

    /// Whether the runtime has recovered since the last call. Compared with a remembered number,
    /// because waiting for any change has marked this one as seen.
    fn runtime_is_back(&mut self) -> bool {
        let recoveries = *self.recoveries.borrow_and_update();
        std::mem::replace(&mut self.handled_recoveries, recoveries) != recoveries
    }

    /// Waits until the pod must end sooner than the current plan assumes.
    async fn preempted(&mut self, lifecycle: &Lifecycle) {
        let sooner = |now: &Desired| {
            now.lifecycle.stage() != lifecycle.stage() || now.lifecycle.grace() != lifecycle.grace()
        };
        // The sender is in the handle, which the worker holds.
        let _ = self.desired.wait_for(sooner).await;
    }
}

impl Worker {
    pub fn new(handle: Arc<PodHandle>, context: Arc<WorkerContext>) -> Self {
        let pod = handle.pod();
        Self {
            uid: pod.uid.clone(),
            name: pod.name.clone(),
            handle,
            context,
            call_tracker: CallTracker::default(),
            observed: None,
            last_plan: None,
            active: None,
            updates: None,
            reported_start: false,
            counted_exits: BTreeMap::new(),
        }
    }

    /// Runs until the pod is finished or the node stops; stopping leaves containers running.
    pub async fn run(self, stop: CancellationToken) -> WorkerOutcome {
        let span = tracing::info_span!("pod", pod = %self.name, uid = %self.uid);
        let work = self.work().instrument(span);
        stop.run_until_cancelled(work)
            .await
            .map_or(WorkerOutcome::Stopped, |()| WorkerOutcome::Finished)
    }

    async fn work(mut self) {
        let mut wakes = WakeSources {
            desired: self.handle.desired(),
            probed: self.handle.probed(),
            notified: self.handle.notified(),
            node: self.context.node.clone(),
            addresses: self.context.addresses.clone(),
            recoveries: self.context.pleg.recoveries(),
            handled_recoveries: 0,
        };
        self.context.pleg.first_relist().await;
        wakes.handled_recoveries = *wakes.recoveries.borrow_and_update();
        let mut retries = 0;
        let mut operation = Operation::Create;
        loop {
            let view = self.view(&mut wakes).await;
            let cgroup = self.context.resources.cgroups.has_pod(&self.handle.pod()).await;
            // No await from here to the report: the report matches what is read now.
            let began = self.context.clock.now();
            let (desired, probed) = (
                wakes.desired.borrow_and_update().clone(),
                wakes.probed.borrow_and_update().clone(),
            );
            let network = wakes.node.borrow_and_update().network.clone();
            // What failed during an outage of the runtime failed for that reason: retry at once.
            if desired.retry != retries || wakes.runtime_is_back() {
                retries = desired.retry;
                self.handle.attempts.lock().retry_now(began);
            }
            let gathered = self.gather(&view, &desired, &probed, network, cgroup, began);
            let decision = gathered.decide(&self.handle.attempts.lock(), &self.context.settings);
            self.apply(&decision, &view);
            operation = self.operation(operation, desired.updates, &decision, began);
            self.report(&decision, began);
            if self.advance(&decision) {
                if self.handle.stage() == Stage::Finished {
                    self.context.reporting.metrics.worker.dispatched(operation, Duration::ZERO);
                    return;
                }
                continue;
            }
            if decision.plan.steps.is_empty() {
                self.note_operation(operation, began);
                self.wait(&decision.plan, &mut wakes).await;
                operation = Operation::Sync;
                continue;
            }
            self.act(&decision, &view, &mut wakes).await;
            operation = self.note_operation(operation_of(&decision.lifecycle, operation), began);
            if self.handle.stage() == Stage::Finished {
                return;
            }
        }
    }

    /// An observation that is newer than our last call and than the last notification.
    async fn view(&mut self, wakes: &mut WakeSources) -> Arc<ObservedPod> {
        let (mut retry, mut reported) = (Retry::new(INSPECT_RETRY), false);
        loop {
            let count = *wakes.notified.borrow_and_update();
            if let Some((seen, at)) = &self.observed
                && *at == count
            {
                return seen.clone();
            }
            self.call_tracker.idle().await;
            match self.context.pleg.inspect(&self.uid, &self.name).await {
                Ok(seen) => {
                    self.call_tracker
                        .retain_hooks(|id| seen.running().any(|instance| instance.id == *id));
                    self.observed = Some((seen, count));
                }
                Err(error) => {
                    let now = self.context.clock.now();
                    self.handle.journal.lock().note(now, chain(&error));
                    tracing::warn!(error = chain(&error), "inspect pod failed, retrying");
                    // An outage of the runtime is reported for the node, not for each pod.
                    if !error.source.is_silence() && !std::mem::replace(&mut reported, true) {
                        let text = format!("error determining status: {}", error.source.rpc_text());
                        let (pod, severity) = (self.handle.pod(), Severity::Warning);
                        self.context.reporting.events.pod(&pod, severity, "FailedSync", text);
                    }
                    let relisted = self.context.pleg.next_relist();
                    // Both a timeout and a successful relist are reasons to inspect again.
                    let _ = tokio::time::timeout(retry.next_delay(), relisted).await;
                }
            }
        }
    }

    /// Reports to the status manager and the journal, and emits events for what began.
    fn report(&mut self, decision: &Decision, now: Now) {
        let Decision { pod, plan, status, .. } = decision;
        let before = self.context.reporting.status.last_report(pod);
        // A pod that stops with its node is still wanted: after a report of its end it would never
        // run again.
        if !decision.lifecycle.resumes_later() {
            announce::end(&self.context.reporting.events, pod, before.as_deref(), status);
            self.context.reporting.status.set(pod, status.clone());
        }
        self.handle.journal.lock().decided(now, &plan.why);
        announce::changes(&self.context.reporting.events, pod, self.last_plan.as_ref(), plan);
        self.last_plan = Some(plan.clone());
        if !self.reported_start && status.phase.as_deref() == Some("Running") {
            self.reported_start = true;
            let metrics = &self.context.reporting.metrics.worker;
            if let Some(seen) = seen_at(pod) {
                metrics.pod_start.observe(now.age_of(seen, Duration::MAX));
            }
            let is_new = before.is_none_or(|status| status.phase != decision.status.phase);
            if let Some(made) = pod.object.metadata.creation_timestamp.as_ref().filter(|_| is_new) {
                metrics.pod_start_total.observe(now.age_of(made.0, Duration::MAX));
            }
        }
    }

    /// Advances the lifecycle. Returns true if it changed and a new decision is needed.
    fn advance(&mut self, decision: &Decision) -> bool {
        let phase = Phase::parse(decision.status.phase.as_deref());
        match decision.lifecycle.stage() {
            Stage::Syncing if phase.is_terminal() => self.handle.advance(Lifecycle::complete),
            Stage::Terminating if decision.plan.stage_done => {
                self.handle.advance(Lifecycle::stopped);
            }
            Stage::Syncing | Stage::Terminating | Stage::Terminated => return false,
            Stage::Finished => {}
        }
        true
    }

    /// Waits for a change, for the time of the plan, or for the next resync: a lost wake-up costs
    /// minutes and is not permanent.
    async fn wait(&mut self, plan: &Plan, wakes: &mut WakeSources) {
        let now = self.context.clock.now().mono;
        let resync = resync::delay(&self.uid, self.context.settings.resync);
        let wait = plan.wake_at.map_or(resync, |at| at.since(now).min(resync));
        let elapsed = tokio::time::timeout(wait, wakes.any()).await.is_err();
        // Reading the last relist costs no call; the runtime is called only on a difference.
        let observed = self.observed.as_ref().filter(|_| elapsed && wait == resync);
        if observed.is_some_and(|(observed, _)| self.context.pleg.contradicts(observed)) {
            tracing::info!("resync: the last relist differs from the observed state, inspecting");
            self.observed = None;
        }
    }

    async fn act(&mut self, decision: &Decision, view: &Arc<ObservedPod>, wakes: &mut WakeSources) {
        let done = {
            let execution = execute::Execution {
                context: &self.context,
                handle: &self.handle,
                pod: &decision.pod,
                call_tracker: &self.call_tracker,
                view,
            };
            tokio::select! { biased;
                // Dropping the wait is safe: a mutating call continues in a task of the call
                // tracker.
                () = wakes.preempted(&decision.lifecycle) => false,
                // Boxed, so that the future of an idle pod is small.
                done = Box::pin(execution.carry_out(&decision.plan)) => done,
            }
        };
        self.handle.journal.lock().end();
        self.finish_calls(wakes).await;
        // Not decided by comparing times: two of them may be the same clock reading.
        self.observed = None;
        if done && decision.lifecycle.stage() == Stage::Terminated {
            self.handle.advance(Lifecycle::released);
            self.context.reporting.status.terminate(&decision.pod);
        }
    }

    /// Waits for the calls in progress. If the grace period of the pod is shortened, so are its
    /// stops.
    async fn finish_calls(&self, wakes: &mut WakeSources) {
        loop {
            let lifecycle = self.handle.lifecycle();
            if let Some(grace) = lifecycle.grace() {
                let grace = kill::remaining(grace, Duration::ZERO);
                self.call_tracker.shorten_grace(&self.context.runtime, grace);
            }
            tokio::select! { biased;
                // Cancel-safe: both only read state kept elsewhere.
                () = self.call_tracker.idle() => return,
                () = wakes.preempted(&lifecycle) => {}
            }
        }
    }

    fn note_operation(&self, operation: Operation, began: Now) -> Operation {
        let took = self.context.clock.now().mono.since(began.mono);
        self.context.reporting.metrics.worker.dispatched(operation, took);
        Operation::Sync
    }

    /// The operation type of a decision: the first one creates the pod, one on a newer spec updates
    /// it. Also records the time from first seeing the pod to its first sync.
    fn operation(
        &mut self,
        operation: Operation,
        updates: u64,
        decision: &Decision,
        now: Now,
    ) -> Operation {
        let before = self.updates.replace(updates);
        let (first, newer) = (before.is_none(), before.is_some_and(|before| before != updates));
        if first && decision.lifecycle.stage() == Stage::Syncing {
            match seen_at(&decision.pod) {
                Some(seen) => {
                    self.context
                        .reporting
                        .metrics
                        .worker
                        .start
                        .observe(now.age_of(seen, Duration::MAX));
                }
                None => {
                    tracing::debug!("pod has no first-seen annotation, start latency not recorded");
                }
            }
        }
        match operation {
            Operation::Sync if newer => Operation::Update,
            other => other,
        }
    }
}

fn operation_of(lifecycle: &Lifecycle, otherwise: Operation) -> Operation {
    match lifecycle.stage() {
        Stage::Syncing => otherwise,
        Stage::Terminating => Operation::Kill,
        Stage::Terminated | Stage::Finished => Operation::Terminated,
    }
}

fn seen_at(pod: &Pod) -> Option<Timestamp> {
    pod.annotation(podwright_api::annotations::ANNOTATION_SEEN)?.parse().ok()
}
