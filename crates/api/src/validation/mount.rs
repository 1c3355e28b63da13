//! Validation of volume mounts and block devices of containers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};

use super::field::Errors;
use super::{file_path, text};
use crate::schema::Path;

/// The valid volumes of the pod.
pub(super) type Volumes<'a> = BTreeMap<&'a str, &'a Volume>;

pub(super) fn check(
    container: &Container,
    volumes: &Volumes<'_>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    mounts(container, volumes, &field.child("volumeMounts"), errors);
    devices(container, volumes, &field.child("volumeDevices"), errors);
}

fn mounts(container: &Container, volumes: &Volumes<'_>, field: &Path<'_>, errors: &mut Errors) {
    let devices = container.volume_devices.as_deref().unwrap_or_default();
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = field.index(index);
        let (name, path) = (mount.name.as_str(), mount.mount_path.as_str());
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        if !volumes.contains_key(name) {
            errors.not_found(&at.child("name"), name, "");
        }
        if path.is_empty() {
            errors.required(&at.child("mountPath"), "");
        }
        if !paths.insert(path) {
            errors.invalid(&at.child("mountPath"), path, "must be unique");
        }
        if devices.iter().any(|device| device.name == name) {
            errors.invalid(&at.child("name"), name, "must not already exist in volumeDevices");
        }
        if devices.iter().any(|device| device.device_path == path) {
            let detail = "must not already exist as a path in volumeDevices";
            errors.invalid(&at.child("mountPath"), path, detail);
        }
        // The path is that of the list, not of its element, as in the API server.
        let (sub_path, expression) = (text(&mount.sub_path), text(&mount.sub_path_expr));
        if !sub_path.is_empty() {
            file_path::below(sub_path, &field.child("subPath"), errors);
        }
        if !expression.is_empty() {
            if !sub_path.is_empty() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                errors.invalid(&at.child("subPathExpr"), expression, detail);
            }
            file_path::below(expression, &field.child("subPathExpr"), errors);
        }
        propagation(mount, container, &field.child("mountPropagation"), errors);
        recursive_read_only(mount, &field.child("recursiveReadOnly"), errors);
    }
}

fn propagation(mount: &VolumeMount, container: &Container, field: &Path<'_>, errors: &mut Errors) {
    let privileged = container.security_context.as_ref().and_then(|context| context.privileged);
    match mount.mount_propagation.as_deref() {
        None | Some("HostToContainer" | "None") => {}
        Some("Bidirectional") if privileged == Some(true) => {}
        Some("Bidirectional") => {
            let detail =
                "Bidirectional mount propagation is available only to privileged containers";
            errors.forbidden(field, detail);
        }
        Some(other) => {
            errors.not_supported(field, other, &["Bidirectional", "HostToContainer", "None"]);
        }
    }
}

fn recursive_read_only(mount: &VolumeMount, field: &Path<'_>, errors: &mut Errors) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.forbidden(field, "may only be specified when readOnly is true");
            }
            if mount.mount_propagation.as_deref().is_some_and(|mode| mode != "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(field, detail);
            }
        }
        Some(other) => errors.not_supported(field, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

fn devices(container: &Container, volumes: &Volumes<'_>, field: &Path<'_>, errors: &mut Errors) {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let at = field.index(index);
        let (name, path) = (device.name.as_str(), device.device_path.as_str());
        let (at_name, at_path) = (at.child("name"), at.child("devicePath"));
        if name.is_empty() {
            errors.required(&at_name, "");
        }
        if names.contains(name) {
            errors.invalid(&at_name, name, "must be unique");
        }
        match volumes.get(name) {
            Some(volume)
                if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() =>
            {
                let detail = "can only use volume source type of PersistentVolumeClaim or \
                              Ephemeral for block mode";
                errors.invalid(&at_name, name, detail);
            }
            Some(_) => {}
            None => errors.not_found(&at_name, name, ""),
        }
        if path.is_empty() {
            errors.required(&at_path, "");
        }
        if paths.contains(path) {
            errors.invalid(&at_path, path, "must be unique");
        }
        if file_path::steps_up(path) {
            errors.invalid(&at_path, path, "can not contain backsteps ('..')");
        } else {
            paths.insert(path);
        }
        if mounts.iter().any(|mount| mount.name == name) {
            errors.invalid(&at_name, name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|mount| mount.mount_path == path) {
            errors.invalid(&at_path, path, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
