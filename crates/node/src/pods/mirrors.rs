//! Mirror pods: the API objects that represent static pods.
//!
//! Deleting a mirror pod does not stop the static pod; the mirror is created again. A mirror pod is
//! created as soon as the Node object exists, and whenever it is missing or outdated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use podwright_core::backoff::Doubling;
use podwright_core::pod::desired::MirrorPod;
use podwright_core::pod::mirror::{self, MirrorAction};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::pods::{CHANGE_DEBOUNCE, PodIndex};

/// Delay until the API has delivered its full set of pods.
const RETRY: Duration = Duration::from_secs(1);
/// Back-off of a failed request, initial and maximum; each failure doubles it.
const BACKOFF: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Maximum back-off while the API server is unreachable: mirror pods follow its return soon.
const OUTAGE_BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Maximum back-off while the Node object does not exist: it is created within seconds.
const NODE_BACKOFF_MAX: Duration = Duration::from_secs(4);
/// Delay while the API server contradicts the watch: another object has the name, whose deletion is
/// not watched, or the object is gone.
const NAME_RETRY: Duration = Duration::from_secs(30);

pub struct Mirrors {
    pub client: kube::Client,
    pub pod_index: Arc<PodIndex>,
    pub node_name: Arc<str>,
}

impl Mirrors {
    /// Reconciles all mirror pods until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let work = async {
            let mut changed = self.pod_index.mirrors_changed();
            let mut failures = Failures::default();
            loop {
                changed.mark_unchanged();
                let again = self.reconcile(&mut failures).await;
                tokio::select! {
                    // Cancel-safe: a change is kept until it is marked as seen.
                    _ = changed.changed() => {
                        failures.forget_taken_names();
                        tokio::time::sleep(CHANGE_DEBOUNCE).await;
                    }
                    () = tokio::time::sleep(again.unwrap_or_default()), if again.is_some() => {}
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Creates and deletes mirror pods as needed; returns when to retry what failed.
    async fn reconcile(&self, failures: &mut Failures) -> Option<Duration> {
        // The existing mirror pods are unknown before the API has delivered its full set.
        if !self.pod_index.api_synced() {
            return Some(RETRY);
        }
        let (pods, mirrors) = (self.pod_index.static_pods(), self.pod_index.mirrors());
        let acts = mirror::required_actions(&pods, &mirrors, self.pod_index.sources_ready());
        failures.retain(&acts);
        for act in acts {
            let key = Failures::key(&act);
            if failures.wait(&key).is_some() {
                continue;
            }
            let (done, verb, pod) = match &act {
                MirrorAction::Create(pod) => (self.create(pod).await, "create", &pod.name),
                MirrorAction::Delete(mirror) => {
                    (self.delete(mirror).await, "delete", &mirror.pod.name)
                }
            };
            let Err(RetryLater { problem, initial, max }) = done else {
                failures.0.remove(&key);
                continue;
            };
            let (attempt, delay) = failures.add(key, initial, max);
            // Without the pod spec: its environment may contain secrets.
            let (error, retry_in) = (problem, delay.as_secs());
            match attempt {
                1 => tracing::warn!(%pod, verb, error, retry_in, "mirror pod failed, retrying"),
                _ => {
                    tracing::debug!(%pod, verb, error, retry_in, attempt, "mirror pod failed, retrying");
                }
            }
        }
        failures.next()
    }

    async fn create(&self, pod: &podwright_core::pod::Pod) -> Result<(), RetryLater> {
        let nodes: Api<v1::Node> = Api::all(self.client.clone());
        let node = nodes.get_opt(&self.node_name).await.map_err(|error| RetryLater::new(&error))?;
        let node =
            node.ok_or_else(|| RetryLater::for_node("the Node object does not exist yet"))?;
        if node.metadata.deletion_timestamp.is_some() {
            return Err(RetryLater::for_node("the Node object is being deleted"));
        }
        let uid = node.metadata.uid.unwrap_or_default();
        let object = mirror::object(pod, &self.node_name, &uid);
        let pods: Api<v1::Pod> = Api::namespaced(self.client.clone(), &pod.name.namespace);
        match pods.create(&PostParams::default(), &object).await {
            Ok(_) => {
                tracing::info!(pod = %pod.name, "mirror pod created");
                Ok(())
            }
            // It exists and the watch will deliver it, or another object has the name.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Err(RetryLater { problem: status.message, initial: NAME_RETRY, max: BACKOFF_MAX })
            }
            Err(error) => Err(RetryLater::new(&error)),
        }
    }

    async fn delete(&self, mirror: &MirrorPod) -> Result<(), RetryLater> {
        let name = &mirror.pod.name;
        let pods: Api<v1::Pod> = Api::namespaced(self.client.clone(), &name.namespace);
        let uid = Some(mirror.uid.to_string());
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteParams::default()
        };
        match pods.delete(&name.name, &params).await {
            Ok(_) => Ok(()),
            // Already deleted, or replaced by another object. The watch shows it, which ends the
            // retries; an answer that was wrong must not leave the mirror pod for good.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Err(RetryLater { problem: status.message, initial: NAME_RETRY, max: BACKOFF_MAX })
            }
            Err(error) => Err(RetryLater::new(&error)),
        }
    }
}

/// Why a request failed, and the back-off of its retries.
struct RetryLater {
    problem: String,
    initial: Duration,
    max: Duration,
}

impl RetryLater {
    fn new(error: &kube::Error) -> Self {
        let max = match error {
            kube::Error::Api(_) => BACKOFF_MAX,
            _ => OUTAGE_BACKOFF_MAX,
        };
        Self { problem: error.to_string(), initial: BACKOFF, max }
    }

    fn for_node(problem: &str) -> Self {
        Self { problem: problem.into(), initial: BACKOFF, max: NODE_BACKOFF_MAX }
    }
}

/// Failed requests and when each is retried.
#[derive(Default)]
struct Failures(BTreeMap<String, Failure>);

struct Failure {
    initial: Duration,
    times: u32,
    until: Instant,
}

impl Failures {
    /// An edited manifest is another pod, which has not failed yet.
    fn key(act: &MirrorAction) -> String {
        match act {
            MirrorAction::Create(pod) => format!("create/{}", pod.uid),
            MirrorAction::Delete(mirror) => format!("delete/{}", mirror.uid),
        }
    }

    fn retain(&mut self, acts: &[MirrorAction]) {
        let wanted: BTreeSet<String> = acts.iter().map(Self::key).collect();
        self.0.retain(|key, _| wanted.contains(key));
    }

    /// The object that has the name may be gone.
    fn forget_taken_names(&mut self) {
        self.0.retain(|_, failure| failure.initial != NAME_RETRY);
    }

    /// Returns the number of failures and the delay until the next attempt.
    fn add(&mut self, key: String, initial: Duration, max: Duration) -> (u32, Duration) {
        let now = Instant::now();
        let failure = self.0.entry(key).or_insert(Failure { initial, times: 0, until: now });
        let wait = Doubling::new(initial, max).after(failure.times);
        failure.times = failure.times.saturating_add(1);
        failure.until = now + wait;
        (failure.times, wait)
    }

    fn wait(&self, key: &str) -> Option<Duration> {
        let until = self.0.get(key)?.until;
        until.checked_duration_since(Instant::now()).filter(|wait| !wait.is_zero())
    }

    /// Delay until the first retry.
    fn next(&self) -> Option<Duration> {
        let first = self.0.values().map(|failure| failure.until).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }
}
