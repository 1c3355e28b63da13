//! The order in which pods are evicted.

use std::cmp::Ordering;

use super::layout::{DiskLayout, Parts};
use super::signal::{Resource, Signal};
use super::usage::{PodUsage, Requested};
use crate::admission::is_critical;

/// A pod with what counts for one signal; `None`: it has no statistics.
struct Candidate {
    pod: PodUsage,
    priority: i32,
    /// Used, requested as far as it decides whether the pod exceeds it, and requested as far as it
    /// is subtracted.
    weight: Option<Weight>,
}

#[derive(Clone, Copy)]
struct Weight {
    used: u64,
    requested: u64,
    subtracted: u64,
}

impl Weight {
    fn exceeds(self) -> bool {
        self.used > self.requested
    }

    fn excess(self) -> i128 {
        i128::from(self.used) - i128::from(self.subtracted)
    }
}

/// The pods in the order in which they would be evicted for a signal, critical ones included.
pub fn ranked(pods: Vec<PodUsage>, signal: Signal, layout: DiskLayout) -> Vec<PodUsage> {
    let resource = signal.resource();
    let parts = layout.parts(signal);
    let mut candidates: Vec<Candidate> = pods
        .into_iter()
        .map(|pod| Candidate {
            priority: pod.priority(),
            weight: weight(&pod, resource, parts),
            pod,
        })
        .collect();
    let order = match resource {
        Resource::Pids => by_processes,
        Resource::Memory | Resource::EphemeralStorage | Resource::Inodes => by_excess,
    };
    candidates.sort_by(|a, b| order(a, b).then_with(|| a.pod.pod.name.cmp(&b.pod.pod.name)));
    candidates.into_iter().map(|candidate| candidate.pod).collect()
}

/// Whether a pod may be evicted at all.
pub fn may_be_evicted(pod: &PodUsage) -> bool {
    !is_critical(&pod.pod)
}

fn weight(pod: &PodUsage, resource: Resource, parts: Parts) -> Option<Weight> {
    let used = pod.used.as_ref()?;
    let requested = Requested::of(&pod.resources());
    Some(match resource {
        Resource::Memory => {
            Weight { used: used.memory?, requested: requested.memory, subtracted: requested.memory }
        }
        Resource::EphemeralStorage => Weight {
            used: used.disk(parts).bytes,
            requested: requested.storage,
            subtracted: requested.storage,
        },
        // As upstream: inodes cannot be requested, but the requested bytes are subtracted.
        Resource::Inodes => {
            Weight { used: used.disk(parts).inodes, requested: 0, subtracted: requested.storage }
        }
        Resource::Pids => Weight { used: used.processes?, requested: 0, subtracted: 0 },
    })
}

/// A pod without statistics first, then one that exceeds its request, lower priority, the larger
/// excess.
fn by_excess(a: &Candidate, b: &Candidate) -> Ordering {
    let (Some(of_a), Some(of_b)) = (a.weight, b.weight) else {
        return a.weight.is_some().cmp(&b.weight.is_some()).then(a.priority.cmp(&b.priority));
    };
    let exceeding = of_b.exceeds().cmp(&of_a.exceeds());
    let priority = a.priority.cmp(&b.priority);
    exceeding.then(priority).then_with(|| of_b.excess().cmp(&of_a.excess()))
}

/// Lower priority, then a pod without statistics, then more processes.
fn by_processes(a: &Candidate, b: &Candidate) -> Ordering {
    a.priority.cmp(&b.priority).then_with(|| match (a.weight, b.weight) {
        (Some(of_a), Some(of_b)) => of_b.used.cmp(&of_a.used),
        (of_a, of_b) => of_a.is_some().cmp(&of_b.is_some()),
    })
}
