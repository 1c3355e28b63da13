//! The node agent: the tasks that run pods on this node.
//!
//! The path of a pod: [`sources`] deliver it, [`pods`] merges and admits it, its [`worker`] plans
//! and executes, [`pleg`] observes the runtime, [`status`] reports to the API server. Decisions are
//! pure functions in `podwright_core`; this crate gathers their inputs and carries out their
//! results.

pub mod admission;
pub mod allocations;
pub mod certificates;
pub mod cgroups;
pub mod connection;
pub mod context;
pub mod debug_socket;
mod error_chain;
pub mod events;
pub mod gc;
pub mod health;
pub mod heartbeat;
pub mod hooks;
pub mod http_get;
pub mod images;
pub mod journal;
pub mod logs;
pub mod metrics;
pub mod mirrors;
pub mod node;
pub mod objects;
pub mod pleg;
pub mod pod_handle;
pub mod pods;
pub mod probes;
pub mod request_timeout;
pub mod server;
pub mod sources;
pub mod start_limiter;
pub mod stats;
pub mod status;
mod termination_message;
pub mod users;
pub mod volumes;
pub mod worker;
