//! Pod admission: decides whether the node accepts a pod. A rejection is final.
//!
//! The scheduler decides on what it knows at that time. Since then another pod may have been bound,
//! or the pod may name this node directly. The checks, their order, reasons and messages are those
//! of the kubelet, because controllers and users match on them. A critical pod that only lacks
//! resources is not rejected; other pods are preempted for it ([`preemption`]).

mod affinity;
mod fit;
mod ports;
pub mod preemption;
pub mod scheduling;
pub mod sysctls;
mod taints;
mod usage;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use podwright_api::qos::{PodResources, QosClass, ResourceList};
use serde::{Deserialize, Serialize};

pub use self::fit::Shortage;
use self::sysctls::AllowedSysctls;
pub use self::usage::ActiveUsage;
use crate::ids::PodUid;
use crate::node_status::Pressure;
use crate::pod::desired::is_mirror;
use crate::pod::{Phase, Pod};

/// Lowest priority value that is reserved for system-critical pods.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Node state that admission depends on.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: Arc<str>,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<v1::Taint>,
    /// Total that pods may request, including the number of pods.
    pub allocatable: ResourceList,
    pub sysctls: Arc<AllowedSysctls>,
    pub apparmor: bool,
    /// The runtime supports `SupplementalGroupsPolicy=Strict`, which ignores the groups of the
    /// image.
    pub strict_groups: bool,
    pub pressure: Pressure,
    pub shutting_down: bool,
}

/// Reason and message of a rejected pod.
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

    /// The node's labels did not match. Our copy of them may be out of date, so a refetch can help.
    pub fn is_about_labels(&self) -> bool {
        self.reason == "NodeAffinity"
    }

    /// Reason as a metric label. A pod can request a resource of any name, and each name would
    /// create a new time series.
    pub fn counted_as(&self) -> &'static str {
        match COUNTED.iter().find(|known| **known == self.reason) {
            Some(known) => known,
            None if self.reason.starts_with("OutOf") => "OutOfExtendedResources",
            None => "Other",
        }
    }
}

/// Reasons that have their own metric label.
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
pub enum AdmissionDecision {
    Admitted,
    Rejected(Rejection),
    /// Admitted once the victims have terminated; `lacking` is the resource that is insufficient.
    AfterPreemption {
        victims: Vec<PodUid>,
        lacking: String,
    },
}

/// The pods beside which a new pod is to run. The new pod itself does not count.
#[derive(Clone, Copy)]
pub struct ActivePods<'a> {
    /// Totals of the pods of `list`.
    pub usage: &'a ActiveUsage,
    /// Lists the pods. Called only to preempt: a node may have thousands.
    pub list: &'a dyn Fn() -> Vec<Arc<Pod>>,
    /// Pods that are not in `usage` but hold resources too.
    pub more: &'a [Arc<Pod>],
}

impl ActivePods<'_> {
    fn more_than(&self, pod: &Pod) -> Vec<&Arc<Pod>> {
        self.more.iter().filter(|other| other.uid != pod.uid).collect()
    }
}

/// Decides whether `pod` can run beside these pods.
pub fn admit(pod: &Pod, active: &[Arc<Pod>], node: &Node) -> AdmissionDecision {
    let usage = ActiveUsage::default();
    admit_beside(pod, ActivePods { usage: &usage, list: &Vec::new, more: active }, node)
}

/// Decides whether `pod` can run beside the active pods.
pub fn admit_beside(pod: &Pod, active: ActivePods<'_>, node: &Node) -> AdmissionDecision {
    if let Some(why) = &pod.unreadable {
        let message = format!("{why}; this version of podwright cannot run this pod");
        return AdmissionDecision::Rejected(Rejection::new("FailedValidation", message));
    }
    let before = [under_pressure, forbidden_sysctl];
    let after = [no_apparmor, shutting_down];
    let first = |checks: &[fn(&Pod, &Node) -> Option<Rejection>]| {
        checks.iter().find_map(|check| check(pod, node))
    };
    if let Some(rejection) = first(&before) {
        return AdmissionDecision::Rejected(rejection);
    }
    let verdict = by_predicates(pod, active, node);
    match (&verdict, first(&after)) {
        (AdmissionDecision::Rejected(_), _) | (_, None) => verdict,
        (
            AdmissionDecision::Admitted | AdmissionDecision::AfterPreemption { .. },
            Some(rejection),
        ) => AdmissionDecision::Rejected(rejection),
    }
}

/// Static pods, mirror pods and pods with a system-critical priority.
pub fn is_critical(pod: &Pod) -> bool {
    pod.is_static() || is_mirror(pod) || priority(pod).is_some_and(|p| p >= SYSTEM_CRITICAL)
}

fn priority(pod: &Pod) -> Option<i32> {
    spec(pod)?.priority
}

fn spec(pod: &Pod) -> Option<&v1::PodSpec> {
    pod.object.spec.as_ref()
}

/// A node under pressure rejects pods that would increase it.
fn under_pressure(pod: &Pod, node: &Node) -> Option<Rejection> {
    let message = pressure_on(pod, node.pressure)?;
    Some(Rejection::new("Evicted", message))
}

/// Why a node under pressure takes neither this pod nor a change of its resources.
pub(crate) fn pressure_on(pod: &Pod, pressure: Pressure) -> Option<String> {
    let Pressure { memory, disk, pids } = pressure;
    let conditions = [(memory, "MemoryPressure"), (disk, "DiskPressure"), (pids, "PIDPressure")];
    let active_conditions: Vec<&str> =
        conditions.iter().filter(|(on, _)| *on).map(|(_, name)| *name).collect();
    if active_conditions.is_empty() || is_critical(pod) {
        return None;
    }
    if active_conditions == ["MemoryPressure"] {
        let greedy = QosClass::of(&pod.object).is_ok_and(|class| class != QosClass::BestEffort);
        if greedy || taints::tolerates_memory_pressure(pod) {
            return None;
        }
    }
    Some(format!("The node had condition: [{}]. ", active_conditions.join(" ")))
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

/// The scheduler's predicates, checked again.
fn by_predicates(pod: &Pod, active: ActivePods<'_>, node: &Node) -> AdmissionDecision {
    if let Some(rejection) = unsupported_platform(pod, node) {
        return AdmissionDecision::Rejected(rejection);
    }
    let resources = match spec(pod).map(PodResources::parse) {
        Some(Ok(resources)) => resources,
        Some(Err(error)) => {
            let message = format!("cannot parse the pod's resources: {error}");
            return AdmissionDecision::Rejected(Rejection::new(
                "UnexpectedAdmissionError",
                message,
            ));
        }
        None => PodResources::default(),
    };
    let more = active.more_than(pod);
    let mut used = active.usage.without(&pod.uid);
    used.add(more.iter().copied());
    let shortages = fit::shortages(&resources, &used, node);
    let predicate = failed_predicate(pod, active, node);
    let critical = is_critical(pod);
    match (shortages.first(), predicate) {
        (None, None) => AdmissionDecision::Admitted,
        // Preemption can free resources for a critical pod, so a shortage alone does not reject it.
        (Some(shortage), Some(_)) if !critical => AdmissionDecision::Rejected(shortage.rejection()),
        (_, Some(rejection)) => AdmissionDecision::Rejected(rejection),
        (Some(short), None) if critical => {
            let listed = (active.list)();
            let mut others: Vec<&Arc<Pod>> =
                listed.iter().filter(|other| other.uid != pod.uid).collect();
            others.extend(more);
            match preemption::victims(pod, &others, &shortages) {
                Ok(victims) => {
                    AdmissionDecision::AfterPreemption { victims, lacking: short.resource.clone() }
                }
                Err(problem) => {
                    let message = format!(
                        "Unexpected error while attempting to recover from admission failure: \
                         {problem}"
                    );
                    AdmissionDecision::Rejected(Rejection::new("UnexpectedAdmissionError", message))
                }
            }
        }
        (Some(shortage), None) => AdmissionDecision::Rejected(shortage.rejection()),
    }
}

/// The pod is for another operating system, or needs what the runtime does not support.
fn unsupported_platform(pod: &Pod, node: &Node) -> Option<Rejection> {
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

/// The pod sets `SupplementalGroupsPolicy=Strict`: groups of the image are ignored.
pub fn wants_strict_groups(pod: &Pod) -> bool {
    let context = spec(pod).and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    policy == Some("Strict")
}

/// First failed predicate that does not concern resources.
fn failed_predicate(pod: &Pod, active: ActivePods<'_>, node: &Node) -> Option<Rejection> {
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
    if active.usage.conflicts(pod) || ports::conflict(pod, &active.more_than(pod)) {
        return failed("NodePorts", "node(s) didn't have free ports for the requested pod ports");
    }
    if !pod.is_static() && taints::untolerated(pod, &node.taints).is_some() {
        return failed("TaintToleration", "node(s) had taints that the pod didn't tolerate");
    }
    None
}

/// A pod that requests AppArmor confinement must not run without it.
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
