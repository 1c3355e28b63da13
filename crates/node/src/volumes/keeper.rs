//! Brings the volumes of running pods up to date.
//!
//! Told of edited objects by their watches, of labels by the pod's own changes, and by the clock
//! of tokens that get old. Pods that wait for a volume or a variable are woken instead: their
//! workers decide. One task for the node; a pod that hangs only keeps itself waiting.
//!
//! Each volume of a pod that runs is tried again on its own, after a back-off of its own
//! ([`volume::plan`](podwright_core::volume::plan)): its worker has nothing to start and does not
//! ask for it, and one that stays broken must not keep another's token from being renewed.

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
use crate::events::{Recorder, Severity};
use crate::pleg::Pleg;
use crate::pods::{BURST, Directory};

/// A pod with a volume that failed is not looked at again sooner than this, whatever its volumes
/// say: one that cannot even note its failure would be tried without end.
const REST: Duration = Duration::from_secs(1);

impl Volumes {
    pub async fn keep(
        self: Arc<Self>,
        directory: Arc<Directory>,
        pleg: Arc<Pleg>,
        events: Recorder,
        stop: CancellationToken,
    ) {
        let keeper = Keeper { volumes: self, directory, pleg, events };
        stop.run_until_cancelled(keeper.run()).await;
    }
}

struct Keeper {
    volumes: Arc<Volumes>,
    directory: Arc<Directory>,
    pleg: Arc<Pleg>,
    events: Recorder,
}

/// Pods that are left alone for now.
#[derive(Default)]
struct Pauses {
    /// Worked on at this moment.
    busy: BTreeSet<PodUid>,
    /// A volume failed; not before this time.
    resting: BTreeMap<PodUid, Mono>,
}

/// What came of one pod's refresh.
struct Refreshed {
    uid: PodUid,
    failed: bool,
}

impl Keeper {
    async fn run(self) {
        let mut pods_changed = self.directory.changed();
        let (mut under_way, mut pauses) = (FuturesUnordered::new(), Pauses::default());
        loop {
            for pod in self.due(&pauses) {
                pauses.busy.insert(pod.uid.clone());
                under_way.push(self.refresh(pod));
            }
            tokio::select! { biased;
                Some(Refreshed { uid, failed }) = under_way.next(), if !under_way.is_empty() => {
                    let now = self.volumes.sources.clock.now().mono;
                    pauses.busy.remove(&uid);
                    pauses.resting.retain(|_, until| now < *until);
                    if failed {
                        pauses.resting.insert(uid, now + REST);
                    }
                }
                // Cancel-safe: what it did not return stays.
                pods = self.volumes.sources.objects.changed() => self.tell(&pods),
                // Cancel-safe: `changed` keeps what it did not report.
                Ok(()) = pods_changed.changed() => {
                    tokio::time::sleep(BURST).await;
                    pods_changed.mark_unchanged();
                    self.look_at_pods();
                }
                () = sleep(self.next(&pauses)) => {}
            }
        }
    }

    /// Something these pods refer to changed.
    fn tell(&self, pods: &BTreeSet<PodUid>) {
        for uid in pods {
            if let Some(entry) = self.volumes.known.lock().get(uid) {
                entry.tell();
            }
            if let Some(cell) = self.directory.cell(uid) {
                cell.retry();
            }
        }
    }

    /// Volumes that tell of the pod itself follow it.
    fn look_at_pods(&self) {
        for (uid, entry) in self.volumes.known.lock().iter() {
            if self.directory.pod(uid).is_some_and(|pod| entry.is_outdated_by(&pod)) {
                entry.tell();
            }
        }
    }

    /// Pods whose volumes need us now and are not being worked on.
    fn due(&self, pauses: &Pauses) -> Vec<Arc<Pod>> {
        let now = self.volumes.sources.clock.now().mono;
        let known = self.volumes.known.lock();
        let needed = known.iter().filter(|(uid, entry)| {
            self.wake_at(uid, entry, pauses, now).is_some_and(|at| at <= now)
        });
        let mut due: Vec<_> = needed.filter_map(|(uid, _)| self.directory.pod(uid)).collect();
        drop(known);
        due.extend(self.taken_over());
        due
    }

    /// When a pod's volumes need us; `None`: they do not, or its worker sees to them.
    fn wake_at(
        &self,
        uid: &PodUid,
        entry: &PodVolumes,
        pauses: &Pauses,
        now: Mono,
    ) -> Option<Mono> {
        // A worker that waits for a volume has nothing running yet.
        if pauses.busy.contains(uid) || !(entry.is_ready() || self.pleg.runs_container(uid)) {
            return None;
        }
        let at = if entry.has_news() { now } else { entry.wake_at()? };
        Some(pauses.resting.get(uid).map_or(at, |until| at.max(*until)))
    }

    /// Pods that ran before we did, in whatever phase: an earlier process set their volumes up.
    fn taken_over(&self) -> Vec<Arc<Pod>> {
        let mut left = self.volumes.left.lock();
        let running = |uid: &PodUid| {
            let syncing = self.directory.cell(uid).is_some_and(|c| c.stage() == Stage::Syncing);
            self.directory.pod(uid).filter(|_| syncing && self.pleg.runs_container(uid))
        };
        let taken: Vec<Arc<Pod>> = left.iter().filter_map(running).collect();
        left.retain(|uid| !taken.iter().any(|pod| pod.uid == *uid));
        taken
    }

    /// When volumes that are kept need us next; what is late already waits for its pod.
    fn next(&self, pauses: &Pauses) -> Option<Duration> {
        let now = self.volumes.sources.clock.now().mono;
        let known = self.volumes.known.lock();
        let times = known.iter().filter_map(|(uid, entry)| self.wake_at(uid, entry, pauses, now));
        times.filter(|at| *at > now).min().map(|at| at.since(now))
    }

    /// What cannot be brought up to date stays as it was, and the pod's events say so.
    async fn refresh(&self, pod: Arc<Pod>) -> Refreshed {
        let errors = self.volumes.bring_up(&pod).await.errors;
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
