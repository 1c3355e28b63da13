//! Status patch: the smallest strategic merge patch from one status to another.
//!
//! A patch contains only what changed, so that two writers of one status do not undo each other.
//! Conditions and addresses are merged by key, with directives for deleted elements and for the
//! order; lists of container statuses have no key and are sent whole.

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value, json};

use super::dropped::{Dropped, without_empties};
use crate::merge_patch::diff;

type Object = Map<String, Value>;

/// Lists that the API server merges, each with its merge key.
const MERGED_LISTS: [(&str, &str, Order); 3] = [
    ("conditions", "type", Order::Free),
    ("podIPs", "ip", Order::Matters),
    ("hostIPs", "ip", Order::Matters),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// A different order is not sent.
    Free,
    Matters,
}

/// The body of a PATCH of `status` for the object with this UID; `None` if nothing differs.
pub fn patch(before: &PodStatus, after: &PodStatus, uid: &str) -> Option<Value> {
    if before == after {
        return None;
    }
    let (before, after) = (object(before)?, object(after)?);
    let status = status_diff(&before, &after);
    (!status.is_empty()).then(|| json!({ "metadata": { "uid": uid }, "status": status }))
}

/// The same, but also `None` if only fields differ that this server drops.
pub fn worth_sending(
    before: &PodStatus,
    after: &PodStatus,
    uid: &str,
    dropped: &Dropped,
) -> Option<Value> {
    if !dropped.is_empty() {
        patch(&without_empties(before), &dropped.strip(after), uid)?;
    }
    patch(before, after, uid)
}

fn object(status: &PodStatus) -> Option<Object> {
    match serde_json::to_value(status) {
        Ok(Value::Object(object)) => Some(object),
        Ok(_) | Err(_) => None, // a struct of plain data always serialises to an object
    }
}

fn status_diff(before: &Object, after: &Object) -> Object {
    let mut out = Object::new();
    for (field, key, order) in MERGED_LISTS {
        let (old, new) = (before.get(field), after.get(field));
        if let (Some(Value::Array(old)), Some(Value::Array(new))) = (old, new) {
            // An empty list equals a missing one: there is no order to set.
            if new.is_empty() && !old.is_empty() {
                out.insert(field.to_owned(), Value::Null);
                continue;
            }
            merged_list(&mut out, field, key, order, old, new);
        }
    }
    let rest = diff(before, after);
    let is_merged = |field: &str| {
        let both = before.contains_key(field) && after.contains_key(field);
        both && MERGED_LISTS.iter().any(|(merged, _, _)| *merged == field)
    };
    out.extend(rest.into_iter().filter(|(field, _)| !is_merged(field)));
    out
}

fn merged_list(
    out: &mut Object,
    field: &str,
    key: &str,
    order: Order,
    before: &[Value],
    after: &[Value],
) {
    let same = |a: &Value, b: &Value| a.get(key) == b.get(key);
    let mut changes = Vec::new();
    for new in after {
        match before.iter().find(|old| same(old, new)) {
            None => changes.push(new.clone()),
            Some(old) => changes.extend(element_diff(old, new, key)),
        }
    }
    for old in before.iter().filter(|old| !after.iter().any(|new| same(old, new))) {
        changes.push(json!({ "$patch": "delete", key: old.get(key) }));
    }
    let moved = order == Order::Matters
        && !before.iter().map(|e| e.get(key)).eq(after.iter().map(|e| e.get(key)));
    if changes.is_empty() && !moved {
        return;
    }
    // A server that does not know the field refuses its directives, but not its elements.
    if !before.is_empty() {
        let keys = after.iter().map(|new| json!({ key: new.get(key) })).collect();
        out.insert(format!("$setElementOrder/{field}"), Value::Array(keys));
    }
    if !changes.is_empty() {
        out.insert(field.to_owned(), Value::Array(changes));
    }
}

fn element_diff(old: &Value, new: &Value, key: &str) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return None };
    let mut changed = diff(old, new);
    if changed.is_empty() {
        return None;
    }
    changed.insert(key.to_owned(), new.get(key)?.clone());
    Some(Value::Object(changed))
}
