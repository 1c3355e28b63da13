//! Validation of annotations that the API server reads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod, PodSpec, SeccompProfile, Toleration};

use super::field::{Errors, quote};
use super::{each_container, file_path, text, toleration};
use crate::annotations::ANNOTATION_MIRROR;
use crate::schema::Path;

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
/// Followed by the container's name.
pub const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

type Annotations = BTreeMap<String, String>;

pub(super) fn check(pod: &Pod, spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let empty = Annotations::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&empty);
    if let Some(value) = annotations.get(ANNOTATION_MIRROR)
        && text(&spec.node_name).is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.invalid(&field.key(ANNOTATION_MIRROR), value, detail);
    }
    if let Some(value) = annotations.get(TOLERATIONS).filter(|value| !value.is_empty()) {
        match serde_json::from_str::<Vec<Toleration>>(value) {
            Ok(tolerations) => {
                toleration::check(&tolerations, &field.child(TOLERATIONS), errors);
            }
            Err(e) => errors.invalid(field, TOLERATIONS, &e.to_string()),
        }
    }
    if let Some(value) = annotations.get(DELETION_COST)
        && !is_deletion_cost(value)
    {
        errors.invalid(&field.key(DELETION_COST), value, "must be a 32bit integer");
    }
    for (key, value) in annotations {
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(value, &field.child(key), errors);
        }
    }
    for (key, value) in annotations {
        let Some(name) = key.strip_prefix(APP_ARMOR) else { continue };
        let field = field.key(key);
        if !has_container(spec, name) {
            errors.invalid(&field, name, "container not found");
        }
        let known = ["", "runtime/default", "unconfined"];
        if !known.contains(&value.as_str()) && !value.starts_with("localhost/") {
            let detail = format!("invalid AppArmor profile name: {}", quote(value));
            errors.invalid(&field, value, &detail);
        }
    }
}

/// An integer in canonical form.
fn is_deletion_cost(value: &str) -> bool {
    value.parse::<i32>().is_ok_and(|number| number.to_string() == value)
}

fn seccomp(profile: &str, field: &Path<'_>, errors: &mut Errors) {
    match profile {
        "runtime/default" | "docker/default" | "unconfined" => {}
        _ => match profile.strip_prefix("localhost/") {
            Some(path) => file_path::below(path, field, errors),
            None => errors.invalid(field, profile, "must be a valid seccomp profile"),
        },
    }
}

fn has_container(spec: &PodSpec, name: &str) -> bool {
    let mut found = false;
    each_container(spec, &Path::new("spec"), |container, _| found |= container.name == name);
    found
}

/// Annotations that must not change after the pod was created.
pub(super) fn check_update(
    new: &Pod,
    old: &Pod,
    spec: &PodSpec,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let empty = Annotations::new();
    let now = new.metadata.annotations.as_ref().unwrap_or(&empty);
    let before = old.metadata.annotations.as_ref().unwrap_or(&empty);
    for (key, _) in before.iter().filter(|(key, value)| now.get(*key) != Some(*value)) {
        if key.starts_with(APP_ARMOR) {
            errors.forbidden(&field.key(key), "may not remove or update AppArmor annotations");
        }
        if key == ANNOTATION_MIRROR {
            errors.forbidden(&field.key(key), "may not remove or update mirror pod annotation");
        }
    }
    for key in now.keys().filter(|key| !before.contains_key(*key)) {
        if key.starts_with(APP_ARMOR) {
            errors.forbidden(&field.key(key), "may not add AppArmor annotations");
        }
        if key == ANNOTATION_MIRROR {
            errors.forbidden(&field.key(key), "may not add mirror pod annotation");
        }
    }
    check(new, spec, field, errors);
}

/// An annotation must agree with the field that replaced it.
pub(super) fn agree_with_fields(pod: &Pod, spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let annotation =
        |key: &str| pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
    let context = spec.security_context.as_ref();
    let profile = context.and_then(|context| context.seccomp_profile.as_ref());
    if let (Some(profile), Some(value)) = (profile, annotation(SECCOMP_POD)) {
        let field = field.child("securityContext");
        seccomp_agrees(value, profile, &field.child("seccompProfile"), errors);
    }
    each_container(spec, field, |container, field| {
        let context = container.security_context.as_ref();
        let profile = context.and_then(|context| context.seccomp_profile.as_ref());
        let value = annotation(&format!("{SECCOMP_CONTAINER}{}", container.name));
        if let (Some(profile), Some(value)) = (profile, value) {
            let field = field.child("securityContext");
            seccomp_agrees(value, profile, &field.child("seccompProfile"), errors);
        }
    });
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return;
    }
    let of_pod = context.and_then(|context| context.app_armor_profile.as_ref());
    each_container(spec, field, |container, field| {
        let context = container.security_context.as_ref();
        let own = context.and_then(|context| context.app_armor_profile.as_ref());
        let value = annotation(&format!("{APP_ARMOR}{}", container.name));
        if let (Some(profile), Some(value)) = (own.or(of_pod), value) {
            let field = field.child("securityContext");
            app_armor_agrees(value, profile, &field.child("appArmorProfile"), errors);
        }
    });
}

fn seccomp_agrees(value: &str, profile: &SeccompProfile, field: &Path<'_>, errors: &mut Errors) {
    let kind_agrees = match profile.type_.as_str() {
        "Unconfined" => value == "unconfined",
        "RuntimeDefault" => value == "runtime/default" || value == "docker/default",
        "Localhost" => value.starts_with("localhost/"),
        _ => true,
    };
    if !kind_agrees {
        let detail = "seccomp type in annotation and field must match";
        errors.forbidden(&field.child("type"), detail);
    } else if profile.type_ == "Localhost"
        && value.strip_prefix("localhost/") != profile.localhost_profile.as_deref()
    {
        let detail = "seccomp profile in annotation and field must match";
        errors.forbidden(&field.child("localhostProfile"), detail);
    }
}

fn app_armor_agrees(value: &str, profile: &AppArmorProfile, field: &Path<'_>, errors: &mut Errors) {
    let kind_agrees = match profile.type_.as_str() {
        "Unconfined" => value == "unconfined",
        "RuntimeDefault" => value == "runtime/default",
        "Localhost" => value.starts_with("localhost/"),
        _ => true,
    };
    if !kind_agrees {
        let detail = "apparmor type in annotation and field must match";
        errors.forbidden(&field.child("type"), detail);
    } else if profile.type_ == "Localhost"
        && value.strip_prefix("localhost/") != profile.localhost_profile.as_deref()
    {
        let detail = "apparmor profile in annotation and field must match";
        errors.forbidden(&field.child("localhostProfile"), detail);
    }
}
