//! Fields the API server does not keep.
//!
//! An older server forgets the fields it does not know, without a word. The agent must not take
//! that for a foreign edit and repair it every ten seconds. What the answer to a patch lacks
//! although the patch had it is remembered here, and forgotten again when an answer has it: a
//! server may be upgraded under a running agent.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::Value;

use crate::schema;

/// Stands for every element of a list.
const ELEMENT: &str = "*";

/// Paths of fields in a status, such as `containerStatuses / * / resources`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    paths: BTreeSet<Vec<String>>,
}

impl Dropped {
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Compares the body of a patch with the status that the server answered.
    pub fn learn(&mut self, patch: &Value, answer: &PodStatus) {
        let Some(sent) = patch.get("status") else { return };
        let Ok(answer) = serde_json::to_value(answer) else { return };
        self.compare(sent, &answer, &mut Vec::new());
    }

    fn compare(&mut self, sent: &Value, answer: &Value, path: &mut Vec<String>) {
        match (sent, answer) {
            (Value::Object(sent), Value::Object(answer)) => {
                let fields = sent.iter().filter(|(field, _)| !field.starts_with('$'));
                for (field, value) in fields.filter(|(_, value)| says_something(value)) {
                    path.push(field.clone());
                    match answer.get(field) {
                        None => {
                            self.paths.insert(path.clone());
                        }
                        Some(kept) => {
                            self.paths.remove(path);
                            self.compare(value, kept, path);
                        }
                    }
                    path.pop();
                }
            }
            (Value::Array(sent), Value::Array(answer)) => {
                path.push(ELEMENT.to_owned());
                for element in sent.iter().filter(|element| element.get("$patch").is_none()) {
                    if let Some(kept) = answer.iter().find(|kept| is_same(element, kept)) {
                        self.compare(element, kept, path);
                    }
                }
                path.pop();
            }
            _ => {}
        }
    }

    /// The status as this server would keep it, in the form of [`without_empties`].
    pub fn strip(&self, status: &PodStatus) -> PodStatus {
        edited(status, |value| self.paths.iter().for_each(|path| remove(value, path)))
    }
}

/// The status without objects that say nothing. A server that knows the field keeps `{}`, one
/// that does not drops it, and neither means anything by it.
pub fn without_empties(status: &PodStatus) -> PodStatus {
    edited(status, |_| {})
}

fn edited(status: &PodStatus, edit: impl FnOnce(&mut Value)) -> PodStatus {
    let Ok(mut value) = serde_json::to_value(status) else { return status.clone() };
    edit(&mut value);
    prune(&mut value);
    schema::typed(&value).unwrap_or_else(|_| status.clone())
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|_, field| field.as_object().is_none_or(|fields| !fields.is_empty()));
        }
        Value::Array(elements) => elements.iter_mut().for_each(prune),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Null takes a field away, and an empty object may be left out by any server.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(elements) => !elements.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Elements of a status' lists are told apart by one of these.
fn is_same(a: &Value, b: &Value) -> bool {
    ["type", "name", "ip"].into_iter().any(|key| a.get(key).is_some() && a.get(key) == b.get(key))
}

fn remove(value: &mut Value, path: &[String]) {
    match (path, value) {
        ([field], Value::Object(object)) => {
            object.remove(field);
        }
        ([field, rest @ ..], Value::Object(object)) => {
            if let Some(inner) = object.get_mut(field) {
                remove(inner, rest);
            }
        }
        ([element, rest @ ..], Value::Array(elements)) if element == ELEMENT => {
            elements.iter_mut().for_each(|element| remove(element, rest));
        }
        _ => {}
    }
}
