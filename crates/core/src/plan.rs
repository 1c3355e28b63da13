//! Pod planner: decides what a pod needs next, the counterpart of upstream's `computePodActions`.
//!
//! The result is a [`Plan`], not a series of calls: the same inputs give the same plan, so a
//! recorded [`Case`] replays as a unit test and `podwright plan` can print it.
//!
//! [`decide`] branches on the lifecycle stage. [`sync`] plans a pod that should be running:
//! [`sandbox`], then [`init`] containers, then [`regular`] containers, where restarts are decided.
//! [`kill`] decides the order and the grace periods of stops.

pub mod init;
pub mod kill;
mod masking;
pub mod regular;
pub mod sandbox;
pub mod sync;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attempts::{Attempts, PodStep, StartError};
use crate::backoff::BackoffLimits;
use crate::ids::{ContainerId, SandboxId};
use crate::lifecycle::{Lifecycle, Stage};
use crate::observed::ObservedPod;
use crate::pod::features::PodFeatures;
use crate::pod::{ContainerKind, Pod};
use crate::probe::ProbeVerdicts;
use crate::resize::{Resize, ResizeState};
use crate::time::{Mono, Now, Stopwatch};

pub use kill::{KillPod, Stop, StopCause};
pub use masking::MASK;
pub use sync::image_back_off;

/// Node-local state that a plan depends on, besides the pod's spec and its observed state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalState {
    /// `Err`: why the runtime's network is not ready.
    #[serde(rename = "network")]
    pub network: Result<(), String>,
    /// The pod's cgroup exists.
    #[serde(rename = "cgroup")]
    pub cgroup: bool,
    /// Soft admission currently keeps the pod from running.
    #[serde(rename = "hold")]
    pub hold: Option<Hold>,
    /// Time since the pod's first reported status, for `activeDeadlineSeconds`.
    #[serde(rename = "active")]
    pub active: Option<Stopwatch>,
    /// Pending, allocated and actuated resources of an in-place resize.
    #[serde(rename = "resizing", default)]
    pub resizing: Arc<ResizeState>,
    /// Feature gates of this node.
    #[serde(rename = "features", default, skip_serializing_if = "PodFeatures::is_default")]
    pub features: PodFeatures,
}

/// A soft-admission hold: the pod is admitted but must not run until the hold is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    #[serde(rename = "reason")]
    pub reason: String,
    #[serde(rename = "message")]
    pub message: String,
}

/// All inputs of one decision.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub pod: &'a Pod,
    pub observed: &'a ObservedPod,
    pub attempts: &'a Attempts,
    pub lifecycle: &'a Lifecycle,
    pub probed: &'a ProbeVerdicts,
    pub local_state: &'a LocalState,
    pub crash_backoff: &'a BackoffLimits,
    pub now: Now,
}

/// Recorded inputs of one decision, for replay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    #[serde(rename = "pod")]
    pub pod: Pod,
    #[serde(rename = "observed")]
    pub observed: ObservedPod,
    #[serde(rename = "attempts")]
    pub attempts: Attempts,
    #[serde(rename = "life")]
    pub lifecycle: Lifecycle,
    #[serde(rename = "probed")]
    pub probed: ProbeVerdicts,
    #[serde(rename = "surroundings")]
    pub local_state: LocalState,
    #[serde(rename = "crash_backoff")]
    pub crash_backoff: BackoffLimits,
    #[serde(rename = "now")]
    pub now: Now,
}

impl Case {
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            pod: &self.pod,
            observed: &self.observed,
            attempts: &self.attempts,
            lifecycle: &self.lifecycle,
            probed: &self.probed,
            local_state: &self.local_state,
            crash_backoff: &self.crash_backoff,
            now: self.now,
        }
    }
}

/// Whether the logs of a removed container instance are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Logs {
    #[serde(rename = "Kept")]
    Kept,
    #[serde(rename = "Removed")]
    Removed,
}

/// What happens to the rest of the plan when an instance cannot be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnRemovalFailure {
    /// The following steps depend on the removal.
    #[default]
    #[serde(rename = "End")]
    End,
    /// The instance is obsolete; garbage collection removes it later.
    #[serde(rename = "Continue")]
    Continue,
}

/// One action of a plan. The pod worker executes it and makes no decisions of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    #[serde(rename = "EnsureCgroup")]
    EnsureCgroup,
    #[serde(rename = "MakeDirectories")]
    MakeDirectories,
    /// Mounts the volumes that the pod's containers use and waits until they are mounted.
    #[serde(rename = "MountVolumes")]
    MountVolumes,
    #[serde(rename = "KillPod")]
    KillPod(KillPod),
    #[serde(rename = "StopContainer")]
    StopContainer(Stop),
    /// Removes old container instances that are no longer needed.
    #[serde(rename = "RemoveInstances")]
    RemoveInstances {
        #[serde(rename = "ids")]
        ids: Vec<ContainerId>,
        #[serde(rename = "logs")]
        logs: Logs,
        #[serde(rename = "on_failure", default)]
        on_failure: OnRemovalFailure,
    },
    #[serde(rename = "CreateSandbox")]
    CreateSandbox {
        #[serde(rename = "attempt")]
        attempt: u32,
    },
    /// Applies allocated resources to running containers and to the pod cgroup.
    #[serde(rename = "Resize")]
    Resize(Resize),
    #[serde(rename = "StartContainer")]
    StartContainer(Start),
    #[serde(rename = "UnmountVolumes")]
    UnmountVolumes,
    #[serde(rename = "DestroyCgroup")]
    DestroyCgroup,
}

impl Step {
    /// Whether the plan continues after a failure of this step. A container that fails to start
    /// does not keep others from starting, unless it is an init container: the next ones wait for
    /// it.
    pub fn continues_after_failure(&self, pod: &Pod) -> bool {
        match self {
            Self::Resize(_) => true,
            Self::RemoveInstances { on_failure, .. } => match on_failure {
                OnRemovalFailure::Continue => true,
                OnRemovalFailure::End => false,
            },
            Self::StartContainer(start) => {
                pod.container(&start.container).is_some_and(|c| c.kind != ContainerKind::Init)
            }
            Self::EnsureCgroup
            | Self::MakeDirectories
            | Self::MountVolumes
            | Self::KillPod(_)
            | Self::StopContainer(_)
            | Self::CreateSandbox { .. }
            | Self::UnmountVolumes
            | Self::DestroyCgroup => false,
        }
    }

    /// The container that this step starts, if it is a start.
    pub fn start(&self) -> Option<&Start> {
        match self {
            Self::StartContainer(start) => Some(start),
            Self::EnsureCgroup
            | Self::MakeDirectories
            | Self::MountVolumes
            | Self::KillPod(_)
            | Self::StopContainer(_)
            | Self::RemoveInstances { .. }
            | Self::CreateSandbox { .. }
            | Self::Resize(_)
            | Self::UnmountVolumes
            | Self::DestroyCgroup => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    #[serde(rename = "container")]
    pub container: Arc<str>,
    #[serde(rename = "attempt")]
    pub attempt: NextAttempt,
    /// The previous instance, from whose exit the next crash back-off counts.
    #[serde(rename = "after")]
    pub after: Option<ContainerId>,
}

/// Attempt number of a new container instance; reported as its restart count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextAttempt {
    #[serde(rename = "Number")]
    Number(u32),
    /// The runtime lists no instance: use one more than the newest log file, but at least this.
    #[serde(rename = "PastLogs")]
    PastLogs(u32),
}

/// Waiting state of a container that should be running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    #[serde(rename = "reason")]
    pub reason: WaitReason,
    #[serde(rename = "message")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitReason {
    /// The pod is held by soft admission.
    #[serde(rename = "Blocked")]
    Blocked,
    /// The container could not be started, or is in back-off.
    #[serde(rename = "NotStarted")]
    NotStarted(StartError),
}

impl WaitReason {
    /// The reason as the API reports it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "Blocked",
            Self::NotStarted(error) => error.as_str(),
        }
    }
}

/// Explanation of a plan: a topic for programs, a text for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    #[serde(rename = "topic")]
    pub topic: Topic,
    /// What the pod is doing or waiting for, in one line.
    #[serde(rename = "text")]
    pub text: String,
    /// What the user can do about it; starts with a verb.
    #[serde(rename = "way_out")]
    pub fix: Option<String>,
}

/// Subject of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topic {
    /// Nothing to do: the pod is running as specified.
    #[serde(rename = "Runs")]
    Runs,
    #[serde(rename = "Starts")]
    Starts,
    #[serde(rename = "Stops")]
    Stops,
    /// A container is in back-off before its next start.
    #[serde(rename = "Waits")]
    Waits,
    /// A pod-level step failed and is in back-off.
    #[serde(rename = "Fails")]
    Fails(PodStep),
    #[serde(rename = "Held")]
    Held,
    #[serde(rename = "NetworkNotReady")]
    NetworkNotReady,
    /// Volumes and cgroup are being released.
    #[serde(rename = "Releases")]
    Releases,
    #[serde(rename = "Over")]
    Over,
}

impl Why {
    pub fn new(topic: Topic, text: impl Into<String>) -> Self {
        Self { topic, text: text.into(), fix: None }
    }

    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// In order. A failed step ends the plan, except that a container that fails to start does not
    /// keep the next one from starting.
    #[serde(rename = "steps")]
    pub steps: Vec<Step>,
    /// Decide again at this time even without a notification.
    #[serde(rename = "wake_at")]
    pub wake_at: Option<Mono>,
    /// Waiting containers, by name.
    #[serde(rename = "waiting")]
    pub waiting: BTreeMap<Arc<str>, Waiting>,
    #[serde(rename = "why")]
    pub why: Why,
    /// The lifecycle stage is complete: no step of it is left.
    #[serde(rename = "stage_done")]
    pub stage_done: bool,
}

impl Plan {
    pub(crate) fn idle(why: Why) -> Self {
        Self { steps: Vec::new(), wake_at: None, waiting: BTreeMap::new(), why, stage_done: false }
    }

    pub(crate) fn wake(&mut self, at: Mono) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Decides what the pod needs now.
pub fn decide(inputs: &Inputs<'_>) -> Plan {
    match inputs.lifecycle.stage() {
        Stage::Syncing => sync::plan(inputs),
        Stage::Terminating => terminating(inputs),
        Stage::Terminated => teardown(inputs),
        Stage::Finished => Plan::idle(Why::new(Topic::Over, "the pod is finished")),
    }
}

/// Stops everything. Done when the runtime shows nothing running and every sandbox was stopped
/// once.
fn terminating(inputs: &Inputs<'_>) -> Plan {
    let kill = kill::pod(inputs.pod, inputs.observed, inputs.attempts, inputs.lifecycle.grace());
    let Some(kill) = kill else {
        let mut plan =
            Plan::idle(Why::new(Topic::Over, "all containers and sandboxes are stopped"));
        plan.stage_done = true;
        return plan;
    };
    let why = Why::new(Topic::Stops, format!("stopping the pod: {}", kill.summary())).fix(
        "containers still running after the grace period are killed; \
         to wait less: kubectl delete --grace-period=1",
    );
    match kill::backoff(inputs.observed, inputs.attempts, inputs.now.mono) {
        Some(backoff) => {
            let text = format!("{}; {}", why.text, backoff.text);
            let mut plan = Plan::idle(Why { topic: Topic::Fails(PodStep::Kill), text, ..why });
            plan.wake(backoff.until);
            plan
        }
        None => Plan { steps: vec![Step::KillPod(kill)], ..Plan::idle(why) },
    }
}

/// Releases volumes and cgroup. A pod that resumes when the node starts again keeps both, with the
/// content of its emptyDir volumes.
fn teardown(inputs: &Inputs<'_>) -> Plan {
    if inputs.lifecycle.resumes_later() {
        return Plan::idle(Why::new(Topic::Over, "stopped with the node; resumes when it starts"));
    }
    let why = Why::new(Topic::Releases, "releasing volumes and cgroup");
    match inputs.attempts.step_failure(PodStep::Teardown) {
        Some(failed) if inputs.now.mono < failed.retry_at => {
            let text = format!("{}; failed {} times: {}", why.text, failed.times, failed.message);
            let mut plan = Plan::idle(Why { topic: Topic::Fails(PodStep::Teardown), text, ..why });
            plan.wake(failed.retry_at);
            plan
        }
        Some(_) | None => {
            Plan { steps: vec![Step::UnmountVolumes, Step::DestroyCgroup], ..Plan::idle(why) }
        }
    }
}

/// Plan for a pod that no source names but the runtime still shows: stop what is running.
pub fn orphan(observed: &ObservedPod, attempts: &Attempts, now: Now) -> Plan {
    let why = Why::new(Topic::Stops, "no source names this pod; stopping its containers");
    match kill::orphan(observed, attempts) {
        None => Plan { stage_done: true, ..Plan::idle(why) },
        Some(kill) => {
            let mut plan = Plan::idle(why);
            match kill::backoff(observed, attempts, now.mono) {
                Some(backoff) => plan.wake(backoff.until),
                None => plan.steps.push(Step::KillPod(kill)),
            }
            plan
        }
    }
}

/// The sandbox in which a container would be started.
pub fn usable_sandbox(pod: &Pod, observed: &ObservedPod) -> Option<SandboxId> {
    match sandbox::decide(pod, observed) {
        sandbox::SandboxDecision::Keep(id) => Some(id),
        sandbox::SandboxDecision::Create { .. } => None,
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
