//! Mounts and block devices of a container.
//!
//! [`requests`] lists the mounts in terms of the pod's mounted volumes. The shell opens and binds
//! each sub path before the runtime gets it, since a container could otherwise lead the runtime out
//! of the volume with a symbolic link. A request therefore names the sub path, and the bound path
//! is passed back by the index of the request.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1;
use podwright_api::validation::file_path::steps_up;
use podwright_proto::cri;

use super::env::Environment;
use super::error::ConfigError;
use super::expand::expand;
use super::facts::NodeFacts;
use crate::pod::{Container, Pod};

const ETC_HOSTS: &str = "/etc/hosts";

/// A volume that is set up for the pod's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    pub source: VolumeSource,
    /// No container may write to it, regardless of the mount.
    pub read_only: bool,
    /// It is relabelled with the pod's SELinux label.
    pub relabel: bool,
}

impl MountedVolume {
    /// Directory of its files on the host, if it has one.
    pub fn directory(&self) -> Option<&str> {
        match &self.source {
            VolumeSource::Directory(path) => Some(path),
            VolumeSource::Image { .. } | VolumeSource::Device { .. } => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// Path on the host.
    Directory(String),
    /// A pulled image: the resolved reference and the name in the pod spec.
    Image { reference: String, user_image: String },
    /// Link to a raw device; `None` if the device is gone, and then no container gets it.
    Device { link: Option<String> },
}

/// The pod's volumes by their names in its spec.
pub type Volumes = BTreeMap<String, MountedVolume>;

/// One mount of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct MountRequest {
    /// Index in the container's `volumeMounts`.
    pub index: usize,
    pub volume: String,
    pub what: Mountable,
    pub container_path: String,
    pub read_only: bool,
    pub recursive_read_only: bool,
    pub propagation: cri::MountPropagation,
    pub relabel: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Mountable {
    Directory(String),
    /// Created if missing, opened without following links, and bound to another path.
    SubPath {
        volume_path: String,
        sub_path: String,
    },
    Image {
        image: cri::ImageSpec,
        sub_path: String,
    },
}

/// All mounts of the container from the pod's volumes, in the order of its spec.
pub fn requests(
    pod: &Pod,
    container: &Container,
    environment: &Environment,
    volumes: &Volumes,
    facts: &NodeFacts,
    runtime_handler: &str,
) -> Result<Vec<MountRequest>, ConfigError> {
    let recursive = facts.supports_recursive_read_only(runtime_handler);
    let mounts = container.spec.volume_mounts.iter().flatten().enumerate();
    mounts
        .map(|(index, mount)| {
            let missing = || ConfigError::NoVolume {
                volume: mount.name.clone(),
                container: container.name.to_string(),
            };
            let volume = volumes.get(&mount.name).ok_or_else(missing)?;
            let sub_path = sub_path(mount, environment)?;
            let what = match &volume.source {
                VolumeSource::Directory(path) if sub_path.is_empty() => {
                    Mountable::Directory(path.clone())
                }
                VolumeSource::Directory(path) => {
                    Mountable::SubPath { volume_path: path.clone(), sub_path }
                }
                VolumeSource::Image { reference, user_image } => {
                    Mountable::Image { image: image(pod, reference, user_image), sub_path }
                }
                VolumeSource::Device { .. } => return Err(missing()),
            };
            let image = matches!(what, Mountable::Image { .. });
            Ok(MountRequest {
                index,
                volume: mount.name.clone(),
                what,
                container_path: absolute(&mount.mount_path),
                propagation: propagation(mount)?,
                recursive_read_only: recursive_read_only(mount, recursive)?,
                read_only: mount.read_only.unwrap_or(false) || volume.read_only || image,
                relabel: volume.relabel,
            })
        })
        .collect()
}

fn image(pod: &Pod, reference: &str, user_image: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: reference.to_owned(),
        user_specified_image: user_image.to_owned(),
        annotations: pod.object.metadata.annotations.clone().unwrap_or_default(),
        ..Default::default()
    }
}

/// Part of the volume to mount; empty for the whole volume.
fn sub_path(mount: &v1::VolumeMount, environment: &Environment) -> Result<String, ConfigError> {
    let template = mount.sub_path_expr.as_deref().unwrap_or_default();
    let path = match template {
        "" => mount.sub_path.clone().unwrap_or_default(),
        template => expanded(template, environment)?,
    };
    if path.starts_with('/') {
        return Err(ConfigError::AbsoluteSubPath { path });
    }
    if steps_up(&path) {
        return Err(ConfigError::BackstepsInSubPath { path });
    }
    Ok(path)
}

/// Stricter than elsewhere: with a missing value the path would be a different one.
fn expanded(template: &str, environment: &Environment) -> Result<String, ConfigError> {
    let mut missing = BTreeSet::new();
    let path = expand(template, |name| {
        let value = environment.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.insert(name.to_owned());
        }
        value
    });
    if !missing.is_empty() {
        return Err(ConfigError::MissingValue { names: missing.into_iter().collect() });
    }
    String::from_utf8(path)
        .map_err(|_| ConfigError::NotText { field: format!("subPathExpr {template:?}") })
}

fn propagation(mount: &v1::VolumeMount) -> Result<cri::MountPropagation, ConfigError> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(cri::MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(cri::MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => Ok(cri::MountPropagation::PropagationBidirectional),
        Some(mode) => Err(ConfigError::Propagation { mode: mode.to_owned() }),
    }
}

fn recursive_read_only(mount: &v1::VolumeMount, supported: bool) -> Result<bool, ConfigError> {
    let name = &mount.name;
    let refuse = |why: String| Err(ConfigError::RecursiveReadOnly { why });
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    if !mount.read_only.unwrap_or(false) {
        return refuse(format!(
            "volume {name:?} requested recursive read-only mode, but it is not read-only"
        ));
    }
    if let Some(propagation) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        return refuse(format!(
            "volume {name:?} requested recursive read-only mode, but it is not compatible with \
             propagation {propagation:?}"
        ));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => refuse(format!(
            "volume {name:?} requested recursive read-only mode, but it is not supported by the \
             runtime"
        )),
        mode => refuse(format!("unknown recursive read-only mode {mode:?}")),
    }
}

/// Whether the container gets an `/etc/hosts` that we write: the pod has an address, and no mount
/// of the container provides the file.
pub fn needs_etc_hosts(pod: &Pod, container: &Container, pod_ips: &[IpAddr]) -> bool {
    let mut mounts = container.spec.volume_mounts.iter().flatten();
    (pod.host_network || !pod_ips.is_empty()) && !mounts.any(|mount| mount.mount_path == ETC_HOSTS)
}

/// Path of the container's termination message; `None` if it has none.
pub fn termination_message_path(container: &Container) -> Option<String> {
    let path = container.spec.termination_message_path.as_deref();
    path.filter(|path| !path.is_empty()).map(absolute)
}

/// Volumes that the container gets as raw devices.
pub fn block_devices(
    container: &Container,
    volumes: &Volumes,
) -> Result<Vec<cri::Device>, ConfigError> {
    let mut devices = Vec::new();
    for v1::VolumeDevice { device_path, name } in container.spec.volume_devices.iter().flatten() {
        if !device_path.starts_with('/') {
            return Err(ConfigError::RelativeDevicePath { path: device_path.clone() });
        }
        let found = volumes.get(name).and_then(|volume| match &volume.source {
            VolumeSource::Device { link } => Some((volume, link)),
            VolumeSource::Directory(_) | VolumeSource::Image { .. } => None,
        });
        let (volume, link) = found.ok_or_else(|| ConfigError::NoBlockVolume {
            volume: name.clone(),
            container: container.name.to_string(),
        })?;
        devices.extend(link.clone().map(|host_path| cri::Device {
            container_path: device_path.clone(),
            host_path,
            permissions: if volume.read_only { "r" } else { "mrw" }.to_owned(),
        }));
    }
    Ok(devices)
}

/// All mounts of the container: volumes, then `/etc/hosts`, then the termination message file.
pub(super) fn assembled(
    container: &Container,
    requests: &[MountRequest],
    sub_paths: &BTreeMap<usize, String>,
    etc_hosts: Option<&str>,
    termination_log: Option<&str>,
    selinux: bool,
) -> Result<Vec<cri::Mount>, ConfigError> {
    let mut mounts = Vec::with_capacity(requests.len() + 2);
    for request in requests {
        let mut mount = cri::Mount {
            container_path: request.container_path.clone(),
            readonly: request.read_only,
            recursive_read_only: request.recursive_read_only,
            propagation: request.propagation.into(),
            selinux_relabel: request.relabel && selinux,
            ..Default::default()
        };
        match &request.what {
            Mountable::Directory(path) => mount.host_path.clone_from(path),
            Mountable::SubPath { .. } => {
                let bound = sub_paths.get(&request.index);
                mount.host_path =
                    bound.cloned().ok_or_else(|| ConfigError::SubPathNotPrepared {
                        volume: request.volume.clone(),
                        container: container.name.to_string(),
                    })?;
            }
            Mountable::Image { image, sub_path } => {
                mount.image = Some(image.clone());
                mount.image_sub_path.clone_from(sub_path);
            }
        }
        mounts.push(mount);
    }
    let file = |container_path: String, host_path: &str| cri::Mount {
        container_path,
        host_path: host_path.to_owned(),
        selinux_relabel: selinux,
        ..Default::default()
    };
    mounts.extend(etc_hosts.map(|host_path| file(ETC_HOSTS.to_owned(), host_path)));
    if let (Some(path), Some(host_path)) = (termination_message_path(container), termination_log) {
        mounts.push(file(path, host_path));
    }
    Ok(mounts)
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

#[cfg(test)]
#[path = "mounts/tests.rs"]
mod tests;
