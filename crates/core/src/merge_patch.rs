//! JSON merge patch (RFC 7386) between two objects.

use serde_json::{Map, Value};

/// The patch from `before` to `after`; null removes a field.
pub fn diff(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let mut out = Map::new();
    for (field, new) in after {
        match (before.get(field), new) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                out.insert(field.clone(), Value::Object(diff(old, new)));
            }
            (_, new) => {
                out.insert(field.clone(), new.clone());
            }
        }
    }
    let gone = before.keys().filter(|field| !after.contains_key(*field));
    out.extend(gone.map(|field| (field.clone(), Value::Null)));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patch_has_only_what_differs_and_null_for_what_is_gone() {
        for (before, after, want) in [
            (json!({}), json!({}), json!({})),
            (json!({ "a": 1, "b": 2 }), json!({ "a": 1, "b": 3 }), json!({ "b": 3 })),
            (json!({ "a": 1 }), json!({}), json!({ "a": null })),
            (
                json!({ "a": { "b": 1, "c": 2 } }),
                json!({ "a": { "b": 1 } }),
                json!({ "a": { "c": null } }),
            ),
            (json!({ "a": [1, 2] }), json!({ "a": [1] }), json!({ "a": [1] })),
            (json!({ "a": 1 }), json!({ "a": { "b": 1 } }), json!({ "a": { "b": 1 } })),
        ] {
            let case = format!("{before} to {after}");
            let (before, after) = (before.as_object().unwrap(), after.as_object().unwrap());
            assert_eq!(Value::Object(diff(before, after)), want, "{case}");
        }
    }
}
