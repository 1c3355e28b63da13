//! Merge of the agent's report into the API's copy of a status.
//!
//! Foreign conditions and fields stay. A terminal phase in the API stays. And no terminal phase is
//! sent while a container may be running, because controllers and schedulers then reuse the pod's
//! volumes, devices and name.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodCondition, PodStatus};
use podwright_api::annotations::ANNOTATION_MIRROR;

use super::conditions::{
    CONTAINERS_READY, ConditionOwner, DISRUPTION_TARGET, READY, condition, is_true, owner, put,
    unready_when_finished,
};
use super::normal::seconds;
use super::{non_empty, phase_of};

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
    let stays_over = over && !is_mirror(api) && theirs.phase != ours.phase;
    if (ends && may_run) || stays_over {
        merged.phase = theirs.phase.clone();
        merged.reason = theirs.reason.clone();
        merged.message = theirs.message.clone();
    }
    let mut conditions = conditions(theirs, ours, ends && !may_run, now);
    let unready = [READY, CONTAINERS_READY].iter().all(|type_| !is_true(ours, type_));
    if phase_of(&merged).is_terminal() && !unready {
        for end in unready_when_finished(phase_of(&merged), api.metadata.generation) {
            let end = since(end, theirs, now);
            put(&mut conditions, end);
        }
    }
    merged.conditions = non_empty(conditions);
    merged
}

/// A rejected static pod may run after an agent restart; its mirror pod then follows it.
fn is_mirror(api: &ApiPod) -> bool {
    let annotations = api.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(ANNOTATION_MIRROR))
}

fn conditions(
    theirs: &PodStatus,
    ours: &PodStatus,
    ended: bool,
    now: Timestamp,
) -> Vec<PodCondition> {
    let foreign = theirs.conditions.iter().flatten();
    let foreign = foreign.filter(|condition| owner(&condition.type_) != ConditionOwner::Agent);
    let mut merged: Vec<PodCondition> = foreign.cloned().collect();
    for condition in ours.conditions.iter().flatten() {
        match owner(&condition.type_) {
            ConditionOwner::Agent => merged.push(condition.clone()),
            ConditionOwner::Foreign => {}
            // It explains the end of the pod, so it is sent with the terminal phase and dated
            // then.
            ConditionOwner::Shared if ended && condition.type_ == DISRUPTION_TARGET => {
                put(&mut merged, since(condition.clone(), theirs, now));
            }
            ConditionOwner::Shared => {}
        }
    }
    merged
}

/// Sets the transition time: when the API first showed this status, or now.
fn since(mut new: PodCondition, shown: &PodStatus, now: Timestamp) -> PodCondition {
    let same = condition(shown, &new.type_).filter(|shown| shown.status == new.status);
    new.last_transition_time = match same {
        Some(shown) => shown.last_transition_time.clone(),
        None => Some(seconds(now)),
    };
    new
}
