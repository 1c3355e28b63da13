//! The difference between two Node objects, as the API server takes it.
//!
//! A strategic merge patch of `status` may carry labels and annotations, so one request says it
//! all. Addresses are merged by their type, of which a node with two families has two: they are
//! always replaced as a whole.

use k8s_openapi::api::core::v1;
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// Fields of the status that the server did not keep as they were sent.
///
/// An older server forgets what it does not know. As long as we would send the very same again,
/// that is no difference.
#[derive(Clone, Debug, Default)]
pub struct Unkept(Object);

impl Unkept {
    /// Compares what was meant with the answer to the patch.
    pub fn learn(&mut self, meant: &v1::Node, answer: &v1::Node) {
        let (meant, answer) = (status(meant), status(answer));
        self.0 = meant
            .into_iter()
            // Conditions are others' business, too: what they changed has to be seen.
            .filter(|(field, value)| field != CONDITIONS && answer.get(field) != Some(value))
            .collect();
    }

    fn explains(&self, field: &str, wanted: &Value) -> bool {
        self.0.get(field) == Some(wanted)
    }
}

const CONDITIONS: &str = "conditions";
const ADDRESSES: &str = "addresses";

/// What to send, and whether it is news: heartbeat times alone are not. `None`: nothing differs.
pub fn patch(shown: &v1::Node, wanted: &v1::Node, unkept: &Unkept) -> Option<(Value, bool)> {
    let mut news = false;
    let mut metadata = Object::new();
    for (field, before, after) in [
        ("labels", &shown.metadata.labels, &wanted.metadata.labels),
        ("annotations", &shown.metadata.annotations, &wanted.metadata.annotations),
    ] {
        let changed = diff(&object(before), &object(after));
        if !changed.is_empty() {
            metadata.insert(field.to_owned(), Value::Object(changed));
            news = true;
        }
    }
    let (before, after) = (status(shown), status(wanted));
    let mut changed = Object::new();
    for (field, value) in diff(&before, &after) {
        let wanted = after.get(&field).unwrap_or(&Value::Null);
        if unkept.explains(&field, wanted) {
            continue;
        }
        let value = match field.as_str() {
            CONDITIONS => {
                let (conditions, differ) = changed_conditions(before.get(CONDITIONS), wanted);
                news |= differ;
                conditions
            }
            ADDRESSES => {
                news = true;
                replaced(wanted)
            }
            _ => {
                news = true;
                value
            }
        };
        changed.insert(field, value);
    }
    if metadata.is_empty() && changed.is_empty() {
        return None;
    }
    // Bound to this very object: one that was made anew under the same name is taken over first.
    if let Some(uid) = &shown.metadata.uid {
        metadata.insert("uid".to_owned(), json!(uid));
    }
    Some((json!({ "metadata": metadata, "status": changed }), news))
}

/// Those that differ, whole; and whether more than the heartbeat does.
fn changed_conditions(before: Option<&Value>, after: &Value) -> (Value, bool) {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let before = list(before);
    let mut news = false;
    let mut changed = Vec::new();
    for condition in list(Some(after)) {
        let known = before.iter().find(|known| known.get("type") == condition.get("type"));
        if known == Some(&condition) {
            continue;
        }
        news |= known.map(without_heartbeat) != Some(without_heartbeat(&condition));
        changed.push(condition);
    }
    (Value::Array(changed), news)
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

/// What must be written over `before` to get `after`; null takes a field away.
fn diff(before: &Object, after: &Object) -> Object {
    let mut out = Object::new();
    for (field, new) in after {
        match (before.get(field), new) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                out.insert(field.clone(), Value::Object(diff(old, new)));
            }
            (_, new) => drop(out.insert(field.clone(), new.clone())),
        }
    }
    let gone = before.keys().filter(|field| !after.contains_key(*field));
    out.extend(gone.map(|field| (field.clone(), Value::Null)));
    out
}
