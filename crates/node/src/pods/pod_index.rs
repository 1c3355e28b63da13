//! Pod index: the table of all pods known to this node, by UID.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use podwright_core::admission::ActiveUsage;
use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::{CleanupPolicy, Stage};
use podwright_core::observed::PodEvent;
use podwright_core::pod::Pod;
use podwright_core::pod::desired::{ApiUid, DesiredPods, MirrorPod, PodCounts, is_mirror};
use podwright_core::pod::mirror::Static;
use podwright_core::time::Mono;
use tokio::sync::watch;

use crate::pods::orphan::OrphanHandle;
use crate::pods::pod_changes::{ChangeReaders, ChangedPods};
use crate::pods::pod_handle::PodHandle;
use crate::runtime::pleg::Listener;

/// Changes come in bursts: a task that goes through all pods after a change waits this long first.
pub const CHANGE_DEBOUNCE: Duration = Duration::from_millis(100);

/// The handle of a pod: at most one for each UID, so that two tasks never act on one pod.
#[derive(Debug)]
enum Handle {
    Worker(Arc<PodHandle>),
    Orphan(Arc<OrphanHandle>),
}

/// What is added to the entry of a pod.
pub(super) enum Entry {
    /// The pod, or the mirror pod, as a source names it.
    Desired(Arc<Pod>),
    Worker(Arc<PodHandle>),
    Orphan(Arc<OrphanHandle>),
}

/// What is removed from the entry of a pod.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Desired(&'a Pod),
    Handle(&'a PodUid),
}

#[derive(Default)]
struct Table {
    desired: DesiredPods,
    handles: BTreeMap<PodUid, Handle>,
    /// Static pods with a worker, by name.
    static_workers: BTreeMap<PodName, BTreeSet<PodUid>>,
    /// Pods whose handle is [`Handle::Orphan`].
    orphans: BTreeSet<PodUid>,
}

impl Table {
    fn worker(&self, uid: &PodUid) -> Option<&Arc<PodHandle>> {
        match self.handles.get(uid)? {
            Handle::Worker(handle) => Some(handle),
            Handle::Orphan(_) => None,
        }
    }

    fn orphan(&self, uid: &PodUid) -> Option<&Arc<OrphanHandle>> {
        match self.handles.get(uid)? {
            Handle::Worker(_) => None,
            Handle::Orphan(handle) => Some(handle),
        }
    }

    fn workers(&self) -> impl Iterator<Item = (&PodUid, &Arc<PodHandle>)> {
        self.handles.iter().filter_map(|(uid, handle)| match handle {
            Handle::Worker(handle) => Some((uid, handle)),
            Handle::Orphan(_) => None,
        })
    }

    fn set_handle(&mut self, uid: &PodUid, handle: Option<Handle>) {
        self.orphans.remove(uid);
        if let Some(before) = self.worker(uid).map(|handle| handle.pod())
            && before.is_static()
            && let Some(same_name) = self.static_workers.get_mut(&before.name)
        {
            same_name.remove(uid);
            if same_name.is_empty() {
                self.static_workers.remove(&before.name);
            }
        }
        match &handle {
            Some(Handle::Worker(handle)) => {
                let pod = handle.pod();
                if pod.is_static() {
                    let same_name = self.static_workers.entry(pod.name.clone()).or_default();
                    same_name.insert(uid.clone());
                }
            }
            Some(Handle::Orphan(_)) => {
                self.orphans.insert(uid.clone());
            }
            None => {}
        }
        match handle {
            Some(handle) => drop(self.handles.insert(uid.clone(), handle)),
            None => drop(self.handles.remove(uid)),
        }
    }
}

#[derive(Default)]
pub struct PodIndex {
    table: RwLock<Table>,
    /// Totals of the active pods, without the changes that are noted in `changes`.
    usage: Mutex<ActiveUsage>,
    changes: Arc<PodChanges>,
    sources_ready: AtomicBool,
    api_synced: AtomicBool,
    /// Readers of every change of pods, mirror pods and workers.
    readers: ChangeReaders,
    /// Increased by every change that mirror pods depend on.
    mirrors_changed: watch::Sender<u64>,
    /// When the loop of the pod manager last ran.
    last_loop: Mutex<Option<Mono>>,
    /// Every wanted pod has a worker, so a pod without one is not wanted.
    all_known: AtomicBool,
    /// All pods must stop because the node is being stopped. Never reset: pods run again only after
    /// the agent is restarted.
    stopping: watch::Sender<bool>,
}

/// Pods that changed since each of two readers last asked, so that neither visits the others. Each
/// change is made first and noted here afterwards.
#[derive(Debug, Default)]
pub(super) struct PodChanges {
    /// Pods that may have become active or inactive, or changed.
    usage: Mutex<BTreeSet<PodUid>>,
    /// Pods that housekeeping has to check.
    housekeeping: Mutex<BTreeSet<PodUid>>,
    /// Number of changes of the usage.
    count: AtomicU64,
}

impl PodChanges {
    pub(super) fn note(&self, uid: &PodUid) {
        self.usage.lock().insert(uid.clone());
        self.count.fetch_add(1, Relaxed);
        self.note_for_housekeeping(uid);
    }

    fn note_for_housekeeping(&self, uid: &PodUid) {
        self.housekeeping.lock().insert(uid.clone());
    }
}

impl PodIndex {
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.table.read().desired.by_uid(uid).cloned()
    }

    pub fn pod_by_name(&self, name: &PodName) -> Option<Arc<Pod>> {
        self.table.read().desired.by_name(name).cloned()
    }

    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.table.read().desired.pods().cloned().collect()
    }

    /// The pod with this UID, which may be the UID of its mirror pod.
    pub fn resolve(&self, uid: &str) -> Option<Arc<Pod>> {
        self.table.read().desired.resolve(uid).cloned()
    }

    /// The UID of the pod in the API.
    pub fn api_uid(&self, uid: &PodUid) -> Option<ApiUid> {
        self.table.read().desired.api_uid(uid)
    }

    pub fn mirror_of(&self, pod: &Pod) -> Option<MirrorPod> {
        self.table.read().desired.mirror_of(pod).cloned()
    }

    pub fn static_pod_of(&self, mirror: &Pod) -> Option<Arc<Pod>> {
        self.table.read().desired.static_pod_of(mirror).cloned()
    }

    pub fn mirrors(&self) -> Vec<MirrorPod> {
        self.table.read().desired.mirrors().cloned().collect()
    }

    /// Static pods that are ending because no source names them, and wanted static pods, except
    /// those that wait for an ending pod of the same name.
    pub fn static_pods(&self) -> Vec<Static> {
        let table = self.table.read();
        let desired = &table.desired;
        let workers = table.static_workers.values().flatten().filter_map(|uid| table.worker(uid));
        let alive = workers.filter(|handle| handle.stage() < Stage::Terminated);
        let ending = alive.map(|handle| handle.pod());
        let ending = ending.filter(|pod| desired.by_uid(&pod.uid).is_none());
        let mut pods: Vec<Static> = ending.map(|pod| Static { pod, ending: true }).collect();
        pods.sort_by(|a, b| a.pod.uid.cmp(&b.pod.uid));
        let taken: BTreeSet<PodName> = pods.iter().map(|ending| ending.pod.name.clone()).collect();
        let has_name =
            |pod: &Pod| desired.by_name(&pod.name).is_some_and(|named| named.uid == pod.uid);
        let free = desired
            .static_pods()
            .filter(|pod| has_name(pod) && !taken.contains(&pod.name))
            .map(|pod| Static { pod: pod.clone(), ending: false });
        pods.extend(free);
        pods
    }

    /// Every change of pods, mirror pods and handles from now on.
    pub(crate) fn changes(&self) -> Arc<ChangedPods> {
        self.readers.subscribe()
    }

    /// Notified of every change of static pods, mirror pods and the pods that have their names.
    pub fn mirrors_changed(&self) -> watch::Receiver<u64> {
        self.mirrors_changed.subscribe()
    }

    fn note_mirror_change(&self) {
        self.mirrors_changed.send_modify(|count| *count += 1);
    }

    /// The numbers of desired pods.
    pub fn counts(&self) -> PodCounts {
        self.table.read().desired.counts()
    }

    /// The handle of a pod with a worker.
    pub fn handle(&self, uid: &PodUid) -> Option<Arc<PodHandle>> {
        self.table.read().worker(uid).cloned()
    }

    /// All pods with a worker.
    pub fn handles(&self) -> Vec<(PodUid, Arc<PodHandle>)> {
        let table = self.table.read();
        table.workers().map(|(uid, handle)| (uid.clone(), handle.clone())).collect()
    }

    /// The handle of an orphaned pod that is being ended.
    pub fn orphan(&self, uid: &PodUid) -> Option<Arc<OrphanHandle>> {
        self.table.read().orphan(uid).cloned()
    }

    /// The orphaned pods that are being ended.
    pub fn orphans(&self) -> Vec<Arc<OrphanHandle>> {
        let table = self.table.read();
        table.orphans.iter().filter_map(|uid| table.orphan(uid).cloned()).collect()
    }

    /// Whether a source names the pod or it has a handle.
    pub fn is_known(&self, uid: &PodUid) -> bool {
        let table = self.table.read();
        table.handles.contains_key(uid) || table.desired.by_uid(uid).is_some()
    }

    /// Whether a task may still act on the pod.
    pub fn has_task(&self, uid: &PodUid) -> bool {
        match self.table.read().handles.get(uid) {
            Some(Handle::Worker(handle)) => handle.stage() != Stage::Finished,
            Some(Handle::Orphan(_)) => true,
            None => false,
        }
    }

    /// All pods that a source names or that have a handle.
    pub(super) fn known(&self) -> BTreeSet<PodUid> {
        let table = self.table.read();
        let desired = table.desired.pods().map(|pod| &pod.uid);
        desired.chain(table.handles.keys()).cloned().collect()
    }

    /// Evaluates `ask` on the standing of a pod.
    pub fn cleanup_policy<T>(&self, uid: &PodUid, ask: impl FnOnce(CleanupPolicy<'_>) -> T) -> T {
        let lifecycle = self.table.read().handles.get(uid).map(|handle| match handle {
            Handle::Worker(handle) => handle.lifecycle(),
            Handle::Orphan(handle) => handle.lifecycle(),
        });
        ask(CleanupPolicy {
            lifecycle: lifecycle.as_ref(),
            all_pods_known: self.all_known.load(Relaxed),
        })
    }

    /// Pods that hold resources of the node: wanted and not terminated.
    pub fn active_pods(&self) -> Vec<Arc<Pod>> {
        let table = self.table.read();
        // Both are sorted by UID and merged in one pass: a lookup for each pod takes longer.
        let mut workers = table.workers().peekable();
        let of = |pod: &Arc<Pod>| {
            while workers.next_if(|(uid, _)| **uid < pod.uid).is_some() {}
            workers.next_if(|(uid, _)| **uid == pod.uid).map(|(_, handle)| handle)
        };
        let active = table.desired.pods().filter_map(of);
        active
            .filter(|handle| handle.stage() < Stage::Terminated)
            .map(|handle| handle.pod())
            .collect()
    }

    /// Whether the pod is one of [`Self::active_pods`].
    pub fn is_active(&self, uid: &PodUid) -> bool {
        self.active_pod(uid).is_some()
    }

    fn active_pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        let table = self.table.read();
        table.desired.by_uid(uid)?;
        let handle = table.worker(uid)?;
        (handle.stage() < Stage::Terminated).then(|| handle.pod())
    }

    /// Evaluates `ask` on the totals of [`Self::active_pods`]. Visits only the pods that changed
    /// since the last call.
    pub fn with_usage<T>(&self, ask: impl FnOnce(&ActiveUsage) -> T) -> T {
        let mut usage = self.usage.lock();
        // Taken before the pods are read: a later change is noted again.
        let changed = std::mem::take(&mut *self.changes.usage.lock());
        for uid in changed {
            match self.active_pod(&uid) {
                Some(pod) => usage.set(&pod),
                None => usage.remove(&uid),
            }
        }
        ask(&usage)
    }

    /// Increases whenever the totals of [`Self::with_usage`] may have changed.
    pub(super) fn usage_version(&self) -> u64 {
        self.changes.count.load(Relaxed)
    }

    /// The pods that changed since the last call: in the sources, on this node, or in the runtime.
    pub(super) fn take_changed(&self) -> BTreeSet<PodUid> {
        std::mem::take(&mut *self.changes.housekeeping.lock())
    }

    /// Returns a pod in the next [`Self::take_changed`], although nothing changed.
    pub(super) fn check_again(&self, uid: &PodUid) {
        self.changes.note_for_housekeeping(uid);
    }

    /// Whether another static pod of this name has not finished.
    pub fn other_static(&self, pod: &Pod) -> bool {
        let table = self.table.read();
        let same_name = table.static_workers.get(&pod.name).into_iter().flatten();
        let mut others = same_name.filter(|uid| **uid != pod.uid);
        others.any(|uid| table.worker(uid).is_some_and(|other| other.stage() != Stage::Finished))
    }

    /// Whether every source has delivered its full set.
    pub fn sources_ready(&self) -> bool {
        self.sources_ready.load(Relaxed)
    }

    /// Whether the API server has delivered its full set.
    pub fn api_synced(&self) -> bool {
        self.api_synced.load(Relaxed)
    }

    /// When the loop of the pod manager last ran; `None`: not yet.
    pub fn last_loop(&self) -> Option<Mono> {
        *self.last_loop.lock()
    }

    /// Requests that all pods stop. No pod starts from then on.
    pub fn stop_pods(&self) {
        self.stopping.send_if_modified(|stopping| !std::mem::replace(stopping, true));
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub(super) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    pub(super) fn note_loop(&self, now: Mono) {
        *self.last_loop.lock() = Some(now);
    }

    pub(crate) fn set_sources_ready(&self, ready: bool) {
        if self.sources_ready.swap(ready, Relaxed) != ready {
            self.note_mirror_change();
        }
    }

    pub(super) fn set_api_synced(&self, heard: bool) {
        if self.api_synced.swap(heard, Relaxed) != heard {
            self.note_mirror_change();
        }
    }

    pub(crate) fn set_all_known(&self) {
        self.all_known.store(true, Relaxed);
    }

    /// Adds to the entry of a pod, or replaces that part of it.
    pub(super) fn upsert(&self, entry: Entry) {
        match entry {
            Entry::Desired(pod) => {
                let next = pod.clone();
                self.change_desired(&pod, |desired| desired.put(next));
            }
            Entry::Worker(handle) => {
                handle.note_changes_in(self.changes.clone());
                let pod = handle.pod();
                self.table.write().set_handle(&pod.uid, Some(Handle::Worker(handle)));
                self.note(&pod.uid);
                if pod.is_static() {
                    self.note_mirror_change();
                }
            }
            Entry::Orphan(handle) => {
                let uid = handle.uid().clone();
                self.table.write().set_handle(&uid, Some(Handle::Orphan(handle)));
            }
        }
    }

    /// Removes a part of the entry of a pod; the entry ends with its last part.
    pub(super) fn remove(&self, part: Part<'_>) {
        match part {
            Part::Desired(pod) => self.change_desired(pod, |desired| desired.remove(pod)),
            Part::Handle(uid) => {
                let was_static = self.handle(uid).is_some_and(|handle| handle.pod().is_static());
                self.table.write().set_handle(uid, None);
                self.note(uid);
                // Now, so that pods that are gone do not accumulate.
                self.with_usage(|_| ());
                if was_static {
                    self.note_mirror_change();
                }
            }
        }
    }

    fn change_desired(&self, pod: &Pod, change: impl FnOnce(&mut DesiredPods)) {
        let concerns_mirrors = {
            let desired = &mut self.table.write().desired;
            // A pod of the API may take the name of a static pod, or leave it to one.
            let static_has_name = |desired: &DesiredPods| {
                desired.by_name(&pod.name).is_some_and(|named| named.is_static())
            };
            let before = static_has_name(desired);
            change(desired);
            before || static_has_name(desired) || pod.is_static() || is_mirror(pod)
        };
        self.note(&pod.uid);
        if concerns_mirrors {
            self.note_mirror_change();
        }
    }

    fn note(&self, uid: &PodUid) {
        self.changes.note(uid);
        self.readers.note(uid);
    }
}

impl Listener for PodIndex {
    fn notify(&self, uid: &PodUid, events: &[PodEvent]) {
        if !events.is_empty() {
            self.changes.note_for_housekeeping(uid);
        }
        if let Some(handle) = self.handle(uid) {
            handle.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use podwright_core::builders::pod;
    use podwright_core::lifecycle::{Kill, Lifecycle, Request};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put,
        Remove,
        Insert,
        Forget,
        Update { cpu: u8, port: u8 },
        Resize { cpu: u8 },
        Kill,
        Terminate,
        Use,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Put),
            Just(Step::Remove),
            Just(Step::Insert),
            Just(Step::Forget),
            (0u8..4, 0u8..3).prop_map(|(cpu, port)| Step::Update { cpu, port }),
            (0u8..4).prop_map(|cpu| Step::Resize { cpu }),
            Just(Step::Kill),
            Just(Step::Terminate),
            Just(Step::Use),
        ]
    }

    fn version(name: u8, cpu: u8, port: u8) -> Arc<Pod> {
        let fields = json!({
            "resources": { "requests": { "cpu": format!("{cpu}m") } },
            "ports": [{ "containerPort": 1, "hostPort": port }],
        });
        Arc::new(pod(&format!("p{name}")).container_with("c", fields).build())
    }

    proptest! {
        #[test]
        fn totals_match_the_active_pods_after_any_changes(
            steps in prop::collection::vec((0u8..4, step()), 0..60),
        ) {
            let index = PodIndex::default();
            for (name, step) in steps {
                let first = version(name, 1, 0);
                let handle = index.handle(&first.uid);
                match (step, handle) {
                    (Step::Put, _) => index.upsert(Entry::Desired(first)),
                    (Step::Remove, _) => index.remove(Part::Desired(&first)),
                    (Step::Insert, _) => {
                        let handle = PodHandle::new(first.clone(), Lifecycle::begin(&first, true));
                        index.upsert(Entry::Worker(handle));
                    }
                    (Step::Forget, _) => index.remove(Part::Handle(&first.uid)),
                    (Step::Update { cpu, port }, Some(handle)) => {
                        handle.update(version(name, cpu, port), Request::Update);
                    }
                    (Step::Resize { cpu }, Some(handle)) => handle.refresh(version(name, cpu, 0)),
                    (Step::Kill, Some(handle)) => {
                        handle.request(Request::Kill(Kill::default()));
                    }
                    (Step::Terminate, Some(handle)) => handle.advance(|lifecycle| {
                        lifecycle.request(Request::Kill(Kill::default()), &first);
                        lifecycle.stopped();
                    }),
                    // The totals are used after some changes only.
                    (Step::Use, _) => {
                        let mut expected = ActiveUsage::default();
                        for pod in index.active_pods() {
                            prop_assert!(index.is_active(&pod.uid));
                            expected.set(&pod);
                        }
                        let usage = index.with_usage(ActiveUsage::clone);
                        prop_assert_eq!(usage, expected);
                    }
                    (_, None) => {}
                }
            }
        }
    }
}
