use serde_json::{Value, json};

use super::world::{NS, World, eventually};

/// A config map owned by others.
async fn owned(world: &World, name: &str, owners: &[&Value]) {
    let references: Vec<Value> = owners
        .iter()
        .map(|owner| {
            json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "blockOwnerDeletion": true,
                "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]})
        })
        .collect();
    let map = json!({"metadata": {"name": name, "ownerReferences": references}});
    world.post(&format!("{NS}/configmaps"), map).await.ok();
}

async fn is_gone(world: &World, name: &str) -> bool {
    world.get(&format!("{NS}/configmaps/{name}")).await.code == 404
}

#[tokio::test(start_paused = true)]
async fn dependents_follow_their_owner() {
    let (world, _stop) = World::alive().await;
    let owner = world.map("owner").await.body;
    owned(&world, "child", &[&owner]).await;
    let child = world.get(&format!("{NS}/configmaps/child")).await.body;
    owned(&world, "grandchild", &[&child]).await;
    world.delete(&format!("{NS}/configmaps/owner")).await.ok();
    eventually("all are gone", || async {
        is_gone(&world, "child").await && is_gone(&world, "grandchild").await
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_owner_that_lives_is_enough() {
    let (world, _stop) = World::alive().await;
    let (one, two) = (world.map("one").await.body, world.map("two").await.body);
    owned(&world, "child", &[&one, &two]).await;
    world.delete(&format!("{NS}/configmaps/one")).await.ok();
    eventually("the reference to the dead one goes", || async {
        let child = world.get(&format!("{NS}/configmaps/child")).await;
        child.body["metadata"]["ownerReferences"].as_array().map(Vec::len) == Some(1)
    })
    .await;
    world.delete(&format!("{NS}/configmaps/two")).await.ok();
    eventually("the child goes with the last", || is_gone(&world, "child")).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_never_was_owns_nothing_for_long() {
    let (world, _stop) = World::alive().await;
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "absent", "uid": "u"}});
    let unserved = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "rs", "uid": "u"}});
    owned(&world, "of-a-kind-not-served", &[&unserved]).await;
    owned(&world, "orphan", &[&absent]).await;
    eventually("the orphan goes", || is_gone(&world, "orphan")).await;
    assert!(
        !is_gone(&world, "of-a-kind-not-served").await,
        "nobody can say that its owner is gone"
    );
}

#[tokio::test(start_paused = true)]
async fn orphans_stay_and_forget_their_owner() {
    let (world, _stop) = World::alive().await;
    let owner = world.map("owner").await.body;
    owned(&world, "child", &[&owner]).await;
    world.delete(&format!("{NS}/configmaps/owner?propagationPolicy=Orphan")).await.ok();
    eventually("the owner goes", || is_gone(&world, "owner")).await;
    let child = world.get(&format!("{NS}/configmaps/child")).await.ok();
    assert_eq!(child.body["metadata"].get("ownerReferences"), None);
}

#[tokio::test(start_paused = true)]
async fn in_the_foreground_the_owner_goes_last() {
    let (world, _stop) = World::alive().await;
    let owner = world.map("owner").await.body;
    owned(&world, "child", &[&owner]).await;
    let child = format!("{NS}/configmaps/child");
    world.merge(&child, json!({"metadata": {"finalizers": ["x.io/y"]}})).await.ok();
    let told = world.delete(&format!("{NS}/configmaps/owner?propagationPolicy=Foreground")).await;
    assert_eq!(told.code, 202, "it takes its time");
    eventually("the child is told to go", || async {
        world.get(&child).await.body["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    assert!(!is_gone(&world, "owner").await, "the child is still there");
    world.merge(&child, json!({"metadata": {"finalizers": null}})).await.ok();
    eventually("both are gone", || async {
        is_gone(&world, "child").await && is_gone(&world, "owner").await
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_in_a_namespace_says_nothing_about_an_object_of_the_cluster() {
    let (world, _stop) = World::alive().await;
    let owner = world.map("owner").await.body;
    let reference = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner["metadata"]["uid"]});
    let class =
        json!({"metadata": {"name": "c", "ownerReferences": [reference("owner")]}, "value": 7});
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    world.post(classes, class).await.ok();
    // something that is judged after it
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "absent", "uid": "u"}});
    owned(&world, "orphan", &[&absent]).await;
    eventually("the orphan goes", || is_gone(&world, "orphan")).await;
    world.delete(&format!("{NS}/configmaps/owner")).await.ok();
    owned(&world, "another", &[&absent]).await;
    eventually("the other goes", || is_gone(&world, "another")).await;
    let kept = world.get(&format!("{classes}/c")).await;
    assert_eq!(kept.code, 200);
    assert_eq!(kept.body["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(start_paused = true)]
async fn one_owner_named_twice_is_no_second_owner() {
    let (world, _stop) = World::alive().await;
    let owner = world.map("owner").await.body;
    owned(&world, "child", &[&owner, &owner]).await;
    world.delete(&format!("{NS}/configmaps/owner")).await.ok();
    eventually("the child goes with it", || is_gone(&world, "child")).await;
}

#[tokio::test(start_paused = true)]
async fn in_the_foreground_a_child_of_two_stays_with_the_other() {
    let (world, _stop) = World::alive().await;
    let (one, two) = (world.map("one").await.body, world.map("two").await.body);
    owned(&world, "child", &[&one, &two]).await;
    world.delete(&format!("{NS}/configmaps/one?propagationPolicy=Foreground")).await.ok();
    eventually("the one goes", || is_gone(&world, "one")).await;
    let child = world.get(&format!("{NS}/configmaps/child")).await.ok();
    let owners = child.body["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.len(), 1);
    assert_eq!(owners[0]["uid"], two["metadata"]["uid"]);
    assert!(child.body["metadata"].get("deletionTimestamp").is_none());
}
