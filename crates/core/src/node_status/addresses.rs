//! Node addresses.

use std::net::{IpAddr, Ipv4Addr};

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

/// The addresses that pods are told as those of their node (`status.hostIPs`).
///
/// `found` are those that the machine has now, `last` those that were told before: a network that
/// fails for a moment does not change them. With an external cloud provider the Node object decides,
/// as soon as the provider has written it. Without any address it is that of the loopback, until one
/// is found.
pub fn host_ips(
    external_cloud: bool,
    node: Option<&v1::Node>,
    found: &[IpAddr],
    last: &[IpAddr],
) -> Vec<IpAddr> {
    let of_cloud = match external_cloud {
        true => node.map(of_object).unwrap_or_default(),
        false => Vec::new(),
    };
    let known = [of_cloud.as_slice(), found, last].into_iter().find(|list| !list.is_empty());
    known.map_or_else(|| vec![LOOPBACK], <[IpAddr]>::to_vec)
}

pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The addresses of a Node object, internal ones first.
fn of_object(node: &v1::Node) -> Vec<IpAddr> {
    let all = node.status.as_ref().and_then(|status| status.addresses.as_deref());
    let all = all.unwrap_or_default();
    let of_type = |wanted: &'static str| {
        let matching = all.iter().filter(move |address| address.type_ == wanted);
        matching.filter_map(|address| address.address.parse().ok())
    };
    of_type("InternalIP").chain(of_type("ExternalIP")).collect()
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn host_ips_follow_the_machine_or_the_cloud() {
        let node = |addresses: serde_json::Value| -> v1::Node {
            serde_json::from_value(json!({ "status": { "addresses": addresses } })).unwrap()
        };
        let by_cloud = node(json!([
            { "type": "Hostname", "address": "n" },
            { "type": "ExternalIP", "address": "203.0.113.9" },
            { "type": "InternalIP", "address": "10.0.0.9" },
        ]));
        let fresh = node(json!([{ "type": "Hostname", "address": "n" }]));
        let ips =
            |list: &[&str]| -> Vec<IpAddr> { list.iter().map(|ip| ip.parse().unwrap()).collect() };
        let (one, two) = (ips(&["10.0.0.1"]), ips(&["10.0.0.2"]));
        let (external, own) = (true, false);
        for (case, cloud, node, found, last, want) in [
            ("nothing known", own, None, vec![], vec![], ips(&["127.0.0.1"])),
            ("the network came up", own, None, one.clone(), ips(&["127.0.0.1"]), one.clone()),
            ("the network is away", own, None, vec![], one.clone(), one.clone()),
            ("another address", own, None, two.clone(), one.clone(), two.clone()),
            ("the object follows us", own, Some(&by_cloud), one.clone(), vec![], one.clone()),
            ("not initialized", external, Some(&fresh), one.clone(), vec![], one.clone()),
            (
                "by the cloud",
                external,
                Some(&by_cloud),
                one.clone(),
                two.clone(),
                ips(&["10.0.0.9", "203.0.113.9"]),
            ),
            ("the object is not known", external, None, one.clone(), two, one),
        ] {
            assert_eq!(host_ips(cloud, node, &found, &last), want, "{case}");
        }
    }
}
