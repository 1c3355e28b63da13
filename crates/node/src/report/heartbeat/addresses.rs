//! Detection of the node's addresses; the core selects among them.

use std::net::IpAddr;
use std::time::Duration;

use podwright_core::node_status::{Settings, addresses};
use podwright_host::machine::{self, Machine};

/// DNS timeout, so that a name server that hangs does not block the report.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The current addresses of the node. The error describes invalid configured addresses.
pub fn find(
    settings: &Settings,
    machine: &Machine,
    by_name: &[IpAddr],
) -> Result<Vec<IpAddr>, String> {
    let text = |error: machine::MachineError| error.to_string();
    let interfaces = machine::interface_addresses().map_err(text)?;
    let routes = machine.default_routes().map_err(text)?;
    let by_route = machine::node_addresses(&routes, &interfaces);
    let of_machine: Vec<IpAddr> = interfaces.iter().map(|found| found.address).collect();
    let given = &settings.node_ips;
    addresses::choose(given, &settings.hostname, &of_machine, by_name, &by_route)
}

/// The addresses of a name; empty if it cannot be resolved.
pub async fn resolve(name: &str) -> Vec<IpAddr> {
    let lookup = tokio::net::lookup_host((name, 0));
    match tokio::time::timeout(RESOLVE_TIMEOUT, lookup).await {
        Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}
