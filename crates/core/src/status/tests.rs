#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod addresses;
mod conditions;
mod containers;
mod golden;
mod manager;
mod merge;
mod patch;
mod phase;
mod properties;
mod queue;
mod scenarios;
mod scene;
