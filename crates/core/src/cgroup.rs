//! How much of the machine each group of processes may have.
//!
//! Pure arithmetic from requests and limits to what the kernel is told, in the kernel's units, for
//! both cgroup versions: the values are compared with upstream's by dashboards, tests and the
//! scheduler's own sums, so the formulas and their rounding are upstream's. Where the groups live
//! is [`name`]; writing to them is the host crate's work.

pub mod name;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::name::{CgroupName, CgroupNameError, Driver, PodTree};
use crate::qos::{CPU, HUGEPAGES, MEMORY, Overhead, PodResources, QosClass, ResourceList, amount};
use crate::quantity::Quantity;

/// What the kernel takes for the least CPU weight in v1; also what "no request" means.
pub const MIN_SHARES: u64 = 2;
pub const MAX_SHARES: u64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
const MILLI_PER_CPU: i64 = 1000;
/// The kernel refuses quotas below one millisecond.
const MIN_QUOTA_MICROS: u64 = 1000;
/// The resource name under which process ids are reserved.
pub const PIDS: &str = "pid";

/// What to set on one group. `None` leaves the kernel's value as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupConfig {
    /// v1 `cpu.shares`; v2 takes [`weight_from_shares`] of it.
    #[serde(rename = "cpu_shares")]
    pub cpu_shares: Option<u64>,
    #[serde(rename = "cpu_quota")]
    pub cpu_quota: Option<CpuQuota>,
    /// Bytes.
    #[serde(rename = "memory_limit")]
    pub memory_limit: Option<u64>,
    #[serde(rename = "pids_limit")]
    pub pids_limit: Option<u64>,
    /// CPUs that may be used, as the kernel writes them: `0-3,8`.
    #[serde(rename = "cpus")]
    pub cpus: Option<String>,
    #[serde(rename = "hugepages")]
    pub hugepages: Hugepages,
}

/// CPU time per period, both in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuQuota {
    /// `None` is as much as there is.
    #[serde(rename = "micros")]
    pub micros: Option<u64>,
    #[serde(rename = "period_micros")]
    pub period_micros: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hugepages {
    #[default]
    #[serde(rename = "Leave")]
    Leave,
    /// Every size of the machine; for groups whose children are limited instead.
    #[serde(rename = "Unlimited")]
    Unlimited,
    /// Bytes allowed by page size in bytes; none of any size that is not listed.
    #[serde(rename = "Only")]
    Only(BTreeMap<u64, u64>),
}

/// Settings of the node that pod groups depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPolicy {
    /// `cpuCFSQuota`, and no exclusive CPUs: limits of CPU become quotas.
    #[serde(rename = "enforce_cpu_quota")]
    pub enforce_cpu_quota: bool,
    /// `cpuCFSQuotaPeriod`.
    #[serde(rename = "period_micros")]
    pub period_micros: u64,
    /// `podPidsLimit`, if there is one.
    #[serde(rename = "pids_limit")]
    pub pids_limit: Option<u64>,
}

impl Default for PodPolicy {
    fn default() -> Self {
        Self { enforce_cpu_quota: true, period_micros: 100_000, pids_limit: None }
    }
}

impl CgroupConfig {
    /// The group around all containers of a pod.
    pub fn for_pod(resources: &PodResources, class: QosClass, policy: PodPolicy) -> Self {
        let requests = resources.requests(Overhead::Included);
        let limits = resources.limits(Overhead::Included);
        // A container without a limit may use the whole node, so the pod may, too.
        let limited = |resource| match class {
            QosClass::Guaranteed => true,
            QosClass::Burstable => resources.is_limited(resource),
            QosClass::BestEffort => false,
        };
        let shares = match class {
            QosClass::Guaranteed | QosClass::Burstable => {
                shares_from_milli_cpu(amount(&requests, CPU).milli_value())
            }
            QosClass::BestEffort => MIN_SHARES,
        };
        Self {
            cpu_shares: Some(shares),
            cpu_quota: limited(CPU).then(|| policy.quota(amount(&limits, CPU))),
            memory_limit: limited(MEMORY).then(|| bytes(&limits, MEMORY)).flatten(),
            pids_limit: policy.pids_limit,
            cpus: None,
            hugepages: Hugepages::Only(hugepage_limits(&requests)),
        }
    }

    /// The group around all burstable pods: its weight against the others is what they request.
    pub fn for_burstable<'a>(pods: impl IntoIterator<Item = &'a PodResources>) -> Self {
        let milli = pods.into_iter().fold(0i64, |sum, pod| {
            let requests = pod.requests(Overhead::Included);
            sum.saturating_add(amount(&requests, CPU).milli_value())
        });
        Self {
            cpu_shares: Some(shares_from_milli_cpu(milli)),
            hugepages: Hugepages::Unlimited,
            ..Self::default()
        }
    }

    /// The group around all pods that request nothing: whatever the others leave.
    pub fn for_best_effort() -> Self {
        Self { hugepages: Hugepages::Unlimited, ..Self::least_cpu() }
    }

    /// The group around all pods. `limits` is what the node has less what is reserved; `cpus` are
    /// named so that systemd keeps the cpuset controller on for the groups below.
    pub fn for_all_pods(limits: &ResourceList, cpus: Option<String>) -> Self {
        Self { cpus, ..Self::for_reserved(limits, Reserved::Everything) }
    }

    /// A group of the system or of Kubernetes' own daemons, held to what is reserved for it.
    pub fn for_reserved(limits: &ResourceList, what: Reserved) -> Self {
        let cpu_shares =
            limits.get(CPU).map(|quantity| shares_from_milli_cpu(quantity.milli_value()));
        match what {
            Reserved::OnlyCpu => Self { cpu_shares, ..Self::default() },
            Reserved::Everything => Self {
                cpu_shares,
                memory_limit: bytes(limits, MEMORY),
                pids_limit: bytes(limits, PIDS),
                hugepages: Hugepages::Only(hugepage_limits(limits)),
                ..Self::default()
            },
        }
    }

    /// For the group of a pod that is gone but whose volumes are not: it must not get in the way.
    pub fn least_cpu() -> Self {
        Self { cpu_shares: Some(MIN_SHARES), ..Self::default() }
    }
}

/// Which reservations are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reserved {
    #[serde(rename = "Everything")]
    Everything,
    /// Only what can be taken back without killing anyone.
    #[serde(rename = "OnlyCpu")]
    OnlyCpu,
}

impl PodPolicy {
    fn quota(self, limit: Quantity) -> CpuQuota {
        let micros = quota_from_milli_cpu(limit.milli_value(), self.period_micros);
        CpuQuota {
            micros: micros.filter(|_| self.enforce_cpu_quota),
            period_micros: self.period_micros,
        }
    }
}

/// What is left of `capacity` for pods; never less than nothing.
pub fn less_reserved(capacity: &ResourceList, reserved: &[&ResourceList]) -> ResourceList {
    let left = |(name, have): (&String, &Quantity)| {
        let left = reserved.iter().fold(*have, |left, list| left - amount(list, name));
        let none = Quantity::new(0, have.format());
        (name.clone(), left.max(none))
    };
    capacity.iter().map(left).collect()
}

pub fn shares_from_milli_cpu(milli: i64) -> u64 {
    let shares = milli.saturating_mul(SHARES_PER_CPU) / MILLI_PER_CPU;
    u64::try_from(shares).unwrap_or(0).clamp(MIN_SHARES, MAX_SHARES)
}

/// `None` for zero, which is no limit.
pub fn quota_from_milli_cpu(milli: i64, period_micros: u64) -> Option<u64> {
    if milli == 0 {
        return None;
    }
    let milli = u128::try_from(milli).unwrap_or(0);
    let micros = milli * u128::from(period_micros) / 1000;
    Some(u64::try_from(micros).unwrap_or(u64::MAX).max(MIN_QUOTA_MICROS))
}

/// From v1's range, 2 to 262144, to v2's, 1 to 10000.
pub fn weight_from_shares(shares: u64) -> u64 {
    let above_least = shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES;
    1 + above_least * 9999 / (MAX_SHARES - MIN_SHARES)
}

/// Back from v2's range; coarser than what was written.
pub fn shares_from_weight(weight: u64) -> u64 {
    let above_least = weight.clamp(1, 10_000) - 1;
    MIN_SHARES + above_least * (MAX_SHARES - MIN_SHARES) / 9999
}

/// The request that gave these shares, as far as rounding lets us know.
pub fn milli_cpu_from_shares(shares: u64) -> i64 {
    if shares < MIN_SHARES {
        return 0;
    }
    i64::try_from(shares.saturating_mul(1000).div_ceil(1024)).unwrap_or(i64::MAX)
}

/// The limit that gave this quota; zero for none.
pub fn milli_cpu_from_quota(quota: CpuQuota) -> i64 {
    let Some(micros) = quota.micros else { return 0 };
    let milli = (u128::from(micros) * 1000).checked_div(u128::from(quota.period_micros));
    i64::try_from(milli.unwrap_or(0)).unwrap_or(i64::MAX)
}

/// The kernel's name for a page size, as in `hugetlb.2MB.max`.
pub fn hugepage_size_name(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        GIB.. => format!("{}GB", bytes / GIB),
        MIB.. => format!("{}MB", bytes / MIB),
        _ => format!("{}KB", bytes / KIB),
    }
}

/// Page size in bytes to bytes allowed, from `hugepages-<size>` entries.
fn hugepage_limits(list: &ResourceList) -> BTreeMap<u64, u64> {
    let mut limits = BTreeMap::new();
    for (name, allowed) in list {
        let size = name.strip_prefix(HUGEPAGES).and_then(|size| size.parse::<Quantity>().ok());
        if let Some(size) = size {
            let limit: &mut u64 = limits.entry(size.unsigned_value()).or_default();
            *limit = limit.saturating_add(allowed.unsigned_value());
        }
    }
    limits
}

/// A limit of zero is none: the kernel would kill or refuse everything.
fn bytes(list: &ResourceList, resource: &str) -> Option<u64> {
    Some(amount(list, resource).unsigned_value()).filter(|bytes| *bytes > 0)
}

/// Never killed for lack of memory before anyone else in a pod.
const KEPT: i32 = -997;
const GIVEN_UP_FIRST: i32 = 1000;

/// How readily the kernel gives up `container` when memory runs out.
///
/// Burstable containers range between the other classes: the more of the node's memory one
/// requests, the later it goes, since it was promised that much.
pub fn oom_score_adj(
    resources: &PodResources,
    class: QosClass,
    node_critical: bool,
    container: &str,
    memory_capacity: u64,
) -> i32 {
    if node_critical {
        return KEPT;
    }
    match class {
        QosClass::Guaranteed => return KEPT,
        QosClass::BestEffort => return GIVEN_UP_FIRST,
        QosClass::Burstable => {}
    }
    let share = unassigned_share(resources);
    let adj = |request: i64| {
        let promised = 1000 * (i128::from(request) + i128::from(share));
        1000 - promised.checked_div(i128::from(memory_capacity)).unwrap_or(0)
    };
    let request = |list: &ResourceList| amount(list, MEMORY).value();
    let init = resources.init.iter().find(|init| init.name == container);
    let regular = resources.containers.iter().find(|regular| regular.name == container);
    let own = init.map(|c| &c.resources).or(regular.map(|c| &c.resources));
    let mut score = adj(own.map_or(0, |own| request(&own.requests)));
    if init.is_some_and(|init| init.sidecar) {
        // The regular containers depend on it, so it must not go before all of them.
        let least = resources.containers.iter().map(|c| request(&c.resources.requests)).min();
        score = score.min(adj(least.unwrap_or(0)));
    }
    let (least, most) = (i128::from(1000 + KEPT), i128::from(GIVEN_UP_FIRST - 1));
    i32::try_from(score.clamp(least, most)).unwrap_or(GIVEN_UP_FIRST - 1)
}

/// What the pod as a whole requests beyond its containers, divided equally among them.
fn unassigned_share(resources: &PodResources) -> i64 {
    let Some(pod) = &resources.pod else { return 0 };
    let whole = amount(&pod.requests, MEMORY).value();
    let assigned = amount(&resources.container_requests(), MEMORY).value();
    let count = resources.containers.len() + resources.init.len();
    let left = whole.saturating_sub(assigned).max(0);
    left.checked_div(i64::try_from(count).unwrap_or(i64::MAX)).unwrap_or(0)
}

#[cfg(test)]
#[path = "cgroup/tests.rs"]
mod tests;
