//! JSON edited by path, without a way to panic.
//!
//! `value["a"]["b"] = x` of `serde_json` panics when `a` is a list, and whether it is may be a
//! client's choice. Here what stands in the way of a path is replaced.

use serde_json::{Map, Value};

/// The place that a path leads to; what is missing on the way is made.
pub fn at<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Value {
    let mut place = value;
    for name in path {
        place = as_map(place).entry(*name).or_insert(Value::Null);
    }
    place
}

/// The object at a path.
pub fn map_at<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Map<String, Value> {
    as_map(at(value, path))
}

/// The list at a path.
pub fn list_at<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Vec<Value> {
    as_list(at(value, path))
}

/// Puts a value at a path; none takes away what is there.
pub fn put(value: &mut Value, path: &[&str], new: Option<Value>) {
    let Some((last, way)) = path.split_last() else { return };
    match new {
        Some(new) => _ = map_at(value, way).insert((*last).to_owned(), new),
        None => {
            let mut place = Some(value);
            for name in way {
                place = place.and_then(|value| value.get_mut(name));
            }
            if let Some(map) = place.and_then(Value::as_object_mut) {
                map.remove(*last);
            }
        }
    }
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

fn as_list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(list) => list,
        _ => unreachable!("made a list above"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_is_there_a_path_leads_to_its_place() {
        for before in [json!(null), json!([]), json!("x"), json!({"a": []}), json!({"a": {"b": 1}})]
        {
            let mut value = before.clone();
            put(&mut value, &["a", "b"], Some(json!(2)));
            assert_eq!(value, json!({"a": {"b": 2}}), "{before}");
            list_at(&mut value, &["a", "c"]).push(json!(3));
            assert_eq!(value["a"]["c"], json!([3]), "{before}");
            put(&mut value, &["a", "b"], None);
            put(&mut value, &["x", "y"], None);
            assert_eq!(value, json!({"a": {"c": [3]}}), "nothing is made to be taken away");
        }
    }
}
