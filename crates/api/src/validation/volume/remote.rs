//! Validation of remote volumes, provided by storage systems outside this node.
//!
//! Podwright mounts none of these, but a pod that names one is validated like any other, so that a
//! mistake is reported when the pod is created, not when it fails to start.

use serde_json::Value;

use super::super::field::Errors;
use super::super::{file_path, format};
use crate::schema::Path;

/// Required fields, by the name of the source.
const REQUIRED: &[(&str, &[&str])] = &[
    ("awsElasticBlockStore", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("azureFile", &["secretName", "shareName"]),
    ("cephfs", &["monitors"]),
    ("cinder", &["volumeID"]),
    ("flexVolume", &["driver"]),
    ("gcePersistentDisk", &["pdName"]),
    ("gitRepo", &["repository"]),
    ("glusterfs", &["endpoints", "path"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("nfs", &["server", "path"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("rbd", &["monitors", "image"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("storageos", &["volumeName"]),
    ("vsphereVolume", &["volumePath"]),
];

/// Validates a source by its JSON name; an unknown name is ignored.
pub fn check(name: &str, source: &Value, field: &Path<'_>, errors: &mut Errors) {
    // This source has another name in messages.
    let field = field.child(if name == "gcePersistentDisk" { "persistentDisk" } else { name });
    let required =
        REQUIRED.iter().find(|(known, _)| *known == name).map_or(&[][..], |entry| entry.1);
    for child in required {
        if is_empty(source.get(child)) {
            errors.required(&field.child(child), "");
        }
    }
    let text = |name: &str| source.get(name).and_then(Value::as_str).unwrap_or_default();
    match name {
        "awsElasticBlockStore" | "gcePersistentDisk" => {
            let partition = source.get("partition").and_then(Value::as_i64).unwrap_or(0);
            if !(0..=255).contains(&partition) {
                let detail = "must be between 1 and 255, inclusive";
                errors.invalid(&field.child("partition"), partition, detail);
            }
        }
        "gitRepo" => file_path::below(text("directory"), &field.child("directory"), errors),
        "nfs" if !file_path::is_absolute(text("path")) => {
            errors.invalid(&field.child("path"), text("path"), "must be an absolute path");
        }
        "iscsi" => iscsi(source, &field, errors),
        "fc" => fibre_channel(source, &field, errors),
        "flexVolume" => flex_options(source, &field, errors),
        "flocker" => match (text("datasetName"), text("datasetUUID")) {
            ("", "") => errors.required(&field, "one of datasetName and datasetUUID is required"),
            (name, "") if name.contains('/') => {
                errors.invalid(&field.child("datasetName"), name, "must not contain '/'");
            }
            (_, "") | ("", _) => {}
            _ => {
                let detail = "datasetName and datasetUUID can not be specified simultaneously";
                errors.invalid(&field, "resource", detail);
            }
        },
        "quobyte" => {
            let detail = "must be a host:port pair or multiple pairs separated by commas";
            let registry = text("registry");
            if registry.is_empty() {
                errors.required(&field.child("registry"), detail);
            } else if !registry.split(',').all(|pair| pair.rsplit_once(':').is_some()) {
                errors.invalid(&field.child("registry"), registry, detail);
            }
            if text("volume").is_empty() {
                errors.required(&field.child("volume"), "");
            }
        }
        "storageos" => {
            for name in ["volumeName", "volumeNamespace"] {
                let value = text(name);
                if !value.is_empty() {
                    errors.malformed(&field.child(name), value, &format::dns_label(value));
                }
            }
        }
        _ => {}
    }
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

fn iscsi(source: &Value, field: &Path<'_>, errors: &mut Errors) {
    let iqn = source.get("iqn").and_then(Value::as_str).unwrap_or_default();
    if !iqn.is_empty() && !["iqn", "eui", "naa"].iter().any(|prefix| iqn.starts_with(prefix)) {
        let detail = "must be valid format starting with iqn, eui, or naa";
        errors.invalid(&field.child("iqn"), iqn, detail);
    }
    let lun = source.get("lun").and_then(Value::as_i64).unwrap_or(0);
    errors.malformed(&field.child("lun"), lun, &format::in_range(lun, 0, 255));
    let set = |name: &str| source.get(name).and_then(Value::as_bool) == Some(true);
    if (set("chapAuthDiscovery") || set("chapAuthSession")) && is_empty(source.get("secretRef")) {
        errors.required(&field.child("secretRef"), "");
    }
}

fn fibre_channel(source: &Value, field: &Path<'_>, errors: &mut Errors) {
    let names = source.get("targetWWNs").filter(|names| !is_empty(Some(names)));
    let ids = source.get("wwids").filter(|ids| !is_empty(Some(ids)));
    let at_names = field.child("targetWWNs");
    match (names, ids) {
        (None, None) => {
            errors.required(&at_names, "must specify either targetWWNs or wwids, but not both");
        }
        (Some(names), Some(_)) => {
            let names: Vec<String> = serde_json::from_value(names.clone()).unwrap_or_default();
            let detail = "targetWWNs and wwids can not be specified simultaneously";
            errors.invalid(&at_names, names.as_slice(), detail);
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
    if names.is_some() {
        match source.get("lun").and_then(Value::as_i64) {
            None => {
                let detail = "lun is required if targetWWNs is specified";
                errors.required(&field.child("lun"), detail);
            }
            Some(lun) => {
                errors.malformed(&field.child("lun"), lun, &format::in_range(lun, 0, 255));
            }
        }
    }
}

/// Option names in Kubernetes' own domains are reserved.
fn flex_options(source: &Value, field: &Path<'_>, errors: &mut Errors) {
    let field = field.child("options");
    for key in source.get("options").and_then(Value::as_object).into_iter().flat_map(|o| o.keys()) {
        let domain = format!(".{}", key.split('/').next().unwrap_or(key).to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.invalid(&field.key(key), key, detail);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn missing_fields_are_named() {
        for (name, source, want) in [
            ("nfs", json!({"server": "s", "path": "/x"}), vec![]),
            (
                "nfs",
                json!({}),
                vec![
                    "v.nfs.server: Required value",
                    "v.nfs.path: Required value",
                    "v.nfs.path: Invalid value: \"\": must be an absolute path",
                ],
            ),
            ("gcePersistentDisk", json!({}), vec!["v.persistentDisk.pdName: Required value"]),
            (
                "iscsi",
                json!({"targetPortal": "p", "iqn": "x", "lun": 256, "chapAuthSession": true}),
                vec![
                    "v.iscsi.iqn: Invalid value: \"x\": must be valid format starting with iqn, eui, or naa",
                    "v.iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive",
                    "v.iscsi.secretRef: Required value",
                ],
            ),
            (
                "fc",
                json!({"targetWWNs": ["a"], "wwids": ["b"]}),
                vec![
                    "v.fc.targetWWNs: Invalid value: [\"a\"]: targetWWNs and wwids can not be specified simultaneously",
                    "v.fc.lun: Required value: lun is required if targetWWNs is specified",
                ],
            ),
            (
                "flexVolume",
                json!({"driver": "d", "options": {"k8s.io/x": "y"}}),
                vec![
                    "v.flexVolume.options[k8s.io/x]: Invalid value: \"k8s.io/x\": kubernetes.io and k8s.io namespaces are reserved",
                ],
            ),
            ("emptyDir", json!({}), vec![]),
        ] {
            let mut errors = Errors::new();
            check(name, &source, &Path::new("v"), &mut errors);
            let got: Vec<String> = errors.into_vec().iter().map(ToString::to_string).collect();
            assert_eq!(got, want, "{name} {source}");
        }
    }
}
