//! What a case needs from the machine, and what it tells of itself although it passes.

use std::time::Duration;

use podwright_e2e::{cell, tools};
pub(crate) use podwright_testkit::report::{figure, skipped};

/// For cases that need longer than others: with a VM, tens of pods, or all recordings. Well below
/// what `./test` gives the whole suite, which begins them early enough.
pub(crate) const LONGER: Duration = Duration::from_secs(28 * 60);

/// Leaves the test when it does not run as root: namespaces, cgroups and mounts need it. Begins the
/// time limit of the case, which may be given.
macro_rules! needs_root {
    () => {
        podwright_testkit::needs_root!();
        let _limited = podwright_e2e::case::limited();
    };
    ($limit:expr) => {
        podwright_testkit::needs_root!();
        let _limited = podwright_e2e::case::limited_to($limit);
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
        "kubectl-1.32",
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
