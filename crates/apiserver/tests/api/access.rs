use axum::body::Body;
use http::Request;
use podwright_apiserver::Identity;
use serde_json::json;
use tower::ServiceExt as _;

use super::world::{NS, World};

fn stranger() -> Identity {
    Identity {
        user: "jane".to_owned(),
        uid: String::new(),
        groups: vec!["system:authenticated".to_owned()],
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_vouches_for_is_refused() {
    let world = World::new().await;
    let request = Request::get("/api/v1/pods").body(Body::empty()).unwrap();
    let response = world.server.router().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 401);
}

#[tokio::test(start_paused = true)]
async fn a_stranger_may_look_at_what_is_served_and_at_nothing_in_it() {
    let world = World { who: stranger(), ..World::new().await };
    for (path, code) in
        [("/api", 200), ("/version", 200), ("/api/v1/nodes", 403), ("/healthz", 200)]
    {
        assert_eq!(world.get(path).await.code, code, "{path}");
    }
    let refused = world.get(&format!("{NS}/pods/p")).await;
    assert_eq!(
        refused.message(),
        "pods \"p\" is forbidden: User \"jane\" cannot get resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    let refused = world.post("/api/v1/nodes", json!({})).await;
    assert_eq!(
        refused.message(),
        "nodes is forbidden: User \"jane\" cannot create resource \"nodes\" in API group \"\" at the cluster scope"
    );
}

#[tokio::test(start_paused = true)]
async fn everybody_can_ask_what_they_may() {
    let world = World::new().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let question = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    assert_eq!(
        world.post(path, question.clone()).await.ok().body["status"],
        json!({"allowed": true})
    );
    let other = json!({"spec": {"user": "jane", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(world.post(path, other).await.ok().body["status"], json!({"allowed": false}));
}

#[tokio::test(start_paused = true)]
async fn everybody_learns_who_they_are_and_all_they_may() {
    let world = World::new().await;
    let account = "system:serviceaccount:default:default";
    let role = json!({"metadata": {"annotations": {"podwright/role": "view"}}});
    world.merge(&format!("{NS}/serviceaccounts/default"), role).await.ok();
    let robot = Identity {
        user: account.to_owned(),
        uid: "u1".to_owned(),
        groups: vec!["system:authenticated".to_owned()],
    };
    let world = World { who: robot, ..world };
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let told = world.post(path, json!({})).await.ok();
    let user = json!({"username": account, "uid": "u1", "groups": ["system:authenticated"]});
    assert_eq!(told.body["status"]["userInfo"], user);
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    for (namespace, reads_pods) in [("default", true), ("kube-system", false)] {
        let told = world.post(path, json!({"spec": {"namespace": namespace}})).await.ok();
        let status = &told.body["status"];
        let pods =
            json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods"]});
        let rules = status["resourceRules"].as_array().unwrap();
        assert_eq!(rules.contains(&pods), reads_pods, "{status}");
        assert_eq!(status["incomplete"], false);
    }
    assert_eq!(world.post(path, json!({"spec": {}})).await.message(), "no namespace on request");
}
