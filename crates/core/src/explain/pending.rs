//! What keeps a pod from a node: which request does not fit, who holds the resource, and what would
//! free it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use podwright_api::quantity::Quantity;
use serde::{Deserialize, Serialize};

use crate::admission::Shortage;
use crate::admission::scheduling::{
    SchedulingFailure, amount_of, formatted, scheduling_failures, taken_ports,
};
use crate::explain::readable_bytes;
use crate::node_status::resources::PODS;
use crate::pod::Pod;

/// Holders of a resource that are listed.
const LISTED: usize = 5;

/// A reason why a pod does not run on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingReason {
    #[serde(rename = "text")]
    pub text: String,
    #[serde(rename = "fix")]
    pub fix: Option<String>,
    /// The numbers, if a resource is missing.
    #[serde(rename = "shortage")]
    pub shortage: Option<MissingResource>,
}

/// Amounts in the notation of Kubernetes, such as `500m` or `64Mi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingResource {
    #[serde(rename = "resource")]
    pub resource: String,
    #[serde(rename = "requested")]
    pub requested: String,
    #[serde(rename = "free")]
    pub free: String,
    #[serde(rename = "allocatable")]
    pub allocatable: String,
    /// The pods that request most of it, the largest request first.
    #[serde(rename = "holders")]
    pub holders: Vec<Holder>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    #[serde(rename = "namespace")]
    pub namespace: String,
    #[serde(rename = "name")]
    pub name: String,
    #[serde(rename = "requested")]
    pub requested: String,
}

/// An amount in a sentence: bytes are rounded.
fn readable(resource: &str, amount: i64) -> String {
    match (resource, u64::try_from(amount)) {
        ("memory" | "ephemeral-storage", Ok(bytes)) => readable_bytes(bytes),
        _ => formatted(resource, amount),
    }
}

/// Why the pod does not fit on the node beside `others`; empty if it does.
pub fn reasons(pod: &Pod, others: &[&Arc<Pod>], node: &v1::Node) -> Vec<PendingReason> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let failures = scheduling_failures(pod, others, node);
    failures.iter().map(|failure| reason(failure, pod, others, node, name)).collect()
}

/// Why a pod is pending as the API says it, for what is not about the node: a claim that is not
/// bound, a scheduling gate, no node at all.
pub fn reported(pod: &v1::Pod) -> Option<PendingReason> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|it| it.type_ == "PodScheduled")?;
    if condition.status == "True" {
        return None;
    }
    let text = condition.message.clone().unwrap_or_default();
    let fix = if condition.reason.as_deref() == Some("SchedulingGated") {
        Some("remove spec.schedulingGates when the pod may run".to_owned())
    } else if text.contains("persistentvolumeclaim") && text.contains("not found") {
        Some("create the claim, or correct claimName in the pod".to_owned())
    } else if text.contains("being deleted") {
        Some("delete the pods that use the claim, then create it again".to_owned())
    } else if text.contains("PersistentVolumeClaims") {
        Some("see what the claim waits for: kubectl describe pvc".to_owned())
    } else if text.starts_with("no nodes available") {
        Some("wait until the node is registered; see podwright why --node".to_owned())
    } else {
        None
    };
    Some(PendingReason { text, fix, shortage: None })
}

fn reason(
    failure: &SchedulingFailure,
    pod: &Pod,
    others: &[&Arc<Pod>],
    node: &v1::Node,
    name: &str,
) -> PendingReason {
    let plain = |text: String, fix: String| PendingReason { text, fix: Some(fix), shortage: None };
    match failure {
        SchedulingFailure::Unschedulable => plain(
            format!("{name} is cordoned: it takes no new pods"),
            format!("let it take pods again: kubectl uncordon {name}"),
        ),
        SchedulingFailure::Taint { key, value } => {
            let taint = if value.is_empty() { key.clone() } else { format!("{key}={value}") };
            plain(
                format!("{name} has the taint {taint}, which the pod does not tolerate"),
                format!(
                    "add a toleration for {key} to the pod, or remove the taint: kubectl taint \
                     nodes {name} {key}-"
                ),
            )
        }
        SchedulingFailure::Selector => selector(pod, node, name),
        SchedulingFailure::Ports => {
            let taken: Vec<String> = taken_ports(pod, others)
                .map(|(port, other)| {
                    format!("{port} (used by {}/{})", other.name.namespace, other.name.name)
                })
                .take(LISTED)
                .collect();
            plain(
                format!("host ports are in use: {}", taken.join(", ")),
                "choose another hostPort, or delete the pod that uses it".to_owned(),
            )
        }
        SchedulingFailure::Short(shortage) => short(shortage, others),
    }
}

fn selector(pod: &Pod, node: &v1::Node, name: &str) -> PendingReason {
    let selector = pod.object.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    let labels = node.metadata.labels.as_ref();
    let unmatched: Vec<String> = selector
        .into_iter()
        .flatten()
        .filter(|(key, value)| labels.and_then(|labels| labels.get(*key)) != Some(*value))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let (text, fix) = match unmatched.as_slice() {
        [] => (
            format!("{name} does not match the node affinity of the pod"),
            format!("change nodeAffinity, or the labels of the node: kubectl label node {name}"),
        ),
        labels => (
            format!("{name} does not have the labels of nodeSelector: {}", labels.join(", ")),
            format!(
                "change nodeSelector, or label the node: kubectl label node {name} {}",
                labels.join(" ")
            ),
        ),
    };
    PendingReason { text, fix: Some(fix), shortage: None }
}

fn short(shortage: &Shortage, others: &[&Arc<Pod>]) -> PendingReason {
    let Shortage { resource, requested, used, capacity } = shortage;
    let free = capacity.saturating_sub(*used).max(0);
    let shown = |amount: i64| formatted(resource, amount);
    if resource == PODS {
        return PendingReason {
            text: format!("the node runs at most {capacity} pods and has {used}"),
            fix: Some("delete pods, or raise maxPods".to_owned()),
            shortage: None,
        };
    }
    let holders = holders(resource, others);
    let missing = requested.saturating_sub(free);
    let readable = |amount: i64| readable(resource, amount);
    let fix = if *requested > *capacity {
        format!("request at most {}: the node never has more", readable(*capacity))
    } else {
        let freeing: Vec<String> = freeing(&holders, missing)
            .iter()
            .map(|(pod, amount)| {
                format!("{}/{} ({})", pod.name.namespace, pod.name.name, readable(*amount))
            })
            .collect();
        match freeing.as_slice() {
            [] => format!("request {} less", readable(missing)),
            pods => format!(
                "free {} more: delete {}, or request {} less",
                readable(missing),
                pods.join(" and "),
                readable(missing)
            ),
        }
    };
    let listed: Vec<Holder> = holders
        .iter()
        .take(LISTED)
        .map(|(pod, amount)| Holder {
            namespace: pod.name.namespace.to_string(),
            name: pod.name.name.to_string(),
            requested: shown(*amount),
        })
        .collect();
    let mut text = format!(
        "{resource}: requested {}, free {} of {} allocatable",
        readable(*requested),
        readable(free),
        readable(*capacity)
    );
    if !listed.is_empty() {
        let by = holders.iter().take(LISTED).map(|(pod, amount)| {
            format!("{}/{} {}", pod.name.namespace, pod.name.name, readable(*amount))
        });
        text.push_str(&format!("; held by {}", by.collect::<Vec<_>>().join(", ")));
        if let Some(more) = holders.len().checked_sub(listed.len()).filter(|more| *more > 0) {
            text.push_str(&format!(" and {more} more"));
        }
    }
    let (requested, free, allocatable) = (shown(*requested), shown(free), shown(*capacity));
    let resource = resource.clone();
    let shortage = MissingResource { resource, requested, free, allocatable, holders: listed };
    PendingReason { text, fix: Some(fix), shortage: Some(shortage) }
}

/// Pods that request the resource, the largest request first.
fn holders<'a>(resource: &str, others: &[&'a Arc<Pod>]) -> Vec<(&'a Arc<Pod>, i64)> {
    let amount = |pod: &Pod| {
        let quantity: Quantity = pod.requests.get(resource).copied().unwrap_or_default();
        amount_of(resource, quantity)
    };
    let mut holders: Vec<_> =
        others.iter().map(|pod| (*pod, amount(pod))).filter(|(_, amount)| *amount > 0).collect();
    holders.sort_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.name.cmp(&b.name)));
    holders
}

/// The pods whose end frees the amount: the smallest one that suffices, or else the largest ones.
fn freeing<'a>(holders: &[(&'a Arc<Pod>, i64)], missing: i64) -> Vec<(&'a Arc<Pod>, i64)> {
    if let Some(one) = holders.iter().rev().find(|(_, amount)| *amount >= missing) {
        return vec![*one];
    }
    let mut sum = 0_i64;
    let mut chosen = Vec::new();
    for holder in holders {
        if sum >= missing {
            break;
        }
        sum = sum.saturating_add(holder.1);
        chosen.push(*holder);
    }
    if sum >= missing { chosen } else { Vec::new() }
}

/// Pods that count on the node: bound to it and not finished, without the pod itself.
pub fn counted<'a>(pods: &'a [Arc<Pod>], node: &str, without: &Pod) -> Vec<&'a Arc<Pod>> {
    let by_uid: BTreeMap<_, _> = pods.iter().map(|pod| (&pod.uid, pod)).collect();
    let on_node = |pod: &Pod| {
        pod.object.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node)
    };
    let mut counted: Vec<_> = by_uid
        .into_values()
        .filter(|pod| pod.uid != without.uid && on_node(pod) && !pod.api_phase.is_terminal())
        .collect();
    counted.sort_by(|a, b| a.name.cmp(&b.name));
    counted
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::builders;

    fn pod(name: &str, cpu: &str, memory: &str) -> Arc<Pod> {
        let requests = json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}});
        let pod = builders::pod(name).container_with("c", requests);
        Arc::new(pod.spec("nodeName", json!("n")).build())
    }

    #[allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
    fn node(spec: Value) -> v1::Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"disk": "ssd"}},
            "spec": spec,
            "status": {"allocatable": {"cpu": "2", "memory": "1Gi", "pods": "10"}},
        }))
        .unwrap()
    }

    #[test]
    fn shortage_names_the_numbers_the_holders_and_what_frees_enough() {
        let (small, large) = (pod("small", "300m", "1Mi"), pod("large", "1500m", "1Mi"));
        let others = [&small, &large];
        let [reason] =
            reasons(&pod("new", "400m", "1Mi"), &others, &node(json!({}))).try_into().unwrap();
        assert_eq!(
            reason.text,
            "cpu: requested 400m, free 200m of 2 allocatable; held by default/large 1500m, \
             default/small 300m"
        );
        let fix = "free 200m more: delete default/small (300m), or request 200m less";
        assert_eq!(reason.fix.as_deref(), Some(fix));
        let shortage = reason.shortage.unwrap();
        assert_eq!((shortage.resource.as_str(), shortage.holders.len()), ("cpu", 2));
    }

    #[test]
    fn fix_of_a_shortage_follows_what_could_be_freed() {
        let (a, b) = (pod("a", "900m", "1Mi"), pod("b", "800m", "1Mi"));
        for (others, cpu, want) in [
            (vec![&a, &b], "500m", "delete default/b (800m),"),
            (vec![&a, &b], "1900m", "delete default/a (900m) and default/b (800m),"),
            (vec![&a, &b], "3", "request at most 2: the node never has more"),
            (vec![], "3", "request at most 2"),
        ] {
            let reasons = reasons(&pod("new", cpu, "1Mi"), &others, &node(json!({})));
            let fix = reasons[0].fix.clone().unwrap();
            assert!(fix.contains(want), "{cpu}: {fix}");
        }
    }

    #[test]
    fn many_holders_are_cut() {
        let pods: Vec<_> = (0..8).map(|n| pod(&format!("p{n}"), "200m", "1Mi")).collect();
        let others: Vec<_> = pods.iter().collect();
        let reasons = reasons(&pod("new", "1", "1Mi"), &others, &node(json!({})));
        assert!(reasons[0].text.ends_with("default/p4 200m and 3 more"), "{}", reasons[0].text);
        assert_eq!(reasons[0].shortage.as_ref().unwrap().holders.len(), LISTED);
    }

    #[test]
    fn node_properties_have_their_own_fix() {
        let with = |field: &str, value: Value| {
            let pod = builders::pod("new")
                .container_with("c", json!({"ports": [{"containerPort": 80, "hostPort": 8080}]}));
            Arc::new(pod.spec(field, value).build())
        };
        let plain = with("nodeSelector", json!({}));
        let other = with("nodeName", json!("n"));
        let tainted = json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]}}});
        for (pod, others, spec, text, fix) in [
            (&plain, vec![], json!({"unschedulable": true}), "cordoned", "kubectl uncordon n"),
            (&plain, vec![], tainted, "taint k=v", "kubectl taint nodes n k-"),
            (
                &with("nodeSelector", json!({"disk": "hdd"})),
                vec![],
                json!({}),
                "nodeSelector: disk=hdd",
                "kubectl label node n disk=hdd",
            ),
            (&with("affinity", affinity), vec![], json!({}), "node affinity", "nodeAffinity"),
            (&plain, vec![&other], json!({}), "8080 (used by default/new)", "another hostPort"),
        ] {
            let found = reasons(pod, &others, &node(spec));
            let reason = &found[0];
            assert!(reason.text.contains(text), "{reason:?}");
            assert!(reason.fix.as_ref().unwrap().contains(fix), "{reason:?}");
        }
    }

    #[test]
    fn reported_reason_gets_a_fix_if_it_is_known() {
        let pending = |reason: &str, message: &str| -> v1::Pod {
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason,
                "message": message});
            serde_json::from_value(json!({"status": {"conditions": [condition]}})).unwrap()
        };
        for (reason, message, fix) in [
            ("SchedulingGated", "blocked", Some("schedulingGates")),
            ("Unschedulable", "persistentvolumeclaim \"x\" not found", Some("create the claim")),
            ("Unschedulable", "pod has unbound immediate PersistentVolumeClaims: x", Some("pvc")),
            ("Unschedulable", "no nodes available to schedule pods", Some("--node")),
            ("Unschedulable", "something new", None),
        ] {
            let found = reported(&pending(reason, message)).unwrap();
            let found = found.fix;
            let matches = fix.is_none_or(|fix| found.as_ref().is_some_and(|it| it.contains(fix)));
            assert!(matches && fix.is_some() == found.is_some(), "{message}: {found:?}");
        }
        assert_eq!(reported(&v1::Pod::default()), None);
    }

    #[test]
    fn finished_pods_and_those_of_other_nodes_do_not_count() {
        let new = pod("new", "1", "1Mi");
        let finished =
            Arc::new(builders::pod("done").phase("Succeeded").spec("nodeName", json!("n")).build());
        let elsewhere = Arc::new(builders::pod("far").spec("nodeName", json!("m")).build());
        let here = pod("here", "1", "1Mi");
        let pods = [new.clone(), finished, elsewhere, here];
        let counted = counted(&pods, "n", &new);
        assert_eq!(counted.iter().map(|pod| &*pod.name.name).collect::<Vec<_>>(), ["here"]);
    }
}
