//! Checks of the network: CNI configuration, forwarding, and the ports of the node.

use std::io;
use std::net::SocketAddr;

use super::{Finding, Machine, Plan};

const NETWORK: &str = "network";
const PORTS: &str = "ports";

/// Default CNI configuration directory of container runtimes.
pub(super) const USUAL: &str = "/etc/cni/net.d";

pub(super) fn examine(machine: &dyn Machine, plan: &Plan) -> Vec<Finding> {
    let mut findings = vec![configuration(machine, plan), forwarding(machine)];
    findings.extend(ports(machine, plan));
    findings
}

fn configuration(machine: &dyn Machine, plan: &Plan) -> Finding {
    let (names, directory) = (machine.names_in(&plan.networks), plan.networks.display());
    let found = names
        .iter()
        .find(|name| [".conflist", ".conf", ".json"].iter().any(|ending| name.ends_with(ending)));
    match found {
        Some(name) => Finding::ok(NETWORK, format!("{directory}/{name}")),
        None => Finding::warning(
            NETWORK,
            format!("no CNI configuration in {directory}"),
            "install a CNI network add-on; `podwright up` has its own",
        ),
    }
}

fn forwarding(machine: &dyn Machine) -> Finding {
    match machine.read("/proc/sys/net/ipv4/ip_forward").as_deref().map(str::trim) {
        Some("1") => Finding::ok(NETWORK, "IPv4 forwarding is enabled"),
        _ => Finding::warning(
            NETWORK,
            "IPv4 forwarding is disabled; pods cannot reach anything outside this machine",
            "run `sysctl -w net.ipv4.ip_forward=1`; `podwright up` enables it until `podwright down`",
        ),
    }
}

fn ports(machine: &dyn Machine, plan: &Plan) -> Vec<Finding> {
    let c = &plan.configuration;
    let listeners = [
        ("port", c.enable_server, c.address, c.port),
        ("healthzPort", true, c.healthz_bind_address, c.healthz_port),
        ("readOnlyPort", c.enable_server, c.address, c.read_only_port),
    ];
    listeners
        .into_iter()
        .filter_map(|(field, wanted, address, port)| {
            let port = u16::try_from(port).ok().filter(|port| wanted && *port != 0)?;
            let address = SocketAddr::new(address, port);
            Some(match machine.listen(address) {
                Ok(()) => Finding::ok(PORTS, format!("{address} is free")),
                Err(error) => Finding::failure(
                    PORTS,
                    format!("{address}: {error}"),
                    port_fix(field, port, &error),
                ),
            })
        })
        .collect()
}

fn port_fix(field: &str, port: u16, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::AddrInUse {
        return format!(
            "stop the process on this port, perhaps another kubelet (`ss -ltnp 'sport = :{port}'`), \
             or set {field}"
        );
    }
    format!("set {field} and its address to values that this machine can listen on")
}
