//! Addresses of the node and the pod in the status.
//!
//! A finished pod keeps its last addresses: they are replaced, never removed.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{HostIP, PodIP, PodStatus};

use crate::observed::ObservedPod;
use crate::pod::Pod;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// Addresses of the node, the preferred family first; at most one per family is reported.
    pub host_ips: Vec<IpAddr>,
}

pub(super) struct Addresses {
    pub host: Vec<HostIP>,
    pub pod: Vec<PodIP>,
}

pub(super) fn of(
    pod: &Pod,
    observed: &ObservedPod,
    node: &NodeAddresses,
    old: Option<&PodStatus>,
) -> Addresses {
    let hosts = one_per_family(&node.host_ips, prefers_v6(node));
    let reported = || old.and_then(|old| old.pod_ips.clone()).unwrap_or_default();
    let pod = if pod.host_network {
        with_hosts(reported(), &hosts)
    } else {
        let newest = observed.newest_sandbox().filter(|sandbox| sandbox.ready);
        match newest.and_then(|sandbox| sandbox.ips.as_ref()) {
            Some(ips) => pod_ips(&one_per_family(ips, prefers_v6(node))),
            None => reported(),
        }
    };
    let host = if hosts.is_empty() {
        old.and_then(|old| old.host_ips.clone()).unwrap_or_default()
    } else {
        hosts.iter().map(|ip| HostIP { ip: ip.to_string() }).collect()
    };
    Addresses { host, pod }
}

/// A pod on the host network keeps its first address; the second family may be added later.
fn with_hosts(mut reported: Vec<PodIP>, hosts: &[IpAddr]) -> Vec<PodIP> {
    let known = match reported.as_slice() {
        [] => return pod_ips(hosts),
        [only] => only.ip.parse::<IpAddr>().ok(),
        _ => None,
    };
    let second = hosts.get(1).filter(|ip| known.is_some_and(|k| k.is_ipv6() != ip.is_ipv6()));
    reported.extend(second.map(|ip| PodIP { ip: ip.to_string() }));
    reported
}

fn pod_ips(ips: &[IpAddr]) -> Vec<PodIP> {
    ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect()
}

fn prefers_v6(node: &NodeAddresses) -> bool {
    node.host_ips.first().is_some_and(IpAddr::is_ipv6)
}

fn one_per_family(ips: &[IpAddr], v6_first: bool) -> Vec<IpAddr> {
    let first_of = |v6: bool| ips.iter().copied().find(|ip| ip.is_ipv6() == v6);
    [v6_first, !v6_first].into_iter().filter_map(first_of).collect()
}
