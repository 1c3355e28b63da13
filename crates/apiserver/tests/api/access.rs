use std::collections::BTreeMap;

use axum::body::Body;
use http::Request;
use podwright_apiserver::Identity;
use serde_json::json;
use tower::ServiceExt as _;

use super::test_server::{NS, TestServer, grant_view};

fn stranger() -> Identity {
    Identity {
        user: "jane".to_owned(),
        uid: String::new(),
        groups: vec!["system:authenticated".to_owned()],
        extra: BTreeMap::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn request_without_identity_is_refused() {
    let test_server = TestServer::new().await;
    let request = Request::get("/api/v1/pods").body(Body::empty()).unwrap();
    let response = test_server.server.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 401);
}

#[tokio::test(start_paused = true)]
async fn user_without_role_sees_discovery_but_no_objects() {
    let test_server = TestServer { identity: stranger(), ..TestServer::new().await };
    for (path, code) in
        [("/api", 200), ("/version", 200), ("/api/v1/nodes", 403), ("/healthz", 200)]
    {
        assert_eq!(test_server.get(path).await.code, code, "{path}");
    }
    let refused = test_server.get(&format!("{NS}/pods/p")).await;
    assert_eq!(
        refused.message(),
        "pods \"p\" is forbidden: User \"jane\" cannot get resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    let refused = test_server.post("/api/v1/nodes", json!({})).await;
    assert_eq!(
        refused.message(),
        "nodes is forbidden: User \"jane\" cannot create resource \"nodes\" in API group \"\" at the cluster scope"
    );
}

#[tokio::test(start_paused = true)]
async fn every_user_can_review_its_own_access() {
    let test_server = TestServer::new().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let question = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    assert_eq!(
        test_server.post(path, question.clone()).await.ok().body["status"],
        json!({"allowed": true})
    );
    let other = json!({"spec": {"user": "jane", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(test_server.post(path, other).await.ok().body["status"], json!({"allowed": false}));
}

#[tokio::test(start_paused = true)]
async fn every_user_can_review_its_own_identity_and_permissions() {
    let test_server = TestServer::new().await;
    let account = "system:serviceaccount:default:default";
    grant_view(&test_server).await;
    let robot = Identity {
        user: account.to_owned(),
        uid: "u1".to_owned(),
        groups: vec!["system:authenticated".to_owned()],
        extra: BTreeMap::from([("k", vec!["v".to_owned()])]),
    };
    let test_server = TestServer { identity: robot, ..test_server };
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let reviewed = test_server.post(path, json!({})).await.ok();
    let user = json!({"username": account, "uid": "u1", "groups": ["system:authenticated"], "extra": {"k": ["v"]}});
    assert_eq!(reviewed.body["status"]["userInfo"], user);
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    for (namespace, reads_pods) in [("default", true), ("kube-system", false)] {
        let reviewed = test_server.post(path, json!({"spec": {"namespace": namespace}})).await.ok();
        let status = &reviewed.body["status"];
        let rules = status["resourceRules"].to_string();
        assert_eq!(rules.contains("\"pods/log\""), reads_pods, "{status}");
        assert_eq!(status["incomplete"], false);
    }
    assert_eq!(
        test_server.post(path, json!({"spec": {}})).await.message(),
        "no namespace on request"
    );
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// The same server, as a registered node.
async fn registered(test_server: &TestServer, name: &str, body: serde_json::Value) -> TestServer {
    let node = TestServer { server: test_server.server.clone(), identity: Identity::node(name) };
    node.post("/api/v1/nodes", body).await.ok();
    node
}

#[tokio::test(start_paused = true)]
async fn node_has_one_lease_of_its_own_name() {
    let test_server = TestServer { identity: Identity::node("n1"), ..TestServer::new().await };
    for (case, name, code) in [
        ("another's", json!({"name": "n2"}), 403),
        ("a made-up one", json!({"generateName": "n1-"}), 403),
        ("its own", json!({"name": "n1"}), 201),
    ] {
        let response = test_server.post(LEASES, json!({"metadata": name, "spec": {}})).await;
        assert_eq!(response.code, code, "{case}: {response:?}");
    }
    let other = json!({"metadata": {"name": "n2"}, "spec": {}});
    assert_eq!(
        test_server.put(&format!("{LEASES}/n2"), other).await.code,
        403,
        "created by an update"
    );
}

#[tokio::test(start_paused = true)]
async fn node_cannot_change_its_taints_or_restricted_labels() {
    let admin = TestServer::new().await;
    let labelled =
        json!({"metadata": {"name": "n1", "labels": {"node-restriction.kubernetes.io/a": "b"}}});
    let stranger = TestServer { server: admin.server.clone(), identity: Identity::node("n1") };
    let refused = stranger.post("/api/v1/nodes", labelled).await;
    assert_eq!(
        refused.message(),
        "nodes \"n1\" is forbidden: node \"n1\" is not allowed to set the following labels: node-restriction.kubernetes.io/a"
    );
    let own = json!({"metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    let node = registered(&admin, "n1", own).await;
    let path = "/api/v1/nodes/n1";
    admin
        .merge(path, json!({"metadata": {"labels": {"node-restriction.kubernetes.io/kept": "1"}}}))
        .await
        .ok();
    let whole = node.get(path).await.ok().body;
    let with = |pointer: &str, value: serde_json::Value| {
        let mut whole = whole.clone();
        *whole.pointer_mut(pointer).unwrap() = value;
        whole
    };
    let labels = |labels: serde_json::Value| json!({"metadata": {"labels": labels}});
    let restricted = "nodes \"n1\" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/";
    for (case, response, want) in [
        (
            "a patch that adds one",
            node.merge(path, labels(json!({"node-restriction.kubernetes.io/a": "b"}))).await,
            format!("{restricted}a"),
        ),
        (
            "a patch that removes one",
            node.merge(path, labels(json!({"node-restriction.kubernetes.io/kept": null}))).await,
            format!("{restricted}kept"),
        ),
        (
            "a patch of the status",
            node.merge(&format!("{path}/status"), labels(json!({"x.node-restriction.kubernetes.io/a": ""})))
                .await,
            "nodes \"n1\" is forbidden: is not allowed to modify labels: x.node-restriction.kubernetes.io/a"
                .to_owned(),
        ),
        (
            "a whole one",
            node.put(path, with("/metadata/labels", json!({"node-role.kubernetes.io/x": ""}))).await,
            "nodes \"n1\" is forbidden: is not allowed to modify labels: node-restriction.kubernetes.io/kept, node-role.kubernetes.io/x"
                .to_owned(),
        ),
        (
            "taints",
            node.put(path, with("/spec/taints", json!([]))).await,
            "nodes \"n1\" is forbidden: node \"n1\" is not allowed to modify taints".to_owned(),
        ),
    ] {
        assert_eq!((response.code, response.message()), (403, want.as_str()), "{case}");
    }
    let free = json!({"example.com/free": "1", "node.kubernetes.io/x": "y"});
    assert_eq!(node.merge(path, labels(free)).await.code, 200, "unrestricted labels");
    assert_eq!(node.put(path, node.get(path).await.body).await.code, 200, "no change");
}

#[tokio::test(start_paused = true)]
async fn node_creates_mirror_pods_only_for_itself() {
    let admin = TestServer::new().await;
    let node = registered(&admin, "n1", json!({"metadata": {"name": "n1"}})).await;
    let uid = node.get("/api/v1/nodes/n1").await.body["metadata"]["uid"].clone();
    let owner =
        json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true});
    let with = |field: &str, value: serde_json::Value| {
        let mut owner = owner.clone();
        owner[field] = value;
        json!([owner])
    };
    for (case, owners, code) in [
        ("without an owner", json!([]), 403),
        ("two owners", json!([owner, owner]), 403),
        ("another node's", with("name", json!("n2")), 403),
        ("owned by a deleted node of the same name", with("uid", json!("old")), 403),
        ("not its controller", with("controller", json!(false)), 403),
        ("one that blocks the deletion of the node", with("blockOwnerDeletion", json!(true)), 403),
        ("its own", json!([owner]), 201),
    ] {
        let mut pod = super::test_server::pod("static", "n1");
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "h"});
        pod["metadata"]["ownerReferences"] = owners;
        let response = node.post(&format!("{NS}/pods"), pod).await;
        assert_eq!(response.code, code, "{case}: {response:?}");
    }
    let relabelled = json!({"metadata": {"labels": {"app": "other"}}});
    let response = node.merge(&format!("{NS}/pods/static/status"), relabelled).await;
    assert_eq!(
        response.message(),
        "pods \"static\" is forbidden: node \"n1\" cannot update labels through pod status"
    );
}
