//! Semantic equality of two values.
//!
//! For the API server unset and empty lists and maps are equal, and so are `1Gi` and `1024Mi`. A
//! text comparison would report a change where there is none.

use serde_json::Value;

use super::{Side, Type, find};
use crate::quantity::Quantity;

/// Compares two canonical values of a type; `null` stands for a missing one.
pub fn equal(ty: &Type, a: &Value, b: &Value) -> bool {
    if a == b {
        return true;
    }
    match ty {
        Type::Pointer(inner) => !a.is_null() && !b.is_null() && equal(inner, a, b),
        Type::Quantity => match (quantity(a), quantity(b)) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        },
        Type::List(element) => {
            let (a, b) = (items(a), items(b));
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(element, a, b))
        }
        Type::Map(element) => {
            let size = |value: &Value| value.as_object().map_or(0, serde_json::Map::len);
            size(a) == size(b)
                && a.as_object().into_iter().flatten().all(|(key, entry)| {
                    b.get(key).is_some_and(|other| equal(element, entry, other))
                })
        }
        Type::Struct(name) => find(name).is_some_and(|shape| {
            shape
                .fields
                .iter()
                .filter(|field| field.side != Side::Internal)
                .all(|field| equal(&field.ty, member(a, field.name), member(b, field.name)))
        }),
        Type::String(_) => text(a) == text(b),
        Type::Bool => a.as_bool().unwrap_or(false) == b.as_bool().unwrap_or(false),
        Type::Int32 | Type::Int64 => a.as_i64().unwrap_or(0) == b.as_i64().unwrap_or(0),
        Type::Bytes => text(a) == text(b),
        Type::Time | Type::MicroTime | Type::IntOrString | Type::Any => false,
    }
}

/// Member of an object, or `null`.
pub fn member<'a>(value: &'a Value, name: &str) -> &'a Value {
    value.get(name).unwrap_or(&Value::Null)
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::Null => Some(Quantity::ZERO),
        other => other.as_str()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn same_meaning_in_another_form_is_equal() {
        let spec = Type::Struct("PodSpec");
        for (case, a, b, want) in [
            (
                "quantity",
                json!({"overhead": {"memory": "1Gi"}}),
                json!({"overhead": {"memory": "1024Mi"}}),
                true,
            ),
            (
                "other quantity",
                json!({"overhead": {"memory": "1Gi"}}),
                json!({"overhead": {"memory": "1G"}}),
                false,
            ),
            ("empty list", json!({"tolerations": []}), json!({}), true),
            ("empty map", json!({"nodeSelector": {}}), json!({}), true),
            (
                "other key",
                json!({"nodeSelector": {"a": ""}}),
                json!({"nodeSelector": {"b": ""}}),
                false,
            ),
            ("zero value", json!({"hostNetwork": false}), json!({}), true),
            ("unset pointer", json!({"hostUsers": false}), json!({}), false),
            (
                "list order",
                json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
                json!({"imagePullSecrets": [{"name": "b"}, {"name": "a"}]}),
                false,
            ),
        ] {
            assert_eq!(equal(&spec, &a, &b), want, "{case}");
            assert_eq!(equal(&spec, &b, &a), want, "{case}, swapped");
        }
    }
}
