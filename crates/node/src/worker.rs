//! One task per pod: wait, decide, act.
//!
//! Of what is in the pod's cell the worker writes what was tried; everything else it reads. It never decides on a view of the
//! runtime that is older than its last act, or it would start a container twice.

mod announce;
mod execute;
mod lane;
mod resize;
mod start;
mod stop;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_core::ids::{ContainerId, PodName, PodUid};
use podwright_core::lifecycle::{Lifecycle, Stage};
use podwright_core::observed::ObservedPod;
use podwright_core::plan::{self, Inputs, Plan, Surroundings, kill};
use podwright_core::pod::{Phase, Pod, hold};
use podwright_core::probe::Probed;
use podwright_core::resize::grant::summary;
use podwright_core::resize::{Resizing, is_in_progress as resize_is_in_progress};
use podwright_core::status::{self, Sources};
use podwright_core::time::{Now, Stopwatch};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::causes::chain;
use crate::cell::{Desired, PodCell};
use crate::events::Severity;
use crate::metrics::Operation;
use crate::tools::{NodeState, Tools};
use lane::Lane;

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pod's life is over.
    Finished,
    /// The node stops; containers run on.
    Stopped,
}

/// How long to wait before asking a runtime again that would not answer, at first and at most. A
/// relist that succeeds ends the wait.
const LOOK_RETRY: Duration = Duration::from_millis(100);
const LOOK_RETRY_MOST: Duration = Duration::from_secs(5);

pub struct Worker {
    uid: PodUid,
    name: PodName,
    cell: Arc<PodCell>,
    tools: Arc<Tools>,
    lane: Lane,
    /// What was seen since our last act, and the poke it was seen after.
    seen: Option<(Arc<ObservedPod>, u64)>,
    last_plan: Option<Plan>,
    /// Runs since the first report of the pod, by our own clock once it was read.
    active: Option<Stopwatch>,
    /// Its first act was timed, its first Running was.
    begun: bool,
    reported_start: bool,
    /// The instance of each container whose end was counted.
    ends: BTreeMap<Arc<str>, ContainerId>,
}

/// Everything that can wake the worker.
struct Wakes {
    desired: watch::Receiver<Desired>,
    probed: watch::Receiver<Probed>,
    poked: watch::Receiver<u64>,
    node: watch::Receiver<NodeState>,
    /// Whether the runtime answers.
    answers: watch::Receiver<bool>,
}

impl Wakes {
    /// Waits for any news. Cancel-safe: `changed` keeps what it did not report.
    async fn any(&mut self) {
        tokio::select! {
            _ = self.desired.changed() => {}
            _ = self.probed.changed() => {}
            _ = self.poked.changed() => {}
            _ = self.node.changed() => {}
            _ = self.answers.changed() => {}
        }
    }

    /// The runtime was away and is back.
    fn runtime_is_back(&mut self) -> bool {
        let news = self.answers.has_changed().unwrap_or(false);
        *self.answers.borrow_and_update() && news
    }

    /// Waits until the pod should end sooner than the plan under way assumes.
    async fn preempted(&mut self, life: &Lifecycle) {
        let sooner =
            |now: &Desired| now.life.stage() != life.stage() || now.life.grace() != life.grace();
        // The sender lives in the cell, which the worker holds.
        let _ = self.desired.wait_for(sooner).await;
    }
}

/// A decision with the inputs that outlive it.
struct Decision {
    pod: Arc<Pod>,
    life: Lifecycle,
    plan: Plan,
    status: v1::PodStatus,
}

impl Worker {
    pub fn new(cell: Arc<PodCell>, tools: Arc<Tools>) -> Self {
        let pod = cell.pod();
        Self {
            uid: pod.uid.clone(),
            name: pod.name.clone(),
            cell,
            tools,
            lane: Lane::default(),
            seen: None,
            last_plan: None,
            active: None,
            begun: false,
            reported_start: false,
            ends: BTreeMap::new(),
        }
    }

    /// Runs until the pod is finished or the node stops; stopping leaves containers running.
    pub async fn run(self, stop: CancellationToken) -> Outcome {
        let span = tracing::info_span!("pod", pod = %self.name, uid = %self.uid);
        let work = self.work().instrument(span);
        stop.run_until_cancelled(work).await.map_or(Outcome::Stopped, |()| Outcome::Finished)
    }

    async fn work(mut self) {
        let mut wakes = Wakes {
            desired: self.cell.desired(),
            probed: self.cell.probed(),
            poked: self.cell.poked(),
            node: self.tools.node.clone(),
            answers: self.tools.pleg.answers(),
        };
        self.tools.pleg.first_relist().await;
        wakes.answers.mark_unchanged();
        let mut retries = 0;
        let mut operation = Operation::Create;
        loop {
            let view = self.view(&mut wakes).await;
            let cgroup = self.tools.cgroups.has_pod(&self.cell.pod()).await;
            // From here to the report nothing is waited for: what is read now is what is told.
            let began = self.tools.clock.now();
            let (desired, probed) = (
                wakes.desired.borrow_and_update().clone(),
                wakes.probed.borrow_and_update().clone(),
            );
            let network = wakes.node.borrow_and_update().network.clone();
            // Whatever failed while the runtime was away failed for that reason.
            if desired.retry != retries || wakes.runtime_is_back() {
                retries = desired.retry;
                self.cell.attempts.lock().retry_now(began);
            }
            let decision = self.decide(&view, &desired, &probed, network, cgroup, began);
            self.report(&decision, began);
            if self.advance(&decision) {
                if self.cell.stage() == Stage::Finished {
                    self.tools.metrics.worker.dispatched(operation, Duration::ZERO);
                    return;
                }
                continue;
            }
            if decision.plan.steps.is_empty() {
                self.note_operation(operation, began);
                self.rest(&decision.plan, &mut wakes).await;
                operation = Operation::Sync;
                continue;
            }
            self.note_start(&decision.pod, began);
            self.act(&decision, &view, &mut wakes).await;
            operation = self.note_operation(operation_of(&decision.life, operation), began);
            if self.cell.stage() == Stage::Finished {
                return;
            }
        }
    }

    /// A view of the runtime that is newer than our last act and than the last poke.
    async fn view(&mut self, wakes: &mut Wakes) -> Arc<ObservedPod> {
        let (mut patience, mut told) = (LOOK_RETRY, false);
        loop {
            let poke = *wakes.poked.borrow_and_update();
            if let Some((seen, after)) = &self.seen
                && *after == poke
            {
                return seen.clone();
            }
            self.lane.idle().await;
            match self.tools.pleg.look(&self.uid, &self.name).await {
                Ok(seen) => {
                    self.lane.keep_hooks(|id| seen.running().any(|instance| instance.id == *id));
                    self.seen = Some((seen, poke));
                }
                Err(error) => {
                    let now = self.tools.clock.now();
                    self.cell.journal.lock().note(now, chain(&error));
                    tracing::warn!(error = chain(&error), "will look again");
                    // A runtime that is away is the node's trouble, not each pod's.
                    if !error.source.is_silence() && !std::mem::replace(&mut told, true) {
                        let text = format!("error determining status: {}", error.source.rpc_text());
                        let (pod, severity) = (self.cell.pod(), Severity::Warning);
                        self.tools.events.pod(&pod, severity, "FailedSync", text);
                    }
                    let relisted = self.tools.pleg.next_relist();
                    // Elapsed is as good a reason to look again as a list that succeeded.
                    let _ = tokio::time::timeout(patience, relisted).await;
                    patience = (patience * 2).min(LOOK_RETRY_MOST);
                }
            }
        }
    }

    fn decide(
        &mut self,
        view: &ObservedPod,
        desired: &Desired,
        probed: &Probed,
        network: Result<(), String>,
        cgroup: bool,
        now: Now,
    ) -> Decision {
        let pod = &desired.pod;
        self.count_ends(pod, view);
        let mut attempts = self.cell.attempts.lock();
        attempts.forget_ended(view);
        attempts.forget_sandboxes(view);
        for container in &pod.containers {
            for instance in view.instances_of(&container.name) {
                attempts.note_exit(&container.name, container.backoff_key, instance, now);
            }
        }
        let old = self.tools.status.last_report(pod);
        let old = old.as_deref();
        let first_report = old.and_then(|status| status.start_time.as_ref());
        let active = || first_report.map(|time| Stopwatch::running_since(time.0, now));
        self.active = self.active.or_else(active);
        let (hold, active) = (hold::objection(pod), self.active);
        let resizing = self.resizing(pod, view, desired.life.stage());
        let surroundings = Surroundings { network, cgroup, hold, active, resizing };
        let inputs = Inputs {
            pod,
            observed: view,
            attempts: &attempts,
            life: &desired.life,
            probed,
            surroundings: &surroundings,
            crash_backoff: &self.tools.settings.crash_backoff,
            now,
        };
        let plan = plan::decide(&inputs);
        let handler = view.newest_sandbox().map_or("", |sandbox| sandbox.handler.as_str());
        let status = status::generate(&Sources {
            inputs: &inputs,
            plan: &plan,
            old,
            node: &self.tools.settings.addresses,
            agent_started: self.tools.started,
            runtime: status::Runtime {
                name: &self.tools.settings.runtime_name,
                recursive_read_only: self.tools.facts.supports_recursive_read_only(handler),
            },
        });
        Decision { pod: pod.clone(), life: desired.life.clone(), plan, status }
    }

    /// Each end once; what ended before this agent began was counted by another.
    fn count_ends(&mut self, pod: &Pod, view: &ObservedPod) {
        for container in &pod.containers {
            let Some(newest) = view.newest(&container.name) else { continue };
            let Some(exit) = newest.exit() else { continue };
            if self.ends.get(&container.name) == Some(&newest.id) {
                continue;
            }
            self.ends.insert(container.name.clone(), newest.id.clone());
            if exit.finished >= self.tools.started {
                self.tools.metrics.starts.ended(container.kind, exit.code, &exit.reason);
            }
        }
    }

    /// Where the pod stands between the resources it wishes for and those it has; a resize of
    /// which nothing is left to do is over.
    fn resizing(&self, pod: &Pod, view: &ObservedPod, stage: Stage) -> Arc<Resizing> {
        let resizing = self.tools.allocations.resizing(&self.uid);
        let Some(progress) = resizing.progress.as_ref().filter(|_| stage == Stage::Syncing) else {
            return resizing;
        };
        // What we decide on may be older than the grant.
        let knows_of_it = pod.generation() >= progress.generation;
        if !knows_of_it || resize_is_in_progress(pod, view, &resizing.applied) {
            return resizing;
        }
        self.tools.allocations.note_done(&self.uid);
        let text = format!("Pod resize completed: {}", summary(pod, progress.generation, None));
        self.tools.events.pod(pod, Severity::Normal, "ResizeCompleted", text);
        self.tools.allocations.resizing(&self.uid)
    }

    /// Tells the status manager, the journal and, where something began, the events.
    fn report(&mut self, decision: &Decision, now: Now) {
        let Decision { pod, plan, status, .. } = decision;
        let before = self.tools.status.last_report(pod);
        // A pod that stops with its node is still wanted: a report of its end would make it one
        // that never runs again.
        if !decision.life.resumes_later() {
            announce::end(&self.tools.events, pod, before.as_deref(), status);
            self.tools.status.set(pod, status.clone());
        }
        self.cell.journal.lock().decided(now, &plan.why);
        announce::changes(&self.tools.events, pod, self.last_plan.as_ref(), plan);
        self.last_plan = Some(plan.clone());
        if !self.reported_start && status.phase.as_deref() == Some("Running") {
            self.reported_start = true;
            let metrics = &self.tools.metrics.worker;
            if let Some(seen) = seen_at(pod) {
                metrics.pod_start.observe(now.age_of(seen, Duration::MAX));
            }
            let is_news = before.is_none_or(|status| status.phase != decision.status.phase);
            if let Some(made) = pod.object.metadata.creation_timestamp.as_ref().filter(|_| is_news)
            {
                metrics.pod_start_total.observe(now.age_of(made.0, Duration::MAX));
            }
        }
    }

    /// Moves the pod along in its life. True: it moved, decide again.
    fn advance(&mut self, decision: &Decision) -> bool {
        let phase = Phase::parse(decision.status.phase.as_deref());
        match decision.life.stage() {
            Stage::Syncing if phase.is_terminal() => self.cell.advance(Lifecycle::complete),
            Stage::Terminating if decision.plan.stage_done => self.cell.advance(Lifecycle::stopped),
            Stage::Syncing | Stage::Terminating | Stage::Terminated => return false,
            Stage::Finished => {}
        }
        true
    }

    async fn rest(&self, plan: &Plan, wakes: &mut Wakes) {
        match plan.wake_at {
            None => wakes.any().await,
            Some(at) => {
                let wait = at.since(self.tools.clock.now().mono);
                // Elapsed is as good a reason to decide again as any news.
                let _ = tokio::time::timeout(wait, wakes.any()).await;
            }
        }
    }

    async fn act(&mut self, decision: &Decision, view: &Arc<ObservedPod>, wakes: &mut Wakes) {
        let done = {
            let execution = execute::Execution {
                tools: &self.tools,
                cell: &self.cell,
                pod: &decision.pod,
                lane: &self.lane,
                view,
            };
            tokio::select! { biased;
                // Dropping the wait is safe: a mutating call goes on in the lane's own task.
                () = wakes.preempted(&decision.life) => false,
                // Boxed: a pod that only waits does not carry the room for acting around.
                done = Box::pin(execution.carry_out(&decision.plan)) => done,
            }
        };
        self.cell.journal.lock().end();
        self.finish_calls(wakes).await;
        // Not by comparing times: two of them may be one reading of the clock.
        self.seen = None;
        if done && decision.life.stage() == Stage::Terminated {
            self.cell.advance(Lifecycle::released);
            self.tools.status.terminate(&decision.pod);
        }
    }

    /// Waits for the calls under way. What is being stopped gets less time whenever the pod does.
    async fn finish_calls(&self, wakes: &mut Wakes) {
        loop {
            let life = self.cell.life();
            if let Some(grace) = life.grace() {
                let grace = kill::remaining(grace, Duration::ZERO);
                self.lane.hurry(&self.tools.runtime, grace);
            }
            tokio::select! { biased;
                // Cancel-safe: both only look at what is kept elsewhere.
                () = self.lane.idle() => return,
                () = wakes.preempted(&life) => {}
            }
        }
    }

    fn note_operation(&self, operation: Operation, began: Now) -> Operation {
        let took = self.tools.clock.now().mono.since(began.mono);
        self.tools.metrics.worker.dispatched(operation, took);
        Operation::Sync
    }

    /// How long it took from seeing the pod to working on it.
    fn note_start(&mut self, pod: &Pod, now: Now) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        match seen_at(pod) {
            Some(seen) => self.tools.metrics.worker.start.observe(now.age_of(seen, Duration::MAX)),
            None => tracing::info!("the pod does not say when it was first seen"),
        }
    }
}

fn operation_of(life: &Lifecycle, otherwise: Operation) -> Operation {
    match life.stage() {
        Stage::Syncing => otherwise,
        Stage::Terminating => Operation::Kill,
        Stage::Terminated | Stage::Finished => Operation::Terminated,
    }
}

fn seen_at(pod: &Pod) -> Option<jiff::Timestamp> {
    pod.annotation(podwright_core::pod::ANNOTATION_SEEN)?.parse().ok()
}
