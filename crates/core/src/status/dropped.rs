//! Status fields that the API server drops.
//!
//! An older server silently drops fields it does not know. The agent must not treat that as a
//! foreign edit and repair it every ten seconds. A field that a patch had but the response lacks
//! is recorded here, and removed again once a response has it: the server may be upgraded
//! meanwhile.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_api::schema;
use serde_json::Value;

/// Path segment for every element of a list.
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

    /// Compares the body of a patch with the status in the server's response.
    pub fn learn(&mut self, patch: &Value, response: &PodStatus) {
        let Some(sent) = patch.get("status") else { return };
        let Ok(response) = serde_json::to_value(response) else { return };
        self.compare(sent, &response, &mut Vec::new());
    }

    fn compare(&mut self, sent: &Value, response: &Value, path: &mut Vec<String>) {
        match (sent, response) {
            (Value::Object(sent), Value::Object(response)) => {
                let fields = sent.iter().filter(|(field, _)| !field.starts_with('$'));
                for (field, value) in fields.filter(|(_, value)| is_significant(value)) {
                    path.push(field.clone());
                    match response.get(field) {
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
            (Value::Array(sent), Value::Array(response)) => {
                path.push(ELEMENT.to_owned());
                for element in sent.iter().filter(|element| element.get("$patch").is_none()) {
                    if let Some(kept) = response.iter().find(|kept| is_same(element, kept)) {
                        self.compare(element, kept, path);
                    }
                }
                path.pop();
            }
            _ => {}
        }
    }

    /// The status as this server would store it, in the form of [`without_empties`].
    pub fn strip(&self, status: &PodStatus) -> PodStatus {
        edited(status, |value| self.paths.iter().for_each(|path| remove(value, path)))
    }
}

/// The status without empty objects. A server that knows the field keeps `{}`, another one drops
/// it; it has no meaning.
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

/// Null removes a field, and a server may leave out an empty object.
fn is_significant(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(elements) => !elements.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Elements of status lists are identified by one of these keys.
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
