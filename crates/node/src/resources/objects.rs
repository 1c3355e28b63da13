//! API objects that pods refer to.
//!
//! ConfigMaps and Secrets are watched one by one by name, because a node is authorized for nothing
//! else; so an edit arrives immediately, and a pod that waits for a missing object is notified when it
//! appears. A watch is shared by all pods that refer to the object and ends with the last of them; only
//! the data of the object is kept. Other objects are read when they are needed.

mod fetched;
mod reading;
mod services;
mod watched;

use std::collections::{BTreeSet, HashMap};
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
use tokio::sync::Notify;

pub use fetched::{Fetched, FileRead};
pub use reading::ReadError;
use services::Services;
use watched::{WatchState, Watched};

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
    watched: Mutex<HashMap<Key, Watched>>,
    changed_pods: ChangedPods,
    /// Handlers of runtime classes, as last read for a sandbox.
    handlers: Mutex<HashMap<String, String>>,
}

/// Pods that refer to changed objects.
#[derive(Default)]
struct ChangedPods {
    pods: Mutex<BTreeSet<PodUid>>,
    any: Notify,
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
            let mut watched = self.watched.lock();
            let watched = watched
                .entry(key.clone())
                .or_insert_with(|| Watched::begin(client.clone(), key, Arc::downgrade(self)));
            watched.pods.insert(pod.uid.clone());
            watched.seen.clone()
        };
        WatchState::value(&seen).await
    }

    /// Ends the watches on objects that only this pod referred to.
    pub fn release(&self, pod: &PodUid) {
        let mut over = Vec::new();
        {
            let mut watched = self.watched.lock();
            watched.retain(|_, watched| {
                watched.pods.remove(pod);
                if watched.pods.is_empty() {
                    over.extend(watched.task.take());
                }
                !watched.pods.is_empty()
            });
        }
        // Dropped outside the lock: aborting a task may run its destructors here.
        drop(over);
        self.changed_pods.pods.lock().remove(pod);
    }

    /// Waits for pods that refer to changed objects. Cancel-safe: unreturned pods stay queued.
    pub async fn changed(&self) -> BTreeSet<PodUid> {
        loop {
            let pods = std::mem::take(&mut *self.changed_pods.pods.lock());
            if !pods.is_empty() {
                return pods;
            }
            self.changed_pods.any.notified().await;
        }
    }

    fn notify_change(&self, key: &Key) {
        let pods = self.watched.lock().get(key).map(|watched| watched.pods.clone());
        self.changed_pods.pods.lock().extend(pods.into_iter().flatten());
        self.changed_pods.any.notify_one();
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
