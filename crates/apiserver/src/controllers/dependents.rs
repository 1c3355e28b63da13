//! Garbage collector: deletes objects whose owners are gone, and handles the `orphan` and
//! `foregroundDeletion` finalizers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::access::Identity;
use crate::document::{Document, Revision};
use crate::object::Object;
use crate::options::{DeleteOptions, Propagation, WriteOptions};
use crate::registry::{self, EVENTS_V1, RESOURCES, Resource};
use crate::rest::{FOREGROUND, ORPHAN};
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{EventType, HistoryError, Key, Scope};

use super::namespaces::named;
use super::wait_for_change;

/// Number of events read between two actions.
const BATCH: usize = 64;

/// Owner references of all objects, and the objects to check.
#[derive(Default)]
struct Graph {
    dependents: BTreeMap<String, BTreeSet<Key>>,
    owners: BTreeMap<Key, BTreeSet<String>>,
    /// Keys whose owners or finalizers must be checked.
    to_check: BTreeSet<Key>,
}

/// State of one owner reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Present,
    /// Deleted in the foreground, once its dependents are: keeps no dependent.
    WaitsForDependents,
    Gone,
    /// Cannot be looked up: a kind that is not served here, or, for a cluster-scoped object, a
    /// namespaced owner, whose namespace is unknown.
    Unknown,
}

/// Consequence of the owner references of an object.
#[derive(Debug, PartialEq)]
enum OwnershipVerdict {
    /// It has no owner, or none known to be gone, or one that cannot be looked up.
    Stays,
    /// Some owners exist; these references are dangling.
    Dangling(Vec<Value>),
    AllGone,
}

impl ApiServer {
    pub(super) async fn run_garbage_collector(&self, stop: CancellationToken) {
        let mut changes = self.store().changes();
        let mut graph = Graph::default();
        let mut seen: Option<Revision> = None;
        loop {
            let now = *changes.borrow_and_update();
            let updated = match seen {
                Some(seen) => self.update_graph(&mut graph, seen),
                None => self.load_graph(&mut graph),
            };
            let failed = match updated {
                Ok(()) => {
                    seen = Some(now);
                    self.check_all_owners(&mut graph).await
                }
                Err(error) => {
                    tracing::warn!(%error, "read owner references failed, retrying shortly");
                    seen = None;
                    true
                }
            };
            if !wait_for_change(&mut changes, failed, &stop).await {
                return;
            }
        }
    }

    fn load_graph(&self, graph: &mut Graph) -> Result<(), ApiError> {
        *graph = Graph::default();
        for resource in storages() {
            let (objects, _) = self.store().list(&Scope::new(resource, None), None)?;
            for (key, document) in objects {
                graph.record(key, &document)?;
            }
        }
        Ok(())
    }

    fn update_graph(&self, graph: &mut Graph, since: Revision) -> Result<(), ApiError> {
        for resource in storages() {
            let scope = Scope::new(resource, None);
            let mut after = since;
            loop {
                let history = match self.store().history(&scope, after, BATCH) {
                    Ok(history) => history,
                    Err(HistoryError::TooOld { .. }) => return self.load_graph(graph),
                    Err(HistoryError::Store(error)) => return Err(error.into()),
                };
                let complete = !history.more;
                after = history.upto;
                for event in history.events {
                    match event.event_type {
                        EventType::Created | EventType::Updated => {
                            let document = event.document();
                            graph.record(event.key, &document)?;
                        }
                        EventType::Deleted => graph.remove(&event.key, &event.document())?,
                    }
                }
                if complete {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns whether something must be retried.
    async fn check_all_owners(&self, graph: &mut Graph) -> bool {
        let mut failed = false;
        for key in std::mem::take(&mut graph.to_check) {
            if let Err(error) = self.check_owners(graph, &key).await {
                tracing::warn!(%key, %error, "collect garbage failed, retrying shortly");
                graph.to_check.insert(key);
                failed = true;
            }
        }
        failed
    }

    async fn check_owners(&self, graph: &Graph, key: &Key) -> Result<(), ApiError> {
        let Some(resource) = resource_of(key) else { return Ok(()) };
        let Some(object) = self.read(resource, key)? else { return Ok(()) };
        if object.is_being_deleted() {
            return self.handle_finalizers(graph, resource, &object).await;
        }
        match self.verdict(&object)? {
            OwnershipVerdict::Stays => Ok(()),
            OwnershipVerdict::Dangling(dangling) => {
                self.drop_owners(resource, &object, |owner| dangling.contains(owner)).await
            }
            OwnershipVerdict::AllGone => self.delete_dependent(resource, &object).await,
        }
    }

    fn verdict(&self, object: &Object) -> Result<OwnershipVerdict, ApiError> {
        let references = object.owner_references();
        let (mut dangling, mut any_present) = (Vec::new(), false);
        for reference in references {
            match self.owner(object, reference)? {
                Owner::Present => any_present = true,
                Owner::WaitsForDependents | Owner::Gone => dangling.push(reference.clone()),
                Owner::Unknown => return Ok(OwnershipVerdict::Stays),
            }
        }
        Ok(match (dangling.is_empty(), any_present) {
            (true, _) => OwnershipVerdict::Stays,
            (false, true) => OwnershipVerdict::Dangling(dangling),
            (false, false) => OwnershipVerdict::AllGone,
        })
    }

    fn owner(&self, dependent: &Object, reference: &Value) -> Result<Owner, ApiError> {
        let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        let (group, version) =
            text("apiVersion").rsplit_once('/').unwrap_or(("", text("apiVersion")));
        let Some(resource) = registry::find_kind(group, version, text("kind")) else {
            return Ok(Owner::Unknown);
        };
        if resource.namespaced && dependent.namespace().is_empty() {
            return Ok(Owner::Unknown);
        }
        let key = Key::new(resource, dependent.namespace(), text("name"));
        Ok(match self.read(resource, &key)? {
            Some(owner) if owner.uid() != text("uid") => Owner::Gone,
            Some(owner) if owner.is_being_deleted() && owner.finalizers().contains(&FOREGROUND) => {
                Owner::WaitsForDependents
            }
            Some(_) => Owner::Present,
            None => Owner::Gone,
        })
    }

    async fn delete_dependent(
        &self,
        resource: &'static Resource,
        object: &Object,
    ) -> Result<(), ApiError> {
        let options = DeleteOptions {
            uid: Some(object.uid().to_owned()),
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        let info = named(resource, object.namespace(), object.name());
        match self.delete(&info, &options).await {
            Err(error) if !matches!(error.code, 404 | 409) => Err(error),
            Ok(_) | Err(_) => Ok(()), // already deleted, or replaced by another of its name
        }
    }

    async fn drop_owners(
        &self,
        resource: &'static Resource,
        object: &Object,
        dangling: impl Fn(&Value) -> bool,
    ) -> Result<(), ApiError> {
        let mut freed = object.clone();
        let kept: Vec<Value> =
            object.owner_references().iter().filter(|owner| !dangling(owner)).cloned().collect();
        freed.set_meta("ownerReferences", (!kept.is_empty()).then_some(Value::Array(kept)));
        let info = named(resource, object.namespace(), object.name());
        match self.update(&Identity::admin(), &info, freed, &WriteOptions::of_server()).await {
            Err(error) if !matches!(error.code, 404 | 409) => Err(error),
            Ok(_) | Err(_) => Ok(()), // a concurrent change triggers another check
        }
    }

    async fn handle_finalizers(
        &self,
        graph: &Graph,
        resource: &'static Resource,
        owner: &Object,
    ) -> Result<(), ApiError> {
        let orphan = owner.finalizers().contains(&ORPHAN);
        let foreground = owner.finalizers().contains(&FOREGROUND);
        if !orphan && !foreground {
            return Ok(());
        }
        let mut blocked = false;
        for key in graph.dependents.get(owner.uid()).into_iter().flatten() {
            let Some(kind) = resource_of(key) else { continue };
            let Some(dependent) = self.read(kind, key)? else { continue };
            if orphan {
                self.drop_owners(kind, &dependent, |reference| is(reference, owner.uid())).await?;
                continue;
            }
            if dependent.is_being_deleted() {
                blocked |= blocks(&dependent, owner.uid());
                continue;
            }
            match self.verdict(&dependent)? {
                OwnershipVerdict::Stays => {}
                // Another owner keeps it: drop this reference, so that it does not block the
                // deletion.
                OwnershipVerdict::Dangling(dangling) => {
                    self.drop_owners(kind, &dependent, |owner| dangling.contains(owner)).await?;
                    continue;
                }
                OwnershipVerdict::AllGone => self.delete_dependent(kind, &dependent).await?,
            }
            blocked |= blocks(&dependent, owner.uid());
        }
        if foreground && blocked {
            return Ok(()); // each deleted dependent triggers another check
        }
        let mut done = owner.clone();
        let kept: Vec<String> = owner
            .finalizers()
            .into_iter()
            .filter(|finalizer| !matches!(*finalizer, ORPHAN | FOREGROUND))
            .map(str::to_owned)
            .collect();
        done.set_finalizers(&kept);
        let info = named(resource, owner.namespace(), owner.name());
        match self.update(&Identity::admin(), &info, done, &WriteOptions::of_server()).await {
            Err(error) if !matches!(error.code, 404 | 409) => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl Graph {
    /// Records the current state of an object.
    fn record(&mut self, key: Key, document: &Document) -> Result<(), ApiError> {
        let facts: ObjectFields = document.extract()?;
        let owners: BTreeSet<String> =
            facts.metadata.owner_references.into_iter().map(|owner| owner.uid).collect();
        self.unlink(&key);
        for uid in &owners {
            self.dependents.entry(uid.clone()).or_default().insert(key.clone());
        }
        let chosen = |finalizer: &String| matches!(finalizer.as_str(), ORPHAN | FOREGROUND);
        if !owners.is_empty() || facts.metadata.finalizers.iter().any(chosen) {
            self.to_check.insert(key.clone());
        }
        if !owners.is_empty() {
            self.owners.insert(key, owners);
        }
        Ok(())
    }

    /// Records a deletion: its dependents, and owners that waited for it, must be checked.
    fn remove(&mut self, key: &Key, last: &Document) -> Result<(), ApiError> {
        let facts: ObjectFields = last.extract()?;
        if let Some(dependents) = self.dependents.get(&facts.metadata.uid) {
            self.to_check.extend(dependents.iter().cloned());
        }
        for owner in facts.metadata.owner_references {
            if let Some(resource) = owner.resource() {
                self.to_check.insert(Key::new(resource, key.namespace(), &owner.name));
            }
        }
        self.unlink(key);
        Ok(())
    }

    fn unlink(&mut self, key: &Key) {
        for uid in self.owners.remove(key).into_iter().flatten() {
            if let Some(dependents) = self.dependents.get_mut(&uid) {
                dependents.remove(key);
                if dependents.is_empty() {
                    self.dependents.remove(&uid);
                }
            }
        }
    }
}

fn blocks(dependent: &Object, owner: &str) -> bool {
    dependent.owner_references().iter().any(|reference| {
        is(reference, owner)
            && reference.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true)
    })
}

fn is(reference: &Value, owner: &str) -> bool {
    reference.get("uid").and_then(Value::as_str) == Some(owner)
}

/// Every storage once: resources that share one appear once.
fn storages() -> impl Iterator<Item = &'static Resource> {
    let stored = |resource: &&Resource| !resource.storage.is_empty() && **resource != EVENTS_V1;
    RESOURCES.iter().copied().filter(stored)
}

fn resource_of(key: &Key) -> Option<&'static Resource> {
    let storage = key.as_str().split('/').next()?;
    storages().find(|resource| resource.storage == storage)
}

/// The fields of an object that matter here.
#[derive(serde::Deserialize)]
struct ObjectFields {
    metadata: MetaFields,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetaFields {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    owner_references: Vec<OwnerFields>,
    #[serde(default)]
    finalizers: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct OwnerFields {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

impl OwnerFields {
    fn resource(&self) -> Option<&'static Resource> {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version));
        registry::find_kind(group, version, &self.kind)
    }
}
