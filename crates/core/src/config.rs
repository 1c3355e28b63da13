//! From a pod to what the runtime is told of it.
//!
//! Why all of it is here and pure: a wrong mount or a lost capability is found by comparing
//! messages with recordings of upstream, not by starting containers. The shell reads objects,
//! writes files and binds sub paths; what goes into the messages is chosen in this module.
//!
//! In the order of a start: [`sandbox()`] makes the sandbox; [`env::needs`] says which objects a
//! container's variables come from and [`Environment::build`] makes the variables;
//! [`mounts::requests`] says what is mounted where, and which sub paths have to be prepared first;
//! [`container()`] puts it together. A failure anywhere is a [`ConfigError`], whose text becomes
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
mod sample;
pub mod sandbox;
pub mod security;
pub mod services;

pub use container::{ContainerInputs, ContainerProvision, ResolvedImage, container};
pub use dns::{HostDns, ResolvConf};
pub use env::{EnvInputs, EnvSources, Environment, Lookup};
pub use error::ConfigError;
pub use facts::{CgroupVersion, IdMappings, Machine, NodeFacts, PodProvision, Swap, SwapBehaviour};
pub use hosts::HostNames;
pub use mounts::{MountRequest, MountedVolume};
pub use sandbox::{About, SandboxPlan, Warning, sandbox};
pub use security::ImageUser;
pub use services::ServiceView;

use crate::pod::Pod;

/// Where the logs of a pod's containers are: `<namespace>_<name>_<uid>` in the folder of all logs.
pub fn log_directory(pod: &Pod, facts: &NodeFacts) -> String {
    let logs = facts.pod_logs_dir.trim_end_matches('/');
    format!("{logs}/{}_{}_{}", pod.name.namespace, pod.name.name, pod.uid)
}

/// One instance's log, within the pod's log directory.
pub fn log_path(container: &str, attempt: u32) -> String {
    format!("{container}/{attempt}.log")
}
