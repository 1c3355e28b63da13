//! Validation of security contexts, sysctls and user namespaces.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, PodSecurityContext, PodSpec, SeccompProfile,
};

use super::field::{Errors, Internal};
use super::{each_container, file_path, format, text, windows};
use crate::schema::{Path, Type};

const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
/// Longest path that the kernel accepts, without the terminating NUL.
const PATH_LIMIT: usize = 4095;

pub(super) fn of_container(
    container: &Container,
    host_users: bool,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(context) = &container.security_context else { return };
    id(context.run_as_user, &field.child("runAsUser"), errors);
    id(context.run_as_group, &field.child("runAsGroup"), errors);
    if let Some(mount) = context.proc_mount.as_deref() {
        let field = field.child("procMount");
        if !["Default", "Unmasked"].contains(&mount) {
            errors.not_supported(&field, mount, &["Default", "Unmasked"]);
        }
        if host_users && mount == "Unmasked" {
            errors.invalid(&field, mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    seccomp(context.seccomp_profile.as_ref(), &field.child("seccompProfile"), errors);
    if context.allow_privilege_escalation == Some(false) {
        let shown = || Internal(Type::Struct("SecurityContext"), context);
        if context.privileged == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.invalid(field, shown(), detail);
        }
        let added =
            context.capabilities.as_ref().and_then(|capabilities| capabilities.add.as_ref());
        for _ in added.into_iter().flatten().filter(|name| *name == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` \
                          CAP_SYS_ADMIN";
            errors.invalid(field, shown(), detail);
        }
    }
    windows::options(context.windows_options.as_ref(), &field.child("windowsOptions"), errors);
    app_armor(context.app_armor_profile.as_ref(), &field.child("appArmorProfile"), errors);
}

pub(super) fn of_pod(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let Some(context) = &spec.security_context else { return };
    let field = field.child("securityContext");
    id(context.fs_group, &field.child("fsGroup"), errors);
    id(context.run_as_user, &field.child("runAsUser"), errors);
    id(context.run_as_group, &field.child("runAsGroup"), errors);
    let at_groups = field.child("supplementalGroups");
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        id(Some(*group), &at_groups.index(index), errors);
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(&field.child("shareProcessNamespace"), true, detail);
    }
    sysctls(spec, context, &field.child("sysctls"), errors);
    let one_of = |name, value: &Option<String>, known: &[&str], errors: &mut Errors| {
        if let Some(value) = value.as_deref().filter(|value| !known.contains(value)) {
            errors.not_supported(&field.child(name), value, known);
        }
    };
    let policies = ["Always", "OnRootMismatch"];
    one_of("fsGroupChangePolicy", &context.fs_group_change_policy, &policies, errors);
    seccomp(context.seccomp_profile.as_ref(), &field.child("seccompProfile"), errors);
    windows::options(context.windows_options.as_ref(), &field.child("windowsOptions"), errors);
    app_armor(context.app_armor_profile.as_ref(), &field.child("appArmorProfile"), errors);
    let policies = ["Merge", "Strict"];
    one_of("supplementalGroupsPolicy", &context.supplemental_groups_policy, &policies, errors);
    let policies = ["MountOption", "Recursive"];
    one_of("seLinuxChangePolicy", &context.se_linux_change_policy, &policies, errors);
}

fn id(id: Option<i64>, field: &Path<'_>, errors: &mut Errors) {
    if let Some(id) = id {
        errors.malformed(field, id, &format::user_id(id));
    }
}

fn sysctls(spec: &PodSpec, context: &PodSecurityContext, field: &Path<'_>, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let field = field.index(index);
        let field = field.child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            errors.required(&field, "");
        } else if !format::is_sysctl_name(name) {
            let segment = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
            let detail = format!(
                "must have at most 253 characters and match regex ^({segment}[\\./])*{segment}$"
            );
            errors.invalid(&field, name, &detail);
        } else if names.contains(name) {
            errors.duplicate(&field, name);
        }
        match namespace_of(name) {
            Some(Namespace::Net) if spec.host_network == Some(true) => {
                errors.invalid(&field, name, "may not be specified when 'hostNetwork' is true");
            }
            Some(Namespace::Ipc) if spec.host_ipc == Some(true) => {
                errors.invalid(&field, name, "may not be specified when 'hostIPC' is true");
            }
            Some(Namespace::Net | Namespace::Ipc) | None => {}
        }
        names.insert(name);
    }
}

#[derive(Clone, Copy)]
enum Namespace {
    Ipc,
    Net,
}

/// The namespace of a kernel setting, if it is namespaced.
fn namespace_of(name: &str) -> Option<Namespace> {
    const IPC: [&str; 10] = [
        "kernel.msg",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.sem",
        "kernel.shm",
        "kernel.shm_rmid_forced",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
    ];
    // The first separator decides which of the two spellings it is.
    let slashes = name.chars().find(|c| matches!(c, '.' | '/')) == Some('/');
    let name = if slashes { name.replace('/', ".") } else { name.to_owned() };
    if IPC.contains(&name.as_str()) || name.starts_with("fs.mqueue.") {
        return Some(Namespace::Ipc);
    }
    name.starts_with("net.").then_some(Namespace::Net)
}

fn seccomp(profile: Option<&SeccompProfile>, field: &Path<'_>, errors: &mut Errors) {
    let Some(profile) = profile else { return };
    let at_type = field.child("type");
    match profile.type_.as_str() {
        "" => errors.required(&at_type, "type is required when seccompProfile is set"),
        kind if PROFILES.contains(&kind) => {}
        other => errors.not_supported(&at_type, other, &PROFILES),
    }
    let at_file = field.child("localhostProfile");
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", None) => {
            errors.required(&at_file, "must be set when seccomp type is Localhost");
        }
        ("Localhost", Some(file)) => file_path::below(file, &at_file, errors),
        (_, Some(_)) => {
            let shown = Internal(Type::Struct("SeccompProfile"), profile);
            errors.invalid(&at_file, shown, "can only be set when seccomp type is Localhost");
        }
        (_, None) => {}
    }
}

pub(super) fn app_armor(profile: Option<&AppArmorProfile>, field: &Path<'_>, errors: &mut Errors) {
    let Some(profile) = profile else { return };
    let at_file = field.child("localhostProfile");
    match profile.type_.as_str() {
        "Localhost" => {
            let missing = "must be set when AppArmor type is Localhost";
            let Some(file) = &profile.localhost_profile else {
                return errors.required(&at_file, missing);
            };
            if file.trim() != file {
                errors.invalid(&at_file, file, "must not be padded with whitespace");
            } else if file.is_empty() {
                errors.required(&at_file, missing);
            }
            if file.len() > PATH_LIMIT {
                errors.too_long(&at_file, PATH_LIMIT);
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if let Some(file) = &profile.localhost_profile {
                errors.invalid(&at_file, file, "can only be set when AppArmor type is Localhost");
            }
        }
        "" => {
            let detail = "type is required when appArmorProfile is set";
            errors.required(&field.child("type"), detail);
        }
        other => errors.not_supported(&field.child("type"), other, &PROFILES),
    }
}

/// A pod with its own user namespace cannot share the host's other namespaces.
pub(super) fn own_users(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    if spec.host_users != Some(false) {
        return;
    }
    let detail = "when `hostUsers` is false";
    // The capital letters are the API server's.
    for (name, set) in
        [("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)]
    {
        if set == Some(true) {
            errors.forbidden(&field.child(name), detail);
        }
    }
    each_container(spec, field, |container, field| {
        if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
            errors.forbidden(&field.child("volumeDevices"), detail);
        }
    });
}

/// Hostname and subdomain overrides.
pub(super) fn hostname(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let Some(name) = &spec.hostname_override else { return };
    let field = field.child("hostnameOverride");
    if spec.set_hostname_as_fqdn == Some(true) {
        errors.forbidden(&field, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.host_network == Some(true) {
        errors.forbidden(&field, "may not be specified when hostNetwork is true");
    }
    if name.len() > 64 {
        errors.too_long(&field, 64);
    }
    errors.malformed(&field, text(&spec.hostname_override), &format::dns_subdomain(name));
}
