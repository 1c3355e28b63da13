//! Simulations of the whole node on an in-memory runtime and API server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::print_stdout)]

mod admitting;
mod adoption;
mod behaviour;
mod chaos;
mod clocks;
mod crashes;
mod faults;
mod files;
mod frozen;
mod handlers;
mod hooks;
mod identity;
mod images;
mod interruptions;
mod journals;
mod lifecycle;
mod outage;
mod server;
mod shutdown;
mod tokens;
mod unreadable;
mod wakeups;

use std::time::Duration;

use k8s_openapi::api::core::v1;
use podwright_testkit::report;
use podwright_testkit::sim::Sim;
use podwright_testkit::sim::invariants::{assert_invariants, clean};
use podwright_testkit::sim::record::{self, RecordedPod};

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Whether memory volumes are available: they are mounts, which need root.
fn mounting() -> bool {
    let root = report::is_root();
    if !root {
        report::skipped("needs root");
    }
    root
}

/// Writes the termination message of a pod's only container, as soon as its file exists.
fn write_message(sim: &Sim, uid: &str, text: &str) {
    let files = sim.environment.root().join("pods").join(uid).join("containers/app");
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

/// The phases a pod was reported in, each once.
fn phases(recorded_pods: &[RecordedPod]) -> Vec<&'static str> {
    let mut phases: Vec<_> = recorded_pods.iter().map(|s| record::phase(&s.pod).as_str()).collect();
    phases.dedup();
    phases
}
