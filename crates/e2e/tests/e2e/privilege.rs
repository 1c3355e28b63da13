//! Requirements of a case on the machine, and notes of passing cases.

use std::time::Duration;

use podwright_e2e::{isolation, tools};
pub(crate) use podwright_testkit::report::{figure, skipped};

/// Limit for long cases: with a VM, tens of pods, or all recordings. Well below the limit of
/// `./test` for the whole suite, which starts them early enough.
pub(crate) const LONGER: Duration = Duration::from_secs(28 * 60);

/// Skips the test unless it runs as root: namespaces, cgroups and mounts need it. Starts the time
/// limit of the case, which may be given.
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

/// Runs the current test again in isolation, where nothing else changes the machine.
macro_rules! isolated {
    () => {
        if !podwright_e2e::isolation::inside() {
            return crate::privilege::run_isolated();
        }
    };
}
pub(crate) use isolated;

/// Nothing can be fetched in isolation, so everything a bed may need is provided before.
pub(crate) fn run_isolated() {
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
    isolation::run_test(std::thread::current().name().unwrap()).unwrap();
}

/// Skips the test if there is no VM: `testbed/provide` has one for amd64 only.
macro_rules! needs_vm {
    () => {
        if !cfg!(target_arch = "x86_64") {
            return crate::privilege::skipped("the VM is amd64 only");
        }
    };
}
pub(crate) use needs_vm;

/// Skips the test if the bed's API server is older than 1.`minor`.
#[allow(unused_macros, reason = "for cases that need a field that 1.20 drops")]
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
