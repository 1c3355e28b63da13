//! JSON editing by path that cannot panic.
//!
//! `value["a"]["b"] = x` of `serde_json` panics when `a` is a list, and a client may send one. Here
//! a value of the wrong type on the path is replaced.

use serde_json::{Map, Value};

/// The value at a path; missing parents are created.
pub fn at<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Value {
    let mut current = value;
    for name in path {
        current = as_map(current).entry(*name).or_insert(Value::Null);
    }
    current
}

/// The object at a path.
pub fn map_at<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Map<String, Value> {
    as_map(at(value, path))
}

/// The list at a path.
pub fn list_at<'v>(value: &'v mut Value, path: &[&str]) -> &'v mut Vec<Value> {
    as_list(at(value, path))
}

/// Sets the value at a path; `None` removes it.
pub fn put(value: &mut Value, path: &[&str], new: Option<Value>) {
    let Some((last, parents)) = path.split_last() else { return };
    match new {
        Some(new) => _ = map_at(value, parents).insert((*last).to_owned(), new),
        None => {
            let mut current = Some(value);
            for name in parents {
                current = current.and_then(|value| value.get_mut(name));
            }
            if let Some(map) = current.and_then(Value::as_object_mut) {
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
    fn values_of_the_wrong_type_on_the_path_are_replaced() {
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
