//! Tests of the built binary.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const PODWRIGHT: &str = env!("CARGO_BIN_EXE_podwright");

/// Exit code and output of a run.
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Run {
    let Output { status, stdout, stderr } =
        Command::new(program.as_ref()).args(arguments).env("NO_COLOR", "1").output().unwrap();
    Run {
        code: status.code(),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    }
}

fn podwright(arguments: &[&str]) -> Run {
    run(PODWRIGHT, arguments)
}

/// A link to the program with the name `kubelet`.
fn kubelet_link() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("kubelet");
    std::os::unix::fs::symlink(PODWRIGHT, &link).unwrap();
    (directory, link)
}

#[test]
fn invoked_as_kubelet_it_runs_the_kubelet() {
    let (_directory, kubelet) = kubelet_link();
    let version = run(&kubelet, &["--version"]);
    let want = concat!("Kubernetes v1.36.4+podwright.", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!((version.code, version.out.as_str()), (Some(0), want));

    let by_name = run(&kubelet, &["--help"]);
    let by_command = podwright(&["kubelet", "--help"]);
    assert_eq!(by_name.code, Some(0));
    assert_eq!(by_name.out, by_command.out);
    assert_eq!(podwright(&["help", "kubelet"]).out, by_command.out);

    let no_command = run(&kubelet, &["up"]);
    assert_eq!(no_command.code, Some(1));
    assert!(no_command.err.contains("unexpected argument \"up\""), "{}", no_command.err);
}

#[test]
fn unknown_flag_is_an_error_with_a_suggestion() {
    let (_directory, kubelet) = kubelet_link();
    for (program, arguments) in [
        (PODWRIGHT, vec!["kubelet", "--container-runtime-endpont=/x", "--max_pod=4"]),
        (kubelet.to_str().unwrap(), vec!["--container-runtime-endpont=/x", "--max_pod=4"]),
    ] {
        let run = run(program, &arguments);
        assert_eq!(run.code, Some(1));
        assert_eq!(
            run.err,
            "error: invalid configuration, 2 problems:\n  \
             command line: unknown flag --container-runtime-endpont; did you mean --container-runtime-endpoint?\n  \
             command line: unknown flag --max_pod; did you mean --max-pods?\n"
        );
        assert_eq!(run.out, "");
    }
}

#[test]
fn invalid_configuration_is_refused_with_all_problems() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubelet.yaml");
    fs::write(
        &file,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         maxPods: -1\ncgroupDriver: sysd\n",
    )
    .unwrap();
    let flag = format!("--config={}", file.display());
    let run = podwright(&["kubelet", &flag, "--port=0", "--fail-swap-on=false"]);
    let file = file.display();
    assert_eq!(run.code, Some(1));
    assert_eq!(
        run.err,
        format!(
            "error: invalid configuration, 3 problems:\n  \
             {file}: cgroupDriver: \"sysd\" must be cgroupfs or systemd\n  \
             {file}: maxPods: -1 must be 0 or more\n  \
             --port: port: 0 must be from 1 to 65535\n"
        )
    );
}

#[test]
fn versions_are_printed_as_text_and_json() {
    let text = podwright(&["version"]);
    assert_eq!(text.code, Some(0));
    assert!(
        text.out.starts_with(concat!("podwright ", env!("CARGO_PKG_VERSION"), "\n")),
        "{}",
        text.out
    );
    assert!(text.out.contains("v1.36.4+podwright."), "{}", text.out);

    let json: serde_json::Value =
        serde_json::from_str(&podwright(&["version", "-o", "json"]).out).unwrap();
    assert_eq!(json["podwright"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["kubelet"], concat!("v1.36.4+podwright.", env!("CARGO_PKG_VERSION")));
    assert!(json["rustc"].as_str().unwrap().starts_with(|c: char| c.is_ascii_digit()), "{json}");
}

#[test]
fn completion_script_is_valid_bash() {
    let script = podwright(&["completion", "bash"]);
    assert_eq!(script.code, Some(0));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("podwright.bash");
    fs::write(&path, script.out).unwrap();
    let check = run("bash", &["-n", path.to_str().unwrap()]);
    assert_eq!((check.code, check.err.as_str()), (Some(0), ""));

    let unknown = podwright(&["completion", "cmd.exe"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.err.contains("possible values: bash"), "{}", unknown.err);
}

#[test]
fn help_lists_commands_and_examples_without_colours() {
    let help = podwright(&["--help"]);
    assert_eq!(help.code, Some(0));
    for word in ["kubelet", "up", "down", "doctor", "version", "completion", "Examples:"] {
        assert!(help.out.contains(word), "{word}: {}", help.out);
    }
    assert!(!help.out.contains('\x1b'));
    assert!(!podwright(&["kubelet", "--help"]).out.contains('\x1b'));
}

#[test]
fn missing_and_unknown_commands_are_errors() {
    let none = podwright(&[]);
    assert_eq!(none.code, Some(2));
    assert!(none.err.contains("Usage:"), "{}", none.err);
    let wrong = podwright(&["doktor"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.err.contains("'doctor'"), "{}", wrong.err);
}

#[test]
fn doctor_fails_if_the_given_runtime_does_not_respond() {
    let directory = tempfile::tempdir().unwrap();
    let unused = format!("unix://{}/none.sock", directory.path().display());
    let run = podwright(&["doctor", "-o", "json", "--container-runtime-endpoint", &unused]);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((run.code, report["ok"].as_bool()), (Some(1), Some(false)));
    let findings = report["findings"].as_array().unwrap();
    let runtime = findings.iter().find(|finding| finding["check"] == "runtime").unwrap();
    assert_eq!(runtime["verdict"], "failure");
    assert!(runtime["says"].as_str().unwrap().contains(&unused), "{runtime}");
    assert!(runtime["fix"].is_string());
}

#[test]
fn doctor_reports_configuration_problems() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubelet.yaml");
    fs::write(&file, "kind: KubeletConfiguration\nmaxPods: -1\n").unwrap();
    let run = podwright(&["doctor", "--config", file.to_str().unwrap()]);
    assert_eq!(run.code, Some(1));
    assert!(run.out.contains("maxPods: -1 must be 0 or more"), "{}", run.out);
    assert!(run.out.contains("apiVersion: is missing"), "{}", run.out);
}

#[test]
fn closed_output_pipe_is_no_error() {
    let mut child = Command::new(PODWRIGHT)
        .args(["kubelet", "--help"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
