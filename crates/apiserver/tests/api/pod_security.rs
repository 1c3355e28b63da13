//! Pod Security: an account that may create pods does not reach the host.

use std::collections::BTreeMap;

use http::header;
use podwright_apiserver::Identity;
use serde_json::{Value, json};

use super::test_server::{NS, TestResponse, TestServer};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// The server as an account with the role `edit` in the namespace `default`.
async fn editor(admin: &TestServer) -> TestServer {
    let account = "system:serviceaccount:default:default";
    let binding = json!({"metadata": {"name": "edit"}, "subjects": [{"kind": "User", "name": account}],
        "roleRef": {"kind": "ClusterRole", "name": "edit"}});
    admin.post(RBAC, binding).await.ok();
    let identity = Identity {
        user: account.to_owned(),
        uid: String::new(),
        groups: vec!["system:authenticated".to_owned()],
        extra: BTreeMap::new(),
    };
    TestServer { server: admin.server.clone(), identity }
}

fn pod(name: &str, spec: &Value) -> Value {
    let mut pod = super::test_server::pod(name, "");
    let fields = pod["spec"].as_object_mut().unwrap();
    fields.remove("nodeName");
    for (key, value) in spec.as_object().unwrap() {
        fields.insert(key.clone(), value.clone());
    }
    pod
}

fn warnings(response: &TestResponse) -> Vec<&str> {
    let all = response.headers.get_all(header::WARNING).iter();
    all.map(|value| value.to_str().unwrap()).collect()
}

async fn label(admin: &TestServer, level: Option<&str>) -> TestResponse {
    admin.merge(NS, json!({"metadata": {"labels": {ENFORCE: level}}})).await
}

#[tokio::test(start_paused = true)]
async fn account_that_may_create_pods_is_not_root_on_the_host() {
    let admin = TestServer::new().await;
    let editor = editor(&admin).await;
    let host = json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]});
    let privileged = json!({"containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]});
    for spec in [&host, &privileged, &json!({"hostPID": true}), &json!({"hostNetwork": true})] {
        let refused = editor.post(&format!("{NS}/pods"), pod("p", spec)).await;
        assert_eq!(refused.code, 403, "{spec}");
        assert!(
            refused
                .message()
                .starts_with("pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": ")
        );
    }
    editor.post(&format!("{NS}/pods"), pod("plain", &json!({}))).await.ok();
    // Neither its own label, nor a pod of the owner, nor a debug container leads around it.
    assert_eq!(label(&editor, Some("privileged")).await.code, 403);
    admin.post(&format!("{NS}/pods"), pod("owned", &host)).await.ok();
    let image = json!({"spec": {"containers": [{"name": "c", "image": "mine"}]}});
    let path = format!("{NS}/pods/owned");
    assert_eq!(editor.strategic(&path, image).await.code, 403, "another image");
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(editor.merge(&path, labels).await.code, 200, "a label");
    // With the owner's label it may.
    label(&admin, Some("privileged")).await.ok();
    editor.post(&format!("{NS}/pods"), pod("allowed", &host)).await.ok();
}

#[tokio::test(start_paused = true)]
async fn level_of_the_namespace_applies_to_the_owner_too() {
    let admin = TestServer::new().await;
    let host = json!({"hostNetwork": true});
    admin.post(&format!("{NS}/pods"), pod("before", &host)).await.ok();
    let raised = label(&admin, Some("baseline")).await.ok();
    assert_eq!(
        warnings(&raised),
        [
            "299 - \"existing pods in namespace \\\"default\\\" violate the new PodSecurity enforce level \
             \\\"baseline:latest\\\"\"",
            "299 - \"before: host namespaces\"",
        ]
    );
    let refused = admin.post(&format!("{NS}/pods"), pod("after", &host)).await;
    assert_eq!(
        refused.message(),
        "pods \"after\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    let invalid = label(&admin, Some("nope")).await;
    assert_eq!(
        (invalid.code, invalid.message()),
        (
            422,
            "Namespace \"default\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \
             \"nope\": must be one of privileged, baseline, restricted"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn pod_below_the_warn_level_is_created_with_a_warning() {
    let admin = TestServer::new().await;
    let labels = json!({"metadata": {"labels": {"pod-security.kubernetes.io/warn": "baseline"}}});
    admin.merge(NS, labels).await.ok();
    let host = json!({"hostIPC": true});
    let created = admin.post(&format!("{NS}/pods"), pod("p", &host)).await.ok();
    let want = "299 - \"would violate PodSecurity \\\"baseline:latest\\\": host namespaces (hostIPC=true)\"";
    assert_eq!(warnings(&created), [want]);
}
