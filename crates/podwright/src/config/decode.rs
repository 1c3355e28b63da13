//! Decoder of untyped documents into [`KubeletConfiguration`] that finds every invalid value.
//!
//! Serde stops at the first invalid value without its path. So when it fails, each part of the
//! document is decoded alone to find the invalid ones. They are reported and left out, and the rest
//! is still validated in the same run.

use serde::Deserialize;
use serde_json::Value;

use super::field::FieldPath;
use super::kubelet::KubeletConfiguration;
use super::problem::{Problem, Source};

/// A value of the wrong type. No `Debug`: it may be a secret.
pub struct InvalidValue {
    pub field: FieldPath,
    pub value: Value,
    /// What is expected.
    pub message: String,
}

impl InvalidValue {
    /// The problem to report, with the source of the document.
    pub fn into_problem(self, source: &Source) -> Problem {
        Problem::with_field(source.clone(), self.field, Some(&self.value), self.message)
    }
}

/// The decoded part of a document.
pub struct Decoded {
    pub configuration: KubeletConfiguration,
    pub invalid_values: Vec<InvalidValue>,
    /// Fields that `KubeletConfiguration` does not have.
    pub unknown: Vec<FieldPath>,
}

/// Decodes a document; invalid values keep their default and are reported.
pub fn decode(document: &Value) -> Decoded {
    let mut rest = document.clone();
    remove_nulls(&mut rest);
    let mut invalid_values = Vec::new();
    if read(&rest).is_err() {
        find_invalid(&FieldPath::default(), &rest, &mut invalid_values);
        // In reverse, so that removing an item does not shift the indices of others.
        for invalid_value in invalid_values.iter().rev() {
            invalid_value.field.remove(&mut rest);
        }
    }
    let mut unknown = Vec::new();
    let configuration = serde_ignored::deserialize(&rest, |path| unknown.push(field_path(&path)));
    Decoded { configuration: configuration.unwrap_or_default(), invalid_values, unknown }
}

fn read(document: &Value) -> Result<KubeletConfiguration, serde_json::Error> {
    KubeletConfiguration::deserialize(document)
}

/// Finds the smallest parts of `value` that cannot be decoded. A list item is reported as a whole,
/// because a part of it would lack the other required fields.
fn find_invalid(path: &FieldPath, value: &Value, invalid_values: &mut Vec<InvalidValue>) {
    let parts: Vec<(FieldPath, &Value)> = match value {
        Value::Object(entries) => entries.iter().map(|(key, v)| (path.key(key), v)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, v)| (path.index(i), v)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    let found_before = invalid_values.len();
    for (part_path, part) in parts {
        let Err(error) = read(&part_path.document_with(part.clone())) else { continue };
        match value {
            Value::Array(_) => invalid_values.push(invalid_value(part_path, part, &error)),
            _ => find_invalid(&part_path, part, invalid_values),
        }
    }
    if invalid_values.len() > found_before {
        return;
    }
    if let Err(error) = read(&path.document_with(value.clone())) {
        invalid_values.push(invalid_value(path.clone(), value, &error));
    }
}

fn invalid_value(field: FieldPath, value: &Value, error: &serde_json::Error) -> InvalidValue {
    InvalidValue { field, value: value.clone(), message: expectation(&error.to_string()) }
}

/// What is expected, derived from serde's error message.
fn expectation(error: &str) -> String {
    if error == "invalid IP address syntax" {
        return "must be an IP address".to_owned();
    }
    let mismatch = ["invalid type: ", "invalid value: ", "unknown variant "]
        .iter()
        .any(|prefix| error.starts_with(prefix));
    match error.split_once(", expected ") {
        Some((_, "i32")) => "must be a whole number of at most 32 bits".to_owned(),
        Some((_, "i64")) => "must be a whole number".to_owned(),
        Some((_, "u32")) => "must be a whole number from 0 to 4294967295".to_owned(),
        Some((_, "f64")) => "must be a number".to_owned(),
        Some((_, "a boolean")) => "must be true or false".to_owned(),
        Some((_, "string or map")) => "must be a string".to_owned(),
        Some((_, "a sequence")) => "must be a list".to_owned(),
        Some((_, "a map")) => "must be a mapping".to_owned(),
        Some((_, expected)) if mismatch => {
            format!("must be {}", expected.replace('`', "").trim_end_matches(':'))
        }
        _ => error.to_owned(),
    }
}

/// In a document, null means "not set".
pub fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            entries.retain(|_, entry| !entry.is_null());
            entries.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn field_path(path: &serde_ignored::Path<'_>) -> FieldPath {
    use serde_ignored::Path;
    match path {
        Path::Root => FieldPath::default(),
        Path::Seq { parent, index } => field_path(parent).index(*index),
        Path::Map { parent, key } => field_path(parent).key(key),
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => field_path(parent),
    }
}

/// The names of the fields of an object, for suggestions.
pub fn known_fields(at: &FieldPath) -> Vec<String> {
    let everything = serde_json::to_value(KubeletConfiguration::default()).unwrap_or_default();
    let object = at.find(&everything).and_then(Value::as_object);
    object.map_or_else(Vec::new, |object| object.keys().cloned().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn value_of_the_wrong_type_is_reported_with_path_and_expectation() {
        for (document, field, message) in [
            (json!({"maxPods": "many"}), "maxPods", "must be a whole number of at most 32 bits"),
            (
                json!({"maxPods": 99_999_999_999_i64}),
                "maxPods",
                "must be a whole number of at most 32 bits",
            ),
            (json!({"enableServer": "yes"}), "enableServer", "must be true or false"),
            (json!({"address": "here"}), "address", "must be an IP address"),
            (json!({"cgroupDriver": "systmd"}), "cgroupDriver", "must be cgroupfs or systemd"),
            (
                json!({"topologyManagerPolicy": "some"}),
                "topologyManagerPolicy",
                "must be one of none, best-effort, restricted, single-numa-node",
            ),
            (
                json!({"authentication": {"webhook": {"enabled": true, "cacheTTL": "2 minutes"}}}),
                "authentication.webhook.cacheTTL",
                r#"has the unknown unit " minutes"; known are ns, us, ms, s, m, h"#,
            ),
            (
                json!({"syncFrequency": 60}),
                "syncFrequency",
                "has no unit; write for example 60s or 60m",
            ),
            (
                json!({"evictionHard": {"memory.available": 100, "pid.available": "5%"}}),
                r#"evictionHard["memory.available"]"#,
                "must be a string",
            ),
            (
                json!({"registerWithTaints": [
                    {"key": "a", "effect": "NoSchedule"},
                    {"key": "b", "effect": "Never"},
                ]}),
                "registerWithTaints[1]",
                "must be one of NoSchedule, PreferNoSchedule, NoExecute",
            ),
            (
                json!({"registerWithTaints": [{"key": "a"}]}),
                "registerWithTaints[0]",
                "missing field `effect`",
            ),
            (json!({"clusterDNS": "10.96.0.10"}), "clusterDNS", "must be a list"),
        ] {
            let decoded = decode(&document);
            let found: Vec<_> = decoded
                .invalid_values
                .iter()
                .map(|invalid_value| {
                    (invalid_value.field.to_string(), invalid_value.message.as_str())
                })
                .collect();
            assert_eq!(found, [(field.to_owned(), message)], "{document}");
        }
    }

    #[test]
    fn all_invalid_values_are_found_and_the_rest_is_decoded() {
        let decoded = decode(&json!({
            "maxPods": "many",
            "port": 10999,
            "authentication": {"anonymous": {"enabled": 1}, "webhook": {"enabled": false}},
            "enforceNodeAllocatable": ["pods", "cats", "dogs"],
        }));
        let fields: Vec<_> = decoded.invalid_values.iter().map(|m| m.field.to_string()).collect();
        assert_eq!(
            fields,
            [
                "authentication.anonymous.enabled",
                "enforceNodeAllocatable[1]",
                "enforceNodeAllocatable[2]",
                "maxPods"
            ]
        );
        assert_eq!(decoded.configuration.port, 10999);
        assert!(!decoded.configuration.authentication.webhook.enabled);
        assert_eq!(decoded.configuration.max_pods, 110);
        assert_eq!(decoded.configuration.enforce_node_allocatable.len(), 1);
    }

    #[test]
    fn unknown_fields_are_reported_with_their_path() {
        let decoded = decode(&json!({
            "maxPod": 1,
            "authentication": {"webhok": {"enabled": true}},
            "logging": {"options": {"text": {"color": true}}},
            "featureGates": {"Anything": true},
        }));
        let fields: Vec<_> = decoded.unknown.iter().map(ToString::to_string).collect();
        assert_eq!(fields, ["authentication.webhok", "logging.options.text.color", "maxPod"]);
        assert!(decoded.invalid_values.is_empty());
    }

    #[test]
    fn null_means_not_set() {
        let decoded = decode(&json!({"maxPods": null, "authentication": {"webhook": null}}));
        assert!(decoded.invalid_values.is_empty());
        assert_eq!(decoded.configuration, KubeletConfiguration::default());
    }
}
