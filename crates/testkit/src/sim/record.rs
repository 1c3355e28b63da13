//! Record of every pod object the API server ever served, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use parking_lot::Mutex;
use podwright_api::annotations::ANNOTATION_MIRROR;
use podwright_core::pod::Phase;
use tokio::time::Instant;

/// One pod at one moment.
#[derive(Clone, Debug)]
pub struct RecordedPod {
    pub at: Duration,
    /// The object was removed; `pod` is its last state.
    pub gone: bool,
    pub pod: Arc<v1::Pod>,
}

impl RecordedPod {
    pub fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }
}

pub fn phase(pod: &v1::Pod) -> Phase {
    Phase::parse(pod.status.as_ref().and_then(|status| status.phase.as_deref()))
}

/// `None`: not reported yet.
pub fn condition(pod: &v1::Pod, kind: &str) -> Option<bool> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind).map(|c| c.status == "True")
}

pub fn is_ready(pod: &v1::Pod) -> bool {
    condition(pod, "Ready") == Some(true)
}

pub fn is_mirror(pod: &v1::Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(ANNOTATION_MIRROR))
}

/// Every container of the pod with its id and its restart count.
pub fn containers(pod: &v1::Pod) -> Vec<&v1::ContainerStatus> {
    let Some(status) = &pod.status else { return Vec::new() };
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten().collect()
}

#[derive(Clone)]
pub struct Record(Arc<Mutex<RecordState>>);

#[derive(Default)]
struct RecordState {
    recorded_pods: Vec<RecordedPod>,
    /// By namespace and name.
    current: BTreeMap<(String, String), Arc<v1::Pod>>,
}

impl Record {
    /// Removes the records of pods that are gone: a long run would exceed the memory.
    pub fn drop_removed_pods(&self) {
        let mut seen = self.0.lock();
        let living: BTreeSet<String> =
            seen.current.values().filter_map(|pod| pod.metadata.uid.clone()).collect();
        seen.recorded_pods.retain(|recorded| living.contains(recorded.uid()));
    }

    /// Watches from now on, until the runtime it is called in ends.
    pub fn start(client: kube::Client) -> Self {
        let this = Self(Arc::default());
        let seen = this.clone();
        let began = Instant::now();
        tokio::spawn(async move {
            let pods: Api<v1::Pod> = Api::all(client);
            let mut version = "0".to_owned();
            loop {
                let params = WatchParams::default().timeout(290);
                let mut events = pods.watch(&params, &version).await.expect("a watch").boxed();
                while let Some(Ok(event)) = events.next().await {
                    if let Some(newer) = seen.note(event, began.elapsed()) {
                        version = newer;
                    }
                }
            }
        });
        this
    }

    fn note(&self, event: WatchEvent<v1::Pod>, at: Duration) -> Option<String> {
        let (pod, gone) = match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
            WatchEvent::Deleted(pod) => (pod, true),
            WatchEvent::Bookmark(mark) => return Some(mark.metadata.resource_version),
            WatchEvent::Error(status) => panic!("the watch of the record broke: {status:?}"),
        };
        let version = pod.metadata.resource_version.clone();
        let pod = Arc::new(pod);
        let meta = &pod.metadata;
        let key =
            (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        let mut seen = self.0.lock();
        match gone {
            true => drop(seen.current.remove(&key)),
            false => drop(seen.current.insert(key, pod.clone())),
        }
        seen.recorded_pods.push(RecordedPod { at, gone, pod });
        version
    }

    pub fn recorded_pods(&self) -> Vec<RecordedPod> {
        self.0.lock().recorded_pods.clone()
    }

    /// What was shown of the pod with this UID.
    pub fn of(&self, uid: &str) -> Vec<RecordedPod> {
        self.0.lock().recorded_pods.iter().filter(|s| s.uid() == uid).cloned().collect()
    }

    /// A pod of the default namespace as it is now.
    pub fn pod(&self, name: &str) -> Option<Arc<v1::Pod>> {
        self.0.lock().current.get(&("default".to_owned(), name.to_owned())).cloned()
    }

    pub fn pods(&self) -> Vec<Arc<v1::Pod>> {
        self.0.lock().current.values().cloned().collect()
    }
}
