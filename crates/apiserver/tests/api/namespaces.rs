use serde_json::json;

use super::test_server::{TestServer, eventually, pod};

#[tokio::test(start_paused = true)]
async fn new_server_has_the_built_in_objects() {
    let test_server = TestServer::new().await;
    let namespaces = ["default", "kube-node-lease", "kube-public", "kube-system"];
    assert_eq!(test_server.get("/api/v1/namespaces").await.names(), namespaces);
    for namespace in namespaces {
        let path = format!("/api/v1/namespaces/{namespace}");
        assert_eq!(
            test_server.get(&path).await.body["metadata"]["labels"]["kubernetes.io/metadata.name"],
            namespace
        );
        assert_eq!(test_server.get(&format!("{path}/serviceaccounts")).await.names(), ["default"]);
        let map = test_server.get(&format!("{path}/configmaps/kube-root-ca.crt")).await.ok();
        assert_eq!(map.body["data"]["ca.crt"], "certificates");
    }
    let classes = test_server.get("/apis/scheduling.k8s.io/v1/priorityclasses").await;
    assert_eq!(classes.names(), ["system-cluster-critical", "system-node-critical"]);
    let service = test_server.get("/api/v1/namespaces/default/services/kubernetes").await.ok();
    assert_eq!(service.body["spec"]["clusterIP"], "10.96.0.1");
    for protected in ["default", "kube-system", "kube-public"] {
        let refused = test_server.delete(&format!("/api/v1/namespaces/{protected}")).await;
        let want =
            format!("namespaces \"{protected}\" is forbidden: this namespace may not be deleted");
        assert_eq!((refused.code, refused.message()), (403, want.as_str()));
    }
}

#[tokio::test(start_paused = true)]
async fn default_contents_of_a_namespace_are_restored() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    test_server.post("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await.ok();
    let account = "/api/v1/namespaces/a/serviceaccounts/default";
    let certificates = "/api/v1/namespaces/a/configmaps/kube-root-ca.crt";
    test_server.delete(account).await.ok();
    test_server.merge(certificates, json!({"data": {"ca.crt": "forged"}})).await.ok();
    eventually("both are as they should be", || async {
        test_server.get(account).await.code == 200
            && test_server.get(certificates).await.body["data"]["ca.crt"] == "certificates"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn deleted_namespace_waits_for_its_pods_and_deletes_the_rest() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let path = "/api/v1/namespaces/a";
    test_server.post("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await.ok();
    test_server.post(&format!("{path}/configmaps"), json!({"metadata": {"name": "m"}})).await.ok();
    test_server.post(&format!("{path}/pods"), pod("p", "n1")).await.ok();
    let marked = test_server.delete(path).await.ok();
    assert_eq!(marked.body["status"]["phase"], "Terminating");
    let late = test_server
        .post(&format!("{path}/configmaps"), json!({"metadata": {"name": "late"}}))
        .await;
    assert_eq!(late.code, 403);
    eventually("the map is deleted and the pod is being deleted", || async {
        test_server.get(&format!("{path}/configmaps")).await.names().is_empty()
            && test_server.get(&format!("{path}/pods/p")).await.body["metadata"]["deletionTimestamp"]
                .is_string()
    })
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(test_server.get(path).await.code, 200, "the pod is still running");
    test_server.delete(&format!("{path}/pods/p?gracePeriodSeconds=0")).await.ok();
    eventually("the namespace is gone", || async { test_server.get(path).await.code == 404 }).await;
    // and the name can be used again
    test_server.post("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await.ok();
    assert_eq!(test_server.get(&format!("{path}/serviceaccounts")).await.names(), ["default"]);
}

#[tokio::test(start_paused = true)]
async fn deleted_namespace_waits_for_finalizers() {
    let (test_server, _stop) = TestServer::with_controllers().await;
    let path = "/api/v1/namespaces/a";
    test_server
        .post("/api/v1/namespaces", json!({"metadata": {"name": "a", "finalizers": ["x.io/y"]}}))
        .await
        .ok();
    test_server.delete(path).await.ok();
    eventually("the server removes its finalizer", || async {
        test_server.get(path).await.body["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty)
    })
    .await;
    assert_eq!(test_server.get(path).await.code, 200);
    test_server.merge(path, json!({"metadata": {"finalizers": null}})).await.ok();
    eventually("it is gone", || async { test_server.get(path).await.code == 404 }).await;
}
