//! Our report, laid over what the API has.
//!
//! Three things hold it back. What others wrote stays: their conditions, their fields. A pod that
//! the API calls over stays over. And a pod is not called over while a container of it may run,
//! because controllers and schedulers take a terminal phase as leave to hand its volumes, devices
//! and name to the next one.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodCondition, PodStatus};

use super::conditions::{
    CONTAINERS_READY, DISRUPTION_TARGET, Owner, READY, condition, is_true, owner, put,
    unready_at_the_end,
};
use super::normal::seconds;
use super::{phase_of, some};

/// The status to send for a pod whose newest API copy is `api`.
pub fn merge(api: &ApiPod, ours: &PodStatus, may_run: bool, now: Timestamp) -> PodStatus {
    let nothing = PodStatus::default();
    let theirs = api.status.as_ref().unwrap_or(&nothing);
    let over = phase_of(theirs).is_terminal();
    let ends = !over && phase_of(ours).is_terminal();
    let mut merged = ours.clone();
    merged.nominated_node_name = theirs.nominated_node_name.clone();
    merged.resize = theirs.resize.clone();
    merged.resource_claim_statuses = theirs.resource_claim_statuses.clone();
    merged.extended_resource_claim_status = theirs.extended_resource_claim_status.clone();
    merged.node_allocatable_resource_claim_statuses =
        theirs.node_allocatable_resource_claim_statuses.clone();
    if (ends && may_run) || (over && theirs.phase != ours.phase) {
        merged.phase = theirs.phase.clone();
        merged.reason = theirs.reason.clone();
        merged.message = theirs.message.clone();
    }
    let mut conditions = conditions(theirs, ours, ends && !may_run, now);
    let unready = [READY, CONTAINERS_READY].iter().all(|type_| !is_true(ours, type_));
    if phase_of(&merged).is_terminal() && !unready {
        for end in unready_at_the_end(phase_of(&merged), api.metadata.generation) {
            let end = since(end, theirs, now);
            put(&mut conditions, end);
        }
    }
    merged.conditions = some(conditions);
    merged
}

fn conditions(
    theirs: &PodStatus,
    ours: &PodStatus,
    ended: bool,
    now: Timestamp,
) -> Vec<PodCondition> {
    let foreign = theirs.conditions.iter().flatten();
    let foreign = foreign.filter(|condition| owner(&condition.type_) != Owner::Agent);
    let mut merged: Vec<PodCondition> = foreign.cloned().collect();
    for condition in ours.conditions.iter().flatten() {
        match owner(&condition.type_) {
            Owner::Agent => merged.push(condition.clone()),
            Owner::Foreign => {}
            // It explains an end, so it goes out with the end, and dates from then.
            Owner::Shared if ended && condition.type_ == DISRUPTION_TARGET => {
                put(&mut merged, since(condition.clone(), theirs, now));
            }
            Owner::Shared => {}
        }
    }
    merged
}

/// Dates a condition: from when the API first showed this answer, or from now.
fn since(mut new: PodCondition, shown: &PodStatus, now: Timestamp) -> PodCondition {
    let same = condition(shown, &new.type_).filter(|shown| shown.status == new.status);
    new.last_transition_time = match same {
        Some(shown) => shown.last_transition_time.clone(),
        None => Some(seconds(now)),
    };
    new
}
