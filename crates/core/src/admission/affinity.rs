//! Node selector and node affinity of a pod, matched against this node.

use k8s_openapi::api::core::v1;

use super::{Node, spec};
use crate::pod::Pod;

pub(super) fn matches(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = spec(pod) else { return true };
    let mut selected = spec.node_selector.iter().flatten();
    if !selected.all(|(key, value)| node.labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    // Terms are alternatives; an empty list of terms matches no node.
    required.is_none_or(|required| required.node_selector_terms.iter().any(|t| fits(t, node)))
}

/// A term without requirements matches no node.
fn fits(term: &v1::NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let label = |key: &str| node.labels.get(key).map(String::as_str);
    // `metadata.name` is the only supported field.
    let field = |key: &str| (key == "metadata.name").then_some(&*node.name);
    expressions.iter().all(|requirement| holds(requirement, label(&requirement.key)))
        && fields.iter().all(|requirement| holds(requirement, field(&requirement.key)))
}

fn holds(requirement: &v1::NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(value, values).is_some_and(|(value, wanted)| value > wanted),
        "Lt" => compared(value, values).is_some_and(|(value, wanted)| value < wanted),
        _ => false,
    }
}

fn compared(value: Option<&str>, values: &[String]) -> Option<(i64, i64)> {
    match values {
        [wanted] => Some((value?.parse().ok()?, wanted.parse().ok()?)),
        _ => None,
    }
}
