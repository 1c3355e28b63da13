//! Reports to the API server: pod statuses, events, the node and its lease.

pub mod events;
pub mod heartbeat;
pub mod status;
