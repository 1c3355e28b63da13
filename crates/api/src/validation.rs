//! Pod validation, with the error messages of the API server (v1.36).
//!
//! It is in this crate because both the embedded API server and the agent, for static pods, refuse
//! pods with these messages. All errors are reported at once. The pod is expected defaulted.
//! Exceptions for objects that older API server versions accepted are not needed here.

pub mod affinity;
pub mod annotations;
pub mod claim;
mod container;
mod dns;
mod env;
pub mod field;
pub mod file_path;
pub mod format;
pub mod meta;
mod mount;
mod port;
mod probe;
mod resize;
pub mod resource;
pub mod resource_name;
mod restart;
mod security;
pub mod spec;
mod status;
pub mod toleration;
mod update;
pub mod volume;
mod windows;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use field::{Errors, FieldError, summary};

use crate::annotations::ANNOTATION_MIRROR;
use crate::schema::Path;

const META: meta::Rules =
    meta::Rules { namespaced: true, name: format::dns_subdomain, known_finalizers: true };

/// Validates a new pod.
pub fn create(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::new();
    let spec = update::spec_of(pod);
    check_pod(pod, &spec, &mut errors);
    let field = Path::new("spec");
    if spec.ephemeral_containers.as_ref().is_some_and(|containers| !containers.is_empty()) {
        errors.forbidden(&field.child("ephemeralContainers"), "cannot be set on create");
    }
    let gated = spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    if gated && !text(&spec.node_name).is_empty() {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.forbidden(&field.child("nodeName"), detail);
    }
    annotations::agree_with_fields(pod, &spec, &field, &mut errors);
    errors.into_vec()
}

/// Validates a change of a pod's metadata and spec.
pub fn update(new: &Pod, old: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::new();
    let spec = update::spec_of(new);
    let metadata = Path::new("metadata");
    meta::check_update(&new.metadata, &old.metadata, META, &metadata, &mut errors);
    check_pod(new, &spec, &mut errors);
    let at_annotations = metadata.child("annotations");
    annotations::check_update(new, old, &spec, &at_annotations, &mut errors);
    update::spec(&spec, &update::spec_of(old), &Path::new("spec"), &mut errors);
    errors.into_vec()
}

/// Validates a change of a pod's status.
pub fn update_status(new: &Pod, old: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::new();
    let metadata = Path::new("metadata");
    meta::check_update(&new.metadata, &old.metadata, META, &metadata, &mut errors);
    let spec = update::spec_of(new);
    let at_annotations = metadata.child("annotations");
    annotations::check_update(new, old, &spec, &at_annotations, &mut errors);
    status::check(new, old, &mut errors);
    errors.into_vec()
}

/// Validates a change of only the ephemeral containers.
pub fn update_ephemeral_containers(new: &Pod, old: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::new();
    if is_mirror(&old.metadata) {
        let detail = "static pods do not support ephemeral containers";
        errors.forbidden(&Path::new("[]"), detail);
        return errors.into_vec();
    }
    let spec = update::spec_of(new);
    let metadata = Path::new("metadata");
    meta::check_update(&new.metadata, &old.metadata, META, &metadata, &mut errors);
    check_pod(new, &spec, &mut errors);
    let at_annotations = metadata.child("annotations");
    annotations::check_update(new, old, &spec, &at_annotations, &mut errors);
    update::ephemeral_containers(&spec, &update::spec_of(old), &mut errors);
    errors.into_vec()
}

/// Validates a resize: a change of only resources.
pub fn resize(new: &Pod, old: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::new();
    let on_windows = |pod: &Pod| {
        pod.spec.as_ref().and_then(|spec| spec.os.as_ref()).is_some_and(|os| os.name == "windows")
    };
    if is_mirror(&old.metadata) {
        errors.forbidden(&Path::new("[]"), "static pods cannot be resized");
    } else if on_windows(old) {
        errors.forbidden(&Path::new("[]"), "windows pods cannot be resized");
    } else {
        let metadata = Path::new("metadata");
        meta::check_update(&new.metadata, &old.metadata, META, &metadata, &mut errors);
        check_pod(new, &update::spec_of(new), &mut errors);
        resize::check(new, old, &mut errors);
    }
    errors.into_vec()
}

/// Checks that need no other version of the pod.
fn check_pod(pod: &Pod, spec: &PodSpec, errors: &mut Errors) {
    let (metadata, field) = (Path::new("metadata"), Path::new("spec"));
    meta::check(&pod.metadata, META, &metadata, errors);
    annotations::check(pod, spec, &metadata.child("annotations"), errors);
    spec::check(pod, spec, &field, errors);
    spec::tokens_have_an_account(spec, &field, errors);
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (name, containers) in [("containers", spec.containers.as_slice()), ("initContainers", init)]
    {
        let field = field.child(name);
        for (index, each) in containers.iter().enumerate() {
            container::untrimmed_image(each, &field.index(index), errors);
        }
    }
}

/// Calls `visit` with every container and its path: init, regular, ephemeral.
fn each_container(spec: &PodSpec, field: &Path<'_>, mut visit: impl FnMut(&Container, &Path<'_>)) {
    let init = field.child("initContainers");
    for (index, each) in spec.init_containers.iter().flatten().enumerate() {
        visit(each, &init.index(index));
    }
    let regular = field.child("containers");
    for (index, each) in spec.containers.iter().enumerate() {
        visit(each, &regular.index(index));
    }
    let ephemeral = field.child("ephemeralContainers");
    for (index, each) in spec.ephemeral_containers.iter().flatten().enumerate() {
        visit(&container::as_container(each), &ephemeral.index(index));
    }
}

/// A mirror pod, which the API server must not change.
fn is_mirror(meta: &ObjectMeta) -> bool {
    meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(ANNOTATION_MIRROR))
}

/// Treats unset and empty as equal.
fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
