//! Downward API: values of `fieldRef` and `resourceFieldRef`.
//!
//! For environment variables and for files in downward API volumes. The two differ in upstream's
//! details: compare [`field`] with [`metadata`], and [`resource_for_env`] with
//! [`resource_for_volume`].

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::api::core::v1;
use podwright_api::qos::{
    CPU, HUGEPAGES, MEMORY, PodResources, Requirements, ResourceError, ResourceList, amount,
};
use podwright_api::quantity::{ParseQuantityError, Quantity};
use podwright_api::validation::format::qualified_name;

use super::facts::NodeFacts;
use super::resources::requirements;
use crate::pod::Pod;

const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    #[error("unsupported pod version: {version}")]
    Version { version: String },
    #[error("field label does not support subscript: {path}")]
    Subscript { path: String },
    #[error("field label not supported: {path}")]
    Unknown { path: String },
    #[error("unsupported fieldPath: {path}")]
    Unsupported { path: String },
    #[error("invalid key subscript in {path}: {why}")]
    Key { path: String, why: String },
    #[error("unsupported container resource : {resource}")]
    Resource { resource: String },
    #[error("container {name} not found")]
    NoContainer { name: String },
    #[error("divisor of {resource}")]
    Divisor { resource: String, source: ParseQuantityError },
    #[error("the node's addresses are not known yet")]
    NoHostAddress,
    #[error(transparent)]
    Amount(#[from] ResourceError),
}

/// Value of a variable's `fieldRef`.
pub fn field(
    selector: &v1::ObjectFieldSelector,
    pod: &Pod,
    pod_ips: &[IpAddr],
    facts: &NodeFacts,
) -> Result<String, FieldError> {
    let version = selector.api_version.as_deref().unwrap_or_default();
    if version != "v1" {
        return Err(FieldError::Version { version: version.to_owned() });
    }
    let path = selector.field_path.as_str();
    let spec = pod.object.spec.as_ref();
    match path {
        "spec.nodeName" | "spec.host" => {
            Ok(spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default())
        }
        "spec.serviceAccountName" => {
            Ok(spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default())
        }
        "status.hostIP" => {
            facts.host_ips.first().map(IpAddr::to_string).ok_or(FieldError::NoHostAddress)
        }
        "status.hostIPs" if facts.host_ips.is_empty() => Err(FieldError::NoHostAddress),
        "status.hostIPs" => Ok(joined(&facts.host_ips)),
        "status.podIP" => {
            let ips = ordered(pod, pod_ips, facts);
            Ok(ips.first().map(IpAddr::to_string).unwrap_or_default())
        }
        "status.podIPs" => Ok(joined(&ordered(pod, pod_ips, facts))),
        _ => match metadata(pod, path) {
            Err(FieldError::Unsupported { .. }) if subscripted(path).is_some() => {
                Err(FieldError::Subscript { path: path.to_owned() })
            }
            Err(FieldError::Unsupported { .. }) if !is_reserved(path) => {
                Err(FieldError::Unknown { path: path.to_owned() })
            }
            other => other,
        },
    }
}

/// Fields that pass validation but have no value.
fn is_reserved(path: &str) -> bool {
    matches!(path, "spec.restartPolicy" | "spec.schedulerName" | "status.phase")
}

/// At most one address of each family, the node's preferred family first. A pod on the host network
/// has the host's addresses.
fn ordered(pod: &Pod, pod_ips: &[IpAddr], facts: &NodeFacts) -> Vec<IpAddr> {
    let ips = if pod.host_network && pod_ips.is_empty() { &facts.host_ips } else { pod_ips };
    let v6_first = facts.host_ips.first().is_some_and(IpAddr::is_ipv6);
    let first_of = |v6: bool| ips.iter().find(|ip| ip.is_ipv6() == v6).copied();
    [first_of(v6_first), first_of(!v6_first)].into_iter().flatten().collect()
}

fn joined(ips: &[IpAddr]) -> String {
    ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",")
}

/// A metadata field of the pod, the only fields that a file in a volume may hold.
pub fn metadata(pod: &Pod, path: &str) -> Result<String, FieldError> {
    let meta = &pod.object.metadata;
    let of = |map: Option<&BTreeMap<String, String>>, key: &str, problems: Vec<String>| {
        if problems.is_empty() {
            return Ok(map.and_then(|map| map.get(key)).cloned().unwrap_or_default());
        }
        Err(FieldError::Key { path: path.to_owned(), why: problems.join(";") })
    };
    match subscripted(path) {
        Some(("metadata.annotations", key)) => {
            let problems = qualified_name(&key.to_lowercase());
            return of(meta.annotations.as_ref(), key, problems);
        }
        Some(("metadata.labels", key)) => {
            return of(meta.labels.as_ref(), key, qualified_name(key));
        }
        Some(_) | None => {}
    }
    match path {
        "metadata.annotations" => Ok(listed(meta.annotations.as_ref())),
        "metadata.labels" => Ok(listed(meta.labels.as_ref())),
        "metadata.name" => Ok(pod.name.name.to_string()),
        "metadata.namespace" => Ok(pod.name.namespace.to_string()),
        "metadata.uid" => Ok(pod.uid.to_string()),
        _ => Err(FieldError::Unsupported { path: path.to_owned() }),
    }
}

/// Splits `map['key']` into map and key.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    (!map.is_empty()).then_some((map, key))
}

/// One `key="value"` per line, sorted by key.
fn listed(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Double-quoted text with Go's escapes, because scripts parse these files.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        // Writing to a string cannot fail.
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            '\u{7}' => out.write_str("\\a"),
            '\u{8}' => out.write_str("\\b"),
            '\u{c}' => out.write_str("\\f"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            '\u{b}' => out.write_str("\\v"),
            c if c.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(c)),
            c if is_printable(c) => out.write_char(c),
            c if u32::from(c) < 0x1_0000 => write!(out, "\\u{:04x}", u32::from(c)),
            c => write!(out, "\\U{:08x}", u32::from(c)),
        };
    }
    out.push('"');
    out
}

/// A letter, mark, number, punctuation or symbol, or the plain space.
///
/// The standard library has this information only in its `Debug` escapes. A mark at the beginning
/// of a string counts as not printable there, hence the letter before it.
fn is_printable(c: char) -> bool {
    c.is_ascii_graphic() || c == ' ' || String::from_iter(['a', c]).escape_debug().eq(['a', c])
}

/// Value of a variable's `resourceFieldRef`.
///
/// Without its own limit a container gets the pod's, else the node's allocatable amount. An init
/// container that another container names gets neither, as upstream.
pub fn resource_for_env(
    selector: &v1::ResourceFieldSelector,
    resources: &PodResources,
    container: &str,
    allocatable: &ResourceList,
) -> Result<String, FieldError> {
    let instead = with_pod_limits(allocatable, resources);
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
    let none = Requirements::default();
    let defaulted = match named {
        None => with_limits(requirements(resources, container).unwrap_or(&none), &instead),
        Some(name) => {
            let found = requirements(resources, name)
                .ok_or_else(|| FieldError::NoContainer { name: name.to_owned() })?;
            let is_regular = resources.containers.iter().any(|regular| regular.name == name);
            if is_regular { with_limits(found, &instead) } else { found.clone() }
        }
    };
    value(selector, &defaulted)
}

/// Content of a file with a `resourceFieldRef`, which has to name a container.
pub fn resource_for_volume(
    selector: &v1::ResourceFieldSelector,
    resources: &PodResources,
    allocatable: &ResourceList,
) -> Result<String, FieldError> {
    let name = selector.container_name.as_deref().unwrap_or_default();
    let found = requirements(resources, name)
        .ok_or_else(|| FieldError::NoContainer { name: name.to_owned() })?;
    value(selector, &with_limits(found, allocatable))
}

fn with_pod_limits(allocatable: &ResourceList, resources: &PodResources) -> ResourceList {
    let mut instead = allocatable.clone();
    for (name, limit) in resources.pod.iter().flat_map(|pod| &pod.limits) {
        let counts = name == CPU || name == MEMORY;
        if let Some(known) = instead.get_mut(name).filter(|_| counts && !limit.is_zero()) {
            *known = *limit;
        }
    }
    instead
}

fn with_limits(own: &Requirements, instead: &ResourceList) -> Requirements {
    let mut own = own.clone();
    for name in [CPU, MEMORY, EPHEMERAL_STORAGE] {
        if amount(&own.limits, name).is_zero()
            && let Some(instead) = instead.get(name)
        {
            own.limits.insert(name.to_owned(), *instead);
        }
    }
    own
}

/// Amount in units of the divisor, rounded up.
fn value(
    selector: &v1::ResourceFieldSelector,
    resources: &Requirements,
) -> Result<String, FieldError> {
    let unknown = || FieldError::Resource { resource: selector.resource.clone() };
    let (list, name) = match selector.resource.split_once('.').ok_or_else(unknown)? {
        ("limits", name) => (&resources.limits, name),
        ("requests", name) => (&resources.requests, name),
        _ => return Err(unknown()),
    };
    let in_units: fn(Quantity) -> i64 = match name {
        CPU => Quantity::milli_value,
        MEMORY | EPHEMERAL_STORAGE => Quantity::value,
        name if name.starts_with(HUGEPAGES) => Quantity::value,
        _ => return Err(unknown()),
    };
    let amount = i128::from(in_units(amount(list, name)));
    let divisor = i128::from(in_units(divisor(selector)?));
    let up = i128::from(amount % divisor != 0 && (amount > 0) == (divisor > 0));
    Ok((amount / divisor + up).to_string())
}

/// One if unset.
fn divisor(selector: &v1::ResourceFieldSelector) -> Result<Quantity, FieldError> {
    let divisor = selector.divisor.as_ref().map(Quantity::try_from).transpose();
    let divisor = divisor
        .map_err(|source| FieldError::Divisor { resource: selector.resource.clone(), source })?;
    Ok(divisor.filter(|divisor| !divisor.is_zero()).unwrap_or(Quantity::from_milli(1000)))
}

#[cfg(test)]
#[path = "downward/tests.rs"]
mod tests;
