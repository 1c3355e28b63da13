//! Watch table: the watched objects, and the objects that each pod refers to.
//!
//! Both directions are kept, so that the end of a pod visits its own objects only.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use podwright_core::ids::PodUid;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::Key;
use super::watched::{WatchState, Watched};

#[derive(Default)]
pub(super) struct WatchTable {
    watched: HashMap<Key, Watched>,
    keys: HashMap<PodUid, HashSet<Key>>,
}

/// Result of releasing the objects of one pod.
#[derive(Default)]
pub(super) struct Released {
    /// Number of objects that were visited.
    pub visited: usize,
    /// Watches that nothing needs any more. Dropping one aborts its task, which may run the task's
    /// destructors, so the caller drops them without holding a lock.
    pub ended: Vec<AbortOnDropHandle<()>>,
}

impl WatchTable {
    /// The state of the object's watch, from now on shared by this pod.
    pub(super) fn follow(
        &mut self,
        key: Key,
        pod: &PodUid,
        begin: impl FnOnce(Key) -> Watched,
    ) -> Arc<watch::Sender<WatchState>> {
        self.keys.entry(pod.clone()).or_default().insert(key.clone());
        let watched = self.watched.entry(key.clone()).or_insert_with(|| begin(key));
        watched.pods.insert(pod.clone());
        watched.seen.clone()
    }

    /// Removes a pod from its objects.
    pub(super) fn release(&mut self, pod: &PodUid) -> Released {
        let mut released = Released::default();
        for key in self.keys.remove(pod).into_iter().flatten() {
            released.visited += 1;
            let Some(watched) = self.watched.get_mut(&key) else { continue };
            watched.pods.remove(pod);
            if watched.pods.is_empty() {
                released.ended.extend(watched.task.take());
                self.watched.remove(&key);
            }
        }
        released
    }

    /// The pods that refer to an object.
    pub(super) fn pods(&self, key: &Key) -> BTreeSet<PodUid> {
        self.watched.get(key).map(|watched| watched.pods.clone()).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.watched.len()
    }

    #[cfg(test)]
    pub(super) fn has_ended(&self, name: &str) -> bool {
        self.watched.iter().any(|(key, watched)| {
            &*key.name == name && watched.task.as_ref().is_some_and(|task| task.is_finished())
        })
    }
}

#[cfg(test)]
mod tests {
    use podwright_core::config::env::ObjectKind;

    use super::*;

    fn key(name: &str) -> Key {
        Key { kind: ObjectKind::ConfigMap, namespace: "ns".into(), name: name.into() }
    }

    #[test]
    fn end_of_a_pod_visits_its_own_objects_only() {
        for pods in [100, 10_000] {
            let mut table = WatchTable::default();
            let begin = |_| Watched { seen: Arc::default(), pods: BTreeSet::new(), task: None };
            for number in 0..pods {
                let uid = PodUid::new(format!("{number}"));
                for name in ["shared", &format!("own-{number}")] {
                    table.follow(key(name), &uid, begin);
                }
            }
            assert_eq!(table.len(), pods + 1);
            assert_eq!(table.release(&PodUid::new("7")).visited, 2, "among {pods} pods");
            assert_eq!(table.len(), pods, "its own object is no longer watched");
            assert_eq!(table.pods(&key("shared")).len(), pods - 1);
            assert_eq!(table.release(&PodUid::new("7")).visited, 0);
        }
    }
}
