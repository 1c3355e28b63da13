//! Housekeeping: stops orphaned pods and removes what finished pods left behind.
//!
//! No pod counts as deleted before every source has delivered. Housekeeping repeats every effect of
//! the normal end of a pod, because an agent that was killed may not have got to it.
//!
//! It runs in the loop of the pod manager, so no pod is added at the same time, and never waits
//! there: what needs I/O runs in a task of its own, which sends back a [`ScanResult`].

use std::collections::BTreeSet;
use std::time::Duration;

use podwright_core::cgroup::CgroupName;
use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::Stage;
use podwright_core::time::Mono;

use super::{PodManager, orphan};
use crate::error_chain::chain;

/// How often cgroups are listed while all belong to pods with a worker: cgroup v1 has a dozen
/// hierarchies to read.
const CGROUP_LIST_INTERVAL: Duration = Duration::from_secs(30);

/// The result of a scan.
#[derive(Debug)]
pub(super) enum ScanResult {
    /// The runtime was listed again; whether the call succeeded.
    Relisted(bool),
    /// The pods that have a cgroup; `None`: listing failed.
    Groups(Option<Vec<(PodUid, CgroupName)>>),
}

/// Scans in progress: at most one of each kind.
#[derive(Debug, Default)]
pub(super) struct HousekeepingScans {
    relist: bool,
    groups: bool,
    /// When the cgroups are listed next.
    groups_at: Mono,
}

impl HousekeepingScans {
    /// Lists the cgroups in the next round.
    pub(super) fn list_cgroups_soon(&mut self) {
        self.groups_at = Mono::default();
    }
}

impl PodManager {
    pub(super) fn housekeep(&mut self) {
        self.count();
        if !self.pod_index.sources_ready() {
            return;
        }
        self.abandon_unwanted();
        self.pod_index.set_all_known();
        self.look_for_orphans();
        self.dependencies.reporting.status.remove_orphans(|uid| self.pod_index.pod(uid).is_some());
        self.dependencies.resources.volumes.remove_orphans(&self.kept_directories());
        let known = |uid: &PodUid| {
            self.pod_index.pod(uid).is_some() || self.pod_index.handle(uid).is_some()
        };
        self.dependencies.resources.allocations.retain(known);
        self.dependencies.admission.retain(known);
        self.retry_resizes();
        self.look_for_groups();
    }

    pub(super) fn handle_scan(&mut self, finding: ScanResult) {
        match finding {
            ScanResult::Relisted(answered) => {
                self.scans.relist = false;
                if answered {
                    self.end_orphans();
                }
            }
            ScanResult::Groups(listed) => {
                self.scans.groups = false;
                if let Some(there) = listed {
                    let living: BTreeSet<PodUid> = self.living().collect();
                    // An orphaned cgroup is checked in every round until it is gone.
                    if there.iter().any(|(uid, _)| !living.contains(uid)) {
                        self.scans.list_cgroups_soon();
                    }
                    let (kept, clock) = (self.kept(), &self.dependencies.runtime.clock);
                    self.dependencies.resources.cgroups.destroy_orphans(there, &kept, clock);
                }
            }
        }
    }

    /// Ends the workers of pods that no source names.
    fn abandon_unwanted(&mut self) {
        let mut over = Vec::new();
        for (uid, handle) in self.pod_index.handles() {
            let wanted = self.pod_index.pod(&uid).is_some();
            match (wanted, handle.stage()) {
                (true, Stage::Finished) if handle.lifecycle().is_recreated() => over.push(uid),
                (true, _) => {}
                (false, Stage::Finished) => over.push(uid),
                (false, Stage::Syncing | Stage::Terminating | Stage::Terminated) => {
                    if !handle.lifecycle().is_removed_from_source() {
                        handle.advance(|lifecycle| {
                            lifecycle.remove_from_source();
                        });
                    }
                }
            }
        }
        for uid in over {
            self.forget_or_restart(&uid);
        }
    }

    /// Looks for pods that run but are unknown: they were deleted while the agent was down. The
    /// last relist may be older than the end of a known pod, so the runtime is listed again first.
    fn look_for_orphans(&mut self) {
        if self.scans.relist || self.runtime_orphans().is_empty() {
            return;
        }
        self.scans.relist = true;
        let (pleg, pod_index) = (self.dependencies.runtime.pleg.clone(), self.pod_index.clone());
        self.spawn_scan(async move {
            let listed = pleg.relist(&*pod_index).await;
            if let Err(error) = &listed {
                tracing::warn!(%error, "list pods of the runtime failed, retrying");
            }
            ScanResult::Relisted(listed.is_ok())
        });
    }

    fn look_for_groups(&mut self) {
        let now = self.dependencies.runtime.clock.now().mono;
        if self.scans.groups || now < self.scans.groups_at {
            return;
        }
        self.scans.groups = true;
        self.scans.groups_at = now + CGROUP_LIST_INTERVAL;
        let cgroups = self.dependencies.resources.cgroups.clone();
        self.spawn_scan(async move {
            let listed = cgroups.pods_on_disk().await;
            if let Err(error) = &listed {
                tracing::warn!(error = chain(error), "list pod cgroups failed, retrying");
            }
            ScanResult::Groups(listed.ok())
        });
    }

    fn spawn_scan(&self, scan: impl Future<Output = ScanResult> + Send + 'static) {
        let (stop, found) = (self.stop.clone(), self.scan_results.0.clone());
        self.workers.spawn(async move {
            if let Some(finding) = stop.run_until_cancelled(scan).await {
                // The receiver outlives this task.
                drop(found.send(finding));
            }
        });
    }

    fn end_orphans(&mut self) {
        for (uid, name) in self.runtime_orphans() {
            self.orphans.insert(uid.clone());
            self.dependencies.reporting.metrics.pods.ending_orphans.set(self.orphans.len());
            tracing::info!(pod = %name, %uid, "stopping orphaned pod");
            self.dependencies.reporting.metrics.pods.orphaned_runtime_pods.inc();
            let (runtime, stop, ended) =
                (self.dependencies.runtime.clone(), self.stop.clone(), self.orphan_ended.0.clone());
            self.workers.spawn(async move {
                stop.run_until_cancelled(orphan::end(&runtime, &uid, &name)).await;
                drop(ended.send(uid));
            });
        }
    }

    /// Running pods of the runtime that are unknown and not being stopped yet.
    fn runtime_orphans(&self) -> Vec<(PodUid, PodName)> {
        let pods = self.dependencies.runtime.pleg.runtime_pods().into_iter();
        let unknown = pods.filter(|(uid, _, alive)| {
            let known = self.pod_index.handle(uid).is_some() || self.pod_index.pod(uid).is_some();
            *alive && !known && !self.orphans.contains(uid)
        });
        unknown.map(|(uid, name, _)| (uid, name)).collect()
    }

    /// Pods that may still use their directory or cgroup.
    fn kept(&self) -> BTreeSet<PodUid> {
        let runtime = self.dependencies.runtime.pleg.runtime_pods().into_iter();
        let alive = runtime.filter(|(_, _, alive)| *alive).map(|(uid, _, _)| uid);
        self.living().chain(alive).collect()
    }

    /// A wanted pod keeps its directory even after it finished: it holds the termination messages.
    fn kept_directories(&self) -> BTreeSet<PodUid> {
        let wanted = self.pod_index.pods().into_iter().map(|pod| pod.uid.clone());
        self.kept().into_iter().chain(wanted).collect()
    }

    /// Pods with a worker.
    fn living(&self) -> impl Iterator<Item = PodUid> {
        let handles = self.pod_index.handles().into_iter();
        handles.filter(|(_, handle)| handle.stage() != Stage::Finished).map(|(uid, _)| uid)
    }

    fn count(&self) {
        let pods = self.pod_index.pods();
        let static_pods = pods.iter().filter(|pod| pod.is_static()).count();
        let metrics = &self.dependencies.reporting.metrics.pods;
        metrics.desired_static.set(static_pods);
        metrics.desired.set(pods.len() - static_pods);
        metrics.mirrors.set(self.pod_index.mirrors().len());
    }
}
