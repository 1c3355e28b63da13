//! Objects of the API that pods refer to.
//!
//! ConfigMaps and Secrets are watched, each by its name, because that is all a node may do; so an
//! edit is here as soon as the API server knows of it, and a pod that waits for a missing one is
//! told when it appears. A watch is shared by all pods that refer to the object and ends with the
//! last of them; of the object only its data is kept. The rest is read when it is needed.

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
use podwright_core::config::env::{Need, ObjectKind};
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_core::volume::sources::Wanted;
use tokio::sync::Notify;

pub use fetched::{Fetched, FileRead};
pub use reading::ReadError;
use services::Services;
use watched::{Seen, Watched};

use crate::images::Secrets;

/// One ConfigMap or Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: ObjectKind,
    namespace: Arc<str>,
    name: Arc<str>,
}

/// What is kept of an object. Not printable: a Secret never shows in a log.
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
    news: News,
    /// Handlers of runtime classes, as of when a sandbox last asked.
    handlers: Mutex<HashMap<String, String>>,
}

/// Pods that refer to something that changed.
#[derive(Default)]
struct News {
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
            news: News::default(),
            handlers: Mutex::default(),
        })
    }

    /// Reads what a container's variables need. Files are not read here; see
    /// [`Fetched::add_file`].
    pub async fn fetch(self: &Arc<Self>, pod: &Pod, needs: Vec<Need>) -> Fetched {
        let objects = needs.into_iter().filter_map(|need| match need {
            Need::Object { kind, name, .. } => Some((kind, name)),
            Need::File { .. } => None,
        });
        self.fetch_objects(pod, objects.collect()).await
    }

    /// Reads what a volume needs, except for tokens.
    pub async fn fetch_wanted(self: &Arc<Self>, pod: &Pod, wanted: &Wanted) -> Fetched {
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

    /// The object as the watch last saw it; waits a moment for a watch that just began.
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
        Seen::value(&seen).await
    }

    /// The pod is over: what only it referred to is not watched any more.
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
        // Ended outside the lock: ending a task may run its destructors right here.
        drop(over);
        self.news.pods.lock().remove(pod);
    }

    /// Waits for pods that refer to something that changed. Cancel-safe: what was not returned
    /// stays.
    pub async fn changed(&self) -> BTreeSet<PodUid> {
        loop {
            let pods = std::mem::take(&mut *self.news.pods.lock());
            if !pods.is_empty() {
                return pods;
            }
            self.news.any.notified().await;
        }
    }

    fn tell_of(&self, key: &Key) {
        let pods = self.watched.lock().get(key).map(|watched| watched.pods.clone());
        self.news.pods.lock().extend(pods.into_iter().flatten());
        self.news.any.notify_one();
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

/// What the API server said, without what the client adds.
fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
