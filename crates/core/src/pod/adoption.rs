//! Adoption of static pods: whether a static pod continues one that runs under another UID.
//!
//! The UID of a static pod is a hash over its manifest, and each node agent, and each version of
//! it, computes another hash. The pod of the previous agent is adopted with its UID if nothing that
//! the runtime would be asked for differs: then a restart would create the same containers. What
//! cannot be compared is not adopted, and the pod is restarted.
//!
//! The agent applies the rest of the spec (probes, priority, tolerations) while containers run.

mod differences;

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1;
use podwright_api::annotations::{ANNOTATION_HASH, ANNOTATION_SOURCE};
use podwright_proto::cri;

use super::{Container, ContainerKind, Pod, Source};
use crate::config::env_file::EnvFile;
use crate::config::mounts::{self, VolumeSource, Volumes};
use crate::config::{
    self, ConfigError, ContainerInputs, ContainerProvision, EnvInputs, EnvSources, Environment,
    HostDns, ImageUser, Lookup, MountedVolume, NodeFacts, PodProvision, ResolvedImage, env,
    namespaces,
};
use crate::ids::PodUid;

/// A pod in the runtime, with the requests that created it.
#[derive(Clone, Debug)]
pub struct RecordedPod {
    pub uid: PodUid,
    /// Of its ready sandbox.
    pub sandbox: cri::PodSandboxConfig,
    pub handler: String,
    pub ips: Vec<IpAddr>,
    /// The newest instance of each container in this sandbox.
    pub containers: Vec<RecordedContainer>,
}

#[derive(Clone, Debug)]
pub struct RecordedContainer {
    pub config: cri::ContainerConfig,
    pub state: RecordedState,
    /// User of the image it was created from; `None`: the image is gone.
    pub image_user: Option<ImageUser>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedState {
    Running,
    Succeeded,
    /// It failed, or never ran.
    Other,
}

/// The node's part of the requests.
#[derive(Clone, Copy, Debug)]
pub struct AdoptingNode<'a> {
    pub facts: &'a NodeFacts,
    pub host_dns: &'a HostDns,
    /// Of the pod with the UID of the recorded one.
    pub cgroup_parent: &'a str,
}

/// Why a running pod is not adopted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("no container of it is running")]
    NothingRuns,
    #[error("its sandbox has another {field}")]
    Sandbox { field: &'static str },
    #[error("its container {container} has another {field}")]
    Container { container: String, field: &'static str },
    #[error("the manifest has no container {container}")]
    ExtraContainer { container: String },
    #[error("it is not known how its init container {container} ended")]
    InitContainer { container: String },
    #[error("its container {container} cannot be compared: {why}")]
    Unknown { container: String, why: String },
    #[error("{what} cannot be compared")]
    NotComparable { what: &'static str },
}

/// Whether the UID of a static pod was computed from its manifest. A UID that the manifest sets is
/// kept.
pub fn has_computed_uid(pod: &v1::Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    uid.len() == 32 && uid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The static pod with the UID of the pod it continues.
pub fn with_uid(pod: &v1::Pod, uid: &PodUid) -> v1::Pod {
    let mut pod = pod.clone();
    pod.metadata.uid = Some(uid.to_string());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(ANNOTATION_HASH.into(), uid.to_string());
    pod
}

/// The static pod as it is compared: with the UID of the other one and its source.
pub fn comparable(pod: &v1::Pod, source: Source, uid: &PodUid) -> Option<Pod> {
    let mut pod = with_uid(pod, uid);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(ANNOTATION_SOURCE.into(), source.as_str().into());
    Pod::parse(pod, source).ok()
}

/// Whether `running` is what this node would create for `pod`, which has its UID.
pub fn check(pod: &Pod, running: &RecordedPod, node: &AdoptingNode<'_>) -> Result<(), Mismatch> {
    let spec =
        pod.object.spec.as_ref().ok_or(Mismatch::NotComparable { what: "a pod without spec" })?;
    if spec.runtime_class_name.as_deref().is_some_and(|class| !class.is_empty()) {
        return Err(Mismatch::NotComparable { what: "its RuntimeClass" });
    }
    if namespaces::wants_own_users(pod) {
        return Err(Mismatch::NotComparable { what: "its user namespace" });
    }
    if !running.handler.is_empty() {
        return Err(Mismatch::Sandbox { field: "runtime handler" });
    }
    let volumes = volumes(pod, spec, node.facts)?;
    let provision = PodProvision {
        host_dns: node.host_dns.clone(),
        cgroup_parent: node.cgroup_parent.to_owned(),
        ..PodProvision::default()
    };
    let attempt = running.sandbox.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    let ours = config::sandbox(pod, attempt, node.facts, &provision)
        .map_err(|_| Mismatch::NotComparable { what: "its sandbox" })?;
    if let Some(field) = differences::of_sandboxes(ours.config, running.sandbox.clone()) {
        return Err(Mismatch::Sandbox { field });
    }
    let mut states = BTreeMap::new();
    for recorded in &running.containers {
        let name = name_of(&recorded.config);
        let Some(container) = pod.container(name) else {
            return Err(Mismatch::ExtraContainer { container: name.to_owned() });
        };
        states.insert(name, recorded.state);
        let comparison =
            Comparison { pod, container, running, volumes: &volumes, provision: &provision, node };
        comparison.check(recorded)?;
    }
    // Which of them ran before is unknown once the runtime has forgotten them.
    let of_init = pod.containers.iter().filter(|container| container.kind == ContainerKind::Init);
    for container in of_init {
        match states.get(&*container.name) {
            Some(RecordedState::Succeeded) => {}
            Some(RecordedState::Running | RecordedState::Other) | None => {
                return Err(Mismatch::InitContainer { container: container.name.to_string() });
            }
        }
    }
    match states.values().any(|state| *state == RecordedState::Running) {
        true => Ok(()),
        false => Err(Mismatch::NothingRuns),
    }
}

fn name_of(config: &cri::ContainerConfig) -> &str {
    config.metadata.as_ref().map_or("", |metadata| metadata.name.as_str())
}

fn pod_dir(pod: &Pod, facts: &NodeFacts) -> String {
    format!("{}/pods/{}", facts.root_dir.trim_end_matches('/'), pod.uid)
}

/// Where the volumes of the pod are on the host. Nothing is set up for this.
fn volumes(pod: &Pod, spec: &v1::PodSpec, facts: &NodeFacts) -> Result<Volumes, Mismatch> {
    let mut volumes = Volumes::new();
    for volume in spec.volumes.iter().flatten() {
        let below = |plugin: &str| {
            format!("{}/volumes/kubernetes.io~{plugin}/{}", pod_dir(pod, facts), volume.name)
        };
        let (path, read_only, relabel) = if let Some(host_path) = &volume.host_path {
            (host_path.path.clone(), false, false)
        } else if volume.empty_dir.is_some() {
            // The request does not show its medium.
            return Err(Mismatch::NotComparable { what: "an emptyDir" });
        } else if volume.downward_api.is_some() {
            (below("downward-api"), true, true)
        } else if volume.projected.is_some() {
            (below("projected"), true, true)
        } else {
            return Err(Mismatch::NotComparable { what: "a volume of its kind" });
        };
        let source = VolumeSource::Directory(path);
        volumes.insert(volume.name.clone(), MountedVolume { source, read_only, relabel });
    }
    Ok(volumes)
}

/// A container of the pod, and what its request is built from.
struct Comparison<'a> {
    pod: &'a Pod,
    container: &'a Container,
    running: &'a RecordedPod,
    volumes: &'a Volumes,
    provision: &'a PodProvision,
    node: &'a AdoptingNode<'a>,
}

impl Comparison<'_> {
    fn check(&self, recorded: &RecordedContainer) -> Result<(), Mismatch> {
        let container = || self.container.name.to_string();
        if !env::needs(self.container).is_empty() {
            let why = "its variables come from objects or files".to_owned();
            return Err(Mismatch::Unknown { container: container(), why });
        }
        if self.container.spec.volume_mounts.iter().flatten().any(has_sub_path) {
            let why = "it mounts a part of a volume".to_owned();
            return Err(Mismatch::Unknown { container: container(), why });
        }
        let Some(user) = &recorded.image_user else {
            let why = "its image is gone".to_owned();
            return Err(Mismatch::Unknown { container: container(), why });
        };
        let ours = self.config(&recorded.config, user).map_err(|error| Mismatch::Unknown {
            container: container(),
            why: error.to_string(),
        })?;
        match differences::of_containers(ours, recorded.config.clone()) {
            Some(field) => Err(Mismatch::Container { container: container(), field }),
            None => Ok(()),
        }
    }

    /// The request with which this node would create the recorded instance.
    fn config(
        &self,
        recorded: &cri::ContainerConfig,
        user: &ImageUser,
    ) -> Result<cri::ContainerConfig, ConfigError> {
        let (pod, container, facts) = (self.pod, self.container, self.node.facts);
        let pod_ips: &[IpAddr] = if pod.host_network { &[] } else { &self.running.ips };
        let environment = Environment::build(&EnvInputs {
            pod,
            container,
            pod_ips,
            facts,
            services: Some(&[]),
            sources: &NoSources,
            granted: &[],
        })?;
        let mounts = mounts::requests(pod, container, &environment, self.volumes, facts, "")?;
        let dir = pod_dir(pod, facts);
        let etc_hosts =
            mounts::needs_etc_hosts(pod, container, pod_ips).then(|| format!("{dir}/etc-hosts"));
        // The name of the file is random, its directory is not.
        let path = mounts::termination_message_path(container);
        let files = format!("{dir}/containers/{}/", container.name);
        let termination_log = path.map(|path| {
            let mount = recorded.mounts.iter().find(|mount| mount.container_path == path);
            let file = mount.map(|mount| mount.host_path.as_str());
            let file = file
                .filter(|file| file.strip_prefix(&files).is_some_and(|name| !name.contains('/')));
            file.map_or(files.clone(), str::to_owned)
        });
        let image = ResolvedImage {
            reference: recorded.image.as_ref().map(|image| image.image.clone()).unwrap_or_default(),
            user: user.clone(),
        };
        config::container(&ContainerInputs {
            pod,
            container,
            attempt: recorded.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
            facts,
            pod_provision: self.provision,
            provision: &ContainerProvision::default(),
            image: &image,
            environment: &environment,
            mounts: &mounts,
            sub_paths: &BTreeMap::new(),
            block_devices: &[],
            etc_hosts: etc_hosts.as_deref(),
            termination_log: termination_log.as_deref(),
            target: None,
        })
    }
}

/// The request shows where the part is mounted, and not which one it is.
fn has_sub_path(mount: &v1::VolumeMount) -> bool {
    let set = |path: &Option<String>| path.as_ref().is_some_and(|path| !path.is_empty());
    set(&mount.sub_path) || set(&mount.sub_path_expr)
}

/// A pod whose variables need an object or a file is not compared.
struct NoSources;

impl EnvSources for NoSources {
    fn config_map(&self, _: &str) -> Lookup<&v1::ConfigMap> {
        Lookup::NoApiServer
    }

    fn secret(&self, _: &str) -> Lookup<&v1::Secret> {
        Lookup::NoApiServer
    }

    fn file(&self, _: &str, _: &str) -> EnvFile<'_> {
        EnvFile::NoVolume
    }
}

#[cfg(test)]
mod tests;
