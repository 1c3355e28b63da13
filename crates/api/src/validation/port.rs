//! Validation of container ports.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::field::Errors;
use super::{format, text};
use crate::schema::Path;

pub(super) fn check(ports: &[ContainerPort], field: &Path<'_>, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = field.index(index);
        let name = text(&port.name);
        if !name.is_empty() {
            let problems = format::port_name(name);
            if problems.is_empty() && !names.insert(name) {
                errors.duplicate(&field.child("name"), name);
            }
            errors.malformed(&field.child("name"), name, &problems);
        }
        match port.container_port {
            0 => errors.required(&field.child("containerPort"), ""),
            number => number_of(number, &field.child("containerPort"), errors),
        }
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            number_of(number, &field.child("hostPort"), errors);
        }
        match text(&port.protocol) {
            "TCP" | "UDP" | "SCTP" => {}
            "" => errors.required(&field.child("protocol"), ""),
            other => {
                errors.not_supported(&field.child("protocol"), other, &["SCTP", "TCP", "UDP"]);
            }
        }
    }
}

fn number_of(number: i32, field: &Path<'_>, errors: &mut Errors) {
    errors.malformed(field, number, &format::port_number(number.into()));
}

/// A port number, or the name of a container port.
pub(super) fn number_or_name(port: &IntOrString, field: &Path<'_>, errors: &mut Errors) {
    match port {
        IntOrString::Int(number) => number_of(*number, field, errors),
        IntOrString::String(name) => errors.malformed(field, name, &format::port_name(name)),
    }
}

/// Containers that run at the same time must not use the same host port.
pub(super) fn host_conflicts(containers: &[Container], field: &Path<'_>, errors: &mut Errors) {
    let mut taken = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let field = field.index(index);
        let field = field.child("ports");
        for (index, port) in container.ports.iter().flatten().enumerate() {
            let Some(number) = port.host_port.filter(|number| *number != 0) else { continue };
            let name = format!("{}/{}/{number}", text(&port.protocol), text(&port.host_ip));
            if taken.contains(&name) {
                errors.duplicate(&field.index(index).child("hostPort"), &name);
            }
            taken.insert(name);
        }
    }
}

/// On the host network a container port must equal the host port.
pub(super) fn host_network(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    if spec.host_network != Some(true) {
        return;
    }
    let field = field.child("containers");
    for (index, container) in spec.containers.iter().enumerate() {
        let field = field.index(index);
        let field = field.child("ports");
        for (index, port) in container.ports.iter().flatten().enumerate() {
            let host_port = port.host_port.unwrap_or(0);
            if host_port != port.container_port {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(&field.index(index).child("hostPort"), host_port, detail);
            }
        }
    }
}
