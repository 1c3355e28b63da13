//! Wake-ups: which of the waiting readers a commit concerns.
//!
//! Each ConfigMap that a pod refers to has a watch of its own. If every commit woke every watch, the
//! status of one pod would cost a read of the log for each of them. So a reader waits for the
//! changes of one object or of one scope.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Key, Scope};
use crate::document::Revision;

#[derive(Debug, Default)]
pub(super) struct Wakeups(Mutex<HashMap<Box<str>, Vec<Weak<Waiting>>>>);

#[derive(Debug, Default)]
struct Waiting {
    unseen: Mutex<Option<Unseen>>,
    changed: Notify,
}

/// Changes that a reader has not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// None of them is before this revision.
    pub first: Revision,
    /// All of them are visible once this revision is.
    pub visible_at: Revision,
}

/// A reader that waits for the changes of one object or scope.
#[derive(Debug)]
pub struct Subscription {
    name: Box<str>,
    waiting: Arc<Waiting>,
    wakeups: Arc<Wakeups>,
}

impl Wakeups {
    pub(super) fn subscribe_to_key(self: &Arc<Self>, key: &Key) -> Subscription {
        self.subscribe(key.as_str())
    }

    pub(super) fn subscribe_to_scope(self: &Arc<Self>, scope: &Scope) -> Subscription {
        self.subscribe(scope.prefix())
    }

    fn subscribe(self: &Arc<Self>, name: &str) -> Subscription {
        let (name, waiting) = (Box::from(name), Arc::<Waiting>::default());
        self.0.lock().entry(Box::clone(&name)).or_default().push(Arc::downgrade(&waiting));
        Subscription { name, waiting, wakeups: self.clone() }
    }

    /// Marks and wakes the readers of these keys. Called before the events become visible at
    /// revisions from `first` on. Returns the number of readers that it visited.
    pub(super) fn mark<'a>(&self, keys: impl Iterator<Item = &'a Key>, first: Revision) -> usize {
        let readers = self.0.lock();
        if readers.is_empty() {
            return 0;
        }
        let mut names = BTreeSet::new();
        for key in keys {
            let key = key.as_str();
            // `pods/`, `pods/default/` and the key itself.
            names.extend(key.match_indices('/').filter_map(|(at, _)| key.get(..=at)));
            names.insert(key);
        }
        let mut visited = 0;
        for waiting in names.into_iter().filter_map(|name| readers.get(name)).flatten() {
            visited += 1;
            if let Some(waiting) = waiting.upgrade() {
                let mut unseen = waiting.unseen.lock();
                // An earlier mark was not taken yet.
                let earliest = unseen.map_or(first, |unseen| unseen.first);
                *unseen = Some(Unseen { first: earliest, visible_at: first });
                drop(unseen);
                waiting.changed.notify_one();
            }
        }
        visited
    }
}

impl Subscription {
    /// `None`: there are no changes up to any revision that was visible before this call.
    pub fn take_unseen(&self) -> Option<Unseen> {
        self.waiting.unseen.lock().take()
    }

    /// Whether there are changes that were not taken yet.
    pub fn has_unseen(&self) -> bool {
        self.waiting.unseen.lock().is_some()
    }

    /// Waits for a change. Cancel-safe: a change that is not returned stays marked.
    pub async fn changed(&self) {
        while !self.has_unseen() {
            self.waiting.changed.notified().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut readers = self.wakeups.0.lock();
        if let Some(same) = readers.get_mut(&self.name) {
            same.retain(|waiting| !std::ptr::eq(waiting.as_ptr(), Arc::as_ptr(&self.waiting)));
            if same.is_empty() {
                readers.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::registry::{CONFIG_MAPS, PODS};

    #[test]
    fn commit_visits_only_the_readers_that_it_concerns() {
        for count in [100, 10_000] {
            let wakeups = Arc::<Wakeups>::default();
            let key = |number: usize| Key::new(&CONFIG_MAPS, "ns", &format!("m{number}"));
            let mut readers: Vec<Subscription> =
                (0..count).map(|number| wakeups.subscribe_to_key(&key(number))).collect();
            let scopes = [(&PODS, None), (&PODS, Some("ns")), (&PODS, Some("other"))];
            let pods = scopes.map(|(resource, namespace)| {
                wakeups.subscribe_to_scope(&Scope::new(resource, namespace))
            });
            let pod = Key::new(&PODS, "ns", "web");
            assert_eq!(wakeups.mark([&pod].into_iter(), 5), 2, "a pod among {count} watches");
            assert_eq!(wakeups.mark([&pod, &key(7)].into_iter(), 6), 3);
            let seen = |first, visible_at| Some(Unseen { first, visible_at });
            let taken = pods.each_ref().map(Subscription::take_unseen);
            assert_eq!(taken, [seen(5, 6), seen(5, 6), None]);
            assert_eq!(pods.each_ref().map(Subscription::take_unseen), [None; 3]);
            let unseen = readers.iter().filter(|reader| reader.has_unseen()).count();
            assert_eq!((unseen, readers[7].take_unseen()), (1, seen(6, 6)));

            drop(pods);
            readers.truncate(1);
            assert_eq!(wakeups.mark([&pod, &key(7)].into_iter(), 7), 0);
            assert_eq!(wakeups.0.lock().len(), 1, "readers that left are forgotten");
        }
    }
}
