//! Strategic merge patches: what `kubectl apply`, `label`, `set image` and every agent send.
//!
//! An object is merged field by field, a list of things by what identifies them (the table of
//! merge keys is `podwright_core::schema`). Directives in the patch say what a merge alone cannot:
//! `$patch: delete` or `replace` an element or object, `$deleteFromPrimitiveList/x` takes values
//! out of a set, `$setElementOrder/x` says how the list is to be ordered, `$retainKeys` clears
//! whatever it does not name.

mod list;

use podwright_core::schema::{self, Field, Merge, Struct, Type};
use serde_json::{Map, Value};

use super::PatchError;
use crate::registry::Resource;

type Object = Map<String, Value>;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_VALUES: &str = "$deleteFromPrimitiveList";
const ELEMENT_ORDER: &str = "$setElementOrder";

pub(super) fn apply(
    resource: &Resource,
    original: &Value,
    patch: &Value,
) -> Result<Value, PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (original, patch) else {
        return Err(PatchError::Malformed("invalid JSON document".to_owned()));
    };
    let shape = match schema::kind(resource.group, resource.kind) {
        Some(shape) => Shape::Struct(shape),
        None => Shape::Free,
    };
    merge(original.clone(), patch.clone(), shape).map(Value::Object)
}

/// What is known of the fields of an object.
#[derive(Clone, Copy)]
enum Shape {
    Struct(&'static Struct),
    /// Every entry has this type.
    Map(&'static Type),
    /// Anything goes, so lists are replaced.
    Free,
}

/// How one field is merged.
#[derive(Clone, Copy)]
struct How {
    /// Of the object it holds, or of the elements of the list it holds.
    shape: Shape,
    merge: Merge,
}

impl Shape {
    fn field(self, name: &str) -> How {
        let plain = |ty: &'static Type| How { shape: Self::of(ty), merge: Merge::Replace };
        match self {
            Self::Struct(shape) => match shape.field(name) {
                Some(Field { ty, merge, .. }) => How { shape: Self::of(ty), merge: *merge },
                None => How { shape: Self::Free, merge: Merge::Replace },
            },
            Self::Map(entry) => plain(entry),
            Self::Free => How { shape: Self::Free, merge: Merge::Replace },
        }
    }

    fn of(ty: &'static Type) -> Self {
        match ty.target() {
            Type::Struct(name) => schema::find(name).map_or(Self::Free, Self::Struct),
            Type::Map(entry) => Self::Map(entry),
            Type::List(element) => Self::of(element),
            Type::String(_)
            | Type::Bool
            | Type::Int32
            | Type::Int64
            | Type::Bytes
            | Type::Quantity
            | Type::Time
            | Type::MicroTime
            | Type::IntOrString
            | Type::Any
            | Type::Pointer(_) => Self::Free,
        }
    }
}

fn merge(mut original: Object, mut patch: Object, shape: Shape) -> Result<Object, PatchError> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Object::new()),
            _ => Err(unknown_directive(&directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    order_lists(&mut original, &mut patch, shape)?;
    for (name, value) in patch {
        if name.starts_with(DELETE_VALUES) {
            delete_values(&mut original, &name, value, shape)?;
            continue;
        }
        if value.is_null() {
            original.remove(&name);
            continue;
        }
        let how = shape.field(&name);
        let merged = match (original.remove(&name), value) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                Some(Value::Object(merge(old, new, how.shape)?))
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                Some(Value::Array(list::merge(old, new, how)?))
            }
            (_, new) => clean(without_nulls(new)),
        };
        if let Some(merged) = merged {
            original.insert(name, merged);
        }
    }
    Ok(original)
}

/// Clears the fields of the original that the patch does not name.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keys) = keys else { return Err(malformed()) };
    let is_kept = |name: &str| keys.iter().any(|key| key == name);
    let is_directive =
        |name: &str| name.starts_with(DELETE_VALUES) || name.starts_with(ELEMENT_ORDER);
    if patch.iter().any(|(name, value)| !value.is_null() && !is_directive(name) && !is_kept(name)) {
        return Err(malformed());
    }
    original.retain(|name, _| is_kept(name));
    Ok(())
}

/// Merges the lists whose order the patch gives, and puts them in that order.
fn order_lists(original: &mut Object, patch: &mut Object, shape: Shape) -> Result<(), PatchError> {
    let directives: Vec<String> =
        patch.keys().filter(|name| name.starts_with(ELEMENT_ORDER)).cloned().collect();
    for directive in directives {
        let malformed =
            || PatchError::Malformed("invalid patch format of setElementOrder list".to_owned());
        let order = patch.remove(&directive);
        let name = listed_field(&directive, ELEMENT_ORDER).ok_or_else(malformed)?;
        let Some(Value::Array(order)) = order else { return Err(malformed()) };
        let how = shape.field(name);
        let old = take_list(original, name)?;
        let new = take_list(patch, name)?;
        list::check_order(new.as_deref().unwrap_or_default(), &order, how)?;
        let live = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => match clean(Value::Array(new)) {
                Some(Value::Array(new)) => new,
                _ => continue,
            },
            (Some(old), Some(new)) => list::merge(old, new, how)?,
        };
        let ordered = list::order(merged, &order, &live, how)?;
        original.insert(name.to_owned(), Value::Array(ordered));
    }
    Ok(())
}

fn take_list(from: &mut Object, name: &str) -> Result<Option<Vec<Value>>, PatchError> {
    match from.remove(name) {
        None => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(other) => Err(PatchError::Contradiction(format!(
            "expected a []interface {{}}, but received a {}",
            list::go_type(&other)
        ))),
    }
}

/// Takes values out of a set, whatever else the patch does to it.
fn delete_values(
    original: &mut Object,
    directive: &str,
    values: Value,
    shape: Shape,
) -> Result<(), PatchError> {
    let malformed = || PatchError::Malformed("invalid patch format of primitive list".to_owned());
    let name = listed_field(directive, DELETE_VALUES).ok_or_else(malformed)?;
    match (original.remove(name), values) {
        (Some(Value::Array(held)), Value::Array(values)) => {
            let kept = list::without(held, values, shape.field(name))?;
            original.insert(name.to_owned(), Value::Array(kept));
        }
        (Some(_), Value::Null) | (None, _) => {}
        (Some(held), _) => {
            original.insert(name.to_owned(), held);
        }
    }
    Ok(())
}

/// `$directive/field` names the field.
fn listed_field<'a>(directive: &'a str, prefix: &str) -> Option<&'a str> {
    directive.strip_prefix(prefix)?.strip_prefix('/')
}

/// A null in a part that the original does not have says nothing.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name, without_nulls(value)))
            .collect::<Object>()
            .into(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain,
    }
}

/// Leaves out what is a directive: there is nothing here for it to act on.
fn clean(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => Some(
            fields
                .into_iter()
                .filter_map(|(name, value)| Some((name, clean(value)?)))
                .collect::<Object>()
                .into(),
        ),
        Value::Array(items) => Some(items.into_iter().filter_map(clean).collect()),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => Some(plain),
    }
}

fn unknown_directive(directive: &Value, object: &Object) -> PatchError {
    let mut whole = object.clone();
    whole.insert(DIRECTIVE.to_owned(), directive.clone());
    PatchError::Contradiction(format!(
        "unknown patch type: {} in map: {}",
        list::go_text(directive),
        list::go_text(&Value::Object(whole))
    ))
}

#[cfg(test)]
mod tests;
