//! JSON patches, with limits.
//!
//! A patch of a few bytes can copy a value over and over, or nest values until no parser reads the
//! result. So operations, copied bytes and depth are limited.

use json_patch::PatchOperation;
use serde_json::Value;

use super::PatchError;

const MAX_STEPS: usize = 10_000;
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;
/// The depth limit of the JSON parser, so that stored objects can be parsed again.
const MAX_DEPTH: usize = 120;

pub(super) fn apply(original: &Value, patch: &Value) -> Result<Value, PatchError> {
    let Value::Array(steps) = patch else {
        return Err(mismatch(patch, "jsonpatch.Patch"));
    };
    if let Some(step) = steps.iter().find(|step| !step.is_object()) {
        return Err(mismatch(step, "jsonpatch.Operation"));
    }
    if steps.len() > MAX_STEPS {
        return Err(PatchError::TooManySteps { count: steps.len(), limit: MAX_STEPS });
    }
    let mut object = original.clone();
    let mut copied = 0;
    for step in steps {
        let step: PatchOperation = serde_json::from_value(step.clone()).map_err(does_not_apply)?;
        check_bounds(&step, &object, &mut copied)?;
        json_patch::patch(&mut object, std::slice::from_ref(&step)).map_err(does_not_apply)?;
    }
    Ok(object)
}

fn check_bounds(
    step: &PatchOperation,
    object: &Value,
    copied: &mut usize,
) -> Result<(), PatchError> {
    let moved = match step {
        PatchOperation::Add(step) => Some(&step.value),
        PatchOperation::Replace(step) => Some(&step.value),
        PatchOperation::Move(step) => step.from.resolve(object).ok(),
        PatchOperation::Copy(step) => {
            let value = step.from.resolve(object).ok();
            *copied += value.map_or(0, |value| value.to_string().len());
            value
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => None,
    };
    if *copied > MAX_COPIED_BYTES {
        let why = format!(
            "Unable to complete the copy, the accumulated size increase of copy is {copied}, \
             exceeding the limit {MAX_COPIED_BYTES}"
        );
        return Err(PatchError::DoesNotApply { why });
    }
    if moved.is_some_and(|value| step.path().count() + depth(value) > MAX_DEPTH) {
        let why = format!("the object would nest deeper than {MAX_DEPTH} levels");
        return Err(PatchError::DoesNotApply { why });
    }
    Ok(())
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn mismatch(found: &Value, expected: &str) -> PatchError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    PatchError::Malformed(format!(
        "json: cannot unmarshal {found} into Go value of type {expected}"
    ))
}

fn does_not_apply(error: impl std::error::Error) -> PatchError {
    PatchError::DoesNotApply { why: error.to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_are_applied_in_order() {
        let original = json!({"a": {"b": 1}, "l": [1, 2]});
        for (patch, want) in [
            (
                json!([{"op": "add", "path": "/a/c", "value": 2}]),
                json!({"a": {"b": 1, "c": 2}, "l": [1, 2]}),
            ),
            (json!([{"op": "remove", "path": "/a"}]), json!({"l": [1, 2]})),
            (
                json!([{"op": "replace", "path": "/l/0", "value": 9}]),
                json!({"a": {"b": 1}, "l": [9, 2]}),
            ),
            (
                json!([{"op": "add", "path": "/l/-", "value": 3}]),
                json!({"a": {"b": 1}, "l": [1, 2, 3]}),
            ),
            (
                json!([{"op": "move", "from": "/a/b", "path": "/x"}]),
                json!({"a": {}, "l": [1, 2], "x": 1}),
            ),
            (
                json!([{"op": "copy", "from": "/a", "path": "/x"}]),
                json!({"a": {"b": 1}, "l": [1, 2], "x": {"b": 1}}),
            ),
            (json!([{"op": "test", "path": "/a/b", "value": 1}]), original.clone()),
            (
                json!([{"op": "add", "path": "/x", "value": {}}, {"op": "add", "path": "/x/y~1z", "value": 1}]),
                json!({"a": {"b": 1}, "l": [1, 2], "x": {"y/z": 1}}),
            ),
        ] {
            assert_eq!(apply(&original, &patch).unwrap(), want, "{patch}");
        }
    }

    #[test]
    fn failing_operation_refuses_the_whole_patch() {
        let original = json!({"a": 1, "l": []});
        for step in [
            json!({"op": "remove", "path": "/x"}),
            json!({"op": "replace", "path": "/x", "value": 1}),
            json!({"op": "add", "path": "/x/y", "value": 1}),
            json!({"op": "add", "path": "/l/7", "value": 1}),
            json!({"op": "test", "path": "/a", "value": 2}),
            json!({"op": "copy", "from": "/x", "path": "/y"}),
            json!({"op": "turn", "path": "/a"}),
            json!({"op": "add", "path": "no slash", "value": 1}),
            json!({}),
        ] {
            let patch = json!([{"op": "add", "path": "/b", "value": 1}, step]);
            let error = apply(&original, &patch).unwrap_err();
            assert!(matches!(error, PatchError::DoesNotApply { .. }), "{step}: {error:?}");
        }
    }

    #[test]
    fn patch_that_is_not_a_list_of_operations_is_refused() {
        let text = |patch: &Value| apply(&json!({}), patch).unwrap_err().to_string();
        assert_eq!(
            text(&json!({})),
            "json: cannot unmarshal object into Go value of type jsonpatch.Patch"
        );
        assert_eq!(
            text(&json!(["x"])),
            "json: cannot unmarshal string into Go value of type jsonpatch.Operation"
        );
    }

    #[test]
    fn hostile_patches_hit_limits() {
        let steps = vec![json!({"op": "test", "path": "/a", "value": 1}); MAX_STEPS + 1];
        assert_eq!(
            apply(&json!({"a": 1}), &steps.into()).unwrap_err(),
            PatchError::TooManySteps { count: 10_001, limit: 10_000 }
        );
        let double = json!({"op": "copy", "from": "/a", "path": "/a/x"});
        let steps = vec![double; 100];
        let error = apply(&json!({"a": {"text": "x".repeat(1024)}}), &steps.into()).unwrap_err();
        assert!(matches!(error, PatchError::DoesNotApply { .. }));
        let deeper: Vec<Value> = (1..2000)
            .map(|depth| json!({"op": "add", "path": "/a".repeat(depth), "value": {}}))
            .collect();
        let error = apply(&json!({}), &deeper.into()).unwrap_err();
        assert!(matches!(error, PatchError::DoesNotApply { .. }));
    }
}
