//! Inputs of a pod's configuration besides the pod: node facts and per-pod provisions.

use std::net::IpAddr;

use podwright_api::qos::ResourceList;
use podwright_proto::cri;

use super::dns::HostDns;

/// The node, its configuration and its runtime as values.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// Node addresses; the family of the first one is preferred.
    pub host_ips: Vec<IpAddr>,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// Standalone node: missing cluster DNS servers are not reported.
    pub standalone: bool,
    /// Path of the node's resolver file; empty if pods must not use it. The content changes with
    /// the network, so it is read for each sandbox.
    pub resolv_conf: String,
    pub root_dir: String,
    pub pod_logs_dir: String,
    /// `seccompDefault`: a container without a profile gets the runtime's default profile.
    pub seccomp_default: bool,
    /// SELinux is enabled, so files are labelled for the containers.
    pub selinux: bool,
    /// `thermal_throttle` directories of this machine's CPUs, masked in containers.
    pub thermal_paths: Vec<String>,
    /// Default of resource field references for limits that a container does not set.
    pub allocatable: ResourceList,
    pub machine: Machine,
    /// Handlers that the runtime reports; empty if the runtime is too old to report them.
    pub handlers: Vec<cri::RuntimeHandler>,
}

/// Machine properties that resource settings depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes.
    pub memory: u64,
    /// Every huge page size in the kernel's format: `2MB`, `1GB`.
    pub hugepage_sizes: Vec<String>,
    pub cgroups: CgroupVersion,
    /// `cpuCFSQuotaPeriod` in microseconds; `None` if CPU limits are not enforced (`cpuCFSQuota`).
    pub cpu_quota_period: Option<u64>,
    /// Unless `singleProcessOOMKill`, an OOM kill ends the whole container. Requires cgroup v2.
    pub whole_container_oom: bool,
    /// `None`: the kernel has no swap controller.
    pub swap: Option<Swap>,
    /// `None`: containers are not throttled before they reach their memory limit.
    pub memory_qos: Option<MemoryQos>,
}

/// Throttling of memory (gate MemoryQoS), which requires cgroup v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`: the part of the way from the request to the limit, in millionths.
    pub factor: u32,
    /// In place of a limit that is not set, in bytes.
    pub allocatable: u64,
    /// Size of a memory page in bytes.
    pub page: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    pub behaviour: SwapBehaviour,
    /// Swap space of the machine in bytes.
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapBehaviour {
    NoSwap,
    LimitedSwap,
}

/// What the node has allocated for a pod before its sandbox exists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodProvision {
    /// Content of the node's resolver file.
    pub host_dns: HostDns,
    /// Cgroup of the pod in the format of the driver in use.
    pub cgroup_parent: String,
    /// Handler of the pod's RuntimeClass; empty for the default handler.
    pub runtime_handler: String,
    /// Id range of a pod with `hostUsers: false`.
    pub id_mappings: Option<IdMappings>,
    /// Supplemental groups that persistent volumes require.
    pub volume_groups: Vec<i64>,
    /// A container of the pod has exclusive CPUs, so the pod has no quota.
    pub exclusive_cpus: bool,
}

/// Mapping of ids inside a user namespace to ids of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IdMappings {
    pub uids: Vec<cri::IdMapping>,
    pub gids: Vec<cri::IdMapping>,
}

impl NodeFacts {
    fn handler(&self, name: &str) -> Option<&cri::RuntimeHandler> {
        self.handlers.iter().find(|handler| handler.name == name)
    }

    pub fn supports_recursive_read_only(&self, handler: &str) -> bool {
        supports_recursive_read_only(&self.handlers, handler)
    }

    /// `None`: the runtime reports its handlers, and this one is not among them.
    pub fn supports_user_namespaces(&self, handler: &str) -> Option<bool> {
        if self.handlers.is_empty() {
            return Some(false);
        }
        let handler = self.handler(handler)?;
        Some(handler.features.as_ref().is_some_and(|features| features.user_namespaces))
    }
}

/// Whether the handler of this name, among those that the runtime lists, can make mounts below a
/// read-only mount read-only as well.
pub fn supports_recursive_read_only(handlers: &[cri::RuntimeHandler], name: &str) -> bool {
    let handler = handlers.iter().find(|handler| handler.name == name);
    let features = handler.and_then(|handler| handler.features.as_ref());
    features.is_some_and(|features| features.recursive_read_only_mounts)
}
