//! Invariants of termination: sidecars end last, and grace periods do not grow.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_fake_runtime::{Call, InstanceChange, InstanceEvent, Outcome, Rpc};

use super::facts::{Facts, node_uid, sidecars};

/// An agent counts whole seconds.
const ROUNDING: Duration = Duration::from_secs(1);

/// The grace period of a container never grows while its pod is being deleted, also across agents.
/// (Any other pod may run on, so a repeated stop has the whole grace period again.)
pub(super) fn grown_grace_periods(facts: &Facts) -> Vec<String> {
    let mut given: BTreeMap<&str, i64> = BTreeMap::new();
    let mut violations = Vec::new();
    for call in facts.calls.iter().filter(|call| call.rpc == Rpc::StopContainer) {
        let (Some(pod), Some(id), Some(grace)) =
            (&call.about.pod, &call.about.container_id, call.grace)
        else {
            continue;
        };
        if facts.deleted_at(pod.uid.as_str()).is_none_or(|at| at > call.at) {
            continue;
        }
        let least = given.entry(id.as_str()).or_insert(grace);
        if grace > *least {
            violations.push(format!("more grace than the {least} s before: {call}"));
        }
        *least = grace.min(*least);
    }
    violations
}

/// When a pod ends, a sidecar is stopped only after every regular container and every later
/// sidecar has ended, unless the grace period is over.
pub(super) fn sidecars_stopped_too_early(facts: &Facts) -> Vec<String> {
    let specs = facts.specs();
    let mut violations = Vec::new();
    for stop in facts.calls.iter().filter(|call| call.rpc == Rpc::StopContainer) {
        let (Some(pod), Some(name), Some(sandbox)) =
            (&stop.about.pod, &stop.about.container, &stop.about.sandbox_id)
        else {
            continue;
        };
        let Some(spec) = specs.get(pod.uid.as_str()) else { continue };
        let Some(place) = sidecars(spec).position(|sidecar| sidecar.name == *name) else {
            continue;
        };
        let Some(sidecar) = sidecars(spec).nth(place) else { continue };
        let termination = Termination { facts, spec, uid: pod.uid.as_str(), sandbox };
        if !termination.includes(stop, sidecar) || termination.grace_is_over(stop) {
            continue;
        }
        let later = sidecars(spec).skip(place + 1);
        let first = spec.containers.iter().chain(later);
        let alive: Vec<&str> = first
            .map(|container| container.name.as_str())
            .filter(|name| termination.is_alive(name, stop))
            .collect();
        if !alive.is_empty() {
            violations.push(format!("sidecar stopped while {alive:?} run: {stop}"));
        }
    }
    violations
}

/// The end of one sandbox.
struct Termination<'a> {
    facts: &'a Facts,
    spec: &'a v1::PodSpec,
    uid: &'a str,
    sandbox: &'a str,
}

impl Termination<'_> {
    /// Whether this stop of a sidecar is part of it: the pod is deleted, or nothing is started in
    /// the sandbox any more before it is stopped. (A stop for another reason is followed by a
    /// start.)
    fn includes(&self, stop: &Call, sidecar: &v1::Container) -> bool {
        if self.facts.deleted_at(self.uid).is_some_and(|at| at < stop.at) {
            return true;
        }
        let sandbox_stopped = self.facts.calls.iter().any(|call| {
            call.rpc == Rpc::StopPodSandbox
                && call.seq > stop.seq
                && call.about.sandbox_id.as_deref() == Some(self.sandbox)
        });
        let probed = sidecar.liveness_probe.is_some() || sidecar.startup_probe.is_some();
        let changed = self.facts.image_changes((self.uid, &sidecar.name)) > 0;
        let lost = self.facts.losses((self.uid, &sidecar.name)) > 0;
        sandbox_stopped
            && self.last_start().is_none_or(|before| before <= stop.seq)
            && !(probed || changed || lost)
    }

    fn changes(&self) -> impl Iterator<Item = &InstanceChange> {
        self.facts.changes.iter().filter(|change| change.sandbox_id == self.sandbox)
    }

    /// The last StartContainer in the sandbox.
    fn last_start(&self) -> Option<u64> {
        let starts = self.changes().filter(|c| c.event == InstanceEvent::StartRequested);
        starts.last().map(|change| change.before)
    }

    /// The time since the pod's termination began is at least its grace period.
    fn grace_is_over(&self, stop: &Call) -> bool {
        let last_start = self.last_start().unwrap_or(0);
        let stops = || {
            self.facts.calls.iter().filter(move |call| {
                call.rpc == Rpc::StopContainer
                    && call.seq >= last_start
                    && call.seq <= stop.seq
                    && call.about.sandbox_id.as_deref() == Some(self.sandbox)
            })
        };
        // A request of the user, or a deadline, begins the grace period; the first stop comes later
        // if there are hooks, or if the runtime cannot be reached.
        let deleted = self.facts.deleted_at(self.uid).filter(|at| *at <= stop.at);
        let first_stop = stops().map(|call| call.at).next();
        let began = [deleted, self.deadline(), first_stop].into_iter().flatten().min();
        let requested = self
            .facts
            .recorded_pods
            .iter()
            .filter(|recorded| node_uid(&recorded.pod) == self.uid && recorded.at <= stop.at);
        let requested =
            requested.filter_map(|recorded| recorded.pod.metadata.deletion_grace_period_seconds);
        let is_regular = |call: &&Call| {
            let name = call.about.container.as_ref();
            self.spec.containers.iter().any(|container| Some(&container.name) == name)
        };
        let given = stops().filter(is_regular).filter_map(|call| call.grace);
        let specified = self.spec.termination_grace_period_seconds.unwrap_or(30);
        let grace = requested.chain(given).chain([specified]).min().unwrap_or(specified);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        began.is_none_or(|began| stop.at + ROUNDING >= began + grace)
    }

    /// The earliest time at which the pod's deadline can pass.
    fn deadline(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.spec.active_deadline_seconds?).ok()?;
        let mut shown = self.facts.recorded_pods.iter().filter(|r| node_uid(&r.pod) == self.uid);
        shown.next().map(|recorded| recorded.at + Duration::from_secs(seconds))
    }

    /// Whether a container runs in the sandbox as far as an agent can know: a successful
    /// StopContainer ended it.
    fn is_alive(&self, name: &str, at: &Call) -> bool {
        let earlier =
            |change: &&InstanceChange| change.container == name && change.before <= at.seq;
        let mut alive: Option<&str> = None;
        for change in self.changes().filter(earlier) {
            match change.event {
                InstanceEvent::Started => alive = Some(&change.container_id),
                InstanceEvent::Exited { .. } | InstanceEvent::Removed => alive = None,
                InstanceEvent::Adopted
                | InstanceEvent::Created
                | InstanceEvent::RemovedExternally
                | InstanceEvent::StartRequested
                | InstanceEvent::StateLost => {}
            }
        }
        alive.is_some_and(|id| {
            !self.facts.calls.iter().any(|call| {
                call.rpc == Rpc::StopContainer
                    && call.seq < at.seq
                    && call.about.container_id.as_deref() == Some(id)
                    && matches!(call.end, Some((end, Outcome::Done)) if end <= at.at)
            })
        })
    }
}
