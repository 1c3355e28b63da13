//! The pod of each runtime ID, for events that name only the ID.
//!
//! IDs come from inspections and from relists. Only the few whose end is possible are checked after
//! a relist; the others stay as they are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use podwright_core::ids::PodUid;
use podwright_core::observed::{ObservedPod, PodChange, PodEvent, RuntimeListing};
use podwright_core::time::Mono;

#[derive(Debug, Default)]
pub(super) struct Owners {
    /// With the time of the last inspection or relist that showed a new ID.
    by_id: HashMap<Arc<str>, (PodUid, Mono)>,
    /// IDs that the last relist did not show, or no longer.
    unlisted: HashSet<Arc<str>>,
}

impl Owners {
    pub(super) fn get(&self, id: &str) -> Option<&PodUid> {
        self.by_id.get(id).map(|(uid, _)| uid)
    }

    pub(super) fn note(&mut self, observed: &ObservedPod) {
        let ids = observed.sandboxes.iter().map(|s| s.id.as_str());
        for id in ids.chain(observed.instances.iter().map(|i| i.id.as_str())) {
            match self.by_id.get_mut(id) {
                Some((_, noted)) => *noted = observed.as_of,
                None => {
                    let id: Arc<str> = id.into();
                    self.by_id.insert(id.clone(), (observed.uid.clone(), observed.as_of));
                    self.unlisted.insert(id);
                }
            }
        }
    }

    /// Checks these IDs after the next relist: their listing was replaced.
    pub(super) fn recheck<'a>(&mut self, ids: impl Iterator<Item = &'a Arc<str>>) {
        self.unlisted.extend(ids.cloned());
    }

    /// Follows a relist that began at `began`. An ID that was observed after that is kept: it may
    /// have been created while the list was made. Returns the number of IDs that were visited.
    pub(super) fn follow_relist(
        &mut self,
        changes: &[PodChange],
        listing: &RuntimeListing,
        began: Mono,
    ) -> usize {
        let mut visited = 0;
        for PodChange { uid, events } in changes {
            for id in listing.get(uid).into_iter().flat_map(|listed| listed.ids()) {
                visited += 1;
                if !self.by_id.contains_key(id) {
                    self.by_id.insert(id.clone(), (uid.clone(), began));
                }
            }
            self.unlisted.extend(events.iter().filter_map(|event| match event {
                PodEvent::ContainerRemoved(id) => Some(id.clone()),
                PodEvent::ContainerStarted(_)
                | PodEvent::ContainerDied(_)
                | PodEvent::ContainerChanged(_) => None,
            }));
        }
        visited += self.unlisted.len();
        let by_id = &mut self.by_id;
        self.unlisted.retain(|id| {
            let Some((uid, noted)) = by_id.get(id) else { return false };
            if listing.get(uid).is_some_and(|listed| listed.state(id).is_some()) {
                return false;
            }
            if *noted >= began {
                return true;
            }
            by_id.remove(id);
            false
        });
        visited
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podwright_core::builders;
    use podwright_core::observed::{ItemKind, ListedItem, ListedState};

    use super::*;

    fn at(second: u64) -> Mono {
        Mono(Duration::from_secs(second))
    }

    fn item(id: &str) -> ListedItem<'_> {
        ListedItem {
            pod: id,
            namespace: "ns",
            name: id,
            kind: ItemKind::Sandbox,
            id,
            state: ListedState::Running,
        }
    }

    #[test]
    fn relist_begun_before_a_sandbox_was_created_keeps_its_owner() {
        let job = builders::pod("job").container("app").build();
        let observed = builders::observed(&job).sandbox("made", 0, true).build();
        let (mut owners, nothing) = (Owners::default(), RuntimeListing::default());
        owners.note(&ObservedPod { as_of: at(2), ..observed });
        owners.follow_relist(&[], &nothing, at(1));
        assert_eq!(owners.get("made"), Some(&job.uid), "the list is older than the sandbox");
        owners.follow_relist(&[], &nothing, at(3));
        assert_eq!(owners.get("made"), None, "it is gone");
        assert!(owners.by_id.is_empty() && owners.unlisted.is_empty());
    }

    #[test]
    fn relist_visits_only_what_changed() {
        for count in [100, 10_000] {
            let names: Vec<String> = (0..count).map(|number| format!("{number}")).collect();
            let items = || names.iter().map(|name| item(name)).collect::<Vec<_>>();
            let (mut owners, mut listing) = (Owners::default(), RuntimeListing::default());
            let changes = listing.merge(items());
            assert_eq!(owners.follow_relist(&changes, &listing, at(1)), count);
            let changes = listing.merge(items());
            assert_eq!(owners.follow_relist(&changes, &listing, at(2)), 0, "nothing changed");
            let changes = listing.merge(items().split_off(1));
            assert_eq!(owners.follow_relist(&changes, &listing, at(3)), 1, "one is gone");
            assert_eq!((owners.get("0"), owners.get("1")), (None, Some(&PodUid::new("1"))));
            assert_eq!(owners.by_id.len(), count - 1);
        }
    }

    #[test]
    fn id_that_a_replaced_listing_dropped_is_forgotten_after_the_next_relist() {
        let (mut owners, mut listing) = (Owners::default(), RuntimeListing::default());
        let changes = listing.merge(vec![item("a")]);
        owners.follow_relist(&changes, &listing, at(1));
        let uid = PodUid::new("a");
        owners.recheck(listing.get(&uid).unwrap().ids());
        listing.replace(&uid, Default::default());
        let changes = listing.merge(Vec::new());
        owners.follow_relist(&changes, &listing, at(2));
        assert_eq!(owners.get("a"), None);
    }
}
