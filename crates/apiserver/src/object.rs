//! An API object in a request: a JSON object with access to its `metadata`.
//!
//! Why JSON and not the typed structs: a field that a newer client sends must survive a round trip,
//! patches work on JSON, and one generic path serves every kind. The types of `k8s-openapi` are
//! used to check input (`decode`).

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::clock::rfc3339;
use crate::json_edit;
use crate::registry::Resource;

/// Always a JSON object whose `metadata` is a JSON object.
#[derive(Clone, Debug, PartialEq)]
pub struct Object(Value);

/// The JSON was not an object, or its `metadata` was not.
#[derive(Debug, thiserror::Error)]
#[error("not an API object: {0}")]
pub struct NotAnObject(&'static str);

impl Default for Object {
    fn default() -> Self {
        Self(serde_json::json!({"metadata": {}}))
    }
}

static NO_MAP: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);

impl TryFrom<Value> for Object {
    type Error = NotAnObject;

    fn try_from(mut value: Value) -> Result<Self, NotAnObject> {
        let root = value.as_object_mut().ok_or(NotAnObject("it is not a JSON object"))?;
        match root.entry("metadata").or_insert(Value::Null) {
            Value::Object(_) => {}
            metadata @ Value::Null => *metadata = Value::Object(Map::new()),
            _ => return Err(NotAnObject("its metadata is not a JSON object")),
        }
        Ok(Self(value))
    }
}

impl Object {
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// Edits the JSON; `metadata` is restored as an object afterwards.
    pub fn edit(&mut self, act: impl FnOnce(&mut Value)) {
        act(&mut self.0);
        if !self.0.is_object() {
            self.0 = Value::Object(Map::new());
        }
        if let Some(root) = self.0.as_object_mut() {
            let metadata = root.entry("metadata").or_insert(Value::Null);
            if !metadata.is_object() {
                *metadata = Value::Object(Map::new());
            }
        }
    }

    pub fn into_value(self) -> Value {
        self.0
    }

    pub fn meta(&self) -> &Map<String, Value> {
        self.0.get("metadata").and_then(Value::as_object).unwrap_or(&NO_MAP)
    }

    /// Sets or removes one field of `metadata`.
    pub fn set_meta(&mut self, field: &str, value: Option<Value>) {
        self.put(&["metadata", field], value);
    }

    pub fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field)
    }

    /// Sets or removes one top-level field.
    pub fn set(&mut self, field: &str, value: Option<Value>) {
        self.put(&[field], value);
    }

    /// Sets or removes the value at a path.
    pub fn put(&mut self, path: &[&str], value: Option<Value>) {
        self.edit(|root| json_edit::put(root, path, value));
    }

    /// A string by JSON pointer; empty if absent.
    pub fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    fn meta_text(&self, field: &str) -> &str {
        self.meta().get(field).and_then(Value::as_str).unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.meta_text("name")
    }

    /// Name for messages; it may not be generated yet.
    pub fn shown_name(&self) -> &str {
        match (self.name(), self.meta_text("generateName")) {
            ("", "") => "Unknown",
            ("", base) => base,
            (name, _) => name,
        }
    }

    pub fn namespace(&self) -> &str {
        self.meta_text("namespace")
    }

    pub fn uid(&self) -> &str {
        self.meta_text("uid")
    }

    pub fn resource_version(&self) -> &str {
        self.meta_text("resourceVersion")
    }

    pub fn generation(&self) -> i64 {
        self.meta().get("generation").and_then(Value::as_i64).unwrap_or(0)
    }

    pub fn set_generation(&mut self, generation: i64) {
        self.set_meta("generation", (generation != 0).then(|| generation.into()));
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.meta().get("labels")?.get(key)?.as_str()
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.meta().get("annotations")?.get(key)?.as_str()
    }

    pub fn finalizers(&self) -> Vec<&str> {
        let list = self.meta().get("finalizers").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    pub fn set_finalizers(&mut self, finalizers: &[String]) {
        let list = finalizers.iter().map(|f| Value::String(f.clone())).collect::<Vec<_>>();
        self.set_meta("finalizers", (!list.is_empty()).then_some(Value::Array(list)));
    }

    pub fn owner_references(&self) -> &[Value] {
        self.meta().get("ownerReferences").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Set if the object is being deleted: the time by which it should be gone.
    pub fn deletion_timestamp(&self) -> Option<Timestamp> {
        let text = self.meta().get("deletionTimestamp")?.as_str()?;
        // An unreadable time still means "being deleted".
        Some(text.parse().unwrap_or(Timestamp::UNIX_EPOCH))
    }

    pub fn is_being_deleted(&self) -> bool {
        self.deletion_timestamp().is_some()
    }

    pub fn deletion_grace(&self) -> Option<i64> {
        self.meta().get("deletionGracePeriodSeconds").and_then(Value::as_i64)
    }

    pub fn set_deletion(&mut self, at: Timestamp, grace: Option<i64>) {
        self.set_meta("deletionTimestamp", Some(rfc3339(at).into()));
        self.set_meta("deletionGracePeriodSeconds", grace.map(Value::from));
    }

    /// Sets `apiVersion` and `kind` from the resource.
    pub fn set_type(&mut self, resource: &Resource) {
        self.set("apiVersion", Some(resource.api_version().into()));
        self.set("kind", Some(resource.kind.into()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_json_objects_become_api_objects() {
        for (case, value, good) in [
            ("empty", json!({}), true),
            ("metadata null", json!({"metadata": null}), true),
            ("whole", json!({"metadata": {"name": "a"}, "spec": {}}), true),
            ("a list", json!([]), false),
            ("a string", json!("x"), false),
            ("null", json!(null), false),
            ("metadata a string", json!({"metadata": "x"}), false),
        ] {
            assert_eq!(Object::try_from(value).is_ok(), good, "{case}");
        }
    }

    #[test]
    fn fields_of_the_wrong_type_read_as_absent() {
        // given metadata in which every field has the wrong type
        let hostile = json!({"metadata": {
            "name": 1, "labels": [], "annotations": "x", "finalizers": {}, "ownerReferences": 3,
            "generation": "x", "deletionTimestamp": 5, "deletionGracePeriodSeconds": []
        }});
        // when
        let object = Object::try_from(hostile).unwrap_or_else(|e| panic!("{e}"));
        // then
        assert_eq!(object.name(), "");
        assert_eq!(object.label("a"), None);
        assert_eq!(object.annotation("a"), None);
        assert!(object.finalizers().is_empty() && object.owner_references().is_empty());
        assert_eq!(object.generation(), 0);
        assert_eq!((object.deletion_timestamp(), object.deletion_grace()), (None, None));
    }
}
