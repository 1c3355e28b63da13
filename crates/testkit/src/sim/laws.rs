//! What must hold at every moment of every simulation, whatever goes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_cri::fake::{ContainerState, Rpc};

use super::Sim;
use super::record::{self, Sighting};

/// No law was broken on the way.
#[track_caller]
pub fn lawful(sim: &Sim) {
    let broken = broken(sim);
    assert!(broken.is_empty(), "{}\n{}", broken.join("\n"), sim.story());
}

/// Nothing is left of any pod but those with these UIDs.
#[track_caller]
pub fn clean(sim: &Sim, living: &[String]) {
    let left = leftovers(sim, living);
    assert!(left.is_empty(), "{}\n{}", left.join("\n"), sim.story());
}

/// Every law that was broken so far; empty is good.
pub fn broken(sim: &Sim) -> Vec<String> {
    let mut broken: Vec<String> = sim.fake.violations().iter().map(ToString::to_string).collect();
    if sim.panicked() {
        broken.push("a task of the agent panicked".into());
    }
    let sightings = sim.record.sightings();
    broken.extend(phases_that_went_back(&sightings));
    broken.extend(containers_started_after_the_end(sim, &sightings));
    broken.extend(grace_that_grew(sim));
    broken
}

/// A status does not leave a terminal phase.
fn phases_that_went_back(sightings: &[Sighting]) -> Vec<String> {
    let mut ended: BTreeMap<&str, &Sighting> = BTreeMap::new();
    let mut broken = Vec::new();
    for sighting in sightings {
        let phase = record::phase(&sighting.pod);
        match ended.get(sighting.uid()) {
            Some(end) if record::phase(&end.pod) != phase => broken.push(format!(
                "{} was {} at {:?} and {} at {:?}",
                sighting.name(),
                record::phase(&end.pod).as_str(),
                end.at,
                phase.as_str(),
                sighting.at
            )),
            Some(_) => {}
            None if phase.is_terminal() => drop(ended.insert(sighting.uid(), sighting)),
            None => {}
        }
    }
    broken
}

/// A pod the API calls terminal never has a container started again. (A static pod's mirror has
/// a UID that the runtime never hears of.)
fn containers_started_after_the_end(sim: &Sim, sightings: &[Sighting]) -> Vec<String> {
    let mut ended: BTreeMap<&str, Duration> = BTreeMap::new();
    for sighting in sightings.iter().filter(|s| record::phase(&s.pod).is_terminal()) {
        ended.entry(sighting.uid()).or_insert(sighting.at);
    }
    let calls = sim.fake.calls();
    let starts = calls.iter().filter(|call| call.rpc == Rpc::StartContainer);
    let late = starts.filter(|call| {
        let pod = call.about.pod.as_ref();
        let end = pod.and_then(|pod| ended.get(pod.uid.as_str()));
        end.is_some_and(|end| call.at > *end)
    });
    late.map(|call| format!("started after the pod's end: {call}")).collect()
}

/// An instance that is being stopped never gets more time than it was given before.
fn grace_that_grew(sim: &Sim) -> Vec<String> {
    let mut given: BTreeMap<String, i64> = BTreeMap::new();
    let mut broken = Vec::new();
    for call in sim.fake.calls().iter().filter(|call| call.rpc == Rpc::StopContainer) {
        let (Some(id), Some(grace)) = (&call.about.container_id, call.grace) else { continue };
        let least = given.entry(id.clone()).or_insert(grace);
        if grace > *least {
            broken.push(format!("more grace than the {least} s before: {call}"));
        }
        *least = grace.min(*least);
    }
    broken
}

/// What happened to a pod that nobody touched: it was ready once, and should have stayed so, in
/// the same instances of its containers.
pub fn disturbances(sim: &Sim, uid: &str) -> Vec<String> {
    let seen = sim.record.of(uid);
    let mut seen = seen.iter().skip_while(|s| !record::is_ready(&s.pod));
    let Some(first) = seen.next() else { return vec![format!("{uid} was never ready")] };
    let ids = |s: &Sighting| {
        let containers = record::containers(&s.pod);
        containers.iter().map(|c| (c.container_id.clone(), c.restart_count)).collect::<Vec<_>>()
    };
    let calm = ids(first);
    let mut disturbed = Vec::new();
    for sighting in seen.take_while(|s| s.pod.metadata.deletion_timestamp.is_none() && !s.gone) {
        let (name, at) = (sighting.name(), sighting.at);
        if !record::is_ready(&sighting.pod) {
            disturbed.push(format!("{name}, untouched, was not ready at {at:?}"));
        }
        if ids(sighting) != calm {
            disturbed.push(format!("{name}, untouched, shows other containers at {at:?}"));
        }
    }
    disturbed
}

/// What the node still holds of pods it should hold nothing of. `living`: UIDs, as the node knows
/// them, of pods that should run.
pub fn leftovers(sim: &Sim, living: &[String]) -> Vec<String> {
    let dead = |uid: &String| !living.contains(uid);
    let snapshot = sim.fake.snapshot();
    let mut left = Vec::new();
    for uid in sim.ground.pods_with_cgroup().iter().filter(|uid| dead(uid)) {
        left.push(format!("{uid} still has a control group"));
    }
    let wanted = wanted(sim);
    for uid in sim.ground.pods_with_folder().iter().filter(|uid| dead(uid)) {
        if !wanted.contains(uid) {
            left.push(format!("{uid} still has a folder"));
        } else if sim.ground.has_volumes(uid) {
            left.push(format!("{uid} is over and still has volumes"));
        }
    }
    for sandbox in snapshot.sandboxes.iter().filter(|s| s.ready) {
        if dead(&sandbox.pod.uid.to_string()) {
            left.push(format!("{} still has a ready sandbox", sandbox.pod));
        }
    }
    for container in &snapshot.containers {
        let alive = match container.state {
            ContainerState::Running | ContainerState::Unknown => true,
            ContainerState::Created | ContainerState::Exited { .. } => false,
        };
        if alive && dead(&container.pod.uid.to_string()) {
            left.push(format!("{} of {} still runs", container.name, container.pod));
        }
    }
    left
}

/// UIDs, as the node knows them, of all pods in the API: they keep their directories, finished as
/// they may be.
fn wanted(sim: &Sim) -> BTreeSet<String> {
    let pods = sim.record.pods();
    let ids = pods.iter().flat_map(|pod| {
        let annotations = pod.metadata.annotations.iter().flatten();
        let of_static = annotations.filter(|(key, _)| *key == "kubernetes.io/config.mirror");
        let of_static = of_static.map(|(_, uid)| uid.clone());
        pod.metadata.uid.clone().into_iter().chain(of_static).collect::<Vec<_>>()
    });
    ids.collect()
}

/// How much a node that has nothing to do asks of others, per minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chatter {
    /// Requests about pods and events; heartbeats of the node are its own affair.
    pub api: usize,
    pub runtime: usize,
    /// What it said, and how often.
    pub words: BTreeMap<String, u64>,
}

/// Listens for a while to a node that should be quiet.
pub async fn chatter(sim: &Sim, minutes: u32) -> Chatter {
    sim.api.forget_calls();
    let count = || Rpc::ALL.iter().map(|rpc| (*rpc, sim.fake.count(*rpc))).collect::<Vec<_>>();
    let before = count();
    sim.pass(Duration::from_secs(60) * minutes).await;
    let mut words: BTreeMap<String, u64> = BTreeMap::new();
    let mut runtime = 0;
    for ((rpc, after), (_, before)) in count().into_iter().zip(before) {
        if after > before {
            words.insert(rpc.to_string(), after - before);
            runtime += after - before;
        }
    }
    let mut api = 0;
    for call in sim.api.calls() {
        if !call.resource.starts_with("nodes") && call.resource != "leases" {
            *words.entry(format!("{} {}", call.verb, call.resource)).or_default() += 1;
            api += 1;
        }
    }
    let minutes = minutes as usize;
    Chatter { api: api / minutes, runtime: runtime as usize / minutes, words }
}
