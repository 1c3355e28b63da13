//! Finds what nobody takes care of any more, and ends or removes it.
//!
//! Nothing is taken for gone before every source was heard. What is done here covers every
//! effect of a pod's normal end, because an agent that was killed never got to it.

use std::collections::BTreeSet;

use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::Stage;

use super::{Pods, orphan};
use crate::worker::chain;

impl Pods {
    pub(super) async fn keep_house(&mut self) {
        self.count();
        if !self.directory.sources_ready() {
            return;
        }
        self.abandon_unwanted();
        self.directory.set_all_known();
        self.end_orphans().await;
        self.tools.status.remove_orphans(|uid| self.directory.pod(uid).is_some());
        self.tools.volumes.remove_orphans(&self.kept());
        let known =
            |uid: &PodUid| self.directory.pod(uid).is_some() || self.directory.cell(uid).is_some();
        self.tools.allocations.retain(known);
        self.tools.admission.retain(known);
        self.retry_resizes();
        self.remove_cgroups().await;
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

    /// Pods that run though nobody asked for them: the agent was away when they were deleted.
    async fn end_orphans(&mut self) {
        if self.runtime_orphans().is_empty() {
            return;
        }
        // The last relist may be older than the end of a pod we knew; look before acting on it.
        if let Err(error) = self.tools.pleg.relist(&*self.directory).await {
            tracing::warn!(%error, "cannot list the runtime's pods; will try again");
            return;
        }
        for (uid, name) in self.runtime_orphans() {
            self.orphans.insert(uid.clone());
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
        let cells = self.directory.cells().into_iter();
        let living = cells.filter(|(_, c)| c.stage() != Stage::Finished).map(|(uid, _)| uid);
        let runtime = self.tools.pleg.runtime_pods().into_iter();
        let alive = runtime.filter(|(_, _, alive)| *alive).map(|(uid, _, _)| uid);
        living.chain(alive).collect()
    }

    async fn remove_cgroups(&self) {
        let kept = self.kept();
        if let Err(error) = self.tools.cgroups.destroy_orphans(|uid| kept.contains(uid)).await {
            tracing::warn!(error = chain(&error), "a pod that is gone left its cgroup");
        }
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
