//! Pod changes: which pods changed, for readers whose work must not grow with the number of pods.
//!
//! A reader that learns only that something changed has to visit all pods. So each one has a set of
//! the pods that changed since it last looked.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use podwright_core::ids::PodUid;
use tokio::sync::Notify;

/// Pods that changed since their one reader last took them.
#[derive(Debug, Default)]
pub(crate) struct ChangedPods {
    pods: Mutex<BTreeSet<PodUid>>,
    any: Notify,
}

impl ChangedPods {
    /// Each change is made first and noted here afterwards.
    pub(crate) fn note(&self, pods: impl IntoIterator<Item = PodUid>) {
        self.pods.lock().extend(pods);
        self.any.notify_one();
    }

    pub(crate) fn forget(&self, uid: &PodUid) {
        self.pods.lock().remove(uid);
    }

    /// The pods noted so far, without waiting.
    pub(crate) fn take(&self) -> BTreeSet<PodUid> {
        std::mem::take(&mut *self.pods.lock())
    }

    /// Waits for changed pods. Cancel-safe: unreturned pods stay noted.
    pub(crate) async fn next(&self) -> BTreeSet<PodUid> {
        loop {
            let pods = self.take();
            if !pods.is_empty() {
                return pods;
            }
            self.any.notified().await;
        }
    }
}

/// Passes each change on to all readers.
#[derive(Debug, Default)]
pub(crate) struct ChangeReaders(Mutex<Vec<Weak<ChangedPods>>>);

impl ChangeReaders {
    /// The changes from now on.
    pub(crate) fn subscribe(&self) -> Arc<ChangedPods> {
        let changed = Arc::new(ChangedPods::default());
        let mut readers = self.0.lock();
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(&changed));
        changed
    }

    pub(crate) fn note(&self, uid: &PodUid) {
        for reader in self.0.lock().iter().filter_map(Weak::upgrade) {
            reader.note([uid.clone()]);
        }
    }
}
