//! What a case needs from the machine, and what it tells of itself although it passes.

use std::io::Write;

use podwright_e2e::{cell, tools};

/// Tells that a case is skipped.
pub(crate) fn skipped(reason: &str) {
    tell("skipped", reason);
}

/// Tells what a case measured; the summary of `./test` lists it.
pub(crate) fn figure(text: &str) {
    tell("figure", text);
}

/// Not by `eprintln!`: what a passing test prints that way is kept back, and nobody would know. In
/// one piece, since others write as well.
fn tell(kind: &str, text: &str) {
    let case = std::thread::current().name().unwrap_or("a case").to_owned();
    let line = format!("{case}: {kind}: {text}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Leaves the test when it does not run as root: namespaces, cgroups and mounts need it.
macro_rules! needs_root {
    () => {
        if !rustix::process::geteuid().is_root() {
            return crate::privilege::skipped("needs root");
        }
    };
}
pub(crate) use needs_root;

/// Runs the test that this is in again, in a cell, where nobody else changes the machine.
macro_rules! in_a_cell {
    () => {
        if !podwright_e2e::cell::inside() {
            return crate::privilege::run_in_a_cell();
        }
    };
}
pub(crate) use in_a_cell;

/// In a cell nothing can be fetched, so that what a bed may need is there before.
pub(crate) fn run_in_a_cell() {
    for tool in [
        "host",
        "containerd-1.6",
        "containerd-1.7",
        "containerd-2",
        "cni-plugins",
        "crun",
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
    ] {
        tools::provide(tool).unwrap();
    }
    cell::run_test(std::thread::current().name().unwrap()).unwrap();
}

/// Leaves the test where there is no VM: `testbed/provide` has one for amd64 only.
macro_rules! needs_vm {
    () => {
        if !cfg!(target_arch = "x86_64") {
            return crate::privilege::skipped("the VM is amd64 only");
        }
    };
}
pub(crate) use needs_vm;

/// Leaves the test when the API server of the bed is older than 1.`minor`.
#[allow(unused_macros, reason = "for whichever case needs a field that 1.20 drops")]
macro_rules! needs_server {
    ($bed:expr, $minor:literal) => {
        let minor = $bed.control_plane().unwrap().minor_version().await.unwrap();
        if minor < $minor {
            let reason = format!("needs Kubernetes 1.{}, this is 1.{minor}", $minor);
            return crate::privilege::skipped(&reason);
        }
    };
}
#[allow(unused_imports, reason = "see the macro")]
pub(crate) use needs_server;
