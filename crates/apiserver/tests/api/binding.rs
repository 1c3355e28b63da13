//! Binding controller: pods are bound to a node, or their condition says why not.

use serde_json::{Value, json};

use super::test_server::{NS, TestServer, eventually, pod};

async fn node(test_server: &TestServer, name: &str, cpu: &str) {
    let node = json!({
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "10"}},
    });
    test_server.post("/api/v1/nodes", node.clone()).await.ok();
    test_server.merge(&format!("/api/v1/nodes/{name}/status"), node).await.ok();
}

fn requesting(name: &str, cpu: &str) -> Value {
    let mut pod = pod(name, "");
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    pod
}

async fn node_of(test_server: &TestServer, name: &str) -> String {
    let pod = test_server.get(&format!("{NS}/pods/{name}")).await.ok();
    pod.body["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()
}

/// Reason and message of the PodScheduled condition.
async fn scheduled(test_server: &TestServer, name: &str) -> (String, String) {
    let pod = test_server.get(&format!("{NS}/pods/{name}")).await.ok();
    let conditions = pod.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|each| each["type"] == "PodScheduled").cloned();
    let text = |field: &str| {
        found.as_ref().and_then(|found| found[field].as_str()).unwrap_or_default().to_owned()
    };
    (text("reason"), text("message"))
}

#[tokio::test(start_paused = true)]
async fn pod_waits_for_a_node_and_is_bound() {
    let (test_server, _alive) = TestServer::with_controllers().await;
    test_server.pod("web", "").await;
    eventually("the pod is marked as pending", || async {
        scheduled(&test_server, "web").await.1 == "no nodes available to schedule pods"
    })
    .await;
    node(&test_server, "n1", "2").await;
    eventually("the pod is bound", || async { node_of(&test_server, "web").await == "n1" }).await;
    assert_eq!(scheduled(&test_server, "web").await, (String::new(), String::new()));
    eventually("an event is recorded", || async {
        let events = test_server.get(&format!("{NS}/events")).await.ok();
        let items = events.body["items"].as_array().cloned().unwrap_or_default();
        items.iter().any(|event| event["message"] == "Successfully assigned default/web to n1")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn pod_that_does_not_fit_is_bound_once_resources_are_free() {
    let (test_server, _alive) = TestServer::with_controllers().await;
    node(&test_server, "n1", "2").await;
    test_server.post(&format!("{NS}/pods"), requesting("first", "1500m")).await.ok();
    eventually("the first is bound", || async { node_of(&test_server, "first").await == "n1" })
        .await;
    test_server.post(&format!("{NS}/pods"), requesting("second", "1")).await.ok();
    let want = "0/1 nodes are available: 1 Insufficient cpu (requested 1, free 500m).";
    eventually("the second names the missing resource", || async {
        scheduled(&test_server, "second").await == ("Unschedulable".to_owned(), want.to_owned())
    })
    .await;
    let now = json!({"gracePeriodSeconds": 0});
    test_server.delete_with(&format!("{NS}/pods/first"), now).await.ok();
    eventually("the second is bound", || async { node_of(&test_server, "second").await == "n1" })
        .await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_higher_priority_is_bound_first() {
    let (test_server, _alive) = TestServer::with_controllers().await;
    let class = json!({"metadata": {"name": "high"}, "value": 1000});
    test_server.post("/apis/scheduling.k8s.io/v1/priorityclasses", class).await.ok();
    test_server.post(&format!("{NS}/pods"), requesting("low", "2")).await.ok();
    let mut high = requesting("high", "2");
    high["spec"]["priorityClassName"] = json!("high");
    test_server.post(&format!("{NS}/pods"), high).await.ok();
    node(&test_server, "n1", "2").await;
    eventually("the one with the higher priority is bound", || async {
        node_of(&test_server, "high").await == "n1"
    })
    .await;
    eventually("the other is pending", || async {
        scheduled(&test_server, "low").await.1.contains("Insufficient cpu")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn scheduling_gates_and_missing_claims_keep_a_pod_pending() {
    let (test_server, _alive) = TestServer::with_controllers().await;
    node(&test_server, "n1", "2").await;
    let mut gated = pod("gated", "");
    gated["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    test_server.post(&format!("{NS}/pods"), gated).await.ok();
    eventually("the gate is named", || async {
        scheduled(&test_server, "gated").await.0 == "SchedulingGated"
    })
    .await;
    test_server
        .merge(&format!("{NS}/pods/gated"), json!({"spec": {"schedulingGates": null}}))
        .await
        .ok();
    eventually("it is bound", || async { node_of(&test_server, "gated").await == "n1" }).await;

    let mut claiming = pod("claiming", "");
    claiming["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    test_server.post(&format!("{NS}/pods"), claiming).await.ok();
    eventually("the missing claim is named", || async {
        scheduled(&test_server, "claiming").await.1 == "persistentvolumeclaim \"data\" not found"
    })
    .await;
}
