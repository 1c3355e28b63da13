//! Strategic merge patches, as sent by `kubectl apply`, `label`, `set image` and kubelets.
//!
//! An object is merged field by field, a list of objects by the merge key of its elements (the
//! table of merge keys is `podwright_api::schema`). Directives in the patch express the rest:
//! `$patch: delete` or `replace` an element or object, `$deleteFromPrimitiveList/x` removes values
//! from a set, `$setElementOrder/x` gives the order of a list, `$retainKeys` clears all fields that
//! it does not name.

mod list;

use podwright_api::schema::{self, Field, Merge, Struct, Type};
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

/// What the schema says about the fields of an object.
#[derive(Clone, Copy)]
enum Shape {
    Struct(&'static Struct),
    /// Every value has this type.
    Map(&'static Type),
    /// No schema, so lists are replaced.
    Free,
}

/// Merge rule of one field.
#[derive(Clone, Copy)]
struct MergeRule {
    /// Schema of the object, or of the elements of the list.
    shape: Shape,
    merge: Merge,
}

impl Shape {
    fn field(self, name: &str) -> MergeRule {
        let plain = |ty: &'static Type| MergeRule { shape: Self::of(ty), merge: Merge::Replace };
        match self {
            Self::Struct(shape) => match shape.field(name) {
                Some(Field { ty, merge, .. }) => MergeRule { shape: Self::of(ty), merge: *merge },
                None => MergeRule { shape: Self::Free, merge: Merge::Replace },
            },
            Self::Map(entry) => plain(entry),
            Self::Free => MergeRule { shape: Self::Free, merge: Merge::Replace },
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
        let rule = shape.field(&name);
        let merged = match (original.remove(&name), value) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                Some(Value::Object(merge(old, new, rule.shape)?))
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                Some(Value::Array(list::merge(old, new, rule)?))
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

/// Merges the lists for which the patch has an order, and applies that order.
fn order_lists(original: &mut Object, patch: &mut Object, shape: Shape) -> Result<(), PatchError> {
    let directives: Vec<String> =
        patch.keys().filter(|name| name.starts_with(ELEMENT_ORDER)).cloned().collect();
    for directive in directives {
        let malformed =
            || PatchError::Malformed("invalid patch format of setElementOrder list".to_owned());
        let order = patch.remove(&directive);
        let name = listed_field(&directive, ELEMENT_ORDER).ok_or_else(malformed)?;
        let Some(Value::Array(order)) = order else { return Err(malformed()) };
        let rule = shape.field(name);
        let old = take_list(original, name)?;
        let new = take_list(patch, name)?;
        list::check_order(new.as_deref().unwrap_or_default(), &order, rule)?;
        let live = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => match clean(Value::Array(new)) {
                Some(Value::Array(new)) => new,
                _ => continue,
            },
            (Some(old), Some(new)) => list::merge(old, new, rule)?,
        };
        let ordered = list::order(merged, &order, &live, rule)?;
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

/// Removes values from a set, independent of the rest of the patch.
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

/// The field named by `$directive/field`.
fn listed_field<'a>(directive: &'a str, prefix: &str) -> Option<&'a str> {
    directive.strip_prefix(prefix)?.strip_prefix('/')
}

/// Drops nulls: there is nothing to delete in a new value.
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

/// Drops directives: there is nothing to apply them to.
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
