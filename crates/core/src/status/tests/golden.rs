//! Final statuses, compared with recordings of the upstream kubelet.
//!
//! Only the shape is compared: the observed states are written by hand, from what each recording
//! is about. The recordings are not part of this repository: `PODWRIGHT_GOLDEN` names their
//! directory.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a test that reads files")]

use podwright_testkit::report;
use serde_json::{Value, json};

use super::scene::{Scene, pod};
use crate::attempts::StartError;
use crate::pod::ProbeKind;
use crate::probe::ProbeVerdict;

type Play = fn(&mut Scene, &Value);

const CASES: [(&str, Play); 8] = [
    ("plain", |scene, _| {
        scene.runs("c");
    }),
    ("crash-loop", |scene, _| {
        scene.exits("a", 1).report().exits("a", 1).report().exits("a", 1);
    }),
    ("init", |scene, _| {
        scene.exits("i1", 0).exits("i2", 0).runs("c");
    }),
    ("job-succeeds", |scene, _| {
        scene.exits("a", 0).exits("b", 0).report().sandbox_dies();
    }),
    ("job-fails", |scene, _| {
        scene.exits("a", 7).exits("b", 0).report().sandbox_dies();
    }),
    ("sidecar", |scene, _| {
        scene.runs("side").probe("side", ProbeKind::Startup, ProbeVerdict::Success);
        scene.exits("i2", 0).runs("c");
    }),
    ("bad-image-name", |scene, recorded| {
        scene.fails_to_start("c", StartError::InvalidImageName, message(recorded));
    }),
    ("never-pull", |scene, recorded| {
        scene.fails_to_start("c", StartError::ErrImageNeverPull, message(recorded));
    }),
];

/// The message of the image pull; it is only passed on here.
fn message(recorded: &Value) -> &str {
    recorded["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap()
}

#[test]
fn final_statuses_have_the_recorded_shape() {
    let Some(golden) = report::recordings() else { return };
    for (case, play) in CASES {
        let path = golden.join("pods").join(format!("{case}.json"));
        let recording: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let recorded = scrub(recording["status"].clone());
        let mut scene = Scene::of(pod(recording["objects"][0].clone(), |object| {
            object["metadata"]["uid"] = "<uid>".into();
            object["metadata"]["namespace"] = "default".into();
            object["metadata"]["generation"] = 1.into();
        }));
        scene.sandbox(&["10.0.0.5"]);
        play(&mut scene, &recorded);
        let status = serde_json::to_value(scene.report().reported()).unwrap();
        assert_eq!(scrub(status), recorded, "{case}");
    }
    report::golden("statuses", CASES.len(), CASES.len());
}

/// Replaces ids, times and addresses with fixed words on both sides.
fn scrub(value: Value) -> Value {
    match value {
        Value::Object(object) => object
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(field, value)| {
                let scrubbed = match field.as_str() {
                    "lastTransitionTime" | "startTime" | "startedAt" | "finishedAt" => {
                        json!("<time>")
                    }
                    "containerID" => json!("<container>"),
                    "imageID" if value != "" => json!("<image>"),
                    "ip" | "podIP" | "hostIP" => json!("<address>"),
                    // Removing the unlimited value leaves an empty list.
                    "resources" if value["limits"]["memory"] == NO_LIMIT => json!({}),
                    _ => scrub(value),
                };
                (field, scrubbed)
            })
            .collect(),
        Value::Array(list) => list.into_iter().map(scrub).collect(),
        other => other,
    }
}

/// Upstream reads the pod's cgroup back, and on cgroup v1 "no limit" is a number there. Podwright
/// reports the allocated resources.
const NO_LIMIT: &str = "9007199254740988Ki";
