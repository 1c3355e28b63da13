//! Namespace controller: keeps the default contents of each namespace, and empties deleted ones.

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::access::Identity;
use crate::document::Revision;
use crate::object::Object;
use crate::options::{DeleteOptions, Propagation, WriteOptions};
use crate::registry::{
    CONFIG_MAPS, EVENTS_V1, NAMESPACES, RESOURCES, Resource, SERVICE_ACCOUNTS, Verb,
};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Key, Scope};
use crate::strategy::NAMESPACE_FINALIZER;

use super::bootstrap::{ROOT_CA, contents};
use super::wait_for_change;

const WATCHED: [&Resource; 3] = [&NAMESPACES, &SERVICE_ACCOUNTS, &CONFIG_MAPS];

impl ApiServer {
    pub(super) async fn run_namespace_controller(&self, stop: CancellationToken) {
        let mut changes = self.store().changes();
        let mut seen: Option<Revision> = None;
        let mut emptying = true;
        loop {
            let now = *changes.borrow_and_update();
            let mut failed = false;
            if emptying || seen.is_none_or(|seen| self.any_changed(&WATCHED, seen)) {
                match self.reconcile_all().await {
                    Ok(more) => emptying = more,
                    Err(error) => {
                        tracing::warn!(%error, "reconcile namespaces failed, retrying shortly");
                        failed = true;
                    }
                }
            }
            if !failed {
                seen = Some(now);
            }
            if !wait_for_change(&mut changes, failed, &stop).await {
                return;
            }
        }
    }

    /// Returns whether a namespace is still being emptied.
    async fn reconcile_all(&self) -> Result<bool, ApiError> {
        let (namespaces, _) = self.store().list(&Scope::new(&NAMESPACES, None), None)?;
        let mut emptying = false;
        for (_, document) in namespaces {
            let namespace = document.object(&NAMESPACES)?;
            if namespace.is_being_deleted() {
                emptying |= !self.empty(&namespace).await?;
            } else {
                self.ensure_contents(namespace.name()).await?;
            }
        }
        Ok(emptying)
    }

    /// The default service account, and the current CA certificates.
    async fn ensure_contents(&self, namespace: &str) -> Result<(), ApiError> {
        for (resource, wanted) in contents(self, namespace) {
            let key = Key::new(resource, namespace, wanted.name());
            let Some(found) = self.read(resource, &key)? else {
                self.insert_built_in(resource, wanted).await?;
                continue;
            };
            if wanted.name() == ROOT_CA && found.get("data") != wanted.get("data") {
                let mut updated = found;
                updated.set("data", wanted.get("data").cloned());
                self.update(
                    &Identity::admin(),
                    &named(resource, namespace, ROOT_CA),
                    updated,
                    &WriteOptions::of_server(),
                )
                .await?;
            }
        }
        Ok(())
    }

    /// Deletes what is left; once nothing is, removes the finalizer. Returns whether it is done.
    async fn empty(&self, namespace: &Object) -> Result<bool, ApiError> {
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::default()
        };
        let mut empty = true;
        for resource in namespaced_resources() {
            let scope = Scope::new(resource, Some(namespace.name()));
            let (objects, _) = self.store().list(&scope, None)?;
            for (key, document) in objects {
                let object = document.object(resource)?;
                if object.is_being_deleted() {
                    empty = false;
                    continue;
                }
                let info = named(resource, namespace.name(), key.name());
                match self.delete(&info, &options).await {
                    Ok(deleted) => empty &= deleted.removed,
                    Err(error) if error.code == 404 => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if empty {
            self.release(namespace).await?;
        }
        Ok(empty)
    }

    async fn release(&self, namespace: &Object) -> Result<(), ApiError> {
        let info = RequestInfo {
            verb: Verb::Update,
            subresource: NAMESPACES.subresource("finalize"),
            ..named(&NAMESPACES, "", namespace.name())
        };
        let mut released = namespace.clone();
        released.edit(|value| {
            let list = value.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut);
            if let Some(list) = list {
                list.retain(|finalizer| finalizer != NAMESPACE_FINALIZER);
            }
        });
        match self.update(&Identity::admin(), &info, released, &WriteOptions::of_server()).await {
            Err(error) if error.code != 404 => Err(error),
            Ok(_) | Err(_) => Ok(()), // already gone
        }
    }
}

/// Every namespaced resource that can be deleted; resources that share storage appear once.
fn namespaced_resources() -> impl Iterator<Item = &'static Resource> {
    RESOURCES
        .iter()
        .copied()
        .filter(|resource| resource.namespaced && resource.allows(Verb::Delete))
        .filter(|resource| **resource != EVENTS_V1)
}

pub(super) fn named(resource: &'static Resource, namespace: &str, name: &str) -> RequestInfo {
    RequestInfo {
        verb: Verb::Delete,
        resource,
        subresource: None,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}
