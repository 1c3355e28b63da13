//! List merging in strategic merge patches.

use std::collections::{HashMap, HashSet};

use podwright_api::schema::Merge;
use serde_json::Value;

use super::{DIRECTIVE, MergeRule, merge as merge_objects, unknown_directive};
use crate::patch::PatchError;

type List = Vec<Value>;

/// The merged list: patched elements in the order of the patch, among those that it does not name.
pub(super) fn merge(original: List, patch: List, rule: MergeRule) -> Result<List, PatchError> {
    match rule.merge {
        Merge::Replace => Ok(patch),
        Merge::Set | Merge::ByKey(_) if original.is_empty() && patch.is_empty() => Ok(original),
        Merge::Set | Merge::ByKey(_) => {
            let objects = elements_are_objects(&original, &patch)?;
            match (rule.merge, objects) {
                (Merge::ByKey(key), true) => merge_by_key(original, patch, key, rule),
                (_, true) => Err(PatchError::Contradiction(
                    "cannot merge lists without merge key for this field".to_owned(),
                )),
                (_, false) => {
                    let merged = unique(original.iter().chain(&patch).cloned());
                    order(merged, &patch, &original, MergeRule { merge: Merge::Set, ..rule })
                }
            }
        }
    }
}

fn merge_by_key(
    original: List,
    patch: List,
    key: &'static str,
    rule: MergeRule,
) -> Result<List, PatchError> {
    let (original, patch) = special_elements(original, patch, key)?;
    let live = original.clone();
    let mut merged = original;
    let mut positions: HashMap<String, usize> = HashMap::new();
    for (at, element) in merged.iter().enumerate() {
        let Some(value) = object(element)?.get(key) else { continue };
        positions.entry(value.to_string()).or_insert(at);
    }
    for element in &patch {
        let Value::Object(fields) = element else { continue };
        let value = fields.get(key).ok_or_else(|| no_key(element, key))?.to_string();
        match positions.get(&value).and_then(|at| merged.get_mut(*at)) {
            Some(old) => {
                let Value::Object(own) = old.take() else { continue };
                *old = merge_objects(own, fields.clone(), rule.shape)?.into();
            }
            None => {
                positions.insert(value, merged.len());
                merged.push(element.clone());
            }
        }
    }
    order(merged, &patch, &live, rule)
}

/// Applies the directives among the patch's elements and returns the remaining elements.
fn special_elements(
    mut original: List,
    patch: List,
    key: &str,
) -> Result<(List, List), PatchError> {
    let mut rest = List::new();
    let mut gone: HashSet<String> = HashSet::new();
    let mut replace = false;
    for element in patch {
        let fields = object(&element)?;
        let Some(directive) = fields.get(DIRECTIVE) else {
            rest.push(element);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let value = fields.get(key).ok_or_else(|| no_key(&element, key))?;
                gone.insert(value.to_string());
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(PatchError::Contradiction(
                    "merging lists cannot yet be specified in the patch".to_owned(),
                ));
            }
            _ => return Err(unknown_directive(directive, fields)),
        }
    }
    if replace {
        return Ok((rest, List::new()));
    }
    if !gone.is_empty() {
        original.retain(|element| element.get(key).is_none_or(|v| !gone.contains(&v.to_string())));
    }
    Ok((original, rest))
}

/// The set without these values.
pub(super) fn without(held: List, values: List, rule: MergeRule) -> Result<List, PatchError> {
    if held.is_empty() && values.is_empty() {
        return Ok(held);
    }
    if elements_are_objects(&held, &values)? {
        return merge(held, values, rule);
    }
    let gone: HashSet<String> = values.iter().map(Value::to_string).collect();
    Ok(held.into_iter().filter(|value| !gone.contains(&value.to_string())).collect())
}

/// Orders the elements named in `wanted` as given there, and keeps the others in relative position.
///
/// An element that the patch does not name stays before the named ones that it preceded.
pub(super) fn order(
    merged: List,
    wanted: &[Value],
    live: &[Value],
    rule: MergeRule,
) -> Result<List, PatchError> {
    let identity = |element: &Value| match rule.merge {
        Merge::ByKey(key) => match object(element)?.get(key) {
            Some(value) => Ok(value.to_string()),
            None => Err(no_key(element, key)),
        },
        Merge::Set | Merge::Replace => Ok(element.to_string()),
    };
    let positions = |list: &[Value]| -> Result<HashMap<String, usize>, PatchError> {
        let mut positions = HashMap::new();
        for (at, element) in list.iter().enumerate() {
            positions.entry(identity(element)?).or_insert(at);
        }
        Ok(positions)
    };
    let (wanted, live) = (positions(wanted)?, positions(live)?);
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for element in merged {
        let id = identity(&element)?;
        match wanted.get(&id) {
            Some(position) => named.push((*position, id, element)),
            None => others.push((live.get(&id).copied().unwrap_or(usize::MAX), id, element)),
        }
    }
    named.sort_by_key(|(position, ..)| *position);
    others.sort_by_key(|(position, ..)| *position);
    let mut ordered = List::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, id, element) in named {
        while let (Some((position, ..)), Some(current)) = (others.peek(), live.get(&id))
            && position < current
        {
            ordered.extend(others.next().map(|(.., element)| element));
        }
        ordered.push(element);
    }
    ordered.extend(others.map(|(.., element)| element));
    Ok(ordered)
}

/// Checks that the elements of a patch are in the order that the patch gives.
pub(super) fn check_order(
    patch: &[Value],
    order: &[Value],
    rule: MergeRule,
) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let identity = |element: &Value| match rule.merge {
        Merge::ByKey(key) => {
            object(element)?.get(key).map(Value::to_string).ok_or_else(|| no_key(element, key))
        }
        Merge::Set | Merge::Replace => Ok(element.to_string()),
    };
    let mut expected = order.iter();
    for element in patch.iter().filter(|element| element.get(DIRECTIVE).is_none()) {
        let wanted = identity(element)?;
        loop {
            match expected.next() {
                Some(next) if identity(next)? == wanted => break,
                Some(_) => {}
                None => {
                    return Err(PatchError::Contradiction(format!(
                        "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                        go_text(&Value::from(patch.to_vec())),
                        go_text(&Value::from(order.to_vec()))
                    )));
                }
            }
        }
    }
    Ok(())
}

/// Whether all elements are objects; an error if only some are.
fn elements_are_objects(a: &[Value], b: &[Value]) -> Result<bool, PatchError> {
    let mut kinds = a.iter().chain(b).map(go_type);
    let first = kinds.next().unwrap_or("string");
    if first == "[]interface {}" || kinds.clone().any(|kind| kind == "[]interface {}") {
        let why = "lists of lists are not supported".to_owned();
        return Err(PatchError::DoesNotApply { why });
    }
    if kinds.any(|kind| kind != first) {
        let all: List = a.iter().chain(b).cloned().collect();
        return Err(PatchError::Contradiction(format!(
            "list element types are not identical: {}",
            go_text(&Value::Array(all))
        )));
    }
    Ok(first == "map[string]interface {}")
}

fn unique(values: impl Iterator<Item = Value>) -> List {
    let mut seen = HashSet::new();
    values.filter(|value| seen.insert(value.to_string())).collect()
}

fn object(element: &Value) -> Result<&super::Object, PatchError> {
    element.as_object().ok_or_else(|| {
        PatchError::Contradiction(format!(
            "expected a map[string]interface {{}}, but received a {}",
            go_type(element)
        ))
    })
}

fn no_key(element: &Value, key: &str) -> PatchError {
    PatchError::Contradiction(format!(
        "map: {} does not contain declared merge key: {key}",
        go_text(element)
    ))
}

/// Name of the Go type in messages.
pub(super) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The value as Go's messages print it.
pub(super) fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_text).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name}:{}", go_text(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
    }
}
