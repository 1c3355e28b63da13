//! Listing of the runtime: the short form of all its pods, as the last relist showed them.
//!
//! A new list is merged into it: on an idle node all pods are as before, and only what differs is
//! built again.

use std::collections::BTreeMap;

use super::{ListedState, PodEvent, PodListing, diff};
use crate::ids::{PodName, PodUid};

/// A sandbox or container in a list of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedItem<'a> {
    /// UID of its pod.
    pub pod: &'a str,
    pub namespace: &'a str,
    /// Name of its pod.
    pub name: &'a str,
    pub kind: ItemKind,
    pub id: &'a str,
    pub state: ListedState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ItemKind {
    Sandbox,
    Container,
}

/// A pod that differs from the list before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodChange {
    pub uid: PodUid,
    pub events: Vec<PodEvent>,
}

/// Numbers of pods and containers by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListingTotals {
    /// Pods of which a sandbox or container runs.
    pub running_pods: usize,
    pub created: usize,
    pub running: usize,
    pub exited: usize,
    pub unknown: usize,
    pub dead_sandboxes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeListing {
    pods: BTreeMap<PodUid, (PodName, PodListing)>,
    totals: ListingTotals,
}

impl RuntimeListing {
    pub fn get(&self, uid: &PodUid) -> Option<&PodListing> {
        self.pods.get(uid).map(|(_, listing)| listing)
    }

    pub fn name(&self, uid: &PodUid) -> Option<&PodName> {
        self.pods.get(uid).map(|(name, _)| name)
    }

    pub fn pods(&self) -> impl Iterator<Item = (&PodUid, &PodName, &PodListing)> {
        self.pods.iter().map(|(uid, (name, listing))| (uid, name, listing))
    }

    pub fn totals(&self) -> ListingTotals {
        self.totals
    }

    /// Replaces the listing of a pod that is in the list.
    pub fn replace(&mut self, uid: &PodUid, listing: PodListing) {
        if let Some((_, known)) = self.pods.get_mut(uid) {
            self.totals.subtract(known);
            self.totals.add(&listing);
            *known = listing;
        }
    }

    /// Replaces everything by a new list; returns the pods that changed.
    pub fn merge(&mut self, mut items: Vec<ListedItem<'_>>) -> Vec<PodChange> {
        items.sort_unstable_by_key(|item| (item.pod, item.kind, item.id));
        let mut listed = items.chunk_by(|one, other| one.pod == other.pod).peekable();
        let (mut different, mut gone) = (Vec::new(), Vec::new());
        // Both are in the order of UIDs, so one pass finds the differences.
        for (uid, (_, known)) in &self.pods {
            while let Some(new) = listed.next_if(|pod| uid_of(pod) < uid.as_str()) {
                different.push(new);
            }
            match listed.next_if(|pod| uid_of(pod) == uid.as_str()) {
                Some(pod) if is_shown(known, pod) => {}
                Some(pod) => different.push(pod),
                None => gone.push(uid.clone()),
            }
        }
        different.extend(listed);
        let mut changes = Vec::new();
        for pod in different {
            changes.extend(self.set(pod));
        }
        for uid in gone {
            if let Some((_, known)) = self.pods.remove(&uid) {
                self.totals.subtract(&known);
                changes.push(PodChange { events: diff(&known, &PodListing::default()), uid });
            }
        }
        changes
    }

    /// Replaces one pod by these items.
    fn set(&mut self, items: &[ListedItem<'_>]) -> Option<PodChange> {
        let first = items.first()?;
        let of = |kind| {
            let items = items.iter().filter(move |item| item.kind == kind);
            items.map(|item| (item.id.into(), item.state)).collect()
        };
        let listing =
            PodListing { sandboxes: of(ItemKind::Sandbox), containers: of(ItemKind::Container) };
        self.totals.add(&listing);
        let (uid, events) = match self.pods.get_mut(first.pod) {
            Some((_, known)) => {
                self.totals.subtract(known);
                let events = diff(known, &listing);
                *known = listing;
                (PodUid::new(first.pod), events)
            }
            None => {
                let uid = PodUid::new(first.pod);
                let events = diff(&PodListing::default(), &listing);
                let name = PodName::new(first.namespace, first.name);
                self.pods.insert(uid.clone(), (name, listing));
                (uid, events)
            }
        };
        (!events.is_empty()).then_some(PodChange { uid, events })
    }
}

fn uid_of<'a>(items: &[ListedItem<'a>]) -> &'a str {
    items.first().map_or("", |item| item.pod)
}

/// Whether these items, in the order of their ids, are the same as the listing.
fn is_shown(listing: &PodListing, items: &[ListedItem<'_>]) -> bool {
    let same = |known: &BTreeMap<std::sync::Arc<str>, ListedState>, kind| {
        let items = items.iter().filter(|item| item.kind == kind);
        known.iter().map(|(id, state)| (&**id, *state)).eq(items.map(|item| (item.id, item.state)))
    };
    same(&listing.sandboxes, ItemKind::Sandbox) && same(&listing.containers, ItemKind::Container)
}

impl ListingTotals {
    /// Whether there are sandboxes or containers that do not run.
    pub fn has_dead(&self) -> bool {
        self.created + self.exited + self.unknown + self.dead_sandboxes > 0
    }

    fn add(&mut self, listing: &PodListing) {
        self.count(listing, |total| *total += 1);
    }

    fn subtract(&mut self, listing: &PodListing) {
        self.count(listing, |total| *total = total.saturating_sub(1));
    }

    fn count(&mut self, listing: &PodListing, change: impl Fn(&mut usize)) {
        if listing.is_alive() {
            change(&mut self.running_pods);
        }
        for state in listing.containers.values() {
            change(match state {
                ListedState::Created => &mut self.created,
                ListedState::Running => &mut self.running,
                ListedState::Exited => &mut self.exited,
                ListedState::Unknown => &mut self.unknown,
            });
        }
        for _ in listing.sandboxes.values().filter(|state| **state != ListedState::Running) {
            change(&mut self.dead_sandboxes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

    const KINDS: [ItemKind; 2] = [ItemKind::Sandbox, ItemKind::Container];
    const STATES: [ListedState; 4] =
        [ListedState::Created, ListedState::Running, ListedState::Exited, ListedState::Unknown];

    fn item() -> impl Strategy<Value = ListedItem<'static>> {
        let name = || prop::sample::select(NAMES.to_vec());
        let kind = prop::sample::select(KINDS.to_vec());
        let state = prop::sample::select(STATES.to_vec());
        (name(), name(), kind, state).prop_map(|(pod, id, kind, state)| ListedItem {
            pod,
            namespace: "ns",
            name: pod,
            kind,
            id,
            state,
        })
    }

    /// Items with an id of their own.
    fn list() -> impl Strategy<Value = Vec<ListedItem<'static>>> {
        prop::collection::vec(item(), 0..20).prop_map(|mut items| {
            items.sort_by_key(|item| (item.pod, item.kind, item.id));
            items.dedup_by_key(|item| (item.pod, item.kind, item.id));
            items
        })
    }

    proptest! {
        #[test]
        fn merged_list_is_the_new_list_and_its_changes_are_the_differences(
            before in list(), after in list(),
        ) {
            let (mut merged, mut fresh) = (RuntimeListing::default(), RuntimeListing::default());
            merged.merge(before);
            let old = merged.clone();
            let changes = merged.merge(after.clone());
            fresh.merge(after);
            prop_assert_eq!(&merged, &fresh, "totals included");
            let none = PodListing::default();
            for uid in NAMES.map(PodUid::new) {
                let events = diff(
                    old.get(&uid).unwrap_or(&none),
                    merged.get(&uid).unwrap_or(&none),
                );
                let found = changes.iter().find(|change| change.uid == uid);
                prop_assert_eq!(found.map_or(&[][..], |change| change.events.as_slice()), &events[..]);
            }
        }
    }

    #[test]
    fn only_pods_that_differ_are_built_again() {
        let pods = 10_000;
        let names: Vec<String> = (0..pods).map(|number| format!("{number}")).collect();
        let items = |state: ListedState| -> Vec<ListedItem<'_>> {
            let item = |name| ListedItem {
                pod: name,
                namespace: "ns",
                name,
                kind: ItemKind::Sandbox,
                id: name,
                state: if name == "77" { state } else { ListedState::Running },
            };
            names.iter().map(String::as_str).map(item).collect()
        };
        let mut listing = RuntimeListing::default();
        assert_eq!(listing.merge(items(ListedState::Running)).len(), pods);
        let id = |listing: &RuntimeListing, pod| {
            let pod = listing.get(&PodUid::new(pod)).unwrap();
            pod.sandboxes.first_key_value().unwrap().0.as_ptr()
        };
        let before = (id(&listing, "76"), id(&listing, "77"));
        assert_eq!(listing.merge(items(ListedState::Running)), []);
        assert_eq!((id(&listing, "76"), id(&listing, "77")), before, "the same list");
        let changes = listing.merge(items(ListedState::Exited));
        assert_eq!(changes.len(), 1);
        assert_eq!(id(&listing, "76"), before.0, "unchanged pods keep what they have");
        assert_eq!(listing.totals().running_pods, pods - 1);
        assert!(listing.totals().has_dead());
    }

    #[test]
    fn replaced_pod_counts_as_its_new_listing() {
        let mut listing = RuntimeListing::default();
        let item = ListedItem {
            pod: "p",
            namespace: "ns",
            name: "p",
            kind: ItemKind::Container,
            id: "c",
            state: ListedState::Running,
        };
        listing.merge(vec![item]);
        let ended = PodListing {
            containers: [("c".into(), ListedState::Exited)].into(),
            ..PodListing::default()
        };
        listing.replace(&PodUid::new("p"), ended.clone());
        listing.replace(&PodUid::new("unknown"), ended);
        let totals = ListingTotals { exited: 1, ..ListingTotals::default() };
        assert_eq!((listing.totals(), listing.pods().count()), (totals, 1));
    }
}
