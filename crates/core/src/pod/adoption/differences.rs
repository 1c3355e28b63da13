//! Differences between the request that created a sandbox or container and the one that this node
//! would send.
//!
//! Left out is what differs between two starts of the same manifest: when the pod was first seen,
//! the resolved image (the container hash covers its name), variables of Services, and the order of
//! variables. Fields that are new in the CRI and that an older runtime did not keep are compared
//! only if it has them.

use std::collections::{BTreeMap, BTreeSet};

use podwright_api::annotations::ANNOTATION_SEEN;
use podwright_proto::cri;

/// The first field that differs.
pub(super) fn of_sandboxes(
    mut ours: cri::PodSandboxConfig,
    mut theirs: cri::PodSandboxConfig,
) -> Option<&'static str> {
    ours.annotations.remove(ANNOTATION_SEEN);
    theirs.annotations.remove(ANNOTATION_SEEN);
    let (mut linux, mut their_linux) =
        (ours.linux.take().unwrap_or_default(), theirs.linux.take().unwrap_or_default());
    // Runtimes before containerd 1.7 keep neither.
    if their_linux.resources.is_none() && their_linux.overhead.is_none() {
        (linux.resources, linux.overhead) = (None, None);
    }
    let context = linux.security_context.take().unwrap_or_default();
    let their_context = their_linux.security_context.take().unwrap_or_default();
    first(&[
        ("name or UID", ours.metadata == theirs.metadata),
        ("hostname", ours.hostname == theirs.hostname),
        ("log directory", ours.log_directory == theirs.log_directory),
        ("DNS configuration", dns(ours.dns_config) == dns(theirs.dns_config)),
        ("list of ports", ours.port_mappings == theirs.port_mappings),
        ("set of labels", ours.labels == theirs.labels),
        ("set of annotations", ours.annotations == theirs.annotations),
        ("cgroup parent", linux.cgroup_parent == their_linux.cgroup_parent),
        ("set of sysctls", linux.sysctls == their_linux.sysctls),
        ("resources", linux == their_linux),
        ("security context", context == their_context),
    ])
}

/// The first field that differs.
pub(super) fn of_containers(
    mut ours: cri::ContainerConfig,
    mut theirs: cri::ContainerConfig,
) -> Option<&'static str> {
    let (envs, mut their_envs) =
        (by_name(std::mem::take(&mut ours.envs)), by_name(std::mem::take(&mut theirs.envs)));
    let services = services(&their_envs);
    let is_of_service = |name: &str| service_of(name).is_some_and(|name| services.contains(name));
    their_envs.retain(|name, _| envs.contains_key(name) || !is_of_service(name));
    let linux = ours.linux.take().unwrap_or_default();
    let their_linux = theirs.linux.take().unwrap_or_default();
    let image = ours.image.take().map(|image| image.user_specified_image).unwrap_or_default();
    let their_image =
        theirs.image.take().map(|image| image.user_specified_image).unwrap_or_default();
    first(&[
        ("image", their_image.is_empty() || image == their_image),
        ("command", ours.command == theirs.command),
        ("arguments", ours.args == theirs.args),
        ("working directory", ours.working_dir == theirs.working_dir),
        ("set of variables", envs == their_envs),
        ("set of mounts", ours.mounts == theirs.mounts),
        ("set of annotations", ours.annotations == theirs.annotations),
        ("set of labels", ours.labels == theirs.labels),
        ("resources", linux.resources == their_linux.resources),
        ("security context", linux.security_context == their_linux.security_context),
        ("configuration", ours == theirs),
    ])
}

fn first(fields: &[(&'static str, bool)]) -> Option<&'static str> {
    fields.iter().find(|(_, equal)| !equal).map(|(name, _)| *name)
}

fn dns(config: Option<cri::DnsConfig>) -> cri::DnsConfig {
    config.unwrap_or_default()
}

/// Of two variables with the same name the later one wins.
fn by_name(envs: Vec<cri::KeyValue>) -> BTreeMap<String, Vec<u8>> {
    envs.into_iter().map(|variable| (variable.key, variable.value)).collect()
}

/// The Services with a host and a port among the variables. One variable alone may be anything.
fn services(envs: &BTreeMap<String, Vec<u8>>) -> BTreeSet<String> {
    let hosts = envs.keys().filter_map(|name| name.strip_suffix("_SERVICE_HOST"));
    let complete = hosts.filter(|service| envs.contains_key(&format!("{service}_SERVICE_PORT")));
    complete.map(str::to_owned).collect()
}

/// The Service that a variable describes, if it has the form of such a variable: `X_SERVICE_HOST`,
/// `X_SERVICE_PORT`, `X_SERVICE_PORT_NAME`, `X_PORT`, `X_PORT_80_TCP`, `X_PORT_80_TCP_ADDR`.
fn service_of(name: &str) -> Option<&str> {
    if let Some((service, rest)) = name.rsplit_once("_SERVICE_") {
        return (rest == "HOST" || rest == "PORT" || rest.starts_with("PORT_")).then_some(service);
    }
    if let Some((service, link)) = name.rsplit_once("_PORT_") {
        let ends = ["_PROTO", "_ADDR", "_PORT"];
        let port = ends.iter().find_map(|end| link.strip_suffix(end)).unwrap_or(link);
        return is_port(port).then_some(service);
    }
    name.strip_suffix("_PORT")
}

/// `80_TCP`
fn is_port(text: &str) -> bool {
    let Some((number, protocol)) = text.split_once('_') else { return false };
    number.parse::<u16>().is_ok() && matches!(protocol, "TCP" | "UDP" | "SCTP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_services_are_recognised_by_their_form() {
        for name in [
            "KUBERNETES_SERVICE_HOST",
            "KUBERNETES_SERVICE_PORT",
            "KUBERNETES_SERVICE_PORT_HTTPS",
            "KUBERNETES_PORT",
            "KUBERNETES_PORT_443_TCP",
            "KUBERNETES_PORT_443_TCP_PROTO",
            "KUBERNETES_PORT_443_TCP_PORT",
            "KUBERNETES_PORT_443_TCP_ADDR",
        ] {
            assert_eq!(service_of(name), Some("KUBERNETES"), "{name}");
        }
        assert_eq!(service_of("WEB2_PORT"), Some("WEB2"));
        for name in ["PATH", "PORT", "A_SERVICE_NAME", "X_PORT_NAME", "X_PORT_TCP", "HTTP_PORT_X"] {
            assert_eq!(service_of(name), None, "{name}");
        }
    }

    #[test]
    fn variable_like_that_of_a_service_counts_only_beside_its_host() {
        let container = |names: &[&str]| cri::ContainerConfig {
            envs: names
                .iter()
                .map(|name| cri::KeyValue { key: (*name).into(), value: b"1".into() })
                .collect(),
            ..Default::default()
        };
        let with = ["WEB_SERVICE_HOST", "WEB_SERVICE_PORT", "WEB_PORT"];
        assert_eq!(of_containers(container(&[]), container(&with)), None);
        assert_eq!(
            of_containers(container(&[]), container(&["WEB_PORT"])),
            Some("set of variables")
        );
        assert_eq!(
            of_containers(container(&["WEB_PORT"]), container(&[])),
            Some("set of variables")
        );
    }
}
