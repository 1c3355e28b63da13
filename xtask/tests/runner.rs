//! Tests of `./test` with stub programs: which steps it runs and what it reports when a step fails,
//! in a directory that looks like the repository.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// Fails where `FAIL` names a part of its arguments, and prints what the real program would.
const CARGO: &str = r#"#!/bin/bash
echo "cargo $*, bless ${PODWRIGHT_BLESS:-unset}, containerd ${PODWRIGHT_CONTAINERD:-default}"
if [[ -n ${FAIL:-} && "$*" == *$FAIL* ]]; then exit 1; fi
[[ $1 == test ]] || exit 0
echo "     Running tests/e2e/main.rs (target/debug/deps/e2e-01)"
echo "running 1 test"
for test in ${TESTS:-static_pods::a images::a gc::a logs::a probes::a resize::a}; do
  echo "test $test ... ok"
done
echo "test result: ok. 6 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
"#;

const PROVIDE: &str = r#"#!/bin/bash
[[ $1 != --list ]] || { echo tool; exit 0; }
echo "providing $*"
exit "${PROVIDED:-0}"
"#;

const PACKAGES: &str = "need() { :; }\nneed_to_build() { :; }\nneed_to_run() { :; }\n\
                        install_missing() { :; }\n";

/// Set: cargo-deny is not installed.
const WITHOUT_DENY: &str = "WITHOUT_DENY";

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the script, and returns its output and the summary.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (Output, String) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../test");
    write(&root.join("test"), &fs::read_to_string(script).unwrap());
    write(&root.join("bin/cargo"), CARGO);
    // Here every machine runs as root and has the same tools.
    write(&root.join("bin/id"), "#!/bin/sh\necho 0\n");
    write(&root.join("bin/rustfmt"), "#!/bin/sh\n");
    if !variables.iter().any(|(name, _)| *name == WITHOUT_DENY) {
        write(&root.join("bin/cargo-deny"), "#!/bin/sh\n");
    }
    write(&root.join("testbed/provide"), PROVIDE);
    write(&root.join("testbed/packages"), PACKAGES);
    write(&root.join("testbed/quarantine"), "");
    write(&root.join("Cargo.lock"), "");
    fs::create_dir_all(root.join("target/debug")).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_xtask"), root.join("target/debug/xtask")).unwrap();
    write(&root.join("target/debug/podwright"), "#!/bin/sh\n");
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", root.join("bin").display());
    let mut command = Command::new(root.join("test"));
    command.args(arguments).env_clear().env("PATH", path).env("HOME", root);
    command.env("CARGO_MANIFEST_DIR", root.join("xtask")).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output, printed)
}

#[test]
fn full_run_has_every_step_and_passes() {
    let (output, printed) = run(&[], &[("PODWRIGHT_BLESS", "1"), ("RUST_TEST_THREADS", "2")]);
    assert!(output.status.success(), "{printed}");
    for wanted in [
        "==> cargo deny",
        "==> tools of the test bed",
        "providing tool",
        "--skip many_probes static_pods:: images:: gc:: logs:: probes:: resize::",
        "24 passed, 0 failed, 0 unsteady, 0 skipped, 0 ignored",
        "bless unset, containerd 1.7",
        "bless unset, containerd 2",
    ] {
        assert!(printed.contains(wanted), "no {wanted:?} in {printed}");
    }
    assert!(!printed.contains("bless 1"), "{printed}");
}

#[test]
fn step_that_stops_the_run_is_listed_with_the_steps_that_never_began() {
    let (output, printed) = run(&["--quick"], &[("FAIL", "xtask tidy")]);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    let failed: Vec<_> = printed.lines().filter(|line| line.starts_with("failed: ")).collect();
    assert_eq!(
        failed,
        [
            "failed: repository checks: ended with status 1",
            "failed: cargo deny: never began",
            "failed: unit, property, simulation and golden tests: never began",
            "failed: ./test stopped early, with status 1",
        ]
    );
}

#[test]
fn tools_that_cannot_be_provided_fail_their_step() {
    let (output, printed) = run(&[], &[("PROVIDED", "7")]);
    assert!(!output.status.success(), "{printed}");
    assert!(printed.contains("failed: tools of the test bed: ended with status 7"), "{printed}");
    assert!(printed.contains("failed: end-to-end tests: never began"), "{printed}");
}

#[test]
fn containerd_step_without_a_case_of_each_filter_fails() {
    let (output, printed) =
        run(&[], &[("TESTS", "static_pods::a images::a gc::a logs::a probes::a")]);
    assert!(!output.status.success(), "{printed}");
    for release in ["1.7", "2"] {
        let step = format!("end-to-end tests of pods on containerd {release}");
        assert!(printed.contains(&format!("failed: {step}: no test of resize:: ran")), "{printed}");
    }
}

#[test]
fn step_without_its_program_is_counted_as_skipped() {
    let (output, printed) = run(&["--quick"], &[(WITHOUT_DENY, "1")]);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("skipped 1: the program is not installed: cargo-deny"), "{printed}");
}
