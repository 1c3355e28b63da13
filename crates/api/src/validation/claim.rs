//! Validation of persistent volume claims, and of claim templates in ephemeral volumes.

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate, TypedObjectReference,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::field::Errors;
use super::resource_name::check_amount;
use super::{affinity, format, meta, text};
use crate::quantity::Quantity;
use crate::schema::Path;

const ACCESS_MODES: [&str; 4] =
    ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

pub(super) fn template(
    template: &PersistentVolumeClaimTemplate,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    if let Some(given) = &template.metadata {
        let field = field.child("metadata");
        meta::annotations(given.annotations.as_ref(), &field.child("annotations"), errors);
        meta::labels(given.labels.as_ref(), &field.child("labels"), errors);
        only_labels_and_annotations(given, &field, errors);
    }
    spec(&template.spec, &field.child("spec"), errors);
}

/// The rest of the claim's metadata is derived from the pod.
fn only_labels_and_annotations(meta: &ObjectMeta, field: &Path<'_>, errors: &mut Errors) {
    for (name, set) in [
        ("name", meta.name.is_some()),
        ("generateName", meta.generate_name.is_some()),
        ("namespace", meta.namespace.is_some()),
        ("selfLink", meta.self_link.is_some()),
        ("uID", meta.uid.is_some()),
        ("resourceVersion", meta.resource_version.is_some()),
        ("generation", meta.generation.is_some()),
        ("creationTimestamp", meta.creation_timestamp.is_some()),
        ("deletionTimestamp", meta.deletion_timestamp.is_some()),
        ("deletionGracePeriodSeconds", meta.deletion_grace_period_seconds.is_some()),
        ("ownerReferences", meta.owner_references.is_some()),
        ("finalizers", meta.finalizers.is_some()),
        ("managedFields", meta.managed_fields.is_some()),
    ] {
        if set {
            errors.forbidden(&field.child(name), "cannot be set");
        }
    }
}

pub fn spec(spec: &PersistentVolumeClaimSpec, field: &Path<'_>, errors: &mut Errors) {
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    if modes.is_empty() {
        let detail = "at least 1 access mode is required";
        errors.required(&field.child("accessModes"), detail);
    }
    affinity::label_selector(spec.selector.as_ref(), &field.child("selector"), errors);
    access_modes(modes, &field.child("accessModes"), errors);

    let at_size = field.child("resources");
    let at_size = at_size.key("storage");
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let size = requests.and_then(|requests| requests.get("storage"));
    match size.and_then(|size| Quantity::try_from(size).ok()) {
        None => errors.required(&at_size, ""),
        Some(size) if size <= Quantity::ZERO => {
            errors.invalid(&at_size, &size.to_string(), "must be greater than zero");
        }
        Some(size) => check_amount("storage", size, &at_size, errors),
    }
    class_name(text(&spec.storage_class_name), &field.child("storageClassName"), errors);
    volume_mode(spec.volume_mode.as_deref(), &field.child("volumeMode"), errors);
    data_sources(spec, field, errors);
    let class = text(&spec.volume_attributes_class_name);
    class_name(class, &field.child("volumeAttributesClassName"), errors);
}

pub fn access_modes(modes: &[String], field: &Path<'_>, errors: &mut Errors) {
    for mode in modes.iter().filter(|mode| !ACCESS_MODES.contains(&mode.as_str())) {
        errors.not_supported(field, mode, &ACCESS_MODES);
    }
    let known = || modes.iter().filter(|mode| ACCESS_MODES.contains(&mode.as_str()));
    let alone = |mode: &&String| **mode == "ReadWriteOncePod";
    if known().any(|mode| alone(&mode)) && known().any(|mode| !alone(&mode)) {
        errors.forbidden(field, "may not use ReadWriteOncePod with other access modes");
    }
}

pub fn volume_mode(mode: Option<&str>, field: &Path<'_>, errors: &mut Errors) {
    if let Some(mode) = mode.filter(|mode| !VOLUME_MODES.contains(mode)) {
        errors.not_supported(field, mode, &VOLUME_MODES);
    }
}

pub fn class_name(name: &str, field: &Path<'_>, errors: &mut Errors) {
    if !name.is_empty() {
        errors.malformed(field, name, &format::dns_subdomain(name));
    }
}

fn data_sources(spec: &PersistentVolumeClaimSpec, field: &Path<'_>, errors: &mut Errors) {
    if let Some(source) = &spec.data_source {
        let source = TypedObjectReference {
            api_group: source.api_group.clone(),
            kind: source.kind.clone(),
            name: source.name.clone(),
            namespace: None,
        };
        data_source(&source, &field.child("dataSource"), errors);
    }
    let Some(reference) = &spec.data_source_ref else { return };
    data_source(reference, &field.child("dataSourceRef"), errors);
    let Some(source) = &spec.data_source else { return };
    // The value shown is the path of the other field, as in the API server.
    let shown = field.child("dataSource").to_string();
    let same = source.api_group == reference.api_group
        && source.kind == reference.kind
        && source.name == reference.name;
    if !text(&reference.namespace).is_empty() {
        let detail = "may not be specified when dataSourceRef.namespace is specified";
        errors.invalid(field, &shown, detail);
    } else if !same {
        errors.invalid(field, &shown, "must match dataSourceRef");
    }
}

fn data_source(source: &TypedObjectReference, field: &Path<'_>, errors: &mut Errors) {
    if source.name.is_empty() {
        errors.required(&field.child("name"), "");
    }
    if source.kind.is_empty() {
        errors.required(&field.child("kind"), "");
    }
    let group = text(&source.api_group);
    if group.is_empty() && source.kind != "PersistentVolumeClaim" {
        let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.invalid(field, &source.kind, detail);
    }
    if !group.is_empty() {
        errors.malformed(&field.child("apiGroup"), group, &format::dns_subdomain(group));
    }
    let namespace = text(&source.namespace);
    if !namespace.is_empty() {
        errors.malformed(&field.child("namespace"), namespace, &format::dns_label(namespace));
    }
}
