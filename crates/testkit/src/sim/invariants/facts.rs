//! Facts of a run, from which invariants are checked: pods that the API showed, runtime calls, and
//! what happened to container instances.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_api::annotations::ANNOTATION_MIRROR;
use podwright_fake_runtime::{Call, InstanceChange, InstanceEvent};

use crate::sim::record::{RecordedPod, is_mirror};

pub(super) struct Facts {
    pub(super) recorded_pods: Vec<RecordedPod>,
    pub(super) calls: Vec<Call>,
    pub(super) changes: Vec<InstanceChange>,
}

/// One container of one pod, by the pod's UID on the node.
pub(super) type ContainerKey<'a> = (&'a str, &'a str);

impl Facts {
    /// The last shown spec of each pod, by its UID on the node.
    pub(super) fn specs(&self) -> BTreeMap<&str, &v1::PodSpec> {
        let specs = self
            .recorded_pods
            .iter()
            .filter_map(|recorded| Some((node_uid(&recorded.pod), recorded.pod.spec.as_ref()?)));
        specs.collect()
    }

    /// How often the image of a container changed.
    pub(super) fn image_changes(&self, (uid, container): ContainerKey<'_>) -> usize {
        let of_pod = self.recorded_pods.iter().filter(|recorded| node_uid(&recorded.pod) == uid);
        let mut images: Vec<Option<&str>> = of_pod
            .filter_map(|recorded| {
                let spec = recorded.pod.spec.as_ref()?;
                let all = spec.init_containers.iter().flatten().chain(&spec.containers);
                let found = all.into_iter().find(|c| c.name == container)?;
                Some(found.image.as_deref())
            })
            .collect();
        images.dedup();
        images.len().saturating_sub(1)
    }

    /// The changes of a container, each with the life of the pod that it belongs to.
    pub(super) fn changes_of<'a>(
        &'a self,
        (uid, container): ContainerKey<'a>,
    ) -> impl Iterator<Item = (usize, &'a InstanceChange)> {
        let of = move |c: &InstanceChange| c.pod.uid.as_str() == uid && c.container == container;
        self.lives().into_iter().zip(&self.changes).filter(move |(_, change)| of(change))
    }

    /// For each change, the life of its pod that it belongs to. A static pod that was removed and
    /// comes back has the same UID; its next life begins when nothing of the earlier one is left.
    pub(super) fn lives<'a>(&'a self) -> Vec<usize> {
        let mirrors = self.recorded_pods.iter().filter(|recorded| is_mirror(&recorded.pod));
        let of_static: BTreeSet<&str> = mirrors.map(|recorded| node_uid(&recorded.pod)).collect();
        let mut present: BTreeMap<&str, (usize, BTreeSet<&str>)> = BTreeMap::new();
        let life = |change: &'a InstanceChange| {
            let InstanceChange { pod, container_id, event, .. } = change;
            let (life, ids) = present.entry(pod.uid.as_str()).or_default();
            let now = *life;
            match event {
                InstanceEvent::Removed => {
                    ids.remove(container_id.as_str());
                    *life += usize::from(ids.is_empty() && of_static.contains(pod.uid.as_str()));
                }
                InstanceEvent::Adopted
                | InstanceEvent::Created
                | InstanceEvent::StartRequested
                | InstanceEvent::Started
                | InstanceEvent::Exited { .. }
                | InstanceEvent::StateLost
                | InstanceEvent::RemovedExternally => {
                    ids.insert(container_id.as_str());
                }
            }
            now
        };
        self.changes.iter().map(life).collect()
    }

    /// How often a container was restarted because the runtime lost an instance or its state.
    pub(super) fn losses(&self, of: ContainerKey<'_>) -> usize {
        let lost = |(_, change): &(usize, &InstanceChange)| match change.event {
            InstanceEvent::StateLost | InstanceEvent::RemovedExternally => true,
            InstanceEvent::Adopted
            | InstanceEvent::Created
            | InstanceEvent::StartRequested
            | InstanceEvent::Started
            | InstanceEvent::Exited { .. }
            | InstanceEvent::Removed => false,
        };
        self.changes_of(of).filter(lost).count()
    }

    /// When the pod was first shown with a deletion timestamp.
    pub(super) fn deleted_at(&self, uid: &str) -> Option<Duration> {
        let mut deleted = self.recorded_pods.iter().filter(|recorded| {
            node_uid(&recorded.pod) == uid
                && (recorded.gone || recorded.pod.metadata.deletion_timestamp.is_some())
        });
        deleted.next().map(|recorded| recorded.at)
    }
}

/// UID of a pod on the node: of a mirror pod, that of its static pod.
pub(super) fn node_uid(pod: &v1::Pod) -> &str {
    let annotations = pod.metadata.annotations.as_ref();
    let of_static = annotations.and_then(|all| all.get(ANNOTATION_MIRROR)).map(String::as_str);
    of_static.or(pod.metadata.uid.as_deref()).unwrap_or_default()
}

pub(super) fn is_sidecar(init: &v1::Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

pub(super) fn plain_init(spec: &v1::PodSpec) -> impl Iterator<Item = &v1::Container> {
    spec.init_containers.iter().flatten().filter(|init| !is_sidecar(init))
}

pub(super) fn sidecars(spec: &v1::PodSpec) -> impl Iterator<Item = &v1::Container> {
    spec.init_containers.iter().flatten().filter(|init| is_sidecar(init))
}
