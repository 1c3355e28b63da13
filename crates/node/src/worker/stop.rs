//! Container stop: preStop hook, order of sidecars, stop call.

use std::sync::Arc;
use std::time::Duration;

use podwright_core::attempts::PodStep;
use podwright_core::plan::kill::{self, HookState, PreStop};
use podwright_core::plan::{Stop, StopCause};
use podwright_core::pod::Pod;
use tokio::sync::watch;

use super::execute::{Execution, Failed};
use super::stop_record::StopRecord;
use crate::error_chain::chain;
use crate::report::events::Severity;
use crate::worker::hooks;

impl Execution<'_> {
    pub(super) async fn stop_container(&mut self, stop: &Stop) -> Result<(), Failed> {
        self.begin(format!("stopping {}", stop.container));
        let errors = self.stop_in_order(std::slice::from_ref(stop)).await;
        match errors.first() {
            None => {
                self.attempts().note_step_done(PodStep::Kill);
                Ok(())
            }
            Some(NotStopped { container, error }) => {
                let text = format!("cannot stop container {container}: {error}");
                self.failed(PodStep::Kill, text)
            }
        }
    }

    /// Stops all containers concurrently; those of a later turn wait for the earlier ones, at most
    /// for their own grace period. Returns the failures.
    pub(super) async fn stop_in_order(&mut self, stops: &[Stop]) -> Vec<NotStopped> {
        let (ended, turns) = Turns::new(stops);
        let this = &*self;
        let all = stops.iter().map(|stop| {
            let turns = turns.clone();
            let ended = &ended;
            async move {
                let result = this.stop_one(stop, turns).await;
                if result.is_ok()
                    && let Some(order) = stop.order
                {
                    ended.send_modify(|left| left.done(order));
                }
                result.map_err(|error| NotStopped { container: stop.container.clone(), error })
            }
        });
        let results = futures::future::join_all(all).await;
        results.into_iter().filter_map(Result::err).collect()
    }

    async fn stop_one(
        &self,
        stop: &Stop,
        mut turns: watch::Receiver<Turns>,
    ) -> Result<(), podwright_cri::Error> {
        let container = self.pod.container(&stop.container);
        if let Some(container) = container {
            let text = stop.message.clone();
            self.context.reporting.events.container(
                self.pod,
                container,
                Severity::Normal,
                "Killing",
                text,
            );
        }
        let began = tokio::time::Instant::now();
        let record = self.stop_record(stop);
        // The time that earlier attempts, or an agent that was killed during one, have spent.
        let earlier = record.as_ref().and_then(|record| self.begin_stop(stop, record));
        let spent = || earlier.unwrap_or_default().saturating_add(began.elapsed());
        let hook = match self.call_tracker.has_hook(&stop.instance) {
            true => HookState::Running,
            false => HookState::NotRunning,
        };
        match (kill::pre_stop(stop, container, earlier, hook), container) {
            (PreStop::Run, Some(container)) => self.pre_stop(stop, container).await,
            (PreStop::FinishSleep(left), _) => {
                hooks::sleep(&self.context.reporting.metrics.hooks.sleeps_cut_short, left).await;
            }
            (PreStop::Run, None) | (PreStop::Nothing, _) => {}
        }
        if let Some(order) = stop.order {
            let left = stop.grace.saturating_sub(spent());
            let earlier_ended = turns.wait_for(|turns| turns.is_turn_of(order));
            // On timeout the sidecar is stopped as well: its own grace period is over.
            let _ = tokio::time::timeout(left, earlier_ended).await;
        }
        let grace = kill::remaining(stop.grace, spent());
        let stopped =
            self.call_tracker.stop(&self.context.runtime, stop.instance.clone(), grace).await;
        if let Err(error) = stopped {
            if let Some(record) = &record
                && let Err(error) = record.pause(spent(), self.context.clock.now())
            {
                let (container, error) = (&stop.container, chain(&error));
                tracing::warn!(%container, error, "record failed stop failed, its time counts as grace period");
            }
            return Err(error);
        }
        if let Some(record) = &record
            && let Err(error) = record.end()
        {
            let (container, error) = (&stop.container, chain(&error));
            tracing::debug!(%container, error, "cannot remove stop record, it goes with the pod");
        }
        self.attempts().note_stopped(stop.instance.clone(), self.context.clock.now().mono);
        Ok(())
    }

    /// Only for a deleted pod: any other one may run on, and a later stop would find the record.
    fn stop_record(&self, stop: &Stop) -> Option<StopRecord> {
        self.pod.deletion?;
        match self.context.resources.volumes.open_pod_dir(&self.pod.uid) {
            Ok(directory) => StopRecord::new(directory, &stop.container, &stop.instance),
            Err(error) if error.is_not_found() => None,
            Err(error) => {
                let (container, error) = (&stop.container, chain(&error));
                tracing::warn!(%container, error, "cannot record the stop, a restarted agent repeats it");
                None
            }
        }
    }

    fn begin_stop(&self, stop: &Stop, record: &StopRecord) -> Option<Duration> {
        match record.begin(self.context.clock.now()) {
            Ok(earlier) => earlier,
            Err(error) => {
                let (container, error) = (&stop.container, chain(&error));
                tracing::warn!(%container, error, "cannot record the stop, a restarted agent repeats it");
                None
            }
        }
    }

    /// A hook that fails or takes too long does not keep the container running. One that takes too
    /// long continues until its container has ended; only a failure of the hook is reported.
    async fn pre_stop(&self, stop: &Stop, container: &podwright_core::pod::Container) {
        let (context, pod, name) = (self.context.clone(), self.pod.clone(), container.name.clone());
        let (instance, pod_ip) = (stop.instance.clone(), pod_ip(self.pod, self.view));
        let hook = async move {
            let Some(container) = pod.container(&name) else { return Ok(()) };
            let Some(handler) = container.pre_stop() else { return Ok(()) };
            let target = hooks::HookTarget { pod: &pod, container, instance: &instance, pod_ip };
            let ran = hooks::run(&context, &target, handler).await;
            if ran.is_err() {
                // The output is not in the event: it may contain secrets.
                let text = "PreStopHook failed".into();
                let severity = Severity::Warning;
                context.reporting.events.container(
                    &pod,
                    container,
                    severity,
                    "FailedPreStopHook",
                    text,
                );
            }
            ran.map_err(|error| error.to_string())
        };
        match self.call_tracker.hook(&stop.instance, stop.grace, hook).await {
            Some(Ok(())) => {}
            Some(Err(failure)) => drop(self.note(&failure)),
            None => {
                let name = &container.name;
                self.note(&format!("preStop hook of {name} exceeds the grace period"));
            }
        }
    }

    /// Stops a container whose postStart hook failed.
    pub(super) async fn stop_after_hook(
        &mut self,
        container: &podwright_core::pod::Container,
        instance: podwright_core::ids::ContainerId,
    ) {
        let grace = self.pod.deletion.and_then(|d| d.grace).unwrap_or(self.pod.grace);
        let stop = Stop {
            instance,
            container: container.name.clone(),
            grace,
            pre_stop: container.pre_stop().is_some() && !grace.is_zero(),
            order: None,
            cause: StopCause::PostStartFailed,
            message: "FailedPostStartHook".into(),
        };
        // A container that fails to stop is found running by the next inspection.
        for NotStopped { error, .. } in self.stop_in_order(&[stop]).await {
            self.note(&error.to_string());
        }
    }
}

/// A container that could not be stopped.
pub(super) struct NotStopped {
    pub(super) container: Arc<str>,
    pub(super) error: podwright_cri::Error,
}

impl NotStopped {
    /// Whether the runtime may not have received the call.
    pub(super) fn is_unreached(&self) -> bool {
        self.error.kind == podwright_cri::Kind::Unavailable
    }

    /// The text for the event.
    pub(super) fn text(&self) -> String {
        let Self { container, error } = self;
        let text = error.rpc_text();
        format!("failed to \"KillContainer\" for {container:?} with KillContainerError: {text:?}")
    }
}

pub(super) fn pod_ip(
    pod: &Pod,
    view: &podwright_core::observed::ObservedPod,
) -> Option<std::net::IpAddr> {
    if pod.host_network {
        return None;
    }
    view.ready_sandbox()?.ips.as_ref()?.first().copied()
}

/// The number of running containers of each turn.
#[derive(Clone, Debug)]
struct Turns(Vec<(u32, usize)>);

impl Turns {
    fn new(stops: &[Stop]) -> (watch::Sender<Self>, watch::Receiver<Self>) {
        let mut left: Vec<(u32, usize)> = Vec::new();
        for wanted in stops.iter().filter_map(|stop| stop.order) {
            match left.iter_mut().find(|(order, _)| *order == wanted) {
                Some((_, count)) => *count += 1,
                None => left.push((wanted, 1)),
            }
        }
        watch::channel(Self(left))
    }

    fn done(&mut self, order: u32) {
        if let Some((_, count)) = self.0.iter_mut().find(|(t, _)| *t == order) {
            *count = count.saturating_sub(1);
        }
    }

    fn is_turn_of(&self, order: u32) -> bool {
        self.0.iter().all(|(earlier, count)| *earlier >= order || *count == 0)
    }
}
