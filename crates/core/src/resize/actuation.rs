//! Order of the steps of a resize.
//!
//! Memory comes before CPU. Increases go from the outside in: the pod's limit, then its request,
//! then the containers; decreases go from the inside out. Containers that decrease come first. At
//! no time do the containers exceed the pod.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use podwright_api::qos::{CPU, MEMORY, ResourceList, amount};
use podwright_proto::cri::LinuxContainerResources;
use serde::{Deserialize, Serialize};

use super::{Amounts, ContainerResize, Resize};
use crate::cgroup::{CgroupConfig, CpuQuota};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resource {
    #[serde(rename = "Memory")]
    Memory,
    #[serde(rename = "Cpu")]
    Cpu,
}

impl Resource {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => MEMORY,
            Self::Cpu => CPU,
        }
    }
}

/// One step of a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeStep {
    /// Sets values of the pod's cgroup after the runtime got the resulting sandbox resources.
    Pod { set: CgroupConfig, then: CgroupConfig },
    /// Updates a container's resources in the runtime.
    Container { update: ContainerResize, now: Amounts },
}

/// Steps for each resource in order. `current` is the state of the pod's cgroup, `wanted` the state
/// for the allocated resources. Limits missing from `wanted` stay unchanged: a limit cannot be
/// removed in place.
pub fn stages(
    resize: &Resize,
    current: &CgroupConfig,
    wanted: &CgroupConfig,
) -> [(Resource, Vec<ResizeStep>); 2] {
    let mut now = current.clone();
    [Resource::Memory, Resource::Cpu]
        .map(|resource| (resource, stage(resource, resize, &mut now, wanted)))
}

fn stage(
    resource: Resource,
    resize: &Resize,
    now: &mut CgroupConfig,
    wanted: &CgroupConfig,
) -> Vec<ResizeStep> {
    let mut steps = Vec::new();
    let amounts = |amounts: Amounts| match resource {
        Resource::Memory => amounts.memory(),
        Resource::Cpu => amounts.cpu(),
    };
    let changes = |update: &&ContainerResize| amounts(update.from) != amounts(update.to);
    let mut updates: Vec<&ContainerResize> = resize.updates.iter().filter(changes).collect();
    if updates.is_empty() && !resize.whole {
        return steps;
    }
    updates.sort_by_key(|update| Reverse(amounts(update.from) > amounts(update.to)));
    let limit = Part::limit(resource, now, wanted);
    let request = Part::request(resource, now, wanted);
    let mut pod = |part: Option<&Part>, steps: &mut Vec<ResizeStep>| {
        if let Some(part) = part {
            merge(now, &part.set);
            steps.push(ResizeStep::Pod { set: part.set.clone(), then: now.clone() });
        }
    };
    let (grows, shrinks) = (|part: &&Part| part.grows, |part: &&Part| !part.grows);
    pod(limit.as_ref().filter(grows), &mut steps);
    pod(request.as_ref().filter(grows), &mut steps);
    steps.extend(updates.into_iter().map(|update| {
        let before = match resource {
            Resource::Memory => update.from,
            // Memory was already updated.
            Resource::Cpu => update.from.with(Resource::Memory, update.to),
        };
        ResizeStep::Container { update: update.clone(), now: before.with(resource, update.to) }
    }));
    pod(request.as_ref().filter(shrinks), &mut steps);
    pod(limit.as_ref().filter(shrinks), &mut steps);
    steps
}

/// An existing pod cgroup in which a container is about to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExistingCgroup {
    /// Bytes of memory in use, as far as known.
    pub used: Option<u64>,
    /// Its current configuration, if a resize of the pod is in progress.
    pub resizing: Option<CgroupConfig>,
}

/// The part of a pod cgroup's configuration to write before a container starts.
///
/// During a resize only what grows: the kernel refuses a pod quota below that of a container in v1,
/// so a decrease waits until the resize has reached the containers.
pub fn before_start(wanted: CgroupConfig, existing: Option<ExistingCgroup>) -> CgroupConfig {
    let Some(ExistingCgroup { used, resizing }) = existing else { return wanted };
    if let Some(current) = resizing {
        return growth(&current, &wanted);
    }
    // The start of one container must not get another one OOM-killed; a resize lowers the limit when
    // it can.
    let is_used_up = |limit: u64| used.is_some_and(|used| used >= limit);
    match wanted.memory_limit {
        Some(limit) if is_used_up(limit) => CgroupConfig { memory_limit: None, ..wanted },
        Some(_) | None => wanted,
    }
}

fn growth(current: &CgroupConfig, wanted: &CgroupConfig) -> CgroupConfig {
    let mut grown = CgroupConfig::default();
    let parts = [
        Part::limit(Resource::Memory, current, wanted),
        Part::limit(Resource::Cpu, current, wanted),
        Part::request(Resource::Cpu, current, wanted),
    ];
    for part in parts.into_iter().flatten().filter(|part| part.grows) {
        merge(&mut grown, &part.set);
    }
    grown
}

/// A change of one value of the pod's cgroup.
struct Part {
    set: CgroupConfig,
    grows: bool,
}

impl Part {
    fn limit(resource: Resource, now: &CgroupConfig, wanted: &CgroupConfig) -> Option<Self> {
        // No limit is greater than any limit.
        let or_all = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        let (from, to, set) = match resource {
            Resource::Memory => {
                let to = wanted.memory_limit?;
                let set = CgroupConfig { memory_limit: Some(to), ..CgroupConfig::default() };
                (or_all(now.memory_limit), to, set)
            }
            Resource::Cpu => {
                let to = wanted.cpu_quota?;
                let set = CgroupConfig { cpu_quota: Some(to), ..CgroupConfig::default() };
                let micros = |quota: Option<CpuQuota>| or_all(quota.and_then(|quota| quota.micros));
                (micros(now.cpu_quota), micros(Some(to)), set)
            }
        };
        (from != to).then_some(Self { set, grows: to > from })
    }

    /// A memory request does not affect the cgroup.
    fn request(resource: Resource, now: &CgroupConfig, wanted: &CgroupConfig) -> Option<Self> {
        match resource {
            Resource::Memory => None,
            Resource::Cpu => {
                let (from, to) = (now.cpu_shares.unwrap_or(0), wanted.cpu_shares?);
                let set = CgroupConfig { cpu_shares: Some(to), ..CgroupConfig::default() };
                (from != to).then_some(Self { set, grows: to > from })
            }
        }
    }
}

fn merge(now: &mut CgroupConfig, set: &CgroupConfig) {
    now.memory_limit = set.memory_limit.or(now.memory_limit);
    now.cpu_quota = set.cpu_quota.or(now.cpu_quota);
    now.cpu_shares = set.cpu_shares.or(now.cpu_shares);
}

/// Sandbox resources for the runtime: the pod's cgroup without the sandbox overhead.
pub fn sandbox_resources(group: &CgroupConfig, overhead: &ResourceList) -> LinuxContainerResources {
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let quota = group.cpu_quota;
    let period = quota.map_or(0, |quota| quota.period_micros);
    let cpu = amount(overhead, CPU).milli_value();
    let less = |value: u64, cost: i64| signed(value).saturating_sub(cost).max(0);
    let quota_cost = cpu.saturating_mul(signed(period)) / 1000;
    LinuxContainerResources {
        cpu_period: signed(period),
        cpu_quota: quota
            .and_then(|quota| quota.micros)
            .map_or(0, |micros| less(micros, quota_cost)),
        cpu_shares: group
            .cpu_shares
            .map_or(0, |shares| less(shares, cpu.saturating_mul(1024) / 1000)),
        memory_limit_in_bytes: group
            .memory_limit
            .map_or(0, |limit| less(limit, amount(overhead, MEMORY).value())),
        ..LinuxContainerResources::default()
    }
}

/// Current memory usage of a pod in bytes; `None` where it is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    pub pod: Option<u64>,
    pub containers: BTreeMap<Arc<str>, Option<u64>>,
}

/// Containers whose memory limit decreases or is added, and whether the pod's does. Only these need
/// a usage check.
pub fn shrinking_memory(
    resize: &Resize,
    current: &CgroupConfig,
    wanted: &CgroupConfig,
) -> (Vec<ContainerResize>, bool) {
    let shrinks = |update: &&ContainerResize| {
        let (from, to) = (update.from.memory_limit, update.to.memory_limit);
        to != 0 && (from == 0 || to < from)
    };
    let limit = Part::limit(Resource::Memory, current, wanted);
    let pod = limit.is_some_and(|limit| !limit.grows);
    (resize.updates.iter().filter(shrinks).cloned().collect(), pod)
}

/// A limit below current usage would cause an OOM kill. The whole resize is refused before any part
/// of it is done.
pub fn objection(
    resize: &Resize,
    current: &CgroupConfig,
    wanted: &CgroupConfig,
    usage: &MemoryUse,
) -> Option<String> {
    let (containers, pod) = shrinking_memory(resize, current, wanted);
    let mut objections = Vec::new();
    if let Some(limit) = wanted.memory_limit.filter(|_| pod) {
        match usage.pod {
            None => objections.push("missing pod memory usage".to_owned()),
            Some(used) if used >= limit => objections.push(format!(
                "attempting to set pod memory limit ({limit}) below current usage ({used})"
            )),
            Some(_) => {}
        }
    }
    for ContainerResize { container, to, .. } in &containers {
        let limit = u64::try_from(to.memory_limit).unwrap_or(0);
        match usage.containers.get(container).copied().flatten() {
            None => objections.push(format!("missing container {:?} memory usage", &**container)),
            Some(used) if used >= limit => objections.push(format!(
                "attempting to set container {:?} memory limit ({limit}) below current usage ({used})",
                &**container
            )),
            Some(_) => {}
        }
    }
    let all = match objections.as_slice() {
        [] => return None,
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    Some(format!("cannot decrease memory limits: {all}"))
}
