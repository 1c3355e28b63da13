//! Reports to the API server: pod statuses, events, the node and its lease.

pub mod events;
pub mod heartbeat;
pub(crate) mod oom;
pub mod status;

use std::sync::Arc;

use crate::telemetry::metrics::Metrics;
use events::Recorder;
use status::StatusManager;

/// Where a component reports what happened to a pod.
#[derive(Clone)]
pub struct Reporting {
    pub events: Recorder,
    pub status: Arc<StatusManager>,
    pub metrics: Arc<Metrics>,
}
