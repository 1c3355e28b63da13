//! Invariants of reported container statuses.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1;
use podwright_fake_runtime::{InstanceChange, InstanceEvent, Rpc};

use super::facts::Facts;
use crate::sim::record;

/// Whether an instance whose process never began may or may not count as a restart.
///
/// Not enforced there, so the count depends on timing:
/// - CreateContainer succeeded, and then the agent is killed or StartContainer does not reach the
///   runtime. The agent removes the instance. It takes the next attempt number, and reports it as
///   restartCount, if it still observes the removed instance when it creates the next one;
///   otherwise it takes the same number again.
///   `agent_killed_after_each_request_before_the_response`; seed 4000008.
/// - CreateContainer got no response in time. The next one takes the next attempt number, although
///   there never was an instance: seed 3000013.
/// - Not enforced for init containers after a removal: the sandbox is lost, the agent removes the
///   dead instance of an init container or sidecar, and creates the next one only when it does not
///   observe the removed one any more; it counts from 0 again. Seed 9000022 (reboot, then the
///   runtime is down).
const UNSTARTED_INSTANCES_MAY_COUNT: bool = true;

/// The restart count of a reported instance is the number of instances of its container for which
/// StartContainer was sent before it. Not checked where the runtime lost an instance. A static pod
/// that came back may count from its return, or from its first life.
pub(super) fn wrong_restart_counts(facts: &Facts) -> Vec<String> {
    restart_counts_other_than_starts(facts, UNSTARTED_INSTANCES_MAY_COUNT)
}

pub(super) fn restart_counts_other_than_starts(
    facts: &Facts,
    unstarted_instances_may_count: bool,
) -> Vec<String> {
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
            let most = creates_before(facts, id);
            let spec = recorded.pod.spec.as_ref();
            let mut init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
            let is_init = init.any(|init| init.name == status.name);
            let valid = known.is_empty()
                || known.iter().any(|of_container| {
                    let tolerated = unstarted_instances_may_count.then_some(most);
                    let forgotten = is_init && of_container.after_removal.contains(&id);
                    of_container.allow(id, reported, tolerated)
                        || unstarted_instances_may_count && forgotten && reported <= most
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

/// How many CreateContainer calls for the container of this instance came before its own.
fn creates_before(facts: &Facts, id: &str) -> usize {
    let created = |c: &&InstanceChange| c.container_id == id && c.event == InstanceEvent::Created;
    let Some(own) = facts.changes.iter().find(created) else { return 0 };
    let creates = facts.calls.iter().filter(|call| {
        call.rpc == Rpc::CreateContainer
            && call.seq < own.before
            && call.about.pod.as_ref().is_some_and(|pod| pod.uid == own.pod.uid)
            && call.about.container.as_ref() == Some(&own.container)
    });
    creates.count().saturating_sub(1)
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

    /// `most`: how many CreateContainer calls came before, if those may count that started nothing.
    fn allow(&self, id: &str, reported: usize, most: Option<usize>) -> bool {
        let [created, requested, begun] = self.before(id);
        // An unstarted successor: its number is reported with the ID of the instance before it, seed
        // 9000167.
        let later = self.created.iter().skip_while(|other| **other != id);
        let unstarted = later.filter(|other| !self.requested.contains(other)).count();
        let tolerated =
            most.is_some_and(|most| (begun..=most.max(created) + unstarted).contains(&reported));
        self.lost || reported == requested || tolerated
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
