//! Addresses of the node as its pods are told: `status.hostIPs`, the downward API, probes and hooks.
//!
//! They are evaluated again while the agent runs: a machine whose network comes up late, or gets
//! another address, needs no restart of the agent, and with an external cloud provider the Node
//! object decides.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::node_status::Settings;
use podwright_core::node_status::addresses::{LOOPBACK, host_ips};
use podwright_core::status::NodeAddresses;
use podwright_host::clock::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::addresses::AddressFinder;
use super::own_node::OwnNode;

const INTERVAL: Duration = Duration::from_secs(10);
/// While only the address of the loopback is known.
const MISSING_INTERVAL: Duration = Duration::from_secs(1);

pub struct HostAddresses {
    settings: Arc<Settings>,
    finder: AddressFinder,
    node: watch::Receiver<OwnNode>,
    shown: watch::Sender<NodeAddresses>,
}

impl HostAddresses {
    /// `found` are the addresses at the start of the agent.
    pub fn new(
        settings: Arc<Settings>,
        clock: Clock,
        node: watch::Receiver<OwnNode>,
        found: Vec<IpAddr>,
    ) -> (Self, watch::Receiver<NodeAddresses>) {
        let (shown, receiver) = watch::channel(NodeAddresses { host_ips: found });
        let finder = AddressFinder::new(settings.clone(), clock);
        (Self { settings, finder, node, shown }, receiver)
    }

    /// Evaluates the addresses again until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let work = async {
            loop {
                self.evaluate().await;
                let missing = self.shown.borrow().host_ips == [LOOPBACK];
                let wait = if missing { MISSING_INTERVAL } else { INTERVAL };
                tokio::select! {
                    // Cancel-safe: an unseen change stays marked. Without an API server there is none.
                    Ok(()) = self.node.changed() => {}
                    () = tokio::time::sleep(wait) => {}
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn evaluate(&mut self) {
        // The heartbeat warns if a configured address cannot be used.
        let found = self.finder.find().await.unwrap_or_default();
        let node = self.node.borrow_and_update().clone();
        let node = node.object().map(|node| &**node);
        self.shown.send_if_modified(|shown| {
            let now = host_ips(self.settings.external_cloud, node, &found, &shown.host_ips);
            let changed = shown.host_ips != now;
            if changed {
                tracing::info!(before = ?shown.host_ips, ?now, "addresses of the node changed");
                shown.host_ips = now;
            }
            changed
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::api::core::v1;
    use serde_json::json;

    use super::*;

    /// The address of this node, whose name is one.
    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn started(external_cloud: bool) -> (watch::Sender<OwnNode>, watch::Receiver<NodeAddresses>) {
        let settings =
            Settings { hostname: OWN.to_string(), external_cloud, ..Settings::default() };
        let (node, seen) = watch::channel(OwnNode::default());
        let found = vec![LOOPBACK];
        let (task, shown) = HostAddresses::new(Arc::new(settings), Clock::real(), seen, found);
        tokio::spawn(task.run(CancellationToken::new()));
        (node, shown)
    }

    #[tokio::test(start_paused = true)]
    async fn node_that_started_without_a_network_tells_its_address_later() {
        let (_node, mut shown) = started(false);
        assert_eq!(shown.borrow_and_update().host_ips, [LOOPBACK]);
        shown.changed().await.unwrap();
        assert_eq!(shown.borrow().host_ips, [OWN]);
    }

    #[tokio::test(start_paused = true)]
    async fn external_cloud_provider_decides_the_address() {
        let (node, mut shown) = started(true);
        shown.changed().await.unwrap();
        assert_eq!(shown.borrow_and_update().host_ips, [OWN]);
        let object: v1::Node = serde_json::from_value(json!({ "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.7" },
        ]}}))
        .unwrap();
        node.send_replace(OwnNode::Present(Arc::new(object)));
        shown.changed().await.unwrap();
        assert_eq!(shown.borrow().host_ips, ["192.0.2.7".parse::<IpAddr>().unwrap()]);
    }
}
