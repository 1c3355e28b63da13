//! One object, watched by its name.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use podwright_core::config::Lookup;
use podwright_core::config::env::ObjectKind;
use podwright_core::ids::PodUid;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{Key, Object, Objects, said};

/// How long a pod waits for a watch that just began. It is told if the answer comes later.
const FIRST_VALUE: Duration = Duration::from_secs(5);
/// A new pod's objects may be forbidden until the API server has noticed that it is ours.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

pub(super) struct Watched {
    pub seen: Arc<watch::Sender<Seen>>,
    /// Who refers to it.
    pub pods: BTreeSet<PodUid>,
    pub task: Option<AbortOnDropHandle<()>>,
}

/// What a watch has shown so far.
#[derive(Default)]
pub(super) struct Seen {
    /// `None`: nothing yet. `Some(None)`: there is no such object.
    value: Option<Option<Object>>,
    /// Why there is nothing yet.
    trouble: Option<String>,
    /// Somebody gave up waiting for the first value.
    awaited: bool,
}

impl Watched {
    pub(super) fn begin(client: kube::Client, key: Key, objects: Weak<Objects>) -> Self {
        let seen = Arc::new(watch::Sender::new(Seen::default()));
        let follower = Follower { key, seen: seen.clone(), objects };
        let task = tokio::spawn(async move {
            match follower.key.kind {
                ObjectKind::ConfigMap => follower.follow::<v1::ConfigMap>(client).await,
                ObjectKind::Secret => follower.follow::<v1::Secret>(client).await,
            }
        });
        Self { seen, pods: BTreeSet::new(), task: Some(AbortOnDropHandle::new(task)) }
    }
}

impl Seen {
    /// The value, once there is one.
    pub(super) async fn value(seen: &watch::Sender<Self>) -> Lookup<Object> {
        let mut news = seen.subscribe();
        let first = news.wait_for(|seen| seen.value.is_some());
        if let Ok(Ok(seen)) = tokio::time::timeout(FIRST_VALUE, first).await {
            return match &seen.value {
                Some(Some(object)) => Lookup::Found(object.clone()),
                Some(None) | None => Lookup::Missing,
            };
        }
        let mut trouble = None;
        seen.send_if_modified(|seen| {
            seen.awaited = true;
            trouble.clone_from(&seen.trouble);
            false
        });
        let trouble = trouble.unwrap_or_else(|| "the API server has not answered yet".into());
        Lookup::Failed(trouble)
    }
}

/// A kind of object that is watched.
trait Kept:
    kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + serde::de::DeserializeOwned
    + Send
    + 'static
{
    fn is_final(&self) -> bool;
    /// Its data and nothing else.
    fn kept(self) -> Object;
}

impl Kept for v1::ConfigMap {
    fn is_final(&self) -> bool {
        self.immutable.unwrap_or(false)
    }

    fn kept(self) -> Object {
        Object::ConfigMap(Arc::new(Self { metadata: Default::default(), ..self }))
    }
}

impl Kept for v1::Secret {
    fn is_final(&self) -> bool {
        self.immutable.unwrap_or(false)
    }

    fn kept(self) -> Object {
        // Whether it is still the same one matters to whoever is let in by it.
        let metadata = ObjectMeta { uid: self.metadata.uid, ..ObjectMeta::default() };
        Object::Secret(Arc::new(Self { metadata, ..self }))
    }
}

struct Follower {
    key: Key,
    seen: Arc<watch::Sender<Seen>>,
    objects: Weak<Objects>,
}

impl Follower {
    /// Ends when the object cannot change any more, or with the last pod that refers to it.
    async fn follow<K: Kept>(&self, client: kube::Client) {
        let api: Api<K> = Api::namespaced(client, &self.key.namespace);
        let changes = watcher::watch_object(api, &self.key.name).backoff(Patience::default());
        let mut changes = std::pin::pin!(changes);
        loop {
            match changes.try_next().await {
                Ok(Some(object)) => {
                    let last = object.as_ref().is_some_and(Kept::is_final);
                    self.publish(object.map(Kept::kept));
                    if last {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => self.note_trouble(&error),
            }
        }
    }

    fn publish(&self, object: Option<Object>) {
        let mut tell = false;
        self.seen.send_if_modified(|seen| {
            if seen.value.as_ref() == Some(&object) {
                return false;
            }
            // Who still waits for the first value gets it by itself.
            tell = seen.value.is_some() || seen.awaited;
            *seen = Seen { value: Some(object), ..Seen::default() };
            true
        });
        if tell && let Some(objects) = self.objects.upgrade() {
            objects.tell_of(&self.key);
        }
    }

    fn note_trouble(&self, error: &watcher::Error) {
        let text = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => said(error),
            watcher::Error::WatchError(status) => status.message.clone(),
            other => other.to_string(),
        };
        let Key { kind, namespace, name } = &self.key;
        let first = self.seen.send_if_modified(|seen| {
            let first = seen.trouble.is_none();
            seen.trouble = Some(text.clone());
            first
        });
        if first {
            let kind = kind.as_str();
            tracing::debug!(kind, %namespace, %name, error = text, "cannot watch it; trying again");
        }
    }
}

/// Waits twice as long each time.
#[derive(Debug)]
struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(FIRST_RETRY)
    }
}

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST_RETRY);
        Some(wait)
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {
        *self = Self::default();
    }
}
