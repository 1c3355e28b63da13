//! `./run`, as far as it needs no node.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// An unprivileged user.
const USER: u32 = 65_000;

/// A process may have any command line, also that of an agent.
#[test]
fn run_down_never_executes_the_program_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let agent = ["x", "up", "--foreground", "--state-dir"].map(std::ffi::OsStr::new);
    let mut theirs = Command::new("/bin/bash")
        .args(["-c", "while :; do sleep 1; done"])
        .args(agent)
        .arg(state.path())
        .arg("--flag")
        .uid(USER)
        .gid(USER)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../run");
    let output = Command::new("/bin/bash")
        .arg(script)
        .arg("--down")
        .env("PODWRIGHT_STATE", state.path())
        .env("PODWRIGHT_BIN", "/absent/podwright")
        .output()
        .unwrap();
    theirs.kill().unwrap();
    theirs.wait().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("no node was started in"), "{printed}");
    assert!(!printed.contains("/exe"), "it was executed: {printed}");
}
