//! MirrorPod pods: the API objects that represent static pods.
//!
//! Deleting a mirror pod does not stop the static pod; the mirror is created again. A mirror pod is
//! created as soon as the Node object exists, and whenever it is missing or outdated.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use podwright_core::pod::desired::MirrorPod;
use podwright_core::pod::mirror::{self, MirrorAction};
use tokio_util::sync::CancellationToken;

use crate::pods::{CHANGE_DEBOUNCE, PodIndex};

/// Delay before a failed request is retried, or while the Node object does not exist.
const RETRY: Duration = Duration::from_secs(1);
/// Delay while another object has the name: its deletion is not watched.
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
            let mut changed = self.pod_index.changed();
            loop {
                changed.mark_unchanged();
                let again = self.reconcile().await;
                tokio::select! {
                    // Cancel-safe: a change is kept until it is marked as seen.
                    _ = changed.changed() => tokio::time::sleep(CHANGE_DEBOUNCE).await,
                    () = tokio::time::sleep(again.unwrap_or_default()), if again.is_some() => {}
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Creates and deletes mirror pods as needed; returns when to retry what failed.
    async fn reconcile(&self) -> Option<Duration> {
        // The existing mirror pods are unknown before the API has delivered its full set.
        if !self.pod_index.api_synced() {
            return Some(RETRY);
        }
        let (pods, mirrors) = (self.pod_index.static_pods(), self.pod_index.mirrors());
        let acts = mirror::required_actions(&pods, &mirrors, self.pod_index.sources_ready());
        let mut again = None;
        for act in acts {
            let (done, verb, pod) = match &act {
                MirrorAction::Create(pod) => (self.create(pod).await, "create", &pod.name),
                MirrorAction::Delete(mirror) => {
                    (self.delete(mirror).await, "delete", &mirror.pod.name)
                }
            };
            if let Err(RetryLater { problem, retry }) = done {
                // Without the pod spec: its environment may contain secrets.
                tracing::debug!(error = problem, verb, %pod, "reconcile mirror pod failed, retrying");
                again = Some(again.map_or(retry, |soonest: Duration| soonest.min(retry)));
            }
        }
        again
    }

    async fn create(&self, pod: &podwright_core::pod::Pod) -> Result<(), RetryLater> {
        let nodes: Api<v1::Node> = Api::all(self.client.clone());
        let node = nodes
            .get_opt(&self.node_name)
            .await
            .map_err(|error| RetryLater::new(error.to_string()))?;
        let node = node.ok_or_else(|| RetryLater::new("the Node object does not exist yet"))?;
        if node.metadata.deletion_timestamp.is_some() {
            return Err(RetryLater::new("the Node object is being deleted"));
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
                Err(RetryLater { problem: status.message, retry: NAME_RETRY })
            }
            Err(error) => Err(RetryLater::new(error.to_string())),
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
            // Already deleted, or replaced by another object.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(RetryLater::new(error.to_string())),
        }
    }
}

/// Why a request failed, and when to retry it.
struct RetryLater {
    problem: String,
    retry: Duration,
}

impl RetryLater {
    fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), retry: RETRY }
    }
}
