//! In-place resize of a running pod's resources.
//!
//! Three amounts are distinct. The resources *requested* by a pod's spec may exceed what the node
//! has. The *allocated* resources ([`AllocatedResources`]) are what the node counts and what containers are
//! created with. The *actuated* resources ([`ActuatedResources`]) are what the runtime was last given, per
//! container. A request is allocated when it fits ([`fit`]). Allocated resources that are not
//! actuated yet are a resize in progress, which the pod's plan carries out in an order ([`actuation`])
//! in which the containers never exceed the pod.
//!
//! Allocated and actuated resources survive a restart of the agent, so a restart neither reverts a
//! resize nor treats a request as allocated.

pub mod actuation;
pub mod allocation;
pub mod fit;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;
use podwright_api::qos::{CPU, MEMORY};
use podwright_api::quantity::Quantity;
use serde::{Deserialize, Serialize};

use crate::ids::ContainerId;
use crate::lifecycle::Stage;
use crate::observed::{Instance, ObservedPod};
use crate::pod::{Container, ContainerKind, Pod};

pub use actuation::Resource;
pub use allocation::AllocatedResources;

/// Resources that can be resized: CPU in millicores, memory in bytes. Zero is unset.
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

    /// Amounts of a container. Without its own limit it has the pod-level limit.
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

    /// Pod-level amounts.
    pub fn of_pod(pod: &Pod) -> Self {
        Self::of(pod.object.spec.as_ref().and_then(|spec| spec.resources.as_ref()))
    }

    fn memory(self) -> (i64, i64) {
        (self.memory_limit, self.memory_request)
    }

    fn cpu(self) -> (i64, i64) {
        (self.cpu_limit, self.cpu_request)
    }

    /// Copy with the amounts of one resource from `other`.
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

/// Actuated resources: what the runtime last got for each container, and the pod's cgroup.
///
/// A container that is not listed was started by another agent with the resources that its pod had
/// then. The same holds for the pod if `pod` is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActuatedResources {
    #[serde(rename = "containers")]
    pub containers: BTreeMap<Arc<str>, Amounts>,
    #[serde(rename = "pod")]
    pub pod: Option<Amounts>,
}

/// Resize state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeState {
    #[serde(rename = "applied")]
    pub applied: ActuatedResources,
    /// A requested resize that is not allocated.
    #[serde(rename = "pending")]
    pub pending: Option<PendingResize>,
    /// Allocated resources that are not actuated yet.
    #[serde(rename = "progress")]
    pub progress: Option<ResizeProgress>,
}

impl ResizeState {
    /// The state once the resize in progress is complete.
    pub fn without_progress(&self) -> Arc<Self> {
        Arc::new(Self { progress: None, ..self.clone() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingResize {
    #[serde(rename = "why")]
    pub why: PendingReason,
    #[serde(rename = "message")]
    pub message: String,
    /// Generation of the spec that requests it.
    #[serde(rename = "generation")]
    pub generation: Option<i64>,
    #[serde(rename = "since")]
    pub since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PendingReason {
    /// It may fit later.
    #[serde(rename = "Deferred")]
    Deferred,
    /// It can never fit on this node.
    #[serde(rename = "Infeasible")]
    Infeasible,
}

impl PendingReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deferred => "Deferred",
            Self::Infeasible => "Infeasible",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeProgress {
    #[serde(rename = "generation")]
    pub generation: Option<i64>,
    /// Error of the last attempt.
    #[serde(rename = "error")]
    pub error: Option<String>,
    #[serde(rename = "since")]
    pub since: Timestamp,
}

/// Change of one running container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerResize {
    #[serde(rename = "container")]
    pub container: Arc<str>,
    #[serde(rename = "instance")]
    pub instance: ContainerId,
    #[serde(rename = "from")]
    pub from: Amounts,
    #[serde(rename = "to")]
    pub to: Amounts,
}

/// Changes of a pod. A step of its plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resize {
    #[serde(rename = "updates")]
    pub updates: Vec<ContainerResize>,
    /// The pod's cgroup has to change although no container is changed in place: a container is
    /// restarted, or only pod-level resources changed.
    #[serde(rename = "whole")]
    pub whole: bool,
}

impl Resize {
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty() && !self.whole
    }
}

/// What a running container needs to have its allocated resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeNeed {
    Nothing,
    InPlace(ContainerResize),
    /// Its `resizePolicy` requires a restart.
    Restart,
}

pub fn need(
    pod: &Pod,
    container: &Container,
    instance: &Instance,
    applied: &ActuatedResources,
) -> ResizeNeed {
    let Some(from) = applied.containers.get(&container.name).copied() else {
        return ResizeNeed::Nothing;
    };
    let resizable = match container.kind {
        ContainerKind::Init | ContainerKind::Sidecar | ContainerKind::Regular => !pod.is_static(),
        ContainerKind::Ephemeral => false,
    };
    let to = Amounts::of_container(pod, container);
    if !resizable || !instance.is_running() || from == to {
        return ResizeNeed::Nothing;
    }
    let changes = |resource| match resource {
        Resource::Memory => from.memory() != to.memory(),
        Resource::Cpu => from.cpu() != to.cpu(),
    };
    let restarts = |resource| changes(resource) && restarts_for(container, resource);
    if restarts(Resource::Memory) || restarts(Resource::Cpu) {
        return ResizeNeed::Restart;
    }
    ResizeNeed::InPlace(ContainerResize {
        container: container.name.clone(),
        instance: instance.id.clone(),
        from,
        to,
    })
}

/// What running containers were last reported to have, where it differs from what the pod requests.
///
/// For a pod whose record was lost, or that another agent ran: the resize that this agent knows nothing
/// of is completed by one update, which changes nothing if it was complete. A container that would
/// have to be restarted for it is left alone.
pub fn reported_differences(pod: &Pod) -> BTreeMap<Arc<str>, Amounts> {
    let Some(status) = &pod.object.status else { return BTreeMap::new() };
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let mut found = BTreeMap::new();
    for reported in statuses.flatten() {
        let runs = reported.state.as_ref().is_some_and(|state| state.running.is_some());
        let (Some(resources), Some(container), true) =
            (&reported.resources, pod.container(&reported.name), runs)
        else {
            continue;
        };
        let (has, wants) = (Amounts::of(Some(resources)), Amounts::of_container(pod, container));
        let restarts = (has.memory() != wants.memory()
            && restarts_for(container, Resource::Memory))
            || (has.cpu() != wants.cpu() && restarts_for(container, Resource::Cpu));
        if has != wants && !restarts {
            found.insert(container.name.clone(), has);
        }
    }
    found
}

/// Whether a change of this resource requires a restart of the container.
pub fn restarts_for(container: &Container, resource: Resource) -> bool {
    let mut policies = container.spec.resize_policy.iter().flatten();
    let policy = policies.find(|policy| policy.resource_name == resource.as_str());
    policy.is_some_and(|policy| policy.restart_policy == "RestartContainer")
}

/// The pod-level resources differ from the allocated ones.
pub fn whole_differs(pod: &Pod, applied: &ActuatedResources) -> bool {
    applied.pod.is_some_and(|applied| applied != Amounts::of_pod(pod))
}

/// A container or the pod runs with other than the allocated resources.
pub fn is_in_progress(pod: &Pod, observed: &ObservedPod, applied: &ActuatedResources) -> bool {
    let unapplied = |container: &Container| {
        let newest = observed.newest(&container.name);
        newest
            .is_some_and(|instance| need(pod, container, instance, applied) != ResizeNeed::Nothing)
    };
    whole_differs(pod, applied) || pod.containers.iter().any(unapplied)
}

/// The resize that an observation shows to be completely applied; `None` while anything is left, and
/// for a pod that does not run on.
pub fn completed(
    pod: &Pod,
    observed: &ObservedPod,
    state: &ResizeState,
    stage: Stage,
) -> Option<ResizeProgress> {
    let progress = state.progress.as_ref().filter(|_| stage == Stage::Syncing)?;
    // The observed spec may be older than the allocation.
    let includes_allocation = pod.generation() >= progress.generation;
    let done = includes_allocation && !is_in_progress(pod, observed, &state.applied);
    done.then(|| progress.clone())
}

#[cfg(test)]
mod tests;
