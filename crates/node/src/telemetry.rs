//! Measurements: metrics of the agent, and usage statistics of the node, its pods and volumes.

pub mod metrics;
pub mod stats;
