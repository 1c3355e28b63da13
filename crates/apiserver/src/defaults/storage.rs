//! Defaults of persistent volumes and claims.

use serde_json::{Value, json};

use super::{put, set};

pub(super) fn volume(volume: &mut Value) {
    set(volume, "/status/phase", || json!("Pending"));
    set(volume, "/spec/persistentVolumeReclaimPolicy", || json!("Retain"));
    set(volume, "/spec/volumeMode", || json!("Filesystem"));
    let has = |volume: &Value, source: &str| {
        volume.pointer(&format!("/spec/{source}")).is_some_and(Value::is_object)
    };
    if has(volume, "hostPath") {
        set(volume, "/spec/hostPath/type", || json!(""));
    }
    for (source, field, value) in [
        ("iscsi", "iscsiInterface", json!("default")),
        ("rbd", "pool", json!("rbd")),
        ("rbd", "user", json!("admin")),
        ("rbd", "keyring", json!("/etc/ceph/keyring")),
        ("azureDisk", "cachingMode", json!("ReadWrite")),
        ("azureDisk", "fsType", json!("ext4")),
        ("azureDisk", "readOnly", json!(false)),
        ("azureDisk", "kind", json!("Shared")),
        ("scaleIO", "storageMode", json!("ThinProvisioned")),
        ("scaleIO", "fsType", json!("xfs")),
    ] {
        if has(volume, source) {
            set(volume, &format!("/spec/{source}/{field}"), || value);
        }
    }
}

pub(super) fn claim(claim: &mut Value) {
    set(claim, "/status/phase", || json!("Pending"));
    set(claim, "/spec/volumeMode", || json!("Filesystem"));
    data_sources(claim);
}

/// The old and the new field of the data source are kept equal, unless it is in another namespace.
fn data_sources(claim: &mut Value) {
    let old = claim.pointer("/spec/dataSource").filter(|it| it.is_object()).cloned();
    let new = claim.pointer("/spec/dataSourceRef").filter(|it| it.is_object()).cloned();
    let elsewhere = new
        .as_ref()
        .and_then(|new| new.get("namespace"))
        .and_then(Value::as_str)
        .is_some_and(|namespace| !namespace.is_empty());
    match (old, new) {
        _ if elsewhere => {}
        (Some(old), None) => put(claim, "/spec/dataSourceRef", old),
        (None, Some(new)) => put(claim, "/spec/dataSource", new),
        (Some(_), Some(_)) | (None, None) => {}
    }
}
