//! Decides what a pod needs next.
//!
//! Why a plan and not calls: same inputs, same plan. So a bug report (what was wanted, what was
//! seen, when) replays as a unit test, and `podwright plan` can print it.
//!
//! [`decide`] looks at the pod's stage of life; [`sync`] is the long part, for a pod that should
//! run: [`sandbox`], then [`init`] containers, then [`regular`] ones. [`kill`] says in which order
//! and with how much time things are stopped.

pub mod init;
pub mod kill;
mod masking;
pub mod regular;
pub mod sandbox;
pub mod sync;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attempts::{Attempts, BackoffLimits, PodStep, StartError};
use crate::ids::{ContainerId, SandboxId};
use crate::lifecycle::{Lifecycle, Stage};
use crate::observed::ObservedPod;
use crate::pod::Pod;
use crate::probe::Probed;
use crate::resize::{Resize, Resizing};
use crate::time::{Mono, Now, Stopwatch};

pub use kill::{KillPod, Stop, StopCause};
pub use masking::MASK;
pub use sync::image_back_off;

/// The parts of the node that a pod stands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surroundings {
    /// `Err`: why the runtime's network is not ready.
    #[serde(rename = "network")]
    pub network: Result<(), String>,
    /// The pod's cgroup exists.
    #[serde(rename = "cgroup")]
    pub cgroup: bool,
    /// Soft admission refuses it for now, and says why.
    #[serde(rename = "hold")]
    pub hold: Option<Hold>,
    /// Runs since the pod's first status was reported; `activeDeadlineSeconds` ends it.
    #[serde(rename = "active")]
    pub active: Option<Stopwatch>,
    /// Where the pod stands between the resources it wishes for and those it has.
    #[serde(rename = "resizing", default)]
    pub resizing: Arc<Resizing>,
}

/// A pod kept from running until someone lifts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    #[serde(rename = "reason")]
    pub reason: String,
    #[serde(rename = "message")]
    pub message: String,
}

/// Everything a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub pod: &'a Pod,
    pub observed: &'a ObservedPod,
    pub attempts: &'a Attempts,
    pub life: &'a Lifecycle,
    pub probed: &'a Probed,
    pub surroundings: &'a Surroundings,
    pub crash_backoff: &'a BackoffLimits,
    pub now: Now,
}

/// The inputs of one decision, recorded so that it can be replayed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    #[serde(rename = "pod")]
    pub pod: Pod,
    #[serde(rename = "observed")]
    pub observed: ObservedPod,
    #[serde(rename = "attempts")]
    pub attempts: Attempts,
    #[serde(rename = "life")]
    pub life: Lifecycle,
    #[serde(rename = "probed")]
    pub probed: Probed,
    #[serde(rename = "surroundings")]
    pub surroundings: Surroundings,
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
            life: &self.life,
            probed: &self.probed,
            surroundings: &self.surroundings,
            crash_backoff: &self.crash_backoff,
            now: self.now,
        }
    }
}

/// What becomes of the logs of an instance that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Logs {
    #[serde(rename = "Kept")]
    Kept,
    #[serde(rename = "Removed")]
    Removed,
}

/// One act. The executor carries it out and holds no opinion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    #[serde(rename = "EnsureCgroup")]
    EnsureCgroup,
    #[serde(rename = "MakeDirectories")]
    MakeDirectories,
    /// Mounts what the pod's containers use, and waits for it.
    #[serde(rename = "MountVolumes")]
    MountVolumes,
    #[serde(rename = "KillPod")]
    KillPod(KillPod),
    #[serde(rename = "StopContainer")]
    StopContainer(Stop),
    /// Old instances nobody needs any more.
    #[serde(rename = "RemoveInstances")]
    RemoveInstances {
        #[serde(rename = "ids")]
        ids: Vec<ContainerId>,
        #[serde(rename = "logs")]
        logs: Logs,
    },
    #[serde(rename = "CreateSandbox")]
    CreateSandbox {
        #[serde(rename = "attempt")]
        attempt: u32,
    },
    /// Gives running containers, and the pod around them, what was granted.
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
    /// The container it starts, if that is what it does.
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
    /// The instance whose exit this start follows; the next back-off counts from it.
    #[serde(rename = "after")]
    pub after: Option<ContainerId>,
}

/// The number a new instance gets; it is its restart count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextAttempt {
    #[serde(rename = "Number")]
    Number(u32),
    /// The runtime remembers no instance: one past the newest log file, or at least this.
    #[serde(rename = "PastLogs")]
    PastLogs(u32),
}

/// Why a container that should run does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    #[serde(rename = "reason")]
    pub reason: WaitReason,
    #[serde(rename = "message")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitReason {
    /// The pod is held back.
    #[serde(rename = "Blocked")]
    Blocked,
    /// It could not be started, or not yet again.
    #[serde(rename = "NotStarted")]
    NotStarted(StartError),
}

impl WaitReason {
    /// In the words the API uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blocked => "Blocked",
            Self::NotStarted(error) => error.as_str(),
        }
    }
}

/// The reason of a plan: its kind for programs, its words for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    #[serde(rename = "topic")]
    pub topic: Topic,
    /// What the pod does or waits for, in one line.
    #[serde(rename = "text")]
    pub text: String,
    /// What someone can do about it.
    #[serde(rename = "way_out")]
    pub way_out: Option<String>,
}

/// What a plan is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topic {
    /// Everything is as it should be.
    #[serde(rename = "Runs")]
    Runs,
    #[serde(rename = "Starts")]
    Starts,
    #[serde(rename = "Stops")]
    Stops,
    /// A container waits before it is tried again.
    #[serde(rename = "Waits")]
    Waits,
    /// A step failed and rests before it is tried again.
    #[serde(rename = "Fails")]
    Fails(PodStep),
    #[serde(rename = "Held")]
    Held,
    #[serde(rename = "NetworkNotReady")]
    NetworkNotReady,
    /// What the pod held on the node is given back.
    #[serde(rename = "Releases")]
    Releases,
    #[serde(rename = "Over")]
    Over,
}

impl Why {
    pub fn new(topic: Topic, text: impl Into<String>) -> Self {
        Self { topic, text: text.into(), way_out: None }
    }

    pub fn way_out(mut self, way_out: impl Into<String>) -> Self {
        self.way_out = Some(way_out.into());
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// In order. A failed step ends the plan, except that one container's failure to start does
    /// not keep the next from starting.
    #[serde(rename = "steps")]
    pub steps: Vec<Step>,
    /// Decide again at this time even if nothing happens.
    #[serde(rename = "wake_at")]
    pub wake_at: Option<Mono>,
    /// Containers that wait, by name.
    #[serde(rename = "waiting")]
    pub waiting: BTreeMap<Arc<str>, Waiting>,
    #[serde(rename = "why")]
    pub why: Why,
    /// The stage of life is over: nothing of it is left to do.
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

/// What the pod needs now.
pub fn decide(inputs: &Inputs<'_>) -> Plan {
    match inputs.life.stage() {
        Stage::Syncing => sync::plan(inputs),
        Stage::Terminating => terminating(inputs),
        Stage::Terminated => teardown(inputs),
        Stage::Finished => Plan::idle(Why::new(Topic::Over, "the pod is finished")),
    }
}

/// Stops everything. Done when the runtime shows nothing alive and every sandbox was stopped once.
fn terminating(inputs: &Inputs<'_>) -> Plan {
    let kill = kill::pod(inputs.pod, inputs.observed, inputs.attempts, inputs.life.grace());
    let Some(kill) = kill else {
        let mut plan = Plan::idle(Why::new(Topic::Over, "nothing of the pod runs any more"));
        plan.stage_done = true;
        return plan;
    };
    let why = Why::new(Topic::Stops, format!("stopping the pod: {}", kill.summary())).way_out(
        "what is left when its grace is over is killed; kubectl delete --grace-period=1 waits less",
    );
    match kill::rest(inputs.observed, inputs.attempts, inputs.now.mono) {
        Some(rest) => {
            let text = format!("{}; {}", why.text, rest.text);
            let mut plan = Plan::idle(Why { topic: Topic::Fails(PodStep::Kill), text, ..why });
            plan.wake(rest.until);
            plan
        }
        None => Plan { steps: vec![Step::KillPod(kill)], ..Plan::idle(why) },
    }
}

/// Gives back what the pod held on the node. A pod that runs again when the node starts keeps it:
/// its emptyDir volumes are still its own.
fn teardown(inputs: &Inputs<'_>) -> Plan {
    if inputs.life.resumes_later() {
        return Plan::idle(Why::new(Topic::Over, "stopped with its node; runs again with it"));
    }
    let why = Why::new(Topic::Releases, "releasing volumes and cgroup");
    match inputs.attempts.step_failure(PodStep::Teardown) {
        Some(failed) if inputs.now.mono < failed.retry_at => {
            let text =
                format!("{}; it failed {} times: {}", why.text, failed.times, failed.message);
            let mut plan = Plan::idle(Why { topic: Topic::Fails(PodStep::Teardown), text, ..why });
            plan.wake(failed.retry_at);
            plan
        }
        Some(_) | None => {
            Plan { steps: vec![Step::UnmountVolumes, Step::DestroyCgroup], ..Plan::idle(why) }
        }
    }
}

/// A pod no source knows, seen in the runtime: stopped with what the runtime tells of it.
pub fn orphan(observed: &ObservedPod, attempts: &Attempts, now: Now) -> Plan {
    let why = Why::new(Topic::Stops, "no source names this pod; what runs of it is stopped");
    match kill::orphan(observed, attempts) {
        None => Plan { stage_done: true, ..Plan::idle(why) },
        Some(kill) => {
            let mut plan = Plan::idle(why);
            match kill::rest(observed, attempts, now.mono) {
                Some(rest) => plan.wake(rest.until),
                None => plan.steps.push(Step::KillPod(kill)),
            }
            plan
        }
    }
}

/// The sandbox a container would be started in.
pub fn usable_sandbox(pod: &Pod, observed: &ObservedPod) -> Option<SandboxId> {
    match sandbox::decide(pod, observed) {
        sandbox::Need::Keep(id) => Some(id),
        sandbox::Need::New { .. } => None,
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
