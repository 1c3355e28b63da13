//! `./test` itself, with programs that only pretend: what it runs, and what it tells when a step
//! fails, in a directory that looks like the repository.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// Fails where `FAIL` names a part of its arguments, and prints what the real one would.
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

/// Set, there is no cargo-deny.
const WITHOUT_DENY: &str = "WITHOUT_DENY";

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the script, and returns what it said and what the summary is.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (Output, String) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../test");
    write(&root.join("test"), &fs::read_to_string(script).unwrap());
    write(&root.join("bin/cargo"), CARGO);
    // Every machine is root's and has the same tools here.
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
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output, said)
}

#[test]
fn full_run_has_every_step_and_passes() {
    let (output, said) = run(&[], &[("PODWRIGHT_BLESS", "1"), ("RUST_TEST_THREADS", "2")]);
    assert!(output.status.success(), "{said}");
    for wanted in [
        "==> cargo deny",
        "==> tools of the test bed",
        "providing tool",
        "--skip many_probes static_pods:: images:: gc:: logs:: probes:: resize::",
        "24 passed, 0 failed, 0 unsteady, 0 skipped, 0 ignored",
        "bless unset, containerd 1.7",
        "bless unset, containerd 2",
    ] {
        assert!(said.contains(wanted), "no {wanted:?} in {said}");
    }
    assert!(!said.contains("bless 1"), "{said}");
}

#[test]
fn step_that_stops_the_run_is_told_with_those_that_never_began() {
    let (output, said) = run(&["--quick"], &[("FAIL", "xtask tidy")]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let failed: Vec<_> = said.lines().filter(|line| line.starts_with("failed: ")).collect();
    assert_eq!(
        failed,
        [
            "failed: laws of the repository: ended with status 1",
            "failed: cargo deny: never began",
            "failed: unit, property, simulation and golden tests: never began",
            "failed: ./test stopped early, with status 1",
        ]
    );
}

#[test]
fn tools_that_cannot_be_provided_fail_their_step() {
    let (output, said) = run(&[], &[("PROVIDED", "7")]);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("failed: tools of the test bed: ended with status 7"), "{said}");
    assert!(said.contains("failed: end-to-end tests: never began"), "{said}");
}

#[test]
fn containerd_step_without_a_case_of_each_filter_fails() {
    let (output, said) = run(&[], &[("TESTS", "static_pods::a images::a gc::a logs::a probes::a")]);
    assert!(!output.status.success(), "{said}");
    for release in ["1.7", "2"] {
        let step = format!("end-to-end tests of pods on containerd {release}");
        assert!(said.contains(&format!("failed: {step}: no test of resize:: ran")), "{said}");
    }
}

#[test]
fn step_without_its_program_is_counted_as_skipped() {
    let (output, said) = run(&["--quick"], &[(WITHOUT_DENY, "1")]);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("skipped 1: the program is not installed: cargo-deny"), "{said}");
}
