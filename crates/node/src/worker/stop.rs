//! Stopping containers: the hook, the turn, the signal.

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
            Some(error) => {
                let text = format!("cannot stop container {}: {error}", stop.container);
                self.failed(PodStep::Kill, text)
            }
        }
    }

    /// Stops all of them at once; those of a later turn wait for the earlier ones, at most as
    /// long as their own grace. Returns what went wrong.
    pub(super) async fn stop_in_turn(&mut self, stops: &[Stop]) -> Vec<String> {
        let (ended, turns) = Turns::new(stops);
        let this = &*self;
        let all = stops.iter().map(|stop| {
            let turns = turns.clone();
            let ended = &ended;
            async move {
                let result = this.stop_one(stop, turns).await;
                if result.is_ok() {
                    ended.send_modify(|left| left.done(stop.turn));
                }
                result
            }
        });
        let results = futures::future::join_all(all).await;
        results.into_iter().filter_map(|r| r.err().map(|e| e.to_string())).collect()
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
        if stop.turn > 0 {
            let left = stop.grace.saturating_sub(began.elapsed());
            let earlier_ended = turns.wait_for(|turns| turns.is_turn_of(stop.turn));
            // Time is up: a sidecar does not outstay its own grace.
            let _ = tokio::time::timeout(left, earlier_ended).await;
        }
        let grace = kill::remaining(stop.grace, began.elapsed());
        self.lane.stop(&self.tools.runtime, stop.instance.clone(), grace).await?;
        self.attempts().note_stopped(stop.instance.clone(), self.tools.clock.now().mono);
        Ok(())
    }

    /// A hook that fails or takes too long does not keep the container alive.
    async fn pre_stop(&self, stop: &Stop, container: &podwright_core::pod::Container) {
        let (tools, pod, name) = (self.tools.clone(), self.pod.clone(), container.name.clone());
        let (instance, pod_ip) = (stop.instance.clone(), pod_ip(self.pod, self.view));
        let hook = async move {
            let Some(container) = pod.container(&name) else { return Ok(()) };
            let Some(handler) = container.pre_stop() else { return Ok(()) };
            let place = hooks::Place { pod: &pod, container, instance: &instance, pod_ip };
            hooks::run(&tools, &place, handler).await.map_err(|error| error.to_string())
        };
        let failure = match self.lane.hook(&stop.instance, stop.grace, hook).await {
            Some(Ok(())) => return,
            Some(Err(error)) => error,
            None => format!("preStop hook of {} took longer than its grace", container.name),
        };
        self.note(&failure);
        let text = "PreStopHook failed".into();
        self.tools.events.container(
            self.pod,
            container,
            Severity::Warning,
            "FailedPreStopHook",
            text,
        );
    }

    /// A container whose postStart hook failed must not go on.
    pub(super) async fn stop_after_hook(
        &mut self,
        container: &podwright_core::pod::Container,
        instance: podwright_core::ids::ContainerId,
    ) {
        let stop = Stop {
            instance,
            container: container.name.clone(),
            grace: self.pod.deletion.and_then(|d| d.grace).unwrap_or(self.pod.grace),
            pre_stop: container.pre_stop().is_some(),
            turn: 0,
            cause: StopCause::PostStartFailed,
            message: "FailedPostStartHook".into(),
        };
        // One that is not stopped now is found running by the next look.
        for error in self.stop_in_turn(&[stop]).await {
            self.note(&error);
        }
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
        for stop in stops {
            match left.iter_mut().find(|(turn, _)| *turn == stop.turn) {
                Some((_, count)) => *count += 1,
                None => left.push((stop.turn, 1)),
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
