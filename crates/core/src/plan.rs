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
    pub network: Result<(), String>,
    /// The pod's cgroup exists.
    pub cgroup: bool,
    /// Soft admission refuses it for now, and says why.
    pub hold: Option<Hold>,
    /// Runs since the pod's first status was reported; `activeDeadlineSeconds` ends it.
    pub active: Option<Stopwatch>,
    /// Where the pod stands between the resources it wishes for and those it has.
    #[serde(default)]
    pub resizing: Arc<Resizing>,
}

/// A pod kept from running until someone lifts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub reason: String,
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
    pub pod: Pod,
    pub observed: ObservedPod,
    pub attempts: Attempts,
    pub life: Lifecycle,
    pub probed: Probed,
    pub surroundings: Surroundings,
    pub crash_backoff: BackoffLimits,
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
    Kept,
    Removed,
}

/// One act. The executor carries it out and holds no opinion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    EnsureCgroup,
    MakeDirectories,
    /// Mounts what the pod's containers use, and waits for it.
    MountVolumes,
    KillPod(KillPod),
    StopContainer(Stop),
    /// Old instances nobody needs any more.
    RemoveInstances {
        ids: Vec<ContainerId>,
        logs: Logs,
    },
    CreateSandbox {
        attempt: u32,
    },
    /// Gives running containers, and the pod around them, what was granted.
    Resize(Resize),
    StartContainer(Start),
    UnmountVolumes,
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
    pub container: Arc<str>,
    pub attempt: NextAttempt,
    /// The instance whose exit this start follows; the next back-off counts from it.
    pub after: Option<ContainerId>,
}

/// The number a new instance gets; it is its restart count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextAttempt {
    Number(u32),
    /// The runtime remembers no instance: one past the newest log file, or at least this.
    PastLogs(u32),
}

/// Why a container that should run does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub reason: WaitReason,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitReason {
    /// The pod is held back.
    Blocked,
    /// It could not be started, or not yet again.
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
    pub topic: Topic,
    /// What the pod does or waits for, in one line.
    pub text: String,
    /// What someone can do about it.
    pub way_out: Option<String>,
}

/// What a plan is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topic {
    /// Everything is as it should be.
    Runs,
    Starts,
    Stops,
    /// A container waits before it is tried again.
    Waits,
    /// A step failed and rests before it is tried again.
    Fails(PodStep),
    Held,
    NetworkNotReady,
    /// What the pod held on the node is given back.
    Releases,
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
    pub steps: Vec<Step>,
    /// Decide again at this time even if nothing happens.
    pub wake_at: Option<Mono>,
    /// Containers that wait, by name.
    pub waiting: BTreeMap<Arc<str>, Waiting>,
    pub why: Why,
    /// The stage of life is over: nothing of it is left to do.
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

/// Gives back what the pod held on the node.
fn teardown(inputs: &Inputs<'_>) -> Plan {
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
