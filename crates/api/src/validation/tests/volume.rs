//! Tests of volume and mount validation.

use serde_json::{Value, json};

use super::{check, merge, of_container, of_spec};

#[test]
fn volumes() {
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        merge(&mut volume, &source);
        json!({"volumes": [volume]})
    };
    check(
        &[
            (
                json!({"volumes": [{"name": "v"}, {"name": "v"}]}),
                &["spec.volumes[1].name: Duplicate value: \"v\""],
            ),
            (
                volume(json!({"hostPath": {"path": ""}})),
                &["spec.volumes[0].hostPath.path: Required value"],
            ),
            (
                volume(json!({"hostPath": {"path": "/a/../b", "type": "Link"}})),
                &[
                    "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
                    "spec.volumes[0].hostPath.type: Unsupported value: \"Link\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
                ],
            ),
            (
                volume(json!({"emptyDir": {}, "hostPath": {"path": ""}})),
                &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
            ),
            (
                volume(json!({"nfs": {"server": "s", "path": "/"}, "configMap": {}})),
                &["spec.volumes[0].configMap: Forbidden: may not specify more than 1 volume type"],
            ),
            (
                volume(
                    json!({"secret": {"defaultMode": 512, "items": [{"key": "", "path": "/x", "mode": -1}]}}),
                ),
                &[
                    "spec.volumes[0].secret.secretName: Required value",
                    "spec.volumes[0].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
                    "spec.volumes[0].secret.items[0].key: Required value",
                    "spec.volumes[0].secret.items[0].path: Invalid value: \"/x\": must be a relative path",
                    "spec.volumes[0].secret.items[0].mode: Invalid value: -1: must be a number between 0 and 0777 (octal), both inclusive",
                ],
            ),
            (
                volume(json!({"configMap": {"name": "m", "items": [{"key": "k", "path": "..a"}]}})),
                &[
                    "spec.volumes[0].configMap.items[0].path: Invalid value: \"..a\": must not start with '..'",
                ],
            ),
            (
                volume(
                    json!({"downwardAPI": {"items": [{"path": "a"}, {"path": "b", "resourceFieldRef": {"resource": "limits.cpu"}}]}}),
                ),
                &[
                    "spec.volumes[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
                    "spec.volumes[0].downwardAPI.resourceFieldRef.containerName: Required value",
                ],
            ),
            (
                json!({"serviceAccountName": "a", "volumes": [{"name": "v", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "t", "expirationSeconds": 5}},
                    {"secret": {"name": "s", "items": [{"key": "k", "path": "p"}]}, "configMap": {"name": "m", "items": [{"key": "k", "path": "p"}]}}]}}]}),
                &[
                    "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
                    "spec.volumes[0].projected: Invalid value: \"m\": conflicting duplicate paths",
                    "spec.volumes[0].projected.sources[1]: Forbidden: may not specify more than 1 volume type per source",
                ],
            ),
            (
                json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
                &[
                    "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
                ],
            ),
            (
                volume(json!({"persistentVolumeClaim": {}})),
                &["spec.volumes[0].persistentVolumeClaim.claimName: Required value"],
            ),
            (
                volume(json!({"csi": {"driver": ""}})),
                &["spec.volumes[0].csi.driver: Required value"],
            ),
            (volume(json!({"image": {}})), &["spec.volumes[0].image.reference: Required value"]),
            (
                volume(json!({"emptyDir": {"sizeLimit": "-1"}})),
                &[
                    "spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
                ],
            ),
            (
                volume(
                    json!({"ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "x"}, "spec": {"accessModes": ["ReadWriteOnce", "x"]}}}}),
                ),
                &[
                    "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set",
                    "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes: Unsupported value: \"x\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
                    "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value",
                ],
            ),
        ],
        of_spec,
    );
}

#[test]
fn mounts() {
    let mount = |extra: Value| {
        let mut mount = json!({"name": "v", "mountPath": "/v"});
        merge(&mut mount, &extra);
        json!({"volumes": [{"name": "v", "emptyDir": {}}],
               "containers": [{"name": "c", "image": "a", "volumeMounts": [mount]}]})
    };
    check(
        &[
            (mount(json!({})), &[]),
            (
                mount(json!({"mountPath": ""})),
                &["spec.containers[0].volumeMounts[0].mountPath: Required value"],
            ),
            (
                mount(json!({"subPath": "/x", "subPathExpr": "y"})),
                &[
                    "spec.containers[0].volumeMounts.subPath: Invalid value: \"/x\": must be a relative path",
                    "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: \"y\": subPathExpr and subPath are mutually exclusive",
                ],
            ),
            (
                mount(json!({"mountPropagation": "Bidirectional"})),
                &[
                    "spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
                ],
            ),
            (
                mount(json!({"recursiveReadOnly": "Enabled"})),
                &[
                    "spec.containers[0].volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
                ],
            ),
        ],
        of_spec,
    );
    assert_eq!(
        of_container(&json!({"volumeDevices": [{"name": "x", "devicePath": "/d/../e"}]})),
        [
            "spec.containers[0].volumeDevices[0].name: Not found: \"x\"",
            "spec.containers[0].volumeDevices[0].devicePath: Invalid value: \"/d/../e\": can not contain backsteps ('..')",
        ]
    );
}
