//! Validation of containers, with separate rules for each kind.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};

use super::field::Errors;
use super::mount::Volumes;
use super::{env, format, mount, port, probe, resource, restart, security, text};
use crate::schema::Path;

/// The parts of a pod that the checks of a container need.
pub(super) struct PodContext<'a> {
    pub volumes: Volumes<'a>,
    pub claims: BTreeSet<&'a str>,
    pub restart_policy: &'a str,
    pub grace: Option<i64>,
    pub os: Option<&'a str>,
    /// The pod uses the host's user namespace.
    pub host_users: bool,
}

pub(super) fn regular(
    containers: &[Container],
    pod: &PodContext<'_>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    if containers.is_empty() {
        return errors.required(field, "");
    }
    let mut names = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let field = field.index(index);
        common(container, pod, &field, errors);
        if !names.insert(container.name.as_str()) {
            errors.duplicate(&field.child("name"), &container.name);
        }
        hooks_and_probes(container, pod, &field, errors);
        restart::restart_rules(container, &field, errors);
    }
    port::host_conflicts(containers, field, errors);
}

pub(super) fn init(
    containers: &[Container],
    regular: &[Container],
    pod: &PodContext<'_>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let mut names: BTreeSet<&str> = regular.iter().map(|c| c.name.as_str()).collect();
    for (index, container) in containers.iter().enumerate() {
        let at = field.index(index);
        common(container, pod, &at, errors);
        restart::restart_rules(container, &at, errors);
        let name = container.name.as_str();
        if names.contains(name) {
            errors.duplicate(&at.child("name"), name);
        } else if !name.is_empty() {
            names.insert(name);
        }
        // Init containers run one at a time, so only the ports of the same container can conflict.
        port::host_conflicts(std::slice::from_ref(container), field, errors);
        if is_sidecar(container) {
            hooks_and_probes(container, pod, &at, errors);
        } else {
            no_hooks_or_probes(container, &at, errors);
            restart::init_resize_policy(container, &at, errors);
        }
    }
}

pub(super) fn ephemeral(
    spec: &PodSpec,
    pod: &PodContext<'_>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let others: BTreeSet<&str> = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .map(|container| container.name.as_str())
        .collect();
    let mut names = others.clone();
    for (index, ephemeral) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let field = field.index(index);
        let container = as_container(ephemeral);
        common(&container, pod, &field, errors);
        untrimmed_image(&container, &field, errors);
        if !names.insert(ephemeral.name.as_str()) {
            errors.duplicate(&field.child("name"), &ephemeral.name);
        }
        let target = text(&ephemeral.target_container_name);
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(&field.child("targetContainerName"), target, "");
        }
        only_ephemeral_container_fields(&container, &field, errors);
        let mounts = field.child("volumeMounts");
        for (index, mount) in ephemeral.volume_mounts.iter().flatten().enumerate() {
            let mount_field = mounts.index(index);
            for (name, value) in
                [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)]
            {
                if !text(value).is_empty() {
                    errors.forbidden(&mount_field.child(name), NOT_FOR_EPHEMERAL);
                }
            }
        }
    }
}

const NOT_FOR_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";

/// Ephemeral containers are for debugging; a pod's service must not depend on them.
fn only_ephemeral_container_fields(container: &Container, field: &Path<'_>, errors: &mut Errors) {
    let has_resources = container.resources.as_ref().is_some_and(|resources| {
        resources.limits.is_some() || resources.requests.is_some() || resources.claims.is_some()
    });
    for (name, set) in [
        ("ports", container.ports.is_some()),
        ("resources", has_resources),
        ("resizePolicy", container.resize_policy.is_some()),
        ("restartPolicy", container.restart_policy.is_some()),
        ("restartPolicyRules", container.restart_policy_rules.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ] {
        if set {
            errors.forbidden(&field.child(name), NOT_FOR_EPHEMERAL);
        }
    }
}

/// Checks common to all kinds of containers.
fn common(container: &Container, pod: &PodContext<'_>, field: &Path<'_>, errors: &mut Errors) {
    match container.name.as_str() {
        "" => errors.required(&field.child("name"), ""),
        name => errors.malformed(&field.child("name"), name, &format::dns_label(name)),
    }
    if text(&container.image).is_empty() {
        errors.required(&field.child("image"), "");
    }
    let at_policy = field.child("terminationMessagePolicy");
    match text(&container.termination_message_policy) {
        "File" | "FallbackToLogsOnError" => {}
        "" => errors.required(&at_policy, ""),
        other => errors.not_supported(&at_policy, other, &["File", "FallbackToLogsOnError"]),
    }
    let ports = container.ports.as_deref().unwrap_or_default();
    port::check(ports, &field.child("ports"), errors);
    env::check(container.env.as_deref().unwrap_or_default(), &field.child("env"), errors);
    let sources = container.env_from.as_deref().unwrap_or_default();
    env::check_from(sources, &field.child("envFrom"), errors);
    mount::check(container, &pod.volumes, field, errors);
    let policy = text(&container.image_pull_policy);
    pull_policy(policy, &field.child("imagePullPolicy"), errors);
    resource::of_container(container, &pod.claims, &field.child("resources"), errors);
    let at_resize = field.child("resizePolicy");
    restart::resize_policy(container, pod.restart_policy, &at_resize, errors);
    security::of_container(container, pod.host_users, &field.child("securityContext"), errors);
}

pub(super) fn pull_policy(policy: &str, field: &Path<'_>, errors: &mut Errors) {
    match policy {
        "Always" | "IfNotPresent" | "Never" => {}
        "" => errors.required(field, ""),
        other => errors.not_supported(field, other, &["Always", "IfNotPresent", "Never"]),
    }
}

fn hooks_and_probes(
    container: &Container,
    pod: &PodContext<'_>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    if let Some(lifecycle) = &container.lifecycle {
        probe::lifecycle(lifecycle, pod.grace, pod.os, &field.child("lifecycle"), errors);
    }
    probe::check(container, field, errors);
}

fn no_hooks_or_probes(container: &Container, field: &Path<'_>, errors: &mut Errors) {
    for (name, set) in [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ] {
        if set {
            let detail = "may not be set for init containers without restartPolicy=Always";
            errors.forbidden(&field.child(name), detail);
        }
    }
}

/// No runtime accepts spaces around an image name.
pub(super) fn untrimmed_image(container: &Container, field: &Path<'_>, errors: &mut Errors) {
    let image = text(&container.image);
    if image != image.trim() {
        let detail = "must not have leading or trailing whitespace";
        errors.invalid(&field.child("image"), image, detail);
    }
}

pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The fields that an ephemeral container has in common with the others.
pub(super) fn as_container(ephemeral: &EphemeralContainer) -> Container {
    let e = ephemeral.clone();
    Container {
        args: e.args,
        command: e.command,
        env: e.env,
        env_from: e.env_from,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        lifecycle: e.lifecycle,
        liveness_probe: e.liveness_probe,
        name: e.name,
        ports: e.ports,
        readiness_probe: e.readiness_probe,
        resize_policy: e.resize_policy,
        resources: e.resources,
        restart_policy: e.restart_policy,
        restart_policy_rules: e.restart_policy_rules,
        security_context: e.security_context,
        startup_probe: e.startup_probe,
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path,
        termination_message_policy: e.termination_message_policy,
        tty: e.tty,
        volume_devices: e.volume_devices,
        volume_mounts: e.volume_mounts,
        working_dir: e.working_dir,
    }
}
