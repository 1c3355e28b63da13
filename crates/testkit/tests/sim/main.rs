//! Ring 1: the whole node in a world that exists only in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod chaos;
mod clocks;
mod crashes;
mod faults;
mod life;
mod rows;
mod server;
mod soak;

use std::time::Duration;

use podwright_testkit::sim::record::{self, Sighting};
use podwright_testkit::sim::{Sim, laws};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// No law was broken on the way.
#[track_caller]
fn lawful(sim: &Sim) {
    let broken = laws::broken(sim);
    assert!(broken.is_empty(), "{}\n{}", broken.join("\n"), sim.story());
}

/// Nothing is left of any pod but those with these UIDs.
#[track_caller]
fn clean(sim: &Sim, living: &[String]) {
    let left = laws::leftovers(sim, living);
    assert!(left.is_empty(), "{}\n{}", left.join("\n"), sim.story());
}

/// The phases a pod was shown in, each once.
fn phases(sightings: &[Sighting]) -> Vec<&'static str> {
    let mut phases: Vec<_> = sightings.iter().map(|s| record::phase(&s.pod).as_str()).collect();
    phases.dedup();
    phases
}
