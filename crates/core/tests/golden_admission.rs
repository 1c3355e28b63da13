//! Admission of pods compared with recordings of the upstream kubelet.
//!
//! The recordings are not part of this repository: `PODWRIGHT_GOLDEN` names their directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test, and one that reads files"
)]

use std::path::Path;
use std::sync::Arc;

use podwright_core::admission::{AdmissionDecision, Node, admit, sysctls::AllowedSysctls};
use podwright_core::node_status::Pressure;
use podwright_core::pod::{Pod, Source};
use podwright_core::status;
use serde_json::Value;

/// The node of the recordings, from its Node object.
fn node(golden: &Path) -> Node {
    let text = std::fs::read_to_string(golden.join("node.json")).unwrap();
    let node: Value = serde_json::from_str(&text).unwrap();
    let allocatable = node["status"]["allocatable"].as_object().unwrap().iter();
    Node {
        name: "node1".into(),
        labels: serde_json::from_value(node["metadata"]["labels"].clone()).unwrap(),
        taints: Vec::new(),
        allocatable: allocatable
            .map(|(name, text)| (name.clone(), text.as_str().unwrap().parse().unwrap()))
            .collect(),
        sysctls: Arc::new(AllowedSysctls::new(
            node["status"]["nodeInfo"]["kernelVersion"].as_str().unwrap(),
            &[],
        )),
        apparmor: false,
        strict_groups: false,
        pressure: Pressure::default(),
        shutting_down: false,
    }
}

#[test]
fn pods_are_admitted_or_rejected_as_upstream_does() {
    let Some(golden) = podwright_testkit::report::recordings() else { return };
    let node = node(&golden);
    let (mut admitted, mut rejected) = (0, 0);
    for file in std::fs::read_dir(golden.join("pods")).unwrap() {
        let path = file.unwrap().path();
        let case: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mut objects = case["objects"].as_array().unwrap().iter();
        let Some(object) = objects.rfind(|object| object["kind"] == "Pod") else {
            continue;
        };
        let mut object = object.clone();
        object["metadata"]["uid"] = "u".into();
        let Ok(pod) = Pod::parse(serde_json::from_value(object).unwrap(), Source::Api) else {
            continue;
        };
        let wanted = &case["status"];
        let refused = wanted["message"].as_str().is_some_and(|m| m.starts_with("Pod was rejected"));
        match admit(&pod, &[], &node) {
            AdmissionDecision::Rejected(rejection) => {
                assert!(refused, "{}: {rejection:?}", path.display());
                let status = status::rejected(&pod, &rejection.reason, &rejection.message);
                assert_eq!(status.reason.as_deref(), wanted["reason"].as_str());
                assert_eq!(status.message.as_deref(), wanted["message"].as_str());
                assert_eq!(case["events"][0]["message"], rejection.message.as_str());
                rejected += 1;
            }
            AdmissionDecision::Admitted => {
                assert!(!refused, "{}: admitted", path.display());
                admitted += 1;
            }
            AdmissionDecision::AfterPreemption { victims, .. } => {
                panic!("{}: {victims:?}", path.display())
            }
        }
    }
    assert!(rejected >= 3 && admitted >= 30, "{rejected} rejected, {admitted} admitted");
}
