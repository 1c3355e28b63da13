//! Pod handle: the shared state of one pod.
//!
//! Every change to a pod is merged into its handle, which wakes the pod worker. Nothing is queued:
//! a hundred updates while the worker is busy are one update when it reads the handle again.
//! Requests to end the pod are merged by its [`Lifecycle`] and never overwritten.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use podwright_core::attempts::Attempts;
use podwright_core::ids::ContainerId;
use podwright_core::lifecycle::{Change, Lifecycle, Request, Stage};
use podwright_core::pod::{Pod, ProbeKind};
use podwright_core::probe::answers::ProbeAnswers;
use podwright_core::probe::{ProbeVerdict, ProbeVerdicts};
use tokio::sync::watch;

use crate::pods::journal::Journal;
use crate::pods::pod_index::PodChanges;

/// The newest spec and the lifecycle of the pod.
#[derive(Clone, Debug)]
pub struct Desired {
    pub pod: Arc<Pod>,
    pub lifecycle: Lifecycle,
    /// Increased by each newer spec.
    pub updates: u64,
    /// Increased by each change outside the pod that may let a failed step succeed.
    pub retry: u64,
}

#[derive(Debug)]
pub struct PodHandle {
    desired: watch::Sender<Desired>,
    /// Set once the pod is in the pod index, which has to learn of changes of `desired`.
    changes: OnceLock<Arc<PodChanges>>,
    probed: watch::Sender<ProbeVerdicts>,
    /// Increased whenever the pod must be inspected again.
    notified: watch::Sender<u64>,
    pub journal: Mutex<Journal>,
    /// Failed attempts. Written only by the worker; also read by the debug socket.
    pub attempts: Mutex<Attempts>,
    /// Written by the prober, read by the debug socket.
    pub answers: Mutex<ProbeAnswers>,
}

impl PodHandle {
    pub fn new(pod: Arc<Pod>, lifecycle: Lifecycle) -> Arc<Self> {
        Arc::new(Self {
            desired: watch::Sender::new(Desired { pod, lifecycle, updates: 0, retry: 0 }),
            changes: OnceLock::new(),
            probed: watch::Sender::new(ProbeVerdicts::default()),
            notified: watch::Sender::new(0),
            journal: Mutex::default(),
            attempts: Mutex::default(),
            answers: Mutex::default(),
        })
    }

    pub fn desired(&self) -> watch::Receiver<Desired> {
        self.desired.subscribe()
    }

    pub fn probed(&self) -> watch::Receiver<ProbeVerdicts> {
        self.probed.subscribe()
    }

    pub fn notified(&self) -> watch::Receiver<u64> {
        self.notified.subscribe()
    }

    pub fn pod(&self) -> Arc<Pod> {
        count_read();
        self.desired.borrow().pod.clone()
    }

    pub fn lifecycle(&self) -> Lifecycle {
        count_read();
        self.desired.borrow().lifecycle.clone()
    }

    pub fn stage(&self) -> Stage {
        count_read();
        self.desired.borrow().lifecycle.stage()
    }

    /// Notes each change of the spec or of the stage there from now on.
    pub(super) fn note_changes_in(&self, changes: Arc<PodChanges>) {
        // A handle is inserted into one index only, so the first one is kept.
        let _ = self.changes.set(changes);
    }

    /// Called after a change, never during one: the index reads the handle.
    fn note_change(&self) {
        if let Some(changes) = self.changes.get() {
            changes.note(&self.desired.borrow().pod.uid);
        }
    }

    /// Changes the lifecycle, and notes it if the stage changed.
    fn change_lifecycle<T>(&self, change: impl FnOnce(&mut Lifecycle, &Pod) -> T) -> Option<T> {
        let (mut result, mut moved) = (None, false);
        self.desired.send_modify(|desired| {
            let before = desired.lifecycle.stage();
            result = Some(change(&mut desired.lifecycle, &desired.pod));
            moved = desired.lifecycle.stage() != before;
        });
        if moved {
            self.note_change();
        }
        result
    }

    /// Merges a newer spec and a request.
    pub fn update(&self, pod: Arc<Pod>, request: Request) -> Change {
        let mut change = Change::Nothing;
        self.desired.send_modify(|desired| {
            change = desired.lifecycle.request(request, &pod);
            desired.pod = pod;
            desired.updates += 1;
        });
        self.note_change();
        change
    }

    /// Replaces the object without waking the worker.
    pub fn refresh(&self, pod: Arc<Pod>) {
        self.desired.send_if_modified(|desired| {
            desired.pod = pod;
            false
        });
        self.note_change();
    }

    pub fn request(&self, request: Request) -> Change {
        let requested = self.change_lifecycle(|lifecycle, pod| lifecycle.request(request, pod));
        requested.unwrap_or(Change::Nothing)
    }

    /// Advances the lifecycle. Called only by the worker and by housekeeping.
    pub fn advance(&self, step: impl FnOnce(&mut Lifecycle)) {
        self.change_lifecycle(|lifecycle, _| step(lifecycle));
    }

    /// Wakes the worker because something the pod waits for may be available.
    pub fn retry(&self) {
        self.desired.send_modify(|desired| desired.retry += 1);
    }

    /// Wakes the worker to inspect the pod again.
    pub fn notify(&self) {
        self.notified.send_modify(|count| *count += 1);
    }

    /// Records a probe result; returns whether it changed.
    pub fn probe(&self, instance: &ContainerId, kind: ProbeKind, verdict: ProbeVerdict) -> bool {
        self.probed.send_if_modified(|probed| probed.set(instance, kind, verdict))
    }

    pub fn forget_probes(&self, keep: impl Fn(&ContainerId) -> bool) {
        self.probed.send_if_modified(|probed| {
            probed.retain(keep);
            false
        });
    }
}

#[cfg(test)]
thread_local! {
    /// How often a handle was read.
    pub(super) static READS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts in tests, which show how many pods an operation visits.
fn count_read() {
    #[cfg(test)]
    READS.set(READS.get() + 1);
}
