//! Scheduling checks of a standalone node: whether a pod fits, and every reason why not.
//!
//! A standalone node has no scheduler, so the admission predicates run before a pod is bound, plus
//! two that only a scheduler checks: whether the node is cordoned, and whether the pod tolerates
//! its taints. All reasons are reported, not only the first, so that a user can fix them together.
//! The messages are the scheduler's, because users search for them, with the amounts added.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use podwright_api::qos::{CPU, MEMORY, Overhead, PodResources};
use podwright_api::quantity::Quantity;

use super::fit::{self, Shortage, number};
use super::sysctls::AllowedSysctls;
use super::usage::Used;
use super::{Node, affinity, ports, spec, taints};
use crate::node_status::Pressure;
use crate::node_status::resources::{EPHEMERAL_STORAGE, PODS};
use crate::pod::Pod;

/// Taint that `kubectl cordon` adds beside `spec.unschedulable`.
const CORDON: &str = "node.kubernetes.io/unschedulable";

/// A reason why a pod does not fit on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulingFailure {
    Unschedulable,
    Taint { key: String, value: String },
    Selector,
    Ports,
    Short(Shortage),
}

impl fmt::Display for SchedulingFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unschedulable => f.write_str("node(s) were unschedulable"),
            Self::Taint { key, value } => {
                write!(f, "node(s) had untolerated taint {{{key}: {value}}}")
            }
            Self::Selector => f.write_str("node(s) didn't match Pod's node affinity/selector"),
            Self::Ports => {
                f.write_str("node(s) didn't have free ports for the requested pod ports")
            }
            Self::Short(Shortage { resource, capacity, .. }) if resource == PODS => {
                write!(f, "Too many pods (at most {capacity})")
            }
            Self::Short(Shortage { resource, requested, used, capacity }) => {
                let free = formatted(resource, capacity.saturating_sub(*used));
                let requested = formatted(resource, *requested);
                write!(f, "Insufficient {resource} (requested {requested}, free {free})")
            }
        }
    }
}

/// An amount as [`formatted`] takes it: thousandths of a CPU, else whole units.
pub fn amount_of(resource: &str, quantity: Quantity) -> i64 {
    number(resource, quantity)
}

/// Amount of a shortage in the notation of Kubernetes.
pub fn formatted(resource: &str, number: i64) -> String {
    match (resource, u64::try_from(number)) {
        (CPU, _) => Quantity::from_milli(number).to_string(),
        (MEMORY | EPHEMERAL_STORAGE, Ok(bytes)) => Quantity::from_bytes(bytes).to_string(),
        _ => number.to_string(),
    }
}

/// All reasons why `pod` does not fit on `node` beside the other pods; empty if it fits.
pub fn scheduling_failures(
    pod: &Pod,
    others: &[&Arc<Pod>],
    node: &v1::Node,
) -> Vec<SchedulingFailure> {
    let known = known(node);
    let tolerations = spec(pod).and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let tolerated = |taint: &v1::Taint| tolerations.iter().any(|t| taints::tolerates(t, taint));
    let mut found = Vec::new();
    let cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    if cordoned && !tolerated(&cordon()) {
        found.push(SchedulingFailure::Unschedulable);
    }
    let keeps_away = |taint: &&v1::Taint| {
        taint.key != CORDON && matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
    };
    if let Some(taint) = known.taints.iter().filter(keeps_away).find(|taint| !tolerated(taint)) {
        let (key, value) = (taint.key.clone(), taint.value.clone().unwrap_or_default());
        found.push(SchedulingFailure::Taint { key, value });
    }
    if !affinity::matches(pod, &known) {
        found.push(SchedulingFailure::Selector);
    }
    if ports::conflict(pod, others) {
        found.push(SchedulingFailure::Ports);
    }
    // Unparsable resources are not a scheduling failure: admission rejects the pod with a message.
    let resources = spec(pod).and_then(|spec| PodResources::parse(spec).ok()).unwrap_or_default();
    let used = Used::of(others.iter().copied());
    found.extend(
        fit::shortages(&resources, &used, &known).into_iter().map(SchedulingFailure::Short),
    );
    found.extend(unlisted_resources(&resources, &known).map(SchedulingFailure::Short));
    found
}

/// The host ports of the pod that other pods have, with these pods.
pub fn taken_ports<'a>(
    pod: &Pod,
    others: &[&'a Arc<Pod>],
) -> impl Iterator<Item = (i32, &'a Arc<Pod>)> {
    ports::conflicts(pod, others)
}

/// Admission ignores extended resources that the node does not list and relies on the scheduler.
/// There is no scheduler here, so they count as insufficient.
fn unlisted_resources<'a>(
    resources: &'a PodResources,
    node: &'a Node,
) -> impl Iterator<Item = Shortage> + 'a {
    let wanted = resources.requests(Overhead::Included).into_iter();
    wanted
        .filter(|(name, amount)| {
            let known = [CPU, MEMORY, EPHEMERAL_STORAGE].contains(&name.as_str());
            !known && !amount.is_zero() && !node.allocatable.contains_key(name)
        })
        .map(|(resource, amount)| {
            let requested = number(&resource, amount);
            Shortage { resource, requested, used: 0, capacity: 0 }
        })
}

fn cordon() -> v1::Taint {
    let (key, effect) = (CORDON.to_owned(), "NoSchedule".to_owned());
    v1::Taint { key, effect, ..v1::Taint::default() }
}

/// Admission's view of a Node object. Facts that only the machine has are left permissive;
/// admission checks them.
fn known(node: &v1::Node) -> Node {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
    let listed = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let amounts = listed.into_iter().flatten();
    Node {
        name: node.metadata.name.as_deref().unwrap_or_default().into(),
        labels: node.metadata.labels.clone().unwrap_or_default(),
        taints: taints.unwrap_or_default(),
        allocatable: amounts
            .filter_map(|(name, text)| Some((name.clone(), Quantity::try_from(text).ok()?)))
            .collect(),
        sysctls: Arc::new(AllowedSysctls::default()),
        apparmor: true,
        strict_groups: true,
        pressure: Pressure::default(),
        shutting_down: false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::Source;

    fn pod(spec: &Value) -> Arc<Pod> {
        let mut whole = json!({"containers": [{"name": "c"}]});
        for (key, value) in spec.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let object = json!({"metadata": {"name": "p", "uid": spec.to_string()}, "spec": whole});
        Arc::new(Pod::parse(serde_json::from_value(object).unwrap(), Source::Api).unwrap())
    }

    fn requesting(resource: &str, amount: &str) -> Arc<Pod> {
        let requests = json!({resource: amount});
        pod(&json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
    }

    fn node(spec: &Value) -> v1::Node {
        let node = json!({
            "metadata": {"name": "n", "labels": {"disk": "ssd"}},
            "spec": spec,
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "2"}},
        });
        serde_json::from_value(node).unwrap()
    }

    fn reasons(pod: &Arc<Pod>, others: &[&Arc<Pod>], node: &v1::Node) -> Vec<String> {
        scheduling_failures(pod, others, node).iter().map(ToString::to_string).collect()
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn requests_of_other_pods_are_not_free() {
        let (free, one) = (node(&json!({})), requesting("cpu", "1500m"));
        assert_eq!(reasons(&requesting("cpu", "2"), &[], &free), NOTHING);
        assert_eq!(reasons(&requesting("cpu", "500m"), &[&one], &free), NOTHING);
        assert_eq!(
            reasons(&requesting("cpu", "1"), &[&one], &free),
            ["Insufficient cpu (requested 1, free 500m)"]
        );
        assert_eq!(
            reasons(&requesting("memory", "2Gi"), &[], &free),
            ["Insufficient memory (requested 2Gi, free 1Gi)"]
        );
        let two = requesting("cpu", "1m");
        assert_eq!(reasons(&pod(&json!({})), &[&one, &two], &free), ["Too many pods (at most 2)"]);
    }

    #[test]
    fn resource_the_node_does_not_list_is_insufficient() {
        assert_eq!(
            reasons(&requesting("example.com/gpu", "1"), &[], &node(&json!({}))),
            ["Insufficient example.com/gpu (requested 1, free 0)"]
        );
    }

    #[test]
    fn all_reasons_are_reported() {
        let port = json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
        let mut greedy = port.clone();
        greedy["containers"][0]["resources"] = json!({"requests": {"cpu": "4"}});
        greedy["nodeSelector"] = json!({"disk": "hdd"});
        assert_eq!(
            reasons(&pod(&greedy), &[&pod(&port)], &node(&json!({}))),
            [
                "node(s) didn't match Pod's node affinity/selector",
                "node(s) didn't have free ports for the requested pod ports",
                "Insufficient cpu (requested 4, free 2)",
            ]
        );
    }

    #[test]
    fn untolerated_taint_prevents_scheduling() {
        let tainted =
            node(&json!({"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}));
        for (case, toleration, fits) in [
            ("none", json!([]), false),
            ("its own", json!([{"key": "a", "value": "b"}]), true),
            ("another value", json!([{"key": "a", "value": "c"}]), false),
            ("everything", json!([{"operator": "Exists"}]), true),
            ("another effect", json!([{"operator": "Exists", "effect": "NoExecute"}]), false),
        ] {
            let found = reasons(&pod(&json!({"tolerations": toleration})), &[], &tainted);
            let want: &[&str] = if fits { &[] } else { &["node(s) had untolerated taint {a: b}"] };
            assert_eq!(found, want, "{case}");
        }
        let soft = node(&json!({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}));
        assert_eq!(reasons(&pod(&json!({})), &[], &soft), NOTHING);
    }

    #[test]
    fn cordoned_node_is_reported_once() {
        let cordoned = node(&json!({
            "unschedulable": true,
            "taints": [{"key": CORDON, "effect": "NoSchedule"}],
        }));
        assert_eq!(reasons(&pod(&json!({})), &[], &cordoned), ["node(s) were unschedulable"]);
        let daemon = pod(&json!({"tolerations": [{"operator": "Exists"}]}));
        assert_eq!(reasons(&daemon, &[], &cordoned), NOTHING);
    }
}
