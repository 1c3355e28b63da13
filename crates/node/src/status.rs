//! The status manager: what is reported of each pod, and getting it to the API server.
//!
//! Reports are filed at once and sent when it matters: a change of Ready or of the phase goes out
//! immediately and before all others, the small steps of a start wait a moment and often become
//! one. A report that could not be sent is sent later; none is lost. The patch is made against
//! the newest copy we hold, so in the normal case one report is one request.

mod sync;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_core::ids::{ContainerId, PodUid};
use podwright_core::pod::Pod;
use podwright_core::pod::registry::mirrors_faithfully;
use podwright_core::status::conditions::READY_TO_START;
use podwright_core::status::dropped::Dropped;
use podwright_core::status::ending;
use podwright_core::status::manager::{self, Acceptance, Entry, Occasion, Remains, Update};
use podwright_core::time::Mono;
use podwright_host::clock::Clock;
use tokio::sync::Notify;

use crate::metrics::Metrics;
use crate::pods::Directory;

/// A first report waits this long: often the next one says more.
const FIRST: Duration = Duration::from_millis(100);
/// The small steps after it (a sandbox stands, say) matter to nobody but people who watch.
const SMALL_STEP: Duration = Duration::from_secs(1);
/// A sandbox without containers: they follow soon, and one report tells of both.
const SANDBOX_STEP: Duration = Duration::from_secs(5);

/// What of a pod is still on this node.
pub type Leftovers = Arc<dyn Fn(&PodUid) -> Remains + Send + Sync>;

/// One pod's report and how far it got.
struct Tracked {
    entry: Entry,
    /// The version the API server has, under which of its UIDs.
    sent: Option<(Arc<str>, u64)>,
    /// The object as the server last answered; newer than the watch's copy for a moment.
    answer: Option<Arc<v1::Pod>>,
    /// Not before this time: it may yet be overtaken, or the server refused it lately.
    not_before: Mono,
    failures: u32,
    /// The object's version and ours when they were last compared. Until one of them changes,
    /// nothing new would come of doing it again.
    compared: Option<(u64, u64)>,
}

/// The reports of all pods.
#[derive(Default)]
struct Reports {
    pods: BTreeMap<PodUid, Tracked>,
    /// Those that may owe the API server something: of all others nothing was owed when they were
    /// last looked at, and nothing came since.
    open: BTreeSet<PodUid>,
    /// Those of them that are not to be sent before a time.
    waiting: BTreeSet<(Mono, PodUid)>,
}

impl Reports {
    fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
        self.open.remove(uid);
    }

    fn open_all(&mut self) {
        self.open = self.pods.keys().cloned().collect();
    }
}

pub struct StatusManager {
    reports: Mutex<Reports>,
    /// Fields this server does not keep, learned from its answers.
    dropped: Mutex<Dropped>,
    changed: Notify,
    directory: Arc<Directory>,
    leftovers: Leftovers,
    runtime_name: String,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl StatusManager {
    pub fn new(
        directory: Arc<Directory>,
        leftovers: Leftovers,
        runtime_name: String,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            reports: Mutex::default(),
            dropped: Mutex::default(),
            changed: Notify::new(),
            directory,
            leftovers,
            runtime_name,
            clock,
            metrics,
        })
    }

    /// The last report of a pod.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<v1::PodStatus>> {
        self.reports.lock().pods.get(uid).map(|tracked| tracked.entry.status.clone())
    }

    /// The last report of a pod; before our first one, that of the agent before us.
    pub fn last_report(&self, pod: &Pod) -> Option<Arc<v1::PodStatus>> {
        let of_mirror = || {
            let mirror = self.directory.mirror_of(pod)?.pod;
            mirrors_faithfully(&mirror, pod).then(|| mirror.object.status.clone())?
        };
        let in_api = || of_mirror().or_else(|| pod.object.status.clone()).map(Arc::new);
        self.get(&pod.uid).or_else(in_api)
    }

    /// Files a new report, if it is legal and says anything.
    pub fn set(&self, pod: &Pod, status: v1::PodStatus) {
        self.file(pod, Occasion::Sync, |_| Some(status));
    }

    /// A readiness probe spoke. Unknown pods and containers are passed over.
    pub fn set_container_readiness(&self, pod: &Pod, container: &ContainerId, ready: bool) {
        let shown = self.shown(container);
        self.file(pod, Occasion::Probe, |old| {
            manager::set_container_readiness(pod, old?, &shown, ready)
        });
    }

    /// A startup probe spoke.
    pub fn set_container_startup(&self, pod: &Pod, container: &ContainerId, started: bool) {
        let shown = self.shown(container);
        self.file(pod, Occasion::Probe, |old| {
            manager::set_container_startup(old?, &shown, started)
        });
    }

    /// The sandbox stands; images may still take a while.
    pub fn sandbox_ready(&self, pod: &Pod) {
        self.file_within(SANDBOX_STEP, pod, Occasion::Sync, |old| {
            let mut status = old?.clone();
            let conditions = status.conditions.iter_mut().flatten();
            let ready = conditions.filter(|c| c.type_ == READY_TO_START && c.status != "True");
            let mut changed = false;
            for condition in ready {
                condition.status = "True".into();
                changed = true;
            }
            changed.then_some(status)
        });
    }

    /// Nothing of the pod is left on this node.
    pub fn terminate(&self, pod: &Pod) {
        self.file(pod, Occasion::End, |old| {
            let old = old.or(pod.object.status.as_ref());
            let nothing = v1::PodStatus::default();
            Some(ending::terminate_pod(pod, old.unwrap_or(&nothing)))
        });
    }

    /// A mirror came or went: what was sent to another one says nothing about it.
    pub fn mirror_changed(&self) {
        self.reports.lock().open_all();
        self.changed.notify_one();
    }

    /// The pod is to be deleted; if all of it is over, that waits for nothing but us.
    pub fn look_again(&self, uid: &PodUid) {
        let mut reports = self.reports.lock();
        if reports.pods.contains_key(uid) {
            reports.open.insert(uid.clone());
        }
        drop(reports);
        self.changed.notify_one();
    }

    /// Forgets pods that nobody wants any more.
    pub fn remove_orphans(&self, keep: impl Fn(&PodUid) -> bool) {
        let mut reports = self.reports.lock();
        reports.pods.retain(|uid, _| keep(uid));
        reports.open.retain(|uid| keep(uid));
        reports.waiting.retain(|(_, uid)| keep(uid));
    }

    /// A container id as statuses show it.
    fn shown(&self, container: &ContainerId) -> String {
        format!("{}://{container}", self.runtime_name)
    }

    fn file(
        &self,
        pod: &Pod,
        occasion: Occasion,
        make: impl FnOnce(Option<&v1::PodStatus>) -> Option<v1::PodStatus>,
    ) {
        self.file_within(SMALL_STEP, pod, occasion, make);
    }

    /// What nobody acts on may wait this long for more.
    fn file_within(
        &self,
        patience: Duration,
        pod: &Pod,
        occasion: Occasion,
        make: impl FnOnce(Option<&v1::PodStatus>) -> Option<v1::PodStatus>,
    ) {
        let mirror = self.directory.mirror_of(pod);
        let now = self.clock.now();
        let mut reports = self.reports.lock();
        let known = reports.pods.get(&pod.uid).map(|tracked| &tracked.entry);
        let Some(new) = make(known.map(|entry| &*entry.status)) else { return };
        let update = Update {
            pod,
            cached: known,
            mirror: mirror.as_ref().and_then(|m| m.pod.object.status.as_ref()),
            occasion,
            now,
        };
        match manager::accept(&update, new) {
            Acceptance::Unchanged => return,
            Acceptance::Refused(refusal) => {
                tracing::error!(pod = %pod.name, %refusal, "Status update on pod aborted");
                return;
            }
            Acceptance::Accepted { entry, left_out } => {
                for kind in left_out {
                    tracing::error!(pod = %pod.name, kind, "not a condition of ours; left out");
                }
                let before = known.map(|entry| &*entry.status);
                let urgent = manager::is_urgent(before, &entry.status, occasion);
                let tracked = reports.pods.entry(pod.uid.clone()).or_insert_with(|| Tracked {
                    entry: entry.clone(),
                    sent: None,
                    answer: None,
                    not_before: now.mono + FIRST,
                    failures: 0,
                    compared: None,
                });
                let waits_already =
                    tracked.sent.as_ref().is_none_or(|(_, v)| *v < tracked.entry.version);
                tracked.entry = entry;
                // A server that refused us lately is left alone, however urgent it is.
                if tracked.failures == 0 {
                    if urgent {
                        tracked.not_before = now.mono;
                    } else if !waits_already {
                        tracked.not_before = now.mono + patience;
                    }
                }
                reports.open.insert(pod.uid.clone());
            }
        }
        drop(reports);
        self.changed.notify_one();
    }
}
