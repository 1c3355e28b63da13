//! Security context of sandboxes and containers.
//!
//! Each field of the container takes precedence over the pod's. Some exist on one of the two only.

use k8s_openapi::api::core::v1;
use podwright_proto::cri;

use super::error::ConfigError;
use super::facts::{NodeFacts, PodProvision};
use super::{namespaces, profile};
use crate::pod::{Container, Pod};

/// Masked in containers: they expose information about the machine, or allow damage to it.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// User of an image, used unless the pod sets one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    Id(i64),
    Name(String),
}

impl ImageUser {
    /// From the runtime's image status; no user means root.
    pub fn new(uid: Option<i64>, name: &str) -> Self {
        match (uid, name) {
            (Some(uid), _) => Self::Id(uid),
            (None, "") => Self::Id(0),
            (None, name) => Self::Name(name.to_owned()),
        }
    }
}

pub fn of_sandbox(
    pod: &Pod,
    provision: &PodProvision,
    facts: &NodeFacts,
) -> Result<cri::LinuxSandboxSecurityContext, ConfigError> {
    let mut context = cri::LinuxSandboxSecurityContext {
        privileged: pod.containers.iter().any(is_privileged),
        seccomp: Some(profile::seccomp_of_sandbox()),
        ..Default::default()
    };
    let Some(own) = pod_context(pod) else { return Ok(context) };
    context.namespace_options = Some(namespaces::of_pod(pod, provision, facts)?);
    context.run_as_user = number(own.run_as_user);
    context.run_as_group = number(own.run_as_group);
    context.selinux_options = own.se_linux_options.as_ref().map(selinux);
    context.supplemental_groups.extend(own.fs_group);
    context.supplemental_groups.extend(&provision.volume_groups);
    context.supplemental_groups.extend(own.supplemental_groups.iter().flatten());
    context.supplemental_groups_policy = groups_policy(own)?.into();
    Ok(context)
}

/// `target`: the container whose processes an ephemeral container shares.
pub fn of_container(
    pod: &Pod,
    container: &Container,
    user: &ImageUser,
    target: Option<&str>,
    provision: &PodProvision,
    facts: &NodeFacts,
) -> Result<cri::LinuxContainerSecurityContext, ConfigError> {
    let of_pod = pod_context(pod);
    let own = container.spec.security_context.as_ref();
    let run_as_user = run_as_user(pod, container);
    let (run_as_user, run_as_username) = match (run_as_user, user) {
        (Some(uid), _) | (None, ImageUser::Id(uid)) => (Some(uid), String::new()),
        (None, ImageUser::Name(name)) => (None, name.clone()),
    };
    let run_as_group = own.and_then(|own| own.run_as_group);
    let selinux_options = own.and_then(|own| own.se_linux_options.as_ref());
    let escalation = own.and_then(|own| own.allow_privilege_escalation);
    let (masked_paths, readonly_paths) = hidden_paths(own, facts);
    let (apparmor, apparmor_profile) = profile::apparmor(pod, container)?.unzip();
    Ok(cri::LinuxContainerSecurityContext {
        capabilities: own.and_then(|own| own.capabilities.as_ref()).map(capabilities),
        privileged: is_privileged(container),
        namespace_options: Some(namespaces_of_container(pod, target, provision, facts)?),
        selinux_options: selinux_options
            .or_else(|| of_pod.and_then(|of_pod| of_pod.se_linux_options.as_ref()))
            .map(selinux),
        run_as_user: number(run_as_user.copied()),
        run_as_username,
        run_as_group: number(run_as_group.or_else(|| of_pod.and_then(|p| p.run_as_group))),
        readonly_rootfs: own.and_then(|own| own.read_only_root_filesystem).unwrap_or(false),
        supplemental_groups: groups(of_pod, provision),
        supplemental_groups_policy: match of_pod {
            Some(of_pod) => groups_policy(of_pod)?.into(),
            None => cri::SupplementalGroupsPolicy::Merge.into(),
        },
        no_new_privs: escalation == Some(false),
        masked_paths,
        readonly_paths,
        seccomp: Some(profile::seccomp(pod, container, facts)?),
        apparmor,
        apparmor_profile: apparmor_profile.unwrap_or_default(),
    })
}

/// Refuses a container with `runAsNonRoot` that would or could run as root.
pub fn verify_non_root(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
) -> Result<(), ConfigError> {
    let own = container.spec.security_context.as_ref().and_then(|own| own.run_as_non_root);
    let of_pod = pod_context(pod).and_then(|of_pod| of_pod.run_as_non_root);
    if !own.or(of_pod).unwrap_or(false) {
        return Ok(());
    }
    let (pod_text, container_text) = (pod.described(), container.name.to_string());
    match (run_as_user(pod, container), image) {
        (Some(0), _) => Err(ConfigError::RunAsRoot { pod: pod_text, container: container_text }),
        (Some(_), _) => Ok(()),
        (None, ImageUser::Id(0)) => {
            Err(ConfigError::ImageRunsAsRoot { pod: pod_text, container: container_text })
        }
        (None, ImageUser::Id(uid)) if i32::try_from(*uid).is_ok_and(|uid| uid > 0) => Ok(()),
        (None, ImageUser::Id(uid)) => Err(ConfigError::ImageUserInvalid {
            uid: *uid,
            pod: pod_text,
            container: container_text,
        }),
        (None, ImageUser::Name(user)) => Err(ConfigError::ImageUserNotNumeric {
            user: user.clone(),
            pod: pod_text,
            container: container_text,
        }),
    }
}

pub(super) fn pod_context(pod: &Pod) -> Option<&v1::PodSecurityContext> {
    pod.object.spec.as_ref()?.security_context.as_ref()
}

fn run_as_user<'a>(pod: &'a Pod, container: &'a Container) -> Option<&'a i64> {
    let own = container.spec.security_context.as_ref().and_then(|own| own.run_as_user.as_ref());
    own.or_else(|| pod_context(pod).and_then(|of_pod| of_pod.run_as_user.as_ref()))
}

fn is_privileged(container: &Container) -> bool {
    let own = container.spec.security_context.as_ref();
    own.and_then(|own| own.privileged).unwrap_or(false)
}

/// An ephemeral container joins its target's PID namespace, unless it shares it anyway.
fn namespaces_of_container(
    pod: &Pod,
    target: Option<&str>,
    provision: &PodProvision,
    facts: &NodeFacts,
) -> Result<cri::NamespaceOption, ConfigError> {
    let mut options = namespaces::of_pod(pod, provision, facts)?;
    if let Some(target) = target.filter(|_| options.pid() == cri::NamespaceMode::Container) {
        options.set_pid(cri::NamespaceMode::Target);
        options.target_id = target.to_owned();
    }
    Ok(options)
}

fn groups(of_pod: Option<&v1::PodSecurityContext>, provision: &PodProvision) -> Vec<i64> {
    let mut groups = Vec::new();
    if let Some(of_pod) = of_pod {
        groups.extend(of_pod.fs_group);
        groups.extend(of_pod.supplemental_groups.iter().flatten());
    }
    groups.extend(&provision.volume_groups);
    groups
}

fn groups_policy(
    of_pod: &v1::PodSecurityContext,
) -> Result<cri::SupplementalGroupsPolicy, ConfigError> {
    match of_pod.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => Ok(cri::SupplementalGroupsPolicy::Merge),
        Some("Strict") => Ok(cri::SupplementalGroupsPolicy::Strict),
        Some(policy) => Err(ConfigError::GroupsPolicy { policy: policy.to_owned() }),
    }
}

/// Masked and read-only paths; none with `procMount: Unmasked`.
fn hidden_paths(
    own: Option<&v1::SecurityContext>,
    facts: &NodeFacts,
) -> (Vec<String>, Vec<String>) {
    if own.and_then(|own| own.proc_mount.as_deref()) == Some("Unmasked") {
        return (Vec::new(), Vec::new());
    }
    let mut masked: Vec<_> = MASKED.map(str::to_owned).into();
    masked.extend(facts.thermal_paths.iter().cloned());
    (masked, READ_ONLY.map(str::to_owned).into())
}

fn capabilities(own: &v1::Capabilities) -> cri::Capability {
    cri::Capability {
        add_capabilities: own.add.clone().unwrap_or_default(),
        drop_capabilities: own.drop.clone().unwrap_or_default(),
        add_ambient_capabilities: Vec::new(),
    }
}

fn selinux(own: &v1::SELinuxOptions) -> cri::SeLinuxOption {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    cri::SeLinuxOption {
        user: text(&own.user),
        role: text(&own.role),
        r#type: text(&own.type_),
        level: text(&own.level),
    }
}

fn number(value: Option<i64>) -> Option<cri::Int64Value> {
    value.map(|value| cri::Int64Value { value })
}

#[cfg(test)]
#[path = "security/tests.rs"]
mod tests;
