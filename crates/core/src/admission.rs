//! Whether the node takes a pod. A rejection is final.
//!
//! The scheduler decided on what it knew; in the meantime another pod may have come, or somebody
//! wrote the node's name into the pod. The questions, their order, reasons and messages are
//! upstream's: controllers and people read them. A critical pod that only lacks room is not
//! rejected; others make room for it ([`preemption`]).

mod affinity;
mod fit;
mod ports;
pub mod preemption;
pub mod scheduling;
pub mod sysctls;
mod taints;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use serde::{Deserialize, Serialize};

pub use self::fit::Shortage;
use self::sysctls::Allowed;
use crate::ids::PodUid;
use crate::node_status::Pressure;
use crate::pod::registry::is_mirror;
use crate::pod::{Phase, Pod};
use crate::qos::{PodResources, QosClass, ResourceList};

/// Priorities from here on belong to the system.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// The node, as far as admission asks.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: Arc<str>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<v1::Taint>,
    /// What pods may have in all, the number of pods included.
    pub allocatable: ResourceList,
    pub sysctls: Arc<Allowed>,
    pub apparmor: bool,
    /// The runtime can do without the groups that the image brings.
    pub strict_groups: bool,
    pub pressure: Pressure,
    pub shutting_down: bool,
}

/// Why a pod was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    #[serde(rename = "reason")]
    pub reason: String,
    #[serde(rename = "message")]
    pub message: String,
}

impl Rejection {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    /// It was the node's labels that did not fit, which may be newer than what we know of them.
    pub fn is_about_labels(&self) -> bool {
        self.reason == "NodeAffinity"
    }

    /// The reason as it is counted. A pod can ask for a resource of any name, and with that would
    /// make a series of its own.
    pub fn counted_as(&self) -> &'static str {
        match COUNTED.iter().find(|known| **known == self.reason) {
            Some(known) => known,
            None if self.reason.starts_with("OutOf") => "OutOfExtendedResources",
            None => "Other",
        }
    }
}

/// Reasons with a count of their own.
const COUNTED: [&str; 17] = [
    "AppArmor",
    "Evicted",
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TaintToleration",
    "UnexpectedAdmissionError",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admitted,
    Rejected(Rejection),
    /// Admitted as soon as the victims have ended; `lacking` is what there is too little of.
    After {
        victims: Vec<PodUid>,
        lacking: String,
    },
}

/// Asks whether `pod` fits beside the active ones.
pub fn admit(pod: &Pod, active: &[Arc<Pod>], node: &Node) -> Verdict {
    if let Some(why) = &pod.unreadable {
        let message = format!("{why}; this version of podwright cannot run it");
        return Verdict::Rejected(Rejection::new("FailedValidation", message));
    }
    let before = [under_pressure, forbidden_sysctl];
    let after = [no_apparmor, shutting_down];
    let first = |questions: &[fn(&Pod, &Node) -> Option<Rejection>]| {
        questions.iter().find_map(|question| question(pod, node))
    };
    if let Some(rejection) = first(&before) {
        return Verdict::Rejected(rejection);
    }
    let verdict = by_predicates(pod, active, node);
    match (&verdict, first(&after)) {
        (Verdict::Rejected(_), _) | (_, None) => verdict,
        (Verdict::Admitted | Verdict::After { .. }, Some(rejection)) => {
            Verdict::Rejected(rejection)
        }
    }
}

/// A pod that the node must not do without.
pub fn is_critical(pod: &Pod) -> bool {
    pod.is_static() || is_mirror(pod) || priority(pod).is_some_and(|p| p >= SYSTEM_CRITICAL)
}

fn priority(pod: &Pod) -> Option<i32> {
    spec(pod)?.priority
}

fn spec(pod: &Pod) -> Option<&v1::PodSpec> {
    pod.object.spec.as_ref()
}

/// A node that runs short takes nothing that would make it worse.
fn under_pressure(pod: &Pod, node: &Node) -> Option<Rejection> {
    let Pressure { memory, disk, pids } = node.pressure;
    let conditions = [(memory, "MemoryPressure"), (disk, "DiskPressure"), (pids, "PIDPressure")];
    let told: Vec<&str> = conditions.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    if told.is_empty() || is_critical(pod) {
        return None;
    }
    if told == ["MemoryPressure"] {
        let greedy = QosClass::of(&pod.object).is_ok_and(|class| class != QosClass::BestEffort);
        if greedy || taints::tolerates_memory_pressure(pod) {
            return None;
        }
    }
    let message = format!("The node had condition: [{}]. ", told.join(" "));
    Some(Rejection::new("Evicted", message))
}

fn forbidden_sysctl(pod: &Pod, node: &Node) -> Option<Rejection> {
    let context = spec(pod)?.security_context.as_ref()?;
    let host_ipc = spec(pod)?.host_ipc.unwrap_or(false);
    let forbidden = context
        .sysctls
        .iter()
        .flatten()
        .find_map(|sysctl| node.sysctls.objection(&sysctl.name, pod.host_network, host_ipc))?;
    Some(Rejection::new("SysctlForbidden", format!("forbidden sysctl: {forbidden}")))
}

/// The scheduler's own questions, asked again.
fn by_predicates(pod: &Pod, active: &[Arc<Pod>], node: &Node) -> Verdict {
    if let Some(rejection) = wrong_kind(pod, node) {
        return Verdict::Rejected(rejection);
    }
    let resources = match spec(pod).map(PodResources::parse) {
        Some(Ok(resources)) => resources,
        Some(Err(error)) => {
            let message = format!("its resources cannot be read: {error}");
            return Verdict::Rejected(Rejection::new("UnexpectedAdmissionError", message));
        }
        None => PodResources::default(),
    };
    let others: Vec<&Arc<Pod>> = active.iter().filter(|other| other.uid != pod.uid).collect();
    let shortages = fit::shortages(&resources, &others, node);
    let predicate = failed_predicate(pod, &others, node);
    let critical = is_critical(pod);
    match (shortages.first(), predicate) {
        (None, None) => Verdict::Admitted,
        // Room can be made for a critical pod, so its lack is no reason.
        (Some(shortage), Some(_)) if !critical => Verdict::Rejected(shortage.rejection()),
        (_, Some(rejection)) => Verdict::Rejected(rejection),
        (Some(short), None) if critical => match preemption::victims(pod, &others, &shortages) {
            Ok(victims) => Verdict::After { victims, lacking: short.resource.clone() },
            Err(problem) => {
                let message = format!(
                    "Unexpected error while attempting to recover from admission failure: {problem}"
                );
                Verdict::Rejected(Rejection::new("UnexpectedAdmissionError", message))
            }
        },
        (Some(shortage), None) => Verdict::Rejected(shortage.rejection()),
    }
}

/// For another operating system, or in need of what the runtime cannot do.
fn wrong_kind(pod: &Pod, node: &Node) -> Option<Rejection> {
    const OS_LABEL: &str = "kubernetes.io/os";
    let label = pod.object.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
    if label.is_some_and(|os| node.labels.get(OS_LABEL) != Some(os)) {
        let message =
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Some(Rejection::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    let os = spec(pod)?.os.as_ref().map(|os| os.name.as_str());
    if os.is_some_and(|os| os != "linux") {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Some(Rejection::new("PodOSNotSupported", message));
    }
    (wants_strict_groups(pod) && !node.strict_groups).then(|| {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        Rejection::new("SupplementalGroupsPolicyNotSupported", message)
    })
}

/// Whether the runtime has to do without the groups that the image brings.
pub fn wants_strict_groups(pod: &Pod) -> bool {
    let context = spec(pod).and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    policy == Some("Strict")
}

/// The first of the predicates that have nothing to do with room.
fn failed_predicate(pod: &Pod, others: &[&Arc<Pod>], node: &Node) -> Option<Rejection> {
    let failed = |name: &str, why: &str| {
        Some(Rejection::new(name, format!("Predicate {name} failed: {why}")))
    };
    if !affinity::matches(pod, node) {
        return failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    let wanted = spec(pod).and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if !wanted.is_empty() && wanted != &*node.name {
        return failed("NodeName", "node(s) didn't match the requested node name");
    }
    if ports::conflict(pod, others) {
        return failed("NodePorts", "node(s) didn't have free ports for the requested pod ports");
    }
    if !pod.is_static() && taints::untolerated(pod, &node.taints).is_some() {
        return failed("TaintToleration", "node(s) had taints that the pod didn't tolerate");
    }
    None
}

/// A pod that asks for confinement does not run without.
fn no_apparmor(pod: &Pod, node: &Node) -> Option<Rejection> {
    if node.apparmor || pod.api_phase != Phase::Pending || !wants_apparmor(pod) {
        return None;
    }
    let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    Some(Rejection::new("AppArmor", message))
}

fn wants_apparmor(pod: &Pod) -> bool {
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let Some(spec) = spec(pod) else { return false };
    let whole = spec.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers.into_iter().any(|container| {
        let own = container.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
        let annotated = pod.annotation(&format!("{ANNOTATION}{}", container.name));
        match (own.or(whole), annotated) {
            (Some(profile), _) => profile.type_ != "Unconfined",
            (None, Some(profile)) => !profile.is_empty() && profile != "unconfined",
            (None, None) => false,
        }
    })
}

fn shutting_down(_: &Pod, node: &Node) -> Option<Rejection> {
    let message = "Pod was rejected as the node is shutting down.";
    node.shutting_down.then(|| Rejection::new("NodeShutdown", message))
}

#[cfg(test)]
#[path = "admission/tests.rs"]
mod tests;
