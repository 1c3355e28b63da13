//! Linux resources of containers and sandboxes in CRI messages.
//!
//! Totals come from `qos`, formulas from `cgroup`; this module assigns them to the fields.

use std::collections::BTreeMap;

use podwright_api::qos::{
    CPU, HUGEPAGES, MEMORY, Overhead, PodResources, QosClass, Requirements, ResourceList, amount,
};
use podwright_api::quantity::Quantity;
use podwright_proto::cri;

use super::error::ConfigError;
use super::facts::{CgroupVersion, Machine, MemoryQos, NodeFacts, Swap, SwapBehaviour};
use crate::cgroup;
use crate::pod::{Container, Pod};

const MEMORY_HIGH: &str = "memory.high";
const OOM_GROUP: &str = "memory.oom.group";
const SWAP_MAX: &str = "memory.swap.max";
/// Lowest priority value that is reserved for the system.
const SYSTEM_PRIORITY: i32 = 2_000_000_000;
const NODE_CRITICAL: &str = "system-node-critical";

/// CPUs and memory nodes allocated to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// In the kernel's list format: `0-3,8`. Empty for any.
    pub cpus: String,
    pub memory_nodes: String,
    /// No other container uses these CPUs, so no quota is needed.
    pub exclusive: bool,
}

/// Resources of one container. Also used to update a running one.
pub fn of_container(
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
    placement: &Placement,
) -> Result<cri::LinuxContainerResources, ConfigError> {
    let machine = &facts.machine;
    let resources = parsed(pod)?;
    let class = QosClass::of(&pod.object)?;
    let own = requirements(&resources, &container.name).cloned().unwrap_or_default();
    let limit = |resource| {
        let own = amount(&own.limits, resource);
        let of_pod = resources.pod.as_ref().filter(|_| own.is_zero());
        of_pod.map_or(own, |of_pod| amount(&of_pod.limits, resource))
    };
    let (cpu, memory) = (own.requests.get(CPU).copied(), limit(MEMORY));
    let mut linux = basic(machine, cpu, limit(CPU), memory, placement.exclusive);
    linux.oom_score_adj = i64::from(cgroup::oom_score_adj(
        &resources,
        class,
        is_node_critical(pod),
        &container.name,
        machine.memory,
    ));
    linux.hugepage_limits = hugepages(machine, resources.pod.as_ref(), &own.limits);
    linux.cpuset_cpus.clone_from(&placement.cpus);
    linux.cpuset_mems.clone_from(&placement.memory_nodes);
    if let Some(swap) = machine.swap {
        let may_swap = class == QosClass::Burstable && !is_critical(pod);
        set_swap(&mut linux, machine, swap, &own, may_swap);
    }
    match (machine.memory_qos, machine.cgroups) {
        (Some(qos), CgroupVersion::V2) => set_memory_qos(&mut linux, qos, &own, class),
        (Some(_), CgroupVersion::V1) | (None, _) => {}
    }
    Ok(linux)
}

/// Resources of the pod's containers together, and the overhead of the sandbox.
pub fn of_sandbox(
    pod: &Pod,
    facts: &NodeFacts,
    exclusive_cpus: bool,
) -> Result<(cri::LinuxContainerResources, cri::LinuxContainerResources), ConfigError> {
    let machine = &facts.machine;
    let resources = parsed(pod)?;
    let requests = resources.requests(Overhead::Excluded);
    let limits = resources.limits(Overhead::Excluded);
    let (cpu, memory) = (amount(&limits, CPU), amount(&limits, MEMORY));
    let together = basic(machine, requests.get(CPU).copied(), cpu, memory, exclusive_cpus);
    let has_overhead = pod.object.spec.as_ref().is_some_and(|spec| spec.overhead.is_some());
    let overhead = if has_overhead {
        // The overhead is fixed, so it is both request and limit.
        let cpu = amount(&resources.overhead, CPU);
        basic(machine, Some(cpu), cpu, amount(&resources.overhead, MEMORY), false)
    } else {
        cri::LinuxContainerResources::default()
    };
    Ok((together, overhead))
}

fn parsed(pod: &Pod) -> Result<PodResources, ConfigError> {
    match &pod.object.spec {
        Some(spec) => Ok(PodResources::parse(spec)?),
        None => Ok(PodResources::default()),
    }
}

/// Requirements of a container. An ephemeral container has none.
pub(super) fn requirements<'a>(
    resources: &'a PodResources,
    name: &str,
) -> Option<&'a Requirements> {
    let regular = resources.containers.iter().find(|regular| regular.name == name);
    let init = || resources.init.iter().find(|init| init.name == name);
    regular.map(|regular| &regular.resources).or_else(|| init().map(|init| &init.resources))
}

fn basic(
    machine: &Machine,
    cpu_request: Option<Quantity>,
    cpu_limit: Quantity,
    memory_limit: Quantity,
    exclusive_cpus: bool,
) -> cri::LinuxContainerResources {
    let weighed = cpu_request.unwrap_or(cpu_limit);
    let mut linux = cri::LinuxContainerResources {
        cpu_shares: signed(cgroup::shares_from_milli_cpu(weighed.milli_value())),
        memory_limit_in_bytes: signed(memory_limit.unsigned_value()),
        ..Default::default()
    };
    if let Some(period) = machine.cpu_quota_period {
        let quota = cgroup::quota_from_milli_cpu(cpu_limit.milli_value(), period);
        linux.cpu_period = signed(period);
        linux.cpu_quota = if exclusive_cpus { -1 } else { quota.map_or(0, signed) };
    }
    match machine.cgroups {
        CgroupVersion::V2 if machine.whole_container_oom => {
            linux.unified.insert(OOM_GROUP.to_owned(), "1".to_owned());
        }
        CgroupVersion::V1 | CgroupVersion::V2 => {}
    }
    linux
}

/// Every page size of the machine is listed: sizes without a limit are forbidden. A container's
/// limit takes precedence over the pod's.
fn hugepages(
    machine: &Machine,
    pod: Option<&Requirements>,
    own: &ResourceList,
) -> Vec<cri::HugepageLimit> {
    let of_pod = pod.map(|pod| &pod.limits).into_iter().flatten();
    let mut allowed = BTreeMap::new();
    for (name, limit) in of_pod.chain(own) {
        let size = name.strip_prefix(HUGEPAGES).and_then(|size| size.parse::<Quantity>().ok());
        if let Some(size) = size {
            let size = cgroup::hugepage_size_name(size.unsigned_value());
            allowed.insert(size, limit.unsigned_value());
        }
    }
    let limit = |page_size: &String| cri::HugepageLimit {
        page_size: page_size.clone(),
        limit: allowed.get(page_size).copied().unwrap_or(0),
    };
    machine.hugepage_sizes.iter().map(limit).collect()
}

/// In cgroup v1 the limit covers memory and swap together, so swap is disabled by setting it to the
/// memory limit.
fn set_swap(
    linux: &mut cri::LinuxContainerResources,
    machine: &Machine,
    swap: Swap,
    own: &Requirements,
    may_swap: bool,
) {
    match machine.cgroups {
        CgroupVersion::V1 => linux.memory_swap_limit_in_bytes = linux.memory_limit_in_bytes,
        CgroupVersion::V2 => {
            let limit = match swap.behaviour {
                SwapBehaviour::LimitedSwap if may_swap => share_of_swap(machine, swap, own),
                SwapBehaviour::LimitedSwap | SwapBehaviour::NoSwap => 0,
            };
            linux.unified.insert(SWAP_MAX.to_owned(), limit.to_string());
        }
    }
}

/// Share of the swap in proportion to the container's share of the memory. There is none without a
/// memory request, or if the request equals the limit, which opts out of swap.
fn share_of_swap(machine: &Machine, swap: Swap, own: &Requirements) -> u128 {
    let request = amount(&own.requests, MEMORY);
    if request == amount(&own.limits, MEMORY) || request.unsigned_value() > machine.memory {
        return 0;
    }
    let share = u128::from(request.unsigned_value()) * u128::from(swap.total);
    share.checked_div(u128::from(machine.memory)).unwrap_or(0)
}

/// Above this usage the kernel reclaims memory of the container and slows it down. Nothing is
/// reserved; values of an earlier configuration are reset.
fn set_memory_qos(
    linux: &mut cri::LinuxContainerResources,
    qos: MemoryQos,
    own: &Requirements,
    class: QosClass,
) {
    for reservation in ["memory.min", "memory.low"] {
        linux.unified.insert(reservation.to_owned(), "0".to_owned());
    }
    let throttled = match class {
        QosClass::Burstable => throttling_threshold(qos, own),
        QosClass::Guaranteed | QosClass::BestEffort => None,
    };
    if let Some(bytes) = throttled {
        linux.unified.insert(MEMORY_HIGH.to_owned(), bytes.to_string());
    }
}

/// A part of the way from the request to the limit, in whole pages.
fn throttling_threshold(qos: MemoryQos, own: &Requirements) -> Option<u128> {
    const MILLION: u128 = 1_000_000;
    let request = u128::from(amount(&own.requests, MEMORY).unsigned_value());
    let limit = match u128::from(amount(&own.limits, MEMORY).unsigned_value()) {
        limit if limit == request => return None,
        0 => u128::from(qos.allocatable),
        limit => limit,
    };
    let above = limit.saturating_sub(request) * u128::from(qos.factor) / MILLION;
    let page = u128::from(qos.page);
    let threshold = (request + above).checked_div(page)? * page;
    (threshold > request).then_some(threshold)
}

/// Static pods and pods with a system priority.
pub fn is_critical(pod: &Pod) -> bool {
    let priority = pod.object.spec.as_ref().and_then(|spec| spec.priority);
    pod.is_static() || priority.is_some_and(|priority| priority >= SYSTEM_PRIORITY)
}

fn is_node_critical(pod: &Pod) -> bool {
    let class = pod.object.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
    is_critical(pod) && class == Some(NODE_CRITICAL)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "resources/tests.rs"]
mod tests;
