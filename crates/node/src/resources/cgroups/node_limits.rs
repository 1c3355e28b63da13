//! Limits of the cgroups above those of pods: all pods, QoS classes, reserved daemons.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::cgroup::CgroupConfig;
use podwright_host::cgroup::CgroupError;
use tokio_util::sync::CancellationToken;

use super::{Cgroups, Refresh, Reserved, ReservedError};
use crate::error_chain::chain;
use crate::report::events::{Recorder, Severity};

const ALLOCATABLE_ENFORCED: &str = "NodeAllocatableEnforced";
/// Interval at which the QoS cgroups are written even if nothing changed.
const QOS_REFRESH: Duration = Duration::from_secs(60);
/// Interval at which processes are moved to their groups.
const PROCESSES_INTERVAL: Duration = Duration::from_secs(60);
/// Delay before limits that the kernel rejected are written again.
const LIMITS_RETRY: Duration = Duration::from_secs(60);

/// The node as events about its limits name it.
#[derive(Clone)]
pub(crate) struct LimitEvents {
    pub events: Recorder,
    pub node: Arc<str>,
}

impl LimitEvents {
    fn record(&self, severity: Severity, reason: &'static str, message: String) {
        self.events.node(&self.node, severity, reason, message);
    }
}

/// Creates the cgroups of all pods and limits the reserved ones.
pub(crate) async fn create(
    cgroups: &Cgroups,
    all_pods: &CgroupConfig,
    reserved: &[Reserved],
    events: &LimitEvents,
) -> Result<(), NodeLimitsError> {
    cgroups.ensure_tree(all_pods).await?;
    if cgroups.host().version() == 1 {
        let message =
            "cgroup v1 is deprecated in Kubernetes. Fix: migrate this machine to cgroup v2";
        events.record(Severity::Warning, "CgroupV1", message.into());
    }
    for reserved in reserved {
        cgroups.enforce(reserved).await?;
        let (owner, path) = (reserved.owner, cgroups.host().path(&reserved.name));
        let message = format!("Updated limits on {owner} reserved cgroup {path}");
        events.record(Severity::Normal, ALLOCATABLE_ENFORCED, message);
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeLimitsError {
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    #[error(transparent)]
    Reserved(#[from] ReservedError),
}

/// Rewrites the QoS cgroups periodically, which reverts changes made by other processes.
pub(crate) async fn refresh_classes(cgroups: Arc<Cgroups>, stop: CancellationToken) {
    let work = async {
        loop {
            tokio::time::sleep(QOS_REFRESH).await;
            if let Err(error) = cgroups.refresh_classes(Refresh::Anyway).await {
                tracing::warn!(%error, "update QoS cgroups failed, retrying");
            }
        }
    };
    stop.run_until_cancelled(work).await;
}

/// Processes that are kept in cgroups of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroups {
    /// `systemCgroups`: for processes that are in no group.
    pub system: Option<String>,
    /// `kubeletCgroups`: for the agent.
    pub agent: Option<String>,
}

/// Keeps processes in their groups: others move them, and new ones are started. Failures are logged
/// once.
pub(crate) async fn keep_processes(
    cgroups: Arc<Cgroups>,
    groups: ProcessGroups,
    stop: CancellationToken,
) {
    if groups == ProcessGroups::default() {
        return;
    }
    let work = async {
        let mut last_problem = None;
        loop {
            let problem = move_processes(&cgroups, &groups).await.err().map(|error| chain(&error));
            if let Some(problem) = &problem
                && last_problem.as_ref() != Some(problem)
            {
                tracing::warn!(error = problem, "move processes to their cgroups failed, retrying");
            }
            last_problem = problem;
            tokio::time::sleep(PROCESSES_INTERVAL).await;
        }
    };
    stop.run_until_cancelled(work).await;
}

async fn move_processes(cgroups: &Cgroups, groups: &ProcessGroups) -> Result<(), CgroupError> {
    // First the agent: it may be in the root group as well.
    if let Some(path) = &groups.agent {
        cgroups.host().join(path, std::process::id()).await?;
    }
    if let Some(path) = &groups.system {
        let moved = cgroups.host().clear_root(path, Path::new("/proc")).await?;
        if moved > 0 {
            tracing::info!(path, moved, "moved processes from the root cgroup to systemCgroups");
        }
    }
    Ok(())
}

/// Limits all pods together to the allocatable resources. On a full node this may fail until some
/// pods have ended.
pub(crate) async fn limit_pods(
    cgroups: Arc<Cgroups>,
    limits: CgroupConfig,
    events: LimitEvents,
    stop: CancellationToken,
) {
    let work = async {
        while let Err(error) = cgroups.limit_all(&limits).await {
            let path = cgroups.host().path(cgroups.tree().all());
            let message =
                format!("Failed to update Node Allocatable Limits {path:?}: {}", chain(&error));
            events.record(Severity::Warning, "FailedNodeAllocatableEnforcement", message);
            tokio::time::sleep(LIMITS_RETRY).await;
        }
        let message = "Updated Node Allocatable limit across pods".into();
        events.record(Severity::Normal, ALLOCATABLE_ENFORCED, message);
    };
    stop.run_until_cancelled(work).await;
}
