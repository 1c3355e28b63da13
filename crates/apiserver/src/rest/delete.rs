//! DELETE: graceful for running pods, immediate otherwise.
//!
//! Deleting a running pod takes two requests: the first sets the deletion timestamp, the agent
//! stops the containers and then deletes with grace period 0, and only that removes the object.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::events;
use crate::object::Object;
use crate::options::{DeleteOptions, ListOptions, Propagation};
use crate::registry::{self, Resource, Verb};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;

use super::create::read_only;
use super::{ATTEMPTS, ListPage, at_revision, lost_race, put, remove, revision_of};

/// Finalizers by which a client chooses what happens to dependents.
pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Namespaces that cannot be deleted.
const PROTECTED_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];
const SYSTEM_CLASSES: [&str; 2] = ["system-cluster-critical", "system-node-critical"];

/// Result: the object as removed, or as it remains for now.
#[derive(Debug)]
pub struct Deleted {
    pub object: Object,
    pub removed: bool,
}

/// Effect of one deletion request on an object.
#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    Mark(Object),
    /// The object as watchers see it deleted.
    Remove(Object),
}

impl ApiServer {
    pub async fn delete(
        &self,
        info: &RequestInfo,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        self.delete_marked(info, options, |_| {}).await
    }

    /// Deletes, and edits the object in the same write.
    pub(super) async fn delete_marked(
        &self,
        info: &RequestInfo,
        options: &DeleteOptions,
        mark: impl Fn(&mut Object),
    ) -> Result<Deleted, ApiError> {
        let resource = info.resource;
        if !resource.allows(Verb::Delete) {
            return Err(read_only(resource));
        }
        if resource == &registry::NAMESPACES && PROTECTED_NAMESPACES.contains(&info.name.as_str()) {
            return Err(ApiError::forbidden(
                resource,
                &info.name,
                "this namespace may not be deleted",
            ));
        }
        if resource == &registry::PRIORITY_CLASSES && SYSTEM_CLASSES.contains(&info.name.as_str()) {
            return Err(ApiError::forbidden(
                resource,
                &info.name,
                "this is a system priority class and cannot be deleted",
            ));
        }
        let stored_as = events::stored_as(resource);
        for _ in 0..ATTEMPTS {
            let (key, object, revision) = self.named(info)?;
            check_preconditions(resource, &object, options)?;
            let plan = plan(stored_as, &object, options, self.now(), &mark);
            let (change, deleted) = match plan {
                Plan::Nothing => return Ok(Deleted { object, removed: false }),
                Plan::Mark(new) => (
                    put(key, Some((&object, revision)), &new),
                    Deleted { object: new, removed: false },
                ),
                Plan::Remove(last) => {
                    (remove(key, revision, &last), Deleted { object: last, removed: true })
                }
            };
            if options.dry_run {
                return Ok(deleted);
            }
            match self.store().commit(vec![change]).await {
                Ok(revisions) => {
                    let object = at_revision(deleted.object, revision_of(&revisions));
                    return Ok(Deleted { object, ..deleted });
                }
                Err(error) => lost_race(error)?,
            }
        }
        Err(ApiError::stale(resource, &info.name))
    }

    /// Deletes everything that a list would return, and returns it as listed.
    pub async fn delete_collection(
        &self,
        info: &RequestInfo,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<ListPage, ApiError> {
        if !info.resource.allows(Verb::DeleteCollection) {
            return Err(read_only(info.resource));
        }
        let page = self.list(info, list)?;
        for (key, _) in &page.items {
            let one = RequestInfo {
                verb: Verb::Delete,
                namespace: key.namespace().to_owned(),
                name: key.name().to_owned(),
                ..info.clone()
            };
            match self.delete(&one, options).await {
                Err(error) if error.code != 404 => return Err(error),
                Ok(_) | Err(_) => {} // another client was faster
            }
        }
        Ok(page)
    }
}

fn check_preconditions(
    resource: &'static Resource,
    object: &Object,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let name = object.name();
    for (what, requested, found, end) in [
        ("UID", &options.uid, object.uid(), "deleted and then recreated"),
        ("ResourceVersion", &options.resource_version, object.resource_version(), "modified"),
    ] {
        let Some(requested) = requested.as_deref().filter(|requested| *requested != found) else {
            continue;
        };
        // kube-apiserver has a different text for namespaces.
        return Err(if resource == &registry::NAMESPACES {
            let why = format!(
                "Precondition failed: {what} in precondition: {requested}, {what} in object meta: {found}"
            );
            ApiError::conflict(resource.plural, resource.group, name, &why)
        } else {
            let why = format!(
                "the {what} in the precondition ({requested}) does not match the {what} in record ({found}). The object \
                 might have been {end}"
            );
            ApiError::conflict(resource.kind, resource.group, name, &why)
        });
    }
    Ok(())
}

fn plan(
    resource: &Resource,
    object: &Object,
    options: &DeleteOptions,
    now: Timestamp,
    mark: &impl Fn(&mut Object),
) -> Plan {
    let mut new = object.clone();
    mark(&mut new);
    choose_dependents(&mut new, options.propagation);
    match resource.storage {
        "namespaces" => plan_namespace(object, new, now),
        "pods" => plan_pod(object, new, options, now),
        _ => plan_other(object, new, now),
    }
}

/// Foreground and orphan deletion are finalizers that the dependents controller handles.
fn choose_dependents(object: &mut Object, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let mut finalizers: Vec<String> = object
        .finalizers()
        .into_iter()
        .filter(|finalizer| !matches!(*finalizer, ORPHAN | FOREGROUND))
        .map(str::to_owned)
        .collect();
    match propagation {
        Propagation::Orphan => finalizers.push(ORPHAN.to_owned()),
        Propagation::Foreground => finalizers.push(FOREGROUND.to_owned()),
        Propagation::Background => {}
    }
    object.set_finalizers(&finalizers);
}

fn plan_other(old: &Object, mut new: Object, now: Timestamp) -> Plan {
    if new.finalizers().is_empty() {
        return Plan::Remove(new);
    }
    mark_as_deleting(&mut new, now);
    if &new == old { Plan::Nothing } else { Plan::Mark(new) }
}

fn mark_as_deleting(object: &mut Object, now: Timestamp) {
    if object.deletion_grace().is_none() && object.generation() > 0 {
        object.set_generation(object.generation() + 1);
    }
    let at = object.deletion_timestamp().map_or(now, |at| at.min(now));
    object.set_deletion(at, Some(0));
}

/// Marked first; removed once it is empty and the server's finalizer is gone.
fn plan_namespace(old: &Object, mut new: Object, now: Timestamp) -> Plan {
    let held = new.value().pointer("/spec/finalizers").and_then(Value::as_array);
    let held = held.is_some_and(|finalizers| !finalizers.is_empty());
    if old.is_being_deleted() && !held && new.finalizers().is_empty() {
        return Plan::Remove(new);
    }
    if !old.is_being_deleted() {
        new.set_deletion(now, None);
        new.put(&["status", "phase"], Some("Terminating".into()));
    }
    if &new == old { Plan::Nothing } else { Plan::Mark(new) }
}

fn plan_pod(old: &Object, mut new: Object, options: &DeleteOptions, now: Timestamp) -> Plan {
    let grace = match (old.deletion_timestamp(), old.deletion_grace()) {
        (Some(at), Some(granted)) => {
            // Already being deleted: the grace period may only get shorter.
            let requested =
                options.grace.map(|requested| if requested < 0 { 1 } else { requested });
            match requested.filter(|requested| *requested < granted) {
                Some(requested) => {
                    let earlier = SignedDuration::from_secs(granted.saturating_sub(requested));
                    let at = at.checked_sub(earlier).unwrap_or(at);
                    // A deadline already in the past becomes now; gracefully, if requested.
                    let late = at < now;
                    let requested = if late && requested > 0 { 1 } else { requested };
                    new.set_deletion(at.max(now), Some(requested));
                    requested
                }
                None if granted > 0 => {
                    return if &new == old { Plan::Nothing } else { Plan::Mark(new) };
                }
                None => granted,
            }
        }
        _ => {
            let grace = grace_of(old, options.grace);
            let at = now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(now);
            new.set_deletion(at, Some(grace));
            if new.generation() > 0 {
                new.set_generation(new.generation() + 1);
            }
            grace
        }
    };
    if grace == 0 && new.finalizers().is_empty() {
        return Plan::Remove(new);
    }
    if &new == old { Plan::Nothing } else { Plan::Mark(new) }
}

/// Grace period of a pod. One without a node, or finished, needs none.
fn grace_of(pod: &Object, requested: Option<i64>) -> i64 {
    let own = pod.value().pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
    let grace = requested.or(own).unwrap_or(0);
    let unbound = pod.text("/spec/nodeName").is_empty();
    let ended = matches!(pod.text("/status/phase"), "Failed" | "Succeeded");
    if unbound || ended {
        return 0;
    }
    if grace < 0 { 1 } else { grace }
}
