//! Object validation, with kube-apiserver's messages.
//!
//! Pods are validated by core, which validates static pods too. The other kinds are validated here,
//! as JSON: they are small, and typed structs of each would only make the program larger. Objects
//! must be defaulted first.

mod cluster;
mod config;
mod event;
mod node;
mod rbac;
mod storage;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_api::schema::equal::member;
use podwright_api::schema::{self, Path};
use podwright_api::validation as pods;
use podwright_api::validation::field::Errors;
use podwright_api::validation::format::{self, Problems};
use podwright_api::validation::meta::{self, Rules};
use serde_json::Value;

pub use podwright_api::validation::FieldError;

use crate::registry::{EVENTS, Resource};

const METADATA: Path<'static> = Path::new("metadata");

/// Errors of a new object.
pub fn create(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let errors = match typed_pod(resource, object) {
        Some(Ok(pod)) => pods::create(&pod),
        Some(Err(error)) => vec![error],
        None => {
            let mut errors = Errors::new();
            single_object(resource, object, &mut errors);
            errors.into_vec()
        }
    };
    if !errors.is_empty() {
        return errors;
    }
    let mut errors = Errors::new();
    meta::check(&metadata(object), common_rules(resource), &METADATA, &mut errors);
    errors.into_vec()
}

/// Errors of a new event from `events.k8s.io/v1`.
pub fn create_newer_event(object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::new();
    single_object(&EVENTS, object, &mut errors);
    event::check_new(object, &mut errors);
    errors.into_vec()
}

/// Errors of an update of an object or a subresource.
pub fn update(
    resource: &Resource,
    subresource: Option<&str>,
    new: &Value,
    old: &Value,
) -> Vec<FieldError> {
    let mut errors = Errors::new();
    let rules = common_rules(resource);
    let (new_meta, old_meta) = (metadata(new), metadata(old));
    meta::check(&new_meta, rules, &METADATA, &mut errors);
    meta::check_update(&new_meta, &old_meta, rules, &METADATA, &mut errors);
    let mut errors = errors.into_vec();
    if let (Some(new), Some(old)) = (typed_pod(resource, new), typed_pod(resource, old)) {
        errors.extend(match (new, old, subresource) {
            (Err(error), _, _) | (_, Err(error), _) => vec![error],
            (Ok(new), Ok(old), None) => pods::update(&new, &old),
            (Ok(new), Ok(old), Some("status")) => pods::update_status(&new, &old),
            (Ok(new), Ok(old), Some("ephemeralcontainers")) => {
                pods::update_ephemeral_containers(&new, &old)
            }
            (Ok(new), Ok(old), Some("resize")) => pods::resize(&new, &old),
            (Ok(_), Ok(_), Some(_)) => Vec::new(),
        });
        return errors;
    }
    let mut of_kind = Errors::new();
    change(resource, subresource, new, old, &mut of_kind);
    errors.extend(of_kind.into_vec());
    errors
}

/// `None` if it is not a pod. A pod that cannot be parsed could not be validated, so it is refused.
fn typed_pod(resource: &Resource, object: &Value) -> Option<Result<Pod, FieldError>> {
    if resource.storage != "pods" {
        return None;
    }
    Some(schema::typed(object).map_err(|error| FieldError {
        reason: "FieldValueInvalid",
        field: "spec".into(),
        message: format!("Invalid value: the pod cannot be read: {error}"),
    }))
}

/// Validates an object of its kind on its own.
fn single_object(resource: &Resource, object: &Value, errors: &mut Errors) {
    if let Some(rules) = rules(resource) {
        meta::check(&metadata(object), rules, &METADATA, errors);
    }
    match resource.storage {
        "configmaps" => config::config_map(object, errors),
        "secrets" => config::secret(object, errors),
        "namespaces" => cluster::namespace(object, errors),
        "nodes" => node::check(object, errors),
        "events" => event::check(object, errors),
        "roles" | "clusterroles" => rbac::role(resource.namespaced, object, errors),
        "rolebindings" | "clusterrolebindings" => {
            rbac::binding(resource.namespaced, object, errors);
        }
        "leases" => cluster::lease(object, errors),
        "runtimeclasses" => cluster::runtime_class(object, errors),
        "priorityclasses" => cluster::priority_class(object, errors),
        "persistentvolumes" => storage::volume(object, errors),
        "persistentvolumeclaims" => storage::claim(object, errors),
        _ => {}
    }
}

/// The order of the checks is kube-apiserver's, including that some errors appear twice.
fn change(
    resource: &Resource,
    subresource: Option<&str>,
    new: &Value,
    old: &Value,
    errors: &mut Errors,
) {
    let alone = |errors: &mut Errors| single_object(resource, new, errors);
    let identity = |errors: &mut Errors| {
        if let Some(rules) = rules(resource) {
            meta::check_update(&metadata(new), &metadata(old), rules, &METADATA, errors);
        }
    };
    match (resource.storage, subresource) {
        ("configmaps", _) => {
            identity(errors);
            config::config_map_change(new, old, errors);
            alone(errors);
        }
        ("secrets", _) => {
            identity(errors);
            config::secret_change(new, old, errors);
            alone(errors);
        }
        ("serviceaccounts", _) => {
            identity(errors);
            alone(errors);
        }
        ("events", _) => alone(errors),
        ("namespaces", None) => {
            alone(errors);
            identity(errors);
        }
        ("namespaces", Some(part)) => {
            identity(errors);
            cluster::namespace_change(part, new, errors);
        }
        ("nodes", part) => {
            if part.is_none() {
                alone(errors);
            }
            identity(errors);
            node::change(new, old, errors);
        }
        ("leases", _) => {
            identity(errors);
            cluster::lease(new, errors);
        }
        ("runtimeclasses", _) => {
            alone(errors);
            identity(errors);
            cluster::runtime_class_change(new, old, errors);
        }
        ("roles" | "clusterroles", _) => {
            alone(errors);
            identity(errors);
        }
        ("rolebindings" | "clusterrolebindings", _) => {
            alone(errors);
            identity(errors);
            rbac::binding_change(new, old, errors);
        }
        ("priorityclasses", _) => {
            identity(errors);
            cluster::priority_class_change(new, old, errors);
        }
        ("persistentvolumes", None) => {
            alone(errors);
            alone(errors);
            storage::volume_change(new, old, errors);
        }
        ("persistentvolumeclaims", None) => {
            identity(errors);
            alone(errors);
            storage::claim_change(new, old, errors);
        }
        ("persistentvolumeclaims", Some(_)) => {
            identity(errors);
            storage::claim_status(new, errors);
        }
        _ => identity(errors),
    }
}

/// Naming rules of a kind.
fn rules(resource: &Resource) -> Option<Rules> {
    let name = match resource.storage {
        "namespaces" => format::dns_label,
        "events" => return None,
        "roles" | "clusterroles" | "rolebindings" | "clusterrolebindings" => path_segment,
        _ => format::dns_subdomain,
    };
    let known_finalizers = !matches!(resource.storage, "leases" | "runtimeclasses");
    Some(Rules { namespaced: resource.namespaced, name, known_finalizers })
}

/// Minimum for every name: it must be valid as a path segment.
fn common_rules(resource: &Resource) -> Rules {
    Rules { namespaced: resource.namespaced, name: path_segment, known_finalizers: false }
}

fn path_segment(name: &str) -> Problems {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    let bad = ["/", "%"].into_iter().filter(|part| name.contains(part));
    bad.map(|part| format!("may not contain '{part}'")).collect()
}

fn metadata(object: &Value) -> ObjectMeta {
    schema::typed(member(object, "metadata")).unwrap_or_default()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests;
