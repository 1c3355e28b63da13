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

use k8s_openapi::api::core::v1;
use podwright_testkit::report;
use podwright_testkit::sim::Sim;
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

/// What the only container of a pod writes before it exits, as soon as there is a file for it.
fn write_message(sim: &Sim, uid: &str, text: &str) {
    let files = sim.ground.root().join("pods").join(uid).join("containers/app");
    for file in std::fs::read_dir(files).into_iter().flatten().flatten() {
        std::fs::write(file.path(), text).unwrap();
    }
}

/// The termination message of a pod's only container.
fn message(sim: &Sim, name: &str) -> Option<String> {
    message_of(&*sim.record.pod(name)?)
}

fn message_of(pod: &v1::Pod) -> Option<String> {
    let status = record::containers(pod).into_iter().next()?;
    status.state.as_ref()?.terminated.as_ref()?.message.clone()
}

/// The phases a pod was shown in, each once.
fn phases(sightings: &[Sighting]) -> Vec<&'static str> {
    let mut phases: Vec<_> = sightings.iter().map(|s| record::phase(&s.pod).as_str()).collect();
    phases.dedup();
    phases
}
