//! The Node object compared field by field with the one that upstream registers.
//!
//! The recordings are not part of this repository: `PODWRIGHT_GOLDEN` names their directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test, and one that reads files"
)]

use std::collections::BTreeMap;

use jiff::Timestamp;
use podwright_api::quantity::Quantity;
use podwright_core::node_status::{
    Identity, Image, MachineResources, NodeObservation, Reservations, Settings, desired,
    registration,
};
use podwright_testkit::report;
use serde_json::{Value, json};

fn recorded() -> Option<Value> {
    let text = std::fs::read_to_string(report::recordings()?.join("node.json")).unwrap();
    // Only a valid address is reported.
    Some(serde_json::from_str(&text.replace("<nodeIP>", "10.0.0.1")).unwrap())
}

fn bytes(value: &Value) -> u64 {
    value.as_str().unwrap().parse::<Quantity>().unwrap().unsigned_value()
}

/// Machine, runtime and settings of the recording.
fn recorded_inputs(golden: &Value) -> (Settings, NodeObservation) {
    let status = &golden["status"];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let info = &status["nodeInfo"];
    let settings = Settings {
        name: "node1".into(),
        hostname: "node1".into(),
        labels: BTreeMap::new(),
        taints: Vec::new(),
        provider_id: String::new(),
        node_ips: Vec::new(),
        external_cloud: false,
        controller_attaches_volumes: true,
        port: 10250,
        max_pods: 250,
        max_images: Some(50),
        ignores_local_storage: false,
        reservations: Reservations {
            evict_memory: Some("100Mi".parse().unwrap()),
            evict_storage: Some("1%".parse().unwrap()),
            ..Reservations::default()
        },
        kubelet_version: text(&info["kubeletVersion"]),
        architecture: "amd64",
        declared_features: vec![
            "ExtendWebSocketsToKubelet",
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
            "RestartAllContainersOnContainerExits",
        ],
    };
    let images = status["images"].as_array().unwrap().iter().rev().map(|image| Image {
        tags: vec![text(&image["names"][0])],
        digests: Vec::new(),
        size: image["sizeBytes"].as_u64().unwrap(),
    });
    let seen = NodeObservation {
        amounts: MachineResources {
            cpus: 2,
            memory: bytes(&status["capacity"]["memory"]),
            swap: 0,
            hugepages: [(2 << 20, 0), (1 << 30, 0)].into(),
            storage: Some(bytes(&status["capacity"]["ephemeral-storage"])),
        },
        identity: Some(Identity {
            machine_id: text(&info["machineID"]),
            system_uuid: text(&info["systemUUID"]),
            boot_id: text(&info["bootID"]),
            kernel_version: text(&info["kernelVersion"]),
            os_image: text(&info["osImage"]),
        }),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        runtime_version: text(&info["containerRuntimeVersion"]),
        images: Some(images.collect()),
        ..NodeObservation::default()
    };
    (settings, seen)
}

#[test]
fn node_object_equals_upstreams_field_by_field() {
    let Some(mut golden) = recorded() else { return };
    let (settings, seen) = recorded_inputs(&golden);
    let initial = registration::initial(&settings);
    let (node, _) = desired(&initial, &settings, &seen, Timestamp::UNIX_EPOCH);
    let mut ours = serde_json::to_value(&node).unwrap();
    // Remove what the server and its controllers add, and the times.
    let metadata = golden["metadata"].as_object_mut().unwrap();
    for field in ["creationTimestamp", "resourceVersion", "uid"] {
        metadata.remove(field);
    }
    metadata["annotations"].as_object_mut().unwrap().remove("node.alpha.kubernetes.io/ttl");
    for node in [&mut ours, &mut golden] {
        for condition in node["status"]["conditions"].as_array_mut().unwrap() {
            condition["lastHeartbeatTime"] = json!("");
            condition["lastTransitionTime"] = json!("");
        }
    }
    assert_eq!(ours["metadata"], golden["metadata"]);
    assert_eq!(ours["spec"], golden["spec"]);
    for (field, want) in golden["status"].as_object().unwrap() {
        assert_eq!(&ours["status"][field], want, "status.{field}");
    }
    let extra = ours["status"].as_object().unwrap().keys();
    let extra: Vec<_> = extra.filter(|field| golden["status"].get(field).is_none()).collect();
    assert_eq!(extra, Vec::<&String>::new());
}
