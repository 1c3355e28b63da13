//! Status manager: caches pod statuses and patches them to the API server.
//!
//! A change of Ready or of the phase is sent immediately and before all others; the small steps of
//! a start are delayed briefly, so that several become one request. A report that could not be sent
//! is retried; none is lost. The patch is computed against the newest copy of the object, so
//! normally one report is one request.
//!
//! A pod is checked after an event of its own: a new report, a change of its mirror pod, a deletion
//! request, the end of a request or of a delay. All pods are checked only by a slow sweep.

mod sync;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_core::ids::{ContainerId, PodUid};
use podwright_core::pod::Pod;
use podwright_core::pod::desired::mirror_is_current;
use podwright_core::status::delay::{self, Sending, Urgency};
use podwright_core::status::dropped::Dropped;
use podwright_core::status::ending;
use podwright_core::status::manager::{
    self, Acceptance, CachedStatus, PodLeftovers, ReportTrigger, StatusUpdate,
};
use podwright_core::status::queue::{ReportQueue, Sweep};
use podwright_core::time::Mono;
use podwright_host::clock::Clock;
use tokio::sync::Notify;

use crate::pods::PodIndex;
use crate::telemetry::metrics::Metrics;

/// Reports what a pod still has on this node.
pub type Leftovers = Arc<dyn Fn(&PodUid) -> PodLeftovers + Send + Sync>;

/// The report of one pod and its delivery state.
#[derive(Clone)]
struct Tracked {
    entry: CachedStatus,
    /// The API UID the report was sent to, and the version sent.
    sent: Option<(Arc<str>, u64)>,
    /// The object in the last response; newer than the copy of the watch for a moment.
    response: Option<Arc<v1::Pod>>,
    /// Not sent before this time: a newer report may replace it, or the server refused it recently.
    not_before: Mono,
    failures: u32,
    /// The versions of the object and of our report at the last comparison. The result is the same
    /// until one of them changes.
    compared: Option<(u64, u64)>,
    /// The last request left out a terminal phase, because a container might be running.
    phase_withheld: bool,
    /// Checks since the last event that only found that the pod must be checked again.
    rechecks: u32,
}

impl Tracked {
    /// `mirror` may have been delivered after the report that continues its status.
    fn continue_mirror(&mut self, mirror: Option<&Pod>) {
        let nothing = v1::PodStatus::default();
        if let Some(mirror) = mirror {
            self.entry.continue_mirror(mirror.object.status.as_ref().unwrap_or(&nothing));
        }
    }

    fn sending(&self) -> Sending {
        let sent = self.sent.as_ref().is_some_and(|(_, version)| *version >= self.entry.version);
        let not_before = self.not_before;
        match (self.failures, sent) {
            (0, true) => Sending::Sent,
            (0, false) => Sending::Pending { not_before },
            (_, _) => Sending::Failed { not_before },
        }
    }
}

/// The reports of all pods.
#[derive(Default)]
struct Reports {
    pods: BTreeMap<PodUid, Tracked>,
    /// Pods that may have something to send. All others had nothing to send when last checked and
    /// have not changed since.
    queue: ReportQueue,
    /// Pods whose object in the API is a mirror pod.
    static_pods: BTreeSet<PodUid>,
    sweep: Sweep,
}

impl Reports {
    fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.queue.forget(uid);
        self.static_pods.remove(uid);
    }
}

pub struct StatusManager {
    reports: Mutex<Reports>,
    /// Fields this server drops, learned from its responses.
    dropped: Mutex<Dropped>,
    changed: Notify,
    pod_index: Arc<PodIndex>,
    leftovers: Leftovers,
    runtime_name: String,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl StatusManager {
    pub fn new(
        pod_index: Arc<PodIndex>,
        leftovers: Leftovers,
        runtime_name: String,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            reports: Mutex::default(),
            dropped: Mutex::default(),
            changed: Notify::new(),
            pod_index,
            leftovers,
            runtime_name,
            clock,
            metrics,
        })
    }

    /// Until the guard is dropped, no report is recorded or read.
    #[cfg(test)]
    pub(crate) fn block_reports(&self) -> impl Sized + use<'_> {
        self.reports.lock()
    }

    /// The last report of a pod.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<v1::PodStatus>> {
        self.reports.lock().pods.get(uid).map(|tracked| tracked.entry.status.clone())
    }

    /// The last report of a pod; before our first one, the status in the API.
    pub fn last_report(&self, pod: &Pod) -> Option<Arc<v1::PodStatus>> {
        let of_mirror = || {
            let mirror = self.mirror_of(pod)?;
            Some(ending::without_end(mirror.object.status.clone()?))
        };
        let in_api = || of_mirror().or_else(|| pod.object.status.clone()).map(Arc::new);
        self.get(&pod.uid).or_else(in_api)
    }

    /// The mirror pod of a static pod, unless it is of an earlier manifest.
    fn mirror_of(&self, pod: &Pod) -> Option<Arc<Pod>> {
        let mirror = self.pod_index.mirror_of(pod)?.pod;
        mirror_is_current(&mirror, pod).then_some(mirror)
    }

    /// Records a new status, if it is valid and differs.
    pub fn set(&self, pod: &Pod, status: v1::PodStatus) {
        self.record(pod, ReportTrigger::Sync, |_| Some(status));
    }

    /// Records a readiness probe result. Unknown pods and containers are ignored.
    pub fn set_container_readiness(&self, pod: &Pod, container: &ContainerId, ready: bool) {
        let id = self.container_id(container);
        self.record(pod, ReportTrigger::Probe, |old| {
            manager::set_container_readiness(pod, old?, &id, ready)
        });
    }

    /// Records a startup probe result.
    pub fn set_container_startup(&self, pod: &Pod, container: &ContainerId, started: bool) {
        let id = self.container_id(container);
        self.record(pod, ReportTrigger::Probe, |old| {
            manager::set_container_startup(old?, &id, started)
        });
    }

    /// Records that the sandbox is ready; image pulls may still take a while.
    pub fn sandbox_ready(&self, pod: &Pod) {
        self.record(pod, ReportTrigger::SandboxReady, |old| manager::set_sandbox_ready(old?));
    }

    /// Records that nothing of the pod is left on this node.
    pub fn terminate(&self, pod: &Pod) {
        self.record(pod, ReportTrigger::End, |old| {
            let old = old.or(pod.object.status.as_ref());
            let nothing = v1::PodStatus::default();
            Some(ending::terminate_pod(pod, old.unwrap_or(&nothing)))
        });
    }

    /// Rechecks the static pods after a mirror pod was created or deleted: a report to an old one
    /// is void.
    pub fn mirror_changed(&self) {
        let mut reports = self.reports.lock();
        let Reports { queue, static_pods, .. } = &mut *reports;
        static_pods.iter().for_each(|uid| queue.check(uid));
        drop(reports);
        self.changed.notify_one();
    }

    /// Rechecks a pod that is being deleted: if it is finished, its object can be deleted now.
    pub fn recheck(&self, uid: &PodUid) {
        let mut reports = self.reports.lock();
        let Reports { pods, queue, .. } = &mut *reports;
        if let Some(tracked) = pods.get_mut(uid) {
            tracked.rechecks = 0;
            queue.check(uid);
        }
        drop(reports);
        self.changed.notify_one();
    }

    /// Removes a pod that no source names.
    pub fn forget(&self, uid: &PodUid) {
        let mut reports = self.reports.lock();
        let Reports { pods, queue, static_pods, .. } = &mut *reports;
        if pods.remove(uid).is_some() {
            queue.forget(uid);
            static_pods.remove(uid);
        }
    }

    /// The pods with a report.
    pub fn recorded(&self) -> Vec<PodUid> {
        self.reports.lock().pods.keys().cloned().collect()
    }

    /// A container ID as statuses show it.
    fn container_id(&self, container: &ContainerId) -> String {
        format!("{}://{container}", self.runtime_name)
    }

    /// Records a status, and the time from which it may be sent.
    fn record(
        &self,
        pod: &Pod,
        occasion: ReportTrigger,
        make: impl FnOnce(Option<&v1::PodStatus>) -> Option<v1::PodStatus>,
    ) {
        let mirror = self.mirror_of(pod);
        let now = self.clock.now();
        let mut reports = self.reports.lock();
        if let Some(tracked) = reports.pods.get_mut(&pod.uid) {
            tracked.continue_mirror(mirror.as_deref());
        }
        let known = reports.pods.get(&pod.uid).map(|tracked| &tracked.entry);
        let Some(new) = make(known.map(|entry| &*entry.status)) else { return };
        let update = StatusUpdate {
            pod,
            cached: known,
            mirror: mirror.as_ref().and_then(|mirror| mirror.object.status.as_ref()),
            occasion,
            now,
        };
        match manager::accept(&update, new) {
            Acceptance::Unchanged => {
                let may_run = || {
                    self.pod_index.cleanup_policy(&pod.uid, |s| s.could_have_running_containers())
                };
                match reports.pods.get_mut(&pod.uid) {
                    // The phase can be sent now, before volumes and cgroup are released.
                    Some(tracked)
                        if pod.deletion.is_some() && tracked.phase_withheld && !may_run() =>
                    {
                        tracked.phase_withheld = false;
                        let sending = match tracked.failures {
                            0 => Sending::Sent,
                            _ => Sending::Failed { not_before: tracked.not_before },
                        };
                        tracked.sent = None;
                        tracked.not_before =
                            delay::not_before(Urgency::Minor, occasion, sending, now.mono);
                    }
                    Some(_) | None => return,
                }
                reports.queue.check(&pod.uid);
            }
            Acceptance::Refused(refusal) => {
                tracing::error!(pod = %pod.name, %refusal, "Status update on pod aborted");
                return;
            }
            Acceptance::Accepted { entry, left_out } => {
                for kind in left_out {
                    tracing::error!(pod = %pod.name, kind, "update pod status: condition is not owned by the kubelet, dropped");
                }
                let before = known.map(|entry| &*entry.status);
                let urgency = manager::urgency(before, &entry.status, occasion);
                let sending = reports.pods.get(&pod.uid).map_or(Sending::First, Tracked::sending);
                let not_before = delay::not_before(urgency, occasion, sending, now.mono);
                let tracked = reports.pods.entry(pod.uid.clone()).or_insert_with(|| Tracked {
                    entry: entry.clone(),
                    sent: None,
                    response: None,
                    not_before,
                    failures: 0,
                    compared: None,
                    phase_withheld: false,
                    rechecks: 0,
                });
                tracked.entry = entry;
                tracked.rechecks = 0;
                tracked.not_before = not_before;
                if pod.is_static() {
                    reports.static_pods.insert(pod.uid.clone());
                }
                reports.queue.check(&pod.uid);
            }
        }
        drop(reports);
        self.changed.notify_one();
    }
}
