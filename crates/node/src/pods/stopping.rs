//! Stopping all pods because the node is being stopped.
//!
//! Each pod ends as if it were deleted: preStop hooks, its own grace period, sidecars last. Unlike
//! a deleted pod it stays wanted: its status in the API and its volumes are left as they are, so
//! that it runs again when the node starts.

use podwright_core::lifecycle::{Request, Stage};
use podwright_core::pod::Pod;
use serde::{Deserialize, Serialize};

use super::{Directory, Pods};
use crate::cell::PodCell;
use crate::tools::Tools;

/// How far stopping has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoppingPods {
    /// It was asked for.
    #[serde(rename = "requested")]
    pub requested: bool,
    /// Every source was heard, so `pods` is complete.
    #[serde(rename = "complete")]
    pub complete: bool,
    /// Pods of which something may still run.
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
    /// The runtime shows something of it running.
    #[serde(rename = "alive")]
    pub alive: bool,
    /// Its containers that run.
    #[serde(rename = "containers")]
    pub containers: Vec<String>,
    /// What it has in all, from the moment it was asked to stop.
    #[serde(rename = "grace_seconds")]
    pub grace_seconds: u64,
}

impl StoppingPods {
    pub fn of(tools: &Tools, directory: &Directory) -> Self {
        let cells = directory.cells().into_iter();
        let left = cells.filter(|(_, cell)| cell.stage() < Stage::Terminated);
        Self {
            requested: directory.is_stopping(),
            complete: directory.sources_ready(),
            pods: left.map(|(_, cell)| StoppingPod::of(tools, &cell)).collect(),
        }
    }
}

impl StoppingPod {
    fn of(tools: &Tools, cell: &PodCell) -> Self {
        let pod = cell.pod();
        let seen = tools.pleg.cached(&pod.uid);
        let containers = seen.iter().flat_map(|seen| seen.running());
        let mut containers: Vec<String> = containers.map(|it| it.container.to_string()).collect();
        containers.sort();
        containers.dedup();
        let grace = cell.life().grace().unwrap_or(pod.grace);
        // A pod that has just started is not in the runtime's last list yet.
        let sandboxes = seen.iter().flat_map(|seen| &seen.sandboxes);
        let alive = sandboxes.into_iter().any(|sandbox| sandbox.ready)
            || !containers.is_empty()
            || tools.pleg.is_alive(&pod.uid);
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

impl Pods {
    /// Asks every pod to stop. Pods that are found running later are asked when they are found.
    pub(super) fn stop_all(&mut self) {
        tracing::info!("the node is being stopped: stopping all pods, starting none");
        for (_, cell) in self.directory.cells() {
            cell.request(Request::StopNode);
        }
    }

    pub(super) fn may_start(&self, pod: &Pod) -> bool {
        may_start(&self.tools, &self.directory, pod)
    }
}

/// While the node is being stopped a pod gets a worker only to be stopped.
pub(super) fn may_start(tools: &Tools, directory: &Directory, pod: &Pod) -> bool {
    !directory.is_stopping() || tools.pleg.is_alive(&pod.uid)
}
