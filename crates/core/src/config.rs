//! CRI configuration of a pod: the sandbox and container messages that the runtime gets.
//!
//! All of it is pure, so that a wrong mount or a lost capability is found by comparing messages
//! with recordings of the upstream kubelet, not by starting containers. The shell reads objects,
//! writes files and binds sub paths; the content of the messages is decided in this module.
//!
//! In the order of a container start: [`sandbox()`] builds the sandbox; [`env::needs`] lists the
//! objects that a container's variables refer to and [`Environment::build`] builds the variables;
//! [`mounts::requests`] lists the mounts and the sub paths that have to be prepared first;
//! [`container()`] assembles the message. Every failure is a [`ConfigError`], whose text becomes
//! the message of the container's waiting state.

pub mod container;
pub mod dns;
pub mod downward;
pub mod env;
pub mod env_file;
pub mod error;
pub mod expand;
pub mod facts;
pub mod hosts;
pub mod labels;
pub mod mounts;
pub mod namespaces;
pub mod profile;
pub mod resources;
#[cfg(test)]
pub(crate) mod sample;
pub mod sandbox;
pub mod security;
pub mod services;

pub use container::{ContainerInputs, ContainerProvision, ResolvedImage, container};
pub use dns::{HostDns, ResolvConf};
pub use env::{EnvInputs, EnvSources, Environment, Lookup};
pub use error::ConfigError;
pub use facts::supports_recursive_read_only;
pub use facts::{
    CgroupVersion, IdMappings, Machine, MemoryQos, NodeFacts, PodProvision, Swap, SwapBehaviour,
};
pub use hosts::HostNames;
pub use mounts::{MountRequest, MountedVolume};
pub use sandbox::{SandboxPlan, Warning, WarningTarget, sandbox};
pub use security::ImageUser;
pub use services::ServiceView;

use crate::pod::Pod;

/// Log directory of a pod: `<namespace>_<name>_<uid>` in the directory of all pod logs.
pub fn log_directory(pod: &Pod, facts: &NodeFacts) -> String {
    let logs = facts.pod_logs_dir.trim_end_matches('/');
    format!("{logs}/{}_{}_{}", pod.name.namespace, pod.name.name, pod.uid)
}

/// Log file of one container instance, relative to the pod's log directory.
pub fn log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}
