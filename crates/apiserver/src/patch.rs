//! Patches: the three formats in which a client can send a change instead of the whole object.
//!
//! All are pure functions from the original and the patch to the patched object. It may contain
//! anything that the patch adds; decoding it again drops or refuses invalid fields.

mod json;
mod strategic;

use serde_json::Value;

use crate::registry::Resource;
use crate::status::{ApiError, Details};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902: a list of operations.
    Json,
    /// RFC 7396: an object merged over the original.
    Merge,
    /// As merge, but lists are merged by the key of their elements.
    Strategic,
}

/// The texts are kube-apiserver's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch is not valid for its type.
    #[error("{0}")]
    Malformed(String),
    #[error("The allowed maximum operations in a JSON patch is {limit}, got {count}")]
    TooManySteps { count: usize, limit: usize },
    /// The patch is valid, but cannot be applied to the object. The reason is not sent to the
    /// client.
    #[error("the server rejected our request due to an error in our request")]
    DoesNotApply { why: String },
    /// The patch and the object contradict each other; kube-apiserver has no reason for this case.
    #[error("{0}")]
    Contradiction(String),
}

impl From<PatchError> for ApiError {
    fn from(error: PatchError) -> Self {
        let message = error.to_string();
        let (code, reason, details) = match error {
            PatchError::Malformed(_) => (400, "BadRequest", false),
            PatchError::TooManySteps { .. } => (413, "RequestEntityTooLarge", false),
            PatchError::DoesNotApply { .. } => (422, "Invalid", true),
            PatchError::Contradiction(_) => (500, "", false),
        };
        let details = details.then(|| Box::new(Details::default()));
        Self { code, reason, message, details }
    }
}

/// Applies the patch.
pub fn apply(
    patch_type: PatchType,
    resource: &Resource,
    original: &Value,
    patch: &Value,
) -> Result<Value, PatchError> {
    match patch_type {
        PatchType::Json => json::apply(original, patch),
        PatchType::Merge if !patch.is_object() => {
            Err(PatchError::Malformed("Invalid JSON Patch".to_owned()))
        }
        PatchType::Merge => {
            let mut merged = original.clone();
            json_patch::merge(&mut merged, patch);
            Ok(merged)
        }
        PatchType::Strategic => strategic::apply(resource, original, patch),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry::PODS;

    #[test]
    fn a_merge_patch_replaces_lists_and_deletes_by_null() {
        let original = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"l": [1, 2]}});
        let patch = json!({"metadata": {"labels": {"a": null, "c": "3"}}, "spec": {"l": [3]}});
        assert_eq!(
            apply(PatchType::Merge, &PODS, &original, &patch).unwrap(),
            json!({"metadata": {"labels": {"b": "2", "c": "3"}}, "spec": {"l": [3]}})
        );
    }

    #[test]
    fn merge_patch_must_be_an_object() {
        for patch in [json!([]), json!("x"), json!(null)] {
            let error = apply(PatchType::Merge, &PODS, &json!({}), &patch).unwrap_err();
            assert_eq!(error, PatchError::Malformed("Invalid JSON Patch".to_owned()));
        }
    }

    #[test]
    fn each_error_has_its_status() {
        for (error, code, reason) in [
            (PatchError::Malformed("x".to_owned()), 400, "BadRequest"),
            (PatchError::TooManySteps { count: 2, limit: 1 }, 413, "RequestEntityTooLarge"),
            (PatchError::DoesNotApply { why: "x".to_owned() }, 422, "Invalid"),
            (PatchError::Contradiction("x".to_owned()), 500, ""),
        ] {
            let status = ApiError::from(error);
            assert_eq!((status.code, status.reason), (code, reason));
        }
    }
}
