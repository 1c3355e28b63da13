//! Patch between two Node objects.
//!
//! A strategic merge patch of `status` may contain labels and annotations, so one request is
//! enough. Addresses are merged by type, and a dual-stack node has two of one type, so they are
//! always replaced as a whole.

use k8s_openapi::api::core::v1;
use serde_json::{Map, Value, json};

use crate::merge_patch::diff;

type Object = Map<String, Value>;

/// Status fields that the server did not store as they were sent.
///
/// An older server drops fields that it does not know. As long as we would send the same value
/// again, this does not count as a difference.
#[derive(Clone, Debug, Default)]
pub struct DroppedFields(Object);

impl DroppedFields {
    /// Compares the sent object with the response to the patch.
    pub fn learn(&mut self, sent: &v1::Node, response: &v1::Node) {
        let (sent, response) = (status(sent), status(response));
        self.0 = sent
            .into_iter()
            // Other components write conditions too, so their changes must not be ignored.
            .filter(|(field, value)| field != CONDITIONS && response.get(field) != Some(value))
            .collect();
    }

    fn is_dropped(&self, field: &str, wanted: &Value) -> bool {
        self.0.get(field) == Some(wanted)
    }
}

const CONDITIONS: &str = "conditions";
const ADDRESSES: &str = "addresses";

/// The patch, and whether it is a change: heartbeat times alone are not. `None`: no difference.
pub fn patch(
    shown: &v1::Node,
    wanted: &v1::Node,
    dropped_fields: &DroppedFields,
) -> Option<(Value, bool)> {
    let mut is_change = false;
    let mut metadata = Object::new();
    for (field, before, after) in [
        ("labels", &shown.metadata.labels, &wanted.metadata.labels),
        ("annotations", &shown.metadata.annotations, &wanted.metadata.annotations),
    ] {
        let changed = diff(&object(before), &object(after));
        if !changed.is_empty() {
            metadata.insert(field.to_owned(), Value::Object(changed));
            is_change = true;
        }
    }
    let (before, after) = (status(shown), status(wanted));
    let mut changed = Object::new();
    for (field, value) in diff(&before, &after) {
        let wanted = after.get(&field).unwrap_or(&Value::Null);
        if dropped_fields.is_dropped(&field, wanted) {
            continue;
        }
        let value = match field.as_str() {
            CONDITIONS => {
                let (conditions, differ) = changed_conditions(before.get(CONDITIONS), wanted);
                is_change |= differ;
                conditions
            }
            ADDRESSES => {
                is_change = true;
                replaced(wanted)
            }
            _ => {
                is_change = true;
                value
            }
        };
        changed.insert(field, value);
    }
    if metadata.is_empty() && changed.is_empty() {
        return None;
    }
    // Conditional on the UID: an object recreated under the same name has to be reconciled first.
    if let Some(uid) = &shown.metadata.uid {
        metadata.insert("uid".to_owned(), json!(uid));
    }
    Some((json!({ "metadata": metadata, "status": changed }), is_change))
}

/// The conditions that differ, complete; and whether more than the heartbeat time differs.
fn changed_conditions(before: Option<&Value>, after: &Value) -> (Value, bool) {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let before = list(before);
    let mut is_change = false;
    let mut changed = Vec::new();
    for condition in list(Some(after)) {
        let known = before.iter().find(|known| known.get("type") == condition.get("type"));
        if known == Some(&condition) {
            continue;
        }
        is_change |= known.map(without_heartbeat) != Some(without_heartbeat(&condition));
        changed.push(condition);
    }
    (Value::Array(changed), is_change)
}

fn without_heartbeat(condition: &Value) -> Value {
    let mut condition = condition.clone();
    if let Value::Object(fields) = &mut condition {
        fields.remove("lastHeartbeatTime");
    }
    condition
}

fn replaced(list: &Value) -> Value {
    let mut elements = vec![json!({ "$patch": "replace" })];
    elements.extend(list.as_array().cloned().unwrap_or_default());
    Value::Array(elements)
}

fn status(node: &v1::Node) -> Object {
    object(&node.status)
}

fn object(value: &impl serde::Serialize) -> Object {
    match serde_json::to_value(value) {
        Ok(Value::Object(object)) => object,
        Ok(_) | Err(_) => Object::new(),
    }
}
