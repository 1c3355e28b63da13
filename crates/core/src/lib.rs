//! Decisions of Podwright, as pure functions.
//!
//! This crate reads no clock, file, environment variable or socket: inputs and decisions are
//! values. The same inputs always give the same decision, so a bug report replays as a unit test,
//! and every decision is found here. `clippy.toml` in this crate enforces the rule.
//!
//! Start at [`plan::decide`], then read [`status`]. Where to find a decision:
//!
//! - is a container restarted: [`plan::regular`], [`plan::init`] for init containers and sidecars,
//!   and [`pod::Container::after_exit`] for restart policy and rules
//! - how long it waits before that: [`plan::sync`], from the back-off in [`attempts`] and
//!   [`backoff`]
//! - is the sandbox replaced: [`plan::sandbox`]
//! - in which order and with which grace period it is stopped: [`plan::kill`], [`lifecycle`]
//! - which pod's start or image pull goes next: [`start_order`]
//! - when a runtime that the agent started is started again: [`supervision`]
//! - in which order pods end when the machine shuts down: [`shutdown`]
//! - phase, conditions and container statuses: [`status::phase`], [`status::conditions`],
//!   [`status::container`]
//! - what a user is told about a pod that does not run well: [`explain`]
//! - which pods are valid, and what rules the API has apart from the agent: the crate
//!   [`podwright_api`]

pub mod admission;
pub mod attempts;
pub mod backoff;
#[cfg(any(test, feature = "builders"))]
pub mod builders;
pub mod certificate;
pub mod cgroup;
pub mod config;
pub mod credential;
pub mod event;
pub mod eviction;
pub mod explain;
pub mod gc;
pub mod ids;
pub mod image;
pub mod labels;
pub mod lifecycle;
pub mod log;
pub mod merge_patch;
pub mod node_status;
pub mod observed;
pub mod oom;
pub mod packet_filter;
pub mod plan;
pub mod pod;
pub mod probe;
pub mod random;
pub mod resize;
pub mod shutdown;
pub mod start_order;
pub mod stats;
pub mod status;
pub mod supervision;
pub mod throttle;
pub mod time;
pub mod users;
pub mod volume;
