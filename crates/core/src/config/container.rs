//! CRI configuration of one container.

use std::collections::BTreeMap;

use podwright_proto::cri;

use super::env::Environment;
use super::error::ConfigError;
use super::facts::{NodeFacts, PodProvision};
use super::mounts::{self, MountRequest};
use super::resources::{self, Placement};
use super::security::{self, ImageUser};
use super::{labels, log_path};
use crate::ids::ContainerId;
use crate::pod::{Container, Pod};

/// Image that a container's image name resolved to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedImage {
    /// The runtime's reference to the image.
    pub reference: String,
    pub user: ImageUser,
}

/// Devices, CPUs and memory nodes allocated to a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerProvision {
    pub devices: Vec<cri::Device>,
    /// CDI device names, which the runtime resolves.
    pub cdi_devices: Vec<String>,
    pub mounts: Vec<cri::Mount>,
    pub annotations: Vec<(String, String)>,
    pub placement: Placement,
}

pub struct ContainerInputs<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    /// Restart count of the new instance.
    pub attempt: u32,
    pub facts: &'a NodeFacts,
    pub pod_provision: &'a PodProvision,
    pub provision: &'a ContainerProvision,
    pub image: &'a ResolvedImage,
    pub environment: &'a Environment,
    /// From [`mounts::requests`].
    pub mounts: &'a [MountRequest],
    /// Host paths of the bound sub paths, by the index of their request.
    pub sub_paths: &'a BTreeMap<usize, String>,
    /// From [`mounts::block_devices`].
    pub block_devices: &'a [cri::Device],
    /// File on the host, set where [`mounts::needs_etc_hosts`].
    pub etc_hosts: Option<&'a str>,
    /// New file on the host, set where [`mounts::termination_message_path`].
    pub termination_log: Option<&'a str>,
    /// Newest instance of the container that an ephemeral container targets.
    pub target: Option<&'a ContainerId>,
}

/// The message with which the runtime creates the container.
pub fn container(inputs: &ContainerInputs<'_>) -> Result<cri::ContainerConfig, ConfigError> {
    let ContainerInputs { pod, container, attempt, facts, .. } = *inputs;
    let target = target(inputs)?;
    security::verify_non_root(pod, container, &inputs.image.user)?;
    let context = security::of_container(
        pod,
        container,
        &inputs.image.user,
        target,
        inputs.pod_provision,
        facts,
    )?;
    let placement = &inputs.provision.placement;
    let spec = &container.spec;
    let envs = inputs.environment.iter();
    Ok(cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: container.name.to_string(), attempt }),
        image: Some(cri::ImageSpec {
            image: inputs.image.reference.clone(),
            user_specified_image: container.image.to_string(),
            ..Default::default()
        }),
        command: expanded(inputs.environment, spec.command.as_deref(), "command")?,
        args: expanded(inputs.environment, spec.args.as_deref(), "args")?,
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        envs: envs
            .map(|(key, value)| cri::KeyValue { key: key.into(), value: value.into() })
            .collect(),
        mounts: all_mounts(inputs, &context)?,
        devices: inputs.provision.devices.iter().chain(inputs.block_devices).cloned().collect(),
        cdi_devices: inputs
            .provision
            .cdi_devices
            .iter()
            .map(|name| cri::CdiDevice { name: name.clone() })
            .collect(),
        labels: labels::of_container(pod, container),
        annotations: labels::annotations_of_container(
            pod,
            container,
            attempt,
            &inputs.provision.annotations,
        ),
        log_path: log_path(&container.name, attempt),
        stdin: spec.stdin.unwrap_or(false),
        stdin_once: spec.stdin_once.unwrap_or(false),
        tty: spec.tty.unwrap_or(false),
        stop_signal: stop_signal(container).into(),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(resources::of_container(pod, container, facts, placement)?),
            security_context: Some(context),
        }),
    })
}

/// `lifecycle.stopSignal`, which the pod has only while its feature gate is on. The names of the CRI
/// are those of the API, without signs.
fn stop_signal(container: &Container) -> cri::Signal {
    let lifecycle = container.spec.lifecycle.as_ref();
    let name = lifecycle.and_then(|lifecycle| lifecycle.stop_signal.as_deref()).unwrap_or_default();
    let name = name.replace('+', "PLUS").replace('-', "MINUS");
    cri::Signal::from_str_name(&name).unwrap_or(cri::Signal::RuntimeDefault)
}

fn target<'a>(inputs: &ContainerInputs<'a>) -> Result<Option<&'a str>, ConfigError> {
    match (&inputs.container.target, inputs.target) {
        (None, _) => Ok(None),
        (Some(_), Some(id)) => Ok(Some(id.as_str())),
        (Some(name), None) => Err(ConfigError::NoTarget { target: name.to_string() }),
    }
}

/// Command or arguments with variable references expanded.
fn expanded(
    environment: &Environment,
    words: Option<&[String]>,
    field: &str,
) -> Result<Vec<String>, ConfigError> {
    let words = words.unwrap_or_default().iter().enumerate();
    words.map(|(at, word)| environment.expand(word, &format!("{field}[{at}]"))).collect()
}

/// In a user namespace the files of every mount are mapped to the pod's ids.
fn all_mounts(
    inputs: &ContainerInputs<'_>,
    context: &cri::LinuxContainerSecurityContext,
) -> Result<Vec<cri::Mount>, ConfigError> {
    let mut all = inputs.provision.mounts.clone();
    all.extend(mounts::assembled(
        inputs.container,
        inputs.mounts,
        inputs.sub_paths,
        inputs.etc_hosts,
        inputs.termination_log,
        inputs.facts.selinux,
    )?);
    let users = context.namespace_options.as_ref().and_then(|o| o.userns_options.as_ref());
    if let Some(users) = users {
        for mount in &mut all {
            mount.uid_mappings.clone_from(&users.uids);
            mount.gid_mappings.clone_from(&users.gids);
        }
    }
    Ok(all)
}

#[cfg(test)]
#[path = "container/tests.rs"]
mod tests;
