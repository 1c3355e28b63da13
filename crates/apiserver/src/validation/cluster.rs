//! Validation of namespaces, leases, runtime classes and priority classes.

use k8s_openapi::api::core::v1::Toleration;
use podwright_api::schema::{self, Path, Type};
use podwright_api::validation::field::{Errors, Internal};
use podwright_api::validation::{format, meta, resource, spec, toleration};
use serde_json::Value;

use super::text;

/// Maximum value of user-defined priority classes; higher values are the system's.
const USER_PRIORITY_LIMIT: i64 = 1_000_000_000;
const SYSTEM_PREFIX: &str = "system-";
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let list = object.pointer("/spec/finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

pub(super) fn namespace(object: &Value, errors: &mut Errors) {
    let spec = Path::new("spec");
    let field = spec.child("finalizers");
    for name in finalizers(object) {
        errors.malformed(&field, name, &format::qualified_name(name));
        meta::known_finalizer(name, &field, errors);
    }
}

pub(super) fn namespace_change(part: &str, new: &Value, errors: &mut Errors) {
    match part {
        "status" => {
            let status = Path::new("status");
            let field = status.child("Phase");
            let phase = text(new, "/status/phase");
            let deleting = !text(new, "/metadata/deletionTimestamp").is_empty();
            if !deleting && phase != "Active" {
                let detail = "may only be 'Active' if `deletionTimestamp` is empty";
                errors.invalid(&field, phase, detail);
            } else if deleting && phase != "Terminating" {
                let detail = "may only be 'Terminating' if `deletionTimestamp` is not empty";
                errors.invalid(&field, phase, detail);
            }
        }
        "finalize" => {
            let spec = Path::new("spec");
            let field = spec.child("finalizers");
            for (index, name) in finalizers(new).enumerate() {
                let field = field.index(index);
                errors.malformed(&field, name, &format::qualified_name(name));
                meta::known_finalizer(name, &field, errors);
            }
        }
        _ => {}
    }
}

pub(super) fn lease(object: &Value, errors: &mut Errors) {
    let field = Path::new("spec");
    let number = |name: &str| object.pointer(&format!("/spec/{name}")).and_then(Value::as_i64);
    if let Some(seconds) = number("leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        errors.invalid(&field.child("leaseDurationSeconds"), seconds, "must be greater than 0");
    }
    if let Some(count) = number("leaseTransitions").filter(|count| *count < 0) {
        let detail = "must be greater than or equal to 0";
        errors.invalid(&field.child("leaseTransitions"), count, detail);
    }
    let strategy = text(object, "/spec/strategy");
    // the doubled name is kube-apiserver's
    let at_strategy = field.child("strategy");
    let at_strategy = at_strategy.child("strategy");
    if strategy.contains('/') {
        errors.malformed(&at_strategy, strategy, &format::qualified_name(strategy));
    } else if !strategy.is_empty() && strategy != "OldestEmulationVersion" {
        errors.not_supported(&at_strategy, strategy, &["OldestEmulationVersion"]);
    }
    if !text(object, "/spec/preferredHolder").is_empty() && strategy.is_empty() {
        let detail = "may only be specified if `strategy` is defined";
        errors.forbidden(&field.child("preferredHolder"), detail);
    }
}

pub(super) fn runtime_class(object: &Value, errors: &mut Errors) {
    let at_handler = Path::new("handler");
    match text(object, "/handler") {
        "" => errors.required(&at_handler, ""),
        handler => errors.malformed(&at_handler, handler, &format::dns_label(handler)),
    }
    if let Some(amounts) = object.pointer("/overhead/podFixed") {
        let amounts = schema::typed(amounts).ok();
        resource::overhead(amounts.as_ref(), &Path::new("overhead"), errors);
    }
    let field = Path::new("scheduling");
    let selector = object.pointer("/scheduling/nodeSelector").cloned().unwrap_or_default();
    let selector = serde_json::from_value(selector).ok();
    meta::labels(selector.as_ref(), &field.child("nodeSelector"), errors);
    tolerations(object, &field.child("tolerations"), errors);
}

fn tolerations(object: &Value, field: &Path<'_>, errors: &mut Errors) {
    let given = object.pointer("/scheduling/tolerations");
    let given: Vec<Toleration> =
        given.and_then(|given| schema::typed(given).ok()).unwrap_or_default();
    toleration::check(&given, field, errors);
    let same = |a: &Toleration, b: &Toleration| {
        (&a.key, &a.operator, &a.value, &a.effect) == (&b.key, &b.operator, &b.value, &b.effect)
    };
    for (index, each) in given.iter().enumerate() {
        if given.iter().take(index).any(|other| same(other, each)) {
            let shown = Internal(Type::Struct("Toleration"), each);
            errors.duplicate(&field.index(index), shown);
        }
    }
}

pub(super) fn runtime_class_change(new: &Value, old: &Value, errors: &mut Errors) {
    let handler = text(new, "/handler");
    if handler != text(old, "/handler") {
        errors.invalid(&Path::new("handler"), handler, "field is immutable");
    }
}

fn priority(object: &Value) -> i64 {
    object.get("value").and_then(Value::as_i64).unwrap_or(0)
}

pub(super) fn priority_class(object: &Value, errors: &mut Errors) {
    let (name, value) = (text(object, "/metadata/name"), priority(object));
    if name.starts_with(SYSTEM_PREFIX) {
        if let Some(problem) = system_class_error(object, name, value) {
            let metadata = Path::new("metadata");
            let detail = format!(
                "priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use \
                 only. error: {problem}"
            );
            errors.forbidden(&metadata.child("name"), &detail);
        }
    } else if value > USER_PRIORITY_LIMIT {
        let detail =
            format!("maximum allowed value of a user defined priority is {USER_PRIORITY_LIMIT}");
        errors.forbidden(&Path::new("value"), &detail);
    }
    if object.get("preemptionPolicy").is_some() {
        let field = Path::new("preemptionPolicy");
        spec::preemption_policy(text(object, "/preemptionPolicy"), &field, errors);
    }
}

fn system_class_error(object: &Value, name: &str, value: i64) -> Option<String> {
    let Some((_, known)) = SYSTEM_CLASSES.into_iter().find(|(known, _)| *known == name) else {
        return Some(format!("{name} is not a known system priority class"));
    };
    if known != value {
        return Some(format!("value of {name} PriorityClass must be {known}"));
    }
    let default = object.get("globalDefault") == Some(&Value::Bool(true));
    default.then(|| format!("globalDefault of {name} PriorityClass must be false"))
}

pub(super) fn priority_class_change(new: &Value, old: &Value, errors: &mut Errors) {
    if priority(new) != priority(old) {
        errors.forbidden(&Path::new("value"), "may not be changed in an update.");
    }
    let policy = text(new, "/preemptionPolicy");
    if policy != text(old, "/preemptionPolicy") {
        errors.invalid(&Path::new("preemptionPolicy"), policy, "field is immutable");
    }
}
