use serde_json::{Value, json};

use super::world::{NS, World};

/// A pod in a state of its life.
async fn pod_in(world: &World, node: &str, phase: &str, finalizers: &[&str]) {
    world.pod("p", node).await;
    if !phase.is_empty() {
        world.merge(&format!("{NS}/pods/p/status"), json!({"status": {"phase": phase}})).await.ok();
    }
    if !finalizers.is_empty() {
        world
            .merge(&format!("{NS}/pods/p"), json!({"metadata": {"finalizers": finalizers}}))
            .await
            .ok();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_at_once_or_gets_its_time() {
    let bound = "n1";
    for (case, node, phase, finalizers, query, grace_left) in [
        ("running", bound, "Running", &[][..], "", Some(30)),
        ("running, grace asked", bound, "Running", &[], "?gracePeriodSeconds=5", Some(5)),
        ("running, no grace", bound, "Running", &[], "?gracePeriodSeconds=0", None),
        ("running, negative grace", bound, "Running", &[], "?gracePeriodSeconds=-3", Some(1)),
        ("no node", "", "", &[], "", None),
        ("no node, grace asked", "", "", &[], "?gracePeriodSeconds=5", None),
        ("succeeded", bound, "Succeeded", &[], "", None),
        ("failed", bound, "Failed", &[], "", None),
        ("no grace, but held", bound, "Running", &["x.io/y"], "?gracePeriodSeconds=0", Some(0)),
        ("no node, but held", "", "", &["x.io/y"], "", Some(0)),
    ] {
        let world = World::new().await;
        pod_in(&world, node, phase, finalizers).await;
        let answer = world.delete(&format!("{NS}/pods/p{query}")).await.ok();
        assert_eq!(answer.body["kind"], "Pod", "{case}");
        let left = world.get(&format!("{NS}/pods/p")).await;
        let found = (left.code == 200)
            .then(|| left.body["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap());
        assert_eq!(found, grace_left, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn grace_only_ever_shrinks_and_the_time_moves_with_it() {
    let world = World::new().await;
    pod_in(&world, "n1", "Running", &[]).await;
    let path = format!("{NS}/pods/p");
    for (query, grace, until, generation) in [
        ("", 30, "2023-11-14T22:13:50Z", 2),
        ("?gracePeriodSeconds=60", 30, "2023-11-14T22:13:50Z", 2),
        ("?gracePeriodSeconds=10", 10, "2023-11-14T22:13:30Z", 2),
        ("", 10, "2023-11-14T22:13:30Z", 2),
        ("?gracePeriodSeconds=20", 10, "2023-11-14T22:13:30Z", 2),
    ] {
        let meta = world.delete(&format!("{path}{query}")).await.ok().body["metadata"].clone();
        assert_eq!(
            (&meta["deletionGracePeriodSeconds"], &meta["deletionTimestamp"], &meta["generation"]),
            (&json!(grace), &json!(until), &json!(generation)),
            "{query}"
        );
    }
    // what would be over already ends now, and gracefully if that was asked
    tokio::time::advance(std::time::Duration::from_secs(8)).await;
    let meta =
        world.delete(&format!("{path}?gracePeriodSeconds=5")).await.ok().body["metadata"].clone();
    assert_eq!(meta["deletionGracePeriodSeconds"], 1);
    assert_eq!(meta["deletionTimestamp"], "2023-11-14T22:13:28Z");
    // nobody undoes it
    let undone = world
        .merge(&path, json!({"metadata": {"deletionTimestamp": null, "labels": {"a": "b"}}}))
        .await
        .ok();
    assert_eq!(undone.body["metadata"]["deletionTimestamp"], "2023-11-14T22:13:28Z");
    // a finalizer is worked off, but the grace still holds the pod
    let gone = world.delete_with(&path, json!({"gracePeriodSeconds": 0})).await.ok();
    assert_eq!(gone.body["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(world.get(&path).await.code, 404);
    assert_eq!(world.delete(&path).await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn a_pods_finalizer_does_not_cut_its_grace_short() {
    let world = World::new().await;
    pod_in(&world, "n1", "Running", &["x.io/y"]).await;
    let path = format!("{NS}/pods/p");
    world.delete(&path).await.ok();
    world.merge(&path, json!({"metadata": {"finalizers": null}})).await.ok();
    assert_eq!(world.get(&path).await.code, 200, "its containers still run");
    world.delete(&format!("{path}?gracePeriodSeconds=0")).await.ok();
    assert_eq!(world.get(&path).await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn preconditions_protect_an_object_of_the_same_name() {
    let world = World::new().await;
    let created = world.map("a").await;
    let path = format!("{NS}/configmaps/a");
    let uid = created.body["metadata"]["uid"].clone();
    for (case, preconditions, code) in [
        ("other uid", json!({"uid": "x"}), 409),
        ("other version", json!({"resourceVersion": "1"}), 409),
        ("right uid, other version", json!({"uid": uid, "resourceVersion": "1"}), 409),
        ("both right", json!({"uid": uid, "resourceVersion": created.version()}), 200),
    ] {
        let answer = world.delete_with(&path, json!({"preconditions": preconditions})).await;
        assert_eq!(answer.code, code, "{case}: {}", answer.body);
        if code == 200 {
            assert_eq!(answer.body["status"], "Success");
            assert_eq!(
                answer.body["details"],
                json!({"name": "a", "kind": "configmaps", "uid": uid})
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    let world = World::new().await;
    let path = format!("{NS}/configmaps/a");
    world
        .post(
            &format!("{NS}/configmaps"),
            json!({"metadata": {"name": "a", "finalizers": ["x.io/a", "x.io/b"]}}),
        )
        .await
        .ok();
    let marked = world.delete(&path).await.ok();
    assert_eq!(marked.body["metadata"]["deletionGracePeriodSeconds"], 0);
    let again = world.delete(&path).await.ok();
    assert_eq!(again.version(), marked.version(), "a second request changes nothing");
    let refused = world
        .merge(&path, json!({"metadata": {"finalizers": ["x.io/a", "x.io/b", "x.io/c"]}}))
        .await;
    assert_eq!(refused.code, 422);
    world.merge(&path, json!({"metadata": {"finalizers": ["x.io/b"]}})).await.ok();
    assert_eq!(world.get(&path).await.code, 200);
    world.merge(&path, json!({"metadata": {"finalizers": []}})).await.ok();
    assert_eq!(world.get(&path).await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_selector() {
    let world = World::new().await;
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let map = json!({"metadata": {"name": name, "labels": {"l": label}}});
        world.post(&format!("{NS}/configmaps"), map).await.ok();
    }
    let gone = world.delete(&format!("{NS}/configmaps?labelSelector=l%3Dx")).await.ok();
    assert_eq!(gone.names(), ["a", "c"]);
    assert_eq!(world.get(&format!("{NS}/configmaps")).await.names(), ["b", "kube-root-ca.crt"]);
    assert_eq!(world.delete("/api/v1/namespaces").await.code, 405, "not namespaces");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_a_deletion_that_says_why() {
    let world = World::new().await;
    pod_in(&world, "n1", "Running", &[]).await;
    let path = format!("{NS}/pods/p/eviction");
    let eviction = |options: Value| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}, "deleteOptions": options});
    assert_eq!(world.post(&path, json!({"metadata": {"name": "other"}})).await.code, 400);
    assert_eq!(world.post(&path, eviction(json!({"preconditions": {"uid": "x"}}))).await.code, 409);
    let evicted = world.post(&path, eviction(json!({"gracePeriodSeconds": 7}))).await.ok();
    assert_eq!((evicted.code, &evicted.body["status"]), (201, &json!("Success")));
    let pod = world.get(&format!("{NS}/pods/p")).await.body;
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 7);
    assert_eq!(pod["status"]["conditions"][0]["type"], "DisruptionTarget");
    assert_eq!(pod["status"]["conditions"][0]["reason"], "EvictionByEvictionAPI");
}
