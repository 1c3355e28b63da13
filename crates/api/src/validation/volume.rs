//! Validation of volumes.

mod projected;
pub mod remote;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    CSIVolumeSource, DownwardAPIVolumeFile, EphemeralVolumeSource, HostPathVolumeSource, KeyToPath,
    Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::env::{self, Target};
use super::field::{Errors, quote};
use super::mount::Volumes;
use super::{claim, container, file_path, format, text};
use crate::quantity::Quantity;
use crate::schema::Path;

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// Validates the volumes and returns the valid ones.
pub(super) fn check<'a>(
    volumes: &'a [Volume],
    meta: &ObjectMeta,
    field: &Path<'_>,
    errors: &mut Errors,
) -> Volumes<'a> {
    let mut sound = Volumes::new();
    let mut names = BTreeSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = field.index(index);
        let at_name = field.child("name");
        let mut wrong = Errors::new();
        source(volume, meta, &field, &mut wrong);
        let name = volume.name.as_str();
        match name {
            "" => wrong.required(&at_name, ""),
            name => wrong.malformed(&at_name, name, &format::dns_label(name)),
        }
        if names.contains(name) {
            wrong.duplicate(&at_name, name);
        }
        if wrong.is_empty() {
            names.insert(name);
            sound.insert(name, volume);
        }
        errors.append(wrong);
        claim_is_not_made_for_this_pod(volume, volumes, meta, &field, errors);
    }
    sound
}

/// The claim of an ephemeral volume is named after its pod and owned by it.
fn claim_is_not_made_for_this_pod(
    volume: &Volume,
    all: &[Volume],
    meta: &ObjectMeta,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(claim) = &volume.persistent_volume_claim else { return };
    let pod = text(&meta.name);
    let made = |other: &Volume| {
        other.ephemeral.is_some() && format!("{pod}-{}", other.name) == claim.claim_name
    };
    if !pod.is_empty() && all.iter().any(made) {
        let field = field.child("persistentVolumeClaim");
        let detail = "must not reference a PVC that gets created for an ephemeral volume";
        errors.invalid(&field.child("claimName"), &claim.claim_name, detail);
    }
}

/// Sources in the order of checks: the first one is validated, any further one is refused.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

fn source(volume: &Volume, meta: &ObjectMeta, field: &Path<'_>, errors: &mut Errors) {
    let written = serde_json::to_value(volume).unwrap_or(Value::Null);
    let mut given = SOURCES
        .into_iter()
        .filter_map(|name| Some((name, written.get(name).filter(|source| !source.is_null())?)));
    let Some((name, first)) = given.next() else {
        return errors.required(field, "must specify a volume type");
    };
    local(name, volume, meta, field, errors);
    remote::check(name, first, field, errors);
    for (name, _) in given {
        // Two of the names are misspelt upstream.
        let name = match name {
            "cephfs" => "cephFS",
            "downwardAPI" => "downwarAPI",
            name => name,
        };
        errors.forbidden(&field.child(name), "may not specify more than 1 volume type");
    }
}

/// Sources that this node mounts itself.
fn local(name: &str, volume: &Volume, meta: &ObjectMeta, field: &Path<'_>, errors: &mut Errors) {
    let at = field.child(name);
    match name {
        "emptyDir" => {
            let limit = volume.empty_dir.as_ref().and_then(|source| source.size_limit.as_ref());
            let limit = limit.and_then(|limit| Quantity::try_from(limit).ok());
            if limit.is_some_and(Quantity::is_negative) {
                let detail = "SizeLimit field must be a valid resource quantity";
                errors.forbidden(&at.child("sizeLimit"), detail);
            }
        }
        "hostPath" => volume.host_path.iter().for_each(|source| host_path(source, &at, errors)),
        "secret" => volume.secret.iter().for_each(|source| {
            if text(&source.secret_name).is_empty() {
                errors.required(&at.child("secretName"), "");
            }
            file_path::mode(source.default_mode, &at.child("defaultMode"), errors);
            keys(source.items.as_deref(), &at.child("items"), errors);
        }),
        "persistentVolumeClaim" => volume.persistent_volume_claim.iter().for_each(|source| {
            if source.claim_name.is_empty() {
                errors.required(&at.child("claimName"), "");
            }
        }),
        "downwardAPI" => volume.downward_api.iter().for_each(|source| {
            file_path::mode(source.default_mode, &at.child("defaultMode"), errors);
            for file in source.items.iter().flatten() {
                downward_file(file, &at, errors);
            }
        }),
        "configMap" => volume.config_map.iter().for_each(|source| {
            if source.name.is_empty() {
                errors.required(&at.child("name"), "");
            }
            file_path::mode(source.default_mode, &at.child("defaultMode"), errors);
            keys(source.items.as_deref(), &at.child("items"), errors);
        }),
        "projected" => {
            volume.projected.iter().for_each(|source| projected::check(source, &at, errors));
        }
        "csi" => volume.csi.iter().for_each(|source| csi(source, &at, errors)),
        "ephemeral" => {
            let source = volume.ephemeral.iter();
            source.for_each(|source| ephemeral(source, volume, meta, field, errors));
        }
        "image" => volume.image.iter().for_each(|source| {
            if text(&source.reference).is_empty() {
                errors.required(&at.child("reference"), "");
            }
            container::pull_policy(text(&source.pull_policy), &at.child("pullPolicy"), errors);
        }),
        _ => {}
    }
}

pub fn host_path(source: &HostPathVolumeSource, field: &Path<'_>, errors: &mut Errors) {
    if source.path.is_empty() {
        return errors.required(&field.child("path"), "");
    }
    file_path::no_steps_up(&source.path, &field.child("path"), errors);
    if let Some(kind) = source.type_.as_deref().filter(|kind| !HOST_PATH_TYPES.contains(kind)) {
        errors.not_supported(&field.child("type"), kind, &HOST_PATH_TYPES);
    }
}

fn keys(items: Option<&[KeyToPath]>, field: &Path<'_>, errors: &mut Errors) {
    for (index, item) in items.into_iter().flatten().enumerate() {
        key(item, &field.index(index), errors);
    }
}

fn key(item: &KeyToPath, field: &Path<'_>, errors: &mut Errors) {
    if item.key.is_empty() {
        errors.required(&field.child("key"), "");
    }
    if item.path.is_empty() {
        errors.required(&field.child("path"), "");
    }
    file_path::below_and_free(&item.path, &field.child("path"), errors);
    file_path::mode(item.mode, &field.child("mode"), errors);
}

fn downward_file(file: &DownwardAPIVolumeFile, field: &Path<'_>, errors: &mut Errors) {
    if file.path.is_empty() {
        errors.required(&field.child("path"), "");
    }
    file_path::below_and_free(&file.path, &field.child("path"), errors);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(selector), other) => {
            env::field_ref(selector, Target::File, &field.child("fieldRef"), errors);
            if other.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(field, "resource", detail);
            }
        }
        (None, Some(selector)) => {
            let field = field.child("resourceFieldRef");
            env::resource_ref(selector, Target::File, &field, errors);
        }
        (None, None) => errors.required(field, "one of fieldRef and resourceFieldRef is required"),
    }
    file_path::mode(file.mode, &field.child("mode"), errors);
}

fn csi(source: &CSIVolumeSource, field: &Path<'_>, errors: &mut Errors) {
    csi_driver(&source.driver, &field.child("driver"), errors);
    match source.node_publish_secret_ref.as_ref().map(|secret| secret.name.as_str()) {
        None => {}
        Some("") => errors.required(&field.child("nodePublishSecretRef").child("name"), ""),
        Some(name) => errors.malformed(&field.child("name"), name, &format::dns_subdomain(name)),
    }
}

pub fn csi_driver(name: &str, field: &Path<'_>, errors: &mut Errors) {
    if name.is_empty() {
        return errors.required(field, "");
    }
    if name.len() > 63 {
        errors.too_long(field, 63);
    }
    errors.malformed(field, name, &format::dns_subdomain(&name.to_lowercase()));
}

fn ephemeral(
    source: &EphemeralVolumeSource,
    volume: &Volume,
    meta: &ObjectMeta,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let at_source = field.child("ephemeral");
    let at_template = at_source.child("volumeClaimTemplate");
    match &source.volume_claim_template {
        None => errors.required(&at_template, ""),
        Some(template) => {
            claim::template(template, &at_template, errors);
        }
    }
    let pod = text(&meta.name);
    if !pod.is_empty() && !volume.name.is_empty() {
        let name = format!("{pod}-{}", volume.name);
        for problem in format::dns_subdomain(&name) {
            let detail = format!("PVC name {}: {problem}", quote(&name));
            errors.invalid(&field.child("name"), &volume.name, &detail);
        }
    }
}
