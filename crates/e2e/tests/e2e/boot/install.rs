//! `podwright install` on a machine with systemd, in the VM: the node starts at boot, and neither
//! the installation nor an upgrade restarts a pod.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use podwright_e2e::images;
use podwright_e2e::tools;
use podwright_e2e::vm::Vm;

use crate::privilege::{LONGER, needs_root, needs_vm};

/// Shorter than the limit of the case, so that the VM's output is reported.
const LIMIT: Duration = Duration::from_secs(24 * 60);

#[tokio::test]
async fn installed_node_starts_at_boot_and_an_upgrade_restarts_no_pod() {
    needs_root!(LONGER);
    needs_vm!();
    let script = include_str!("install/payload.sh");
    let program = tools::podwright().unwrap();
    // What follows the last section of a program is not read.
    let directory = tempfile::tempdir().unwrap();
    let newer = directory.path().join("newer");
    fs::copy(&program, &newer).unwrap();
    fs::OpenOptions::new().append(true).open(&newer).unwrap().write_all(b"x").unwrap();
    let mut vm = Vm::new(script).limit(LIMIT).file("podwright", program).file("newer", newer);
    for archive in &images::archives().unwrap() {
        let name = Path::new("images").join(archive.path.file_name().unwrap());
        vm = vm.file(name, &archive.path);
    }
    let outcome = vm.run().await.unwrap();
    let lines: Vec<&str> = outcome.output.lines().collect();
    let want = [
        "installed: enabled, active",
        "installed: the same process",
        "again: nothing changes",
        "upgraded: the new agent",
        "upgraded: the same process",
        "booted: active",
        "uninstalled: the same process",
        "down: nothing runs",
    ];
    assert!(lines == want, "output:\n{}", outcome.output);
    assert_eq!(outcome.status, 0, "{}", outcome.output);
}
