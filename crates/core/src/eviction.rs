//! Eviction: which pods the node ends when it runs out of memory, disk, inodes or process ids.
//!
//! Everything here is a function of what was measured: [`Thresholds`] come from the configuration,
//! [`Observations`] from the machine, and [`History::pass`] turns them into a [`Verdict`]: which
//! pressure the node reports, and which threshold is acted on. Then [`ranking`] orders the pods,
//! [`victim`] words what a victim is told, and [`local_storage`] names the pods that exceed their
//! own storage limits. [`Cadence`] decides when to look again. Rules, texts and tie-breaks are
//! upstream's.

mod cadence;
mod forecast;
pub mod layout;
pub mod local_storage;
mod pass;
pub mod ranking;
mod signal;
mod thresholds;
pub mod usage;
pub mod victim;

pub use cadence::Cadence;
pub use forecast::{Distance, Forecast, forecast};
pub use layout::DiskLayout;
pub use pass::{History, Met, Verdict};
pub use signal::{AbsurdValue, Observation, Observations, Resource, SampleTime, Signal};
pub use thresholds::{EvictionThreshold, Sources, ThresholdError, Thresholds};
pub use usage::{ContainerUsage, DiskUsage, PodUsage, PodUsed, VolumeUsage};

#[cfg(test)]
mod tests;
