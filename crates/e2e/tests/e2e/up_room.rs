//! What a pod of `podwright up` waits for, and what it finds again: room on the machine, a folder.

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::Release;
use serde_json::json;

use crate::privilege::needs_root;
use crate::standalone::Standalone;

/// Two pods that each want more than half of the machine.
#[tokio::test]
async fn a_pod_waits_for_room_and_a_claim_gets_a_folder() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();

    let cpus = run(&["get", "nodes", "-o", "jsonpath={.items[0].status.allocatable.cpu}"]).await;
    let cpus: u32 = cpus.parse().unwrap();
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    });
    let big = |name: &str| {
        let container = json!({
            "name": "main", "image": "localhost/podwright/test:latest", "imagePullPolicy": "Never",
            "command": ["sh", "-c", format!("echo {name} >> /data/who; sleep 1000")],
            "resources": {"requests": {"cpu": format!("{}m", cpus * 600)}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        });
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
        let spec = json!({
            "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": [volume],
        });
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    };
    let all = [claim, big("first")].map(|object| object.to_string()).join("\n");
    kubectl.run_with(&["apply", "-f", "-"], &all).await.unwrap();
    run(&["wait", "--for=condition=Ready", "pod/first", "--timeout=60s"]).await;
    assert_eq!(run(&["get", "pvc", "data", "-o", "jsonpath={.status.phase}"]).await, "Bound");
    kubectl.run_with(&["apply", "-f", "-"], &big("second").to_string()).await.unwrap();
    run(&["wait", "--for=condition=PodScheduled=False", "pod/second", "--timeout=60s"]).await;
    let why = "jsonpath={.status.conditions[0].reason}: {.status.conditions[0].message}";
    let told = run(&["get", "pod", "second", "-o", why]).await;
    assert!(told.starts_with("Unschedulable: ") && told.contains("Insufficient cpu"), "{told}");
    run(&["delete", "pod", "first"]).await;
    run(&["wait", "--for=condition=Ready", "pod/second", "--timeout=60s"]).await;
    let who = run(&["exec", "second", "--", "cat", "/data/who"]).await;
    assert_eq!(who, "first\nsecond\n", "the claim's folder outlives a pod");
    let glance = node.run(&["status"]).await.unwrap();
    assert!(glance.contains("Ready") && glance.contains("second"), "{glance}");
    let asked = node.run(&["why", "second"]).await.unwrap();
    assert!(asked.contains("default/second") && asked.contains("running"), "{asked}");
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}
