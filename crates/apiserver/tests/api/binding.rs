//! Pods get their node, or say what they wait for.

use serde_json::{Value, json};

use super::world::{NS, World, eventually, pod};

async fn node(world: &World, name: &str, cpu: &str) {
    let node = json!({
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "10"}},
    });
    world.post("/api/v1/nodes", node.clone()).await.ok();
    world.merge(&format!("/api/v1/nodes/{name}/status"), node).await.ok();
}

fn asking(name: &str, cpu: &str) -> Value {
    let mut pod = pod(name, "");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    pod
}

async fn place(world: &World, name: &str) -> String {
    let pod = world.get(&format!("{NS}/pods/{name}")).await.ok();
    pod.body["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
}

/// Reason and message of the condition PodScheduled.
async fn scheduled(world: &World, name: &str) -> (String, String) {
    let pod = world.get(&format!("{NS}/pods/{name}")).await.ok();
    let conditions = pod.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|each| each["type"] == "PodScheduled").cloned();
    let text = |field: &str| {
        found.as_ref().and_then(|found| found[field].as_str()).unwrap_or_default().to_owned()
    };
    (text("reason"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_a_node_and_gets_it() {
    let (world, _alive) = World::alive().await;
    world.pod("web", "").await;
    eventually("the pod says that it waits", || async {
        scheduled(&world, "web").await.1 == "no nodes available to schedule pods"
    })
    .await;
    node(&world, "n1", "2").await;
    eventually("the pod is bound", || async { place(&world, "web").await == "n1" }).await;
    assert_eq!(scheduled(&world, "web").await, (String::new(), String::new()));
    eventually("it is told", || async {
        let events = world.get(&format!("{NS}/events")).await.ok();
        let items = events.body["items"].as_array().cloned().unwrap_or_default();
        items.iter().any(|event| event["message"] == "Successfully assigned default/web to n1")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_fit_says_what_is_short_and_comes_when_there_is_room() {
    let (world, _alive) = World::alive().await;
    node(&world, "n1", "2").await;
    world.post(&format!("{NS}/pods"), asking("first", "1500m")).await.ok();
    eventually("the first is bound", || async { place(&world, "first").await == "n1" }).await;
    world.post(&format!("{NS}/pods"), asking("second", "1")).await.ok();
    let want = "0/1 nodes are available: 1 Insufficient cpu (requested 1, free 500m).";
    eventually("the second says what is short", || async {
        scheduled(&world, "second").await == ("Unschedulable".to_owned(), want.to_owned())
    })
    .await;
    let now = json!({"gracePeriodSeconds": 0});
    world.delete_with(&format!("{NS}/pods/first"), now).await.ok();
    eventually("the second is bound", || async { place(&world, "second").await == "n1" }).await;
}

#[tokio::test(start_paused = true)]
async fn the_more_important_pod_gets_the_room() {
    let (world, _alive) = World::alive().await;
    let class = json!({"metadata": {"name": "high"}, "value": 1000});
    world.post("/apis/scheduling.k8s.io/v1/priorityclasses", class).await.ok();
    world.post(&format!("{NS}/pods"), asking("low", "2")).await.ok();
    let mut high = asking("high", "2");
    high["spec"]["priorityClassName"] = json!("high");
    world.post(&format!("{NS}/pods"), high).await.ok();
    node(&world, "n1", "2").await;
    eventually("the important one is bound", || async { place(&world, "high").await == "n1" })
        .await;
    eventually("the other waits", || async {
        scheduled(&world, "low").await.1.contains("Insufficient cpu")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn gates_and_missing_claims_keep_a_pod_waiting() {
    let (world, _alive) = World::alive().await;
    node(&world, "n1", "2").await;
    let mut gated = pod("gated", "");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    world.post(&format!("{NS}/pods"), gated).await.ok();
    eventually("the gate is named", || async {
        scheduled(&world, "gated").await.0 == "SchedulingGated"
    })
    .await;
    world.merge(&format!("{NS}/pods/gated"), json!({"spec": {"schedulingGates": null}})).await.ok();
    eventually("it is bound", || async { place(&world, "gated").await == "n1" }).await;

    let mut claiming = pod("claiming", "");
    claiming["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    world.post(&format!("{NS}/pods"), claiming).await.ok();
    eventually("the claim is missed", || async {
        scheduled(&world, "claiming").await.1 == "persistentvolumeclaim \"data\" not found"
    })
    .await;
}
