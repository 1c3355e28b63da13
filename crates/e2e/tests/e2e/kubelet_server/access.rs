//! Who is let in, asked of the real API server.

use http::StatusCode;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use podwright_e2e::wait;
use serde_json::{Value, json};

use super::Who;
use crate::cluster::{Cluster, LIMIT, NAMESPACE};
use crate::privilege::needs_root;

/// A service account that may only do this, and a token of it.
async fn service_account(cluster: &Cluster, name: &str, resources: &[&str]) -> Who {
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let account = json!({ "metadata": { "name": name } });
    let params = PostParams::default();
    accounts.create(&params, &serde_json::from_value(account).unwrap()).await.unwrap();
    let role = json!({
        "metadata": { "name": name },
        "rules": [{ "apiGroups": [""], "resources": resources, "verbs": ["get"] }],
    });
    let roles: Api<ClusterRole> = Api::all(cluster.client.clone());
    roles.create(&params, &serde_json::from_value(role).unwrap()).await.unwrap();
    let binding = json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }],
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(cluster.client.clone());
    bindings.create(&params, &serde_json::from_value(binding).unwrap()).await.unwrap();
    let url = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token");
    let body = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": ["https://kubernetes.default.svc"], "expirationSeconds": 3600 },
    });
    let request = http::Request::post(url)
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .unwrap();
    let answer: Value = cluster.client.request(request).await.unwrap();
    Who::Token(answer["status"]["token"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn rows_2_and_10_to_12_only_those_whom_the_cluster_lets_in() {
    needs_root!();
    let cluster = Cluster::start().await;
    let metrics = service_account(&cluster, "metrics", &["nodes/metrics"]).await;
    let pods = service_account(&cluster, "pods", &["nodes/pods"]).await;
    let (admin, nobody) = (cluster.admin(), Who::Nobody);
    let eve = cluster.certificate("eve", &[]);
    let forged = Who::Token("not.a.token".into());
    // The authorizer hears of new roles a moment later, and "no" is remembered for half a minute:
    // so it is asked until it knows them before the node is.
    let knows = async || {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": format!("system:serviceaccount:{NAMESPACE}:pods"),
                "resourceAttributes": {
                    "verb": "get", "resource": "nodes", "subresource": "pods", "name": "node-1",
                },
            },
        });
        let url = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let request = http::Request::post(url)
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes())?;
        let answer: Value = cluster.client.request(request).await?;
        Ok(answer["status"]["allowed"] == true)
    };
    wait::until_true("the authorizer to know the roles", LIMIT, knows).await.unwrap();
    for (case, who, path, want) in [
        ("nobody, healthz", &nobody, "/healthz", 401),
        ("nobody, a page that does not exist", &nobody, "/nothing", 401),
        ("nobody, commands", &nobody, "/exec/shop/web/app", 401),
        ("a token nobody gave out", &forged, "/pods", 401),
        ("somebody without rights", &eve, "/pods", 403),
        ("the administrator", &admin, "/pods", 200),
        ("the administrator, health", &admin, "/healthz/syncloop", 200),
        ("the administrator, no such page", &admin, "/nothing", 404),
        ("only metrics: metrics", &metrics, "/metrics/resource", 200),
        ("only metrics: statistics", &metrics, "/stats/summary", 403),
        ("only metrics: pods", &metrics, "/pods", 403),
        ("only pods: pods", &pods, "/pods", 200),
        ("only pods: running pods", &pods, "/runningpods/", 200),
        ("only pods: logs", &pods, "/containerLogs/shop/web/app", 403),
        ("only pods: commands", &pods, "/exec/shop/web/app?command=id&output=1", 403),
    ] {
        let answer = cluster.ask("GET", path, who).await;
        assert_eq!(answer.status.as_u16(), want, "{case}: {}", answer.text());
        match want {
            401 => assert_eq!(answer.text(), "Unauthorized"),
            403 => assert!(answer.text().starts_with("Forbidden (user="), "{}", answer.text()),
            _ => {}
        }
    }
    cluster.close();
}

#[tokio::test]
async fn wrong_questions_get_the_right_refusal() {
    needs_root!();
    let cluster = Cluster::start().await;
    cluster.create(crate::cluster::pod("web", &["serve"])).await;
    cluster.until("web", "ready", crate::cluster::ready).await;
    let admin = cluster.admin();
    for (case, method, path, want) in [
        ("a pod that is not there", "GET", "/containerLogs/shop/none/app", 404),
        ("a container that is not there", "GET", "/containerLogs/shop/web/none", 404),
        ("options that make no sense", "GET", "/containerLogs/shop/web/app?limitBytes=0", 422),
        ("options nobody can read", "GET", "/containerLogs/shop/web/app?tailLines=few", 400),
        ("a way out", "GET", "/containerLogs/shop/web/..%2f..%2fetc%2fpasswd", 404),
        ("a way out in the open", "GET", "/containerLogs/../../etc/passwd", 404),
        ("logs of the machine", "GET", "/logs/../../etc/passwd", 404),
        ("no stream", "POST", "/exec/shop/web/app?command=id", 400),
        ("no upgrade", "POST", "/exec/shop/web/app?command=id&output=1", 500),
        ("no such pod", "POST", "/exec/shop/none/app?command=id&output=1", 404),
        ("not running", "POST", "/exec/shop/web/none?command=id&output=1", 500),
        ("a UID of somebody else", "POST", "/portForward/shop/web/other", 404),
        ("the wrong method", "DELETE", "/pods", 405),
    ] {
        let answer = cluster.ask(method, path, &admin).await;
        assert_eq!(answer.status.as_u16(), want, "{case}: {}", answer.text());
    }
    let run = cluster.ask("POST", "/run/shop/web/app?cmd=echo%20hello", &admin).await;
    assert_eq!((run.status, run.text().as_str()), (StatusCode::OK, "hello\n"));
    cluster.close();
}
