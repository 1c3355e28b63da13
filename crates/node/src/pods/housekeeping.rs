//! Housekeeping: stops orphaned pods and removes what finished pods left behind.
//!
//! No pod counts as deleted before every source has delivered. Housekeeping repeats every effect of
//! the normal end of a pod, because an agent that was killed may not have got to it.
//!
//! A round checks the pods that changed since the last one. An audit finds what no change led to:
//! within a minute it checks everything of which there are records, in slices.
//!
//! It runs in the loop of the pod manager, so no pod is added at the same time, and never waits
//! there: what needs I/O runs in a task of its own, which sends back a [`ScanResult`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::cgroup::CgroupName;
use podwright_core::ids::PodUid;
use podwright_core::lifecycle::Stage;
use podwright_core::time::Mono;
use podwright_host::threads;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::PodIndex;
use super::admission::Admission;
use super::orphan::{self, OrphanHandle};
use super::pod_index::Entry;
use crate::error_chain::chain;
use crate::report::Reporting;
use crate::resources::NodeResources;
use crate::runtime::RuntimeAccess;

/// How often cgroups are listed while all belong to pods with a worker: cgroup v1 has a dozen
/// hierarchies to read.
const CGROUP_LIST_INTERVAL: Duration = Duration::from_secs(30);
/// How often an audit begins.
const AUDIT_INTERVAL: Duration = Duration::from_secs(60);
/// Rounds of an audit: it ends before the next one begins.
const AUDIT_SLICES: usize = 20;

/// The result of a scan.
#[derive(Debug)]
pub(super) enum ScanResult {
    /// The runtime was listed again; whether the call succeeded.
    Relisted(bool),
    /// The pods that have a cgroup; `None`: listing failed.
    Groups(Option<Vec<(PodUid, CgroupName)>>),
    /// The pods that have a directory.
    Directories(Vec<PodUid>),
}

/// Scans in progress: at most one of each kind.
#[derive(Debug, Default)]
struct Scans {
    relist: bool,
    groups: bool,
    /// When the cgroups are listed next.
    groups_at: Mono,
    directories: bool,
}

/// The pods that the audit has not checked yet.
#[derive(Debug, Default)]
struct Audit {
    left: VecDeque<PodUid>,
    slice: usize,
    /// When the next audit begins.
    begins_at: Mono,
}

impl Audit {
    fn begin(&mut self, pods: BTreeSet<PodUid>, slices: usize, now: Mono) {
        self.left = pods.into_iter().collect();
        self.slice = self.left.len().div_ceil(slices);
        self.begins_at = now + AUDIT_INTERVAL;
    }

    fn next_slice(&mut self) -> impl Iterator<Item = PodUid> {
        let end = self.slice.min(self.left.len());
        self.left.drain(..end)
    }
}

/// The components of the node that housekeeping uses.
pub(super) struct HousekeepingDependencies {
    pub pod_index: Arc<PodIndex>,
    pub admission: Arc<Admission>,
    pub resources: NodeResources,
    pub reporting: Reporting,
    pub runtime: RuntimeAccess,
    /// Tracks scans and the tasks of orphans.
    pub tasks: TaskTracker,
    pub orphan_ended: mpsc::UnboundedSender<PodUid>,
    pub stop: CancellationToken,
}

pub(super) struct Housekeeping {
    dependencies: HousekeepingDependencies,
    scans: Scans,
    scan_results: mpsc::UnboundedSender<ScanResult>,
    audit: Audit,
    /// Pods that the last relist shows running and that are unknown.
    unknown: BTreeSet<PodUid>,
}

impl Housekeeping {
    /// The receiver is for [`Self::handle_scan`].
    pub(super) fn new(
        dependencies: HousekeepingDependencies,
    ) -> (Self, mpsc::UnboundedReceiver<ScanResult>) {
        let (scan_results, results) = mpsc::unbounded_channel();
        let this = Self {
            dependencies,
            scans: Scans::default(),
            scan_results,
            audit: Audit::default(),
            unknown: BTreeSet::new(),
        };
        (this, results)
    }

    /// Lists the cgroups in the next round.
    pub(super) fn list_cgroups_soon(&mut self) {
        self.scans.groups_at = Mono::default();
    }

    /// The pods that this round checks. `None`: not every source has delivered.
    pub(super) fn pods_to_check(&mut self) -> Option<BTreeSet<PodUid>> {
        self.count();
        let HousekeepingDependencies { pod_index, runtime, .. } = &self.dependencies;
        if !pod_index.sources_ready() {
            return None;
        }
        let mut pods = pod_index.take_changed();
        let now = runtime.clock.now().mono;
        if now >= self.audit.begins_at {
            // Everything is new in the first round.
            let is_first = self.audit.begins_at == Mono::default();
            let recorded = self.recorded();
            self.audit.begin(recorded, if is_first { 1 } else { AUDIT_SLICES }, now);
            self.list_directories();
        }
        pods.extend(self.audit.next_slice());
        Some(pods)
    }

    /// Ends the workers of pods that no source names. Returns the pods whose worker has ended and is
    /// not needed or needed again.
    pub(super) fn end_unwanted(&self, pods: &BTreeSet<PodUid>) -> Vec<PodUid> {
        let pod_index = &self.dependencies.pod_index;
        let mut over = Vec::new();
        for uid in pods {
            let Some(handle) = pod_index.handle(uid) else { continue };
            let wanted = pod_index.pod(uid).is_some();
            match (wanted, handle.stage()) {
                (true, Stage::Finished) if handle.lifecycle().is_recreated() => {
                    over.push(uid.clone());
                }
                (true, _) => {}
                (false, Stage::Finished) => over.push(uid.clone()),
                (false, Stage::Syncing | Stage::Terminating | Stage::Terminated) => {
                    if !handle.lifecycle().is_removed_from_source() {
                        handle.advance(|lifecycle| {
                            lifecycle.remove_from_source();
                        });
                    }
                }
            }
        }
        over
    }

    /// Removes what these pods left behind, if nothing needs it any more.
    pub(super) fn clean_up(&mut self, pods: &BTreeSet<PodUid>) {
        let HousekeepingDependencies {
            pod_index, admission, resources, reporting, runtime, ..
        } = &self.dependencies;
        pod_index.set_all_known();
        let mut gone = Vec::new();
        for uid in pods {
            self.unknown.remove(uid);
            if pod_index.pod(uid).is_some() {
                continue;
            }
            reporting.status.forget(uid);
            if !pod_index.is_known(uid) {
                resources.allocations.forget(uid);
                admission.forget(uid);
            }
            if pod_index.has_task(uid) {
                continue;
            }
            if !runtime.pleg.is_alive(uid) {
                gone.push(uid.clone());
            } else if pod_index.is_known(uid) {
                // The last relist may be older than the end of the pod.
                pod_index.check_again(uid);
            } else {
                self.unknown.insert(uid.clone());
            }
        }
        self.look_for_orphans();
        let volumes = &self.dependencies.resources.volumes;
        volumes.remove_orphans(gone, |uid| self.keeps_directory(uid));
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
                    let HousekeepingDependencies { pod_index, resources, runtime, .. } =
                        &self.dependencies;
                    // An orphaned cgroup is checked in every round until it is gone.
                    if there.iter().any(|(uid, _)| !pod_index.has_task(uid)) {
                        self.scans.groups_at = Mono::default();
                    }
                    let is_kept = |uid: &PodUid| self.may_run(uid);
                    resources.cgroups.destroy_orphans(there, is_kept, &runtime.clock);
                }
            }
            ScanResult::Directories(pods) => {
                self.scans.directories = false;
                let volumes = &self.dependencies.resources.volumes;
                volumes.remove_orphans(pods, |uid| self.keeps_directory(uid));
            }
        }
    }

    /// Looks for pods that run but are unknown: they were deleted while the agent was down. The
    /// last relist may be older than the end of a known pod, so the runtime is listed again first.
    fn look_for_orphans(&mut self) {
        if self.scans.relist || self.unknown.is_empty() {
            return;
        }
        self.scans.relist = true;
        let (pleg, pod_index) =
            (self.dependencies.runtime.pleg.clone(), self.dependencies.pod_index.clone());
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

    fn list_directories(&mut self) {
        if std::mem::replace(&mut self.scans.directories, true) {
            return;
        }
        let volumes = self.dependencies.resources.volumes.clone();
        self.spawn_scan(async move {
            // An error means that the agent is stopping.
            let listed = threads::blocking(move || volumes.pods_on_disk()).await;
            let pods = listed.ok().map(|listed| {
                listed.unwrap_or_else(|error| {
                    tracing::warn!(error = chain(&error), "cannot list the pod directories");
                    Vec::new()
                })
            });
            ScanResult::Directories(pods.unwrap_or_default())
        });
    }

    fn spawn_scan(&self, scan: impl Future<Output = ScanResult> + Send + 'static) {
        let (stop, found) = (self.dependencies.stop.clone(), self.scan_results.clone());
        self.dependencies.tasks.spawn(async move {
            if let Some(finding) = stop.run_until_cancelled(scan).await {
                // The receiver outlives this task.
                drop(found.send(finding));
            }
        });
    }

    fn end_orphans(&mut self) {
        for uid in std::mem::take(&mut self.unknown) {
            let HousekeepingDependencies { pod_index, runtime, .. } = &self.dependencies;
            let name = runtime.pleg.name_of_alive(&uid).filter(|_| !pod_index.is_known(&uid));
            match name {
                Some(name) => self.end_orphan(OrphanHandle::new(uid, name)),
                None => pod_index.check_again(&uid),
            }
        }
    }

    fn end_orphan(&self, orphan: Arc<OrphanHandle>) {
        let HousekeepingDependencies { pod_index, reporting, runtime, tasks, .. } =
            &self.dependencies;
        pod_index.upsert(Entry::Orphan(orphan.clone()));
        let metrics = &reporting.metrics.pods;
        metrics.ending_orphans.set(pod_index.orphans().len());
        tracing::info!(pod = %orphan.name(), uid = %orphan.uid(), "stopping orphaned pod");
        metrics.orphaned_runtime_pods.inc();
        let (runtime, stop, ended) = (
            runtime.clone(),
            self.dependencies.stop.clone(),
            self.dependencies.orphan_ended.clone(),
        );
        tasks.spawn(async move {
            if stop.run_until_cancelled(orphan::end(&runtime, &orphan)).await.is_some() {
                // The receiver outlives this task.
                drop(ended.send(orphan.uid().clone()));
            }
        });
    }

    /// Whether the pod may still use its cgroup.
    fn may_run(&self, uid: &PodUid) -> bool {
        self.dependencies.pod_index.has_task(uid) || self.dependencies.runtime.pleg.is_alive(uid)
    }

    /// A wanted pod keeps its directory even after it finished: it holds the termination messages.
    fn keeps_directory(&self, uid: &PodUid) -> bool {
        self.may_run(uid) || self.dependencies.pod_index.pod(uid).is_some()
    }

    /// Every pod of which there is a record in memory.
    fn recorded(&self) -> BTreeSet<PodUid> {
        let HousekeepingDependencies {
            pod_index, admission, resources, reporting, runtime, ..
        } = &self.dependencies;
        let mut pods = pod_index.known();
        pods.extend(reporting.status.recorded());
        pods.extend(resources.allocations.recorded());
        pods.extend(admission.recorded());
        pods.extend(runtime.pleg.runtime_pods().into_iter().map(|(uid, _, _)| uid));
        pods
    }

    fn count(&self) {
        let counts = self.dependencies.pod_index.counts();
        let metrics = &self.dependencies.reporting.metrics.pods;
        metrics.desired_static.set(counts.static_pods);
        metrics.desired.set(counts.pods - counts.static_pods);
        metrics.mirrors.set(counts.mirrors);
    }
}

#[cfg(test)]
mod tests;
