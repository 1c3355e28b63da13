//! What a case needs from the machine, and how it says so when it does not get it.

use std::io::Write;

/// Tells that a case is skipped. Not by `eprintln!`: what a passing test prints that way is kept
/// back, and nobody would know.
pub(crate) fn skipped(reason: &str) {
    let case = std::thread::current().name().unwrap_or("a case").to_owned();
    let _ = writeln!(std::io::stderr(), "{case}: skipped: {reason}");
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
