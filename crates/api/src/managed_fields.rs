//! Field ownership: who set which field of an object, and server-side apply, which uses it.
//!
//! Every write is tracked: what differs from the stored object belongs to the writer. An apply says
//! all that its manager wants; what the manager applied before and leaves out now is removed, unless
//! another manager owns it, too. How a value is divided into fields follows from the types in
//! [`crate::schema`].

mod conflict;
mod entry;
mod field_set;
mod last_applied;
mod path_element;
mod topology;
mod typed;
mod value;

use serde_json::{Map, Value};

pub use conflict::{Cause, Conflicts};
pub use entry::{
    BadManagedFields, ManagedFields, Manager, Operation, Owned, Requested, reset_marker,
};
pub use field_set::FieldSet;
pub use last_applied::rewrite as rewrite_last_applied;
pub use path_element::{PathElement, Scalar};

use crate::schema::Struct;
use topology::Place;
use typed::{check, compare, field_set, merge, remove, with_named_fields};

/// Entries of updates that an object keeps; older ones are merged.
const MAX_UPDATERS: usize = 10;
/// Owner of what was there before the first apply of an object without owners.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Owner of what the oldest updaters owned.
const ANCIENT_CHANGES: &str = "ancient-changes";
/// The manager of `kubectl apply --server-side`.
const KUBECTL: &str = "kubectl";

/// A write to an object.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    pub shape: &'static Struct,
    pub manager: &'a str,
    pub api_version: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// In whole seconds, RFC 3339.
    pub now: &'a str,
    /// Fields that a write to this path neither changes nor owns.
    pub reset: &'a FieldSet,
}

impl Write<'_> {
    fn manager(&self, name: &str, operation: Operation) -> Manager {
        Manager {
            operation,
            name: if name.is_empty() { "unknown".to_owned() } else { name.to_owned() },
            api_version: match operation {
                Operation::Apply => String::new(),
                Operation::Update => self.api_version.to_owned(),
            },
            subresource: self.subresource.to_owned(),
        }
    }

    fn place(&self) -> Place {
        Place::Object(self.shape)
    }
}

/// Why an apply is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("metadata.managedFields must be nil")]
    ManagedFieldsGiven,
    /// The body does not fit the type.
    #[error("{0}")]
    Untyped(String),
    #[error("{}", .0.message())]
    Conflict(Conflicts),
}

/// The managers of an object; none if its list cannot be read.
pub fn of(object: &Value) -> ManagedFields {
    ManagedFields::parse(object.pointer("/metadata/managedFields")).unwrap_or_default()
}

/// Sets or removes the list of an object.
pub fn set(object: &mut Value, managers: &ManagedFields) {
    put(object, managers.encoded());
}

fn put(object: &mut Value, list: Option<Value>) {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        match list {
            Some(list) => _ = meta.insert("managedFields".to_owned(), list),
            None => _ = meta.remove("managedFields"),
        }
    }
}

/// Tracks an update: sets the managers of the new object. `old` is an object without fields if the
/// write creates it.
pub fn track(write: &Write<'_>, old: &Value, new: &mut Value, creates: bool) {
    let requested = match write.subresource {
        "" => Requested::of(new.pointer("/metadata/managedFields")),
        _ => Requested::Keep,
    };
    let managers = match requested {
        Requested::Keep => of(old),
        Requested::Reset => ManagedFields::default(),
        Requested::Replace(managers) => managers,
    };
    if managers.is_empty() && !creates {
        put(new, None);
        return;
    }
    let manager = write.manager(write.manager, Operation::Update);
    let managers = updated(write, old, new, managers, manager);
    set(new, &managers);
}

/// The managers after a change from `old` to `new` by `manager`.
fn updated(
    write: &Write<'_>,
    old: &Value,
    new: &Value,
    mut managers: ManagedFields,
    manager: Manager,
) -> ManagedFields {
    let (old, new) = (unmanaged(old), unmanaged(new));
    let changes = compare(write.place(), &old, &new).without(write.reset);
    let taken = changes.added.union(&changes.modified);
    for owned in managers.0.values_mut() {
        if owned.api_version == write.api_version {
            owned.fields = owned.fields.difference(&taken).difference(&changes.removed);
        }
    }
    managers.0.retain(|_, owned| !owned.fields.is_empty());
    let mine = taken.difference(&unrecorded());
    if !mine.is_empty() {
        let owned = managers.0.entry(manager).or_insert_with(|| Owned {
            fields: FieldSet::new(),
            api_version: write.api_version.to_owned(),
            time: None,
        });
        owned.fields = owned.fields.union(&mine);
        owned.time = Some(write.now.to_owned());
    }
    limit_updaters(managers)
}

/// Merges the oldest updaters until there are few enough.
fn limit_updaters(mut managers: ManagedFields) -> ManagedFields {
    let is_updater = |manager: &Manager| manager.operation == Operation::Update;
    let mut updaters: Vec<(Option<String>, Manager)> = managers
        .0
        .iter()
        .filter(|(manager, _)| is_updater(manager))
        .map(|(manager, owned)| (owned.time.clone(), manager.clone()))
        .collect();
    if updaters.len() <= MAX_UPDATERS {
        return managers;
    }
    updaters.sort_by(|(time, one), (other_time, other)| {
        (time, &one.name, one).cmp(&(other_time, &other.name, other))
    });
    let mut left = updaters.len();
    let mut first_of_version: std::collections::BTreeMap<String, Manager> = Default::default();
    for (time, manager) in updaters {
        if left <= MAX_UPDATERS {
            break;
        }
        let version = manager.api_version.clone();
        let Some(first) = first_of_version.get(&version) else {
            first_of_version.insert(version, manager);
            continue;
        };
        let bucket = Manager {
            operation: Operation::Update,
            name: ANCIENT_CHANGES.to_owned(),
            api_version: version,
            subresource: String::new(),
        };
        if !managers.0.contains_key(&bucket)
            && let Some(owned) = managers.0.remove(first)
        {
            managers.0.insert(bucket.clone(), owned);
        }
        if manager == bucket {
            continue;
        }
        let Some(merged) = managers.0.remove(&manager) else { continue };
        if let Some(owned) = managers.0.get_mut(&bucket) {
            owned.fields = owned.fields.union(&merged.fields);
            owned.time = time;
        }
        left -= 1;
    }
    managers
}

/// Applies a body. Returns the object as it would be, with its managers, before it is decoded,
/// defaulted and validated. `live` is an object without fields if the apply creates it.
pub fn apply(
    write: &Write<'_>,
    live: &Value,
    body: &Value,
    force: bool,
) -> Result<Value, ApplyError> {
    if body.pointer("/metadata/managedFields").is_some_and(|list| !list.is_null()) {
        return Err(ApplyError::ManagedFieldsGiven);
    }
    check(write.place(), body).map_err(ApplyError::Untyped)?;
    let mut managers = of(live);
    let live = unmanaged(live);
    if managers.is_empty() {
        let nothing = empty(write.shape, &live);
        let before = write.manager(BEFORE_FIRST_APPLY, Operation::Update);
        managers = updated(write, &nothing, &live, managers, before);
    }
    let applied = match merge_body(write, &live, body, managers.clone(), force) {
        Err(conflicts) if write.manager == KUBECTL => {
            let allowed = last_applied::unchanged(write, &live);
            let left = conflicts.without(&allowed);
            if !left.0.is_empty() {
                return Err(ApplyError::Conflict(left));
            }
            merge_body(write, &live, body, managers, true)
        }
        merged => merged,
    };
    let (mut object, managers) = applied.map_err(ApplyError::Conflict)?;
    if object.get("metadata").is_none_or(|meta| !meta.is_object())
        && let Some(root) = object.as_object_mut()
    {
        root.insert("metadata".to_owned(), Value::Object(Map::new()));
    }
    set(&mut object, &managers);
    Ok(object)
}

fn merge_body(
    write: &Write<'_>,
    live: &Value,
    body: &Value,
    mut managers: ManagedFields,
    force: bool,
) -> Result<(Value, ManagedFields), Conflicts> {
    let place = write.place();
    let manager = write.manager(write.manager, Operation::Apply);
    let merged = merge(place, Some(live), Some(body)).unwrap_or_default();
    let before = managers.0.get(&manager).cloned();
    let mine = field_set(place, body).recursive_difference(write.reset);
    let time = before.as_ref().and_then(|owned| owned.time.clone());
    let owned = Owned { fields: mine, api_version: write.api_version.to_owned(), time };
    managers.0.insert(manager.clone(), owned);
    let object = match &before {
        Some(before) => prune(place, &merged, &managers, &before.fields, write.api_version),
        None => merged,
    };
    let changes = compare(place, live, &object).without(write.reset);
    let taken = changes.added.union(&changes.modified);
    let mut conflicts = Vec::new();
    for (other, owned) in &managers.0 {
        if *other == manager || owned.api_version != write.api_version {
            continue;
        }
        let disputed = owned.fields.intersection(&taken);
        if !disputed.is_empty() {
            conflicts.push((other.clone(), disputed));
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(Conflicts(conflicts));
    }
    for (other, owned) in &mut managers.0 {
        if *other != manager && owned.api_version == write.api_version {
            owned.fields = owned.fields.difference(&taken).difference(&changes.removed);
        }
    }
    let changed = !value::equal(live, &object);
    if let Some(mine) = managers.0.get_mut(&manager) {
        mine.fields = mine.fields.difference(&unrecorded());
        if changed {
            mine.time = Some(write.now.to_owned());
        }
    }
    managers.0.retain(|_, owned| !owned.fields.is_empty());
    let object = if changed { object } else { live.clone() };
    Ok((object, managers))
}

/// Removes what the manager owned before and no manager owns now.
fn prune(
    place: Place,
    merged: &Value,
    managers: &ManagedFields,
    before: &FieldSet,
    api_version: &str,
) -> Value {
    if before.is_empty() {
        return merged.clone();
    }
    let named = |set: &FieldSet| with_named_fields(Some(place), set);
    let before = named(before);
    let without_mine = remove(place, merged, &before);
    // What others own, and what is in such fields, comes back.
    let owned = managers
        .0
        .values()
        .filter(|owned| owned.api_version == api_version)
        .fold(FieldSet::new(), |all, owned| all.union(&owned.fields));
    let all = named(&field_set(place, merged));
    let kept = named(&field_set(place, &without_mine)).union(&named(&owned));
    let with_owned = remove(place, merged, &all.difference(&kept));
    // So does what no manager owned, such as a default inside of an element that is kept.
    let kept = named(&field_set(place, &with_owned));
    remove(place, merged, &all.difference(&kept).intersection(&before))
}

/// Fields that are never recorded: they identify the object, or the server sets them.
fn unrecorded() -> FieldSet {
    FieldSet::of_fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
}

fn unmanaged(object: &Value) -> Value {
    let mut object = object.clone();
    put(&mut object, None);
    object
}

/// An object of this type in which nothing is set: plain structs and fields that are always written
/// exist in it already.
pub fn empty(shape: &'static Struct, like: &Value) -> Value {
    let mut bare = Map::new();
    for name in ["apiVersion", "kind"] {
        bare.extend(like.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    let bare = Value::Object(bare);
    crate::schema::decode(shape, &bare).map_or(bare, |decoded| decoded.value)
}

impl Conflicts {
    fn without(&self, allowed: &FieldSet) -> Self {
        let left = self.0.iter().map(|(manager, set)| (manager.clone(), set.difference(allowed)));
        Self(left.filter(|(_, set)| !set.is_empty()).collect())
    }
}

#[cfg(test)]
mod tests;
