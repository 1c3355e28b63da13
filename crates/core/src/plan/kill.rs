//! How a pod, or one container of it, is stopped: in which order and with how much time.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::attempts::{Attempts, PodStep};
use crate::ids::{ContainerId, SandboxId};
use crate::observed::{Instance, ObservedPod};
use crate::pod::{Container, ContainerKind, Pod, ProbeKind};
use crate::time::Mono;

/// What a container gets when nothing else is known.
const LEAST_STOP: Duration = Duration::from_secs(2);
/// How long a runtime is left alone that calls a stop done and goes on showing what it stopped.
const SURVIVOR_REST: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCause {
    /// The pod ends or gets a new sandbox.
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
    /// Its resources change, and it asks to start anew for that.
    #[serde(rename = "Resized")]
    Resized,
    /// A newer instance of the same container is there.
    #[serde(rename = "Double")]
    Double,
}

/// One instance to stop.
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
    /// Instances of a later turn wait until all of the earlier ones ended: sidecars go last, in
    /// reverse. `None`: at once, and nobody waits for it.
    #[serde(rename = "turn")]
    pub turn: Option<u32>,
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
    /// Stopped after the containers. All of them: a dead one may still hold an address.
    #[serde(rename = "sandboxes")]
    pub sandboxes: Vec<SandboxId>,
    /// A new sandbox follows: worth the event `SandboxChanged`.
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

/// Stops all of a pod; `None` if there is nothing to stop.
pub fn pod(
    pod: &Pod,
    observed: &ObservedPod,
    attempts: &Attempts,
    grace: Option<Duration>,
) -> Option<KillPod> {
    let stops = observed.running().map(|i| stop_for_pod(pod, i, grace)).collect();
    some(KillPod { stops, sandboxes: sandboxes(observed, attempts), replaced: false })
}

/// Stops what runs of a pod whose spec is gone: no hooks, and the least time the runtime takes.
pub fn orphan(observed: &ObservedPod, attempts: &Attempts) -> Option<KillPod> {
    let stops = observed
        .running()
        .map(|i| Stop {
            instance: i.id.clone(),
            container: i.container.clone(),
            grace: Duration::from_secs(1),
            pre_stop: false,
            turn: None,
            cause: StopCause::Pod,
            message: format!("Stopping container {}", i.container),
        })
        .collect();
    some(KillPod { stops, sandboxes: sandboxes(observed, attempts), replaced: false })
}

/// Stopping rests: until when, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    pub until: Mono,
    pub text: String,
}

/// A stop that failed is not tried again before its time. Nor is one that the runtime called done
/// while it goes on showing what it stopped: asked at once it would say the same, for ever.
pub fn rest(observed: &ObservedPod, attempts: &Attempts, now: Mono) -> Option<Rest> {
    let failed = attempts.step_failure(PodStep::Kill).map(|failed| Rest {
        until: failed.retry_at,
        text: format!("{} (tried {} times)", failed.message, failed.times),
    });
    let survived = || {
        let survivor = attempts.survivor(observed)?;
        let text = format!(
            "the runtime said {} times that it stopped {}, and still shows it running",
            survivor.times, survivor.name
        );
        Some(Rest { until: survivor.last + SURVIVOR_REST, text })
    };
    failed.filter(|rest| now < rest.until).or_else(survived).filter(|rest| now < rest.until)
}

fn some(kill: KillPod) -> Option<KillPod> {
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
        turn: container.and_then(|c| turn(pod, c)),
        cause: StopCause::Pod,
        message: format!("Stopping container {}", instance.container),
    }
}

/// Stops one container while its pod goes on.
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
        | StopCause::Double => None,
    };
    let grace = own_grace(pod, probe);
    Stop {
        instance: instance.id.clone(),
        container: instance.container.clone(),
        pre_stop: container.pre_stop().is_some() && !grace.is_zero(),
        grace,
        turn: None,
        cause,
        message,
    }
}

/// The deletion's grace, else the probe's, else the pod's.
fn own_grace(pod: &Pod, probe: Option<Duration>) -> Duration {
    pod.deletion.and_then(|d| d.grace).or(probe).unwrap_or(pod.grace)
}

/// What is left for the process after the hook took its part: never less than the runtime needs.
pub fn remaining(grace: Duration, spent: Duration) -> Duration {
    let whole_seconds = Duration::from_secs(spent.as_secs());
    grace.saturating_sub(whole_seconds).max(LEAST_STOP)
}

fn turn(pod: &Pod, container: &Container) -> Option<u32> {
    match container.kind {
        ContainerKind::Init | ContainerKind::Ephemeral => None,
        ContainerKind::Regular => Some(0),
        ContainerKind::Sidecar => {
            let sidecars = pod.containers.iter().filter(|c| c.kind == ContainerKind::Sidecar);
            let place = sidecars.rev().position(|c| c.name == container.name).unwrap_or(0);
            Some(u32::try_from(place).unwrap_or(u32::MAX).saturating_add(1))
        }
    }
}
