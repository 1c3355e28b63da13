//! Stop planning: the order and the grace periods in which a pod or one container is stopped.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::attempts::{Attempts, PodStep};
use crate::ids::{ContainerId, SandboxId};
use crate::observed::{Instance, ObservedPod};
use crate::pod::{Container, ContainerKind, Pod, ProbeKind};
use crate::time::Mono;

/// Minimum time the runtime gets to stop a container.
const MIN_STOP: Duration = Duration::from_secs(2);
/// Back-off while the runtime reports a stop as done but still shows the container running.
const SURVIVOR_BACKOFF: Duration = Duration::from_secs(10);
/// Failed attempts after which a pod's sandboxes are stopped although the runtime could not be
/// reached to stop its containers.
const UNREACHED_ATTEMPTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCause {
    /// The pod is terminating or gets a new sandbox.
    #[serde(rename = "Pod")]
    Pod,
    #[serde(rename = "SpecChanged")]
    SpecChanged,
    #[serde(rename = "LivenessFailed")]
    LivenessFailed,
    #[serde(rename = "StartupFailed")]
    StartupFailed,
    #[serde(rename = "Unknown")]
    Unknown,
    #[serde(rename = "PostStartFailed")]
    PostStartFailed,
    #[serde(rename = "RestartingAll")]
    RestartingAll,
    /// An in-place resize whose `resizePolicy` requires a restart.
    #[serde(rename = "Resized")]
    Resized,
    /// A newer instance of the same container is running.
    #[serde(rename = "Double")]
    Duplicate,
}

/// One container instance to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    #[serde(rename = "instance")]
    pub instance: ContainerId,
    #[serde(rename = "container")]
    pub container: Arc<str>,
    /// Time for the preStop hook and the process together.
    #[serde(rename = "grace")]
    pub grace: Duration,
    #[serde(rename = "pre_stop")]
    pub pre_stop: bool,
    /// Instances with a higher order wait until all with a lower one have exited: sidecars stop
    /// last, in reverse. `None`: stop at once, and no other instance waits for it.
    #[serde(rename = "turn")]
    pub order: Option<u32>,
    #[serde(rename = "cause")]
    pub cause: StopCause,
    /// Text of the `Killing` event.
    #[serde(rename = "message")]
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillPod {
    #[serde(rename = "stops")]
    pub stops: Vec<Stop>,
    /// Stopped after the containers. All of them: a sandbox that is not ready may still hold an
    /// address.
    #[serde(rename = "sandboxes")]
    pub sandboxes: Vec<SandboxId>,
    /// A new sandbox follows, which is reported as the event `SandboxChanged`.
    #[serde(rename = "replaced")]
    pub replaced: bool,
}

impl KillPod {
    pub fn summary(&self) -> String {
        let names: Vec<&str> = self.stops.iter().map(|s| &*s.container).collect();
        match names.as_slice() {
            [] => "its sandbox".into(),
            names => names.join(", "),
        }
    }
}

/// Stops the whole pod; `None` if nothing is left to stop.
pub fn pod(
    pod: &Pod,
    observed: &ObservedPod,
    attempts: &Attempts,
    grace: Option<Duration>,
) -> Option<KillPod> {
    let stops = observed.running().map(|i| stop_for_pod(pod, i, grace)).collect();
    non_empty(KillPod { stops, sandboxes: sandboxes(observed, attempts), replaced: false })
}

/// Stops a pod whose spec is unknown: no hooks, and the shortest grace period.
pub fn orphan(observed: &ObservedPod, attempts: &Attempts) -> Option<KillPod> {
    let stops = observed
        .running()
        .map(|i| Stop {
            instance: i.id.clone(),
            container: i.container.clone(),
            grace: Duration::from_secs(1),
            pre_stop: false,
            order: None,
            cause: StopCause::Pod,
            message: format!("Stopping container {}", i.container),
        })
        .collect();
    non_empty(KillPod { stops, sandboxes: sandboxes(observed, attempts), replaced: false })
}

/// Whether the sandboxes are stopped although containers were not, which kills these without a
/// grace period. A runtime that could not be reached may not have sent them SIGTERM: `unreached`
/// containers are tried again first. One that refused to stop a container would refuse again.
pub fn stops_sandboxes(unreached: usize, failed_attempts: u32) -> bool {
    unreached == 0 || failed_attempts >= UNREACHED_ATTEMPTS
}

/// Back-off of stops: the end and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KillBackoff {
    pub until: Mono,
    pub text: String,
}

/// The back-off before the next stop: after a failed stop, and after one that the runtime reported
/// as done although it still shows the container running (an immediate retry would report the
/// same).
pub fn backoff(observed: &ObservedPod, attempts: &Attempts, now: Mono) -> Option<KillBackoff> {
    let failed = attempts.step_failure(PodStep::Kill).map(|failed| KillBackoff {
        until: failed.retry_at,
        text: format!("{} (tried {} times)", failed.message, failed.times),
    });
    let survived = || {
        let survivor = attempts.survivor(observed)?;
        let text = format!(
            "the runtime reported {} times that it stopped {}, but still shows it running",
            survivor.times, survivor.name
        );
        Some(KillBackoff { until: survivor.last + SURVIVOR_BACKOFF, text })
    };
    failed.filter(|failed| now < failed.until).or_else(survived).filter(|wait| now < wait.until)
}

fn non_empty(kill: KillPod) -> Option<KillPod> {
    let nothing = kill.stops.is_empty() && kill.sandboxes.is_empty();
    (!nothing).then_some(kill)
}

fn sandboxes(observed: &ObservedPod, attempts: &Attempts) -> Vec<SandboxId> {
    let needs_stop = |s: &&crate::observed::Sandbox| s.ready || !attempts.sandbox_stopped(&s.id);
    observed.sandboxes.iter().filter(needs_stop).map(|s| s.id.clone()).collect()
}

fn stop_for_pod(pod: &Pod, instance: &Instance, grace: Option<Duration>) -> Stop {
    let container = pod.container(&instance.container);
    let grace = grace.unwrap_or_else(|| own_grace(pod, None));
    Stop {
        instance: instance.id.clone(),
        container: instance.container.clone(),
        pre_stop: container.is_some_and(|c| c.pre_stop().is_some()) && !grace.is_zero(),
        grace,
        order: container.and_then(|c| order(pod, c)),
        cause: StopCause::Pod,
        message: format!("Stopping container {}", instance.container),
    }
}

/// Stops one container while its pod keeps running.
pub fn container(
    pod: &Pod,
    container: &Container,
    instance: &Instance,
    cause: StopCause,
    message: String,
) -> Stop {
    let probe = match cause {
        StopCause::LivenessFailed => container.probe_grace(ProbeKind::Liveness),
        StopCause::StartupFailed => container.probe_grace(ProbeKind::Startup),
        StopCause::RestartingAll => Some(Duration::ZERO),
        StopCause::Pod
        | StopCause::SpecChanged
        | StopCause::Unknown
        | StopCause::PostStartFailed
        | StopCause::Resized
        | StopCause::Duplicate => None,
    };
    let grace = own_grace(pod, probe);
    Stop {
        instance: instance.id.clone(),
        container: instance.container.clone(),
        pre_stop: container.pre_stop().is_some() && !grace.is_zero(),
        grace,
        order: None,
        cause,
        message,
    }
}

/// The grace period of the deletion, else of the probe, else of the pod.
fn own_grace(pod: &Pod, probe: Option<Duration>) -> Duration {
    pod.deletion.and_then(|d| d.grace).or(probe).unwrap_or(pod.grace)
}

/// What is left to do of the preStop hook when a stop begins or is taken up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreStop {
    Nothing,
    /// Run the hook, or wait for it if it is running.
    Run,
    /// The rest of a `sleep` hook that an earlier process began.
    FinishSleep(Duration),
}

/// Whether this process is running the preStop hook of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookState {
    Running,
    NotRunning,
}

/// The part of the preStop hook that is left. `earlier` is the time that an earlier attempt, or an
/// agent that was killed during it, has spent. An exec or HTTP hook is not run a second time; a
/// `sleep` hook has its time left to run.
pub fn pre_stop(
    stop: &Stop,
    container: Option<&Container>,
    earlier: Option<Duration>,
    hook: HookState,
) -> PreStop {
    let Some(handler) = container.and_then(Container::pre_stop).filter(|_| stop.pre_stop) else {
        return PreStop::Nothing;
    };
    let earlier = match (earlier, hook) {
        (None, _) | (Some(_), HookState::Running) => return PreStop::Run,
        (Some(earlier), HookState::NotRunning) => earlier,
    };
    let seconds = handler.sleep.as_ref().and_then(|sleep| u64::try_from(sleep.seconds).ok());
    let sleep = Duration::from_secs(seconds.unwrap_or(0)).min(stop.grace);
    match sleep.saturating_sub(earlier) {
        Duration::ZERO => PreStop::Nothing,
        left => PreStop::FinishSleep(left),
    }
}

/// Grace period left for the process after the preStop hook; never below the runtime's minimum.
pub fn remaining(grace: Duration, spent: Duration) -> Duration {
    let whole_seconds = Duration::from_secs(spent.as_secs());
    grace.saturating_sub(whole_seconds).max(MIN_STOP)
}

/// Sidecars stop after the regular containers, in reverse order.
fn order(pod: &Pod, container: &Container) -> Option<u32> {
    match container.kind {
        ContainerKind::Init | ContainerKind::Ephemeral => None,
        ContainerKind::Regular => Some(0),
        ContainerKind::Sidecar => {
            let sidecars = pod.containers.iter().filter(|c| c.kind == ContainerKind::Sidecar);
            let position = sidecars.rev().position(|c| c.name == container.name).unwrap_or(0);
            Some(u32::try_from(position).unwrap_or(u32::MAX).saturating_add(1))
        }
    }
}
