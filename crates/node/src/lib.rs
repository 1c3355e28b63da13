//! The node agent: the tasks that run pods on this node.
//!
//! The modules are listed in the order of a pod's path: [`sources`] deliver it, [`pods`] merges and
//! admits it, its [`worker`] plans and executes with the [`runtime`] and the node's [`resources`],
//! [`eviction`] ends it if the node runs out of something, [`report`] informs the API server, and [`server`] answers requests about it. Decisions are pure
//! functions in `podwright_core`; this crate gathers their inputs and carries out their results.

pub mod sources;

pub mod pods;

pub mod worker;

pub mod runtime;

pub mod resources;

pub mod eviction;

pub mod report;

pub mod server;

pub mod telemetry;

pub mod client;

mod error_chain;
pub mod node;
