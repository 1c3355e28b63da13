use serde_json::json;

use super::world::{World, eventually, pod};

#[tokio::test(start_paused = true)]
async fn a_new_server_has_what_every_cluster_has() {
    let world = World::new().await;
    let namespaces = ["default", "kube-node-lease", "kube-public", "kube-system"];
    assert_eq!(world.get("/api/v1/namespaces").await.names(), namespaces);
    for namespace in namespaces {
        let path = format!("/api/v1/namespaces/{namespace}");
        assert_eq!(
            world.get(&path).await.body["metadata"]["labels"]["kubernetes.io/metadata.name"],
            namespace
        );
        assert_eq!(world.get(&format!("{path}/serviceaccounts")).await.names(), ["default"]);
        let map = world.get(&format!("{path}/configmaps/kube-root-ca.crt")).await.ok();
        assert_eq!(map.body["data"]["ca.crt"], "certificates");
    }
    let classes = world.get("/apis/scheduling.k8s.io/v1/priorityclasses").await;
    assert_eq!(classes.names(), ["system-cluster-critical", "system-node-critical"]);
    let service = world.get("/api/v1/namespaces/default/services/kubernetes").await.ok();
    assert_eq!(service.body["spec"]["clusterIP"], "10.96.0.1");
    for immortal in ["default", "kube-system", "kube-public"] {
        let refused = world.delete(&format!("/api/v1/namespaces/{immortal}")).await;
        let want =
            format!("namespaces \"{immortal}\" is forbidden: this namespace may not be deleted");
        assert_eq!((refused.code, refused.message()), (403, want.as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn what_belongs_into_a_namespace_comes_back() {
    let (world, _stop) = World::alive().await;
    world.post("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await.ok();
    let account = "/api/v1/namespaces/a/serviceaccounts/default";
    let certificates = "/api/v1/namespaces/a/configmaps/kube-root-ca.crt";
    world.delete(account).await.ok();
    world.merge(certificates, json!({"data": {"ca.crt": "forged"}})).await.ok();
    eventually("both are as they should be", || async {
        world.get(account).await.code == 200
            && world.get(certificates).await.body["data"]["ca.crt"] == "certificates"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_namespace_waits_for_its_pods_and_takes_the_rest_with_it() {
    let (world, _stop) = World::alive().await;
    let path = "/api/v1/namespaces/a";
    world.post("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await.ok();
    world.post(&format!("{path}/configmaps"), json!({"metadata": {"name": "m"}})).await.ok();
    world.post(&format!("{path}/pods"), pod("p", "n1")).await.ok();
    let marked = world.delete(path).await.ok();
    assert_eq!(marked.body["status"]["phase"], "Terminating");
    let late =
        world.post(&format!("{path}/configmaps"), json!({"metadata": {"name": "late"}})).await;
    assert_eq!(late.code, 403);
    eventually("the map goes and the pod is told to", || async {
        world.get(&format!("{path}/configmaps")).await.names().is_empty()
            && world.get(&format!("{path}/pods/p")).await.body["metadata"]["deletionTimestamp"]
                .is_string()
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(world.get(path).await.code, 200, "the pod has not ended yet");
    world.delete(&format!("{path}/pods/p?gracePeriodSeconds=0")).await.ok();
    eventually("the namespace goes", || async { world.get(path).await.code == 404 }).await;
    // and its name is free again
    world.post("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await.ok();
    assert_eq!(world.get(&format!("{path}/serviceaccounts")).await.names(), ["default"]);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_a_finalizer_of_its_own_waits_for_that_too() {
    let (world, _stop) = World::alive().await;
    let path = "/api/v1/namespaces/a";
    world
        .post("/api/v1/namespaces", json!({"metadata": {"name": "a", "finalizers": ["x.io/y"]}}))
        .await
        .ok();
    world.delete(path).await.ok();
    eventually("the server lets go of it", || async {
        world.get(path).await.body["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty)
    })
    .await;
    assert_eq!(world.get(path).await.code, 200);
    world.merge(path, json!({"metadata": {"finalizers": null}})).await.ok();
    eventually("it goes", || async { world.get(path).await.code == 404 }).await;
}
