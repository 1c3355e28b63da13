//! What every worker works with. Built once; nothing in it is global.

use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use podwright_core::attempts::BackoffLimits;
use podwright_core::config::NodeFacts;
use podwright_core::status::NodeAddresses;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_proto::cri::{RuntimeFeatures, RuntimeHandler};
use tokio::sync::watch;

use crate::admission::Admission;
use crate::allocations::Allocations;
use crate::cgroups::Cgroups;
use crate::events::Recorder;
use crate::gate::Gate;
use crate::images::Images;
use crate::logs::Logs;
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::pleg::Pleg;
use crate::status::StatusManager;
use crate::users::Users;
use crate::volumes::Volumes;

/// What the node as a whole lets pods do right now, as its runtime says.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    /// `Err`: why nothing is known of the runtime.
    pub answering: Result<(), String>,
    /// `Err`: why the runtime's network is not ready.
    pub network: Result<(), String>,
    /// `Err`: why the runtime itself is not.
    pub runtime: Result<(), String>,
    pub handlers: Vec<RuntimeHandler>,
    pub features: Option<RuntimeFeatures>,
}

impl Default for NodeState {
    fn default() -> Self {
        Self {
            answering: Err("container runtime status check may not have completed yet".into()),
            network: Err("network state unknown".into()),
            runtime: Ok(()),
            handlers: Vec::new(),
            features: None,
        }
    }
}

/// Settings that workers read.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: Arc<str>,
    /// Where `<pod>_<namespace>_<container>-<id>.log` links are made.
    pub log_links_dir: PathBuf,
    pub crash_backoff: BackoffLimits,
    pub addresses: NodeAddresses,
    /// The scheme of container ids in statuses.
    pub runtime_name: String,
}

pub struct Tools {
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
    pub users: Users,
    pub admission: Arc<Admission>,
    /// Starts take turns here. Ends do not: the runtime makes more of them at a time, not fewer.
    pub starts: Gate,
    pub metrics: Arc<Metrics>,
    pub facts: NodeFacts,
    pub node: watch::Receiver<NodeState>,
    pub settings: Settings,
    /// When this agent started; older containers were adopted.
    pub started: Timestamp,
}
