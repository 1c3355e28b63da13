//! Shows static pods in the API.
//!
//! A mirror is only a picture: deleting it ends nothing, and the next moment it is back. It is
//! created as soon as the node object exists, and whenever it is missing or no longer true.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use podwright_core::pod::mirror::{self, Act};
use podwright_core::pod::registry::Mirror;
use tokio_util::sync::CancellationToken;

use crate::pods::{BURST, Directory};

/// Before trying again what the API server did not take, or waiting for the node object.
const RETRY: Duration = Duration::from_secs(1);
/// Before trying again whether a name is free that another object has: nobody tells us of its end.
const NAME_RETRY: Duration = Duration::from_secs(30);

pub struct Mirrors {
    pub client: kube::Client,
    pub directory: Arc<Directory>,
    pub node_name: Arc<str>,
}

impl Mirrors {
    /// Keeps every mirror true until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let work = async {
            let mut changed = self.directory.changed();
            loop {
                changed.mark_unchanged();
                let again = self.reconcile().await;
                tokio::select! {
                    // Cancel-safe: a change stays until it is marked as seen.
                    _ = changed.changed() => tokio::time::sleep(BURST).await,
                    () = tokio::time::sleep(again.unwrap_or_default()), if again.is_some() => {}
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Does what is to be done; says when to try again what could not be.
    async fn reconcile(&self) -> Option<Duration> {
        // Which mirrors there are, only the API's whole set tells.
        if !self.directory.api_heard() {
            return Some(RETRY);
        }
        let (pods, mirrors) = (self.directory.static_pods(), self.directory.mirrors());
        let acts = mirror::needs(&pods, &mirrors, self.directory.sources_ready());
        let mut again = None;
        for act in acts {
            let (done, verb, pod) = match &act {
                Act::Create(pod) => (self.create(pod).await, "create", &pod.name),
                Act::Delete(mirror) => (self.delete(mirror).await, "delete", &mirror.pod.name),
            };
            if let Err(Obstacle { problem, retry }) = done {
                // Not the whole act: a pod's environment may hold what nobody should read.
                tracing::debug!(problem, verb, %pod, "a mirror pod has to wait");
                again = Some(again.map_or(retry, |soonest: Duration| soonest.min(retry)));
            }
        }
        again
    }

    async fn create(&self, pod: &podwright_core::pod::Pod) -> Result<(), Obstacle> {
        let nodes: Api<v1::Node> = Api::all(self.client.clone());
        let node = nodes
            .get_opt(&self.node_name)
            .await
            .map_err(|error| Obstacle::new(error.to_string()))?;
        let node = node.ok_or_else(|| Obstacle::new("the node object does not exist yet"))?;
        if node.metadata.deletion_timestamp.is_some() {
            return Err(Obstacle::new("the node object is being deleted"));
        }
        let uid = node.metadata.uid.unwrap_or_default();
        let object = mirror::object(pod, &self.node_name, &uid);
        let pods: Api<v1::Pod> = Api::namespaced(self.client.clone(), &pod.name.namespace);
        match pods.create(&PostParams::default(), &object).await {
            Ok(_) => {
                tracing::info!(pod = %pod.name, "the static pod has a mirror in the API");
                Ok(())
            }
            // It is there, and the watch will tell us of it; or the name is taken by another.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                Err(Obstacle { problem: status.message, retry: NAME_RETRY })
            }
            Err(error) => Err(Obstacle::new(error.to_string())),
        }
    }

    async fn delete(&self, mirror: &Mirror) -> Result<(), Obstacle> {
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
            // Gone, or another object by now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(Obstacle::new(error.to_string())),
        }
    }
}

/// Why something could not be done, and when it may be tried again.
struct Obstacle {
    problem: String,
    retry: Duration,
}

impl Obstacle {
    fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), retry: RETRY }
    }
}
