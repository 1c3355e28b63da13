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
                let settled = self.reconcile().await;
                tokio::select! {
                    // Cancel-safe: a change stays until it is marked as seen.
                    _ = changed.changed() => tokio::time::sleep(BURST).await,
                    () = tokio::time::sleep(RETRY), if !settled => {}
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Does what is to be done; true if nothing is left to try again.
    async fn reconcile(&self) -> bool {
        // Before all sources were heard a mirror without a pod may still get one.
        if !self.directory.sources_ready() {
            return false;
        }
        let acts = mirror::needs(&self.directory.static_pods(), &self.directory.mirrors());
        let mut settled = true;
        for act in acts {
            let (done, verb, pod) = match &act {
                Act::Create(pod) => (self.create(pod).await, "create", &pod.name),
                Act::Delete(mirror) => (self.delete(mirror).await, "delete", &mirror.pod.name),
            };
            if let Err(problem) = done {
                // Not the whole act: a pod's environment may hold what nobody should read.
                tracing::debug!(problem, verb, %pod, "a mirror pod has to wait");
                settled = false;
            }
        }
        settled
    }

    async fn create(&self, pod: &podwright_core::pod::Pod) -> Result<(), String> {
        let nodes: Api<v1::Node> = Api::all(self.client.clone());
        let node = nodes.get_opt(&self.node_name).await.map_err(|error| error.to_string())?;
        let node = node.ok_or("the node object does not exist yet")?;
        if node.metadata.deletion_timestamp.is_some() {
            return Err("the node object is being deleted".into());
        }
        let uid = node.metadata.uid.unwrap_or_default();
        let object = mirror::object(pod, &self.node_name, &uid);
        let pods: Api<v1::Pod> = Api::namespaced(self.client.clone(), &pod.name.namespace);
        match pods.create(&PostParams::default(), &object).await {
            Ok(_) => {
                tracing::info!(pod = %pod.name, "the static pod has a mirror in the API");
                Ok(())
            }
            // It is there, and the watch will tell us of it.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn delete(&self, mirror: &Mirror) -> Result<(), String> {
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
            Err(error) => Err(error.to_string()),
        }
    }
}
