//! Invariants: what must hold at every moment of every simulation.

mod facts;
mod removal;
mod reports;
mod starts;
mod termination;
#[cfg(test)]
mod tests;
mod unmounts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_fake_runtime::{ContainerState, Rpc};

use super::Sim;
use super::record::{self, RecordedPod};
use facts::Facts;

/// Panics if an invariant was violated.
#[track_caller]
pub fn assert_invariants(sim: &Sim) {
    let violations = violations(sim);
    assert!(violations.is_empty(), "{}\n{}", violations.join("\n"), sim.history());
}

/// Panics if anything is left of pods other than those with these UIDs.
#[track_caller]
pub fn clean(sim: &Sim, living: &[String]) {
    let left = leftovers(sim, living);
    assert!(left.is_empty(), "{}\n{}", left.join("\n"), sim.history());
}

/// All violations of invariants so far.
pub fn violations(sim: &Sim) -> Vec<String> {
    let mut violations: Vec<String> =
        sim.fake.violations().iter().map(ToString::to_string).collect();
    if sim.panicked() {
        violations.push("a task of the agent panicked".into());
    }
    let recorded_pods = sim.record.recorded_pods();
    violations.extend(changed_terminal_phases(&recorded_pods));
    violations.extend(starts_after_terminal_phase(sim, &recorded_pods));
    let facts =
        Facts { recorded_pods, calls: sim.fake.calls(), changes: sim.fake.instance_changes() };
    violations.extend(termination::grown_grace_periods(&facts));
    violations.extend(starts::restarts_in_spite_of_never(&facts));
    violations.extend(starts::repeated_ephemeral_starts(&facts));
    violations.extend(starts::starts_before_initialization(&facts));
    violations.extend(termination::sidecars_stopped_too_early(&facts));
    violations.extend(reports::wrong_restart_counts(&facts));
    violations.extend(reports::changed_terminated_states(&facts));
    let unmounted = sim.environment.unmounted();
    let unmounted = unmounted.iter().map(std::path::PathBuf::as_path);
    violations.extend(unmounts::outside_of_volumes(&sim.environment.pods(), unmounted));
    if sim.is_running() {
        violations.extend(removal::kept_too_long(&facts, &sim.fake.snapshot(), sim.age()));
    }
    violations
}

/// A status does not leave a terminal phase.
fn changed_terminal_phases(recorded_pods: &[RecordedPod]) -> Vec<String> {
    let mut ended: BTreeMap<&str, &RecordedPod> = BTreeMap::new();
    let mut violations = Vec::new();
    for recorded in recorded_pods {
        let phase = record::phase(&recorded.pod);
        match ended.get(recorded.uid()) {
            Some(end) if record::phase(&end.pod) != phase => violations.push(format!(
                "{} was {} at {:?} and {} at {:?}",
                recorded.name(),
                record::phase(&end.pod).as_str(),
                end.at,
                phase.as_str(),
                recorded.at
            )),
            Some(_) => {}
            None if phase.is_terminal() => drop(ended.insert(recorded.uid(), recorded)),
            None => {}
        }
    }
    violations
}

/// No container is started in a pod that is terminal in the API. (A static pod's mirror has a UID
/// that the runtime does not know.)
fn starts_after_terminal_phase(sim: &Sim, recorded_pods: &[RecordedPod]) -> Vec<String> {
    let mut ended: BTreeMap<&str, Duration> = BTreeMap::new();
    for recorded in recorded_pods.iter().filter(|s| record::phase(&s.pod).is_terminal()) {
        ended.entry(recorded.uid()).or_insert(recorded.at);
    }
    let calls = sim.fake.calls();
    let starts = calls.iter().filter(|call| call.rpc == Rpc::StartContainer);
    let late = starts.filter(|call| {
        let pod = call.about.pod.as_ref();
        let end = pod.and_then(|pod| ended.get(pod.uid.as_str()));
        end.is_some_and(|end| call.at > *end)
    });
    late.map(|call| format!("started after the pod was terminal: {call}")).collect()
}

/// Effects on a pod that is never touched: once ready, it should stay ready, with the same
/// container instances.
pub fn disturbances(sim: &Sim, uid: &str) -> Vec<String> {
    let seen = sim.record.of(uid);
    let mut seen = seen.iter().skip_while(|s| !record::is_ready(&s.pod));
    let Some(first) = seen.next() else { return vec![format!("{uid} was never ready")] };
    let ids = |s: &RecordedPod| {
        let containers = record::containers(&s.pod);
        containers.iter().map(|c| (c.container_id.clone(), c.restart_count)).collect::<Vec<_>>()
    };
    let initial = ids(first);
    let mut disturbed = Vec::new();
    for recorded in seen.take_while(|s| s.pod.metadata.deletion_timestamp.is_none() && !s.gone) {
        let (name, at) = (recorded.name(), recorded.at);
        if !record::is_ready(&recorded.pod) {
            disturbed.push(format!("{name}, untouched, was not ready at {at:?}"));
        }
        if ids(recorded) != initial {
            disturbed.push(format!("{name}, untouched, shows other containers at {at:?}"));
        }
    }
    disturbed
}

/// What the node still has of pods that should be gone. `living`: UIDs, as on the node, of pods
/// that should run.
pub fn leftovers(sim: &Sim, living: &[String]) -> Vec<String> {
    let dead = |uid: &String| !living.contains(uid);
    let snapshot = sim.fake.snapshot();
    let mut left = Vec::new();
    for uid in sim.environment.pods_with_cgroup().iter().filter(|uid| dead(uid)) {
        left.push(format!("{uid} still has a control group"));
    }
    let wanted = wanted(sim);
    for uid in sim.environment.pods_with_directory().iter().filter(|uid| dead(uid)) {
        if !wanted.contains(uid) {
            left.push(format!("{uid} still has a directory"));
        } else if sim.environment.has_volumes(uid) {
            left.push(format!("{uid} is finished and still has volumes"));
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

/// What the runtime still has, dead or alive, of pods that are not in the API.
pub fn runtime_leftovers(sim: &Sim) -> Vec<String> {
    let wanted = wanted(sim);
    let snapshot = sim.fake.snapshot();
    let sandboxes = snapshot.sandboxes.iter().map(|sandbox| (&sandbox.pod, "a sandbox"));
    let containers = snapshot.containers.iter().map(|container| (&container.pod, "a container"));
    let unwanted =
        sandboxes.chain(containers).filter(|(pod, _)| !wanted.contains(pod.uid.as_str()));
    unwanted.map(|(pod, what)| format!("{pod} is gone and the runtime has {what} of it")).collect()
}

/// UIDs, as on the node, of all pods in the API: they keep their directories, even if finished.
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

/// Requests per minute of an idle node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRate {
    /// Requests about pods and Events, without the node's own heartbeats.
    pub api: usize,
    pub runtime: usize,
    /// Count by kind of request.
    pub by_kind: BTreeMap<String, u64>,
}

/// Counts the requests of an idle node for a while.
pub async fn request_rate(sim: &Sim, minutes: u32) -> RequestRate {
    sim.api.clear_calls();
    let count = || Rpc::ALL.iter().map(|rpc| (*rpc, sim.fake.count(*rpc))).collect::<Vec<_>>();
    let before = count();
    sim.pass(Duration::from_secs(60) * minutes).await;
    let mut by_kind: BTreeMap<String, u64> = BTreeMap::new();
    let mut runtime = 0;
    for ((rpc, after), (_, before)) in count().into_iter().zip(before) {
        if after > before {
            by_kind.insert(rpc.to_string(), after - before);
            runtime += after - before;
        }
    }
    let mut api = 0;
    for call in sim.api.calls() {
        if !call.resource.starts_with("nodes") && call.resource != "leases" {
            *by_kind.entry(format!("{} {}", call.verb, call.resource)).or_default() += 1;
            api += 1;
        }
    }
    let minutes = minutes as usize;
    RequestRate { api: api / minutes, runtime: runtime as usize / minutes, by_kind }
}
