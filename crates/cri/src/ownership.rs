//! Ownership of pods in a runtime that several nodes share.
//!
//! An agent stops pods that no source names, and removes dead ones. In a runtime of its own these
//! are leftovers of an earlier agent; in a shared one they may be another node's pods. So the lists
//! used for these decisions contain only this node's pods.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use parking_lot::Mutex;
use podwright_core::ids::SandboxId;
use podwright_proto::cri;

use crate::client::Client;
use crate::error::{Error, Kind};

/// A sandbox that cannot be inspected must not block the list of all.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Concurrent inspections.
const CONCURRENT_INSPECTIONS: usize = 8;

/// Whether a sandbox belongs to this node, by the runtime's own information about it.
pub type IsOwn = Arc<dyn Fn(&BTreeMap<String, String>) -> bool + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Ownership {
    is_own: IsOwn,
    /// Results for the sandboxes of the last list. They do not change during a sandbox's lifetime.
    known: Arc<Mutex<HashMap<String, bool>>>,
}

impl Client {
    /// Restricts lists to this node's sandboxes and their containers. A sandbox whose owner cannot
    /// be determined is not listed.
    pub fn shared_with_others(mut self, is_own: IsOwn) -> Self {
        self.ownership = Some(Ownership { is_own, known: Arc::default() });
        self
    }

    /// All sandboxes of this node, and all containers of the runtime.
    pub(crate) async fn list_all(
        &self,
    ) -> Result<(Vec<cri::PodSandbox>, Vec<cri::Container>), Error> {
        let (sandboxes, containers) =
            tokio::try_join!(self.list_sandboxes(None), self.list_containers(None))?;
        Ok((self.keep_own(sandboxes, |sandbox| &sandbox.id).await, containers))
    }

    /// Whether a container belongs to this node, if these are its sandboxes.
    pub(crate) fn is_of_own(&self, container: &cri::Container, own: &BTreeSet<String>) -> bool {
        self.ownership.is_none() || own.contains(&container.pod_sandbox_id)
    }

    /// The sandboxes of this node.
    pub(crate) async fn keep_own<T>(&self, sandboxes: Vec<T>, id: impl Fn(&T) -> &str) -> Vec<T> {
        let Some(ownership) = &self.ownership else { return sandboxes };
        let unknown: Vec<String> = {
            let mut known = ownership.known.lock();
            let ids: HashSet<&str> = sandboxes.iter().map(&id).collect();
            known.retain(|known, _| ids.contains(known.as_str()));
            let ids = sandboxes.iter().map(&id);
            ids.filter(|id| !known.contains_key(*id)).map(str::to_owned).collect()
        };
        let inspections = unknown.into_iter().map(|id| {
            let (this, ownership) = (self.clone(), ownership.clone());
            async move { this.determine_owner(&ownership, &id).await }
        });
        futures::stream::iter(inspections)
            .buffer_unordered(CONCURRENT_INSPECTIONS)
            .collect::<Vec<()>>()
            .await;
        let known = ownership.known.lock();
        let is_own = |sandbox: &T| known.get(id(sandbox)).copied().unwrap_or(false);
        sandboxes.into_iter().filter(is_own).collect()
    }

    async fn determine_owner(&self, ownership: &Ownership, id: &str) {
        let sandbox = SandboxId::new(id);
        match tokio::time::timeout(INSPECT_TIMEOUT, self.sandbox_info(&sandbox)).await {
            Ok(Ok(info)) => {
                ownership.known.lock().insert(id.to_owned(), (ownership.is_own)(&info));
            }
            Ok(Err(error)) if error.kind == Kind::NotFound => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, sandbox = id, "inspect sandbox: cannot determine its node, retrying");
            }
            Err(_) => {
                tracing::warn!(
                    sandbox = id,
                    "inspect sandbox: no information about its node, retrying"
                );
            }
        }
    }
}
