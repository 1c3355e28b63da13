//! CRI configuration of a pod's sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1;
use podwright_proto::cri;

use super::error::ConfigError;
use super::facts::{NodeFacts, PodProvision};
use super::hosts::HostNames;
use super::{dns, labels, log_directory, resources, security};
use crate::pod::Pod;

/// Object of a warning event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarningTarget {
    Pod,
    Node,
}

/// An event to emit although the pod can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub about: WarningTarget,
    pub reason: &'static str,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SandboxPlan {
    pub config: cri::PodSandboxConfig,
    pub warnings: Vec<Warning>,
}

/// The pod's sandbox. The same message is part of every request to create a container in it.
pub fn sandbox(
    pod: &Pod,
    attempt: u32,
    facts: &NodeFacts,
    provision: &PodProvision,
) -> Result<SandboxPlan, ConfigError> {
    let (dns_config, warnings) = dns::for_pod(pod, facts, &provision.host_dns)?;
    let hostname = match pod.host_network {
        true => String::new(),
        false => HostNames::of(pod, facts)?.kernel_name(pod)?,
    };
    let (resources, overhead) = resources::of_sandbox(pod, facts, provision.exclusive_cpus)?;
    let config = cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod.name.name.to_string(),
            namespace: pod.name.namespace.to_string(),
            uid: pod.uid.to_string(),
            attempt,
        }),
        hostname,
        log_directory: log_directory(pod, facts),
        dns_config: Some(dns_config),
        port_mappings: ports(pod),
        labels: labels::of_sandbox(pod),
        annotations: pod.object.metadata.annotations.clone().unwrap_or_default(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: provision.cgroup_parent.clone(),
            security_context: Some(security::of_sandbox(pod, provision, facts)?),
            sysctls: sysctls(pod),
            overhead: Some(overhead),
            resources: Some(resources),
        }),
    };
    Ok(SandboxPlan { config, warnings })
}

/// Every port that a regular container declares, also those without a host port.
fn ports(pod: &Pod) -> Vec<cri::PortMapping> {
    let mut mappings = Vec::new();
    for container in pod.regular_containers() {
        let mut known = BTreeSet::new();
        let declared = container.spec.ports.iter().flatten();
        mappings.extend(declared.filter(|port| known.insert(port_key(port))).map(mapping));
    }
    mappings
}

/// Ports of one container with the same key are duplicates.
fn port_key(port: &v1::ContainerPort) -> String {
    if let Some(name) = port.name.as_ref().filter(|name| !name.is_empty()) {
        return name.clone();
    }
    let ip = port.host_ip.as_deref().unwrap_or_default();
    let family = match ip.parse() {
        Ok(IpAddr::V6(_)) => "v6",
        _ if ip.is_empty() => "any",
        _ => "v4",
    };
    let protocol = port.protocol.as_deref().unwrap_or_default();
    let host_port = port.host_port.unwrap_or(0);
    format!("{family}-{protocol}-{ip}:{}:{host_port}", port.container_port)
}

fn mapping(port: &v1::ContainerPort) -> cri::PortMapping {
    let protocol = match port.protocol.as_deref() {
        Some("UDP") => cri::Protocol::Udp,
        Some("SCTP") => cri::Protocol::Sctp,
        _ => cri::Protocol::Tcp,
    };
    cri::PortMapping {
        protocol: protocol.into(),
        container_port: port.container_port,
        host_port: port.host_port.unwrap_or(0),
        host_ip: port.host_ip.clone().unwrap_or_default(),
    }
}

fn sysctls(pod: &Pod) -> BTreeMap<String, String> {
    let context = pod.object.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let all = context.and_then(|context| context.sysctls.as_ref()).into_iter().flatten();
    all.map(|sysctl| (dotted(&sysctl.name), sysctl.value.clone())).collect()
}

/// Converts `net/ipv4/conf/eth0.1/forwarding` to `net.ipv4.conf.eth0/1.forwarding`, the only form
/// that runc accepts.
fn dotted(name: &str) -> String {
    if name.chars().find(|c| matches!(c, '.' | '/')) != Some('/') {
        return name.to_owned();
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    name.chars().map(swap).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::sample;
    use super::*;

    fn config(spec: Value) -> cri::PodSandboxConfig {
        let provision = PodProvision { cgroup_parent: "/pods/u1".into(), ..Default::default() };
        sandbox(&sample::pod(spec), 2, &sample::facts(), &provision).unwrap().config
    }

    #[test]
    fn sandbox_is_named_after_its_pod() {
        let got = config(json!({}));
        let metadata = got.metadata.unwrap();
        assert_eq!(
            (metadata.name, metadata.namespace, metadata.uid, metadata.attempt),
            ("web".to_owned(), "default".to_owned(), "u1".to_owned(), 2)
        );
        assert_eq!(
            (got.hostname, got.log_directory),
            ("web".into(), "/var/log/pods/default_web_u1".into())
        );
        assert_eq!(got.linux.unwrap().cgroup_parent, "/pods/u1");
    }

    #[test]
    fn on_the_host_network_the_hostname_is_unchanged() {
        assert_eq!(config(json!({"hostNetwork": true, "hostname": "h"})).hostname, "");
    }

    #[test]
    fn ports_of_regular_containers_are_listed_once() {
        let container = |name: &str, ports: Value| json!({"name": name, "ports": ports});
        let got = config(json!({
            "initContainers": [container("i", json!([{"containerPort": 1}]))],
            "containers": [
                container("a", json!([
                    {"containerPort": 80, "protocol": "TCP"},
                    {"containerPort": 80, "protocol": "TCP"},
                    {"containerPort": 80, "protocol": "UDP"},
                    {"containerPort": 80, "protocol": "TCP", "hostPort": 8080, "hostIP": "127.0.0.1"},
                    {"containerPort": 80, "protocol": "TCP", "hostPort": 8080, "hostIP": "::1"},
                    {"name": "x", "containerPort": 81, "protocol": "SCTP"},
                    {"name": "x", "containerPort": 82},
                    {"containerPort": 83, "protocol": "ODD"}])),
                container("b", json!([{"containerPort": 80, "protocol": "TCP"}]))]}));
        let ports: Vec<_> = got
            .port_mappings
            .iter()
            .map(|p| {
                (p.protocol().as_str_name(), p.container_port, p.host_port, p.host_ip.as_str())
            })
            .collect();
        assert_eq!(
            ports,
            [
                ("TCP", 80, 0, ""),
                ("UDP", 80, 0, ""),
                ("TCP", 80, 8080, "127.0.0.1"),
                ("TCP", 80, 8080, "::1"),
                ("SCTP", 81, 0, ""),
                ("TCP", 83, 0, ""),
                ("TCP", 80, 0, ""),
            ]
        );
    }

    #[test]
    fn sysctls_are_written_with_dots() {
        let names = [
            ("net.ipv4.ip_forward", "net.ipv4.ip_forward"),
            ("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
            ("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
            ("plain", "plain"),
        ];
        for (name, want) in names {
            let got =
                config(json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}}));
            assert_eq!(got.linux.unwrap().sysctls, BTreeMap::from([(want.into(), "1".into())]));
        }
    }

    #[test]
    fn warnings_are_part_of_the_plan() {
        let facts = NodeFacts { cluster_dns: Vec::new(), ..sample::facts() };
        let plan = sandbox(&sample::pod(json!({})), 0, &facts, &PodProvision::default()).unwrap();
        assert_eq!(plan.warnings.len(), 2);
    }
}
