//! Preemption: selects the pods that are terminated to admit a critical pod.
//!
//! As few pods as possible, lowest QoS class first: best-effort, then burstable, then guaranteed.
//! Within a class, the pod whose requests are closest to the missing amount is selected.

use std::sync::Arc;

use podwright_api::qos::{QosClass, amount};

use super::fit::{Shortage, number};
use super::{is_critical, priority};
use crate::ids::PodUid;
use crate::node_status::resources::PODS;
use crate::pod::Pod;

/// Status reason and message of a preempted pod.
pub const REASON: &str = "Preempting";
pub const MESSAGE: &str = "Preempted in order to admit critical pod";
/// Message of its DisruptionTarget condition.
pub const DISRUPTION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// Missing amounts by resource.
type Missing = Vec<(String, i64)>;

struct Candidate<'a> {
    pod: &'a Pod,
    class: QosClass,
}

/// Pods to terminate so that `pod` fits.
pub(super) fn victims(
    pod: &Pod,
    others: &[&Arc<Pod>],
    shortages: &[Shortage],
) -> Result<Vec<PodUid>, String> {
    let missing: Missing =
        shortages.iter().map(|short| (short.resource.clone(), short.missing())).collect();
    let candidates: Vec<Candidate<'_>> = others
        .iter()
        .filter(|other| may_preempt(pod, other))
        .map(|other| Candidate {
            pod: other,
            class: QosClass::of(&other.object).unwrap_or(QosClass::BestEffort),
        })
        .collect();
    let of = |class: QosClass| -> Vec<&Candidate<'_>> {
        candidates.iter().filter(|candidate| candidate.class == class).collect()
    };
    let (best_effort, burstable) = (of(QosClass::BestEffort), of(QosClass::Burstable));
    let guaranteed = of(QosClass::Guaranteed);
    let never = less(&missing, &[&best_effort, &burstable, &guaranteed]);
    if !never.is_empty() {
        let short: Vec<String> =
            never.iter().map(|(name, amount)| format!("(res: {name}, q: {amount})")).collect();
        let short = short.join(", ");
        return Err(format!("no set of running pods found to reclaim resources: [{short}]"));
    }
    // From the higher classes only what the lower classes cannot free.
    let dearest = nearest(&guaranteed, less(&missing, &[&best_effort, &burstable]));
    let dear = nearest(&burstable, less(&missing, &[&best_effort, &dearest]));
    let cheap = nearest(&best_effort, less(&missing, &[&dearest, &dear]));
    let victims = cheap.into_iter().chain(dear).chain(dearest);
    Ok(victims.map(|candidate| candidate.pod.uid.clone()).collect())
}

/// A critical pod preempts any non-critical pod; otherwise the higher priority preempts.
fn may_preempt(pod: &Pod, other: &Pod) -> bool {
    if is_critical(pod) && !is_critical(other) {
        return true;
    }
    matches!((priority(pod), priority(other)), (Some(mine), Some(theirs)) if mine > theirs)
}

/// What is still missing after these pods have terminated.
fn less(missing: &Missing, gone: &[&[&Candidate<'_>]]) -> Missing {
    let left = |(name, amount): &(String, i64)| {
        let freed = gone.iter().copied().flatten().map(|candidate| candidate.frees(name));
        let left = amount.saturating_sub(freed.fold(0i64, i64::saturating_add));
        (left > 0).then(|| (name.clone(), left))
    };
    missing.iter().filter_map(left).collect()
}

/// Repeatedly selects the candidate that leaves the least missing; of equal ones the smaller.
fn nearest<'a, 'p>(
    candidates: &[&'a Candidate<'p>],
    mut missing: Missing,
) -> Vec<&'a Candidate<'p>> {
    let mut left: Vec<&Candidate<'p>> = candidates.to_vec();
    let mut taken = Vec::new();
    while !missing.is_empty() {
        let by_distance = |a: &(usize, &&Candidate<'p>), b: &(usize, &&Candidate<'p>)| {
            let (one, other) = (a.1.distance(&missing), b.1.distance(&missing));
            one.total_cmp(&other).then_with(|| a.1.size(&missing).cmp(&b.1.size(&missing)))
        };
        let Some((at, _)) = left.iter().enumerate().min_by(by_distance) else { break };
        let chosen = left.remove(at);
        missing = less(&missing, &[&[chosen]]);
        taken.push(chosen);
    }
    taken
}

impl Candidate<'_> {
    fn frees(&self, resource: &str) -> i64 {
        if resource == PODS { 1 } else { number(resource, amount(&self.pod.requests, resource)) }
    }

    /// Sum of the squared fractions of each resource that would still be missing.
    #[allow(clippy::cast_precision_loss, reason = "only compared")]
    fn distance(&self, missing: &Missing) -> f64 {
        let share = |(name, amount): &(String, i64)| {
            let left = amount.saturating_sub(self.frees(name)).max(0);
            (left as f64 / *amount as f64).powi(2)
        };
        missing.iter().map(share).sum()
    }

    fn size(&self, missing: &Missing) -> i64 {
        missing.iter().fold(0, |sum, (name, _)| sum.saturating_add(self.frees(name)))
    }
}
