//! Prober: runs the liveness, readiness and startup probes of a pod.
//!
//! One task per pod that has probes. It waits for the next probe that is due, for a result, or for
//! a change of the pod. Running probes are futures of the same task, at most one per probe, so
//! their number is bounded by the pods of the node and a container that does not respond delays no
//! other. When to probe, and what a result means, is decided in [`podwright_core::probe`].

mod grpc;
mod run;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use podwright_core::lifecycle::Stage;
use podwright_core::observed::ObservedPod;
use podwright_core::pod::{Pod, ProbeKind};
use podwright_core::probe::schedule::{DueProbe, ProbeInputs, Schedule, SettledVerdict};
use podwright_core::probe::{ProbeOutcome, ProbeVerdict};
use podwright_core::status::NodeAddresses;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::pods::pod_handle::PodHandle;
use crate::report::events::{Recorder, Severity};
use crate::report::status::StatusManager;
use crate::runtime::pleg::Pleg;
use crate::telemetry::metrics::{Metrics, ProbeSeries};
use run::{ProbeRun, run_probe};

/// The components of the node that a prober uses.
pub struct ProbeContext {
    pub runtime: cri::Client,
    pub pleg: Arc<Pleg>,
    pub clock: Clock,
    pub events: Recorder,
    pub status: Arc<StatusManager>,
    pub metrics: Arc<Metrics>,
    /// Probe address of pods in the host network.
    pub addresses: watch::Receiver<NodeAddresses>,
    pub agent_started: Timestamp,
}

pub struct Prober {
    handle: Arc<PodHandle>,
    context: Arc<ProbeContext>,
    schedule: Schedule,
    series: HashMap<(Arc<str>, ProbeKind), Arc<ProbeSeries>>,
}

/// The result of one probe and when it began.
struct ProbeResult {
    due: DueProbe,
    run: ProbeRun,
    began: Instant,
}

impl Prober {
    /// `None`: the pod has no probes.
    pub fn new(handle: Arc<PodHandle>, context: Arc<ProbeContext>) -> Option<Self> {
        let schedule = Schedule::of(&handle.pod())?;
        Some(Self { handle, context, schedule, series: HashMap::new() })
    }

    /// Runs until nothing of the pod is left to probe, or the node stops.
    pub async fn run(self, stop: CancellationToken) {
        let pod = self.handle.pod();
        let span = tracing::info_span!("probes", pod = %pod.name, uid = %pod.uid);
        stop.run_until_cancelled(self.work(pod).instrument(span)).await;
    }

    async fn work(mut self, pod: Arc<Pod>) {
        let uid = pod.uid.clone();
        let mut desired = self.handle.desired();
        let mut seen = self.context.pleg.watch(&uid);
        let mut running = FuturesUnordered::new();
        let (mut pod, mut view) = (pod, None);
        let mut changed = true;
        loop {
            if changed {
                let now = desired.borrow_and_update();
                match now.lifecycle.stage() {
                    Stage::Syncing | Stage::Terminating => {}
                    Stage::Terminated | Stage::Finished => return,
                }
                let ending = now.lifecycle.is_ending();
                pod = now.pod.clone();
                drop(now);
                view = seen.borrow_and_update().clone();
                self.observe(&pod, view.as_deref(), ending);
            }
            for due in self.schedule.due(self.context.clock.now().mono) {
                running.push(self.start(&pod, view.as_deref(), due));
            }
            let wake = self.wake();
            // Every arm is cancel-safe: what is not received now is received in the next iteration.
            changed = tokio::select! {
                _ = desired.changed() => true,
                watched = seen.changed() => {
                    if watched.is_err() {
                        // The cache entry was removed with the last container of the pod.
                        seen = self.context.pleg.watch(&uid);
                    }
                    true
                }
                Some(result) = running.next() => {
                    self.handle_result(&pod, result);
                    false
                }
                () = wake => false,
            };
        }
    }

    /// Sleeps until the next probe is due; forever if there is none.
    fn wake(&self) -> impl Future<Output = ()> + use<> {
        let wait = self.schedule.wake_at().map(|at| at.since(self.context.clock.now().mono));
        async move {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        }
    }

    fn observe(&mut self, pod: &Pod, view: Option<&ObservedPod>, ending: bool) {
        let Some(observed) = view else { return };
        let reported = self.context.status.last_report(pod);
        let sight = ProbeInputs {
            pod,
            observed,
            ending,
            reported: reported.as_deref(),
            agent_started: self.context.agent_started,
        };
        for settled in self.schedule.inspect(&sight, self.context.clock.now()) {
            self.settle(pod, &settled);
        }
        let schedule = &self.schedule;
        self.handle.forget_probes(|instance| schedule.watches(instance));
    }

    /// Starts one probe.
    fn start(
        &self,
        pod: &Arc<Pod>,
        view: Option<&ObservedPod>,
        due: DueProbe,
    ) -> impl Future<Output = ProbeResult> + use<> {
        let address = match pod.host_network {
            true => self.context.addresses.borrow().host_ips.first().copied(),
            false => view.and_then(first_address),
        };
        let (context, pod) = (self.context.clone(), pod.clone());
        async move {
            let began = Instant::now();
            let run = run_probe(&context, &pod, &due, address).await;
            ProbeResult { due, run, began }
        }
    }

    fn handle_result(&mut self, pod: &Pod, result: ProbeResult) {
        let ProbeResult { due, run: ProbeRun { outcome, answer }, began } = result;
        let now = self.context.clock.now();
        let handled = self.schedule.record(&due, &outcome, now.mono);
        if !handled.current {
            return;
        }
        let said = (&outcome, answer.as_deref());
        let DueProbe { container, instance, kind } = &due;
        self.handle.answers.lock().record(container, *kind, instance, said, now.wall);
        self.count(pod, &due, &outcome, began);
        if handled.counts
            && let Some(event) = outcome.event(due.kind)
            && let Some(container) = pod.container(&due.container)
        {
            let (events, warning) = (&self.context.events, Severity::Warning);
            events.container(pod, container, warning, event.reason, event.message);
        }
        if let Some(settled) = &handled.settled {
            self.settle(pod, settled);
        }
    }

    fn count(&mut self, pod: &Pod, due: &DueProbe, outcome: &ProbeOutcome, began: Instant) {
        let key = (due.container.clone(), due.kind);
        let series = self
            .series
            .entry(key)
            .or_insert_with(|| self.context.metrics.probes.series(pod, &due.container, due.kind));
        match outcome {
            ProbeOutcome::Success | ProbeOutcome::Warning(_) => {
                series.successful.inc();
                series.duration.observe(began.elapsed());
            }
            ProbeOutcome::Failure(_) => series.failed.inc(),
            // It says nothing about the container.
            ProbeOutcome::Error { .. } => {}
        }
    }

    /// Updates the worker's input first: a worker that reports between the two would otherwise
    /// overwrite the new status with the previous verdict.
    fn settle(&self, pod: &Pod, settled: &SettledVerdict) {
        let SettledVerdict { instance, kind, verdict } = settled;
        if self.handle.probe(instance, *kind, *verdict) {
            tracing::debug!(%instance, kind = kind.as_str(), ?verdict, "probe result changed");
        }
        let passed = *verdict == ProbeVerdict::Success;
        let status = &self.context.status;
        match kind {
            ProbeKind::Readiness => status.set_container_readiness(pod, instance, passed),
            ProbeKind::Startup => status.set_container_startup(pod, instance, passed),
            ProbeKind::Liveness => {}
        }
    }
}

fn first_address(view: &ObservedPod) -> Option<IpAddr> {
    view.ready_sandbox()?.ips.as_ref()?.first().copied()
}

#[cfg(test)]
mod tests;
