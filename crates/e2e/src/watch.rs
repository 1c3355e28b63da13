//! Watch of pods that must not change, which proves its own completeness.
//!
//! A watch that ended, never began or has a gap shows no change either. So a watch is only valid if
//! it has seen every pod from the beginning, without a gap, and a mark that is set on each of them
//! at the end. The API server delivers changes in order, so every change before the mark is seen
//! before the mark.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::wait;

/// The annotation used as the mark.
const MARK: &str = "podwright.test/watched-until";

/// Time limit for the first list and for the marks.
const LIMIT: Duration = Duration::from_secs(120);

/// Every state of each pod, oldest first, by name.
pub type History = BTreeMap<String, Vec<Pod>>;

pub struct PodWatch {
    pods: Api<Pod>,
    names: BTreeSet<String>,
    seen: Arc<Mutex<WatchState>>,
    task: JoinHandle<()>,
}

impl PodWatch {
    /// Starts watching these pods. Returns after all of them were seen.
    pub async fn begin<N: Into<String>>(
        pods: Api<Pod>,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self> {
        let names: BTreeSet<String> = names.into_iter().map(Into::into).collect();
        ensure!(!names.is_empty(), "a watch of no pods proves nothing");
        let seen: Arc<Mutex<WatchState>> = Arc::default();
        let stream = watcher(pods.clone(), watcher::Config::default()).default_backoff();
        let task = tokio::spawn(follow(stream.boxed(), seen.clone()));
        let watch = Self { pods, names, seen, task };
        let all = async || Ok(watch.unseen(|_| true)?.is_empty().then_some(()));
        wait::until("the watch to show every pod", LIMIT, all).await?;
        Ok(watch)
    }

    /// Marks every pod and returns the states that the watch saw before the mark.
    pub async fn finish(self, mark: &str) -> Result<History> {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { MARK: mark } } }));
        for name in &self.names {
            let marked = self.pods.patch(name, &PatchParams::default(), &patch).await;
            marked.with_context(|| format!("marking pod {name} for the end of its watch"))?;
        }
        let marked = async || {
            let left = self.unseen(|pod| marked_with(pod, mark))?;
            ensure!(left.is_empty(), "marks not seen: {left:?}");
            Ok(Some(()))
        };
        // A watch does not recover lost changes later.
        let ends = async {
            loop {
                if let Err(error) = self.unseen(|_| true) {
                    return error;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            marked = wait::until("the watch to show every pod's mark", LIMIT, marked) => marked?,
            error = ends => return Err(error),
        }
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(seen.until(&self.names, mark))
    }

    /// The pods for which no state satisfies the predicate; an error if the watch is not valid.
    fn unseen(&self, predicate: impl Fn(&Pod) -> bool) -> Result<Vec<String>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = &seen.fault {
            return Err(anyhow!("the watch of the pods is not valid: {fault}"));
        }
        let is_unseen = |name: &&String| {
            seen.history.get(*name).is_none_or(|states| !states.iter().any(&predicate))
        };
        Ok(self.names.iter().filter(is_unseen).cloned().collect())
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Default)]
struct WatchState {
    /// Whether the first list was complete.
    listed: bool,
    history: History,
    /// Why the watch is no longer valid.
    fault: Option<String>,
}

impl WatchState {
    fn note(&mut self, event: Result<Event<Pod>, watcher::Error>) {
        match event {
            Ok(Event::Init) if self.listed => {
                self.fault = Some("the pods were listed again, changes may be missing".to_owned());
            }
            Ok(Event::Init) => {}
            Ok(Event::InitDone) => self.listed = true,
            Ok(Event::InitApply(pod) | Event::Apply(pod)) => {
                let name = pod.metadata.name.clone().unwrap_or_default();
                self.history.entry(name).or_default().push(pod);
            }
            Ok(Event::Delete(pod)) => {
                let name = pod.metadata.name.clone().unwrap_or_default();
                self.history.entry(name).or_default().push(pod);
            }
            // The watch resumes; if it cannot, it lists again.
            Err(error) => tracing::debug!(%error, "pod watch interrupted, resuming"),
        }
    }

    /// The states of these pods, each up to its mark.
    fn until(&self, names: &BTreeSet<String>, mark: &str) -> History {
        let history = names.iter().map(|name| {
            let states = self.history.get(name).cloned().unwrap_or_default();
            let end = states.iter().position(|pod| marked_with(pod, mark)).map_or(0, |at| at + 1);
            (name.clone(), states.into_iter().take(end).collect())
        });
        history.collect()
    }
}

async fn follow(
    mut stream: impl Stream<Item = Result<Event<Pod>, watcher::Error>> + Unpin,
    seen: Arc<Mutex<WatchState>>,
) {
    while let Some(event) = stream.next().await {
        seen.lock().unwrap_or_else(PoisonError::into_inner).note(event);
    }
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.fault.get_or_insert("the stream ended".to_owned());
}

fn marked_with(pod: &Pod, mark: &str) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(MARK)).is_some_and(|found| found == mark)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use kube::api::PostParams;
    use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};

    use super::*;

    /// An in-process API server with pods.
    async fn server(names: &[&str]) -> (ApiServer, Api<Pod>) {
        let clock = Clock::system();
        let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
        let server = ApiServer::start(store, Settings::new(clock, Ids::system())).await.unwrap();
        let client = kube::Client::new(server.service(Identity::admin()), "default");
        let pods: Api<Pod> = Api::default_namespaced(client);
        for name in names {
            let pod = json!({
                "metadata": { "name": name },
                "spec": { "containers": [{ "name": "app", "image": "image" }] },
            });
            pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap())
                .await
                .unwrap();
        }
        (server, pods)
    }

    async fn label(pods: &Api<Pod>, name: &str, value: &str) {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "state": value } } }));
        pods.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    fn states(history: &[Pod]) -> Vec<&str> {
        let state = |pod: &Pod| pod.metadata.labels.as_ref().and_then(|l| l.get("state").cloned());
        history
            .iter()
            .map(|pod| if state(pod).is_some_and(|s| s == "bad") { "bad" } else { "good" })
            .collect()
    }

    #[tokio::test]
    async fn reverted_change_is_in_the_history() {
        let (_server, pods) = server(&["a", "b", "other"]).await;
        let watch = PodWatch::begin(pods.clone(), ["a", "b"]).await.unwrap();
        label(&pods, "a", "bad").await;
        label(&pods, "a", "good").await;
        let history = watch.finish("end").await.unwrap();
        assert_eq!(states(&history["a"]), ["good", "bad", "good", "good"]);
        assert_eq!(states(&history["b"]), ["good", "good"]);
        assert_eq!(history.len(), 2);
    }

    #[tokio::test]
    async fn watch_that_ends_early_is_not_valid() {
        let seen: Arc<Mutex<WatchState>> = Arc::default();
        let pod = Pod::default();
        let events = [Ok(Event::Init), Ok(Event::InitApply(pod)), Ok(Event::InitDone)];
        follow(futures::stream::iter(events), seen.clone()).await;
        assert_eq!(seen.lock().unwrap().fault.as_deref(), Some("the stream ended"));
        let (_server, pods) = server(&["a"]).await;
        let watch = PodWatch::begin(pods, ["a"]).await.unwrap();
        watch.seen.lock().unwrap().fault = seen.lock().unwrap().fault.clone();
        let error = watch.finish("end").await.unwrap_err().to_string();
        assert!(error.contains("is not valid: the stream ended"), "{error}");
    }

    #[tokio::test]
    async fn watch_with_a_gap_is_not_valid() {
        let mut seen = WatchState::default();
        for event in [Event::Init, Event::InitDone, Event::Init] {
            seen.note(Ok(event));
        }
        assert!(seen.fault.unwrap().contains("changes may be missing"));
    }

    #[tokio::test]
    async fn missing_pod_cannot_be_watched_or_marked() {
        let (_server, pods) = server(&["a"]).await;
        let watch = PodWatch::begin(pods.clone(), ["a"]).await.unwrap();
        pods.delete("a", &kube::api::DeleteParams::default().grace_period(0)).await.unwrap();
        let error = format!("{:#}", watch.finish("end").await.unwrap_err());
        assert!(error.contains("marking pod a"), "{error}");
        assert!(PodWatch::begin(pods, [""; 0]).await.is_err());
    }
}
