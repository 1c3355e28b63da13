//! Who is let in, asked of the real API server.

use std::net::IpAddr;

use http::StatusCode;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
use podwright_e2e::bed::Bed;
use podwright_e2e::http::{Tls, Trust};
use podwright_e2e::netns::NODE_ADDRESS;
use podwright_e2e::wait;
use serde_json::{Value, json};

use super::Who;
use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
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
    cluster.create(pod("web", &["serve"])).await;
    let mut done = pod("done", &[]);
    done["spec"]["restartPolicy"] = json!("Never");
    done["spec"]["containers"][0]["command"] = json!(["true"]);
    cluster.create(done).await;
    cluster.until("web", "ready", ready).await;
    cluster.until("done", "done", |status| status["phase"] == "Succeeded").await;
    let admin = cluster.admin();
    for (case, method, path, want) in [
        ("a pod that is not there", "GET", "/containerLogs/shop/none/app", 404),
        ("a container that is not there", "GET", "/containerLogs/shop/web/none", 404),
        ("options that make no sense", "GET", "/containerLogs/shop/web/app?limitBytes=0", 422),
        ("options nobody can read", "GET", "/containerLogs/shop/web/app?tailLines=few", 400),
        ("a way out", "GET", "/containerLogs/shop/web/..%2f..%2fetc%2fpasswd", 404),
        ("a way out in the open", "GET", "/containerLogs/../../etc/passwd", 404),
        ("row 49, files of the machine", "GET", "/logs/../../etc/passwd", 404),
        ("row 49, by a query", "GET", "/logs/?query=../../etc/shadow", 404),
        ("no stream", "POST", "/exec/shop/web/app?command=id", 400),
        ("no upgrade", "POST", "/exec/shop/web/app?command=id&output=1", 500),
        ("no such pod", "POST", "/exec/shop/none/app?command=id&output=1", 404),
        ("no such container", "POST", "/exec/shop/web/none?command=id&output=1", 500),
        ("not running", "POST", "/exec/shop/done/app?command=id&output=1", 500),
        ("attach, not running", "POST", "/attach/shop/done/app?output=1", 500),
        ("run, not running", "POST", "/run/shop/done/app?cmd=id", 500),
        ("ports, not running", "POST", "/portForward/shop/done", 500),
        ("logs of what is done", "GET", "/containerLogs/shop/done/app", 200),
        ("a UID of somebody else", "POST", "/portForward/shop/web/other", 404),
        ("attach, a UID of somebody else", "POST", "/attach/shop/web/other/app?output=1", 500),
        ("the wrong method", "DELETE", "/pods", 405),
    ] {
        let answer = cluster.ask(method, path, &admin).await;
        assert_eq!(answer.status.as_u16(), want, "{case}: {}", answer.text());
    }
    let exec = "/exec/shop/web/app?command=id&output=1";
    for (case, headers, want) in [
        ("an upgrade to nothing", [("connection", "upgrade"), ("x-a", "b")], 500),
        ("an upgrade that is not one", [("connection", "close"), ("upgrade", "SPDY/3.1")], 500),
        ("to what nobody speaks", [("connection", "upgrade"), ("upgrade", "carrier-pigeon")], 400),
        ("without a protocol", [("connection", "upgrade"), ("upgrade", "SPDY/3.1")], 400),
    ] {
        let answer = cluster.ask_with("POST", exec, &admin, &headers).await;
        assert_eq!(answer.status.as_u16(), want, "{case}: {}", answer.text());
    }
    let run = cluster.ask("POST", "/run/shop/web/app?cmd=echo%20hello", &admin).await;
    assert_eq!((run.status, run.text().as_str()), (StatusCode::OK, "hello\n"));
    cluster.close();
}

#[tokio::test]
async fn row_14_the_port_without_names_shows_numbers_and_runs_nothing() {
    needs_root!();
    let open = |_: &Bed| json!({ "readOnlyPort": 10255 });
    let cluster = Cluster::configured(Bed::builder().control_plane(), open).await;
    for (method, path, want) in [
        ("GET", "/pods", 200),
        ("GET", "/healthz", 200),
        ("GET", "/metrics/resource", 200),
        ("GET", "/stats/summary", 200),
        ("POST", "/exec/shop/web/app?command=id&output=1", 405),
        ("POST", "/run/shop/web/app?cmd=id", 405),
        ("GET", "/containerLogs/shop/web/app", 405),
        ("GET", "/configz", 404),
    ] {
        let url = format!("http://{NODE_ADDRESS}:10255{path}");
        let request = http::Request::builder().method(method).uri(url);
        let request = request.body(Default::default()).unwrap();
        let answer = cluster.bed.http_send(request, &Tls::default()).await.unwrap();
        assert_eq!(answer.status.as_u16(), want, "{method} {path}: {}", answer.text());
        if want == 405 {
            assert_eq!(answer.text(), "Debug endpoints are disabled.\n");
        }
    }
    cluster.close();
}

#[tokio::test]
async fn a_new_serving_certificate_is_used_without_a_restart() {
    needs_root!();
    let authority = |bed: &Bed| bed.control_plane().unwrap().authority().certificate();
    // At first one for another machine, which nobody who looks closely believes.
    let elsewhere = IpAddr::from([203, 0, 113, 9]);
    let signed = |bed: &Bed, address: IpAddr| {
        let authority = bed.control_plane().unwrap().authority();
        let pair = authority.server("node-1", &["node-1"], &[address]).unwrap();
        authority.save("serving", &pair).unwrap()
    };
    let with_files = |bed: &Bed| {
        let files = signed(bed, elsewhere);
        json!({ "tlsCertFile": files.certificate, "tlsPrivateKeyFile": files.key })
    };
    let cluster = Cluster::configured(Bed::builder().control_plane(), with_files).await;
    let tls = Tls { trust: Trust::Authority(authority(&cluster.bed)), identity: None };
    let ask = async || {
        let request = http::Request::get(format!("{}/healthz", cluster.agent.url()));
        cluster.bed.http_send(request.body(Default::default())?, &tls).await
    };
    assert!(ask().await.is_err(), "it is a certificate for another machine");
    signed(&cluster.bed, NODE_ADDRESS.into());
    let believed = async || Ok(ask().await.is_ok_and(|answer| answer.status.as_u16() == 401));
    wait::until_true("the new certificate to be shown", LIMIT, believed).await.unwrap();
    assert!(cluster.agent.daemon().ended().unwrap().is_none());
    cluster.close();
}
