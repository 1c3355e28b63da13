//! The node agent: the tasks that carry decisions out.
//!
//! The modules are named in the order a pod meets them: [`sources`] deliver it, [`pods`] merges
//! and admits it, its [`worker`] decides and acts, [`pleg`] sees what came of it, [`status`]
//! reports it. What they choose is in `podwright_core`; here is only what they do.

pub mod admission;
pub mod allocations;
mod causes;
pub mod cell;
pub mod certificates;
pub mod cgroups;
pub mod connection;
pub mod events;
pub mod gate;
pub mod gc;
pub mod health;
pub mod heartbeat;
pub mod hooks;
pub mod http_get;
pub mod images;
pub mod inquiry;
pub mod journal;
mod last_words;
pub mod logs;
pub mod metrics;
pub mod mirrors;
pub mod node;
pub mod objects;
pub mod patience;
pub mod pleg;
pub mod pods;
pub mod probes;
pub mod server;
pub mod sources;
pub mod stats;
pub mod status;
pub mod tools;
pub mod users;
pub mod volumes;
pub mod worker;
