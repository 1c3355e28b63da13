//! Changing how much a running pod may use, without starting it anew.
//!
//! Three amounts must not be mixed up. What a pod's spec *wishes* for may be more than the node
//! has. What it was *granted* ([`Grant`]) is what the node counts, and what its containers are
//! made with. What was *applied* ([`Applied`]) is what the runtime was last told, container by
//! container. A wish becomes a grant when it fits ([`fit`]); a grant that is not applied yet is a
//! resize in progress, which the pod's plan carries on with, in an order ([`acts`]) in which the
//! parts never exceed the whole.
//!
//! Grants and what was applied survive the agent. So a restart neither reverts a resize nor takes
//! a wish for granted.

pub mod acts;
pub mod fit;
pub mod grant;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};

use crate::ids::ContainerId;
use crate::observed::{Instance, ObservedPod};
use crate::pod::{Container, ContainerKind, Pod};
use crate::qos::{CPU, MEMORY};
use crate::quantity::Quantity;

pub use acts::Resource;
pub use grant::Grant;

/// What a resize can change: CPU in thousandths, memory in bytes. Zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amounts {
    #[serde(rename = "cpu_request")]
    pub cpu_request: i64,
    #[serde(rename = "cpu_limit")]
    pub cpu_limit: i64,
    #[serde(rename = "memory_request")]
    pub memory_request: i64,
    #[serde(rename = "memory_limit")]
    pub memory_limit: i64,
}

impl Amounts {
    fn of(own: Option<&ResourceRequirements>) -> Self {
        let (requests, limits) =
            own.map_or((None, None), |own| (own.requests.as_ref(), own.limits.as_ref()));
        let quantity = |list: Option<&BTreeMap<_, _>>, name| {
            let text = list.and_then(|list| list.get(name));
            text.and_then(|text| Quantity::try_from(text).ok()).unwrap_or_default()
        };
        Self {
            cpu_request: quantity(requests, CPU).milli_value(),
            cpu_limit: quantity(limits, CPU).milli_value(),
            memory_request: quantity(requests, MEMORY).value(),
            memory_limit: quantity(limits, MEMORY).value(),
        }
    }

    /// What a container may use. Where it has no limit, that of the pod as a whole is its own.
    pub fn of_container(pod: &Pod, container: &Container) -> Self {
        let whole = Self::of_pod(pod);
        let own = Self::of(container.spec.resources.as_ref());
        let or = |own: i64, whole: i64| if own == 0 { whole } else { own };
        Self {
            cpu_limit: or(own.cpu_limit, whole.cpu_limit),
            memory_limit: or(own.memory_limit, whole.memory_limit),
            ..own
        }
    }

    /// What is set for the pod as a whole.
    pub fn of_pod(pod: &Pod) -> Self {
        Self::of(pod.object.spec.as_ref().and_then(|spec| spec.resources.as_ref()))
    }

    fn memory(self) -> (i64, i64) {
        (self.memory_limit, self.memory_request)
    }

    fn cpu(self) -> (i64, i64) {
        (self.cpu_limit, self.cpu_request)
    }

    /// These, with the amounts of one resource from `other`.
    pub fn with(self, resource: Resource, other: Self) -> Self {
        match resource {
            Resource::Memory => Self {
                memory_request: other.memory_request,
                memory_limit: other.memory_limit,
                ..self
            },
            Resource::Cpu => {
                Self { cpu_request: other.cpu_request, cpu_limit: other.cpu_limit, ..self }
            }
        }
    }
}

/// What the runtime was last told of each container, and the kernel of the pod as a whole.
///
/// A container that is not listed was started by somebody else, with what its pod then had; and
/// so was the pod, if nothing is said of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    #[serde(rename = "containers")]
    pub containers: BTreeMap<Arc<str>, Amounts>,
    #[serde(rename = "pod")]
    pub pod: Option<Amounts>,
}

/// Where a pod stands between wish and reality.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resizing {
    #[serde(rename = "applied")]
    pub applied: Applied,
    /// A wish that was not granted.
    #[serde(rename = "pending")]
    pub pending: Option<Pending>,
    /// A grant that is not applied yet.
    #[serde(rename = "progress")]
    pub progress: Option<Progress>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    #[serde(rename = "why")]
    pub why: NotGranted,
    #[serde(rename = "message")]
    pub message: String,
    /// Of the spec that wishes for it.
    #[serde(rename = "generation")]
    pub generation: Option<i64>,
    #[serde(rename = "since")]
    pub since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotGranted {
    /// It may fit later.
    #[serde(rename = "Deferred")]
    Deferred,
    /// It never will, on this node.
    #[serde(rename = "Infeasible")]
    Infeasible,
}

impl NotGranted {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deferred => "Deferred",
            Self::Infeasible => "Infeasible",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    #[serde(rename = "generation")]
    pub generation: Option<i64>,
    /// Why the last try did not get through.
    #[serde(rename = "error")]
    pub error: Option<String>,
    #[serde(rename = "since")]
    pub since: Timestamp,
}

/// One running container to be changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    #[serde(rename = "container")]
    pub container: Arc<str>,
    #[serde(rename = "instance")]
    pub instance: ContainerId,
    #[serde(rename = "from")]
    pub from: Amounts,
    #[serde(rename = "to")]
    pub to: Amounts,
}

/// What of a pod has to be changed. A step of its plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    #[serde(rename = "updates")]
    pub updates: Vec<Update>,
    /// The pod's own group has to follow though no container is changed in place: one of them
    /// starts anew, or only the whole changed.
    #[serde(rename = "whole")]
    pub whole: bool,
}

impl Resize {
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty() && !self.whole
    }
}

/// What a running container needs to have what it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    Nothing,
    InPlace(Update),
    /// Its `resizePolicy` wants it to start anew.
    Restart,
}

pub fn need(pod: &Pod, container: &Container, instance: &Instance, applied: &Applied) -> Need {
    let Some(from) = applied.containers.get(&container.name).copied() else { return Need::Nothing };
    let resizable = match container.kind {
        ContainerKind::Init | ContainerKind::Sidecar | ContainerKind::Regular => !pod.is_static(),
        ContainerKind::Ephemeral => false,
    };
    let to = Amounts::of_container(pod, container);
    if !resizable || !instance.is_running() || from == to {
        return Need::Nothing;
    }
    let changes = |resource| match resource {
        Resource::Memory => from.memory() != to.memory(),
        Resource::Cpu => from.cpu() != to.cpu(),
    };
    let restarts = |resource| changes(resource) && restarts_for(container, resource);
    if restarts(Resource::Memory) || restarts(Resource::Cpu) {
        return Need::Restart;
    }
    Need::InPlace(Update {
        container: container.name.clone(),
        instance: instance.id.clone(),
        from,
        to,
    })
}

/// Whether a change of this resource takes a new instance.
pub fn restarts_for(container: &Container, resource: Resource) -> bool {
    let mut policies = container.spec.resize_policy.iter().flatten();
    let policy = policies.find(|policy| policy.resource_name == resource.as_str());
    policy.is_some_and(|policy| policy.restart_policy == "RestartContainer")
}

/// The pod as a whole has not what it was granted.
pub fn whole_differs(pod: &Pod, applied: &Applied) -> bool {
    applied.pod.is_some_and(|applied| applied != Amounts::of_pod(pod))
}

/// Something of the pod runs with other amounts than it was granted.
pub fn is_in_progress(pod: &Pod, observed: &ObservedPod, applied: &Applied) -> bool {
    let unapplied = |container: &Container| {
        let newest = observed.newest(&container.name);
        newest.is_some_and(|instance| need(pod, container, instance, applied) != Need::Nothing)
    };
    whole_differs(pod, applied) || pod.containers.iter().any(unapplied)
}

#[cfg(test)]
mod tests;
