//! Validation of changes to an existing pod: very little of its spec may change.

use k8s_openapi::api::core::v1::{
    Container, EphemeralContainer, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodSchedulingGate, PodSpec,
};
use serde::Serialize;
use serde_json::Value;

use super::field::{Errors, Internal, Unset, quote};
use super::{container, format, text, toleration};
use crate::schema::diff::unified;
use crate::schema::dump::{internal_pod_spec, pretty};
use crate::schema::equal::equal;
use crate::schema::{Path, Type};

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,\
    `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn spec(new: &PodSpec, old: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    if !same_containers(new, old, field, errors) || !deadline(new, old, field, errors) {
        return;
    }
    let tolerations = |spec: &PodSpec| spec.tolerations.clone().unwrap_or_default();
    let at_tolerations = field.child("tolerations");
    toleration::only_added(&tolerations(new), &tolerations(old), &at_tolerations, errors);
    gates_only_removed(new, old, &field.child("schedulingGates"), errors);
    if same(&Type::Struct("PodSpec"), new, old) {
        return;
    }
    let mut masked = without_mutable_fields(new, old);
    if old.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        while_gated(&mut masked, old, field, errors);
    }
    if !same(&Type::Struct("PodSpec"), &masked, old) {
        let dump =
            |spec: &PodSpec| pretty(&Type::Struct("PodSpec"), &internal_pod_spec(&json(spec)));
        let diff = unified(&dump(old), &dump(&masked));
        let detail = format!("pod updates may not change fields other than {UPDATABLE}\n{diff}");
        errors.forbidden(field, &detail);
    }
}

/// Only the images of containers may change. False if nothing more can be compared.
fn same_containers(new: &PodSpec, old: &PodSpec, field: &Path<'_>, errors: &mut Errors) -> bool {
    let init = |spec: &PodSpec| spec.init_containers.clone().unwrap_or_default();
    let lists = [
        ("containers", new.containers.clone(), old.containers.len()),
        ("initContainers", init(new), init(old).len()),
    ];
    for (name, containers, before) in lists {
        let field = field.child(name);
        if containers.len() != before {
            errors.forbidden(&field, "pod updates may not add or remove containers");
            return false;
        }
        for (index, each) in containers.iter().enumerate() {
            let field = field.index(index);
            if text(&each.image).is_empty() {
                errors.required(&field.child("image"), "");
            }
            container::untrimmed_image(each, &field, errors);
        }
    }
    true
}

/// A deadline may be added or shortened. False if no further error should be reported.
fn deadline(new: &PodSpec, old: &PodSpec, field: &Path<'_>, errors: &mut Errors) -> bool {
    let field = field.child("activeDeadlineSeconds");
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(seconds), before) => {
            let problems = format::in_range(seconds, 0, i64::from(i32::MAX));
            errors.malformed(&field, seconds, &problems);
            if !problems.is_empty() {
                return false;
            }
            if before.is_some_and(|before| before < seconds) {
                let detail = "must be less than or equal to previous value";
                errors.invalid(&field, seconds, detail);
                return false;
            }
        }
        (None, Some(_)) => {
            let detail = "must not update from a positive integer to nil value";
            errors.invalid(&field, Unset, detail);
        }
        (None, None) => {}
    }
    true
}

fn gates_only_removed(new: &PodSpec, old: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let gates = |spec: &PodSpec| -> Vec<PodSchedulingGate> {
        spec.scheduling_gates.clone().unwrap_or_default()
    };
    let before = gates(old);
    for (index, gate) in gates(new).iter().enumerate() {
        if !before.iter().any(|old| old.name == gate.name) {
            let name = field.index(index);
            let detail =
                format!("only deletion is allowed, but found new scheduling gate '{}'", gate.name);
            errors.forbidden(&name.child("name"), &detail);
        }
    }
}

/// The new spec with all mutable fields set back.
fn without_mutable_fields(new: &PodSpec, old: &PodSpec) -> PodSpec {
    let mut masked = new.clone();
    let set_images = |containers: &mut [Container], old: &[Container]| {
        for (container, old) in containers.iter_mut().zip(old) {
            container.image.clone_from(&old.image);
        }
    };
    set_images(&mut masked.containers, &old.containers);
    let old_init = old.init_containers.as_deref().unwrap_or_default();
    set_images(masked.init_containers.as_deref_mut().unwrap_or_default(), old_init);
    masked.active_deadline_seconds = old.active_deadline_seconds;
    masked.scheduling_gates.clone_from(&old.scheduling_gates);
    masked.tolerations.clone_from(&old.tolerations);
    let was_negative = old.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0);
    if was_negative && masked.termination_grace_period_seconds == Some(1) {
        masked.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    masked
}

/// The scheduling constraints of a pod with scheduling gates may be narrowed.
fn while_gated(masked: &mut PodSpec, old: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    if masked.node_selector != old.node_selector {
        let empty = std::collections::BTreeMap::new();
        let now = masked.node_selector.as_ref().unwrap_or(&empty);
        let kept = |(key, value)| now.get(key) == Some(value);
        if !old.node_selector.iter().flatten().all(kept) {
            let shown = Internal(Type::Map(Box::new(Type::String("string"))), now);
            let detail =
                "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.invalid(&field.child("nodeSelector"), shown, detail);
        }
        masked.node_selector.clone_from(&old.node_selector);
    }
    let of = |spec: &PodSpec| spec.affinity.as_ref().and_then(|it| it.node_affinity.clone());
    let (new_affinity, old_affinity) = (of(masked), of(old));
    if new_affinity != old_affinity {
        let at_affinity = field.child("affinity");
        let at_affinity = at_affinity.child("nodeAffinity");
        narrower(new_affinity.as_ref(), old_affinity.as_ref(), &at_affinity, errors);
        let had_none = old.affinity.is_none();
        match &mut masked.affinity {
            None if old_affinity.is_none() => {}
            None => masked.affinity.get_or_insert_default().node_affinity = old_affinity,
            Some(own)
                if had_none && own.pod_affinity.is_none() && own.pod_anti_affinity.is_none() =>
            {
                masked.affinity = None;
            }
            Some(own) => own.node_affinity = old_affinity,
        }
    }
}

fn narrower(
    new: Option<&NodeAffinity>,
    old: Option<&NodeAffinity>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let terms = |affinity: Option<&NodeAffinity>| {
        affinity
            .and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref())
            .map(|selector| selector.node_selector_terms.clone())
    };
    let Some(before) = terms(old) else { return };
    let now = terms(new).unwrap_or_default();
    let field = field.child("requiredDuringSchedulingIgnoredDuringExecution");
    let field = field.child("nodeSelectorTerms");
    if !before.is_empty() && before.len() != now.len() {
        let list = Type::List(Box::new(Type::Struct("NodeSelectorTerm")));
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return errors.invalid(&field, Internal(list, &now), detail);
    }
    for (index, (now, before)) in now.iter().zip(&before).enumerate() {
        if !only_adds(now, before) {
            let shown = Internal(Type::Struct("NodeSelectorTerm"), now);
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.invalid(&field.index(index), shown, detail);
        }
    }
}

fn only_adds(new: &NodeSelectorTerm, old: &NodeSelectorTerm) -> bool {
    let list = |list: &Option<Vec<NodeSelectorRequirement>>| list.clone().unwrap_or_default();
    let (new_expressions, new_fields) = (list(&new.match_expressions), list(&new.match_fields));
    let (old_expressions, old_fields) = (list(&old.match_expressions), list(&old.match_fields));
    // A term without requirements matches nothing, so adding one would widen it.
    if old_expressions.is_empty() && old_fields.is_empty() {
        return new_expressions.is_empty() && new_fields.is_empty();
    }
    new_expressions.starts_with(&old_expressions) && new_fields.starts_with(&old_fields)
}

/// Ephemeral containers may be added, but not removed or changed.
pub(super) fn ephemeral_containers(new: &PodSpec, old: &PodSpec, errors: &mut Errors) {
    let spec = Path::new("spec");
    let field = spec.child("ephemeralContainers");
    let list = |spec: &PodSpec| -> Vec<EphemeralContainer> {
        spec.ephemeral_containers.clone().unwrap_or_default()
    };
    let now = list(new);
    let ty = Type::Struct("EphemeralContainer");
    for before in list(old) {
        let name = quote(&before.name);
        match now.iter().rev().find(|container| container.name == before.name) {
            None => {
                let detail = format!("existing ephemeral containers {name} may not be removed\n");
                errors.forbidden(&field, &detail);
            }
            Some(container) if !same(&ty, container, &before) => {
                let diff = unified(&pretty(&ty, &json(&before)), &pretty(&ty, &json(container)));
                let detail =
                    format!("existing ephemeral containers {name} may not be changed\n{diff}");
                errors.forbidden(&field, &detail);
            }
            Some(_) => {}
        }
    }
}

/// Whether two values are semantically equal.
pub(super) fn same<T: Serialize>(ty: &Type, a: &T, b: &T) -> bool {
    equal(ty, &json(a), &json(b))
}

fn json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// The spec of a pod, empty if it has none.
pub(super) fn spec_of(pod: &Pod) -> PodSpec {
    pod.spec.clone().unwrap_or_default()
}
