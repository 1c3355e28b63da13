//! Finds what nobody takes care of any more, and ends or removes it.
//!
//! Nothing is taken for gone before every source was heard. What is done here covers every
//! effect of a pod's normal end, because an agent that was killed never got to it.
//!
//! It is decided between two deliveries, where nobody adds a pod meanwhile, and never waits there:
//! what has to be looked up is looked up by a task, which comes back with a [`Finding`].

use std::collections::BTreeSet;
use std::time::Duration;

use podwright_core::cgroup::CgroupName;
use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::Stage;
use podwright_core::time::Mono;

use super::{Pods, orphan};
use crate::causes::chain;

/// How often the cgroups are listed while all are of living pods: version 1 has a dozen hierarchies
/// to read.
const GROUPS: Duration = Duration::from_secs(30);

/// What a look brought to light.
#[derive(Debug)]
pub(super) enum Finding {
    /// The runtime was listed again; whether it answered.
    Relisted(bool),
    /// The pods that have a cgroup; `None`: they could not be listed.
    Groups(Option<Vec<(PodUid, CgroupName)>>),
}

/// Looks that are under way: one of each is enough.
#[derive(Debug, Default)]
pub(super) struct Looks {
    relist: bool,
    groups: bool,
    /// When the groups are listed next.
    groups_at: Mono,
}

impl Looks {
    /// The next round sees whether something is left.
    pub(super) fn groups_soon(&mut self) {
        self.groups_at = Mono::default();
    }
}

impl Pods {
    pub(super) fn keep_house(&mut self) {
        self.count();
        if !self.directory.sources_ready() {
            return;
        }
        self.abandon_unwanted();
        self.directory.set_all_known();
        self.look_for_orphans();
        self.tools.status.remove_orphans(|uid| self.directory.pod(uid).is_some());
        self.tools.volumes.remove_orphans(&self.kept_directories());
        let known =
            |uid: &PodUid| self.directory.pod(uid).is_some() || self.directory.cell(uid).is_some();
        self.tools.allocations.retain(known);
        self.tools.admission.retain(known);
        self.retry_resizes();
        self.look_for_groups();
    }

    pub(super) fn take_in(&mut self, finding: Finding) {
        match finding {
            Finding::Relisted(answered) => {
                self.looks.relist = false;
                if answered {
                    self.end_orphans();
                }
            }
            Finding::Groups(listed) => {
                self.looks.groups = false;
                if let Some(there) = listed {
                    let living: BTreeSet<PodUid> = self.living().collect();
                    // Until it is gone it is looked at in every round.
                    if there.iter().any(|(uid, _)| !living.contains(uid)) {
                        self.looks.groups_soon();
                    }
                    let (kept, tools) = (self.kept(), &self.tools);
                    tools.cgroups.destroy_orphans(there, &kept, &tools.clock);
                }
            }
        }
    }

    /// Workers whose pod no source names any more.
    fn abandon_unwanted(&mut self) {
        let mut over = Vec::new();
        for (uid, cell) in self.directory.cells() {
            let wanted = self.directory.pod(&uid).is_some();
            match (wanted, cell.stage()) {
                (true, Stage::Finished) if cell.life().is_wanted_again() => over.push(uid),
                (true, _) => {}
                (false, Stage::Finished) => over.push(uid),
                (false, Stage::Syncing | Stage::Terminating | Stage::Terminated) => {
                    if !cell.life().is_unwanted() {
                        cell.advance(|life| {
                            life.abandon();
                        });
                    }
                }
            }
        }
        for uid in over {
            self.forget_or_restart(&uid);
        }
    }

    /// Pods that run though nobody asked for them: the agent was away when they were deleted. The
    /// last relist may be older than the end of a pod we knew; we look before acting on it.
    fn look_for_orphans(&mut self) {
        if self.looks.relist || self.runtime_orphans().is_empty() {
            return;
        }
        self.looks.relist = true;
        let (tools, directory) = (self.tools.clone(), self.directory.clone());
        self.look(async move {
            let listed = tools.pleg.relist(&*directory).await;
            if let Err(error) = &listed {
                tracing::warn!(%error, "cannot list the runtime's pods; will try again");
            }
            Finding::Relisted(listed.is_ok())
        });
    }

    fn look_for_groups(&mut self) {
        let now = self.tools.clock.now().mono;
        if self.looks.groups || now < self.looks.groups_at {
            return;
        }
        self.looks.groups = true;
        self.looks.groups_at = now + GROUPS;
        let cgroups = self.tools.cgroups.clone();
        self.look(async move {
            let listed = cgroups.pods_on_disk().await;
            if let Err(error) = &listed {
                tracing::warn!(error = chain(error), "cannot list the pods' cgroups");
            }
            Finding::Groups(listed.ok())
        });
    }

    fn look(&self, look: impl Future<Output = Finding> + Send + 'static) {
        let (stop, found) = (self.stop.clone(), self.findings.0.clone());
        self.workers.spawn(async move {
            if let Some(finding) = stop.run_until_cancelled(look).await {
                // The receiver lives as long as the task that spawned us.
                drop(found.send(finding));
            }
        });
    }

    fn end_orphans(&mut self) {
        for (uid, name) in self.runtime_orphans() {
            self.orphans.insert(uid.clone());
            self.tools.metrics.pods.ending_orphans.set(self.orphans.len());
            tracing::info!(pod = %name, %uid, "stopping a pod that no source names");
            self.tools.metrics.pods.orphaned_runtime_pods.inc();
            let (tools, stop, ended) =
                (self.tools.clone(), self.stop.clone(), self.orphan_ended.0.clone());
            self.workers.spawn(async move {
                stop.run_until_cancelled(orphan::end(&tools, &uid, &name)).await;
                drop(ended.send(uid));
            });
        }
    }

    /// Living pods of the runtime that nobody knows and nobody ends yet.
    fn runtime_orphans(&self) -> Vec<(PodUid, PodName)> {
        let pods = self.tools.pleg.runtime_pods().into_iter();
        let unknown = pods.filter(|(uid, _, alive)| {
            let known = self.directory.cell(uid).is_some() || self.directory.pod(uid).is_some();
            *alive && !known && !self.orphans.contains(uid)
        });
        unknown.map(|(uid, name, _)| (uid, name)).collect()
    }

    /// Whoever might still use its folder or cgroup.
    fn kept(&self) -> BTreeSet<PodUid> {
        let runtime = self.tools.pleg.runtime_pods().into_iter();
        let alive = runtime.filter(|(_, _, alive)| *alive).map(|(uid, _, _)| uid);
        self.living().chain(alive).collect()
    }

    /// A pod that is wanted keeps its directory, even when its life is over: that is where its
    /// termination messages are.
    fn kept_directories(&self) -> BTreeSet<PodUid> {
        let wanted = self.directory.pods().into_iter().map(|pod| pod.uid.clone());
        self.kept().into_iter().chain(wanted).collect()
    }

    /// Pods that have a worker.
    fn living(&self) -> impl Iterator<Item = PodUid> {
        let cells = self.directory.cells().into_iter();
        cells.filter(|(_, cell)| cell.stage() != Stage::Finished).map(|(uid, _)| uid)
    }

    fn count(&self) {
        let pods = self.directory.pods();
        let static_pods = pods.iter().filter(|pod| pod.is_static()).count();
        let metrics = &self.tools.metrics.pods;
        metrics.desired_static.set(static_pods);
        metrics.desired.set(pods.len() - static_pods);
        metrics.mirrors.set(self.directory.mirrors().len());
    }
}
