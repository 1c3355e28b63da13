//! Pod status: generated from the inputs of the plan, then merged and patched to the API server.
//!
//! [`generate`] derives the whole status from the plan, its inputs and the last report: the
//! runtime drops old containers, but a report must not. It reads no clock; transition times are
//! set when a report is accepted.
//!
//! Path of a report: [`generate`], [`manager::accept`] (is it legal and new), [`merge::merge`]
//! with the API's copy, then [`patch::patch`], the difference if there is one.

pub mod addresses;
pub mod conditions;
pub mod container;
pub mod delay;
pub mod dropped;
pub mod ending;
pub mod manager;
pub mod merge;
pub mod normal;
pub mod patch;
pub mod phase;
pub mod queue;
mod readiness;
mod resources;
mod transition;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use podwright_api::qos::QosClass;

use crate::lifecycle::Stage;
use crate::plan::{Inputs, Plan};
use crate::pod::{Phase, Pod};

pub use addresses::NodeAddresses;
pub use container::ContainerStatuses;

/// Inputs of a status.
#[derive(Clone, Copy, Debug)]
pub struct StatusSources<'a> {
    pub inputs: &'a Inputs<'a>,
    /// Plan from the same inputs: it has the waiting containers and the reasons.
    pub plan: &'a Plan,
    /// The last report. `None`: none since the agent started; then the API's copy is the last one.
    pub old: Option<&'a PodStatus>,
    pub node: &'a NodeAddresses,
    pub agent_started: Timestamp,
    pub runtime: Runtime<'a>,
}

#[derive(Clone, Copy, Debug)]
pub struct Runtime<'a> {
    /// The scheme of container ids: `containerd`.
    pub name: &'a str,
    /// The runtime handler of this pod supports recursive read-only mounts.
    pub recursive_read_only: bool,
}

impl<'a> StatusSources<'a> {
    fn pod(&self) -> &'a Pod {
        self.inputs.pod
    }

    fn api(&self) -> Option<&'a PodStatus> {
        self.inputs.pod.object.status.as_ref()
    }

    fn old(&self) -> Option<&'a PodStatus> {
        self.old.or_else(|| self.api())
    }

    /// No container of the pod is running, and none will be started.
    fn is_terminal(&self) -> bool {
        match self.inputs.lifecycle.stage() {
            Stage::Syncing => false,
            Stage::Terminating => self.plan.stage_done,
            Stage::Terminated | Stage::Finished => true,
        }
    }
}

/// Generates the current status of a pod.
pub fn generate(sources: &StatusSources<'_>) -> PodStatus {
    let pod = sources.pod();
    let old = sources.old();
    // The last report of an agent that could read the pod stays; the end is reported at
    // termination.
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
        host_ips: non_empty(addresses.host),
        pod_ip: addresses.pod.first().map(|pod| pod.ip.clone()),
        pod_ips: non_empty(addresses.pod),
        start_time: old.and_then(|old| old.start_time.clone()),
        init_container_statuses: non_empty(containers.init),
        container_statuses: non_empty(containers.regular),
        ephemeral_container_statuses: non_empty(containers.ephemeral),
        qos_class,
        allocated_resources: resources.allocated,
        resources: Some(resources.enforced),
        ..PodStatus::default()
    }
}

/// Status of a pod that this node rejected.
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

/// `None` for a pod whose quantities cannot be parsed; admission reports that to the user.
fn qos_class(pod: &Pod) -> Option<String> {
    QosClass::of(&pod.object).ok().map(|class| class.as_str().into())
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// In the API an empty string and a missing one are the same.
fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub fn phase_of(status: &PodStatus) -> Phase {
    Phase::parse(status.phase.as_deref())
}

#[cfg(test)]
mod tests;
