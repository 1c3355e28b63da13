//! The annotation of client-side apply, which `kubectl apply --server-side` takes over.

use serde_json::Value;

use super::field_set::FieldSet;
use super::typed::{check, compare, field_set};
use super::{KUBECTL, Write};
use crate::annotations::LAST_APPLIED;

/// Annotations of an object are limited to this many bytes in total.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

fn annotation(object: &Value) -> Option<&str> {
    let annotations = object.get("metadata")?.get("annotations")?;
    annotations.get(LAST_APPLIED)?.as_str().filter(|text| !text.is_empty())
}

/// What client-side apply set and no other manager changed since: `kubectl` may take it over.
pub(super) fn unchanged(write: &Write<'_>, live: &Value) -> FieldSet {
    let place = write.place();
    let applied = annotation(live).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let Some(applied) = applied else { return FieldSet::new() };
    let version = applied.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    if version != write.api_version || check(place, &applied).is_err() {
        return FieldSet::new();
    }
    let changes = compare(place, &applied, live);
    field_set(place, &applied)
        .difference(&changes.modified)
        .difference(&changes.added)
        .difference(&changes.removed)
}

/// Brings an existing annotation up to date after an apply by `kubectl`, so that client-side apply
/// still works afterwards.
pub fn rewrite(manager: &str, object: &mut Value, body: &Value) {
    if manager != KUBECTL || annotation(object).is_none() {
        return;
    }
    let mut applied = body.clone();
    let annotations = applied.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.remove(LAST_APPLIED);
    }
    let text = format!("{applied}\n");
    let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    let Some(annotations) = annotations else { return };
    let size = |(key, value): (&String, &Value)| {
        key.len()
            + if key == LAST_APPLIED { text.len() } else { value.as_str().map_or(0, str::len) }
    };
    if annotations.iter().map(size).sum::<usize>() > MAX_ANNOTATION_BYTES {
        annotations.remove(LAST_APPLIED);
    } else {
        annotations.insert(LAST_APPLIED.to_owned(), text.into());
    }
}
