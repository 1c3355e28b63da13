//! Validation of persistent volumes and claims.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{HostPathVolumeSource, NodeSelector, PersistentVolumeClaimSpec};
use podwright_api::quantity::Quantity;
use podwright_api::schema::diff::unified;
use podwright_api::schema::dump::pretty;
use podwright_api::schema::equal::{equal, member};
use podwright_api::schema::{self, Path, Type};
use podwright_api::validation::field::{Errors, Internal, Unset};
use podwright_api::validation::volume::{csi_driver, host_path, remote};
use podwright_api::validation::{affinity, claim as claims, file_path, format};
use serde_json::{Map, Value};

use super::text;

const POLICIES: [&str; 3] = ["Delete", "Recycle", "Retain"];
const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Volume sources in the order of checks: the first one given is validated, further ones are
/// refused.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

pub(super) fn volume(object: &Value, errors: &mut Errors) {
    let field = Path::new("spec");
    let spec = member(object, "spec");
    let modes: Vec<String> =
        serde_json::from_value(member(spec, "accessModes").clone()).unwrap_or_default();
    let at_modes = field.child("accessModes");
    if modes.is_empty() {
        errors.required(&at_modes, "");
    }
    claims::access_modes(&modes, &at_modes, errors);
    capacity(spec, &field.child("capacity"), errors);
    let policy = text(spec, "/persistentVolumeReclaimPolicy");
    let at_policy = field.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() && !POLICIES.contains(&policy) {
        errors.not_supported(&at_policy, policy, &POLICIES);
    }
    let bound = node_affinity(spec, &field.child("nodeAffinity"), errors);
    source(spec, bound, &field, errors);
    let on_root = spec.pointer("/hostPath/path").and_then(Value::as_str).is_some_and(is_root);
    if on_root && policy == "Recycle" {
        errors.forbidden(&at_policy, "may not be 'recycle' for a hostPath mount of '/'");
    }
    claims::class_name(text(spec, "/storageClassName"), &field.child("storageClassName"), errors);
    let mode = spec.get("volumeMode").and_then(Value::as_str);
    claims::volume_mode(mode, &field.child("volumeMode"), errors);
    attributes_class(spec, &field, errors);
}

fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| part.is_empty() || part == ".")
}

fn capacity(spec: &Value, field: &Path<'_>, errors: &mut Errors) {
    let empty = Map::new();
    let given = spec.get("capacity").and_then(Value::as_object).unwrap_or(&empty);
    if given.is_empty() {
        errors.required(field, "");
    }
    if !given.contains_key("storage") || given.len() > 1 {
        let shown = Internal(Type::Map(Box::new(Type::Quantity)), given);
        errors.not_supported(field, shown, &["storage"]);
    }
    for (name, amount) in given {
        let Some(amount) = amount.as_str().and_then(|text| text.parse::<Quantity>().ok()) else {
            continue;
        };
        let field = field.key(name);
        if amount.is_negative() {
            errors.invalid(&field, amount.value(), "must be a valid resource quantity");
        }
        if amount <= Quantity::ZERO {
            errors.invalid(&field, &amount.to_string(), "must be greater than zero");
        }
    }
}

/// Validates the node affinity; returns whether there is one.
fn node_affinity(spec: &Value, field: &Path<'_>, errors: &mut Errors) -> bool {
    let Some(given) = spec.get("nodeAffinity").filter(|given| given.is_object()) else {
        return false;
    };
    let field = field.child("required");
    match schema::typed::<NodeSelector>(member(given, "required")) {
        Ok(selector) => affinity::node_selector(&selector, &field, errors),
        Err(_) => errors.required(&field, "must specify required node constraints"),
    }
    true
}

fn source(spec: &Value, bound: bool, field: &Path<'_>, errors: &mut Errors) {
    let mut given = SOURCES
        .into_iter()
        .filter_map(|name| Some((name, spec.get(name).filter(|it| it.is_object())?)));
    let Some((name, first)) = given.next() else {
        return errors.required(field, "must specify a volume type");
    };
    let at = field.child(name);
    match name {
        "hostPath" => {
            match schema::typed::<HostPathVolumeSource>(first) {
                Ok(source) => host_path(&source, &at, errors),
                // A source that cannot be parsed was not validated, so it is refused.
                Err(error) => errors.invalid(&at, "", &format!("it cannot be read: {error}")),
            }
        }
        "local" => {
            match text(first, "/path") {
                "" => errors.required(&at.child("path"), ""),
                path => file_path::no_steps_up(path, &at.child("path"), errors),
            }
            if !bound {
                let detail = "Local volume requires node affinity";
                errors.required(&field.child("nodeAffinity"), detail);
            }
        }
        "csi" => csi(first, &at, errors),
        _ => remote::check(name, first, field, errors),
    }
    for (name, _) in given {
        let name = if name == "cephfs" { "cephFS" } else { name };
        errors.forbidden(&field.child(name), "may not specify more than 1 volume type");
    }
}

fn csi(source: &Value, field: &Path<'_>, errors: &mut Errors) {
    csi_driver(text(source, "/driver"), &field.child("driver"), errors);
    if text(source, "/volumeHandle").is_empty() {
        errors.required(&field.child("volumeHandle"), "");
    }
    for name in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let Some(secret) = source.get(name).filter(|secret| secret.is_object()) else { continue };
        let field = field.child(name);
        match text(secret, "/name") {
            "" => errors.required(&field.child("name"), ""),
            name => errors.malformed(&field.child("name"), name, &format::dns_subdomain(name)),
        }
        match text(secret, "/namespace") {
            "" => errors.required(&field.child("namespace"), ""),
            name => errors.malformed(&field.child("namespace"), name, &format::dns_label(name)),
        }
    }
}

fn attributes_class(spec: &Value, field: &Path<'_>, errors: &mut Errors) {
    let Some(class) = spec.get("volumeAttributesClassName").and_then(Value::as_str) else { return };
    let at_class = field.child("volumeAttributesClassName");
    if class.is_empty() {
        errors.required(&at_class, "an empty string is disallowed");
    }
    claims::class_name(class, &at_class, errors);
    if spec.get("csi").is_none() {
        let detail = "has to be specified when using volumeAttributesClassName";
        errors.required(&field.child("csi"), detail);
    }
}

pub(super) fn volume_change(new: &Value, old: &Value, errors: &mut Errors) {
    let spec = Path::new("spec");
    // a secret for expansion may be added
    let (mut compared, before) = (sources_of(new), sources_of(old));
    let secret = "/csi/controllerExpandSecretRef";
    let given = |spec: &Value| spec.pointer(secret).is_some_and(Value::is_object);
    if before.get("csi").is_some_and(Value::is_object)
        && !given(&before)
        && given(&compared)
        && let Some(csi) = compared.get_mut("csi").and_then(Value::as_object_mut)
    {
        csi.remove("controllerExpandSecretRef");
    }
    let ty = Type::Struct("PersistentVolumeSpec");
    if !equal(&ty, &compared, &before) {
        let diff = unified(&sources_text(&before), &sources_text(&compared));
        let detail = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        errors.forbidden(&spec.child("persistentvolumesource"), &detail);
    }
    mode_is_kept(new, old, errors);
    let (now, before) = (new.pointer("/spec/nodeAffinity"), old.pointer("/spec/nodeAffinity"));
    let affinity = Type::Pointer(Box::new(Type::Struct("VolumeNodeAffinity")));
    let now = now.unwrap_or(&Value::Null);
    if let Some(before) = before.filter(|before| before.is_object())
        && !equal(&affinity, now, before)
    {
        let shown = Internal(affinity, now);
        let detail = "field is immutable, except for updating from beta label to GA";
        errors.invalid(&Path::new("nodeAffinity"), shown, detail);
    }
}

fn sources_of(object: &Value) -> Value {
    let spec = member(object, "spec");
    let given =
        SOURCES.into_iter().filter_map(|name| Some((name.to_owned(), spec.get(name)?.clone())));
    Value::Object(given.collect())
}

/// The sources alone, as the message shows them.
fn sources_text(sources: &Value) -> String {
    let all = pretty(&Type::Struct("PersistentVolumeSpec"), sources);
    let head = all.lines().skip_while(|line| !line.starts_with(" \"GCEPersistentDisk\""));
    let body: Vec<&str> = head.take_while(|line| !line.starts_with(" \"AccessModes\"")).collect();
    format!("{{\n{}\n}}", body.join("\n").trim_end_matches(','))
}

fn mode_is_kept(new: &Value, old: &Value, errors: &mut Errors) {
    let mode = |object: &Value| {
        object.pointer("/spec/volumeMode").and_then(Value::as_str).map(str::to_owned)
    };
    if mode(new) != mode(old) {
        let field = Path::new("volumeMode");
        match mode(new) {
            Some(mode) => errors.invalid(&field, &mode, "field is immutable"),
            None => errors.invalid(&field, Unset, "field is immutable"),
        }
    }
}

pub(super) fn claim(object: &Value, errors: &mut Errors) {
    let spec = schema::typed(member(object, "spec"));
    let spec: PersistentVolumeClaimSpec = spec.unwrap_or_default();
    claims::spec(&spec, &Path::new("spec"), errors);
}

/// A claim's spec is immutable, except that a bound claim may request more storage.
pub(super) fn claim_change(new: &Value, old: &Value, errors: &mut Errors) {
    let field = Path::new("spec");
    let (mut now, mut before) = (member(new, "spec").clone(), member(old, "spec").clone());
    if text(old, "/spec/volumeName").is_empty() {
        copy(&now, &mut before, "volumeName");
    }
    let class_of = |object: &Value| {
        let annotations = object.pointer("/metadata/annotations");
        annotations.and_then(|it| it.get(STORAGE_CLASS)).and_then(Value::as_str).map(str::to_owned)
    };
    if class_of(new) != class_of(old) {
        let metadata = Path::new("metadata");
        let given = class_of(new).unwrap_or_default();
        let field = metadata.child("annotations");
        errors.invalid(&field.child(STORAGE_CLASS), &given, "field is immutable");
    }
    let requested = |object: &Value| object.pointer("/spec/storageClassName").cloned();
    if requested(old).is_none() && class_of(old).is_none() {
        copy(&before, &mut now, "storageClassName");
    }
    if text(new, "/status/phase") == "Bound" {
        let size = before.pointer("/resources/requests/storage").cloned();
        if let (Some(size), Some(held)) = (size, now.pointer_mut("/resources/requests/storage")) {
            *held = size;
        }
        copy(&before, &mut now, "volumeAttributesClassName");
    }
    let ty = Type::Struct("PersistentVolumeClaimSpec");
    if !equal(&ty, &now, &before) {
        let diff = unified(&pretty(&ty, &before), &pretty(&ty, &now));
        let detail = format!(
            "spec is immutable after creation except resources.requests and \
             volumeAttributesClassName for bound claims\n{diff}"
        );
        errors.forbidden(&field, &detail);
    }
    let size = |object: &Value, pointer: &str| -> Quantity {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .and_then(|t| t.parse().ok())
            .unwrap_or_default()
    };
    let wanted = "/spec/resources/requests/storage";
    if size(new, wanted) < size(old, wanted)
        && size(new, wanted) <= size(old, "/status/capacity/storage")
    {
        let field = field.child("resources");
        let field = field.child("requests");
        errors.forbidden(&field.child("storage"), "field can not be less than status.capacity");
    }
    mode_is_kept(new, old, errors);
}

fn copy(from: &Value, to: &mut Value, name: &str) {
    if let Some(fields) = to.as_object_mut() {
        match from.get(name) {
            Some(value) => {
                fields.insert(name.to_owned(), value.clone());
            }
            None => {
                fields.remove(name);
            }
        }
    }
}

pub(super) fn claim_status(new: &Value, errors: &mut Errors) {
    if text(new, "/metadata/resourceVersion").is_empty() {
        errors.required(&Path::new("resourceVersion"), "");
    }
    let spec = Path::new("Spec");
    let modes = new.pointer("/spec/accessModes").and_then(Value::as_array);
    if modes.is_none_or(Vec::is_empty) {
        errors.required(&spec.child("accessModes"), "");
    }
    let status = Path::new("status");
    let field = status.child("capacity");
    let given = new.pointer("/status/capacity").cloned().unwrap_or_default();
    let given: BTreeMap<String, Quantity> = serde_json::from_value(given).unwrap_or_default();
    for (name, amount) in given.iter().filter(|(_, amount)| amount.is_negative()) {
        errors.invalid(&field.key(name), amount.value(), "must be a valid resource quantity");
    }
}
