//! API objects that pods refer to.
//!
//! ConfigMaps and Secrets are watched one by one by name, because a node is authorized for nothing
//! else; so an edit arrives immediately, and a pod that waits for a missing object is notified when it
//! appears. A watch is shared by all pods that refer to the object and ends with the last of them; only
//! the data of the object is kept. Other objects are read when they are needed.

mod fetched;
mod reading;
mod services;
mod watch_table;
mod watched;

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_core::config::Lookup;
use podwright_core::config::env::{EnvDependency, ObjectKind};
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_core::volume::sources::ContentSources;

pub use fetched::{Fetched, FileRead};
pub use reading::ReadError;
use services::Services;
use watch_table::WatchTable;
use watched::{WatchState, Watched};

use crate::pods::pod_changes::ChangedPods;
use crate::runtime::images::Secrets;

/// One ConfigMap or Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: ObjectKind,
    namespace: Arc<str>,
    name: Arc<str>,
}

/// The kept part of an object. No `Debug`, so that a Secret is never logged.
#[derive(Clone, PartialEq)]
enum Object {
    ConfigMap(Arc<v1::ConfigMap>),
    Secret(Arc<v1::Secret>),
}

pub struct Objects {
    client: Option<kube::Client>,
    node_name: Arc<str>,
    services: Services,
    watched: Mutex<WatchTable>,
    /// Pods that refer to changed objects.
    changed_pods: ChangedPods,
    /// Handlers of runtime classes, as last read for a sandbox.
    handlers: Mutex<HashMap<String, String>>,
}

impl Objects {
    pub fn new(client: Option<kube::Client>, node_name: Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            client,
            node_name,
            services: Services::default(),
            watched: Mutex::default(),
            changed_pods: ChangedPods::default(),
            handlers: Mutex::default(),
        })
    }

    /// Reads the objects for a container's environment. Files are not read here; see
    /// [`Fetched::add_file`].
    pub async fn fetch(self: &Arc<Self>, pod: &Pod, needs: Vec<EnvDependency>) -> Fetched {
        let objects = needs.into_iter().filter_map(|need| match need {
            EnvDependency::Object { kind, name, .. } => Some((kind, name)),
            EnvDependency::File { .. } => None,
        });
        self.fetch_objects(pod, objects.collect()).await
    }

    /// Reads the objects for a volume, except for tokens.
    pub async fn fetch_wanted(self: &Arc<Self>, pod: &Pod, wanted: &ContentSources) -> Fetched {
        self.fetch_objects(pod, wanted.objects.clone()).await
    }

    async fn fetch_objects(
        self: &Arc<Self>,
        pod: &Pod,
        objects: Vec<(ObjectKind, String)>,
    ) -> Fetched {
        let mut fetched = Fetched::new(self.client.is_some());
        let lookups = objects.into_iter().map(|(kind, name)| async move {
            let found = self.look_up(pod, kind, &name).await;
            (kind, name, found)
        });
        for (kind, name, found) in futures::future::join_all(lookups).await {
            fetched.add(kind, name, found);
        }
        fetched
    }

    /// The object as last seen by the watch; waits a short time for a new watch.
    async fn look_up(self: &Arc<Self>, pod: &Pod, kind: ObjectKind, name: &str) -> Lookup<Object> {
        let Some(client) = &self.client else { return Lookup::NoApiServer };
        let key = Key { kind, namespace: pod.name.namespace.clone(), name: name.into() };
        let seen = {
            let begin = |key| Watched::begin(client.clone(), key, Arc::downgrade(self));
            self.watched.lock().follow(key, &pod.uid, begin)
        };
        WatchState::value(&seen).await
    }

    /// Ends the watches on objects that only this pod referred to.
    pub fn release(&self, pod: &PodUid) {
        let released = self.watched.lock().release(pod);
        // Dropped outside the lock: aborting a task may run its destructors here.
        drop(released);
        self.changed_pods.forget(pod);
    }

    /// Pods that refer to changed objects; the volume refresh is their reader.
    pub(crate) fn changed(&self) -> &ChangedPods {
        &self.changed_pods
    }

    fn notify_change(&self, key: &Key) {
        let pods = self.watched.lock().pods(key);
        self.changed_pods.note(pods);
    }

    #[cfg(test)]
    fn watches(&self) -> usize {
        self.watched.lock().len()
    }
}

impl Secrets for Arc<Objects> {
    fn secret<'a>(&'a self, pod: &'a Pod, name: &'a str) -> BoxFuture<'a, Lookup<Arc<v1::Secret>>> {
        async move {
            match self.look_up(pod, ObjectKind::Secret, name).await {
                Lookup::Found(Object::Secret(secret)) => Lookup::Found(secret),
                Lookup::Found(Object::ConfigMap(_)) | Lookup::Missing => Lookup::Missing,
                Lookup::Failed(problem) => Lookup::Failed(problem),
                Lookup::NoApiServer => Lookup::NoApiServer,
            }
        }
        .boxed()
    }
}

/// The message of the API server, without the client's additions.
fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
