//! What is wanted of one pod, in one place.
//!
//! Whoever wants something of a pod folds it into its cell; the pod's worker wakes and decides.
//! Nothing queues: a hundred updates while the worker is busy are one update when it looks again,
//! and requests to end the pod are merged by its [`Lifecycle`], never overwritten.

use std::sync::Arc;

use parking_lot::Mutex;
use podwright_core::attempts::Attempts;
use podwright_core::ids::ContainerId;
use podwright_core::lifecycle::{Change, Lifecycle, Request, Stage};
use podwright_core::pod::{Pod, ProbeKind};
use podwright_core::probe::{Probed, Verdict};
use tokio::sync::watch;

use crate::journal::Journal;

/// The newest spec and the life it is at.
#[derive(Clone, Debug)]
pub struct Desired {
    pub pod: Arc<Pod>,
    pub life: Lifecycle,
    /// Grows with each change outside the pod that may let a failed step succeed.
    pub retry: u64,
}

#[derive(Debug)]
pub struct PodCell {
    desired: watch::Sender<Desired>,
    probed: watch::Sender<Probed>,
    /// Grows whenever the runtime should be asked again about this pod.
    poked: watch::Sender<u64>,
    pub journal: Mutex<Journal>,
    /// What was tried and failed. Only the worker writes; whoever asks why may read.
    pub attempts: Mutex<Attempts>,
}

impl PodCell {
    pub fn new(pod: Arc<Pod>, life: Lifecycle) -> Arc<Self> {
        Arc::new(Self {
            desired: watch::Sender::new(Desired { pod, life, retry: 0 }),
            probed: watch::Sender::new(Probed::default()),
            poked: watch::Sender::new(0),
            journal: Mutex::default(),
            attempts: Mutex::default(),
        })
    }

    pub fn desired(&self) -> watch::Receiver<Desired> {
        self.desired.subscribe()
    }

    pub fn probed(&self) -> watch::Receiver<Probed> {
        self.probed.subscribe()
    }

    pub fn poked(&self) -> watch::Receiver<u64> {
        self.poked.subscribe()
    }

    pub fn pod(&self) -> Arc<Pod> {
        self.desired.borrow().pod.clone()
    }

    pub fn life(&self) -> Lifecycle {
        self.desired.borrow().life.clone()
    }

    pub fn stage(&self) -> Stage {
        self.desired.borrow().life.stage()
    }

    /// Folds in a newer spec together with what is asked of it.
    pub fn update(&self, pod: Arc<Pod>, request: Request) -> Change {
        let mut change = Change::Nothing;
        self.desired.send_modify(|desired| {
            change = desired.life.request(request, &pod);
            desired.pod = pod;
        });
        change
    }

    /// Takes a newer object in without asking anything of the pod.
    pub fn refresh(&self, pod: Arc<Pod>) {
        self.desired.send_if_modified(|desired| {
            desired.pod = pod;
            false
        });
    }

    pub fn request(&self, request: Request) -> Change {
        let mut change = Change::Nothing;
        self.desired.send_modify(|desired| {
            let pod = desired.pod.clone();
            change = desired.life.request(request, &pod);
        });
        change
    }

    /// Moves the pod along in its life; only its worker and housekeeping do this.
    pub fn advance(&self, step: impl FnOnce(&mut Lifecycle)) {
        self.desired.send_modify(|desired| step(&mut desired.life));
    }

    /// Something the pod waited for may be there now.
    pub fn retry(&self) {
        self.desired.send_modify(|desired| desired.retry += 1);
    }

    /// The runtime has news about this pod.
    pub fn poke(&self) {
        self.poked.send_modify(|count| *count += 1);
    }

    /// Returns whether the verdict is new.
    pub fn probe(&self, instance: &ContainerId, kind: ProbeKind, verdict: Verdict) -> bool {
        self.probed.send_if_modified(|probed| probed.set(instance, kind, verdict))
    }

    pub fn forget_probes(&self, keep: impl Fn(&ContainerId) -> bool) {
        self.probed.send_if_modified(|probed| {
            probed.retain(keep);
            false
        });
    }
}
