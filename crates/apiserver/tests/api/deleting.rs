use serde_json::{Value, json};

use super::test_server::{NS, TestServer};

/// Creates a pod in a phase.
async fn pod_in(test_server: &TestServer, node: &str, phase: &str, finalizers: &[&str]) {
    test_server.pod("p", node).await;
    if !phase.is_empty() {
        test_server
            .merge(&format!("{NS}/pods/p/status"), json!({"status": {"phase": phase}}))
            .await
            .ok();
    }
    if !finalizers.is_empty() {
        test_server
            .merge(&format!("{NS}/pods/p"), json!({"metadata": {"finalizers": finalizers}}))
            .await
            .ok();
    }
}

#[tokio::test(start_paused = true)]
async fn pod_is_deleted_at_once_or_with_its_grace_period() {
    let bound = "n1";
    for (case, node, phase, finalizers, query, grace_left) in [
        ("running", bound, "Running", &[][..], "", Some(30)),
        ("running, grace given", bound, "Running", &[], "?gracePeriodSeconds=5", Some(5)),
        ("running, no grace", bound, "Running", &[], "?gracePeriodSeconds=0", None),
        ("running, negative grace", bound, "Running", &[], "?gracePeriodSeconds=-3", Some(1)),
        ("no node", "", "", &[], "", None),
        ("no node, grace given", "", "", &[], "?gracePeriodSeconds=5", None),
        ("succeeded", bound, "Succeeded", &[], "", None),
        ("failed", bound, "Failed", &[], "", None),
        (
            "no grace, but a finalizer",
            bound,
            "Running",
            &["x.io/y"],
            "?gracePeriodSeconds=0",
            Some(0),
        ),
        ("no node, but a finalizer", "", "", &["x.io/y"], "", Some(0)),
    ] {
        let test_server = TestServer::new().await;
        pod_in(&test_server, node, phase, finalizers).await;
        let response = test_server.delete(&format!("{NS}/pods/p{query}")).await.ok();
        assert_eq!(response.body["kind"], "Pod", "{case}");
        let left = test_server.get(&format!("{NS}/pods/p")).await;
        let found = (left.code == 200)
            .then(|| left.body["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap());
        assert_eq!(found, grace_left, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn grace_period_only_shrinks_and_moves_the_deletion_timestamp() {
    let test_server = TestServer::new().await;
    pod_in(&test_server, "n1", "Running", &[]).await;
    let path = format!("{NS}/pods/p");
    for (query, grace, until, generation) in [
        ("", 30, "2023-11-14T22:13:50Z", 2),
        ("?gracePeriodSeconds=60", 30, "2023-11-14T22:13:50Z", 2),
        ("?gracePeriodSeconds=10", 10, "2023-11-14T22:13:30Z", 2),
        ("", 10, "2023-11-14T22:13:30Z", 2),
        ("?gracePeriodSeconds=20", 10, "2023-11-14T22:13:30Z", 2),
    ] {
        let meta =
            test_server.delete(&format!("{path}{query}")).await.ok().body["metadata"].clone();
        assert_eq!(
            (&meta["deletionGracePeriodSeconds"], &meta["deletionTimestamp"], &meta["generation"]),
            (&json!(grace), &json!(until), &json!(generation)),
            "{query}"
        );
    }
    // a deadline already in the past becomes now, gracefully if requested
    tokio::time::advance(std::time::Duration::from_secs(8)).await;
    let meta =
        test_server.delete(&format!("{path}?gracePeriodSeconds=5")).await.ok().body["metadata"]
            .clone();
    assert_eq!(meta["deletionGracePeriodSeconds"], 1);
    assert_eq!(meta["deletionTimestamp"], "2023-11-14T22:13:28Z");
    // it cannot be undone
    let undone = test_server
        .merge(&path, json!({"metadata": {"deletionTimestamp": null, "labels": {"a": "b"}}}))
        .await
        .ok();
    assert_eq!(undone.body["metadata"]["deletionTimestamp"], "2023-11-14T22:13:28Z");
    // the finalizer is removed, but the grace period still holds the pod
    let gone = test_server.delete_with(&path, json!({"gracePeriodSeconds": 0})).await.ok();
    assert_eq!(gone.body["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(test_server.get(&path).await.code, 404);
    assert_eq!(test_server.delete(&path).await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn removing_a_finalizer_does_not_shorten_the_grace_period() {
    let test_server = TestServer::new().await;
    pod_in(&test_server, "n1", "Running", &["x.io/y"]).await;
    let path = format!("{NS}/pods/p");
    test_server.delete(&path).await.ok();
    test_server.merge(&path, json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(test_server.get(&path).await.code, 200, "its containers still run");
    test_server.delete(&format!("{path}?gracePeriodSeconds=0")).await.ok();
    assert_eq!(test_server.get(&path).await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn preconditions_protect_another_object_of_the_same_name() {
    let test_server = TestServer::new().await;
    let created = test_server.map("a").await;
    let path = format!("{NS}/configmaps/a");
    let uid = created.body["metadata"]["uid"].clone();
    for (case, preconditions, code) in [
        ("other uid", json!({"uid": "x"}), 409),
        ("other version", json!({"resourceVersion": "1"}), 409),
        ("right uid, other version", json!({"uid": uid, "resourceVersion": "1"}), 409),
        ("both right", json!({"uid": uid, "resourceVersion": created.version()}), 200),
    ] {
        let response =
            test_server.delete_with(&path, json!({"preconditions": preconditions})).await;
        assert_eq!(response.code, code, "{case}: {}", response.body);
        if code == 200 {
            assert_eq!(response.body["status"], "Success");
            assert_eq!(
                response.body["details"],
                json!({"name": "a", "kind": "configmaps", "uid": uid})
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn object_stays_until_its_last_finalizer_is_removed() {
    let test_server = TestServer::new().await;
    let path = format!("{NS}/configmaps/a");
    test_server
        .post(
            &format!("{NS}/configmaps"),
            json!({"metadata": {"name": "a", "finalizers": ["x.io/a", "x.io/b"]}}),
        )
        .await
        .ok();
    let marked = test_server.delete(&path).await.ok();
    assert_eq!(marked.body["metadata"]["deletionGracePeriodSeconds"], 0);
    let again = test_server.delete(&path).await.ok();
    assert_eq!(again.version(), marked.version(), "a second request changes nothing");
    let refused = test_server
        .merge(&path, json!({"metadata": {"finalizers": ["x.io/a", "x.io/b", "x.io/c"]}}))
        .await;
    assert_eq!(refused.code, 422);
    test_server.merge(&path, json!({"metadata": {"finalizers": ["x.io/b"]}})).await.ok();
    assert_eq!(test_server.get(&path).await.code, 200);
    test_server.merge(&path, json!({"metadata": {"finalizers": []}})).await.ok();
    assert_eq!(test_server.get(&path).await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn collection_is_deleted_by_selector() {
    let test_server = TestServer::new().await;
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let map = json!({"metadata": {"name": name, "labels": {"l": label}}});
        test_server.post(&format!("{NS}/configmaps"), map).await.ok();
    }
    let gone = test_server.delete(&format!("{NS}/configmaps?labelSelector=l%3Dx")).await.ok();
    assert_eq!(gone.names(), ["a", "c"]);
    assert_eq!(
        test_server.get(&format!("{NS}/configmaps")).await.names(),
        ["b", "kube-root-ca.crt"]
    );
    assert_eq!(test_server.delete("/api/v1/namespaces").await.code, 405, "not namespaces");
}

#[tokio::test(start_paused = true)]
async fn eviction_is_a_deletion_with_a_reason() {
    let test_server = TestServer::new().await;
    pod_in(&test_server, "n1", "Running", &[]).await;
    let path = format!("{NS}/pods/p/eviction");
    let eviction = |options: Value| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": options});
    assert_eq!(test_server.post(&path, json!({"metadata": {"name": "other"}})).await.code, 400);
    assert_eq!(
        test_server.post(&path, eviction(json!({"preconditions": {"uid": "x"}}))).await.code,
        409
    );
    let evicted = test_server.post(&path, eviction(json!({"gracePeriodSeconds": 7}))).await.ok();
    assert_eq!((evicted.code, &evicted.body["status"]), (201, &json!("Success")));
    let pod = test_server.get(&format!("{NS}/pods/p")).await.body;
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 7);
    assert_eq!(pod["status"]["conditions"][0]["type"], "DisruptionTarget");
    assert_eq!(pod["status"]["conditions"][0]["reason"], "EvictionByEvictionAPI");
}
