//! Node registration: the initial Node object, and the reconciliation of an existing one.

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_api::qos::HUGEPAGES;

use super::labels::SELF_LABELS;
use super::resources::is_extended;
use super::{OS, Settings};

const ANNOTATION_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Keeps pods away until the cloud controller has initialized the node.
const TAINT_UNINITIALISED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Initial object of a new node, without a status.
pub fn initial(settings: &Settings) -> v1::Node {
    let mut labels = settings.labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", settings.hostname.as_str()),
        ("kubernetes.io/os", OS),
        ("kubernetes.io/arch", settings.architecture),
        ("beta.kubernetes.io/os", OS),
        ("beta.kubernetes.io/arch", settings.architecture),
    ] {
        // A configured label takes precedence.
        labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    let mut taints = settings.taints.clone();
    if settings.external_cloud {
        taints.push(v1::Taint {
            key: TAINT_UNINITIALISED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let attach = settings.controller_attaches_volumes;
    let annotations = attach.then(|| [(ANNOTATION_ATTACH.to_owned(), "true".to_owned())].into());
    v1::Node {
        metadata: ObjectMeta {
            name: Some(settings.name.to_string()),
            labels: Some(labels),
            annotations,
            ..ObjectMeta::default()
        },
        spec: Some(v1::NodeSpec {
            taints: Some(taints).filter(|taints| !taints.is_empty()),
            provider_id: Some(settings.provider_id.clone()).filter(|id| !id.is_empty()),
            ..v1::NodeSpec::default()
        }),
        status: None,
    }
}

/// An existing object, reconciled with the configuration at start. `machine_id` is that of this
/// machine, if it could be read.
pub fn reconciled(existing: &v1::Node, settings: &Settings, machine_id: Option<&str>) -> v1::Node {
    let initial = initial(settings);
    let mut node = existing.clone();
    let annotations = node.metadata.annotations.get_or_insert_default();
    match initial.metadata.annotations {
        Some(own) => annotations.extend(own),
        None => drop(annotations.remove(ANNOTATION_ATTACH)),
    }
    let own = initial.metadata.labels.unwrap_or_default();
    let labels = node.metadata.labels.get_or_insert_default();
    // Only labels that describe the machine are updated. Other configured labels may have been
    // changed since by an administrator.
    let defaults = own.into_iter().filter(|(key, _)| SELF_LABELS.contains(&key.as_str()));
    labels.extend(defaults);
    let is_fresh = machine_id.is_some_and(|id| reported_by(existing) != Some(id));
    if let Some(status) = &mut node.status {
        forget_resources(status, is_fresh);
    }
    node
}

/// Huge pages are counted again. Extended resources stay, unless another machine published them:
/// device plugins register them again.
fn forget_resources(status: &mut v1::NodeStatus, is_fresh: bool) {
    let lists = [&mut status.capacity, &mut status.allocatable];
    for list in lists.into_iter().flatten() {
        list.retain(|name, _| !name.starts_with(HUGEPAGES));
        for (_, amount) in list.iter_mut().filter(|(name, _)| is_fresh && is_extended(name)) {
            amount.0 = "0".to_owned();
        }
    }
}

/// Machine id in the object, if another machine reported it last.
pub fn other_machine<'a>(existing: &'a v1::Node, machine_id: &str) -> Option<&'a str> {
    reported_by(existing).filter(|other| *other != machine_id)
}

/// The id of the machine that reported this object last.
fn reported_by(existing: &v1::Node) -> Option<&str> {
    let info = existing.status.as_ref()?.node_info.as_ref()?;
    Some(info.machine_id.as_str()).filter(|id| !id.is_empty())
}
