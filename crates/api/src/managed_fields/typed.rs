//! Walks over typed values: check, field set, comparison, merge, removal.
//!
//! Depth is bounded by the parser of JSON, which refuses more than 128 levels.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::field_set::FieldSet;
use super::path_element::PathElement;
use super::topology::{Place, ScalarKind, Topology};
use super::value::{entries, equal, items, step_of};

/// An error message lists no more: a body may have a hundred thousand wrong fields.
const MAX_ERRORS: usize = 20;
/// Nor does it get longer: each error repeats the names of all enclosing fields.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Checks an applied body. The messages are upstream's.
pub(super) fn check(place: Place, value: &Value) -> Result<(), String> {
    let mut checked = Checked::default();
    checked.value(place, value);
    match checked.errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(many.iter().fold("errors:".to_owned(), |text, one| text + "\n  " + one)),
    }
}

#[derive(Default)]
struct Checked {
    /// Steps to the current value, as messages show them. Only an error joins them.
    path: Vec<String>,
    errors: Vec<String>,
    bytes: usize,
}

impl Checked {
    fn refuse(&mut self, why: &str) {
        if !self.is_full() {
            let error = format!("{}: {why}", self.path.concat());
            self.bytes += error.len();
            self.errors.push(error);
        }
    }

    fn is_full(&self) -> bool {
        self.errors.len() >= MAX_ERRORS || self.bytes >= MAX_ERROR_BYTES
    }

    fn below(&mut self, step: String, place: Place, value: &Value) {
        self.path.push(step);
        self.value(place, value);
        self.path.pop();
    }

    fn value(&mut self, place: Place, value: &Value) {
        if value.is_null() || self.is_full() {
            return;
        }
        match (place.topology(), value) {
            (Topology::Untyped, _) => {}
            (Topology::Scalar(kind), _) => {
                if let Some(why) = scalar_mismatch(kind, value) {
                    self.refuse(&why);
                }
            }
            (Topology::List { element, keys, atomic }, Value::Array(list)) => {
                self.list(element, keys, atomic, list);
            }
            (Topology::List { .. }, _) => {
                self.refuse(&format!("expected list, got {}", in_go(value)));
            }
            (Topology::Map { .. } | Topology::Struct { .. }, Value::Object(map)) => {
                for (name, below) in map {
                    match place.member(name) {
                        Some(place) => self.below(format!(".{name}"), place, below),
                        None => {
                            self.path.push(format!(".{name}"));
                            self.refuse("field not declared in schema");
                            self.path.pop();
                        }
                    }
                    if self.is_full() {
                        return;
                    }
                }
            }
            (Topology::Map { .. } | Topology::Struct { .. }, _) => {
                self.refuse(&format!("expected map, got {}", in_go(value)));
            }
        }
    }

    fn list(
        &mut self,
        element: Place,
        keys: &'static [&'static str],
        atomic: bool,
        list: &[Value],
    ) {
        let mut seen = BTreeSet::new();
        for (at, item) in list.iter().enumerate() {
            if self.is_full() {
                return;
            }
            if atomic {
                self.below(format!("[{at}]"), element, item);
                continue;
            }
            match step_of(element, keys, item) {
                Ok(step) => {
                    if seen.contains(&step) {
                        self.refuse(&format!("duplicate entries for key {step}"));
                    }
                    self.below(step.to_string(), element, item);
                    seen.insert(step);
                }
                Err(why) => self.refuse(&format!("element {at}: {why}")),
            }
        }
    }
}

fn scalar_mismatch(kind: ScalarKind, value: &Value) -> Option<String> {
    let fits = match kind {
        ScalarKind::Text => value.is_string(),
        ScalarKind::Number => value.is_number(),
        ScalarKind::Bool => value.is_boolean(),
        ScalarKind::Any => !value.is_object() && !value.is_array(),
    };
    if fits {
        return None;
    }
    Some(match kind {
        ScalarKind::Text => {
            format!("expected string, got &value.valueUnstructured{}", wrapped(value))
        }
        ScalarKind::Number => {
            let ty = match value {
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                Value::Array(_) => "[]interface {}",
                _ => "map[string]interface {}",
            };
            format!("expected numeric (int or float), got {ty}")
        }
        ScalarKind::Bool => format!("expected boolean, got {}", in_go(value)),
        ScalarKind::Any => format!("expected any scalar, got {}", in_go(value)),
    })
}

fn wrapped(value: &Value) -> String {
    match value {
        Value::Array(_) => format!("{{Value:[]interface {{}}{value}}}"),
        Value::Object(_) => format!("{{Value:map[string]interface {{}}{value}}}"),
        scalar => format!("{{Value:{scalar}}}"),
    }
}

fn in_go(value: &Value) -> String {
    match value {
        Value::String(text) => format!("&{{{text}}}"),
        other => format!("&{{{other}}}"),
    }
}

/// The fields of a value that a manager owns who applies it.
pub(super) fn field_set(place: Place, value: &Value) -> FieldSet {
    match place.topology() {
        // The caller makes the field itself a member.
        Topology::Scalar(_)
        | Topology::Untyped
        | Topology::List { atomic: true, .. }
        | Topology::Map { atomic: true, .. }
        | Topology::Struct { atomic: true } => FieldSet::new(),
        Topology::List { element, keys, .. } => {
            let mut members = Vec::new();
            let mut children = BTreeMap::<PathElement, FieldSet>::new();
            for item in items(Some(value)) {
                let Ok(step) = step_of(element, keys, item) else { continue };
                members.push(step.clone());
                let below = field_set(element, item);
                let merged = children.get(&step).map_or(below.clone(), |set| set.union(&below));
                children.insert(step, merged);
            }
            FieldSet::from_parts(members, children)
        }
        Topology::Map { .. } | Topology::Struct { .. } => {
            let is_map = matches!(place.topology(), Topology::Map { .. });
            let mut members = Vec::new();
            let mut children = Vec::new();
            for (name, below) in entries(Some(value)).into_iter().flatten() {
                let Some(member) = place.member(name) else { continue };
                let step = PathElement::field(name);
                let is_empty = below.is_null() || below.as_object().is_some_and(Map::is_empty);
                if is_map || is_empty || is_leaf(member) {
                    members.push(step.clone());
                }
                children.push((step, field_set(member, below)));
            }
            FieldSet::from_parts(members, children)
        }
    }
}

/// Whether a value of the type is owned as a whole.
fn is_leaf(place: Place) -> bool {
    match place.topology() {
        Topology::Scalar(_) | Topology::Untyped => true,
        Topology::List { atomic, .. }
        | Topology::Map { atomic, .. }
        | Topology::Struct { atomic } => atomic,
    }
}

/// How an object differs from an older one.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    pub(super) added: FieldSet,
    pub(super) modified: FieldSet,
    pub(super) removed: FieldSet,
}

impl Comparison {
    pub(super) fn without(&self, ignored: &FieldSet) -> Self {
        Self {
            added: self.added.recursive_difference(ignored),
            modified: self.modified.recursive_difference(ignored),
            removed: self.removed.recursive_difference(ignored),
        }
    }
}

/// Compares two objects, of which the older is the first.
pub(super) fn compare(place: Place, old: &Value, new: &Value) -> Comparison {
    compare_values(place, Some(old), Some(new)).below
}

/// What happened to a value itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Added,
    Modified,
    Removed,
}

/// A value's own change, and those of its parts.
#[derive(Debug, Default)]
struct Compared {
    own: Option<Change>,
    below: Comparison,
}

/// Sets are built from the leaves up, so that no path is copied for each field below it.
fn compare_values(place: Place, old: Option<&Value>, new: Option<&Value>) -> Compared {
    let topology = place.topology();
    let as_leaf = match topology {
        Topology::List { atomic, .. } => atomic || (items(old).is_empty() && items(new).is_empty()),
        Topology::Map { atomic, .. } | Topology::Struct { atomic } => {
            atomic || (entries(old).is_none() && entries(new).is_none())
        }
        Topology::Scalar(_) | Topology::Untyped => true,
    };
    let own = match (old, new) {
        (None, Some(_)) => Some(Change::Added),
        (Some(_), None) => Some(Change::Removed),
        (Some(old), Some(new)) if as_leaf && !equal(old, new) => Some(Change::Modified),
        _ => None,
    };
    if as_leaf {
        return Compared { own, below: Comparison::default() };
    }
    let mut parts = Vec::new();
    match topology {
        Topology::List { element, keys, .. } => {
            let (old, new) = (by_step(element, keys, old), by_step(element, keys, new));
            let steps: BTreeSet<&PathElement> = old.keys().chain(new.keys()).collect();
            for step in steps {
                let old = old.get(step).map_or(&[][..], Vec::as_slice);
                let new = new.get(step).map_or(&[][..], Vec::as_slice);
                parts.push((step.clone(), compare_elements(element, old, new)));
            }
        }
        Topology::Map { .. } | Topology::Struct { .. } => {
            let (old, new) = (entries(old), entries(new));
            let names: BTreeSet<&String> =
                old.into_iter().chain(new).flat_map(|map| map.keys()).collect();
            for name in names {
                let Some(member) = place.member(name) else { continue };
                let (old, new) = (old.and_then(|m| m.get(name)), new.and_then(|m| m.get(name)));
                parts.push((PathElement::field(name), compare_values(member, old, new)));
            }
        }
        Topology::Scalar(_) | Topology::Untyped => {}
    }
    Compared { own, below: Comparison::of_parts(parts) }
}

/// Elements of the same identity, of which a stored list may have several.
fn compare_elements(element: Place, old: &[&Value], new: &[&Value]) -> Compared {
    if old.len() <= 1 && new.len() <= 1 {
        return compare_values(element, old.first().copied(), new.first().copied());
    }
    let own = if old.is_empty() {
        Some(Change::Added)
    } else if new.is_empty() {
        Some(Change::Removed)
    } else {
        let same = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| equal(old, new));
        (!same).then_some(Change::Modified)
    };
    Compared { own, below: Comparison::default() }
}

impl Comparison {
    fn of_parts(parts: Vec<(PathElement, Compared)>) -> Self {
        let mut members = [Vec::new(), Vec::new(), Vec::new()];
        let [added, modified, removed] = &mut members;
        for (step, part) in &parts {
            match part.own {
                Some(Change::Added) => added.push(step.clone()),
                Some(Change::Modified) => modified.push(step.clone()),
                Some(Change::Removed) => removed.push(step.clone()),
                None => {}
            }
        }
        let mut children = [Vec::new(), Vec::new(), Vec::new()];
        let [below_added, below_modified, below_removed] = &mut children;
        for (step, part) in parts {
            for (set, children) in [
                (part.below.added, &mut *below_added),
                (part.below.modified, &mut *below_modified),
                (part.below.removed, &mut *below_removed),
            ] {
                if !set.is_empty() {
                    children.push((step.clone(), set));
                }
            }
        }
        let [added, modified, removed] = members;
        let [below_added, below_modified, below_removed] = children;
        Self {
            added: FieldSet::from_parts(added, below_added),
            modified: FieldSet::from_parts(modified, below_modified),
            removed: FieldSet::from_parts(removed, below_removed),
        }
    }
}

/// List elements by identity; a stored list may have duplicates.
fn by_step<'v>(
    element: Place,
    keys: &'static [&'static str],
    list: Option<&'v Value>,
) -> BTreeMap<PathElement, Vec<&'v Value>> {
    let mut found: BTreeMap<PathElement, Vec<&Value>> = BTreeMap::new();
    for item in items(list) {
        if let Ok(step) = step_of(element, keys, item) {
            found.entry(step).or_default().push(item);
        }
    }
    found
}

/// The live value with what the applied one says.
pub(super) fn merge(place: Place, live: Option<&Value>, applied: Option<&Value>) -> Option<Value> {
    let (Some(old), Some(new)) = (live, applied) else {
        return applied.or(live).cloned();
    };
    match place.topology() {
        Topology::List { element, keys, atomic: false }
            if !items(live).is_empty() || !items(applied).is_empty() =>
        {
            Some(Value::Array(merge_lists(element, keys, items(live), items(applied))))
        }
        Topology::Map { atomic: false, .. } | Topology::Struct { atomic: false }
            if entries(live).is_some() || entries(applied).is_some() =>
        {
            let mut merged = Map::new();
            for (name, old) in old.as_object().into_iter().flatten() {
                let new = new.get(name);
                let value = match place.member(name) {
                    Some(member) => merge(member, Some(old), new),
                    None => Some(new.unwrap_or(old).clone()),
                };
                merged.extend(value.map(|value| (name.clone(), value)));
            }
            for (name, new) in new.as_object().into_iter().flatten() {
                if !merged.contains_key(name) {
                    merged.insert(name.clone(), new.clone());
                }
            }
            Some(Value::Object(merged))
        }
        _ => Some(new.clone()),
    }
}

/// Shared elements take the applied order; the others keep their neighbours.
fn merge_lists(
    element: Place,
    keys: &'static [&'static str],
    live: &[Value],
    applied: &[Value],
) -> Vec<Value> {
    let steps = |list: &[Value]| -> Vec<(PathElement, Value)> {
        let identified = list
            .iter()
            .filter_map(|item| step_of(element, keys, item).ok().map(|step| (step, item.clone())));
        identified.collect()
    };
    let (live, applied) = (steps(live), steps(applied));
    let mut of_live: BTreeMap<&PathElement, Option<&Value>> = BTreeMap::new();
    for (step, item) in &live {
        // Nothing is merged into one of several duplicates.
        of_live.entry(step).and_modify(|found| *found = None).or_insert(Some(item));
    }
    let of_applied: BTreeSet<&PathElement> = applied.iter().map(|(step, _)| step).collect();
    let mut shared = applied.iter().map(|(step, _)| step).filter(|step| of_live.contains_key(step));
    let mut next_shared = shared.next();
    let mut taken: BTreeSet<&PathElement> = BTreeSet::new();
    let mut merged = Vec::with_capacity(live.len().max(applied.len()));
    let (mut rest_live, mut rest_applied) = (live.as_slice(), applied.as_slice());
    while !rest_live.is_empty() || !rest_applied.is_empty() {
        if let Some(((step, item), after)) = rest_live.split_first() {
            if !of_applied.contains(step) {
                merged.push(item.clone());
                rest_live = after;
                continue;
            }
            // A shared element is taken at its place in the applied order.
            if taken.contains(step) || next_shared.is_some_and(|next| next != step) {
                rest_live = after;
                continue;
            }
        }
        if let Some(((step, item), after)) = rest_applied.split_first() {
            taken.insert(step);
            let old = of_live.get(step).copied().flatten();
            merged.extend(merge(element, old, Some(item)));
            rest_applied = after;
            if next_shared == Some(step) {
                next_shared = shared.next();
            }
        } else {
            rest_live = rest_live.get(1..).unwrap_or_default();
        }
    }
    merged
}

/// The value without these fields. A list or map of which nothing is left is null.
pub(super) fn remove(place: Place, value: &Value, fields: &FieldSet) -> Value {
    match (place.topology(), value) {
        (Topology::List { element, keys, atomic: false }, Value::Array(list)) => {
            let mut kept = Vec::with_capacity(list.len());
            for item in list {
                match step_of(element, keys, item) {
                    Ok(step) if fields.has(&step) => {}
                    Ok(step) if !fields.below(&step).is_empty() => {
                        kept.push(remove(element, item, fields.below(&step)));
                    }
                    _ => kept.push(item.clone()),
                }
            }
            if kept.is_empty() { Value::Null } else { Value::Array(kept) }
        }
        (
            Topology::Map { atomic: false, .. } | Topology::Struct { atomic: false },
            Value::Object(map),
        ) => {
            let mut kept = Map::new();
            for (name, below) in map {
                let step = PathElement::field(name);
                if fields.has(&step) {
                    continue;
                }
                let below = match (fields.below(&step), place.member(name)) {
                    (set, Some(member)) if !set.is_empty() => remove(member, below, set),
                    _ => below.clone(),
                };
                kept.insert(name.clone(), below);
            }
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        (Topology::Scalar(_), _) => value.clone(),
        // Named as a whole or not at all.
        _ => Value::Null,
    }
}

/// The set with every field of a struct that has members below it: such a field is owned by who
/// owns a part of it, unlike a key of a map.
pub(super) fn with_named_fields(place: Option<Place>, set: &FieldSet) -> FieldSet {
    let is_struct = place.is_some_and(|place| matches!(place.topology(), Topology::Struct { .. }));
    let mut members: Vec<PathElement> = set.members().cloned().collect();
    let mut children = Vec::new();
    for (step, below) in set.children() {
        let member = match (step, place) {
            (PathElement::Field(name), Some(place)) => place.member(name),
            (PathElement::Key(_), Some(place)) => place.element(),
            _ => None,
        };
        if is_struct && member.is_some() && matches!(step, PathElement::Field(_)) {
            members.push(step.clone());
        }
        children.push((step.clone(), with_named_fields(member, below)));
    }
    FieldSet::from_parts(members, children)
}
