//! Cgroup limits of pods, QoS classes and reserved daemons, for both cgroup versions.
//!
//! Pure arithmetic from requests and limits to kernel values. Dashboards, tests and the scheduler
//! compare these values with upstream's, so the formulas and their rounding are upstream's. The
//! paths of the cgroups are in [`name`]; the host crate writes to them.

pub mod name;

use std::collections::BTreeMap;

use podwright_api::qos::{
    CPU, HUGEPAGES, MEMORY, Overhead, PodResources, QosClass, ResourceList, amount,
};
use podwright_api::quantity::Quantity;
use serde::{Deserialize, Serialize};

pub use self::name::{CgroupName, CgroupNameError, Driver, PodTree};

/// Minimum CPU weight of cgroup v1; also used for "no request".
pub const MIN_SHARES: u64 = 2;
pub const MAX_SHARES: u64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
const MILLI_PER_CPU: i64 = 1000;
/// The kernel rejects quotas below one millisecond.
const MIN_QUOTA_MICROS: u64 = 1000;
/// Resource name under which process ids are reserved.
pub const PIDS: &str = "pid";

/// Settings of one cgroup. `None` leaves the kernel's value unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupConfig {
    /// v1 `cpu.shares`; [`weight_from_shares`] converts it for v2.
    #[serde(rename = "cpu_shares")]
    pub cpu_shares: Option<u64>,
    #[serde(rename = "cpu_quota")]
    pub cpu_quota: Option<CpuQuota>,
    /// Bytes.
    #[serde(rename = "memory_limit")]
    pub memory_limit: Option<u64>,
    #[serde(rename = "pids_limit")]
    pub pids_limit: Option<u64>,
    /// Allowed CPUs in the kernel's list format: `0-3,8`.
    #[serde(rename = "cpus")]
    pub cpus: Option<String>,
    #[serde(rename = "hugepages")]
    pub hugepages: Hugepages,
}

/// CPU time per period, both in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuQuota {
    /// `None` is unlimited.
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
    /// Every page size of the machine; for cgroups whose children are limited instead.
    #[serde(rename = "Unlimited")]
    Unlimited,
    /// Bytes allowed by page size in bytes; zero for every size that is not listed.
    #[serde(rename = "Only")]
    Only(BTreeMap<u64, u64>),
}

/// Node settings that pod cgroups depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodPolicy {
    /// `cpuCFSQuota` without exclusive CPUs: CPU limits become quotas.
    #[serde(rename = "enforce_cpu_quota")]
    pub enforce_cpu_quota: bool,
    /// `cpuCFSQuotaPeriod`.
    #[serde(rename = "period_micros")]
    pub period_micros: u64,
    /// `podPidsLimit`, if set.
    #[serde(rename = "pids_limit")]
    pub pids_limit: Option<u64>,
}

impl Default for PodPolicy {
    fn default() -> Self {
        Self { enforce_cpu_quota: true, period_micros: 100_000, pids_limit: None }
    }
}

/// Sum of the CPU requests of pods, in milli-CPUs. It is changed with each pod, so that no change
/// goes through all pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuRequests(i128);

impl CpuRequests {
    pub fn of_pod(pod: &PodResources) -> Self {
        Self(amount(&pod.requests(Overhead::Included), CPU).milli_value().into())
    }

    pub fn add(&mut self, pod: Self) {
        self.0 = self.0.saturating_add(pod.0);
    }

    /// `pod` was added before.
    pub fn remove(&mut self, pod: Self) {
        self.0 = self.0.saturating_sub(pod.0);
    }
}

impl CgroupConfig {
    /// Cgroup of a pod, the parent of its containers.
    pub fn for_pod(resources: &PodResources, class: QosClass, policy: PodPolicy) -> Self {
        let requests = resources.requests(Overhead::Included);
        let limits = resources.limits(Overhead::Included);
        // A container without a limit may use the whole node, so the pod has no limit either.
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

    /// Cgroup of all burstable pods: its CPU weight is the sum of their requests.
    pub fn for_burstable(requests: CpuRequests) -> Self {
        let milli = requests.0.clamp(0, i64::MAX.into());
        let milli = i64::try_from(milli).unwrap_or(i64::MAX);
        Self {
            cpu_shares: Some(shares_from_milli_cpu(milli)),
            hugepages: Hugepages::Unlimited,
            ..Self::default()
        }
    }

    /// Cgroup of all best-effort pods: minimum CPU weight.
    pub fn for_best_effort() -> Self {
        Self { hugepages: Hugepages::Unlimited, ..Self::least_cpu() }
    }

    /// Cgroup of all pods. `limits` is capacity less reservations. `cpus` is set so that systemd
    /// keeps the cpuset controller enabled for the child cgroups.
    pub fn for_all_pods(limits: &ResourceList, cpus: Option<String>) -> Self {
        Self { cpus, ..Self::for_reserved(limits, Reserved::Everything) }
    }

    /// Cgroup of system or Kubernetes daemons, limited to its reservation.
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

    /// For a finished pod whose volumes still exist: its cgroup stays with minimum CPU weight.
    pub fn least_cpu() -> Self {
        Self { cpu_shares: Some(MIN_SHARES), ..Self::default() }
    }
}

/// Memory of other classes that pods of a lower class must leave free (`qosReserved`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReserve {
    /// Of the requests, from 0 to 100.
    pub percent: u32,
    /// What all pods may use, in bytes.
    pub allocatable: u64,
}

/// Sum of the memory requests of pods, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryRequests(i128);

impl MemoryRequests {
    pub fn of_pod(pod: &PodResources) -> Self {
        Self(amount(&pod.requests(Overhead::Included), MEMORY).value().into())
    }

    pub fn add(&mut self, pod: Self) {
        self.0 = self.0.saturating_add(pod.0);
    }

    /// `pod` was added before.
    pub fn remove(&mut self, pod: Self) {
        self.0 = self.0.saturating_sub(pod.0);
    }
}

impl MemoryReserve {
    /// The limits of the burstable and of the best-effort class. `None`: nothing would be left, so
    /// the limit stays as it is.
    pub fn limits(
        self,
        guaranteed: MemoryRequests,
        burstable: MemoryRequests,
    ) -> (Option<u64>, Option<u64>) {
        let reserved = |requests: MemoryRequests| {
            requests.0.max(0).saturating_mul(i128::from(self.percent.min(100))) / 100
        };
        let for_burstable = i128::from(self.allocatable).saturating_sub(reserved(guaranteed));
        let for_best_effort = for_burstable.saturating_sub(reserved(burstable));
        let limit = |bytes: i128| u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        (limit(for_burstable), limit(for_best_effort))
    }
}

/// Resources of a reservation that are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reserved {
    #[serde(rename = "Everything")]
    Everything,
    /// Only compressible resources: enforcing them kills no process.
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

/// Capacity left for pods; at least zero.
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

/// `None` for zero, which means no limit.
pub fn quota_from_milli_cpu(milli: i64, period_micros: u64) -> Option<u64> {
    if milli == 0 {
        return None;
    }
    let milli = u128::try_from(milli).unwrap_or(0);
    let micros = milli * u128::from(period_micros) / 1000;
    Some(u64::try_from(micros).unwrap_or(u64::MAX).max(MIN_QUOTA_MICROS))
}

/// Converts v1's range, 2 to 262144, to v2's, 1 to 10000.
pub fn weight_from_shares(shares: u64) -> u64 {
    let above_least = shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES;
    1 + above_least * 9999 / (MAX_SHARES - MIN_SHARES)
}

/// Converts back from v2's range, which is coarser.
pub fn shares_from_weight(weight: u64) -> u64 {
    let above_least = weight.clamp(1, 10_000) - 1;
    MIN_SHARES + above_least * (MAX_SHARES - MIN_SHARES) / 9999
}

/// CPU request that produced these shares, subject to rounding.
pub fn milli_cpu_from_shares(shares: u64) -> i64 {
    if shares < MIN_SHARES {
        return 0;
    }
    i64::try_from(shares.saturating_mul(1000).div_ceil(1024)).unwrap_or(i64::MAX)
}

/// CPU limit that produced this quota; zero for none.
pub fn milli_cpu_from_quota(quota: CpuQuota) -> i64 {
    let Some(micros) = quota.micros else { return 0 };
    let milli = (u128::from(micros) * 1000).checked_div(u128::from(quota.period_micros));
    i64::try_from(milli.unwrap_or(0)).unwrap_or(i64::MAX)
}

/// Kernel name of a page size, as in `hugetlb.2MB.max`.
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

/// Bytes allowed by page size in bytes, from `hugepages-<size>` entries.
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

/// A limit of zero counts as none: otherwise the kernel would kill or refuse everything.
fn bytes(list: &ResourceList, resource: &str) -> Option<u64> {
    Some(amount(list, resource).unsigned_value()).filter(|bytes| *bytes > 0)
}

/// Score of critical and guaranteed pods, which the kernel kills last.
const KILLED_LAST: i32 = -997;
const KILLED_FIRST: i32 = 1000;

/// `oom_score_adj` of a container: the higher, the earlier the kernel kills it.
///
/// Burstable containers range between the other classes: the larger the share of node memory that a
/// container requests, the lower its score.
pub fn oom_score_adj(
    resources: &PodResources,
    class: QosClass,
    node_critical: bool,
    container: &str,
    memory_capacity: u64,
) -> i32 {
    if node_critical {
        return KILLED_LAST;
    }
    match class {
        QosClass::Guaranteed => return KILLED_LAST,
        QosClass::BestEffort => return KILLED_FIRST,
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
        // The regular containers depend on a sidecar, so it must not be killed before all of them.
        let least = resources.containers.iter().map(|c| request(&c.resources.requests)).min();
        score = score.min(adj(least.unwrap_or(0)));
    }
    let (least, most) = (i128::from(1000 + KILLED_LAST), i128::from(KILLED_FIRST - 1));
    i32::try_from(score.clamp(least, most)).unwrap_or(KILLED_FIRST - 1)
}

/// Pod-level request beyond the sum of the containers, divided equally among them.
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
