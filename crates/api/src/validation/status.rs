//! Validation of pod statuses.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};

use super::field::{Errors, Internal};
use super::{format, text};
use crate::schema::{Path, Type};

const STILL_ENDED: &str = "may not be transitioned to non-terminated state";

pub(super) fn check(new: &Pod, old: &Pod, errors: &mut Errors) {
    let empty = (PodStatus::default(), PodSpec::default());
    let status = new.status.as_ref().unwrap_or(&empty.0);
    let before = old.status.as_ref().unwrap_or(&empty.0);
    let (new_spec, spec) =
        (new.spec.as_ref().unwrap_or(&empty.1), old.spec.as_ref().unwrap_or(&empty.1));
    let field = Path::new("status");
    conditions(
        status.conditions.as_deref().unwrap_or_default(),
        &field.child("conditions"),
        errors,
    );
    if text(&new_spec.node_name) != text(&spec.node_name) {
        errors.forbidden(&field.child("nodeName"), "may not be changed directly");
    }
    nomination(status, before, spec, &field.child("nominatedNodeName"), errors);
    generation(status.observed_generation, &field, errors);
    if text(&status.qos_class) != text(&before.qos_class) {
        let given = text(&status.qos_class);
        errors.invalid(&field.child("qosClass"), given, "field is immutable");
    }
    let init = spec.init_containers.as_deref().unwrap_or_default();
    transitions(
        &status.container_statuses,
        &before.container_statuses,
        |name, code| may_run_again(spec, &spec.containers, name, code),
        &field.child("containerStatuses"),
        errors,
    );
    transitions(
        &status.init_container_statuses,
        &before.init_container_statuses,
        |name, code| may_run_again(spec, init, name, code),
        &field.child("initContainerStatuses"),
        errors,
    );
    transitions(
        &status.ephemeral_container_statuses,
        &before.ephemeral_container_statuses,
        |_, _| false,
        &field.child("ephemeralContainerStatuses"),
        errors,
    );
    addresses(status, before, &field, errors);
    users(status, &field, errors);
}

fn generation(generation: Option<i64>, field: &Path<'_>, errors: &mut Errors) {
    if let Some(generation) = generation.filter(|generation| *generation < 0) {
        let detail = "must be a non-negative integer";
        errors.invalid(&field.child("observedGeneration"), generation, detail);
    }
}

fn conditions(conditions: &[PodCondition], field: &Path<'_>, errors: &mut Errors) {
    for (index, condition) in conditions.iter().enumerate() {
        let field = field.index(index);
        generation(condition.observed_generation, &field, errors);
        let name = condition.type_.as_str();
        if !["PodScheduled", "Ready", "Initialized"].contains(&name) {
            errors.malformed(&field.child("Type"), name, &format::qualified_name(name));
        }
    }
}

fn nomination(
    status: &PodStatus,
    before: &PodStatus,
    spec: &PodSpec,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let name = text(&status.nominated_node_name);
    if name.is_empty() || name == text(&before.nominated_node_name) {
        return;
    }
    errors.malformed(field, name, &format::dns_subdomain(name));
    if !text(&spec.node_name).is_empty() {
        errors.forbidden(field, "may not be set on pods that are already bound to a node");
    }
}

/// A container that is not restarted must stay terminated.
fn transitions(
    now: &Option<Vec<ContainerStatus>>,
    before: &Option<Vec<ContainerStatus>>,
    may_run_again: impl Fn(&str, i32) -> bool,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let ended = |status: &ContainerStatus| {
        status.state.as_ref().and_then(|state| state.terminated.as_ref()).map(|end| end.exit_code)
    };
    for (index, old) in before.iter().flatten().enumerate() {
        let Some(code) = ended(old) else { continue };
        let new = now.iter().flatten().find(|new| new.name == old.name && ended(new).is_none());
        if new.is_some() && !may_run_again(&old.name, code) {
            let field = field.index(index);
            errors.forbidden(&field.child("state"), STILL_ENDED);
        }
    }
}

fn may_run_again(spec: &PodSpec, containers: &[Container], name: &str, code: i32) -> bool {
    let all = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let restarts_all = |container: &Container| {
        let rules = container.restart_policy_rules.iter().flatten();
        rules.into_iter().any(|rule| rule.action == "RestartAllContainers")
    };
    if all().any(restarts_all) {
        return true;
    }
    let Some(container) = containers.iter().find(|container| container.name == name) else {
        return false;
    };
    for rule in container.restart_policy_rules.iter().flatten() {
        let Some(codes) = &rule.exit_codes else { continue };
        let listed = codes.values.as_ref().is_some_and(|values| values.contains(&code));
        let matches = match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        if matches && rule.action == "Restart" {
            return true;
        }
    }
    let policy = container.restart_policy.as_ref().or(spec.restart_policy.as_ref());
    match policy.map(String::as_str) {
        Some("Always") => true,
        Some("OnFailure") => code != 0,
        _ => false,
    }
}

/// Addresses must be valid, with at most one per family.
fn addresses(status: &PodStatus, before: &PodStatus, field: &Path<'_>, errors: &mut Errors) {
    let pod_ips: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let old: Vec<&str> = before.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let at_pod = field.child("podIPs");
    if !all_valid(&pod_ips, &old, &at_pod, errors) {
        let list = Type::List(Box::new(Type::Struct("PodIP")));
        let detail = "may specify no more than one IP for each IP family";
        errors.invalid(&at_pod, Internal(list, &status.pod_ips), detail);
    }
    let host_ips: Vec<&str> = status.host_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let old: Vec<&str> = before.host_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    let at_host = field.child("hostIPs");
    if let Some(first) = host_ips.first().filter(|first| **first != text(&status.host_ip)) {
        let field = at_host.index(0);
        errors.invalid(&field.child("ip"), *first, "must be equal to `hostIP`");
    }
    if !all_valid(&host_ips, &old, &at_host, errors) {
        let list = Type::List(Box::new(Type::Struct("HostIP")));
        let detail = "may specify no more than one IP for each IP family";
        errors.invalid(&at_host, Internal(list, &status.host_ips), detail);
    }
}

/// False if there are more addresses than families.
fn all_valid(ips: &[&str], old: &[&str], field: &Path<'_>, errors: &mut Errors) -> bool {
    for (index, ip) in ips.iter().enumerate().filter(|(_, ip)| !old.contains(ip)) {
        errors.malformed(&field.index(index), *ip, &format::ip_address(ip));
    }
    let families: Vec<bool> =
        ips.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()).map(|ip| ip.is_ipv4()).collect();
    match (ips.len(), families.as_slice()) {
        (0 | 1, _) => true,
        (2, [first, second]) => first != second,
        _ => false,
    }
}

fn users(status: &PodStatus, field: &Path<'_>, errors: &mut Errors) {
    for (name, statuses) in [
        ("containerStatuses", &status.container_statuses),
        ("initContainerStatuses", &status.init_container_statuses),
        ("ephemeralContainerStatuses", &status.ephemeral_container_statuses),
    ] {
        let field = field.child(name);
        for (index, status) in statuses.iter().flatten().enumerate() {
            let Some(user) = status.user.as_ref().and_then(|user| user.linux.as_ref()) else {
                continue;
            };
            let field = field.index(index);
            let field = field.child("user");
            let field = field.child("linux");
            errors.malformed(&field.child("uid"), user.uid, &format::user_id(user.uid));
            errors.malformed(&field.child("gid"), user.gid, &format::user_id(user.gid));
            let at_groups = field.child("supplementalGroups");
            for (index, group) in user.supplemental_groups.iter().flatten().enumerate() {
                errors.malformed(&at_groups.index(index), *group, &format::user_id(*group));
            }
        }
    }
}
