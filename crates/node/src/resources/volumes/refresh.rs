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
use std::future::Future;
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
use super::refresh_schedule::RefreshSchedule;
use crate::pods::pod_changes::ChangedPods;
use crate::pods::{CHANGE_DEBOUNCE, PodIndex};
use crate::report::events::{Recorder, Severity};
use crate::runtime::pleg::Pleg;

/// Minimum delay before a pod with a failed volume is tried again, regardless of its volumes'
/// back-off: a volume that cannot record its failure would otherwise be retried in a busy loop.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
/// When to look again at a pod whose worker waits for a volume: only a relist shows that one of its
/// containers runs.
const WAITING_RECHECK: Duration = Duration::from_secs(10);

impl Volumes {
    /// Refreshes the volumes of running pods until stopped.
    pub fn keep(
        self: Arc<Self>,
        pod_index: Arc<PodIndex>,
        pleg: Arc<Pleg>,
        events: Recorder,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        // Subscribed here, not in the task: no pod is added before.
        let changed = pod_index.changes();
        let refresh_task = VolumeRefresh { volumes: self, pod_index, pleg, events, changed };
        async move {
            stop.run_until_cancelled(refresh_task.run()).await;
        }
    }
}

struct VolumeRefresh {
    volumes: Arc<Volumes>,
    pod_index: Arc<PodIndex>,
    pleg: Arc<Pleg>,
    events: Recorder,
    changed: Arc<ChangedPods>,
}

/// What is known of the pods. Each event changes the pods that it names and no other.
#[derive(Default)]
struct RefreshState {
    schedule: RefreshSchedule,
    /// Being refreshed. Scheduled again afterwards.
    busy: BTreeSet<PodUid>,
    /// A volume failed; not before this time.
    backing_off: BTreeMap<PodUid, Mono>,
    /// Running pods whose volumes an earlier process set up.
    adopted: Vec<Arc<Pod>>,
    /// Number of times that a pod's volumes were looked at.
    #[cfg(test)]
    visits: usize,
}

/// Result of refreshing one pod.
struct Refreshed {
    uid: PodUid,
    failed: bool,
}

impl VolumeRefresh {
    async fn run(self) {
        let (mut in_progress, mut state) = (FuturesUnordered::new(), RefreshState::default());
        let volumes = &self.volumes;
        loop {
            for pod in self.take_due(&mut state) {
                state.busy.insert(pod.uid.clone());
                in_progress.push(self.refresh(pod));
            }
            tokio::select! { biased;
                Some(refreshed) = in_progress.next(), if !in_progress.is_empty() => {
                    self.finish(refreshed, &mut state);
                }
                // Cancel-safe, as are the next two: unreturned pods stay noted.
                pods = volumes.sources.objects.changed().next() => {
                    self.mark_outdated(&pods, &mut state);
                }
                pods = volumes.published.next() => self.schedule(&pods, &mut state),
                pods = self.changed.next() => {
                    tokio::time::sleep(CHANGE_DEBOUNCE).await;
                    let mut pods = pods;
                    pods.append(&mut self.changed.take());
                    self.check_pods(&pods, &mut state);
                }
                () = sleep(self.next(&state)) => {}
            }
        }
    }

    fn now(&self) -> Mono {
        self.volumes.sources.clock.now().mono
    }

    fn finish(&self, Refreshed { uid, failed }: Refreshed, state: &mut RefreshState) {
        state.busy.remove(&uid);
        match failed {
            true => state.backing_off.insert(uid.clone(), self.now() + MIN_RETRY_DELAY),
            false => state.backing_off.remove(&uid),
        };
        self.schedule(&[uid].into(), state);
    }

    /// Marks these pods as outdated: an object that they refer to changed.
    fn mark_outdated(&self, pods: &BTreeSet<PodUid>, state: &mut RefreshState) {
        for uid in pods {
            if let Some(entry) = self.volumes.known.lock().get(uid) {
                entry.mark_outdated();
            }
            if let Some(handle) = self.pod_index.handle(uid) {
                handle.retry();
            }
        }
        self.schedule(pods, state);
    }

    /// Marks pods whose volumes contain fields of the pod that changed, and adopts new pods.
    fn check_pods(&self, pods: &BTreeSet<PodUid>, state: &mut RefreshState) {
        for uid in pods {
            let Some(pod) = self.pod_index.pod(uid) else { continue };
            let entry = self.volumes.known.lock().get(uid).cloned();
            if let Some(entry) = entry.filter(|entry| entry.is_outdated_by(&pod)) {
                entry.mark_outdated();
            }
            if self.may_adopt(uid) && self.volumes.left.lock().remove(uid) {
                state.adopted.push(pod);
            }
        }
        self.schedule(pods, state);
    }

    /// Whether the pod runs, in any phase.
    fn may_adopt(&self, uid: &PodUid) -> bool {
        let is_syncing =
            self.pod_index.handle(uid).is_some_and(|handle| handle.stage() == Stage::Syncing);
        is_syncing && self.pleg.runs_container(uid)
    }

    fn schedule(&self, pods: &BTreeSet<PodUid>, state: &mut RefreshState) {
        for uid in pods {
            let at = self.wake_at(uid, self.now(), state);
            state.schedule.set(uid, at);
        }
    }

    /// Removes the pods whose volumes are due from the schedule.
    fn take_due(&self, state: &mut RefreshState) -> Vec<Arc<Pod>> {
        let now = self.now();
        let mut due = std::mem::take(&mut state.adopted);
        for uid in state.schedule.take_due(now) {
            match self.wake_at(&uid, now, state) {
                Some(at) if at <= now => due.extend(self.pod_index.pod(&uid)),
                later => state.schedule.set(&uid, later),
            }
        }
        due
    }

    /// When a pod's volumes are due; `None`: not before the next event. What is due at once is due at
    /// `now`, which the caller compares with: a clock that is read again has moved on.
    fn wake_at(&self, uid: &PodUid, now: Mono, state: &mut RefreshState) -> Option<Mono> {
        #[cfg(test)]
        {
            state.visits += 1;
        }
        let entry = self.volumes.known.lock().get(uid).cloned();
        let Some(entry) = entry else {
            state.backing_off.remove(uid);
            return None;
        };
        if state.busy.contains(uid) {
            return None;
        }
        let at = if entry.has_change() { now } else { entry.wake_at()? };
        let at = state.backing_off.get(uid).map_or(at, |until| at.max(*until));
        // A worker that waits for a volume has no running container yet, and handles the volumes.
        let is_in_use = entry.is_ready() || self.pleg.runs_container(uid);
        Some(if is_in_use { at } else { at.max(now + WAITING_RECHECK) })
    }

    fn next(&self, state: &RefreshState) -> Option<Duration> {
        state.schedule.next().map(|at| at.since(self.now()))
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

#[cfg(test)]
mod tests;
