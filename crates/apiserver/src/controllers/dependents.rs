//! Deletes objects whose owners are gone, and works off the two finalizers with which a client
//! chooses otherwise.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::access::Identity;
use crate::document::{Document, Revision};
use crate::object::Object;
use crate::options::{DeleteOptions, Propagation};
use crate::registry::{self, EVENTS_V1, RESOURCES, Resource};
use crate::rest::{FOREGROUND, ORPHAN};
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{HistoryError, Key, Scope, What};

use super::namespaces::named;
use super::next_look;

/// How many events are looked at between two acts.
const BATCH: usize = 64;

/// Who names whom as an owner, and what is to be looked at.
#[derive(Default)]
struct Graph {
    dependents: BTreeMap<String, BTreeSet<Key>>,
    owners: BTreeMap<Key, BTreeSet<String>>,
    /// Keys whose owners, or whose finalizers, must be judged.
    suspects: BTreeSet<Key>,
}

/// What one reference of an object leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Lives,
    /// It is to go once its dependents have: it keeps nobody.
    Waits,
    Gone,
    /// It cannot be asked: a kind that is not served here, or, for an object of the whole cluster,
    /// an owner in a namespace, and nobody knows in which.
    Unknown,
}

/// What the owners of an object say about it.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It has none, or none that is known to be gone, or one that cannot be asked.
    Stays,
    /// Some live; these references lead nowhere.
    Dangling(Vec<Value>),
    AllGone,
}

impl ApiServer {
    pub(super) async fn tend_dependents(&self, stop: CancellationToken) {
        let mut changes = self.store().changes();
        let mut graph = Graph::default();
        let mut seen: Option<Revision> = None;
        loop {
            let now = *changes.borrow_and_update();
            let learnt = match seen {
                Some(seen) => self.learn(&mut graph, seen),
                None => self.learn_all(&mut graph),
            };
            let failed = match learnt {
                Ok(()) => {
                    seen = Some(now);
                    self.judge_suspects(&mut graph).await
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read who owns what; trying again shortly");
                    seen = None;
                    true
                }
            };
            if !next_look(&mut changes, failed, &stop).await {
                return;
            }
        }
    }

    fn learn_all(&self, graph: &mut Graph) -> Result<(), ApiError> {
        *graph = Graph::default();
        for resource in storages() {
            let (objects, _) = self.store().list(&Scope::new(resource, None), None)?;
            for (key, document) in objects {
                graph.note(key, &document)?;
            }
        }
        Ok(())
    }

    fn learn(&self, graph: &mut Graph, since: Revision) -> Result<(), ApiError> {
        for resource in storages() {
            let scope = Scope::new(resource, None);
            let mut after = since;
            loop {
                let history = match self.store().history(&scope, after, BATCH) {
                    Ok(history) => history,
                    Err(HistoryError::TooOld { .. }) => return self.learn_all(graph),
                    Err(HistoryError::Store(error)) => return Err(error.into()),
                };
                let told_all = !history.more;
                after = history.upto;
                for event in history.events {
                    match event.what {
                        What::Created | What::Updated => {
                            let document = event.document();
                            graph.note(event.key, &document)?;
                        }
                        What::Deleted => graph.forget(&event.key, &event.document())?,
                    }
                }
                if told_all {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Says whether something must be tried again.
    async fn judge_suspects(&self, graph: &mut Graph) -> bool {
        let mut failed = false;
        for key in std::mem::take(&mut graph.suspects) {
            if let Err(error) = self.judge(graph, &key).await {
                tracing::warn!(%key, %error, "cannot act on an object's owners; trying again shortly");
                graph.suspects.insert(key);
                failed = true;
            }
        }
        failed
    }

    async fn judge(&self, graph: &Graph, key: &Key) -> Result<(), ApiError> {
        let Some(resource) = resource_of(key) else { return Ok(()) };
        let Some(object) = self.read(resource, key)? else { return Ok(()) };
        if object.is_being_deleted() {
            return self.work_off_finalizers(graph, resource, &object).await;
        }
        match self.verdict(&object)? {
            Verdict::Stays => Ok(()),
            Verdict::Dangling(dead) => {
                self.drop_owners(resource, &object, |owner| dead.contains(owner)).await
            }
            Verdict::AllGone => self.delete_dependent(resource, &object).await,
        }
    }

    fn verdict(&self, object: &Object) -> Result<Verdict, ApiError> {
        let references = object.owner_references();
        let (mut dead, mut lives) = (Vec::new(), false);
        for reference in references {
            match self.owner(object, reference)? {
                Owner::Lives => lives = true,
                Owner::Waits | Owner::Gone => dead.push(reference.clone()),
                Owner::Unknown => return Ok(Verdict::Stays),
            }
        }
        Ok(match (dead.is_empty(), lives) {
            (true, _) => Verdict::Stays,
            (false, true) => Verdict::Dangling(dead),
            (false, false) => Verdict::AllGone,
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
                Owner::Waits
            }
            Some(_) => Owner::Lives,
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
            Ok(_) | Err(_) => Ok(()), // gone, or another of its name: both are fine
        }
    }

    async fn drop_owners(
        &self,
        resource: &'static Resource,
        object: &Object,
        dead: impl Fn(&Value) -> bool,
    ) -> Result<(), ApiError> {
        let mut freed = object.clone();
        let kept: Vec<Value> =
            object.owner_references().iter().filter(|owner| !dead(owner)).cloned().collect();
        freed.set_meta("ownerReferences", (!kept.is_empty()).then_some(Value::Array(kept)));
        let info = named(resource, object.namespace(), object.name());
        match self.update(&Identity::admin(), &info, freed, false).await {
            Err(error) if !matches!(error.code, 404 | 409) => Err(error),
            Ok(_) | Err(_) => Ok(()), // changed meanwhile: that change is looked at too
        }
    }

    async fn work_off_finalizers(
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
                Verdict::Stays => {}
                // Another owner keeps it: it is let go of, and holds nobody up.
                Verdict::Dangling(dead) => {
                    self.drop_owners(kind, &dependent, |owner| dead.contains(owner)).await?;
                    continue;
                }
                Verdict::AllGone => self.delete_dependent(kind, &dependent).await?,
            }
            blocked |= blocks(&dependent, owner.uid());
        }
        if foreground && blocked {
            return Ok(()); // each dependent that goes brings us back here
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
        match self.update(&Identity::admin(), &info, done, false).await {
            Err(error) if !matches!(error.code, 404 | 409) => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl Graph {
    /// An object as it is now.
    fn note(&mut self, key: Key, document: &Document) -> Result<(), ApiError> {
        let facts: Facts = document.extract()?;
        let owners: BTreeSet<String> =
            facts.metadata.owner_references.into_iter().map(|owner| owner.uid).collect();
        self.unlink(&key);
        for uid in &owners {
            self.dependents.entry(uid.clone()).or_default().insert(key.clone());
        }
        let chosen = |finalizer: &String| matches!(finalizer.as_str(), ORPHAN | FOREGROUND);
        if !owners.is_empty() || facts.metadata.finalizers.iter().any(chosen) {
            self.suspects.insert(key.clone());
        }
        if !owners.is_empty() {
            self.owners.insert(key, owners);
        }
        Ok(())
    }

    /// An object that is gone: its dependents are to be judged, and owners that waited for it.
    fn forget(&mut self, key: &Key, last: &Document) -> Result<(), ApiError> {
        let facts: Facts = last.extract()?;
        if let Some(dependents) = self.dependents.get(&facts.metadata.uid) {
            self.suspects.extend(dependents.iter().cloned());
        }
        for owner in facts.metadata.owner_references {
            if let Some(resource) = owner.resource() {
                self.suspects.insert(Key::new(resource, key.namespace(), &owner.name));
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

/// Each set of objects once.
fn storages() -> impl Iterator<Item = &'static Resource> {
    let stored = |resource: &&Resource| !resource.storage.is_empty() && **resource != EVENTS_V1;
    RESOURCES.iter().copied().filter(stored)
}

fn resource_of(key: &Key) -> Option<&'static Resource> {
    let storage = key.as_str().split('/').next()?;
    storages().find(|resource| resource.storage == storage)
}

/// The little of an object that matters here.
#[derive(serde::Deserialize)]
struct Facts {
    metadata: MetaFacts,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetaFacts {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    owner_references: Vec<OwnerFacts>,
    #[serde(default)]
    finalizers: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct OwnerFacts {
    api_version: String,
    kind: String,
    name: String,
    uid: String,
}

impl OwnerFacts {
    fn resource(&self) -> Option<&'static Resource> {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version));
        registry::find_kind(group, version, &self.kind)
    }
}
