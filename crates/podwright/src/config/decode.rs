//! Untyped document to [`KubeletConfiguration`], finding every value that does not fit.
//!
//! A typed reader stops at the first wrong value and does not say where it was. So when it fails,
//! each part of the document is read alone: those that fail alone are the culprits. They are
//! reported and left out, and the rest is still checked, in the same run.

use serde::Deserialize;
use serde_json::Value;

use super::field::FieldPath;
use super::kubelet::KubeletConfiguration;
use super::problem::{Problem, Source};

/// A value that is not of its field's type. It may be a secret, so it cannot be printed.
pub struct Misfit {
    pub field: FieldPath,
    pub value: Value,
    /// What would be right.
    pub trouble: String,
}

impl Misfit {
    /// The problem it is in a document of someone's.
    pub fn said_by(self, source: &Source) -> Problem {
        Problem::with_field(source.clone(), self.field, Some(&self.value), self.trouble)
    }
}

/// A document as far as it can be read.
pub struct Decoded {
    pub configuration: KubeletConfiguration,
    pub misfits: Vec<Misfit>,
    /// Fields no `KubeletConfiguration` has.
    pub unknown: Vec<FieldPath>,
}

/// Reads a document; what does not fit is left at its default and reported.
pub fn decode(document: &Value) -> Decoded {
    let mut rest = document.clone();
    remove_nulls(&mut rest);
    let mut misfits = Vec::new();
    if read(&rest).is_err() {
        blame(&FieldPath::default(), &rest, &mut misfits);
        // Backwards, so that removing an item does not move those before it.
        for misfit in misfits.iter().rev() {
            misfit.field.remove(&mut rest);
        }
    }
    let mut unknown = Vec::new();
    let configuration = serde_ignored::deserialize(&rest, |path| unknown.push(place(&path)));
    Decoded { configuration: configuration.unwrap_or_default(), misfits, unknown }
}

fn read(document: &Value) -> Result<KubeletConfiguration, serde_json::Error> {
    KubeletConfiguration::deserialize(document)
}

/// Finds the smallest parts of `value` that cannot be read. An item of a list is blamed as a whole:
/// a part of it would miss the fields that are required beside it.
fn blame(path: &FieldPath, value: &Value, misfits: &mut Vec<Misfit>) {
    let parts: Vec<(FieldPath, &Value)> = match value {
        Value::Object(entries) => entries.iter().map(|(key, v)| (path.key(key), v)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(i, v)| (path.index(i), v)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    let found_before = misfits.len();
    for (part_path, part) in parts {
        let Err(error) = read(&part_path.document_with(part.clone())) else { continue };
        match value {
            Value::Array(_) => misfits.push(misfit(part_path, part, &error)),
            _ => blame(&part_path, part, misfits),
        }
    }
    if misfits.len() > found_before {
        return;
    }
    if let Err(error) = read(&path.document_with(value.clone())) {
        misfits.push(misfit(path.clone(), value, &error));
    }
}

fn misfit(field: FieldPath, value: &Value, error: &serde_json::Error) -> Misfit {
    Misfit { field, value: value.clone(), trouble: in_plain_words(&error.to_string()) }
}

/// What would be right, from a reader's message about what is wrong.
fn in_plain_words(error: &str) -> String {
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

fn place(path: &serde_ignored::Path<'_>) -> FieldPath {
    use serde_ignored::Path;
    match path {
        Path::Root => FieldPath::default(),
        Path::Seq { parent, index } => place(parent).index(*index),
        Path::Map { parent, key } => place(parent).key(key),
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => place(parent),
    }
}

/// The names of the fields that stand beside each other at a place, for suggestions.
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
    fn every_value_of_the_wrong_type_is_found_with_its_path_and_what_would_be_right() {
        for (document, field, trouble) in [
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
                .misfits
                .iter()
                .map(|misfit| (misfit.field.to_string(), misfit.trouble.as_str()))
                .collect();
            assert_eq!(found, [(field.to_owned(), trouble)], "{document}");
        }
    }

    #[test]
    fn several_misfits_are_found_at_once_and_the_rest_is_read() {
        let decoded = decode(&json!({
            "maxPods": "many",
            "port": 10999,
            "authentication": {"anonymous": {"enabled": 1}, "webhook": {"enabled": false}},
            "enforceNodeAllocatable": ["pods", "cats", "dogs"],
        }));
        let fields: Vec<_> = decoded.misfits.iter().map(|m| m.field.to_string()).collect();
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
    fn fields_nobody_knows_are_named_with_their_path() {
        let decoded = decode(&json!({
            "maxPod": 1,
            "authentication": {"webhok": {"enabled": true}},
            "logging": {"options": {"text": {"color": true}}},
            "featureGates": {"Anything": true},
        }));
        let fields: Vec<_> = decoded.unknown.iter().map(ToString::to_string).collect();
        assert_eq!(fields, ["authentication.webhok", "logging.options.text.color", "maxPod"]);
        assert!(decoded.misfits.is_empty());
    }

    #[test]
    fn null_is_as_good_as_not_written() {
        let decoded = decode(&json!({"maxPods": null, "authentication": {"webhook": null}}));
        assert!(decoded.misfits.is_empty());
        assert_eq!(decoded.configuration, KubeletConfiguration::default());
    }
}
