//! Watch on one object by name.

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
use kube::runtime::watcher;
use podwright_core::backoff::Doubling;
use podwright_core::config::Lookup;
use podwright_core::config::env::ObjectKind;
use podwright_core::ids::PodUid;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{Key, Object, Objects, api_message};
use crate::sources::backoff::WatchBackoff;

/// How long a pod waits for a new watch. It is notified if the object arrives later.
const FIRST_VALUE: Duration = Duration::from_secs(5);
/// The objects of a new pod may be forbidden until the authorizer knows that it runs here.
const RETRY: Doubling = Doubling::new(Duration::from_millis(50), Duration::from_secs(10));

pub(super) struct Watched {
    pub seen: Arc<watch::Sender<WatchState>>,
    /// The pods that refer to it.
    pub pods: BTreeSet<PodUid>,
    pub task: Option<AbortOnDropHandle<()>>,
}

/// The state of a watch.
#[derive(Default)]
pub(super) struct WatchState {
    /// `None`: not listed yet. `Some(None)`: the object does not exist.
    value: Option<Option<Object>>,
    /// The last error before the first value.
    last_error: Option<String>,
    /// A waiter timed out before the first value.
    awaited: bool,
}

impl Watched {
    pub(super) fn begin(client: kube::Client, key: Key, objects: Weak<Objects>) -> Self {
        let seen = Arc::new(watch::Sender::new(WatchState::default()));
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

impl WatchState {
    /// The value, after waiting for the first one.
    pub(super) async fn value(seen: &watch::Sender<Self>) -> Lookup<Object> {
        let mut news = seen.subscribe();
        let first = news.wait_for(|seen| seen.value.is_some());
        if let Ok(Ok(seen)) = tokio::time::timeout(FIRST_VALUE, first).await {
            return match &seen.value {
                Some(Some(object)) => Lookup::Found(object.clone()),
                Some(None) | None => Lookup::Missing,
            };
        }
        let mut last_error = None;
        seen.send_if_modified(|seen| {
            seen.awaited = true;
            last_error.clone_from(&seen.last_error);
            false
        });
        let last_error = last_error.unwrap_or_else(|| "no response from the API server yet".into());
        Lookup::Failed(last_error)
    }
}

/// A watched kind.
trait WatchedKind:
    kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + serde::de::DeserializeOwned
    + Send
    + 'static
{
    fn is_final(&self) -> bool;
    /// The object without its metadata.
    fn without_metadata(self) -> Object;
}

impl WatchedKind for v1::ConfigMap {
    fn is_final(&self) -> bool {
        self.immutable.unwrap_or(false)
    }

    fn without_metadata(self) -> Object {
        Object::ConfigMap(Arc::new(Self { metadata: Default::default(), ..self }))
    }
}

impl WatchedKind for v1::Secret {
    fn is_final(&self) -> bool {
        self.immutable.unwrap_or(false)
    }

    fn without_metadata(self) -> Object {
        // Pull records identify a Secret by its UID.
        let metadata = ObjectMeta { uid: self.metadata.uid, ..ObjectMeta::default() };
        Object::Secret(Arc::new(Self { metadata, ..self }))
    }
}

struct Follower {
    key: Key,
    seen: Arc<watch::Sender<WatchState>>,
    objects: Weak<Objects>,
}

impl Follower {
    /// Ends when the object is immutable, or with the last pod that refers to it.
    async fn follow<K: WatchedKind>(&self, client: kube::Client) {
        let api: Api<K> = Api::namespaced(client, &self.key.namespace);
        let changes = watcher::watch_object(api, &self.key.name).backoff(WatchBackoff::new(RETRY));
        let mut changes = std::pin::pin!(changes);
        loop {
            match changes.try_next().await {
                Ok(Some(object)) => {
                    let last = object.as_ref().is_some_and(WatchedKind::is_final);
                    self.publish(object.map(WatchedKind::without_metadata));
                    if last {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => self.record_error(&error),
            }
        }
    }

    fn publish(&self, object: Option<Object>) {
        let mut notify = false;
        self.seen.send_if_modified(|seen| {
            if seen.value.as_ref() == Some(&object) {
                return false;
            }
            // A pod that still waits for the first value receives it directly.
            notify = seen.value.is_some() || seen.awaited;
            *seen = WatchState { value: Some(object), ..WatchState::default() };
            true
        });
        if notify && let Some(objects) = self.objects.upgrade() {
            objects.notify_change(&self.key);
        }
    }

    fn record_error(&self, error: &watcher::Error) {
        let text = match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => api_message(error),
            watcher::Error::WatchError(status) => status.message.clone(),
            other => other.to_string(),
        };
        let Key { kind, namespace, name } = &self.key;
        let first = self.seen.send_if_modified(|seen| {
            let first = seen.last_error.is_none();
            seen.last_error = Some(text.clone());
            first
        });
        if first {
            let kind = kind.as_str();
            tracing::debug!(kind, %namespace, %name, error = text, "cannot watch object, retrying");
        }
    }
}
