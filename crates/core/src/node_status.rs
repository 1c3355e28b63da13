//! What the node says of itself.
//!
//! The Node object is how everyone else knows this machine: the scheduler reads what is left, the
//! controllers whether it lives, people what is wrong. Its words are upstream's, because alerts and
//! scripts match them. Everything here is a function from what was configured, what was seen and
//! what the API shows to what the API should show; [`patch`] is the difference, and [`Reports`]
//! says when a difference, or none, is worth a request.

pub mod addresses;
pub mod conditions;
mod images;
pub mod labels;
mod patch;
pub mod registration;
mod reports;
pub mod resources;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use podwright_proto::cri;

pub use self::conditions::{Pressure, Problem};
pub use self::images::Image;
pub use self::patch::{Unkept, patch};
pub use self::reports::Reports;
pub use self::resources::{Amounts, Reservations};

/// What the node was told about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub name: Arc<str>,
    /// The machine's name, or the one that was given instead.
    pub hostname: String,
    /// `--node-labels`.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<v1::Taint>,
    pub provider_id: String,
    /// `--node-ip`: none, one, or one of each family.
    pub node_ips: Vec<IpAddr>,
    /// A cloud's controller completes the object.
    pub external_cloud: bool,
    /// Volumes are attached by the control plane.
    pub controller_attaches_volumes: bool,
    /// Where the kubelet server listens.
    pub port: i32,
    pub max_pods: usize,
    /// `nodeStatusMaxImages`; `None` is all of them.
    pub max_images: Option<usize>,
    pub reservations: Reservations,
    pub kubelet_version: String,
    /// In the API's words: `amd64`.
    pub architecture: &'static str,
    /// Features whose presence the scheduler asks for, by gate name.
    pub declared_features: Vec<&'static str>,
}

/// What was seen of the machine and the runtime, now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    pub amounts: Amounts,
    /// `None` if the machine could not be read: the last word stands.
    pub identity: Option<Identity>,
    /// The machine's addresses; empty if there is none to tell.
    pub addresses: Vec<IpAddr>,
    /// `containerd://1.6.20`.
    pub runtime_version: String,
    /// `None` if the runtime did not say: the last list stands.
    pub images: Option<Vec<Image>>,
    pub handlers: Vec<cri::RuntimeHandler>,
    pub features: Option<cri::RuntimeFeatures>,
    pub pressure: Pressure,
    /// Why pods cannot be run.
    pub problems: Vec<Problem>,
    /// Attachable volumes that are mounted here, once that is known after a start.
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

/// Something to tell as an event of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

/// The object as it should be, made from the one that the API shows, and what that change means.
pub fn desired(
    shown: &v1::Node,
    settings: &Settings,
    seen: &Seen,
    now: Timestamp,
) -> (v1::Node, Vec<Notice>) {
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
    conditions::publish(status, &settings.name, seen, now, &mut notices);
    if let Some(volumes) = &seen.volumes_in_use {
        let volumes: Vec<String> = volumes.iter().cloned().collect();
        status.volumes_in_use = Some(volumes).filter(|list| !list.is_empty());
    }
    (node, notices)
}

/// Told again with every report: nobody else knows better.
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
    seen: &Seen,
    notices: &mut Vec<Notice>,
) {
    let info = status.node_info.get_or_insert_default();
    info.architecture = settings.architecture.to_owned();
    info.operating_system = OS.to_owned();
    info.kubelet_version.clone_from(&settings.kubelet_version);
    info.container_runtime_version.clone_from(&seen.runtime_version);
    if let Some(identity) = &seen.identity {
        if !info.boot_id.is_empty() && info.boot_id != identity.boot_id {
            let (name, boot) = (&settings.name, &identity.boot_id);
            notices.push(Notice {
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

/// `None` if the runtime is too old to say.
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
