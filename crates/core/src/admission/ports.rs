//! Host port conflicts between pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1;

use super::spec;
use crate::pod::Pod;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostPort<'a> {
    pub(super) address: &'a str,
    pub(super) protocol: &'a str,
    pub(super) port: i32,
}

const EVERY_ADDRESS: &str = "0.0.0.0";

pub(super) fn conflict(pod: &Pod, others: &[&Arc<Pod>]) -> bool {
    conflicts(pod, others).next().is_some()
}

/// The host ports that other pods have, with these pods.
pub(super) fn conflicts<'a>(
    pod: &Pod,
    others: &[&'a Arc<Pod>],
) -> impl Iterator<Item = (i32, &'a Arc<Pod>)> {
    let wanted: Vec<_> = host_ports(pod).collect();
    let others = if wanted.is_empty() { &[] } else { others };
    others.iter().flat_map(move |other| {
        let taken = host_ports(other);
        let both = taken.filter(|taken| wanted.iter().any(|wanted| wanted.collides(*taken)));
        both.map(|taken| (taken.port, *other)).collect::<Vec<_>>()
    })
}

impl HostPort<'_> {
    pub(super) fn collides(&self, other: HostPort<'_>) -> bool {
        let everywhere = self.address == EVERY_ADDRESS || other.address == EVERY_ADDRESS;
        self.port == other.port
            && self.protocol == other.protocol
            && (everywhere || self.address == other.address)
    }
}

/// Ports of long-running containers: regular containers and sidecars.
pub(super) fn host_ports(pod: &Pod) -> impl Iterator<Item = HostPort<'_>> {
    let spec = spec(pod);
    let regular = spec.into_iter().flat_map(|spec| &spec.containers);
    let init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars = init.filter(|init| init.restart_policy.as_deref() == Some("Always"));
    regular.chain(sidecars).flat_map(|container| container.ports.iter().flatten()).filter_map(taken)
}

fn taken(port: &v1::ContainerPort) -> Option<HostPort<'_>> {
    let address = port.host_ip.as_deref().filter(|address| !address.is_empty());
    let protocol = port.protocol.as_deref().filter(|protocol| !protocol.is_empty());
    Some(HostPort {
        address: address.unwrap_or(EVERY_ADDRESS),
        protocol: protocol.unwrap_or("TCP"),
        port: port.host_port.filter(|port| *port > 0)?,
    })
}
