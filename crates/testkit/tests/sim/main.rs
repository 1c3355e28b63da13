//! Ring 1: the whole node in a world that exists only in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::print_stdout)]

mod chaos;
mod clocks;
mod crashes;
mod faults;
mod frozen;
mod images;
mod journals;
mod life;
mod outage;
mod rows;
mod server;
mod tokens;
mod unreadable;

use std::time::Duration;

use podwright_testkit::report;
use podwright_testkit::sim::laws::{clean, lawful};
use podwright_testkit::sim::record::{self, Sighting};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Whether volumes in memory can be had: they are mounts, and for root.
fn mounting() -> bool {
    let root = report::is_root();
    if !root {
        report::skipped("needs root");
    }
    root
}

/// The phases a pod was shown in, each once.
fn phases(sightings: &[Sighting]) -> Vec<&'static str> {
    let mut phases: Vec<_> = sightings.iter().map(|s| record::phase(&s.pod).as_str()).collect();
    phases.dedup();
    phases
}
