//! Pods that exceed their own limits of local storage.

use podwright_api::qos::{Overhead, PodResources, amount};
use podwright_api::quantity::Quantity;

use super::layout::DiskLayout;
use super::usage::{PodUsage, PodUsed};
use crate::node_status::resources::EPHEMERAL_STORAGE;
use crate::pod::Pod;

/// A limit that a pod exceeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excess {
    pub message: String,
    /// Label of the metric.
    pub kind: &'static str,
}

/// Whether a pod has a limit of local storage, so that it has to be measured.
pub fn is_limited(pod: &Pod) -> bool {
    let Some(spec) = &pod.object.spec else { return false };
    let volumes = spec.volumes.iter().flatten();
    let has_size = |volume: &k8s_openapi::api::core::v1::Volume| size_limit(volume).is_some();
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let resources = containers.filter_map(|container| container.resources.as_ref());
    let mut limits = resources.filter_map(|resources| resources.limits.as_ref());
    volumes.into_iter().any(has_size) || limits.any(|list| list.contains_key(EPHEMERAL_STORAGE))
}

/// The first limit that the pod exceeds. A pod without statistics exceeds none.
pub fn excess(pod: &PodUsage, layout: DiskLayout) -> Option<Excess> {
    let used = pod.used.as_ref()?;
    let resources = pod.resources();
    empty_dir(pod, used)
        .or_else(|| whole_pod(used, &resources))
        .or_else(|| container(used, &resources, layout))
}

fn size_limit(volume: &k8s_openapi::api::core::v1::Volume) -> Option<Quantity> {
    let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
    let limit = Quantity::try_from(limit).ok()?;
    (!limit.is_zero() && !limit.is_negative()).then_some(limit)
}

fn empty_dir(pod: &PodUsage, used: &PodUsed) -> Option<Excess> {
    let spec = pod.pod.object.spec.as_ref()?;
    let measured = &used.disk.as_ref()?.volumes;
    spec.volumes.iter().flatten().find_map(|volume| {
        let limit = size_limit(volume)?;
        let usage = measured.iter().find(|measured| measured.name == volume.name)?.used;
        (Quantity::from_bytes(usage.bytes) > limit).then(|| Excess {
            message: format!(
                "Usage of EmptyDir volume {:?} exceeds the limit \"{limit}\". ",
                volume.name
            ),
            kind: "emptydirfs.limit",
        })
    })
}

/// The limits of all containers that have one; all containers count.
fn whole_pod(used: &PodUsed, resources: &PodResources) -> Option<Excess> {
    let limits = resources.limits(Overhead::Included);
    let limit = amount(&limits, EPHEMERAL_STORAGE);
    let usage = Quantity::from_bytes(used.ephemeral_storage().bytes);
    (!limit.is_zero() && usage > limit).then(|| Excess {
        message: format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
        ),
        kind: "ephemeralpodfs.limit",
    })
}

/// Regular containers only.
fn container(used: &PodUsed, resources: &PodResources, layout: DiskLayout) -> Option<Excess> {
    resources.containers.iter().find_map(|container| {
        let limit = *container.resources.limits.get(EPHEMERAL_STORAGE)?;
        let name = &container.name;
        let usage = used.containers.iter().find(|usage| &*usage.name == name.as_str())?;
        let layer = usage.layer.filter(|_| layout.limits_layers()).unwrap_or_default();
        let bytes = (layer + usage.logs.unwrap_or_default()).bytes;
        (Quantity::from_bytes(bytes) > limit).then(|| Excess {
            message: format!(
                "Container {name} exceeded its local ephemeral storage limit \"{limit}\". "
            ),
            kind: "ephemeralcontainerfs.limit",
        })
    })
}
