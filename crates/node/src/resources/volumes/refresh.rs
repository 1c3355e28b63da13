//! Volume refresh: keeps the volumes of running pods current.
//!
//! Triggered by watches for edited objects, by changes of the pod for labels, and by time for
//! expiring tokens. Pods that wait for a volume or a variable are notified instead, because their
//! workers decide. One task for the node; a pod that hangs delays only itself.
//!
//! Each volume of a running pod is retried separately, with its own back-off
//! ([`volume::plan`](podwright_core::volume::plan)): the pod worker has nothing to start and so
//! does not retry it, and a volume that stays broken must not delay the renewal of a token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use podwright_core::ids::PodUid;
use podwright_core::lifecycle::Stage;
use podwright_core::pod::Pod;
use podwright_core::time::Mono;
use tokio_util::sync::CancellationToken;

use super::Volumes;
use super::pod::PodVolumes;
use crate::pods::{CHANGE_DEBOUNCE, PodIndex};
use crate::report::events::{Recorder, Severity};
use crate::runtime::pleg::Pleg;

/// Minimum delay before a pod with a failed volume is tried again, regardless of its volumes'
/// back-off: a volume that cannot record its failure would otherwise be retried in a busy loop.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);

impl Volumes {
    pub async fn keep(
        self: Arc<Self>,
        pod_index: Arc<PodIndex>,
        pleg: Arc<Pleg>,
        events: Recorder,
        stop: CancellationToken,
    ) {
        let refresh_task = VolumeRefresh { volumes: self, pod_index, pleg, events };
        stop.run_until_cancelled(refresh_task.run()).await;
    }
}

struct VolumeRefresh {
    volumes: Arc<Volumes>,
    pod_index: Arc<PodIndex>,
    pleg: Arc<Pleg>,
    events: Recorder,
}

/// Pods that are not refreshed for now.
#[derive(Default)]
struct Pauses {
    /// Being refreshed.
    busy: BTreeSet<PodUid>,
    /// A volume failed; not before this time.
    backing_off: BTreeMap<PodUid, Mono>,
}

/// Result of refreshing one pod.
struct Refreshed {
    uid: PodUid,
    failed: bool,
}

impl VolumeRefresh {
    async fn run(self) {
        let mut pods_changed = self.pod_index.changed();
        let (mut in_progress, mut pauses) = (FuturesUnordered::new(), Pauses::default());
        loop {
            for pod in self.due(&pauses) {
                pauses.busy.insert(pod.uid.clone());
                in_progress.push(self.refresh(pod));
            }
            tokio::select! { biased;
                Some(Refreshed { uid, failed }) = in_progress.next(), if !in_progress.is_empty() => {
                    let now = self.volumes.sources.clock.now().mono;
                    pauses.busy.remove(&uid);
                    pauses.backing_off.retain(|_, until| now < *until);
                    if failed {
                        pauses.backing_off.insert(uid, now + MIN_RETRY_DELAY);
                    }
                }
                // Cancel-safe: unreturned changes stay queued.
                pods = self.volumes.sources.objects.changed() => self.mark_outdated(&pods),
                // Cancel-safe: an unreported change stays marked.
                Ok(()) = pods_changed.changed() => {
                    tokio::time::sleep(CHANGE_DEBOUNCE).await;
                    pods_changed.mark_unchanged();
                    self.check_pods();
                }
                () = sleep(self.next(&pauses)) => {}
            }
        }
    }

    /// Marks these pods as outdated: an object that they refer to changed.
    fn mark_outdated(&self, pods: &BTreeSet<PodUid>) {
        for uid in pods {
            if let Some(entry) = self.volumes.known.lock().get(uid) {
                entry.mark_outdated();
            }
            if let Some(handle) = self.pod_index.handle(uid) {
                handle.retry();
            }
        }
    }

    /// Marks pods whose volumes contain fields of the pod that changed.
    fn check_pods(&self) {
        for (uid, entry) in self.volumes.known.lock().iter() {
            if self.pod_index.pod(uid).is_some_and(|pod| entry.is_outdated_by(&pod)) {
                entry.mark_outdated();
            }
        }
    }

    /// Pods whose volumes are due and not being worked on.
    fn due(&self, pauses: &Pauses) -> Vec<Arc<Pod>> {
        let now = self.volumes.sources.clock.now().mono;
        let known = self.volumes.known.lock();
        let needed = known.iter().filter(|(uid, entry)| {
            self.wake_at(uid, entry, pauses, now).is_some_and(|at| at <= now)
        });
        let mut due: Vec<_> = needed.filter_map(|(uid, _)| self.pod_index.pod(uid)).collect();
        drop(known);
        due.extend(self.adopted_pods());
        due
    }

    /// When a pod's volumes are due; `None`: not at all, or the pod worker handles them.
    fn wake_at(
        &self,
        uid: &PodUid,
        entry: &PodVolumes,
        pauses: &Pauses,
        now: Mono,
    ) -> Option<Mono> {
        // A worker that waits for a volume has no running container yet.
        if pauses.busy.contains(uid) || !(entry.is_ready() || self.pleg.runs_container(uid)) {
            return None;
        }
        let at = if entry.has_change() { now } else { entry.wake_at()? };
        Some(pauses.backing_off.get(uid).map_or(at, |until| at.max(*until)))
    }

    /// Running pods whose volumes an earlier process set up, in any phase.
    fn adopted_pods(&self) -> Vec<Arc<Pod>> {
        let mut left = self.volumes.left.lock();
        let running = |uid: &PodUid| {
            let syncing = self.pod_index.handle(uid).is_some_and(|c| c.stage() == Stage::Syncing);
            self.pod_index.pod(uid).filter(|_| syncing && self.pleg.runs_container(uid))
        };
        let taken: Vec<Arc<Pod>> = left.iter().filter_map(running).collect();
        left.retain(|uid| !taken.iter().any(|pod| pod.uid == *uid));
        taken
    }

    /// When the next refresh is due. Overdue volumes are left out: they wait for their pod.
    fn next(&self, pauses: &Pauses) -> Option<Duration> {
        let now = self.volumes.sources.clock.now().mono;
        let known = self.volumes.known.lock();
        let times = known.iter().filter_map(|(uid, entry)| self.wake_at(uid, entry, pauses, now));
        times.filter(|at| *at > now).min().map(|at| at.since(now))
    }

    /// A volume that cannot be refreshed keeps its content; an event of the pod reports the failure.
    async fn refresh(&self, pod: Arc<Pod>) -> Refreshed {
        let errors = self.volumes.set_up_volumes(&pod).await.errors;
        let failed = !errors.is_empty();
        for error in errors {
            self.events.pod(&pod, Severity::Warning, "FailedMount", error.to_string());
        }
        Refreshed { uid: pod.uid.clone(), failed }
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
