use serde_json::{Value, json};

use super::test_server::{NS, TestServer, eventually};

/// Creates a config map with these owners.
async fn owned(test_server: &TestServer, name: &str, owners: &[&Value]) {
    let references: Vec<Value> = owners
        .iter()
        .map(|owner| {
            json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "blockOwnerDeletion": true,
                "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]})
        })
        .collect();
    let map = json!({"metadata": {"name": name, "ownerReferences": references}});
    test_server.post(&format!("{NS}/configmaps"), map).await.ok();
}

async fn is_gone(test_server: &TestServer, name: &str) -> bool {
    test_server.get(&format!("{NS}/configmaps/{name}")).await.code == 404
}

#[tokio::test(start_paused = true)]
async fn dependents_are_deleted_with_their_owner() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let owner = test_server.map("owner").await.body;
    owned(&test_server, "child", &[&owner]).await;
    let child = test_server.get(&format!("{NS}/configmaps/child")).await.body;
    owned(&test_server, "grandchild", &[&child]).await;
    test_server.delete(&format!("{NS}/configmaps/owner")).await.ok();
    eventually("all are gone", || async {
        is_gone(&test_server, "child").await && is_gone(&test_server, "grandchild").await
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_existing_owner_is_enough() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let (one, two) = (test_server.map("one").await.body, test_server.map("two").await.body);
    owned(&test_server, "child", &[&one, &two]).await;
    test_server.delete(&format!("{NS}/configmaps/one")).await.ok();
    eventually("the reference to the deleted one is removed", || async {
        let child = test_server.get(&format!("{NS}/configmaps/child")).await;
        child.body["metadata"]["ownerReferences"].as_array().map(Vec::len) == Some(1)
    })
    .await;
    test_server.delete(&format!("{NS}/configmaps/two")).await.ok();
    eventually("the child is deleted with the last", || is_gone(&test_server, "child")).await;
}

#[tokio::test(start_paused = true)]
async fn dependents_of_a_missing_owner_are_deleted() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "absent", "uid": "u"}});
    let unserved = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "rs", "uid": "u"}});
    owned(&test_server, "of-a-kind-not-served", &[&unserved]).await;
    owned(&test_server, "orphan", &[&absent]).await;
    eventually("the orphan is deleted", || is_gone(&test_server, "orphan")).await;
    assert!(
        !is_gone(&test_server, "of-a-kind-not-served").await,
        "an owner of an unknown kind may exist"
    );
}

#[tokio::test(start_paused = true)]
async fn orphaned_dependents_stay_and_lose_the_owner_reference() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let owner = test_server.map("owner").await.body;
    owned(&test_server, "child", &[&owner]).await;
    test_server.delete(&format!("{NS}/configmaps/owner?propagationPolicy=Orphan")).await.ok();
    eventually("the owner is gone", || is_gone(&test_server, "owner")).await;
    let child = test_server.get(&format!("{NS}/configmaps/child")).await.ok();
    assert_eq!(child.body["metadata"].get("ownerReferences"), None);
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_removes_the_owner_last() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let owner = test_server.map("owner").await.body;
    owned(&test_server, "child", &[&owner]).await;
    let child = format!("{NS}/configmaps/child");
    test_server.merge(&child, json!({"metadata": {"finalizers": ["x.io/y"]}})).await.ok();
    let deletion =
        test_server.delete(&format!("{NS}/configmaps/owner?propagationPolicy=Foreground")).await;
    assert_eq!(deletion.code, 202, "deletion is in progress");
    eventually("the child is being deleted", || async {
        test_server.get(&child).await.body["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    assert!(!is_gone(&test_server, "owner").await, "the child is still there");
    test_server.merge(&child, json!({"metadata": {"finalizers": null}})).await.ok();
    eventually("both are gone", || async {
        is_gone(&test_server, "child").await && is_gone(&test_server, "owner").await
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn namespaced_owner_of_a_cluster_scoped_object_is_ignored() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let owner = test_server.map("owner").await.body;
    let reference = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner["metadata"]["uid"]});
    let class =
        json!({"metadata": {"name": "c", "ownerReferences": [reference("owner")]}, "value": 7});
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    test_server.post(classes, class).await.ok();
    // an object that is checked after it
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "absent", "uid": "u"}});
    owned(&test_server, "orphan", &[&absent]).await;
    eventually("the orphan is deleted", || is_gone(&test_server, "orphan")).await;
    test_server.delete(&format!("{NS}/configmaps/owner")).await.ok();
    owned(&test_server, "another", &[&absent]).await;
    eventually("the other is deleted", || is_gone(&test_server, "another")).await;
    let kept = test_server.get(&format!("{classes}/c")).await;
    assert_eq!(kept.code, 200);
    assert_eq!(kept.body["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(start_paused = true)]
async fn duplicate_owner_reference_counts_once() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let owner = test_server.map("owner").await.body;
    owned(&test_server, "child", &[&owner, &owner]).await;
    test_server.delete(&format!("{NS}/configmaps/owner")).await.ok();
    eventually("the child is deleted with it", || is_gone(&test_server, "child")).await;
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_keeps_a_child_with_another_owner() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let (one, two) = (test_server.map("one").await.body, test_server.map("two").await.body);
    owned(&test_server, "child", &[&one, &two]).await;
    test_server.delete(&format!("{NS}/configmaps/one?propagationPolicy=Foreground")).await.ok();
    eventually("the first owner is gone", || is_gone(&test_server, "one")).await;
    let child = test_server.get(&format!("{NS}/configmaps/child")).await.ok();
    let owners = child.body["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.len(), 1);
    assert_eq!(owners[0]["uid"], two["metadata"]["uid"]);
    assert!(child.body["metadata"].get("deletionTimestamp").is_none());
}
