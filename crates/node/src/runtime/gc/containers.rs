//! Garbage collection of dead containers and sandboxes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use podwright_core::gc::{self, ContainerRemoval};
use podwright_core::ids::{ContainerId, PodUid, SandboxId};
use podwright_core::observed::ListedState;
use podwright_cri as cri;

use super::{AT_ONCE, Gc, GcError, GcScope, LogLocations};
use crate::runtime::logs;

/// Grace period for a container in unknown state: the minimum that pods get.
const GRACE: Duration = Duration::from_secs(2);

impl Gc {
    /// Whether a round may find something to remove, by the last relist and the logs: a node on
    /// which everything runs lists nothing. The round itself lists again, because the relist may be
    /// older than a container.
    pub(super) async fn may_have_leftovers(&self) -> bool {
        if self.pleg.lists_dead() {
            return true;
        }
        // An error is reported by the round.
        let Ok(directories) = self.with_logs(LogLocations::log_directories).await else {
            return true;
        };
        let is_over = |owner: &PodUid| {
            !self.pleg.runs_container(owner) && self.may_collect(owner, GcScope::Surplus)
        };
        if directories.iter().any(|(_, owner)| is_over(owner)) {
            return true;
        }
        let pleg = self.pleg.clone();
        let is_running = move |id: &ContainerId| pleg.is_running(id.as_str());
        self.with_logs(move |locations| locations.has_dangling_link(is_running))
            .await
            .unwrap_or(true)
    }

    /// One round: containers, then the sandboxes that become empty, then their logs. Every part is
    /// tried, even if an earlier one failed.
    pub async fn collect(&self, reach: GcScope) -> Result<(), GcError> {
        let _lock = self.round.lock().await;
        let seen = self.runtime.leftovers().await.map_err(GcError::List)?;
        let now = self.clock.now().wall;
        let may_collect = |pod: &PodUid| self.may_collect(pod, reach);
        let removals =
            gc::containers(&seen.containers, &self.settings.containers, may_collect, now);
        let removed = !removals.is_empty();
        let owners: BTreeMap<&ContainerId, &PodUid> =
            seen.containers.iter().map(|container| (&container.id, &container.pod)).collect();
        let removals = removals.into_iter().filter_map(|removal| {
            let pod = *owners.get(&removal.id)?;
            // Dead instances beyond the limit are removed while their pod runs, too.
            let needs_end = may_collect(pod);
            Some((removal, pod.clone(), needs_end))
        });
        let remove = |(removal, pod, needs_end): (ContainerRemoval, PodUid, bool)| async move {
            // Asked again: the pod may have been recreated, or found to be an orphan.
            match needs_end && !self.may_collect(&pod, reach) {
                true => Ok(()),
                false => self.remove_container(removal).await,
            }
        };
        let mut errors = self.each(removals.collect(), remove).await;

        // Removals leave sandboxes empty, so list again; an idle node lists only once.
        let seen = match removed {
            true => self.runtime.leftovers().await.map_err(GcError::List)?,
            false => seen,
        };
        let sandboxes = gc::sandboxes(&seen.sandboxes, &seen.containers, may_collect);
        let owners: BTreeMap<&SandboxId, &PodUid> =
            seen.sandboxes.iter().map(|sandbox| (&sandbox.id, &sandbox.pod)).collect();
        let sandboxes = sandboxes.into_iter().filter_map(|id| {
            let pod = *owners.get(&id)?;
            let needs_end = may_collect(pod);
            Some((id, pod.clone(), needs_end))
        });
        let remove = |(id, pod, needs_end): (SandboxId, PodUid, bool)| async move {
            match needs_end && !self.may_collect(&pod, reach) {
                true => Ok(()),
                false => self.remove_sandbox(id).await,
            }
        };
        errors.extend(self.each(sandboxes.collect(), remove).await);

        let running = seen.containers.iter().filter(|c| c.state == ListedState::Running);
        let running_pods: BTreeSet<&PodUid> = running.map(|c| &c.pod).collect();
        let log_is_over =
            |pod: &PodUid| !running_pods.contains(pod) && self.may_collect(pod, GcScope::Surplus);
        match self.with_logs(LogLocations::log_directories).await {
            Ok(directories) => {
                let over = directories.into_iter().filter(|(_, owner)| log_is_over(owner));
                let over: Vec<OsString> = over.map(|(name, _)| name).collect();
                let removed =
                    self.with_logs(move |locations| locations.remove_log_directories(&over)).await;
                errors.extend(removed.err());
            }
            Err(error) => errors.push(error),
        }
        let containers = seen.containers;
        let removed =
            self.with_logs(move |locations| locations.remove_log_links(&containers)).await;
        errors.extend(removed.err());
        GcError::of(errors)
    }

    async fn each<T, F: Future<Output = Result<(), GcError>>>(
        &self,
        items: Vec<T>,
        act: impl Fn(T) -> F,
    ) -> Vec<GcError> {
        let results = futures::stream::iter(items).map(act).buffer_unordered(AT_ONCE);
        results.filter_map(|result| async { result.err() }).collect().await
    }

    /// Removes the log first: its path is known only while the container exists.
    async fn remove_container(&self, removal: ContainerRemoval) -> Result<(), GcError> {
        let ContainerRemoval { id, stop_first } = removal;
        let failed = |source| GcError::Runtime { what: format!("container {id}"), source };
        let runtime = &self.runtime;
        if stop_first {
            runtime.stop_container(&id, GRACE).await.map_err(failed)?;
        }
        match runtime.container_status(&id, SandboxId::new("")).await {
            Ok(seen) => {
                if let Some(log) = seen.instance.log_path {
                    let removed = self.with_logs(move |locations| {
                        Ok(logs::remove_now(&locations.pod_logs, Path::new(&log))?)
                    });
                    removed.await?;
                }
            }
            Err(error) if error.kind == cri::Kind::NotFound => return Ok(()),
            // The container can still be removed; its log is removed with the pod's log directory.
            Err(error) => tracing::debug!(%error, %id, "cannot find the container's log"),
        }
        tracing::debug!(%id, "removing dead container");
        runtime.remove_container(&id).await.map_err(failed)
    }

    async fn remove_sandbox(&self, id: SandboxId) -> Result<(), GcError> {
        let failed = |source| GcError::Runtime { what: format!("sandbox {id}"), source };
        // A dead sandbox may still hold its address.
        self.runtime.stop_sandbox(&id).await.map_err(failed)?;
        tracing::debug!(%id, "removing dead sandbox");
        self.runtime.remove_sandbox(&id).await.map_err(failed)
    }
}
