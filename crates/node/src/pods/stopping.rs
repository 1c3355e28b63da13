//! Stopping all pods because the node is being stopped.
//!
//! Each pod ends as if it were deleted: preStop hooks, its own grace period, sidecars last. Unlike
//! a deleted pod it stays wanted: its status in the API and its volumes do not change, so that it
//! runs again when the node starts.

use podwright_core::lifecycle::Stage;
use podwright_core::pod::Pod;
use serde::{Deserialize, Serialize};

use super::PodIndex;
use crate::pods::pod_handle::PodHandle;
use crate::runtime::pleg::Pleg;

/// Progress of stopping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoppingPods {
    /// Stopping was requested.
    #[serde(rename = "requested")]
    pub requested: bool,
    /// Every source has delivered, so `pods` is complete.
    #[serde(rename = "complete")]
    pub complete: bool,
    /// Pods that may still have running containers.
    #[serde(rename = "pods")]
    pub pods: Vec<StoppingPod>,
}

/// A pod that has not stopped yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoppingPod {
    #[serde(rename = "namespace")]
    pub namespace: String,
    #[serde(rename = "name")]
    pub name: String,
    #[serde(rename = "uid")]
    pub uid: String,
    /// A sandbox or container of it is running.
    #[serde(rename = "alive")]
    pub alive: bool,
    /// Running containers.
    #[serde(rename = "containers")]
    pub containers: Vec<String>,
    /// Total grace period, from the request to stop.
    #[serde(rename = "grace_seconds")]
    pub grace_seconds: u64,
}

impl StoppingPods {
    pub fn of(pleg: &Pleg, pod_index: &PodIndex) -> Self {
        let handles = pod_index.handles().into_iter();
        let left = handles.filter(|(_, handle)| handle.stage() < Stage::Terminated);
        Self {
            requested: pod_index.is_stopping(),
            complete: pod_index.sources_ready(),
            pods: left.map(|(_, handle)| StoppingPod::of(pleg, &handle)).collect(),
        }
    }
}

impl StoppingPod {
    fn of(pleg: &Pleg, handle: &PodHandle) -> Self {
        let pod = handle.pod();
        let seen = pleg.cached(&pod.uid);
        let containers = seen.iter().flat_map(|seen| seen.running());
        let mut containers: Vec<String> = containers.map(|it| it.container.to_string()).collect();
        containers.sort();
        containers.dedup();
        let grace = handle.lifecycle().grace().unwrap_or(pod.grace);
        // The last inspection may be older than the start of the pod.
        let sandboxes = seen.iter().flat_map(|seen| &seen.sandboxes);
        let alive = sandboxes.into_iter().any(|sandbox| sandbox.ready)
            || !containers.is_empty()
            || pleg.is_alive(&pod.uid);
        Self {
            namespace: pod.name.namespace.to_string(),
            name: pod.name.name.to_string(),
            uid: pod.uid.to_string(),
            alive,
            containers,
            grace_seconds: grace.as_secs(),
        }
    }
}

/// While the node is being stopped, a pod gets a worker only if it must be stopped.
pub(super) fn may_start(pleg: &Pleg, pod_index: &PodIndex, pod: &Pod) -> bool {
    !pod_index.is_stopping() || pleg.is_alive(&pod.uid)
}
