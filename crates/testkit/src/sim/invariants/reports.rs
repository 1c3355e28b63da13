//! Invariants of reported container statuses.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1;
use podwright_fake_runtime::{Fault, InstanceChange, InstanceEvent, Rpc};

use super::facts::Facts;
use crate::sim::record;

/// The restart count of a reported instance: at least the instances of its container that began
/// before it, at most the CreateContainer calls before its own, and those after it that began
/// nothing. So it is exact where every creation led to a start.
///
/// As upstream, the count is the attempt number, and the next instance takes the number after the
/// highest that the agent observes. So an instance that was created and never began counts if the
/// agent observed it, and a creation without a response does, because its name may be taken, also
/// if the call was lost with a broken connection before it arrived. If an instance that never began
/// is removed, its number is reported with the ID of the one before it.
/// An init container that was removed with its sandbox counts from zero again when nothing is left
/// of it, as upstream.
///
/// Not checked where the runtime lost an instance. A static pod that came back may count from its
/// return, or from its first life.
pub(super) fn wrong_restart_counts(facts: &Facts) -> Vec<String> {
    let mut instances: BTreeMap<Key<'_>, Instances<'_>> = BTreeMap::new();
    let mut owners: BTreeMap<&str, [Key<'_>; 2]> = BTreeMap::new();
    for (life, change) in facts.lives().into_iter().zip(&facts.changes) {
        let (uid, container) = (change.pod.uid.as_str(), change.container.as_str());
        let keys = [(uid, container, Some(life)), (uid, container, None)];
        if change.event == InstanceEvent::StartRequested {
            owners.insert(&change.container_id, keys);
        }
        for key in keys {
            instances.entry(key).or_default().note(change);
        }
    }
    let mut violations = BTreeSet::new();
    for recorded in &facts.recorded_pods {
        for status in record::containers(&recorded.pod) {
            let Some(id) = status.container_id.as_deref().map(bare_id) else { continue };
            let reported = usize::try_from(status.restart_count).unwrap_or(usize::MAX);
            let keys = owners.get(id).into_iter().flatten();
            let known: Vec<&Instances<'_>> = keys.filter_map(|key| instances.get(key)).collect();
            let creations = creates_before(facts, id);
            let spec = recorded.pod.spec.as_ref();
            let mut init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
            let is_init = init.any(|init| init.name == status.name);
            let valid = known.is_empty()
                || known.iter().any(|of_container| {
                    let forgotten = is_init && of_container.after_removal.contains(&id);
                    of_container.allow(id, reported, creations)
                        || forgotten && reported <= creations
                });
            if !valid {
                let (name, pod) = (&status.name, recorded.name());
                let [created, requested, begun] = known[0].before(id);
                violations.insert(format!(
                    "{name} of {pod}: restartCount {reported} is reported for instance {id}, \
                     before which {created} were created, {requested} requested to start, {begun} \
                     begun"
                ));
            }
        }
    }
    violations.into_iter().collect()
}

/// How many CreateContainer calls for the container of this instance came before its own, or may
/// have been lost.
fn creates_before(facts: &Facts, id: &str) -> usize {
    let created = |c: &&InstanceChange| c.container_id == id && c.event == InstanceEvent::Created;
    let Some(own) = facts.changes.iter().find(created) else { return 0 };
    let creates = facts.calls.iter().filter(|call| {
        call.rpc == Rpc::CreateContainer
            && call.seq < own.before
            && call.about.pod.as_ref().is_some_and(|pod| pod.uid == own.pod.uid)
            && call.about.container.as_ref() == Some(&own.container)
    });
    let breaks = |fault: &Fault| matches!(fault, Fault::Disconnect | Fault::DoneButDisconnect);
    let broken = facts
        .calls
        .iter()
        .filter(|call| call.seq < own.before && call.fault.as_ref().is_some_and(breaks));
    creates.count().saturating_sub(1) + broken.count()
}

/// UID of the pod on the node, name of the container, life of the pod; without one: all lives.
type Key<'a> = (&'a str, &'a str, Option<usize>);

/// Instances of one container, in order.
#[derive(Default)]
struct Instances<'a> {
    created: Vec<&'a str>,
    /// StartContainer was sent.
    requested: Vec<&'a str>,
    /// The runtime tried to start it.
    begun: Vec<&'a str>,
    /// Created when an earlier one had been removed.
    after_removal: Vec<&'a str>,
    any_removed: bool,
    /// The runtime lost one or its state, or they are older than the journal.
    lost: bool,
}

impl<'a> Instances<'a> {
    fn note(&mut self, change: &'a InstanceChange) {
        if change.event == InstanceEvent::Created && self.any_removed {
            self.after_removal.push(&change.container_id);
        }
        let ids = match change.event {
            InstanceEvent::Created => &mut self.created,
            InstanceEvent::StartRequested => &mut self.requested,
            InstanceEvent::Started | InstanceEvent::Exited { .. } => &mut self.begun,
            InstanceEvent::RemovedExternally
            | InstanceEvent::StateLost
            | InstanceEvent::Adopted => return self.lost = true,
            InstanceEvent::Removed => return self.any_removed = true,
        };
        if !ids.contains(&change.container_id.as_str()) {
            ids.push(&change.container_id);
        }
    }

    /// Of the instances created before this one: how many, how many of them were requested to start,
    /// and how many began.
    fn before(&self, id: &str) -> [usize; 3] {
        let earlier: Vec<&str> =
            self.created.iter().copied().take_while(|other| *other != id).collect();
        [&self.created, &self.requested, &self.begun]
            .map(|ids| ids.iter().filter(|other| earlier.contains(other)).count())
    }

    fn allow(&self, id: &str, reported: usize, creations: usize) -> bool {
        let [created, _, begun] = self.before(id);
        let later = self.created.iter().skip_while(|other| **other != id).skip(1);
        let unstarted = later.filter(|other| !self.begun.contains(other)).count();
        self.lost || (begun..=creations.max(created) + unstarted).contains(&reported)
    }
}

/// `containerd://ID` without the runtime's name.
fn bare_id(id: &str) -> &str {
    id.rsplit_once("://").map_or(id, |(_, id)| id)
}

/// The reported terminated state of an instance does not change: exit code, and reason, time and
/// message once they are set.
pub(super) fn changed_terminated_states(facts: &Facts) -> Vec<String> {
    let mut known: BTreeMap<(&str, &str), &v1::ContainerStateTerminated> = BTreeMap::new();
    let mut violations = Vec::new();
    // The fake runtime created these for a fixture: they ended at other times than the recorded
    // ones.
    let adopted = |id: &str| {
        facts.changes.iter().any(|change| {
            change.event == InstanceEvent::Adopted && change.container_id == bare_id(id)
        })
    };
    for recorded in &facts.recorded_pods {
        for status in record::containers(&recorded.pod) {
            let states = [&status.last_state, &status.state];
            let states = states.into_iter().flatten().filter_map(|state| state.terminated.as_ref());
            for state in states {
                let Some(id) = state.container_id.as_deref().filter(|id| !id.is_empty()) else {
                    continue;
                };
                if adopted(id) {
                    continue;
                }
                let before = known.insert((recorded.uid(), id), state);
                if let Some(before) = before.filter(|before| !continues(before, state)) {
                    violations.push(format!(
                        "{} of {}: the terminated state of {id} changed at {:?}: {before:?} became \
                         {state:?}",
                        status.name,
                        recorded.name(),
                        recorded.at
                    ));
                }
            }
        }
    }
    violations
}

fn continues(before: &v1::ContainerStateTerminated, now: &v1::ContainerStateTerminated) -> bool {
    let kept = |before: &Option<String>, now: &Option<String>| before.is_none() || before == now;
    before.exit_code == now.exit_code
        && kept(&before.reason, &now.reason)
        && kept(&before.message, &now.message)
        && (before.finished_at.is_none() || before.finished_at == now.finished_at)
}
