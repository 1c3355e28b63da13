//! Asks a pod's containers how they are.
//!
//! One task per pod that has probes, and none for the others. It waits for the next question that
//! is due, an answer, or news of the pod; questions under way are futures of the same task, at
//! most one per probe, so a node's probes are bounded by its pods and a container that does not
//! answer keeps nobody else waiting. When and what to ask, and what follows from an answer, is
//! decided in [`podwright_core::probe`].

mod ask;
mod grpc;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use podwright_core::lifecycle::Stage;
use podwright_core::observed::ObservedPod;
use podwright_core::pod::{Pod, ProbeKind};
use podwright_core::probe::schedule::{Ask, Schedule, Settled, Sight};
use podwright_core::probe::{Outcome, Verdict};
use podwright_cri as cri;
use podwright_host::clock::Clock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::cell::PodCell;
use crate::events::{Recorder, Severity};
use crate::metrics::{Metrics, ProbeSeries};
use crate::pleg::Pleg;
use crate::status::StatusManager;
use crate::tools::Tools;
use ask::asked;

/// What a prober works with: a few of the node's tools.
struct Means {
    runtime: cri::Client,
    pleg: Arc<Pleg>,
    clock: Clock,
    events: Recorder,
    status: Arc<StatusManager>,
    metrics: Arc<Metrics>,
    /// Where pods on the node's own network are asked.
    node_address: Option<IpAddr>,
    agent_started: Timestamp,
}

impl Means {
    fn of(tools: &Tools) -> Self {
        Self {
            runtime: tools.runtime.clone(),
            pleg: tools.pleg.clone(),
            clock: tools.clock.clone(),
            events: tools.events.clone(),
            status: tools.status.clone(),
            metrics: tools.metrics.clone(),
            node_address: tools.settings.addresses.host_ips.first().copied(),
            agent_started: tools.started,
        }
    }
}

pub struct Prober {
    cell: Arc<PodCell>,
    means: Arc<Means>,
    schedule: Schedule,
    series: HashMap<(Arc<str>, ProbeKind), Arc<ProbeSeries>>,
}

/// What came of a question, and how long it took.
struct Answered {
    ask: Ask,
    outcome: Outcome,
    began: Instant,
}

impl Prober {
    /// `None`: the pod has no probes.
    pub fn new(cell: Arc<PodCell>, tools: &Tools) -> Option<Self> {
        let schedule = Schedule::of(&cell.pod())?;
        let means = Arc::new(Means::of(tools));
        Some(Self { cell, means, schedule, series: HashMap::new() })
    }

    /// Runs until nothing of the pod is left to probe, or the node stops.
    pub async fn run(self, stop: CancellationToken) {
        let pod = self.cell.pod();
        let span = tracing::info_span!("probes", pod = %pod.name, uid = %pod.uid);
        stop.run_until_cancelled(self.work(pod).instrument(span)).await;
    }

    async fn work(mut self, pod: Arc<Pod>) {
        let uid = pod.uid.clone();
        let mut desired = self.cell.desired();
        let mut seen = self.means.pleg.watch(&uid);
        let mut under_way = FuturesUnordered::new();
        let (mut pod, mut view) = (pod, None);
        let mut news = true;
        loop {
            if news {
                let now = desired.borrow_and_update();
                match now.life.stage() {
                    Stage::Syncing | Stage::Terminating => {}
                    Stage::Terminated | Stage::Finished => return,
                }
                let ending = now.life.is_ending();
                pod = now.pod.clone();
                drop(now);
                view = seen.borrow_and_update().clone();
                self.look(&pod, view.as_deref(), ending);
            }
            for ask in self.schedule.due(self.means.clock.now().mono) {
                under_way.push(self.put(&pod, view.as_deref(), ask));
            }
            let wake = self.wake();
            // Every arm is cancel-safe: what is not taken now is there the next time.
            news = tokio::select! {
                _ = desired.changed() => true,
                changed = seen.changed() => {
                    if changed.is_err() {
                        // The view was dropped with the pod's last trace in the runtime.
                        seen = self.means.pleg.watch(&uid);
                    }
                    true
                }
                Some(answered) = under_way.next() => {
                    self.hear(&pod, answered);
                    false
                }
                () = wake => false,
            };
        }
    }

    /// A sleep until the next question is due; for ever if there is none.
    fn wake(&self) -> impl Future<Output = ()> + use<> {
        let wait = self.schedule.wake_at().map(|at| at.since(self.means.clock.now().mono));
        async move {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        }
    }

    fn look(&mut self, pod: &Pod, view: Option<&ObservedPod>, ending: bool) {
        let Some(observed) = view else { return };
        let reported = self.means.status.last_report(pod);
        let sight = Sight {
            pod,
            observed,
            ending,
            reported: reported.as_deref(),
            agent_started: self.means.agent_started,
        };
        for settled in self.schedule.look(&sight, self.means.clock.now()) {
            self.settle(pod, &settled);
        }
        let schedule = &self.schedule;
        self.cell.forget_probes(|instance| schedule.watches(instance));
    }

    /// Puts a question to its container.
    fn put(
        &self,
        pod: &Arc<Pod>,
        view: Option<&ObservedPod>,
        ask: Ask,
    ) -> impl Future<Output = Answered> + use<> {
        let address = match pod.host_network {
            true => self.means.node_address,
            false => view.and_then(first_address),
        };
        let (means, pod) = (self.means.clone(), pod.clone());
        async move {
            let began = Instant::now();
            let outcome = asked(&means, &pod, &ask, address).await;
            Answered { ask, outcome, began }
        }
    }

    fn hear(&mut self, pod: &Pod, answered: Answered) {
        let Answered { ask, outcome, began } = answered;
        let heard = self.schedule.answer(&ask, &outcome, self.means.clock.now().mono);
        if !heard.current {
            return;
        }
        self.count(pod, &ask, &outcome, began);
        if heard.counts
            && let Some(event) = outcome.event(ask.kind)
            && let Some(container) = pod.container(&ask.container)
        {
            let (events, warning) = (&self.means.events, Severity::Warning);
            events.container(pod, container, warning, event.reason, event.message);
        }
        if let Some(settled) = &heard.settled {
            self.settle(pod, settled);
        }
    }

    fn count(&mut self, pod: &Pod, ask: &Ask, outcome: &Outcome, began: Instant) {
        let key = (ask.container.clone(), ask.kind);
        let series = self
            .series
            .entry(key)
            .or_insert_with(|| self.means.metrics.probes.series(pod, &ask.container, ask.kind));
        match outcome {
            Outcome::Success | Outcome::Warning(_) => {
                series.successful.inc();
                series.duration.observe(began.elapsed());
            }
            Outcome::Failure(_) => series.failed.inc(),
            // It says nothing of the container.
            Outcome::Error { .. } => {}
        }
    }

    /// Tells the status manager first, for it may have to tell others, then the worker.
    fn settle(&self, pod: &Pod, settled: &Settled) {
        let Settled { instance, kind, verdict } = settled;
        let passed = *verdict == Verdict::Success;
        let status = &self.means.status;
        match kind {
            ProbeKind::Readiness => status.set_container_readiness(pod, instance, passed),
            ProbeKind::Startup => status.set_container_startup(pod, instance, passed),
            ProbeKind::Liveness => {}
        }
        if self.cell.probe(instance, *kind, *verdict) {
            tracing::debug!(%instance, kind = kind.as_str(), ?verdict, "a probe settled");
        }
    }
}

fn first_address(view: &ObservedPod) -> Option<IpAddr> {
    view.ready_sandbox()?.ips.as_ref()?.first().copied()
}

#[cfg(test)]
mod tests;
