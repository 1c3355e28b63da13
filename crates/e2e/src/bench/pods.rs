//! Measured pods: one container that starts immediately and exits on SIGTERM.

use std::path::Path;

use serde_json::{Value, json};

pub(super) const IMAGE: &str = "localhost/podwright/test:latest";
pub(super) const NAMESPACE: &str = "default";
pub(super) const COMMAND: [&str; 2] = ["testserver", "serve"];

/// Rounds per batch. A batch of a second or two varies by a third between rounds; the median is
/// stable.
pub(super) fn rounds(pods: usize) -> usize {
    if pods < 50 { 5 } else { 1 }
}

/// Serves until it is stopped.
pub(super) fn plain(name: &str, node: &str) -> Value {
    pod(name, node, json!({ "command": COMMAND }), &json!([]), "Always")
}

/// Exits as soon as `end` exists in `directory`.
pub(super) fn that_ends(name: &str, node: &str, directory: &Path) -> Value {
    let container = json!({
        "command": ["sh", "-c", "until [ -e /sign/end ]; do sleep 0.01; done"],
        "volumeMounts": [{ "name": "sign", "mountPath": "/sign" }],
    });
    let volumes = json!([{ "name": "sign", "hostPath": { "path": directory } }]);
    pod(name, node, container, &volumes, "Never")
}

/// Mounts a ConfigMap in its volume `words`.
pub(super) fn that_reads(name: &str, node: &str, config_map: &str) -> Value {
    let container = json!({
        "command": COMMAND,
        "volumeMounts": [{ "name": "words", "mountPath": "/words" }],
    });
    let volumes = json!([{ "name": "words", "configMap": { "name": config_map } }]);
    pod(name, node, container, &volumes, "Always")
}

fn pod(name: &str, node: &str, mut container: Value, volumes: &Value, restart: &str) -> Value {
    if let Value::Object(container) = &mut container {
        container.insert("name".to_owned(), json!("app"));
        container.insert("image".to_owned(), json!(IMAGE));
        container.insert("imagePullPolicy".to_owned(), json!("IfNotPresent"));
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 30,
            "restartPolicy": restart,
            "volumes": volumes,
            "containers": [container],
        },
    })
}
