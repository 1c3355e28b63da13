//! Defaulting of API objects.
//!
//! The object is returned in canonical form (`podwright_api::schema`) with the defaults of
//! kube-apiserver v1.36. Defaulting is idempotent and applied to every object that a client sends,
//! new or changed. What applies to new objects only is in `on_create`.

mod pod;
mod storage;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use podwright_api::schema;
use serde_json::{Map, Value, json};

use crate::registry::Resource;

pub fn apply(resource: &Resource, object: &mut Value) {
    if !object.is_object() || !canonical(resource, object) {
        return; // wrong type: refused by decoding
    }
    match resource.storage {
        "pods" => pod::apply(object),
        "nodes" => node(object),
        "namespaces" => namespace(object),
        "secrets" => secret(object),
        "persistentvolumes" => storage::volume(object),
        "persistentvolumeclaims" => storage::claim(object),
        "services" => service(object),
        "rolebindings" | "clusterrolebindings" => binding(object),
        "priorityclasses" => set(object, "/preemptionPolicy", || json!("PreemptLowerPriority")),
        _ => {}
    }
    canonical(resource, object);
}

/// Values derived once from a new object, after its status was set and before it is validated.
pub fn on_create(resource: &Resource, object: &mut Value) {
    if resource.storage == "pods" {
        pod::on_create(object);
        canonical(resource, object);
    }
}

fn canonical(resource: &Resource, object: &mut Value) -> bool {
    let Some(shape) = schema::kind(resource.group, resource.kind) else { return false };
    match schema::decode(shape, object) {
        Ok(decoded) => {
            *object = decoded.value;
            true
        }
        Err(_) => false,
    }
}

/// Allocatable defaults to capacity.
fn node(node: &mut Value) {
    if let Some(capacity) = node.pointer("/status/capacity").cloned() {
        set(node, "/status/allocatable", || capacity);
    }
    pair(node, "/spec/podCIDR", "/spec/podCIDRs");
}

/// The first element of a list has its own field, which takes precedence: old clients set only
/// that.
fn pair(object: &mut Value, one: &str, many: &str) {
    let first = object.pointer(many).and_then(|list| list.get(0)).cloned();
    match object.pointer(one).cloned() {
        Some(given) if first.as_ref() != Some(&given) => put(object, many, json!([given])),
        Some(_) => {}
        None => {
            if let Some(first) = first {
                put(object, one, first);
            }
        }
    }
}

/// Adds the label by which a namespace can be selected by name.
fn namespace(namespace: &mut Value) {
    if let Some(name) = namespace.pointer("/metadata/name").cloned() {
        put(namespace, "/metadata/labels", {
            let mut labels = namespace.pointer("/metadata/labels").cloned().unwrap_or(json!({}));
            if let Some(labels) = labels.as_object_mut() {
                labels.insert("kubernetes.io/metadata.name".to_owned(), name);
            }
            labels
        });
    }
    set(namespace, "/status/phase", || json!("Active"));
}

/// `stringData` is write-only: it is merged into `data`.
fn secret(secret: &mut Value) {
    let Some(fields) = secret.as_object_mut() else { return };
    if let Some(Value::Object(texts)) = fields.remove("stringData") {
        let data = fields.entry("data").or_insert_with(|| Value::Object(Map::new()));
        if let Some(data) = data.as_object_mut() {
            for (key, text) in texts {
                let bytes = text.as_str().unwrap_or_default();
                data.insert(key, STANDARD.encode(bytes).into());
            }
        }
    }
    set(secret, "/type", || json!("Opaque"));
}

fn service(service: &mut Value) {
    set(service, "/spec/sessionAffinity", || json!("None"));
    set(service, "/spec/type", || json!("ClusterIP"));
    match service.pointer("/spec/sessionAffinity").and_then(Value::as_str) {
        Some("ClientIP") => {
            set(
                service,
                "/spec/sessionAffinityConfig",
                || json!({"clientIP": {"timeoutSeconds": 10_800}}),
            );
        }
        _ => remove(service, "/spec", "sessionAffinityConfig"),
    }
    let ports = service.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten() {
        set(port, "/protocol", || json!("TCP"));
        let target = port.get("targetPort").cloned().unwrap_or(json!(0));
        if (target == json!(0) || target == json!(""))
            && let Some(number) = port.get("port").cloned()
        {
            put(port, "/targetPort", number);
        }
    }
    let kind = service.pointer("/spec/type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if kind != "ExternalName" {
        set(service, "/spec/internalTrafficPolicy", || json!("Cluster"));
    }
    if kind == "NodePort" || kind == "LoadBalancer" {
        set(service, "/spec/externalTrafficPolicy", || json!("Cluster"));
    }
    if kind == "LoadBalancer" {
        set(service, "/spec/allocateLoadBalancerNodePorts", || json!(true));
    }
}

/// The API group of a role and of its subjects; that of a service account is the core group.
fn binding(binding: &mut Value) {
    const GROUP: &str = podwright_api::rbac::GROUP;
    set(binding, "/roleRef/apiGroup", || json!(GROUP));
    let subjects = binding.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        if matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group")) {
            set(subject, "/apiGroup", || json!(GROUP));
        }
    }
}

/// Sets a field that is unset; missing parents are created.
fn set(object: &mut Value, pointer: &str, value: impl FnOnce() -> Value) {
    let unset = match object.pointer(pointer) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if unset {
        put(object, pointer, value());
    }
}

fn put(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    for name in pointer.split('/').skip(1) {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        let Some(fields) = at.as_object_mut() else { return };
        at = fields.entry(name).or_insert(Value::Null);
    }
    *at = value;
}

fn remove(object: &mut Value, parent: &str, name: &str) {
    if let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests;
