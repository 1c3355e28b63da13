//! What a configuration depends on besides the pod: the node, and what it has set aside.

use std::net::IpAddr;

use podwright_proto::cri;

use super::dns::HostDns;
use crate::qos::ResourceList;

/// The node, its configuration and its runtime, as values.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// The node's addresses; the first one's family is the preferred one.
    pub host_ips: Vec<IpAddr>,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// There is no cluster, so that nobody misses its name servers.
    pub alone: bool,
    /// The node's resolver file; empty if pods are not to use it. It changes with the network, so
    /// it is read for each sandbox.
    pub resolv_conf: String,
    pub root_dir: String,
    pub pod_logs_dir: String,
    /// `seccompDefault`: a container that asks for no profile gets the runtime's.
    pub seccomp_default: bool,
    /// SELinux is on, so files have to be labelled for the containers.
    pub selinux: bool,
    /// The `thermal_throttle` folders of this machine's CPUs, hidden from containers.
    pub thermal_paths: Vec<String>,
    /// Stands in for limits that a container does not have, where it asks for them.
    pub allocatable: ResourceList,
    pub machine: Machine,
    /// What the runtime said of its handlers; empty if it is too old to say.
    pub handlers: Vec<cri::RuntimeHandler>,
}

/// What resources are counted against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes.
    pub memory: u64,
    /// Every huge page size, as the kernel lists them: `2MB`, `1GB`.
    pub hugepage_sizes: Vec<String>,
    pub cgroups: CgroupVersion,
    /// `cpuCFSQuotaPeriod` in microseconds; `None` if CPU limits are not enforced (`cpuCFSQuota`).
    pub cpu_quota_period: Option<u64>,
    /// Unless `singleProcessOOMKill`, a container dies as a whole. The kernel can since cgroup v2.
    pub whole_container_oom: bool,
    /// `None`: the kernel has no swap controller.
    pub swap: Option<Swap>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    V1,
    V2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swap {
    pub behaviour: SwapBehaviour,
    /// The machine's swap space in bytes.
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapBehaviour {
    NoSwap,
    LimitedSwap,
}

/// What the node has set aside for a pod before its sandbox exists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodProvision {
    /// What the node's resolver file says.
    pub host_dns: HostDns,
    /// The pod's cgroup, in the form of the driver in use.
    pub cgroup_parent: String,
    /// What the pod's RuntimeClass resolves to; empty for the default handler.
    pub runtime_handler: String,
    /// The range of ids of a pod with `hostUsers: false`.
    pub id_mappings: Option<IdMappings>,
    /// Groups that persistent volumes want their users to be in.
    pub volume_groups: Vec<i64>,
    /// Some container of the pod has CPUs of its own, so the pod has no quota.
    pub exclusive_cpus: bool,
}

/// Ids inside a user namespace to ids of the node.
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
        let features = self.handler(handler).and_then(|handler| handler.features.as_ref());
        features.is_some_and(|features| features.recursive_read_only_mounts)
    }

    /// `None`: the runtime lists its handlers, and this one is not among them.
    pub fn supports_user_namespaces(&self, handler: &str) -> Option<bool> {
        if self.handlers.is_empty() {
            return Some(false);
        }
        let handler = self.handler(handler)?;
        Some(handler.features.as_ref().is_some_and(|features| features.user_namespaces))
    }
}
