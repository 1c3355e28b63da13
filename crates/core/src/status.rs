//! What the API server is told about a pod, and when.
//!
//! [`generate`] derives the whole status from the inputs of the plan, the plan itself and what was
//! reported before: a runtime forgets its containers, a report must not. It reads no clock; times
//! of change are set when a report is accepted.
//!
//! The way of a report: [`generate`], then [`manager::accept`] (is it legal, does it say anything
//! new), then [`merge::merge`] with the API's copy, then [`patch::patch`]: what differs, or nothing.

pub mod addresses;
pub mod conditions;
pub mod container;
pub mod dropped;
pub mod ending;
pub mod manager;
pub mod merge;
pub mod normal;
pub mod patch;
pub mod phase;
mod readiness;
mod resources;
mod transition;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;

use crate::lifecycle::Stage;
use crate::plan::{Inputs, Plan};
use crate::pod::{Phase, Pod};
use crate::qos::QosClass;

pub use addresses::NodeAddresses;
pub use container::Shown;

/// Everything a status is made from.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    pub inputs: &'a Inputs<'a>,
    /// Made from the same inputs: it knows which containers wait, and why.
    pub plan: &'a Plan,
    /// Our last report. `None`: none since the agent started, so the API's copy is the last one.
    pub old: Option<&'a PodStatus>,
    pub node: &'a NodeAddresses,
    pub agent_started: Timestamp,
    pub runtime: Runtime<'a>,
}

#[derive(Clone, Copy, Debug)]
pub struct Runtime<'a> {
    /// The scheme of container ids: `containerd`.
    pub name: &'a str,
    /// Its handler for this pod can make mounts read-only all the way down.
    pub recursive_read_only: bool,
}

impl<'a> Sources<'a> {
    fn pod(&self) -> &'a Pod {
        self.inputs.pod
    }

    fn api(&self) -> Option<&'a PodStatus> {
        self.inputs.pod.object.status.as_ref()
    }

    fn old(&self) -> Option<&'a PodStatus> {
        self.old.or_else(|| self.api())
    }

    /// No container of the pod runs, and none will again.
    fn is_terminal(&self) -> bool {
        match self.inputs.life.stage() {
            Stage::Syncing => false,
            Stage::Terminating => self.plan.stage_done,
            Stage::Terminated | Stage::Finished => true,
        }
    }
}

/// The status of a pod as it is now.
pub fn generate(sources: &Sources<'_>) -> PodStatus {
    let pod = sources.pod();
    let old = sources.old();
    // What was reported by an agent that could read the pod stands; its end is told when it ended.
    if pod.unreadable.is_some() {
        return old.cloned().unwrap_or_default();
    }
    let containers = container::all(sources);
    let outcome = phase::outcome(sources, containers.shown());
    let conditions = conditions::all(sources, containers.shown(), outcome.phase);
    let resources = resources::of_pod(sources);
    let addresses = addresses::of(pod, sources.inputs.observed, sources.node, old);
    let qos_class = old.and_then(|old| old.qos_class.clone()).or_else(|| qos_class(pod));
    PodStatus {
        observed_generation: pod.generation(),
        phase: Some(outcome.phase.as_str().into()),
        reason: outcome.reason,
        message: outcome.message,
        conditions: Some(conditions),
        host_ip: addresses.host.first().map(|host| host.ip.clone()),
        host_ips: some(addresses.host),
        pod_ip: addresses.pod.first().map(|pod| pod.ip.clone()),
        pod_ips: some(addresses.pod),
        start_time: old.and_then(|old| old.start_time.clone()),
        init_container_statuses: some(containers.init),
        container_statuses: some(containers.regular),
        ephemeral_container_statuses: some(containers.ephemeral),
        qos_class,
        allocated_resources: resources.allocated,
        resources: Some(resources.enforced),
        ..PodStatus::default()
    }
}

/// The status of a pod this node will not run.
pub fn rejected(pod: &Pod, reason: &str, message: &str) -> PodStatus {
    PodStatus {
        observed_generation: pod.generation(),
        phase: Some(Phase::Failed.as_str().into()),
        reason: Some(reason.into()),
        message: Some(format!("Pod was rejected: {message}")),
        qos_class: qos_class(pod),
        ..PodStatus::default()
    }
}

/// A pod whose quantities cannot be read has no class; whoever admits pods says so to the user.
fn qos_class(pod: &Pod) -> Option<String> {
    QosClass::of(&pod.object).ok().map(|class| class.as_str().into())
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// In the API an empty text and no text are the same.
fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub fn phase_of(status: &PodStatus) -> Phase {
    Phase::parse(status.phase.as_deref())
}

#[cfg(test)]
mod tests;
