//! Pod index: the table of all pods known to this node, by UID.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use podwright_core::admission::ActiveUsage;
use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::{CleanupPolicy, Stage};
use podwright_core::observed::PodEvent;
use podwright_core::pod::Pod;
use podwright_core::pod::desired::{ApiUid, DesiredPods, MirrorPod};
use podwright_core::pod::mirror::Static;
use podwright_core::time::Mono;
use tokio::sync::watch;

use crate::pods::pod_handle::PodHandle;
use crate::runtime::pleg::Listener;

/// Changes come in bursts: a task that goes through all pods after a change waits this long first.
pub const CHANGE_DEBOUNCE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct PodIndex {
    desired: RwLock<DesiredPods>,
    handles: RwLock<BTreeMap<PodUid, Arc<PodHandle>>>,
    /// Totals of the active pods, without the changes of the pods in `unsynced`.
    usage: Mutex<ActiveUsage>,
    unsynced: Arc<UnsyncedPods>,
    sources_ready: AtomicBool,
    api_synced: AtomicBool,
    /// Increased by every change of pods, mirror pods and handles.
    changed: watch::Sender<u64>,
    /// When the loop of the pod manager last ran.
    last_loop: Mutex<Option<Mono>>,
    /// Every wanted pod has a worker, so a pod without one is not wanted.
    all_known: AtomicBool,
    /// All pods must stop because the node is being stopped. Never reset: pods run again only after
    /// the agent is restarted.
    stopping: watch::Sender<bool>,
}

/// Pods that may have become active or inactive, or changed, since the totals were last used. Each
/// change is made first and noted here afterwards.
#[derive(Debug, Default)]
pub(super) struct UnsyncedPods(Mutex<BTreeSet<PodUid>>);

impl UnsyncedPods {
    pub(super) fn note(&self, uid: &PodUid) {
        self.0.lock().insert(uid.clone());
    }
}

impl PodIndex {
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.desired.read().by_uid(uid).cloned()
    }

    pub fn pod_by_name(&self, name: &PodName) -> Option<Arc<Pod>> {
        self.desired.read().by_name(name).cloned()
    }

    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.desired.read().pods().cloned().collect()
    }

    /// The pod with this UID, which may be the UID of its mirror pod.
    pub fn resolve(&self, uid: &str) -> Option<Arc<Pod>> {
        self.desired.read().resolve(uid).cloned()
    }

    /// The UID of the pod in the API.
    pub fn api_uid(&self, uid: &PodUid) -> Option<ApiUid> {
        self.desired.read().api_uid(uid)
    }

    pub fn mirror_of(&self, pod: &Pod) -> Option<MirrorPod> {
        self.desired.read().mirror_of(pod).cloned()
    }

    pub fn static_pod_of(&self, mirror: &Pod) -> Option<Arc<Pod>> {
        self.desired.read().static_pod_of(mirror).cloned()
    }

    pub fn mirrors(&self) -> Vec<MirrorPod> {
        self.desired.read().mirrors().cloned().collect()
    }

    /// Static pods that are ending because no source names them, and wanted static pods, except
    /// those that wait for an ending pod of the same name.
    pub fn static_pods(&self) -> Vec<Static> {
        let desired = self.desired.read();
        let handles = self.handles.read();
        let alive = handles.values().filter(|handle| handle.stage() < Stage::Terminated);
        let ending = alive
            .map(|handle| handle.pod())
            .filter(|pod| pod.is_static() && !desired.pods().any(|wanted| wanted.uid == pod.uid));
        let mut pods: Vec<Static> = ending.map(|pod| Static { pod, ending: true }).collect();
        let wanted = desired.pods().filter(|pod| pod.is_static());
        let has_name =
            |pod: &Pod| desired.by_name(&pod.name).is_some_and(|named| named.uid == pod.uid);
        let free: Vec<Static> = wanted
            .filter(|pod| has_name(pod))
            .filter(|pod| !pods.iter().any(|other| other.pod.name == pod.name))
            .map(|pod| Static { pod: pod.clone(), ending: false })
            .collect();
        pods.extend(free);
        pods
    }

    /// Notified of every change of pods, mirror pods and handles.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub fn handle(&self, uid: &PodUid) -> Option<Arc<PodHandle>> {
        self.handles.read().get(uid).cloned()
    }

    pub fn handles(&self) -> Vec<(PodUid, Arc<PodHandle>)> {
        self.handles.read().iter().map(|(uid, handle)| (uid.clone(), handle.clone())).collect()
    }

    /// Evaluates `ask` on the standing of a pod.
    pub fn cleanup_policy<T>(&self, uid: &PodUid, ask: impl FnOnce(CleanupPolicy<'_>) -> T) -> T {
        let lifecycle = self.handle(uid).map(|handle| handle.lifecycle());
        ask(CleanupPolicy {
            lifecycle: lifecycle.as_ref(),
            all_pods_known: self.all_known.load(Relaxed),
        })
    }

    /// Pods that hold resources of the node: wanted and not terminated.
    pub fn active_pods(&self) -> Vec<Arc<Pod>> {
        let desired = self.desired.read();
        let handles = self.handles.read();
        // Both are sorted by UID and merged in one pass: this runs for each new pod, and a lookup
        // per pod would take most of its admission.
        let mut handles = handles.iter().peekable();
        let of = |pod: &Arc<Pod>| {
            while handles.next_if(|(uid, _)| **uid < pod.uid).is_some() {}
            handles.next_if(|(uid, _)| **uid == pod.uid).map(|(_, handle)| handle)
        };
        let active = desired.pods().filter_map(of);
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
        self.pod(uid)?;
        let handle = self.handle(uid)?;
        (handle.stage() < Stage::Terminated).then(|| handle.pod())
    }

    /// Evaluates `ask` on the totals of [`Self::active_pods`]. Visits only the pods that changed
    /// since the last call.
    pub fn with_usage<T>(&self, ask: impl FnOnce(&ActiveUsage) -> T) -> T {
        let mut usage = self.usage.lock();
        // Taken before the pods are read: a later change is noted again.
        let unsynced = std::mem::take(&mut *self.unsynced.0.lock());
        for uid in unsynced {
            match self.active_pod(&uid) {
                Some(pod) => usage.set(&pod),
                None => usage.remove(&uid),
            }
        }
        ask(&usage)
    }

    /// Notes that a pod is or is no longer wanted. Without a handle it is not active either way.
    fn note_wanted(&self, uid: &PodUid) {
        if self.handles.read().contains_key(uid) {
            self.unsynced.note(uid);
        }
    }

    /// Whether another static pod of this name has not finished.
    pub fn other_static(&self, pod: &Pod) -> bool {
        self.handles.read().iter().any(|(uid, handle)| {
            let other = handle.pod();
            *uid != pod.uid
                && other.is_static()
                && other.name == pod.name
                && handle.stage() != Stage::Finished
        })
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
            self.changed.send_modify(|count| *count += 1);
        }
    }

    pub(super) fn set_api_synced(&self, heard: bool) {
        if self.api_synced.swap(heard, Relaxed) != heard {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn set_all_known(&self) {
        self.all_known.store(true, Relaxed);
    }

    pub(super) fn put(&self, pod: Arc<Pod>) {
        let uid = pod.uid.clone();
        self.desired.write().put(pod);
        self.note_wanted(&uid);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn remove(&self, pod: &Pod) {
        self.desired.write().remove(pod);
        self.note_wanted(&pod.uid);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn insert_handle(&self, uid: &PodUid, handle: Arc<PodHandle>) {
        handle.note_changes_in(self.unsynced.clone());
        self.handles.write().insert(uid.clone(), handle);
        self.unsynced.note(uid);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn remove_handle(&self, uid: &PodUid) {
        self.handles.write().remove(uid);
        self.unsynced.note(uid);
        // Now, so that pods that are gone do not accumulate.
        self.with_usage(|_| ());
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Listener for PodIndex {
    fn notify(&self, uid: &PodUid, _events: &[PodEvent]) {
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
                    (Step::Put, _) => index.put(first),
                    (Step::Remove, _) => index.remove(&first),
                    (Step::Insert, _) => {
                        let handle = PodHandle::new(first.clone(), Lifecycle::begin(&first, true));
                        index.insert_handle(&first.uid, handle);
                    }
                    (Step::Forget, _) => index.remove_handle(&first.uid),
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
