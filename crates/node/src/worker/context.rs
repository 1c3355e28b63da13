//! Worker context: what the pod workers of a node share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::backoff::BackoffLimits;
use podwright_core::config::{NodeFacts, supports_recursive_read_only};
use podwright_core::pod::features::PodFeatures;
use podwright_core::status::NodeAddresses;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use tokio::sync::watch;

use super::start_limiter::StartLimiter;
use crate::report::Reporting;
use crate::resources::NodeResources;
use crate::runtime::images::Images;
use crate::runtime::pleg::Pleg;
use crate::runtime::state::NodeState;

/// Settings of the pod workers.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Directory of the `<pod>_<namespace>_<container>-<id>.log` links.
    pub log_links_dir: PathBuf,
    pub crash_backoff: BackoffLimits,
    /// Feature gates that change what a pod means.
    pub features: PodFeatures,
    /// How long a pod rests at most before it is synced again.
    pub resync: Duration,
    /// The scheme of container IDs in statuses.
    pub runtime_name: String,
    /// Older containers were started by an earlier process.
    pub agent_started: Timestamp,
}

pub struct WorkerContext {
    pub runtime: cri::Client,
    pub pleg: Arc<Pleg>,
    pub clock: Clock,
    pub resources: NodeResources,
    pub reporting: Reporting,
    pub images: Arc<Images>,
    /// Limits concurrent starts. Stops are not limited: the runtime handles them well in parallel.
    pub starts: StartLimiter,
    pub facts: Arc<NodeFacts>,
    pub node: watch::Receiver<NodeState>,
    /// The machine is being shut down.
    pub shutting_down: watch::Receiver<bool>,
    /// The addresses of the node, which may change.
    pub addresses: watch::Receiver<NodeAddresses>,
    pub settings: WorkerSettings,
}

impl WorkerContext {
    /// The node's facts with the runtime handlers of the last status and its current addresses, so
    /// that a change of either needs no restart of the agent.
    pub fn facts_now(&self) -> NodeFacts {
        let mut facts = NodeFacts::clone(&self.facts);
        if let Some(handlers) = self.node.borrow().known_handlers() {
            facts.handlers = handlers.to_vec();
        }
        facts.host_ips.clone_from(&self.addresses.borrow().host_ips);
        facts
    }

    pub fn supports_recursive_read_only(&self, handler: &str) -> bool {
        let node = self.node.borrow();
        let handlers = node.known_handlers().unwrap_or(&self.facts.handlers);
        supports_recursive_read_only(handlers, handler)
    }
}
