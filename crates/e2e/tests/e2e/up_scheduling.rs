//! Scheduling and claims of `podwright up`: a pod waits for capacity and finds its volume data
//! again.

use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::Release;
use podwright_e2e::wait;
use serde_json::json;

use crate::privilege::needs_root;
use crate::standalone::Standalone;

const LIMIT: Duration = Duration::from_secs(180);

/// Two pods that each need more than half of the machine.
#[tokio::test]
async fn pod_waits_for_capacity_and_claim_gets_a_directory() {
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
    run(&["wait", "--for=condition=Ready", "pod/first", "--timeout=180s"]).await;
    assert_eq!(run(&["get", "pvc", "data", "-o", "jsonpath={.status.phase}"]).await, "Bound");
    kubectl.run_with(&["apply", "-f", "-"], &big("second").to_string()).await.unwrap();
    run(&["wait", "--for=condition=PodScheduled=False", "pod/second", "--timeout=180s"]).await;
    let why = "jsonpath={.status.conditions[0].reason}: {.status.conditions[0].message}";
    let reported = run(&["get", "pod", "second", "-o", why]).await;
    assert!(
        reported.starts_with("Unschedulable: ") && reported.contains("Insufficient cpu"),
        "{reported}"
    );
    run(&["delete", "pod", "first"]).await;
    run(&["wait", "--for=condition=Ready", "pod/second", "--timeout=180s"]).await;
    // Without a probe a pod is ready before its program did anything.
    let both = async || {
        let who = kubectl.run(&["exec", "second", "--", "cat", "/data/who"]).await?;
        anyhow::ensure!(who == "first\nsecond\n", "the claim's directory has {who:?}");
        Ok(true)
    };
    wait::until_true("the claim's directory to outlive a pod", LIMIT, both).await.unwrap();
    let shown = async || {
        let glance = node.run(&["status"]).await?;
        anyhow::ensure!(glance.contains("Ready") && glance.contains("second"), "{glance}");
        Ok(true)
    };
    wait::until_true("the status of both", LIMIT, shown).await.unwrap();
    let asked = node.run(&["why", "second"]).await.unwrap();
    assert!(asked.contains("default/second") && asked.contains("running"), "{asked}");
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}
