//! In which order a resize is carried out.
//!
//! Memory goes before CPU. What grows grows from the outside in, the pod's limit first, then its
//! request, then the containers; what shrinks shrinks from the inside out. Among containers those
//! that shrink go first. So at no moment do the parts have more than the whole.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use podwright_proto::cri::LinuxContainerResources;
use serde::{Deserialize, Serialize};

use super::{Amounts, Resize, Update};
use crate::cgroup::{CgroupConfig, CpuQuota};
use crate::qos::{CPU, MEMORY, ResourceList, amount};

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

/// One act of a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Sets this on the pod's group, after the runtime was told what it then has.
    Pod { set: CgroupConfig, then: CgroupConfig },
    /// Tells the runtime what a container has now.
    Container { update: Update, now: Amounts },
}

/// What is done for each resource, one after the other. `current` is what the pod's group has,
/// `wanted` what the grant makes of it. What `wanted` does not limit stays as it is: a limit cannot
/// be removed in place.
pub fn stages(
    resize: &Resize,
    current: &CgroupConfig,
    wanted: &CgroupConfig,
) -> [(Resource, Vec<Act>); 2] {
    let mut now = current.clone();
    [Resource::Memory, Resource::Cpu]
        .map(|resource| (resource, stage(resource, resize, &mut now, wanted)))
}

fn stage(
    resource: Resource,
    resize: &Resize,
    now: &mut CgroupConfig,
    wanted: &CgroupConfig,
) -> Vec<Act> {
    let mut acts = Vec::new();
    let amounts = |amounts: Amounts| match resource {
        Resource::Memory => amounts.memory(),
        Resource::Cpu => amounts.cpu(),
    };
    let changes = |update: &&Update| amounts(update.from) != amounts(update.to);
    let mut updates: Vec<&Update> = resize.updates.iter().filter(changes).collect();
    if updates.is_empty() && !resize.whole {
        return acts;
    }
    updates.sort_by_key(|update| Reverse(amounts(update.from) > amounts(update.to)));
    let limit = Part::limit(resource, now, wanted);
    let request = Part::request(resource, now, wanted);
    let mut pod = |part: Option<&Part>, acts: &mut Vec<Act>| {
        if let Some(part) = part {
            merge(now, &part.set);
            acts.push(Act::Pod { set: part.set.clone(), then: now.clone() });
        }
    };
    let (grows, shrinks) = (|part: &&Part| part.grows, |part: &&Part| !part.grows);
    pod(limit.as_ref().filter(grows), &mut acts);
    pod(request.as_ref().filter(grows), &mut acts);
    acts.extend(updates.into_iter().map(|update| {
        let before = match resource {
            Resource::Memory => update.from,
            // Memory had its turn.
            Resource::Cpu => update.from.with(Resource::Memory, update.to),
        };
        Act::Container { update: update.clone(), now: before.with(resource, update.to) }
    }));
    pod(request.as_ref().filter(shrinks), &mut acts);
    pod(limit.as_ref().filter(shrinks), &mut acts);
    acts
}

/// A value of the pod's group that changes.
struct Part {
    set: CgroupConfig,
    grows: bool,
}

impl Part {
    fn limit(resource: Resource, now: &CgroupConfig, wanted: &CgroupConfig) -> Option<Self> {
        // No limit is more than any.
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

    /// A memory request reaches no group.
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

/// What the runtime is told of the pod as a whole: its group without what the sandbox costs.
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

/// What a pod uses of its memory right now, in bytes; `None` where nobody knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    pub pod: Option<u64>,
    pub containers: BTreeMap<Arc<str>, Option<u64>>,
}

/// The containers whose memory limit goes down or appears, and whether the pod's does. Only then
/// somebody has to look at what they use.
pub fn shrinking_memory(
    resize: &Resize,
    current: &CgroupConfig,
    wanted: &CgroupConfig,
) -> (Vec<Update>, bool) {
    let shrinks = |update: &&Update| {
        let (from, to) = (update.from.memory_limit, update.to.memory_limit);
        to != 0 && (from == 0 || to < from)
    };
    let limit = Part::limit(Resource::Memory, current, wanted);
    let pod = limit.is_some_and(|limit| !limit.grows);
    (resize.updates.iter().filter(shrinks).cloned().collect(), pod)
}

/// A limit below what is in use would kill somebody. Better to refuse it as a whole, before
/// half of it is done.
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
    for Update { container, to, .. } in &containers {
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
