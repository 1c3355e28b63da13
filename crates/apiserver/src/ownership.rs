//! Field managers of stored objects: what each path tracks, and server-side apply of a body.
//!
//! The rules are those of [`podwright_api::managed_fields`]. An object is tracked in the version of
//! the request; only events have two, and managers that wrote in the other one keep what they have.

use jiff::Timestamp;
use podwright_api::managed_fields::{self, ApplyError, FieldSet, Write};
use podwright_api::schema::{self, Struct};
use serde_json::{Value, json};

use crate::clock::rfc3339;
use crate::events;
use crate::object::Object;
use crate::options::WriteOptions;
use crate::registry::Resource;
use crate::request::RequestInfo;
use crate::status::ApiError;
use crate::strategy;

/// Who writes what, and when.
/// Objects with more values have no managers: the sets of their fields would take many times the
/// space of the object. Common objects have hundreds.
const MAX_TRACKED_VALUES: usize = 10_000;

pub(crate) struct Author<'a> {
    resource: &'static Resource,
    subresource: &'static str,
    manager: &'a str,
    force: bool,
    now: String,
    reset: FieldSet,
}

impl<'a> Author<'a> {
    pub(crate) fn new(info: &RequestInfo, options: &'a WriteOptions, now: Timestamp) -> Self {
        let subresource = info.subresource.map_or("", |sub| sub.name);
        Self {
            resource: info.resource,
            subresource,
            manager: &options.manager,
            force: options.force,
            now: rfc3339(now),
            reset: reset_fields(info.resource, subresource),
        }
    }

    fn write<'w>(&'w self, shape: &'static Struct, api_version: &'w str) -> Write<'w> {
        Write {
            shape,
            manager: self.manager,
            api_version,
            subresource: self.subresource,
            now: &self.now,
            reset: &self.reset,
        }
    }

    /// Records who set which field of a new object, before admission completes it.
    pub(crate) fn created(&self, new: &mut Object) {
        self.track(None, new);
    }

    /// Records what a change of an object took from other managers. Both are in their stored form.
    pub(crate) fn updated(&self, old: &Object, new: &mut Object) {
        if is_partial(self.subresource) {
            // Such a path changes only a part, which the strategy knows.
            strategy::prepare_update(self.resource, Some(self.subresource), new, old);
        }
        self.track(Some(old), new);
    }

    fn track(&self, old: Option<&Object>, new: &mut Object) {
        if own_values(new.value()) > MAX_TRACKED_VALUES {
            return new.set_meta("managedFields", None);
        }
        let Some(shape) = schema::kind(self.resource.group, self.resource.kind) else { return };
        let api_version = self.resource.api_version();
        let mut tracked = events::from_stored(self.resource, new.clone()).into_value();
        let before = match old {
            Some(old) => events::from_stored(self.resource, old.clone()).into_value(),
            None => managed_fields::empty(shape, &tracked),
        };
        let write = self.write(shape, &api_version);
        managed_fields::track(&write, &before, &mut tracked, old.is_none());
        new.set_meta("managedFields", tracked.pointer("/metadata/managedFields").cloned());
    }

    /// The object after an apply, in the form of the request, not decoded yet. `live` is in its
    /// stored form; without it the apply creates the object.
    pub(crate) fn applied(&self, live: Option<&Object>, body: &Value) -> Result<Value, ApiError> {
        let unknown = || ApiError::internal(format!("no shape of {} is known", self.resource.kind));
        let shape = schema::kind(self.resource.group, self.resource.kind).ok_or_else(unknown)?;
        let api_version = self.resource.api_version();
        let live = match live {
            Some(live) => events::from_stored(self.resource, live.clone()).into_value(),
            None => {
                let kind = json!({"apiVersion": api_version, "kind": self.resource.kind});
                managed_fields::empty(shape, &kind)
            }
        };
        if own_values(&live) > MAX_TRACKED_VALUES || own_values(body) > MAX_TRACKED_VALUES {
            return Err(ApiError::bad_request(format!(
                "the object has more than {MAX_TRACKED_VALUES} values, which is too many for \
                 server-side apply; update or patch it"
            )));
        }
        let body = part_of_body(self.subresource, body);
        let write = self.write(shape, &api_version);
        let applied = managed_fields::apply(&write, &live, &body, self.force);
        let mut object = applied.map_err(|error| self.refused(&body, error))?;
        managed_fields::rewrite_last_applied(self.manager, &mut object, &body);
        Ok(object)
    }

    fn refused(&self, body: &Value, error: ApplyError) -> ApiError {
        match error {
            ApplyError::ManagedFieldsGiven => ApiError::bad_request(error.to_string()),
            ApplyError::Untyped(why) => ApiError::unclassified(format!(
                "failed to create typed patch object ({}): {why}",
                self.shown(body)
            )),
            ApplyError::Conflict(conflicts) => {
                ApiError::apply_conflict(conflicts.message(), conflicts.causes())
            }
        }
    }

    /// The object as messages name it.
    pub(crate) fn shown(&self, body: &Value) -> String {
        let text = |pointer| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        let name =
            if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        let group_version = format!("{}/{}", self.resource.group, self.resource.version);
        format!("{name}; {group_version}, Kind={}", self.resource.kind)
    }
}

/// The number of values in an object, without its managers.
fn own_values(object: &Value) -> usize {
    let managers = object.pointer("/metadata/managedFields").map_or(0, values);
    values(object).saturating_sub(managers)
}

fn values(value: &Value) -> usize {
    let parts: usize = match value {
        Value::Array(items) => items.iter().map(values).sum(),
        Value::Object(fields) => fields.values().map(values).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    parts + 1
}

/// Whether two versions of an object differ at most in when managers last changed something.
pub(crate) fn same_but_for_times(one: &Object, other: &Object) -> bool {
    let timeless = |object: &Object| {
        let mut object = object.clone();
        object.edit(|value| {
            let list = value.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut);
            for entry in list.into_iter().flatten().filter_map(Value::as_object_mut) {
                entry.remove("time");
            }
        });
        object
    };
    one == other || timeless(one) == timeless(other)
}

/// Paths that change only the part of the object that the strategy takes from the request.
fn is_partial(subresource: &str) -> bool {
    matches!(subresource, "ephemeralcontainers" | "resize" | "finalize")
}

/// The part of an applied body that such a path can change.
fn part_of_body(subresource: &str, body: &Value) -> Value {
    let mut part = body.clone();
    let Some(root) = part.as_object_mut() else { return part };
    if is_partial(subresource) {
        root.retain(|field, _| {
            matches!(field.as_str(), "apiVersion" | "kind" | "metadata" | "spec")
        });
        let meta = root.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(meta) = meta {
            meta.retain(|field, _| {
                matches!(
                    field.as_str(),
                    "name" | "namespace" | "uid" | "resourceVersion" | "managedFields"
                )
            });
        }
    }
    let Some(spec) = root.get_mut("spec").and_then(Value::as_object_mut) else { return part };
    match subresource {
        "ephemeralcontainers" => spec.retain(|field, _| field == "ephemeralContainers"),
        "finalize" => spec.retain(|field, _| field == "finalizers"),
        "resize" => {
            spec.retain(|field, _| {
                matches!(field.as_str(), "containers" | "initContainers" | "resources")
            });
            for list in ["containers", "initContainers"] {
                let containers = spec.get_mut(list).and_then(Value::as_array_mut);
                for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
                    container.retain(|field, _| {
                        matches!(field.as_str(), "name" | "resources" | "resizePolicy")
                    });
                }
            }
        }
        _ => {}
    }
    part
}

/// Fields that a write to a path neither changes nor owns.
fn reset_fields(resource: &Resource, subresource: &str) -> FieldSet {
    match (resource.storage, subresource) {
        ("pods", "status") => FieldSet::of_fields(&[
            &["spec"],
            &["metadata", "deletionTimestamp"],
            &["metadata", "ownerReferences"],
        ]),
        (_, "status") => FieldSet::of_fields(&[&["spec"]]),
        (
            "pods"
            | "nodes"
            | "namespaces"
            | "persistentvolumes"
            | "persistentvolumeclaims"
            | "services",
            "",
        ) => FieldSet::of_fields(&[&["status"]]),
        _ => FieldSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_path_takes_only_its_part_of_a_body() {
        let body = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"l": "1"}}, "status": {"phase": "Failed"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i",
                "resources": {"limits": {"cpu": "1"}}}], "ephemeralContainers": [{"name": "e"}]}});
        assert_eq!(
            part_of_body("resize", &body),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec":
                {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}})
        );
        assert_eq!(
            part_of_body("ephemeralcontainers", &body)["spec"],
            json!({"ephemeralContainers": [{"name": "e"}]})
        );
        assert_eq!(part_of_body("", &body), body);
        for hostile in [json!(null), json!([]), json!({"spec": 1, "metadata": []})] {
            assert_eq!(part_of_body("resize", &hostile).is_object(), hostile.is_object());
        }
    }

    #[test]
    fn times_of_managers_do_not_count_as_a_change() {
        let object = |time: &str, value: &str| {
            Object::try_from(
                json!({"metadata": {"managedFields": [{"time": time}]}, "data": value}),
            )
            .unwrap_or_default()
        };
        assert!(same_but_for_times(&object("1", "a"), &object("2", "a")));
        assert!(!same_but_for_times(&object("1", "a"), &object("1", "b")));
    }
}
