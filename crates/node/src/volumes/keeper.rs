//! Brings the volumes of running pods up to date.
//!
//! Told of edited objects by their watches, of labels by the pod's own changes, and by the clock
//! of tokens that get old. Pods that wait for a volume or a variable are woken instead: their
//! workers decide. One task for the node; a pod that hangs only keeps itself waiting.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use podwright_core::ids::PodUid;
use podwright_core::lifecycle::Stage;
use podwright_core::pod::{Phase, Pod};
use tokio_util::sync::CancellationToken;

use super::Volumes;
use crate::events::{Recorder, Severity};
use crate::pods::{BURST, Directory};

impl Volumes {
    pub async fn keep(
        self: Arc<Self>,
        directory: Arc<Directory>,
        events: Recorder,
        stop: CancellationToken,
    ) {
        let keeper = Keeper { volumes: self, directory, events };
        stop.run_until_cancelled(keeper.run()).await;
    }
}

struct Keeper {
    volumes: Arc<Volumes>,
    directory: Arc<Directory>,
    events: Recorder,
}

impl Keeper {
    async fn run(self) {
        let mut pods_changed = self.directory.changed();
        let (mut under_way, mut busy) = (FuturesUnordered::new(), BTreeSet::new());
        loop {
            for pod in self.due(&busy) {
                busy.insert(pod.uid.clone());
                under_way.push(self.refresh(pod));
            }
            tokio::select! { biased;
                Some(uid) = under_way.next(), if !under_way.is_empty() => {
                    busy.remove(&uid);
                }
                // Cancel-safe: what it did not return stays.
                pods = self.volumes.sources.objects.changed() => self.tell(&pods),
                // Cancel-safe: `changed` keeps what it did not report.
                Ok(()) = pods_changed.changed() => {
                    tokio::time::sleep(BURST).await;
                    pods_changed.mark_unchanged();
                    self.look_at_pods();
                }
                () = sleep(self.next(&busy)) => {}
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
    fn due(&self, busy: &BTreeSet<PodUid>) -> Vec<Arc<Pod>> {
        let now = self.volumes.sources.clock.now().mono;
        let known = self.volumes.known.lock();
        let needed = known.iter().filter(|(uid, entry)| {
            let has_reason = entry.has_news() || entry.wake_at().is_some_and(|at| at <= now);
            has_reason && entry.is_ready() && !busy.contains(*uid)
        });
        let mut due: Vec<_> = needed.filter_map(|(uid, _)| self.directory.pod(uid)).collect();
        drop(known);
        due.extend(self.taken_over());
        due
    }

    /// Pods that ran before we did: an earlier process set their volumes up.
    fn taken_over(&self) -> Vec<Arc<Pod>> {
        let mut left = self.volumes.left.lock();
        let running = |uid: &PodUid| {
            let syncing = self.directory.cell(uid).is_some_and(|c| c.stage() == Stage::Syncing);
            self.directory.pod(uid).filter(|pod| syncing && pod.api_phase == Phase::Running)
        };
        let taken: Vec<Arc<Pod>> = left.iter().filter_map(running).collect();
        left.retain(|uid| !taken.iter().any(|pod| pod.uid == *uid));
        taken
    }

    /// When volumes that are kept need us next; what is late already waits for its pod.
    fn next(&self, busy: &BTreeSet<PodUid>) -> Option<Duration> {
        let now = self.volumes.sources.clock.now().mono;
        let known = self.volumes.known.lock();
        let kept = known.iter().filter(|(uid, entry)| entry.is_ready() && !busy.contains(*uid));
        let times = kept.filter_map(|(_, entry)| entry.wake_at()).filter(|at| *at > now);
        times.min().map(|at| at.since(now))
    }

    /// What cannot be brought up to date stays as it was, and the pod's events say so.
    async fn refresh(&self, pod: Arc<Pod>) -> PodUid {
        for error in self.volumes.bring_up(&pod).await.errors {
            self.events.pod(&pod, Severity::Warning, "FailedMount", error.to_string());
        }
        pod.uid.clone()
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
