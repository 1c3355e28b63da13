//! Tables for `kubectl get`.
//!
//! Cells are exactly kube-apiserver's: scripts parse them.

mod columns;
mod duration;
mod pod;
mod row;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::registry::Resource;

/// A `meta.k8s.io/v1` Table of these objects, every column included.
pub fn rows(resource: &Resource, objects: &[Value], now: Timestamp) -> Value {
    let columns: Vec<Value> = columns::of(resource)
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.kind,
                "format": column.format,
                "description": column.description,
                "priority": i32::from(column.wide),
            })
        })
        .collect();
    let rows: Vec<Value> = objects.iter().map(|object| one(resource, object, now)).collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns,
        "rows": rows,
    })
}

fn one(resource: &Resource, object: &Value, now: Timestamp) -> Value {
    let cells = match resource.storage {
        "" => row::measured(object),
        "pods" => pod::cells(object, now),
        "nodes" => row::node(object, now),
        "namespaces" => row::namespace(object, now),
        "configmaps" => row::config_map(object, now),
        "secrets" => row::secret(object, now),
        "events" => row::event(object, now),
        "leases" => row::lease(object, now),
        "runtimeclasses" => row::runtime_class(object, now),
        "priorityclasses" => row::priority_class(object, now),
        "persistentvolumes" => row::volume(object, now),
        "persistentvolumeclaims" => row::claim(object, now),
        "services" => row::service(object, now),
        "roles" | "clusterroles" => row::role(object),
        "rolebindings" | "clusterrolebindings" => row::binding(object, now),
        _ => row::plain(object, now),
    };
    let metadata = object.get("metadata").cloned().unwrap_or(json!({}));
    let object_metadata = json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
    });
    match pod::completed(object).filter(|_| resource.storage == "pods") {
        Some(condition) => {
            json!({"cells": cells, "conditions": [condition], "object": object_metadata})
        }
        None => json!({"cells": cells, "object": object_metadata}),
    }
}

/// The age of something since this time, as in the column AGE.
pub fn age_of(since: Timestamp, now: Timestamp) -> String {
    duration::between(since, now)
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The text, or `missing` if it is empty.
fn or<'a>(text: &'a str, missing: &'a str) -> &'a str {
    if text.is_empty() { missing } else { text }
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn age(object: &Value, now: Timestamp) -> String {
    duration::since(text(object, "/metadata/creationTimestamp"), now)
}

#[cfg(test)]
mod tests;
