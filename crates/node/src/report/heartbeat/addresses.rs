//! Detection of the node's addresses; the core selects among them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::node_status::{Settings, addresses};
use podwright_core::time::Mono;
use podwright_host::clock::Clock;
use podwright_host::machine::{self, Machine};

/// How often the node name is resolved.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(300);
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

/// Finds the current addresses of the node.
pub struct AddressFinder {
    settings: Arc<Settings>,
    machine: Machine,
    clock: Clock,
    resolved: ResolvedName,
}

impl AddressFinder {
    pub fn new(settings: Arc<Settings>, clock: Clock) -> Self {
        let (machine, resolved) = (Machine::at("/"), ResolvedName::default());
        Self { settings, machine, clock, resolved }
    }

    /// The error describes invalid configured addresses.
    pub async fn find(&mut self) -> Result<Vec<IpAddr>, String> {
        let by_name = self.resolve().await;
        find(&self.settings, &self.machine, &by_name)
    }

    /// The addresses of the node name; not resolved if addresses are configured.
    async fn resolve(&mut self) -> Vec<IpAddr> {
        if self.settings.node_ips.iter().any(|ip| !ip.is_unspecified()) {
            return Vec::new();
        }
        let now = self.clock.now().mono;
        if self.resolved.is_due(now) {
            let found = resolve(&self.settings.hostname).await;
            self.resolved.update(found, now);
        }
        self.resolved.addresses.clone()
    }
}

/// The result of the last successful lookup of the node name.
#[derive(Default)]
struct ResolvedName {
    at: Option<Mono>,
    addresses: Vec<IpAddr>,
}

impl ResolvedName {
    fn is_due(&self, now: Mono) -> bool {
        self.at.is_none_or(|at| now.since(at) >= RESOLVE_INTERVAL)
    }

    /// A failed lookup is repeated with the next status. Until one succeeds, the last addresses that
    /// the machine still has remain valid, so that a failing name server does not change the node's
    /// address.
    fn update(&mut self, found: Vec<IpAddr>, now: Mono) {
        if !found.is_empty() {
            *self = Self { at: Some(now), addresses: found };
        }
    }
}

/// The addresses of a name; empty if it cannot be resolved.
pub async fn resolve(name: &str) -> Vec<IpAddr> {
    let lookup = tokio::net::lookup_host((name, 0));
    match tokio::time::timeout(RESOLVE_TIMEOUT, lookup).await {
        Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_lookup_keeps_the_last_addresses_and_is_repeated() {
        let at = |seconds: u64| Mono(Duration::from_secs(seconds));
        let address = IpAddr::from([10, 0, 0, 1]);
        let mut resolved = ResolvedName::default();
        resolved.update(Vec::new(), at(0));
        assert!(resolved.is_due(at(10)), "a failed lookup is repeated");
        resolved.update(vec![address], at(10));
        assert!(!resolved.is_due(at(20)));
        assert!(resolved.is_due(at(310)));
        resolved.update(Vec::new(), at(310));
        assert_eq!(resolved.addresses, [address]);
        assert!(resolved.is_due(at(320)));
    }
}
