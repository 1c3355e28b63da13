//! Whether a pod without a node fits on one, and if not, what is in the way.
//!
//! On a machine that is a whole cluster nobody else schedules, so the node's own questions are
//! asked before a pod is bound, and two more that only a scheduler asks: whether the node takes new
//! pods, and whether its taints keep them away. Everything in the way is told, not only the first:
//! whoever makes room wants to know of all of it. The sentences are the scheduler's, because people
//! search for them, with the figures added.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1;

use super::fit::{self, Shortage, number};
use super::sysctls::Allowed;
use super::{Node, affinity, ports, spec, taints};
use crate::node_status::Pressure;
use crate::node_status::resources::{EPHEMERAL_STORAGE, PODS};
use crate::pod::Pod;
use crate::qos::{CPU, MEMORY, Overhead, PodResources};
use crate::quantity::Quantity;

/// What `kubectl cordon` puts on a node, beside the field that says the same.
const CORDON: &str = "node.kubernetes.io/unschedulable";

/// Something in the way of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    Unschedulable,
    Taint { key: String, value: String },
    Selector,
    Ports,
    Short(Shortage),
}

impl fmt::Display for Misfit {
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
                let free = shown(resource, capacity.saturating_sub(*used));
                let requested = shown(resource, *requested);
                write!(f, "Insufficient {resource} (requested {requested}, free {free})")
            }
        }
    }
}

/// The number of a shortage as a person writes the amount.
fn shown(resource: &str, number: i64) -> String {
    match (resource, u64::try_from(number)) {
        (CPU, _) => Quantity::from_milli(number).to_string(),
        (MEMORY | EPHEMERAL_STORAGE, Ok(bytes)) => Quantity::from_bytes(bytes).to_string(),
        _ => number.to_string(),
    }
}

/// Everything in the way of `pod` on `node` beside the others there; empty if it fits.
pub fn misfits(pod: &Pod, others: &[&Arc<Pod>], node: &v1::Node) -> Vec<Misfit> {
    let known = known(node);
    let tolerations = spec(pod).and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let tolerated = |taint: &v1::Taint| tolerations.iter().any(|t| taints::tolerates(t, taint));
    let mut found = Vec::new();
    let cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    if cordoned && !tolerated(&cordon()) {
        found.push(Misfit::Unschedulable);
    }
    let keeps_away = |taint: &&v1::Taint| {
        taint.key != CORDON && matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
    };
    if let Some(taint) = known.taints.iter().filter(keeps_away).find(|taint| !tolerated(taint)) {
        let (key, value) = (taint.key.clone(), taint.value.clone().unwrap_or_default());
        found.push(Misfit::Taint { key, value });
    }
    if !affinity::matches(pod, &known) {
        found.push(Misfit::Selector);
    }
    if ports::conflict(pod, others) {
        found.push(Misfit::Ports);
    }
    // What cannot be read is refused by the node, which says so.
    let resources = spec(pod).and_then(|spec| PodResources::parse(spec).ok()).unwrap_or_default();
    found.extend(fit::shortages(&resources, others, &known).into_iter().map(Misfit::Short));
    found.extend(unheard_of(&resources, &known).map(Misfit::Short));
    found
}

/// The node lets these pass, because a scheduler knew who provides them. Here nobody does.
fn unheard_of<'a>(
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

/// The node as its object shows it. What only the machine knows is asked there.
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
        sysctls: Arc::new(Allowed::default()),
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

    fn asking(resource: &str, amount: &str) -> Arc<Pod> {
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

    fn said(pod: &Arc<Pod>, others: &[&Arc<Pod>], node: &v1::Node) -> Vec<String> {
        misfits(pod, others, node).iter().map(ToString::to_string).collect()
    }

    const NOTHING: [&str; 0] = [];

    #[test]
    fn what_the_others_take_is_not_free() {
        let (free, one) = (node(&json!({})), asking("cpu", "1500m"));
        assert_eq!(said(&asking("cpu", "2"), &[], &free), NOTHING);
        assert_eq!(said(&asking("cpu", "500m"), &[&one], &free), NOTHING);
        assert_eq!(
            said(&asking("cpu", "1"), &[&one], &free),
            ["Insufficient cpu (requested 1, free 500m)"]
        );
        assert_eq!(
            said(&asking("memory", "2Gi"), &[], &free),
            ["Insufficient memory (requested 2Gi, free 1Gi)"]
        );
        let two = asking("cpu", "1m");
        assert_eq!(said(&pod(&json!({})), &[&one, &two], &free), ["Too many pods (at most 2)"]);
    }

    #[test]
    fn a_resource_that_nobody_provides_is_short() {
        assert_eq!(
            said(&asking("example.com/gpu", "1"), &[], &node(&json!({}))),
            ["Insufficient example.com/gpu (requested 1, free 0)"]
        );
    }

    #[test]
    fn everything_in_the_way_is_told() {
        let port = json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
        let mut greedy = port.clone();
        greedy["containers"][0]["resources"] = json!({"requests": {"cpu": "4"}});
        greedy["nodeSelector"] = json!({"disk": "hdd"});
        assert_eq!(
            said(&pod(&greedy), &[&pod(&port)], &node(&json!({}))),
            [
                "node(s) didn't match Pod's node affinity/selector",
                "node(s) didn't have free ports for the requested pod ports",
                "Insufficient cpu (requested 4, free 2)",
            ]
        );
    }

    #[test]
    fn taints_keep_away_whoever_does_not_tolerate_them() {
        let tainted =
            node(&json!({"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}));
        for (case, toleration, fits) in [
            ("none", json!([]), false),
            ("its own", json!([{"key": "a", "value": "b"}]), true),
            ("another value", json!([{"key": "a", "value": "c"}]), false),
            ("everything", json!([{"operator": "Exists"}]), true),
            ("another effect", json!([{"operator": "Exists", "effect": "NoExecute"}]), false),
        ] {
            let found = said(&pod(&json!({"tolerations": toleration})), &[], &tainted);
            let want: &[&str] = if fits { &[] } else { &["node(s) had untolerated taint {a: b}"] };
            assert_eq!(found, want, "{case}");
        }
        let soft = node(&json!({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}));
        assert_eq!(said(&pod(&json!({})), &[], &soft), NOTHING);
    }

    #[test]
    fn a_cordoned_node_says_so_once() {
        let cordoned = node(&json!({
            "unschedulable": true,
            "taints": [{"key": CORDON, "effect": "NoSchedule"}],
        }));
        assert_eq!(said(&pod(&json!({})), &[], &cordoned), ["node(s) were unschedulable"]);
        let daemon = pod(&json!({"tolerations": [{"operator": "Exists"}]}));
        assert_eq!(said(&daemon, &[], &cordoned), NOTHING);
    }
}
