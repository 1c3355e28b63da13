//! Node status: builds the Node object that this node reports.
//!
//! The scheduler reads allocatable resources from it, controllers read its health, users read its
//! problems. Its texts are upstream's, because alerts and scripts match on them. Everything here is
//! a function from configuration, observed machine state and the current API object to the desired
//! API object; [`patch`] is the difference, and [`ReportSchedule`] decides when to send it.

pub mod addresses;
pub mod conditions;
mod images;
pub mod labels;
mod patch;
pub mod registration;
mod reports;
pub mod resources;
pub mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use podwright_proto::cri;

pub use self::conditions::{Pressure, Problem};
pub use self::images::Image;
pub use self::patch::{DroppedFields, patch};
pub use self::reports::ReportSchedule;
pub use self::resources::{MachineResources, Reservations};

/// Configuration of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub name: Arc<str>,
    /// Host name of the machine, or the configured override.
    pub hostname: String,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<v1::Taint>,
    pub provider_id: String,
    /// `--node-ip`: none, one, or one of each family.
    pub node_ips: Vec<IpAddr>,
    /// A cloud controller completes the Node object.
    pub external_cloud: bool,
    /// The attach/detach controller attaches volumes.
    pub controller_attaches_volumes: bool,
    /// Port of the kubelet server.
    pub port: i32,
    pub max_pods: usize,
    /// `nodeStatusMaxImages`; `None` is unlimited.
    pub max_images: Option<usize>,
    pub reservations: Reservations,
    /// `localStorageCapacityIsolation: false`: local storage is no resource of the node.
    pub ignores_local_storage: bool,
    pub kubelet_version: String,
    /// In the API's format: `amd64`.
    pub architecture: &'static str,
    /// Feature gates that the scheduler can require.
    pub declared_features: Vec<&'static str>,
}

/// Observed state of the machine and the runtime.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeObservation {
    pub amounts: MachineResources,
    /// `None` if the machine could not be read: the last reported values stay.
    pub identity: Option<Identity>,
    /// Addresses of the machine; empty if there are none to report.
    pub addresses: Vec<IpAddr>,
    /// `containerd://1.6.20`.
    pub runtime_version: String,
    /// `None` if the runtime did not list its images: the last reported list stays.
    pub images: Option<Vec<Image>>,
    pub handlers: Vec<cri::RuntimeHandler>,
    pub features: Option<cri::RuntimeFeatures>,
    pub pressure: Pressure,
    /// Reasons why the node cannot run pods.
    pub problems: Vec<Problem>,
    /// Attachable volumes that are mounted on this node; `None` until known after a start.
    pub volumes_in_use: Option<BTreeSet<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
}

/// An event of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// Desired Node object, derived from the current API object, and events for the changes.
pub fn desired(
    shown: &v1::Node,
    settings: &Settings,
    seen: &NodeObservation,
    now: Timestamp,
) -> (v1::Node, Vec<NodeEvent>) {
    let mut node = shown.clone();
    let mut notices = Vec::new();
    os_labels(&mut node, settings);
    addresses::publish(&mut node, settings, &seen.addresses);
    let status = node.status.get_or_insert_default();
    resources::publish(status, settings, seen);
    system_info(status, settings, seen, &mut notices);
    status.daemon_endpoints = Some(v1::NodeDaemonEndpoints {
        kubelet_endpoint: Some(v1::DaemonEndpoint { port: settings.port }),
    });
    if let Some(images) = &seen.images {
        status.images = images::listed(images, settings.max_images);
    }
    status.runtime_handlers = runtime_handlers(&seen.handlers);
    status.features = seen.features.as_ref().map(|features| v1::NodeFeatures {
        supplemental_groups_policy: Some(features.supplemental_groups_policy),
    });
    let declared = settings.declared_features.iter().map(|&name| name.to_owned());
    status.declared_features = Some(declared.collect()).filter(|list: &Vec<_>| !list.is_empty());
    conditions::publish(status, settings, seen, now, &mut notices);
    if let Some(volumes) = &seen.volumes_in_use {
        let volumes: Vec<String> = volumes.iter().cloned().collect();
        status.volumes_in_use = Some(volumes).filter(|list| !list.is_empty());
    }
    (node, notices)
}

/// Set with every report: the node is the authority on these labels.
fn os_labels(node: &mut v1::Node, settings: &Settings) {
    let labels = node.metadata.labels.get_or_insert_default();
    for (key, value) in [("kubernetes.io/os", OS), ("kubernetes.io/arch", settings.architecture)] {
        labels.insert(key.to_owned(), value.to_owned());
    }
}

const OS: &str = "linux";

fn system_info(
    status: &mut v1::NodeStatus,
    settings: &Settings,
    seen: &NodeObservation,
    notices: &mut Vec<NodeEvent>,
) {
    let info = status.node_info.get_or_insert_default();
    info.architecture = settings.architecture.to_owned();
    info.operating_system = OS.to_owned();
    info.kubelet_version.clone_from(&settings.kubelet_version);
    info.container_runtime_version.clone_from(&seen.runtime_version);
    if let Some(identity) = &seen.identity {
        if !info.boot_id.is_empty() && info.boot_id != identity.boot_id {
            let (name, boot) = (&settings.name, &identity.boot_id);
            notices.push(NodeEvent {
                warning: true,
                reason: "Rebooted",
                message: format!("Node {name} has been rebooted, boot id: {boot}"),
            });
        }
        info.machine_id.clone_from(&identity.machine_id);
        info.system_uuid.clone_from(&identity.system_uuid);
        info.boot_id.clone_from(&identity.boot_id);
        info.kernel_version.clone_from(&identity.kernel_version);
        info.os_image.clone_from(&identity.os_image);
    }
    let swap = i64::try_from(seen.amounts.swap).ok().filter(|bytes| *bytes > 0);
    info.swap = swap.map(|bytes| v1::NodeSwapStatus { capacity: Some(bytes) });
}

/// `None` if the runtime is too old to report them.
fn runtime_handlers(handlers: &[cri::RuntimeHandler]) -> Option<Vec<v1::NodeRuntimeHandler>> {
    let mut list: Vec<_> = handlers
        .iter()
        .map(|handler| v1::NodeRuntimeHandler {
            name: Some(handler.name.clone()),
            features: handler.features.as_ref().map(|has| v1::NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(has.recursive_read_only_mounts),
                user_namespaces: Some(has.user_namespaces),
            }),
        })
        .collect();
    list.sort_by(|a, b| a.name.cmp(&b.name));
    Some(list).filter(|list| !list.is_empty())
}

#[cfg(test)]
#[path = "node_status/tests.rs"]
mod tests;
