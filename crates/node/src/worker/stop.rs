//! Stopping containers: the hook, the turn, the signal.

use std::sync::Arc;

use podwright_core::attempts::PodStep;
use podwright_core::plan::{Stop, StopCause, kill};
use podwright_core::pod::Pod;
use tokio::sync::watch;

use super::execute::{Execution, Failed};
use crate::events::Severity;
use crate::hooks;

impl Execution<'_> {
    pub(super) async fn stop_container(&mut self, stop: &Stop) -> Result<(), Failed> {
        self.begin(format!("stopping {}", stop.container));
        let errors = self.stop_in_turn(std::slice::from_ref(stop)).await;
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

    /// Stops all of them at once; those of a later turn wait for the earlier ones, at most as
    /// long as their own grace. Returns what went wrong.
    pub(super) async fn stop_in_turn(&mut self, stops: &[Stop]) -> Vec<NotStopped> {
        let (ended, turns) = Turns::new(stops);
        let this = &*self;
        let all = stops.iter().map(|stop| {
            let turns = turns.clone();
            let ended = &ended;
            async move {
                let result = this.stop_one(stop, turns).await;
                if result.is_ok()
                    && let Some(turn) = stop.turn
                {
                    ended.send_modify(|left| left.done(turn));
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
            self.tools.events.container(self.pod, container, Severity::Normal, "Killing", text);
        }
        let began = tokio::time::Instant::now();
        if stop.pre_stop
            && let Some(container) = container.filter(|container| container.pre_stop().is_some())
        {
            self.pre_stop(stop, container).await;
        }
        if let Some(turn) = stop.turn {
            let left = stop.grace.saturating_sub(began.elapsed());
            let earlier_ended = turns.wait_for(|turns| turns.is_turn_of(turn));
            // Time is up: a sidecar does not outstay its own grace.
            let _ = tokio::time::timeout(left, earlier_ended).await;
        }
        let grace = kill::remaining(stop.grace, began.elapsed());
        self.lane.stop(&self.tools.runtime, stop.instance.clone(), grace).await?;
        self.attempts().note_stopped(stop.instance.clone(), self.tools.clock.now().mono);
        Ok(())
    }

    /// A hook that fails or takes too long does not keep the container alive. One that takes too long
    /// goes on until its container has ended; only a failure of its own is told.
    async fn pre_stop(&self, stop: &Stop, container: &podwright_core::pod::Container) {
        let (tools, pod, name) = (self.tools.clone(), self.pod.clone(), container.name.clone());
        let (instance, pod_ip) = (stop.instance.clone(), pod_ip(self.pod, self.view));
        let hook = async move {
            let Some(container) = pod.container(&name) else { return Ok(()) };
            let Some(handler) = container.pre_stop() else { return Ok(()) };
            let place = hooks::Place { pod: &pod, container, instance: &instance, pod_ip };
            let ran = hooks::run(&tools, &place, handler).await;
            if ran.is_err() {
                // What it said stays here: it may be a secret of the server's.
                let text = "PreStopHook failed".into();
                let severity = Severity::Warning;
                tools.events.container(&pod, container, severity, "FailedPreStopHook", text);
            }
            ran.map_err(|error| error.to_string())
        };
        match self.lane.hook(&stop.instance, stop.grace, hook).await {
            Some(Ok(())) => {}
            Some(Err(failure)) => drop(self.note(&failure)),
            None => {
                let name = &container.name;
                self.note(&format!("preStop hook of {name} takes longer than its grace"));
            }
        }
    }

    /// A container whose postStart hook failed must not go on.
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
            turn: None,
            cause: StopCause::PostStartFailed,
            message: "FailedPostStartHook".into(),
        };
        // One that is not stopped now is found running by the next look.
        for NotStopped { error, .. } in self.stop_in_turn(&[stop]).await {
            self.note(&error.to_string());
        }
    }
}

/// A container that goes on though it should not.
pub(super) struct NotStopped {
    pub(super) container: Arc<str>,
    pub(super) error: podwright_cri::Error,
}

impl NotStopped {
    /// As events have it.
    pub(super) fn told(&self) -> String {
        let Self { container, error } = self;
        let said = error.rpc_text();
        format!("failed to \"KillContainer\" for {container:?} with KillContainerError: {said:?}")
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

/// How many containers of each turn are still there.
#[derive(Clone, Debug)]
struct Turns(Vec<(u32, usize)>);

impl Turns {
    fn new(stops: &[Stop]) -> (watch::Sender<Self>, watch::Receiver<Self>) {
        let mut left: Vec<(u32, usize)> = Vec::new();
        for wanted in stops.iter().filter_map(|stop| stop.turn) {
            match left.iter_mut().find(|(turn, _)| *turn == wanted) {
                Some((_, count)) => *count += 1,
                None => left.push((wanted, 1)),
            }
        }
        watch::channel(Self(left))
    }

    fn done(&mut self, turn: u32) {
        if let Some((_, count)) = self.0.iter_mut().find(|(t, _)| *t == turn) {
            *count = count.saturating_sub(1);
        }
    }

    fn is_turn_of(&self, turn: u32) -> bool {
        self.0.iter().all(|(earlier, count)| *earlier >= turn || *count == 0)
    }
}
