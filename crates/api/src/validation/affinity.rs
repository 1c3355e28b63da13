//! Validation of affinity and topology spread.

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm,
    TopologySpreadConstraint, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::field::Errors;
use super::{format, meta};
use crate::schema::Path;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const VALUES_NEEDED: &str = "must be specified when `operator` is 'In' or 'NotIn'";
const VALUES_REFUSED: &str = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
const BAD_OPERATOR: &str = "not a valid selector operator";

pub(super) fn check(affinity: &Affinity, field: &Path<'_>, errors: &mut Errors) {
    if let Some(affinity) = &affinity.node_affinity {
        let field = field.child("nodeAffinity");
        if let Some(selector) = &affinity.required_during_scheduling_ignored_during_execution {
            node_selector(selector, &field.child(REQUIRED), errors);
        }
        let terms = affinity.preferred_during_scheduling_ignored_during_execution.as_deref();
        let field = field.child(PREFERRED);
        for (index, term) in terms.into_iter().flatten().enumerate() {
            let field = field.index(index);
            weight(term.weight, &field, errors);
            node_term(&term.preference, Values::Any, &field.child("preference"), errors);
        }
    }
    if let Some(affinity) = &affinity.pod_affinity {
        pods(
            affinity.required_during_scheduling_ignored_during_execution.as_deref(),
            affinity.preferred_during_scheduling_ignored_during_execution.as_deref(),
            &field.child("podAffinity"),
            errors,
        );
    }
    if let Some(affinity) = &affinity.pod_anti_affinity {
        pods(
            affinity.required_during_scheduling_ignored_during_execution.as_deref(),
            affinity.preferred_during_scheduling_ignored_during_execution.as_deref(),
            &field.child("podAntiAffinity"),
            errors,
        );
    }
}

fn weight(weight: i32, field: &Path<'_>, errors: &mut Errors) {
    if !(1..=100).contains(&weight) {
        errors.invalid(&field.child("weight"), weight, "must be in the range 1-100");
    }
}

/// Whether the values of a selector must be valid label values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    OfLabels,
    /// A preference that no node can meet is harmless.
    Any,
}

pub fn node_selector(selector: &NodeSelector, field: &Path<'_>, errors: &mut Errors) {
    let field = field.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        return errors.required(&field, "must have at least one node selector term");
    }
    for (index, term) in selector.node_selector_terms.iter().enumerate() {
        node_term(term, Values::OfLabels, &field.index(index), errors);
    }
}

fn node_term(term: &NodeSelectorTerm, values: Values, field: &Path<'_>, errors: &mut Errors) {
    let expressions = field.child("matchExpressions");
    for (index, requirement) in term.match_expressions.iter().flatten().enumerate() {
        node_requirement(requirement, values, &expressions.index(index), errors);
    }
    let fields = field.child("matchFields");
    for (index, requirement) in term.match_fields.iter().flatten().enumerate() {
        node_field(requirement, &fields.index(index), errors);
    }
}

fn node_requirement(
    requirement: &NodeSelectorRequirement,
    kind: Values,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let at_values = field.child("values");
    match (requirement.operator.as_str(), values.len()) {
        ("In" | "NotIn", 0) => errors.required(&at_values, VALUES_NEEDED),
        ("In" | "NotIn", _) | ("Exists" | "DoesNotExist", 0) | ("Gt" | "Lt", 1) => {}
        ("Exists" | "DoesNotExist", _) => errors.forbidden(&at_values, VALUES_REFUSED),
        ("Gt" | "Lt", _) => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.required(&at_values, detail);
        }
        (other, _) => errors.invalid(&field.child("operator"), other, BAD_OPERATOR),
    }
    label_key(&requirement.key, &field.child("key"), errors);
    if kind == Values::OfLabels {
        label_values(values, &at_values, errors);
    }
}

/// The only node field that can be selected is the name.
fn node_field(requirement: &NodeSelectorRequirement, field: &Path<'_>, errors: &mut Errors) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let at_values = field.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.len() == 1 => {}
        "In" | "NotIn" => {
            let detail =
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(&at_values, detail);
        }
        other => errors.invalid(&field.child("operator"), other, BAD_OPERATOR),
    }
    if requirement.key != "metadata.name" {
        let detail = "not a valid field selector key";
        return errors.invalid(&field.child("key"), &requirement.key, detail);
    }
    for (index, name) in values.iter().enumerate() {
        errors.malformed(&at_values.index(index), name, &format::dns_subdomain(name));
    }
}

fn pods(
    required: Option<&[PodAffinityTerm]>,
    preferred: Option<&[WeightedPodAffinityTerm]>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let at_required = field.child(REQUIRED);
    for (index, term) in required.into_iter().flatten().enumerate() {
        pod_term(term, &at_required.index(index), errors);
    }
    let at_preferred = field.child(PREFERRED);
    for (index, term) in preferred.into_iter().flatten().enumerate() {
        let field = at_preferred.index(index);
        weight(term.weight, &field, errors);
        pod_term(&term.pod_affinity_term, &field.child("podAffinityTerm"), errors);
    }
}

fn pod_term(term: &PodAffinityTerm, field: &Path<'_>, errors: &mut Errors) {
    label_selector(term.label_selector.as_ref(), &field.child("labelSelector"), errors);
    label_selector(term.namespace_selector.as_ref(), &field.child("namespaceSelector"), errors);
    for name in term.namespaces.iter().flatten() {
        errors.malformed(&field.child("namespace"), name, &format::dns_label(name));
    }
    let mismatch = term.mismatch_label_keys.as_deref().unwrap_or_default();
    let matching = term.match_label_keys.as_deref().unwrap_or_default();
    label_keys(matching, mismatch, term.label_selector.as_ref(), field, errors);
    if term.topology_key.is_empty() {
        errors.required(&field.child("topologyKey"), "can not be empty");
    }
    label_key(&term.topology_key, &field.child("topologyKey"), errors);
}

/// Keys whose values are taken from the pod itself.
fn label_keys(
    matching: &[String],
    mismatch: &[String],
    selector: Option<&LabelSelector>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let at_match = field.child("matchLabelKeys");
    for (keys, field) in [(matching, &at_match), (mismatch, &field.child("mismatchLabelKeys"))] {
        if keys.is_empty() {
            continue;
        }
        if selector.is_none() {
            errors.forbidden(field, "must not be specified when labelSelector is not set");
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            label_key(key, &field.index(index), errors);
        }
    }
    if let Some(selector) = selector {
        let mut seen: Vec<&str> =
            selector.match_labels.iter().flatten().map(|(key, _)| key.as_str()).collect();
        for expression in selector.match_expressions.iter().flatten() {
            let key = expression.key.as_str();
            // The selector for the key itself was already added, so a second one is the user's.
            if let Some(index) = matching.iter().rposition(|other| other == key)
                && seen.contains(&key)
            {
                let detail = "exists in both matchLabelKeys and labelSelector";
                errors.invalid(&field.index(index), key, detail);
            }
            seen.push(key);
        }
    }
    for (index, key) in matching.iter().enumerate().filter(|(_, key)| mismatch.contains(key)) {
        let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
        errors.invalid(&at_match.index(index), key, detail);
    }
}

pub fn label_selector(selector: Option<&LabelSelector>, field: &Path<'_>, errors: &mut Errors) {
    let Some(selector) = selector else { return };
    meta::labels(selector.match_labels.as_ref(), &field.child("matchLabels"), errors);
    let field = field.child("matchExpressions");
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let field = field.index(index);
        let values = requirement.values.as_deref().unwrap_or_default();
        let at_values = field.child("values");
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => errors.required(&at_values, VALUES_NEEDED),
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.forbidden(&at_values, VALUES_REFUSED);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&field.child("operator"), other, BAD_OPERATOR),
        }
        label_key(&requirement.key, &field.child("key"), errors);
        label_values(values, &at_values, errors);
    }
}

fn label_key(key: &str, field: &Path<'_>, errors: &mut Errors) {
    errors.malformed(field, key, &format::qualified_name(key));
}

fn label_values(values: &[String], field: &Path<'_>, errors: &mut Errors) {
    for (index, value) in values.iter().enumerate() {
        errors.malformed(&field.index(index), value, &format::label_value(value));
    }
}

/// Topology spread constraints.
pub(super) fn spread(
    constraints: &[TopologySpreadConstraint],
    field: &Path<'_>,
    errors: &mut Errors,
) {
    const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];
    let positive = "must be greater than zero";
    for (index, constraint) in constraints.iter().enumerate() {
        let field = field.index(index);
        if constraint.max_skew <= 0 {
            errors.invalid(&field.child("maxSkew"), constraint.max_skew, positive);
        }
        if constraint.topology_key.is_empty() {
            errors.required(&field.child("topologyKey"), "can not be empty");
        }
        let action = constraint.when_unsatisfiable.as_str();
        if !ACTIONS.contains(&action) {
            errors.not_supported(&field.child("whenUnsatisfiable"), action, &ACTIONS);
        }
        let same = |other: &TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key && other.when_unsatisfiable == action
        };
        if constraints.iter().skip(index + 1).any(same) {
            let pair = format!("{{{}, {action}}}", constraint.topology_key);
            errors.duplicate(&field.child("{topologyKey, whenUnsatisfiable}"), &pair);
        }
        if let Some(domains) = constraint.min_domains {
            let field = field.child("minDomains");
            if domains <= 0 {
                errors.invalid(&field, domains, positive);
            }
            if action != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                );
                errors.invalid(&field, domains, &detail);
            }
        }
        for (name, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            let known = ["Honor", "Ignore"];
            if let Some(policy) = policy.as_deref().filter(|policy| !known.contains(policy)) {
                errors.not_supported(&field.child(name), policy, &known);
            }
        }
        let selector = constraint.label_selector.as_ref();
        let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
        label_keys(keys, &[], selector, &field, errors);
        label_selector(selector, &field.child("labelSelector"), errors);
    }
}
