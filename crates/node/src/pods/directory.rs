//! Who is who: the one place where the rest of the node looks pods up.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::{Stage, Standing};
use podwright_core::observed::PodEvent;
use podwright_core::pod::Pod;
use podwright_core::pod::mirror::Static;
use podwright_core::pod::registry::{ApiUid, Mirror, Registry};
use podwright_core::time::Mono;
use tokio::sync::watch;

use crate::cell::PodCell;
use crate::pleg::Listener;

/// Changes come in bursts: whoever looks at all pods after one waits this long for the others.
pub const BURST: Duration = Duration::from_millis(100);

#[derive(Default)]
pub struct Directory {
    registry: RwLock<Registry>,
    cells: RwLock<BTreeMap<PodUid, Arc<PodCell>>>,
    sources_ready: AtomicBool,
    api_heard: AtomicBool,
    /// Grows with every change of pods, mirrors and lives.
    changed: watch::Sender<u64>,
    /// When pods were last looked after.
    turned: Mutex<Option<Mono>>,
    /// Every wanted pod has a worker: what has none is not wanted.
    all_known: AtomicBool,
    /// All pods are to stop, because the node is being stopped. It is never taken back: an agent
    /// that is to run pods again is started again.
    stopping: watch::Sender<bool>,
}

impl Directory {
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.registry.read().by_uid(uid).cloned()
    }

    pub fn pod_by_name(&self, name: &PodName) -> Option<Arc<Pod>> {
        self.registry.read().by_name(name).cloned()
    }

    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.registry.read().pods().cloned().collect()
    }

    /// The pod that a UID from outside means, be it a mirror's.
    pub fn resolve(&self, uid: &str) -> Option<Arc<Pod>> {
        self.registry.read().resolve(uid).cloned()
    }

    /// The UID under which the API knows a pod.
    pub fn api_uid(&self, uid: &PodUid) -> Option<ApiUid> {
        self.registry.read().api_uid(uid)
    }

    pub fn mirror_of(&self, pod: &Pod) -> Option<Mirror> {
        self.registry.read().mirror_of(pod).cloned()
    }

    pub fn behind(&self, mirror: &Pod) -> Option<Arc<Pod>> {
        self.registry.read().behind(mirror).cloned()
    }

    pub fn mirrors(&self) -> Vec<Mirror> {
        self.registry.read().mirrors().cloned().collect()
    }

    /// Static pods that have not ended though nobody wants them any more, and those that are
    /// wanted, unless one of the first kind has their name: they wait for it.
    pub fn static_pods(&self) -> Vec<Static> {
        let registry = self.registry.read();
        let cells = self.cells.read();
        let alive = cells.values().filter(|cell| cell.stage() < Stage::Terminated);
        let ending = alive
            .map(|cell| cell.pod())
            .filter(|pod| pod.is_static() && !registry.pods().any(|wanted| wanted.uid == pod.uid));
        let mut pods: Vec<Static> = ending.map(|pod| Static { pod, ending: true }).collect();
        let wanted = registry.pods().filter(|pod| pod.is_static());
        let free: Vec<Static> = wanted
            .filter(|pod| !pods.iter().any(|other| other.pod.name == pod.name))
            .map(|pod| Static { pod: pod.clone(), ending: false })
            .collect();
        pods.extend(free);
        pods
    }

    /// Told of every change of pods, mirrors and lives.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub fn cell(&self, uid: &PodUid) -> Option<Arc<PodCell>> {
        self.cells.read().get(uid).cloned()
    }

    pub fn cells(&self) -> Vec<(PodUid, Arc<PodCell>)> {
        self.cells.read().iter().map(|(uid, cell)| (uid.clone(), cell.clone())).collect()
    }

    /// Asks a question about a pod's standing.
    pub fn standing<T>(&self, uid: &PodUid, ask: impl FnOnce(Standing<'_>) -> T) -> T {
        let life = self.cell(uid).map(|cell| cell.life());
        ask(Standing { life: life.as_ref(), all_pods_known: self.all_known.load(Relaxed) })
    }

    /// Pods that hold resources of the node: wanted and not known to be over.
    pub fn active_pods(&self) -> Vec<Arc<Pod>> {
        let registry = self.registry.read();
        let cells = self.cells.read();
        // Both are in the order of their UIDs. They are gone through side by side: this is asked for
        // each new pod, and looking each of the others up would take most of its admission.
        let mut cells = cells.iter().peekable();
        let of = |pod: &Arc<Pod>| {
            while cells.next_if(|(uid, _)| **uid < pod.uid).is_some() {}
            cells.next_if(|(uid, _)| **uid == pod.uid).map(|(_, cell)| cell)
        };
        let active = registry.pods().filter_map(of);
        active.filter(|cell| cell.stage() < Stage::Terminated).map(|cell| cell.pod()).collect()
    }

    /// Whether another static pod of this name still lives.
    pub fn other_static(&self, pod: &Pod) -> bool {
        self.cells.read().iter().any(|(uid, cell)| {
            let other = cell.pod();
            *uid != pod.uid
                && other.is_static()
                && other.name == pod.name
                && cell.stage() != Stage::Finished
        })
    }

    /// Every source told its whole set.
    pub fn sources_ready(&self) -> bool {
        self.sources_ready.load(Relaxed)
    }

    /// The API server did, whatever the others.
    pub fn api_heard(&self) -> bool {
        self.api_heard.load(Relaxed)
    }

    /// When the task that looks after all pods last came round; `None`: not yet.
    pub fn last_turn(&self) -> Option<Mono> {
        *self.turned.lock()
    }

    /// Asks for all pods to stop. Nothing is started from then on.
    pub fn stop_pods(&self) {
        self.stopping.send_if_modified(|stopping| !std::mem::replace(stopping, true));
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    pub(super) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    pub(super) fn turned(&self, now: Mono) {
        *self.turned.lock() = Some(now);
    }

    pub(crate) fn set_sources_ready(&self, ready: bool) {
        if self.sources_ready.swap(ready, Relaxed) != ready {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    pub(super) fn set_api_heard(&self, heard: bool) {
        if self.api_heard.swap(heard, Relaxed) != heard {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    pub(crate) fn set_all_known(&self) {
        self.all_known.store(true, Relaxed);
    }

    pub(super) fn put(&self, pod: Arc<Pod>) {
        self.registry.write().put(pod);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn remove(&self, pod: &Pod) {
        self.registry.write().remove(pod);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn put_cell(&self, uid: PodUid, cell: Arc<PodCell>) {
        self.cells.write().insert(uid, cell);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn drop_cell(&self, uid: &PodUid) {
        self.cells.write().remove(uid);
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Listener for Directory {
    fn poke(&self, uid: &PodUid, _events: &[PodEvent]) {
        if let Some(cell) = self.cell(uid) {
            cell.poke();
        }
    }
}
