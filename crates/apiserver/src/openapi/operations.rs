//! OpenAPI paths and operations. Clients use them only for the options of a write.

use serde_json::{Map, Value, json};

use super::Form;
use super::definitions::{GVK, kind_of};
use crate::json_edit;
use crate::registry::{Resource, Verb};

/// One kind of request for one resource.
struct Operation {
    verb: Verb,
    method: &'static str,
    action: &'static str,
    /// Names of its query options.
    options: &'static [&'static str],
}

const WRITES: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
const PATCHES: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETES: &[&str] = &["dryRun", "gracePeriodSeconds", "propagationPolicy"];
const LISTS: &[&str] = &["labelSelector", "fieldSelector", "limit", "continue", "watch"];

const OF_COLLECTION: [Operation; 3] = [
    Operation { verb: Verb::List, method: "get", action: "list", options: LISTS },
    Operation { verb: Verb::Create, method: "post", action: "post", options: WRITES },
    Operation {
        verb: Verb::DeleteCollection,
        method: "delete",
        action: "deletecollection",
        options: DELETES,
    },
];

const OF_OBJECT: [Operation; 4] = [
    Operation { verb: Verb::Get, method: "get", action: "get", options: &[] },
    Operation { verb: Verb::Update, method: "put", action: "put", options: WRITES },
    Operation { verb: Verb::Patch, method: "patch", action: "patch", options: PATCHES },
    Operation { verb: Verb::Delete, method: "delete", action: "delete", options: DELETES },
];

pub(super) fn paths(resources: impl Iterator<Item = &'static Resource>, form: Form) -> Value {
    let mut paths = Map::new();
    for resource in resources {
        let collection = address(resource);
        let object = format!("{collection}/{{name}}");
        for (path, operations) in [(collection, &OF_COLLECTION[..]), (object, &OF_OBJECT[..])] {
            let mut item = json!({});
            for operation in operations.iter().filter(|each| resource.allows(each.verb)) {
                let described = describe(resource, operation, form);
                json_edit::put(&mut item, &[operation.method], Some(described));
            }
            if item.as_object().is_some_and(|item| !item.is_empty()) {
                paths.insert(path, item);
            }
        }
    }
    Value::Object(paths)
}

fn address(resource: &Resource) -> String {
    let group = match resource.group {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    };
    let namespace = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    format!("{group}{namespace}/{}", resource.plural)
}

fn describe(resource: &Resource, operation: &Operation, form: Form) -> Value {
    let parameters: Vec<Value> = operation
        .options
        .iter()
        .map(|name| match form {
            Form::V2 => json!({"name": name, "in": "query", "type": "string"}),
            Form::V3 => json!({"name": name, "in": "query", "schema": {"type": "string"}}),
        })
        .collect();
    json!({
        "operationId": format!("{}{}{}", operation.action, resource.group, resource.kind),
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": operation.action,
        GVK: kind_of(resource, resource.kind),
    })
}
