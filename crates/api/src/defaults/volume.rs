//! Defaults of volumes.

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Volume, VolumeProjection};

use super::{apply_to_field_ref, pull_policy, set};

/// Files of a volume are readable by all and writable by their owner.
const FILE_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

pub(super) fn apply(volume: &mut Volume) {
    if *volume == (Volume { name: volume.name.clone(), ..Volume::default() }) {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(source) = &mut volume.host_path {
        source.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(FILE_MODE);
        let items = source.items.iter_mut().flatten();
        items.filter_map(|item| item.field_ref.as_mut()).for_each(apply_to_field_ref);
    }
    if let Some(source) = &mut volume.projected {
        source.default_mode.get_or_insert(FILE_MODE);
        source.sources.iter_mut().flatten().for_each(apply_to_projection);
    }
    if let Some(source) = &mut volume.image {
        pull_policy(&mut source.pull_policy, source.reference.as_deref());
    }
    if let Some(template) =
        volume.ephemeral.as_mut().and_then(|source| source.volume_claim_template.as_mut())
    {
        set(&mut template.spec.volume_mode, "Filesystem");
    }
    apply_to_remote(volume);
}

fn apply_to_projection(source: &mut VolumeProjection) {
    if let Some(token) = &mut source.service_account_token {
        token.expiration_seconds.get_or_insert(TOKEN_SECONDS);
    }
    if let Some(fields) = &mut source.downward_api {
        let items = fields.items.iter_mut().flatten();
        items.filter_map(|item| item.field_ref.as_mut()).for_each(apply_to_field_ref);
    }
}

/// Remote storage specified in the pod itself.
fn apply_to_remote(volume: &mut Volume) {
    if let Some(source) = &mut volume.iscsi {
        set(&mut source.iscsi_interface, "default");
    }
    if let Some(source) = &mut volume.rbd {
        set(&mut source.pool, "rbd");
        set(&mut source.user, "admin");
        set(&mut source.keyring, "/etc/ceph/keyring");
    }
    if let Some(source) = &mut volume.azure_disk {
        source.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
        source.fs_type.get_or_insert_with(|| "ext4".to_owned());
        source.read_only.get_or_insert(false);
        source.kind.get_or_insert_with(|| "Shared".to_owned());
    }
    if let Some(source) = &mut volume.scale_io {
        set(&mut source.storage_mode, "ThinProvisioned");
        set(&mut source.fs_type, "xfs");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_volume_source_gets_its_defaults() {
        for (given, want) in [
            (json!({}), json!({"emptyDir": {}})),
            (json!({"hostPath": {"path": "/x"}}), json!({"hostPath": {"path": "/x", "type": ""}})),
            (
                json!({"secret": {"secretName": "s"}}),
                json!({"secret": {"secretName": "s", "defaultMode": 420}}),
            ),
            (
                json!({"configMap": {"name": "c", "defaultMode": 0}}),
                json!({"configMap": {"name": "c", "defaultMode": 0}}),
            ),
            (
                json!({"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}),
                json!({"downwardAPI": {"defaultMode": 420, "items": [{"path": "l",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}}]}}),
            ),
            (
                json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
                json!({"projected": {"defaultMode": 420, "sources": [
                    {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}}),
            ),
            (
                json!({"image": {"reference": "a"}}),
                json!({"image": {"reference": "a", "pullPolicy": "Always"}}),
            ),
            (
                json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
                json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"volumeMode": "Filesystem"}}}}),
            ),
            (
                json!({"nfs": {"server": "s", "path": "/"}}),
                json!({"nfs": {"server": "s", "path": "/"}}),
            ),
        ] {
            let named = |source: &Value| {
                let mut volume = source.clone();
                volume["name"] = json!("v");
                volume
            };
            let mut volume: Volume = serde_json::from_value(named(&given)).unwrap();
            apply(&mut volume);
            assert_eq!(serde_json::to_value(&volume).unwrap(), named(&want), "{given}");
        }
    }
}
