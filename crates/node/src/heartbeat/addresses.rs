//! Finds the machine's addresses; which of them count is decided in the core.

use std::net::IpAddr;
use std::time::Duration;

use podwright_core::node_status::{Settings, addresses};
use podwright_host::machine::{self, Machine};

/// A name server that hangs should not keep the node from reporting.
const PATIENCE: Duration = Duration::from_secs(2);

/// The node's addresses now. The error says what is wrong with those that were given.
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

/// What a name resolves to; nothing if nobody knows it.
pub async fn resolve(name: &str) -> Vec<IpAddr> {
    let lookup = tokio::net::lookup_host((name, 0));
    match tokio::time::timeout(PATIENCE, lookup).await {
        Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}
