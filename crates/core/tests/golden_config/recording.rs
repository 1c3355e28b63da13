//! A recording: posted objects, patches, and the requests of upstream.

use std::path::Path;

use k8s_openapi::api::core::v1;
use podwright_api::defaults;
use podwright_core::pod::features::PodFeatures;
use podwright_core::pod::manifest::{self, Origin};
use podwright_core::pod::{Pod, Source};
use serde_json::{Value, json};

pub(crate) const NODE: &str = "node1";
/// Replaces every `<uid>`; cgroup names must not contain angle brackets.
pub(crate) const UID: &str = "11111111-2222-3333-4444-555555555555";

pub(crate) struct Recording {
    pub(crate) name: String,
    value: Value,
}

impl Recording {
    pub(crate) fn read(path: &Path) -> Self {
        let value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        Self { name: value["case"].as_str().unwrap().to_owned(), value }
    }

    /// Method and request of every call, including those during deletion.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (&str, &Value)> {
        let running = self.value["cri"].as_array().into_iter().flatten();
        let ending = self.value["on_delete"]["cri"].as_array().into_iter().flatten();
        running.chain(ending).map(|call| (call["method"].as_str().unwrap(), &call["request"]))
    }

    /// Containers that upstream could not configure, and the error message.
    pub(crate) fn config_errors(&self) -> Vec<(String, String)> {
        let statuses = self.value["status"]["containerStatuses"].as_array().into_iter().flatten();
        statuses
            .filter(|status| status["state"]["waiting"]["reason"] == "CreateContainerConfigError")
            .map(|status| {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                (text(&status["name"]), text(&status["state"]["waiting"]["message"]))
            })
            .collect()
    }

    pub(crate) fn objects(&self, kind: &str) -> impl Iterator<Item = &Value> {
        let objects = self.value["objects"].as_array().unwrap().iter();
        objects.filter(move |object| object["kind"] == kind)
    }

    pub(crate) fn has_patches(&self) -> bool {
        self.value["then"].as_array().is_some_and(|patches| !patches.is_empty())
    }

    pub(crate) fn pod_before_patches(&self) -> Pod {
        let posted = self.objects("Pod").next().unwrap();
        if self.name == "static" {
            return from_manifest(posted);
        }
        from_api(posted.clone())
    }

    pub(crate) fn pod_after_patches(&self) -> Pod {
        let mut object = self.objects("Pod").next().unwrap().clone();
        for patch in self.value["then"].as_array().unwrap() {
            merge(&mut object, &patch["body"]);
        }
        from_api(object)
    }

    /// The pod at the time of a container's creation: later attempts and added containers follow
    /// from the patches.
    pub(crate) fn pod_when_creating(&self, config: &Value) -> Pod {
        let before = self.pod_before_patches();
        let name = config["metadata"]["name"].as_str().unwrap();
        let patched = !self.value["then"].as_array().unwrap().is_empty();
        let again = config["metadata"]["attempt"].as_u64().is_some();
        if patched && (again || before.container(name).is_none()) {
            return self.pod_after_patches();
        }
        before
    }
}

/// A pod as the API server sends it to its node.
fn from_api(mut object: Value) -> Pod {
    let meta = &mut object["metadata"];
    meta["namespace"] = json!("default");
    meta["uid"] = json!(UID);
    meta["annotations"]["kubernetes.io/config.source"] = json!("api");
    meta["annotations"]["kubernetes.io/config.seen"] = json!("<time>");
    mount_token(&mut object["spec"]);
    let mut pod: v1::Pod = serde_json::from_value(object).unwrap();
    defaults::apply(&mut pod);
    Pod::parse(pod, Source::Api).unwrap()
}

/// The API server's admission, unless `automountServiceAccountToken` is false.
fn mount_token(spec: &mut Value) {
    spec["serviceAccountName"] = json!("default");
    if spec["automountServiceAccountToken"] == json!(false) {
        return;
    }
    let name = "kube-api-access-<rand>";
    push(&mut spec["volumes"], json!({"name": name, "projected": {"sources": []}}));
    for container in spec["containers"].as_array_mut().unwrap() {
        let path = "/var/run/secrets/kubernetes.io/serviceaccount";
        let mount = json!({"name": name, "readOnly": true, "mountPath": path});
        push(&mut container["volumeMounts"], mount);
    }
}

fn push(list: &mut Value, item: Value) {
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut().unwrap().push(item);
}

fn from_manifest(object: &Value) -> Pod {
    let origin = Origin {
        source: Source::File,
        location: "/manifests/static.json",
        node: NODE,
        features: PodFeatures::DEFAULT,
    };
    let mut pod = manifest::pod(&object.to_string(), origin).unwrap();
    let meta = &mut pod.metadata;
    let own_uid = meta.uid.replace(UID.to_owned()).unwrap();
    let annotations = meta.annotations.get_or_insert_default();
    for value in annotations.values_mut().filter(|value| **value == own_uid) {
        value.replace_range(.., UID); // the manifest hash is the UID
    }
    let source = [("config.source", "file"), ("config.seen", "<time>")];
    annotations.extend(source.map(|(key, value)| (format!("kubernetes.io/{key}"), value.into())));
    Pod::parse(pod, Source::File).unwrap()
}

/// A strategic merge as far as the recordings need it: lists of named elements merge by name.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(patch)) => {
            for item in patch {
                match into.iter_mut().find(|known| known["name"] == item["name"]) {
                    Some(known) => merge(known, item),
                    None => into.push(item.clone()),
                }
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}
