//! Resource metrics: metrics.k8s.io.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use jiff::Timestamp;
use podwright_apiserver::{
    ApiServer, Clock, Identity, Ids, Limits, NodeConnector, Settings, Store,
};
use podwright_core::ids::PodName;
use podwright_core::stats::usage::{MeasuredUsage, NodeUsage, PodUsage, UsageReport};
use serde_json::{Value, json};

use super::test_server::{NS, TestServer, pod};

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

/// A node that has measured the pods `web` and `old` in the namespace `default`.
struct MeasuringNode {
    started: bool,
}

impl NodeConnector for MeasuringNode {
    fn node(&self) -> Option<Arc<str>> {
        self.started.then(|| "n1".into())
    }

    fn usage(&self) -> BoxFuture<'static, Option<UsageReport>> {
        let usage = |nano_cores, memory_bytes| MeasuredUsage { nano_cores, memory_bytes };
        let of_pod = |name: &str| PodUsage {
            name: PodName::new("default", name),
            window: Duration::from_millis(1_250),
            containers: vec![
                ("c".to_owned(), usage(1_500_000, 2048)),
                ("log".to_owned(), usage(7, 4097)),
            ],
        };
        let report = UsageReport {
            at: Timestamp::from_second(1_700_000_000).unwrap(),
            node: Some(NodeUsage {
                window: Duration::from_secs(15),
                usage: usage(250_000_000, 1 << 30),
            }),
            pods: vec![of_pod("web"), of_pod("old")],
            complete: true,
        };
        std::future::ready(self.started.then_some(report)).boxed()
    }

    fn connect(&self, _: &str, _: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        unreachable!("resource metrics need no kubelet request")
    }
}

async fn measuring(started: bool) -> TestServer {
    let clock = Clock::system();
    let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
    let mut settings = Settings::new(clock, Ids::seeded(1));
    settings.node_connector = Some(Arc::new(MeasuringNode { started }));
    let server = ApiServer::start(store, settings).await.unwrap();
    let test_server = TestServer { server, identity: Identity::admin() };
    for name in ["n1", "n2"] {
        let node = json!({"metadata": {"name": name, "labels": {"zone": name}}});
        test_server.post("/api/v1/nodes", node).await.ok();
    }
    for name in ["web", "waiting"] {
        test_server.pod(name, "n1").await;
    }
    test_server
}

#[tokio::test]
async fn usage_of_stored_pods_is_listed_with_their_labels() {
    let test_server = measuring(true).await;
    let one = test_server.get(&format!("{METRICS}/namespaces/default/pods/web")).await.ok().body;
    let item = json!({
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"},
            "creationTimestamp": "2023-11-14T22:13:20Z"},
        "timestamp": "2023-11-14T22:13:20Z",
        "window": "1.25s",
        "containers": [
            {"name": "c", "usage": {"cpu": "1500u", "memory": "2Ki"}},
            {"name": "log", "usage": {"cpu": "7n", "memory": "4097"}},
        ],
    });
    let mut whole = item.clone();
    whole["kind"] = json!("PodMetrics");
    whole["apiVersion"] = json!("metrics.k8s.io/v1beta1");
    assert_eq!(one, whole);
    for (path, count) in [
        ("/pods", 1),
        ("/namespaces/default/pods", 1),
        ("/namespaces/elsewhere/pods", 0),
        ("/pods?labelSelector=app%3Dweb", 1),
        ("/pods?labelSelector=app%3Dother", 0),
        ("/pods?fieldSelector=metadata.namespace%3Ddefault,metadata.name%3Dweb", 1),
    ] {
        let list = test_server.get(&format!("{METRICS}{path}")).await.ok().body;
        assert_eq!(list["kind"], "PodMetricsList", "{path}");
        assert_eq!(list["items"], Value::Array(vec![item.clone(); count]), "{path}");
    }
}

#[tokio::test]
async fn usage_of_the_connected_node_is_listed() {
    let test_server = measuring(true).await;
    let list = test_server.get(&format!("{METRICS}/nodes")).await.ok();
    assert_eq!(list.names(), ["n1"]);
    assert_eq!(list.body["items"][0]["usage"], json!({"cpu": "250m", "memory": "1Gi"}));
    assert_eq!(list.body["items"][0]["metadata"]["labels"]["zone"], "n1");
    assert_eq!(list.body["items"][0]["window"], "15s");
}

#[tokio::test]
async fn tables_show_the_sum_of_the_containers() {
    let test_server = measuring(true).await;
    let request = Request::get(format!("{METRICS}/namespaces/default/pods"))
        .header("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
        .body(Body::empty())
        .unwrap();
    let response = test_server.raw(request).await;
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let table: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(table["rows"][0]["cells"], json!(["web", "1500007n", "6145", "1.25s"]));
}

#[tokio::test]
async fn missing_metrics_say_why() {
    let test_server = measuring(true).await;
    for (path, want) in [
        ("/namespaces/default/pods/none", "pods \"none\" not found"),
        (
            "/namespaces/default/pods/waiting",
            "podmetrics.metrics.k8s.io \"default/waiting\" not found: none of its containers run",
        ),
        ("/nodes/none", "nodes \"none\" not found"),
        (
            "/nodes/n2",
            "nodemetrics.metrics.k8s.io \"n2\" not found: its CPU and memory were not measured",
        ),
    ] {
        let refused = test_server.get(&format!("{METRICS}{path}")).await;
        assert_eq!((refused.code, refused.message()), (404, want), "{path}");
        assert_eq!(refused.body["reason"], "NotFound");
    }
    let starting = measuring(false).await;
    let refused = starting.get(&format!("{METRICS}/pods")).await;
    let want = (503, "the node is starting; retry in a few seconds");
    assert_eq!((refused.code, refused.message()), want);
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        for path in ["/pods", "/namespaces/default/pods/web", "/nodes", "/nodes/n1"] {
            let path = format!("{METRICS}{path}");
            let refused =
                test_server.send(method, &path, "application/json", "{}".to_owned()).await;
            assert!(matches!(refused.code, 404 | 405 | 415), "{method} {path}: {}", refused.code);
        }
    }
    let watch = test_server.get(&format!("{METRICS}/pods?watch=true")).await;
    assert_eq!(watch.code, 405);
}

#[tokio::test]
async fn view_role_reads_the_metrics_of_its_namespace() {
    let mut test_server = measuring(true).await;
    let binding = json!({
        "metadata": {"name": "viewer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "name": "jane"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    test_server.post(bindings, binding).await.ok();
    let jane = Identity { user: "jane".to_owned(), groups: vec![], ..Identity::admin() };
    test_server.identity = jane;
    let code = async |path: &str| test_server.get(&format!("{METRICS}{path}")).await.code;
    assert_eq!(code("/namespaces/default/pods").await, 200);
    assert_eq!(code("/namespaces/default/pods/web").await, 200);
    assert_eq!(code("/pods").await, 403);
    assert_eq!(code("/nodes").await, 403);
    assert_eq!(test_server.post(&format!("{NS}/pods"), pod("other", "")).await.code, 403);
}
