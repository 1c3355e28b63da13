//! Parts of values as the walks over objects need them.

use serde_json::{Map, Value};

use super::path_element::{PathElement, Scalar, whole};
use super::topology::{Place, ScalarKind, Topology};

pub(super) fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn entries(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object).filter(|map| !map.is_empty())
}

/// Whether two values mean the same: `1` and `1.0` do.
pub(super) fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => {
            a == b || whole(a).is_some_and(|number| whole(b) == Some(number))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => one == other,
    }
}

/// Identity of a list element. The errors are upstream's.
pub(super) fn step_of(
    element: Place,
    keys: &'static [&'static str],
    item: &Value,
) -> Result<PathElement, String> {
    if keys.is_empty() {
        return match item {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => {
                Err("not supported: associative list with lists as elements".to_owned())
            }
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null"
                    .to_owned())
            }
            scalar => Ok(PathElement::Value(Scalar::of(scalar))),
        };
    }
    let map = match item {
        Value::Object(map) => map,
        Value::Null => {
            return Err("associative list with keys may not have a null element".to_owned());
        }
        _ => {
            return Err("associative list with keys may not have non-map elements".to_owned());
        }
    };
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let scalar = match map.get(*key) {
            Some(value) => Scalar::of(value),
            None => absent_key(element, key),
        };
        found.push(((*key).to_owned(), scalar));
    }
    found.sort();
    Ok(PathElement::Key(found))
}

/// The value that stands in a key for a field that the element does not have.
fn absent_key(element: Place, key: &str) -> Scalar {
    let place = element.field(key);
    if let Some(Place::Typed { field: Some(field), .. }) = place
        && let Some(default) = field.key_default
    {
        return Scalar::Text(default.to_owned());
    }
    match place.map(Place::topology) {
        Some(Topology::Scalar(ScalarKind::Number)) => Scalar::Integer(0),
        _ => Scalar::Text(String::new()),
    }
}
