//! CRI messages of pods compared with recordings of the upstream kubelet.
//!
//! Every RunPodSandbox, CreateContainer and UpdateContainerResources request of a recording is
//! built again from the recorded objects and must be equal field by field. Every container that
//! upstream could not configure must fail here with the same message.
//!
//! The recordings are not part of this repository: `PODWRIGHT_GOLDEN` names their directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test, and one that reads files"
)]

mod message;
mod node;
mod recording;

use std::collections::BTreeMap;

use message::Named;
use node::{Node, scrub};
use podwright_core::pod::adoption::Mismatch;
use podwright_testkit::report;
use recording::Recording;
use serde_json::Value;

/// Recordings that are known not to match, and the reason.
const OPEN: [(&str, &str); 0] = [];

#[test]
fn cri_messages_match_upstreams() {
    let Some(golden) = report::recordings() else { return };
    let open = BTreeMap::from(OPEN);
    let (mut cases, mut compared, mut wrong) = (0, 0, Vec::new());
    for entry in std::fs::read_dir(golden.join("pods")).unwrap() {
        let recording = Recording::read(&entry.unwrap().path());
        cases += 1;
        match (check(&recording), open.get(recording.name.as_str())) {
            (Ok(messages), None) => compared += messages,
            (Err(_), Some(_)) => {}
            (Ok(_), Some(why)) => wrong.push(format!("{}: matches now: {why}", recording.name)),
            (Err(text), None) => wrong.push(format!("{}: {text}", recording.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 0, "no recording contains a request");
    report::golden("config", cases - open.len(), cases);
}

/// A static pod that upstream started goes on under this agent: the requests of this node are
/// those of the recordings, and a pod is adopted by its requests. The recorded pods of the API are
/// compared as well, because they use more fields.
#[test]
fn pods_that_upstream_started_are_adopted() {
    let Some(golden) = report::recordings() else { return };
    let node = Node::new();
    let (mut adopted, mut wrong) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(golden.join("pods")).unwrap() {
        let recording = Recording::read(&entry.unwrap().path());
        if recording.has_patches() {
            continue;
        }
        let pod = recording.pod_before_patches();
        let (mut sandbox, mut containers) = (None, BTreeMap::new());
        for (method, request) in recording.requests() {
            let config = &request["config"];
            match method {
                "RunPodSandbox" => sandbox = Some(node.sandbox(&pod, attempt(config))),
                "CreateContainer" => {
                    let name = config["metadata"]["name"].as_str().unwrap();
                    let built = node.container(&recording, &pod, config).unwrap();
                    containers.insert(name, built);
                }
                _ => {}
            }
        }
        let Some(sandbox) = sandbox.filter(|_| !containers.is_empty()) else { continue };
        match node.adopts(&pod, sandbox, containers.into_values()) {
            Ok(()) => adopted.push(recording.name),
            // The last is a pod whose init container failed.
            Err(
                Mismatch::NotComparable { .. } | Mismatch::Unknown { .. } | Mismatch::NothingRuns,
            ) => {}
            Err(differs) => wrong.push(format!("{}: {differs}", recording.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(adopted.iter().any(|name| name == "static"), "{adopted:?}");
    assert!(adopted.iter().any(|name| name == "token"), "{adopted:?}");
}

/// Returns the number of compared messages.
fn check(recording: &Recording) -> Result<usize, String> {
    let node = Node::new();
    let mut compared = 0;
    for (method, request) in recording.requests() {
        match method {
            "RunPodSandbox" => {
                let pod = recording.pod_before_patches();
                let attempt = attempt(&request["config"]);
                same("sandbox", &node.sandbox(&pod, attempt), &request["config"])?;
            }
            "CreateContainer" => {
                let config = &request["config"];
                let pod = recording.pod_when_creating(config);
                let got = node.container(recording, &pod, config).map_err(|e| e.to_string())?;
                same("container", &got, config)?;
                let sandbox = &request["sandbox_config"];
                same("sandbox_config", &node.sandbox(&pod, attempt(sandbox)), sandbox)?;
            }
            "UpdateContainerResources" => {
                let pod = recording.pod_after_patches();
                same("resources", &node.resources(&pod), &request["linux"])?;
            }
            _ => continue,
        }
        compared += 1;
    }
    for (container, message) in recording.config_errors() {
        let pod = recording.pod_before_patches();
        let request = serde_json::json!({"metadata": {"name": container}});
        let got = node.container(recording, &pod, &request);
        let text = got.map_or_else(|error| scrub(&error.to_string()), |_| String::new());
        if text != message {
            return Err(format!("container {container}: want error {message:?}, got {text:?}"));
        }
        compared += 1;
    }
    Ok(compared)
}

fn attempt(config: &Value) -> u32 {
    u32::try_from(config["metadata"]["attempt"].as_u64().unwrap_or(0)).unwrap()
}

fn same<M: Named>(what: &str, got: &M, want: &Value) -> Result<(), String> {
    let got = scrub(&message::of(got).to_string());
    let got = message::sorted(serde_json::from_str(&got).unwrap());
    let want = message::sorted(want.clone());
    if got == want {
        return Ok(());
    }
    let (mut missing, mut extra) = (Vec::new(), Vec::new());
    message::differences("", &want, &got, &mut missing);
    message::differences("", &got, &want, &mut extra);
    Err(format!("{what} differs\n  recorded: {missing:#?}\n  ours: {extra:#?}"))
}
