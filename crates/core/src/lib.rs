//! Every decision of Podwright, as pure functions.
//!
//! Nothing in this crate reads a clock, a file, the environment or a socket: what is known comes
//! in as values, what should happen goes out as values. So the same inputs always give the same
//! decision, a bug report replays as a unit test, and a reader finds every *choice* here and
//! nowhere else. `clippy.toml` beside this crate enforces it.
//!
//! Start at [`plan::decide`], then read [`status`].

pub mod admission;
pub mod attempts;
#[cfg(any(test, feature = "builders"))]
pub mod builders;
pub mod certificate;
pub mod cgroup;
pub mod config;
pub mod credential;
pub mod event;
pub mod gc;
pub mod ids;
pub mod image;
pub mod labels;
pub mod lifecycle;
pub mod log;
pub mod node_status;
pub mod observed;
pub mod plan;
pub mod pod;
pub mod probe;
pub mod qos;
pub mod quantity;
pub mod resize;
pub mod schema;
pub mod stats;
pub mod status;
pub mod time;
pub mod users;
pub mod volume;
