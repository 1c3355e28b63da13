//! Authentication and authorization, by the real API server.

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

use super::ClientIdentity;
use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
use crate::privilege::needs_root;

/// A service account with only these rights, and a token of it.
async fn service_account(cluster: &Cluster, name: &str, resources: &[&str]) -> ClientIdentity {
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
    let response: Value = cluster.client.request(request).await.unwrap();
    ClientIdentity::Token(response["status"]["token"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn only_authorized_clients_are_admitted() {
    needs_root!();
    let cluster = Cluster::start().await;
    let metrics = service_account(&cluster, "metrics", &["nodes/metrics"]).await;
    let reader = service_account(&cluster, "reader", &["nodes/proxy"]).await;
    let pods = service_account(&cluster, "pods", &["nodes/pods"]).await;
    let (admin, anonymous) = (cluster.admin(), ClientIdentity::Anonymous);
    let eve = cluster.certificate("eve", &[]);
    let forged = ClientIdentity::Token("not.a.token".into());
    // The authorizer learns new roles with a delay, and a denial is cached for half a minute: so
    // the roles are polled at the API server before a request goes to the node.
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
        let response: Value = cluster.client.request(request).await?;
        Ok(response["status"]["allowed"] == true)
    };
    wait::until_true("the authorizer to know the roles", LIMIT, knows).await.unwrap();
    for (case, identity, path, want) in [
        ("anonymous, healthz", &anonymous, "/healthz", 401),
        ("anonymous, a missing page", &anonymous, "/nothing", 401),
        ("anonymous, commands", &anonymous, "/exec/shop/web/app", 401),
        ("a forged token", &forged, "/pods", 401),
        ("a user without rights", &eve, "/pods", 403),
        ("the administrator", &admin, "/pods", 200),
        ("the administrator, health", &admin, "/healthz/syncloop", 200),
        ("the administrator, a missing page", &admin, "/nothing", 404),
        ("only metrics: metrics", &metrics, "/metrics/resource", 200),
        ("only metrics: statistics", &metrics, "/stats/summary", 403),
        ("only metrics: pods", &metrics, "/pods", 403),
        ("only pods: pods", &pods, "/pods", 200),
        ("only pods: running pods", &pods, "/runningpods/", 200),
        ("only pods: logs", &pods, "/containerLogs/shop/web/app", 403),
        ("only reading: configuration", &reader, "/configz", 200),
        ("only reading: commands", &reader, "/exec/shop/web/app?command=id&output=1", 403),
        ("only reading: ports", &reader, "/portForward/shop/web?port=80", 403),
        ("only pods: commands", &pods, "/exec/shop/web/app?command=id&output=1", 403),
    ] {
        let response = cluster.request("GET", path, identity).await;
        assert_eq!(response.status.as_u16(), want, "{case}: {}", response.text());
        match want {
            401 => assert_eq!(response.text(), "Unauthorized"),
            403 => assert!(response.text().starts_with("Forbidden (user="), "{}", response.text()),
            _ => {}
        }
    }
    cluster.close();
}

#[tokio::test]
async fn invalid_requests_get_the_right_error() {
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
        ("a missing pod", "GET", "/containerLogs/shop/none/app", 404),
        ("a missing container", "GET", "/containerLogs/shop/web/none", 404),
        ("invalid options", "GET", "/containerLogs/shop/web/app?limitBytes=0", 422),
        ("options that cannot be parsed", "GET", "/containerLogs/shop/web/app?tailLines=few", 400),
        ("an encoded path traversal", "GET", "/containerLogs/shop/web/..%2f..%2fetc%2fpasswd", 404),
        ("a plain path traversal", "GET", "/containerLogs/../../etc/passwd", 404),
        ("files of the machine", "GET", "/logs/../../etc/passwd", 404),
        ("files of the machine by a query", "GET", "/logs/?query=../../etc/shadow", 404),
        ("no stream", "POST", "/exec/shop/web/app?command=id", 400),
        ("no upgrade", "POST", "/exec/shop/web/app?command=id&output=1", 500),
        ("no such pod", "POST", "/exec/shop/none/app?command=id&output=1", 404),
        ("no such container", "POST", "/exec/shop/web/none?command=id&output=1", 500),
        ("not running", "POST", "/exec/shop/done/app?command=id&output=1", 500),
        ("attach, not running", "POST", "/attach/shop/done/app?output=1", 500),
        ("run, not running", "POST", "/run/shop/done/app?cmd=id", 500),
        ("ports, not running", "POST", "/portForward/shop/done", 500),
        ("logs of a finished container", "GET", "/containerLogs/shop/done/app", 200),
        ("another pod's UID", "POST", "/portForward/shop/web/other", 404),
        ("attach, another pod's UID", "POST", "/attach/shop/web/other/app?output=1", 500),
        ("the wrong method", "DELETE", "/pods", 405),
    ] {
        let response = cluster.request(method, path, &admin).await;
        assert_eq!(response.status.as_u16(), want, "{case}: {}", response.text());
    }
    let exec = "/exec/shop/web/app?command=id&output=1";
    for (case, headers, want) in [
        ("an upgrade to nothing", [("connection", "upgrade"), ("x-a", "b")], 500),
        (
            "an upgrade with the wrong connection header",
            [("connection", "close"), ("upgrade", "SPDY/3.1")],
            500,
        ),
        ("to an unknown protocol", [("connection", "upgrade"), ("upgrade", "carrier-pigeon")], 400),
        ("without a protocol", [("connection", "upgrade"), ("upgrade", "SPDY/3.1")], 400),
    ] {
        let response = cluster.request_with("POST", exec, &admin, &headers).await;
        assert_eq!(response.status.as_u16(), want, "{case}: {}", response.text());
    }
    let run = cluster.request("POST", "/run/shop/web/app?cmd=echo%20hello", &admin).await;
    assert_eq!((run.status, run.text().as_str()), (StatusCode::OK, "hello\n"));
    cluster.close();
}

#[tokio::test]
async fn read_only_port_serves_metrics_and_runs_nothing() {
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
        let response = cluster.bed.http_send(request, &Tls::default()).await.unwrap();
        assert_eq!(response.status.as_u16(), want, "{method} {path}: {}", response.text());
        if want == 405 {
            assert_eq!(response.text(), "Debug endpoints are disabled.\n");
        }
    }
    cluster.close();
}

#[tokio::test]
async fn new_serving_certificate_is_used_without_a_restart() {
    needs_root!();
    let authority = |bed: &Bed| bed.control_plane().unwrap().authority().certificate();
    // The first certificate is for another machine, so a verifying client rejects it.
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
    assert!(ask().await.is_err(), "the certificate is for another machine");
    signed(&cluster.bed, NODE_ADDRESS.into());
    let believed = async || Ok(ask().await.is_ok_and(|response| response.status.as_u16() == 401));
    wait::until_true("the new certificate to be shown", LIMIT, believed).await.unwrap();
    assert!(cluster.agent.daemon().ended().unwrap().is_none());
    cluster.close();
}
