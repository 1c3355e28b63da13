//! Node addresses.

use std::net::IpAddr;

use k8s_openapi::api::core::v1;

use super::Settings;

/// Restricts a cloud controller to the configured addresses.
pub const ANNOTATION_PROVIDED: &str = "alpha.kubernetes.io/provided-node-ip";

/// Sets the node's addresses. They are unchanged if there are none to report, or if a cloud
/// controller sets them.
pub(super) fn publish(node: &mut v1::Node, settings: &Settings, seen: &[IpAddr]) {
    match provided(settings) {
        Some(given) => {
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(ANNOTATION_PROVIDED.to_owned(), given);
        }
        // One of an earlier start would lead the cloud's controller to a wrong address.
        None => {
            let annotations = node.metadata.annotations.as_mut();
            annotations.map(|annotations| annotations.remove(ANNOTATION_PROVIDED));
        }
    }
    let hostname = entry("Hostname", settings.hostname.clone());
    if settings.external_cloud {
        let known = node.status.as_ref().and_then(|status| status.addresses.as_ref());
        if known.is_some_and(|list| !list.is_empty()) {
            return;
        }
        if settings.node_ips.is_empty() {
            node.status.get_or_insert_default().addresses = Some(vec![hostname]);
            return;
        }
    }
    if seen.is_empty() {
        return;
    }
    let internal = seen.iter().map(|ip| entry("InternalIP", ip.to_string()));
    let addresses = internal.chain([hostname]).collect();
    node.status.get_or_insert_default().addresses = Some(addresses);
}

/// What the cloud's controller is to use: the addresses that were given, if the first is one.
/// `0.0.0.0` and `::` are on no machine, and a node that announces them is never initialised.
fn provided(settings: &Settings) -> Option<String> {
    let first = settings.node_ips.first()?;
    if !settings.external_cloud || first.is_unspecified() {
        return None;
    }
    let definite = settings.node_ips.iter().filter(|ip| !ip.is_unspecified());
    let texts: Vec<String> = definite.map(IpAddr::to_string).collect();
    Some(texts.join(","))
}

fn entry(kind: &str, address: String) -> v1::NodeAddress {
    v1::NodeAddress { type_: kind.to_owned(), address }
}

/// Selects the node's addresses.
///
/// `given` are configured and must be among the addresses `of_machine`. A host name that is an
/// address is used as it is. `by_name` are the addresses that the node's name resolves to,
/// `by_route` the source addresses of the default routes.
pub fn choose(
    given: &[IpAddr],
    hostname: &str,
    of_machine: &[IpAddr],
    by_name: &[IpAddr],
    by_route: &[IpAddr],
) -> Result<Vec<IpAddr>, String> {
    // `0.0.0.0` and `::` only select the preferred family.
    let definite: Vec<IpAddr> = given.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
    if !definite.is_empty() {
        for ip in &definite {
            usable(*ip, of_machine).map_err(|why| format!("node IP {ip} {why}; fix --node-ip"))?;
        }
        return Ok(definite);
    }
    if let Ok(ip) = hostname.parse::<IpAddr>() {
        return Ok(vec![ip]);
    }
    let prefers_v6 = given.first().is_some_and(|ip| ip.is_ipv6());
    let preferred = |ip: &&IpAddr| ip.is_ipv6() == prefers_v6;
    let resolved: Vec<IpAddr> =
        by_name.iter().copied().filter(|ip| usable(*ip, of_machine).is_ok()).collect();
    if let Some(ip) = resolved.iter().find(preferred).or(resolved.first()) {
        return Ok(vec![*ip]);
    }
    let mut chosen: Vec<IpAddr> = by_route.to_vec();
    chosen.sort_by_key(|ip| ip.is_ipv6() != prefers_v6);
    // A node has both families only if both are configured.
    chosen.truncate(1);
    Ok(chosen)
}

fn usable(ip: IpAddr, of_machine: &[IpAddr]) -> Result<(), &'static str> {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        Err("is a loopback address")
    } else if ip.is_multicast() {
        Err("is a multicast address")
    } else if link_local {
        Err("is a link-local address")
    } else if ip.is_unspecified() {
        Err("is an unspecified address")
    } else if of_machine.contains(&ip) {
        Ok(())
    } else {
        Err("is not on any interface of this machine")
    }
}
