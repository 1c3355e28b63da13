//! What a pod uses of the resources that pods are evicted for, and what it requested.

use std::sync::Arc;

use podwright_api::qos::{MEMORY, Overhead, PodResources, Requirements, amount};

use super::layout::Parts;
use crate::node_status::resources::EPHEMERAL_STORAGE;
use crate::pod::Pod;
use crate::stats::Used;

/// An active pod.
#[derive(Clone, Debug)]
pub struct PodUsage {
    /// With its allocated resources.
    pub pod: Arc<Pod>,
    /// `None`: nothing could be measured, such as of a pod that has not started.
    pub used: Option<PodUsed>,
}

#[derive(Clone, Debug, Default)]
pub struct PodUsed {
    /// Working set of the pod's cgroup.
    pub memory: Option<u64>,
    pub processes: Option<u64>,
    pub containers: Vec<ContainerUsage>,
    pub disk: Option<DiskUsage>,
}

#[derive(Clone, Debug, Default)]
pub struct ContainerUsage {
    pub name: Arc<str>,
    /// Working set.
    pub memory: Option<u64>,
    /// Writable layer.
    pub layer: Option<Used>,
    pub logs: Option<Used>,
}

/// Disk usage of a pod, but for its containers.
#[derive(Clone, Debug, Default)]
pub struct DiskUsage {
    /// Volumes that are measured.
    pub volumes: Vec<VolumeUsage>,
    /// Part of them that counts as the pod's ephemeral storage, with the files beside them.
    pub local: Used,
}

#[derive(Clone, Debug)]
pub struct VolumeUsage {
    pub name: String,
    pub used: Used,
}

impl PodUsed {
    /// The usage that counts for a file system.
    pub fn disk(&self, parts: Parts) -> Used {
        let containers = self.containers.iter().map(|container| {
            let layer = container.layer.filter(|_| parts.layers).unwrap_or_default();
            layer + container.logs.filter(|_| parts.logs).unwrap_or_default()
        });
        let containers: Used = containers.sum();
        let local = self.disk.as_ref().filter(|_| parts.volumes).map(|disk| disk.local);
        containers + local.unwrap_or_default()
    }

    /// Everything that counts towards the pod's limit of ephemeral storage.
    pub fn ephemeral_storage(&self) -> Used {
        self.disk(Parts { layers: true, logs: true, volumes: true })
    }
}

impl PodUsage {
    pub fn resources(&self) -> PodResources {
        let spec = self.pod.object.spec.as_ref();
        // Of a pod whose resources cannot be parsed, nothing is known to be requested.
        spec.and_then(|spec| PodResources::parse(spec).ok()).unwrap_or_default()
    }

    pub fn priority(&self) -> i32 {
        self.pod.object.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
    }
}

/// What a pod requested of memory and ephemeral storage, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    pub memory: u64,
    pub storage: u64,
}

impl Requested {
    pub fn of(resources: &PodResources) -> Self {
        let more = |resource| amount(&resources.overhead, resource).unsigned_value();
        match &resources.pod {
            Some(Requirements { requests, .. }) => Self {
                memory: amount(requests, MEMORY).unsigned_value().saturating_add(more(MEMORY)),
                storage: 0,
            },
            None => {
                let requests = resources.requests(Overhead::Included);
                Self {
                    memory: amount(&requests, MEMORY).unsigned_value(),
                    storage: amount(&requests, EPHEMERAL_STORAGE).unsigned_value(),
                }
            }
        }
    }
}
