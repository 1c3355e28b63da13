//! Validation of environment variables and of references to pod fields.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, FileKeySelector, ObjectFieldSelector, PodSpec,
    ResourceFieldSelector, Volume,
};

use super::field::Errors;
use super::{each_container, file_path, format, text};
use crate::quantity::Quantity;
use crate::schema::Path;

/// Fields that an environment variable may reference.
const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields that a downward API volume may reference.
const FILE_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
/// All fields that can be referenced.
const KNOWN_FIELDS: [&str; 15] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.host",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// User of a field reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Variable,
    File,
}

pub(super) fn check(vars: &[EnvVar], field: &Path<'_>, errors: &mut Errors) {
    for (index, var) in vars.iter().enumerate() {
        let field = field.index(index);
        match var.name.as_str() {
            "" => errors.required(&field.child("name"), ""),
            name => errors.malformed(&field.child("name"), name, &format::env_name(name)),
        }
        value_from(var, &field.child("valueFrom"), errors);
    }
}

fn value_from(var: &EnvVar, field: &Path<'_>, errors: &mut Errors) {
    let Some(source) = &var.value_from else { return };
    let mut sources = 0;
    if let Some(selector) = &source.field_ref {
        sources += 1;
        field_ref(selector, Target::Variable, &field.child("fieldRef"), errors);
    }
    if let Some(selector) = &source.resource_field_ref {
        sources += 1;
        resource_ref(selector, Target::Variable, &field.child("resourceFieldRef"), errors);
    }
    if let Some(selector) = &source.config_map_key_ref {
        sources += 1;
        key_ref(&selector.name, &selector.key, &field.child("configMapKeyRef"), errors);
    }
    if let Some(selector) = &source.secret_key_ref {
        sources += 1;
        key_ref(&selector.name, &selector.key, &field.child("secretKeyRef"), errors);
    }
    if let Some(selector) = &source.file_key_ref {
        sources += 1;
        file_ref(selector, &field.child("fileKeyRef"), errors);
    }
    if sources == 0 {
        let detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, \
                      `secretKeyRef` or `fileKeyRef`";
        errors.invalid(field, "", detail);
    } else if !text(&var.value).is_empty() {
        errors.invalid(field, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid(field, "", "may not have more than one field specified at a time");
    }
}

pub(super) fn field_ref(
    selector: &ObjectFieldSelector,
    target: Target,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let version = text(&selector.api_version);
    if version.is_empty() {
        return errors.required(&field.child("apiVersion"), "");
    }
    let path = selector.field_path.as_str();
    if path.is_empty() {
        return errors.required(&field.child("fieldPath"), "");
    }
    if let Some(problem) = unknown_field(version, path) {
        let detail = format!("error converting fieldPath: {problem}");
        return errors.invalid(&field.child("fieldPath"), path, &detail);
    }
    if let Some((holder, key)) = subscript(path) {
        let key =
            if holder == "metadata.annotations" { key.to_lowercase() } else { key.to_owned() };
        return errors.malformed(field, &key, &format::qualified_name(&key));
    }
    let shown = if path == "spec.host" { "spec.nodeName" } else { path };
    let allowed: &[&str] = match target {
        Target::Variable => &FIELDS,
        Target::File => &FILE_FIELDS,
    };
    if !allowed.contains(&shown) {
        errors.not_supported(&field.child("fieldPath"), shown, allowed);
    }
}

fn unknown_field(version: &str, path: &str) -> Option<String> {
    if version != "v1" {
        return Some(format!("unsupported pod version: {version}"));
    }
    match subscript(path) {
        Some(("metadata.annotations" | "metadata.labels", _)) => None,
        Some(_) => Some(format!("field label does not support subscript: {path}")),
        None if KNOWN_FIELDS.contains(&path) => None,
        None => Some(format!("field label not supported: {path}")),
    }
}

/// `metadata.labels['key']` is the field and the key.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (holder, key) = path.strip_suffix("']")?.split_once("['")?;
    (!holder.is_empty()).then_some((holder, key))
}

pub(super) fn resource_ref(
    selector: &ResourceFieldSelector,
    target: Target,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let resource = selector.resource.as_str();
    let huge_pages =
        resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if target == Target::File && text(&selector.container_name).is_empty() {
        errors.required(&field.child("containerName"), "");
    } else if resource.is_empty() {
        errors.required(&field.child("resource"), "");
    } else if !RESOURCES.contains(&resource) && !huge_pages {
        errors.not_supported(&field.child("resource"), resource, &RESOURCES);
    }
    let divisor = selector.divisor.as_ref().and_then(|divisor| Quantity::try_from(divisor).ok());
    let Some(divisor) = divisor.filter(|divisor| !divisor.is_zero()) else { return };
    let (allowed, of): (&[&str], _) = match resource {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "cpu"),
        "limits.memory" | "requests.memory" => (&BYTE_DIVISORS, "memory"),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => {
            (&BYTE_DIVISORS, "local ephemeral storage")
        }
        _ if huge_pages => (&BYTE_DIVISORS, "hugepages"),
        _ => return,
    };
    if !allowed.contains(&divisor.to_string().as_str()) {
        let values = if of == "cpu" { "1m and 1".to_owned() } else { allowed.join(", ") };
        let detail = format!("only divisor's values {values} are supported with the {of} resource");
        errors.invalid(&field.child("divisor"), resource, &detail);
    }
}

fn key_ref(name: &str, key: &str, field: &Path<'_>, errors: &mut Errors) {
    errors.malformed(&field.child("name"), name, &format::dns_subdomain(name));
    match key {
        "" => errors.required(&field.child("key"), ""),
        key => errors.malformed(&field.child("key"), key, &format::config_key(key)),
    }
}

fn file_ref(selector: &FileKeySelector, field: &Path<'_>, errors: &mut Errors) {
    match selector.key.as_str() {
        "" => errors.required(&field.child("key"), ""),
        key => errors.malformed(&field.child("key"), key, &format::env_name(key)),
    }
    match selector.volume_name.as_str() {
        "" => errors.required(&field.child("volumeName"), ""),
        name => errors.malformed(&field.child("volumeName"), name, &format::dns_label(name)),
    }
    match selector.path.as_str() {
        "" => errors.required(&field.child("path"), ""),
        path => file_path::no_steps_up(path, &field.child("path"), errors),
    }
}

pub(super) fn check_from(sources: &[EnvFromSource], field: &Path<'_>, errors: &mut Errors) {
    for (index, source) in sources.iter().enumerate() {
        let at = field.index(index);
        let prefix = text(&source.prefix);
        if !prefix.is_empty() {
            errors.malformed(&at.child("prefix"), prefix, &format::env_name(prefix));
        }
        let names = [
            ("configMapRef", source.config_map_ref.as_ref().map(|source| source.name.as_str())),
            ("secretRef", source.secret_ref.as_ref().map(|source| source.name.as_str())),
        ];
        for (child, name) in names {
            let child = at.child(child);
            match name {
                None => {}
                Some("") => errors.required(&child.child("name"), ""),
                Some(name) => {
                    let problems = format::as_prefix(format::dns_subdomain, name);
                    errors.malformed(&child.child("name"), name, &problems);
                }
            }
        }
        match names.iter().filter(|(_, name)| name.is_some()).count() {
            0 => errors.invalid(field, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(field, "", "may not have more than one field specified at a time"),
        }
    }
}

/// A variable read from a file needs an emptyDir volume of the pod.
pub(super) fn files_are_in_empty_dirs(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let volumes: BTreeMap<&str, &Volume> =
        spec.volumes.iter().flatten().map(|volume| (volume.name.as_str(), volume)).collect();
    each_container(spec, field, |container: &Container, field| {
        let field = field.child("env");
        for (index, var) in container.env.iter().flatten().enumerate() {
            let source = var.value_from.as_ref().and_then(|source| source.file_key_ref.as_ref());
            let Some(source) = source else { continue };
            let field = field.index(index);
            let field = field.child("valueFrom");
            let field = field.child("fileKeyRef");
            let field = field.child("volumeName");
            let name = source.volume_name.as_str();
            match volumes.get(name) {
                None => errors.not_found(&field, name, ""),
                Some(volume) if volume.empty_dir.is_none() => {
                    errors.invalid(&field, name, "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    });
}
