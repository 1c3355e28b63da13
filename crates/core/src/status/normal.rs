//! Normal form of statuses, and their comparison.
//!
//! The API server truncates times to seconds, rewrites quantities and does not distinguish an
//! empty list from none. A status read back must equal the one that was sent, or the agent would
//! repair a difference that does not exist, every ten seconds.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStatus, PodCondition, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use podwright_api::quantity;

use super::conditions::{ConditionOwner, owner};
use crate::pod::Pod;

/// Total length of the termination messages of one pod.
const MESSAGES_LIMIT: usize = 12 * 1024;

/// Brings a status of this pod into normal form.
pub fn normalise(pod: &Pod, status: &mut PodStatus) {
    let budget = MESSAGES_LIMIT / pod.containers.len().max(1);
    for field in [
        &mut status.phase,
        &mut status.reason,
        &mut status.message,
        &mut status.host_ip,
        &mut status.pod_ip,
        &mut status.qos_class,
    ] {
        drop_empty(field);
    }
    drop_empty_list(&mut status.host_ips);
    drop_empty_list(&mut status.pod_ips);
    status.observed_generation = status.observed_generation.filter(|generation| *generation != 0);
    whole_seconds(&mut status.start_time);
    drop_empty_list(&mut status.conditions);
    status.conditions.iter_mut().flatten().for_each(condition);
    for list in [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ] {
        drop_empty_list(list);
        list.iter_mut().flatten().for_each(|status| container(status, budget));
    }
    let position = |status: &ContainerStatus| {
        pod.init_containers().position(|c| *c.name == *status.name).unwrap_or(usize::MAX)
    };
    status.init_container_statuses.iter_mut().for_each(|list| list.sort_by_key(position));
    for list in [&mut status.container_statuses, &mut status.ephemeral_container_statuses] {
        list.iter_mut().for_each(|list| list.sort_by(|a, b| a.name.cmp(&b.name)));
    }
    amounts(&mut status.allocated_resources);
    status.resources.iter_mut().for_each(requirements);
}

fn condition(condition: &mut PodCondition) {
    whole_seconds(&mut condition.last_probe_time);
    whole_seconds(&mut condition.last_transition_time);
    drop_empty(&mut condition.reason);
    drop_empty(&mut condition.message);
    condition.observed_generation = condition.observed_generation.filter(|g| *g != 0);
}

fn container(status: &mut ContainerStatus, message_budget: usize) {
    state(status.state.get_or_insert_default(), message_budget);
    state(status.last_state.get_or_insert_default(), message_budget);
    drop_empty(&mut status.container_id);
    amounts(&mut status.allocated_resources);
    status.resources.iter_mut().for_each(requirements);
    drop_empty_list(&mut status.volume_mounts);
    drop_empty_list(&mut status.allocated_resources_status);
    for mount in status.volume_mounts.iter_mut().flatten() {
        mount.read_only = mount.read_only.filter(|read_only| *read_only);
    }
}

fn state(state: &mut ContainerState, message_budget: usize) {
    if let Some(running) = &mut state.running {
        whole_seconds(&mut running.started_at);
    }
    if let Some(waiting) = &mut state.waiting {
        drop_empty(&mut waiting.reason);
        drop_empty(&mut waiting.message);
    }
    if let Some(end) = &mut state.terminated {
        whole_seconds(&mut end.started_at);
        whole_seconds(&mut end.finished_at);
        if let Some(message) = &mut end.message {
            message.truncate(message.floor_char_boundary(message_budget));
        }
        drop_empty(&mut end.reason);
        drop_empty(&mut end.message);
        drop_empty(&mut end.container_id);
        end.signal = end.signal.filter(|signal| *signal != 0);
    }
}

fn requirements(resources: &mut ResourceRequirements) {
    amounts(&mut resources.requests);
    amounts(&mut resources.limits);
    drop_empty_list(&mut resources.claims);
}

fn amounts(list: &mut Option<BTreeMap<String, ApiQuantity>>) {
    *list = list.take().filter(|list| !list.is_empty());
    for amount in list.iter_mut().flat_map(BTreeMap::values_mut) {
        if let Ok(stored) = quantity::as_stored(&amount.0) {
            amount.0 = stored;
        }
    }
}

fn drop_empty(text: &mut Option<String>) {
    if text.as_ref().is_some_and(String::is_empty) {
        *text = None;
    }
}

fn drop_empty_list<T>(list: &mut Option<Vec<T>>) {
    if list.as_ref().is_some_and(Vec::is_empty) {
        *list = None;
    }
}

pub(super) fn seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

fn whole_seconds(time: &mut Option<Time>) {
    if let Some(time) = time {
        *time = seconds(time.0);
    }
}

/// Whether two normalised statuses are equal in everything that the agent sets.
///
/// Transition times are ignored, and so are foreign conditions. Every field is named here, so that
/// a new one cannot be missed.
pub fn equal(a: &PodStatus, b: &PodStatus) -> bool {
    let PodStatus {
        observed_generation,
        phase,
        conditions,
        message,
        reason,
        host_ip,
        host_ips,
        pod_ip,
        pod_ips,
        start_time,
        init_container_statuses,
        container_statuses,
        qos_class,
        ephemeral_container_statuses,
        allocated_resources,
        resources,
        nominated_node_name: _,
        resize: _,
        resource_claim_statuses: _,
        extended_resource_claim_status: _,
        node_allocatable_resource_claim_statuses: _,
    } = a;
    *observed_generation == b.observed_generation
        && *phase == b.phase
        && *message == b.message
        && *reason == b.reason
        && *host_ip == b.host_ip
        && *host_ips == b.host_ips
        && *pod_ip == b.pod_ip
        && *pod_ips == b.pod_ips
        && *start_time == b.start_time
        && *init_container_statuses == b.init_container_statuses
        && *container_statuses == b.container_statuses
        && *qos_class == b.qos_class
        && *ephemeral_container_statuses == b.ephemeral_container_statuses
        && *allocated_resources == b.allocated_resources
        && *resources == b.resources
        && same_conditions(
            conditions.as_deref().unwrap_or_default(),
            b.conditions.as_deref().unwrap_or_default(),
        )
}

fn same_conditions(a: &[PodCondition], b: &[PodCondition]) -> bool {
    let ours = |condition: &&PodCondition| owner(&condition.type_) != ConditionOwner::Foreign;
    a.iter().filter(ours).count() == b.iter().filter(ours).count()
        && a.iter().filter(ours).all(|a| {
            b.iter().any(|b| {
                a.type_ == b.type_
                    && a.status == b.status
                    && a.reason == b.reason
                    && a.message == b.message
            })
        })
}
