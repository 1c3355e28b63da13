//! Node context: the components and settings shared by all pod workers. Built once at start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::attempts::BackoffLimits;
use podwright_core::config::{NodeFacts, supports_recursive_read_only};
use podwright_core::status::NodeAddresses;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_proto::cri::{RuntimeFeatures, RuntimeHandler};
use tokio::sync::watch;

use crate::pods::admission::Admission;
use crate::pods::allocations::Allocations;
use crate::report::events::Recorder;
use crate::report::status::StatusManager;
use crate::resources::cgroups::Cgroups;
use crate::resources::objects::Objects;
use crate::resources::users::Users;
use crate::resources::volumes::Volumes;
use crate::runtime::images::Images;
use crate::runtime::logs::Logs;
use crate::runtime::pleg::Pleg;
use crate::telemetry::metrics::Metrics;
use crate::worker::start_limiter::StartLimiter;

/// State of the container runtime, as its last status call reported it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    /// `Err`: why the state of the runtime is unknown.
    pub reachable: Result<(), String>,
    /// `Err`: why the runtime's network is not ready.
    pub network: Result<(), String>,
    /// `Err`: why the runtime itself is not ready.
    pub runtime: Result<(), String>,
    pub handlers: Vec<RuntimeHandler>,
    pub features: Option<RuntimeFeatures>,
}

impl Default for NodeState {
    fn default() -> Self {
        Self {
            reachable: Err("container runtime status check may not have completed yet".into()),
            network: Err("network state unknown".into()),
            runtime: Ok(()),
            handlers: Vec::new(),
            features: None,
        }
    }
}

impl NodeState {
    /// The last reported handlers, also while the runtime is unreachable; `None` before its first
    /// status.
    fn known_handlers(&self) -> Option<&[RuntimeHandler]> {
        let is_known = self.reachable.is_ok() || !self.handlers.is_empty();
        is_known.then_some(self.handlers.as_slice())
    }
}

/// Settings that pod workers read.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: Arc<str>,
    /// Directory of the `<pod>_<namespace>_<container>-<id>.log` links.
    pub log_links_dir: PathBuf,
    pub crash_backoff: BackoffLimits,
    /// How long a pod rests at most before it is synced again.
    pub resync: Duration,
    pub addresses: NodeAddresses,
    /// The scheme of container IDs in statuses.
    pub runtime_name: String,
}

pub struct NodeContext {
    pub runtime: cri::Client,
    pub pleg: Arc<Pleg>,
    pub clock: Clock,
    pub events: Recorder,
    pub status: Arc<StatusManager>,
    pub images: Arc<Images>,
    pub logs: Logs,
    pub objects: Arc<Objects>,
    pub volumes: Arc<Volumes>,
    pub cgroups: Arc<Cgroups>,
    pub allocations: Arc<Allocations>,
    pub users: Arc<Users>,
    pub admission: Arc<Admission>,
    /// Limits concurrent starts. Stops are not limited: the runtime handles them well in parallel.
    pub starts: StartLimiter,
    pub metrics: Arc<Metrics>,
    pub facts: NodeFacts,
    pub node: watch::Receiver<NodeState>,
    pub settings: Settings,
    /// When this agent started; older containers were started by an earlier process.
    pub started: Timestamp,
}

impl NodeContext {
    /// The node's facts with the runtime handlers of the last status, so that an upgrade or
    /// reconfiguration of the runtime needs no restart of the agent.
    pub fn facts_now(&self) -> NodeFacts {
        let mut facts = self.facts.clone();
        if let Some(handlers) = self.node.borrow().known_handlers() {
            facts.handlers = handlers.to_vec();
        }
        facts
    }

    pub fn supports_recursive_read_only(&self, handler: &str) -> bool {
        let node = self.node.borrow();
        let handlers = node.known_handlers().unwrap_or(&self.facts.handlers);
        supports_recursive_read_only(handlers, handler)
    }
}
