//! A test server with a minimal client.

use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

pub(crate) const NS: &str = "/api/v1/namespaces/default";

pub(crate) struct TestServer {
    pub(crate) server: ApiServer,
    pub(crate) identity: Identity,
}

/// A response: status code, headers, and body as JSON, or as a string if it is not JSON.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl TestResponse {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub(crate) fn version(&self) -> String {
        self.body["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
    }

    /// The names of a list's items.
    pub(crate) fn names(&self) -> Vec<&str> {
        let items = self.body["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert!(self.code < 300, "{} {}", self.code, self.body);
        self
    }
}

/// The wall clock of a test follows tokio's, so that both advance together.
fn clock() -> Clock {
    let start = Instant::now();
    let epoch = Timestamp::from_second(1_700_000_000).unwrap();
    Clock::new(move || epoch + SignedDuration::try_from(start.elapsed()).unwrap())
}

impl TestServer {
    pub(crate) async fn new() -> Self {
        Self::with(Limits::default()).await
    }

    pub(crate) async fn with(limits: Limits) -> Self {
        let clock = clock();
        let store = Store::in_memory(limits, clock.clone()).unwrap();
        Self::on(store, clock).await
    }

    pub(crate) async fn on(store: Store, clock: Clock) -> Self {
        let mut settings = Settings::new(clock, Ids::seeded(1));
        settings.root_ca = "certificates".to_owned();
        settings.token_key = Some(TokenKey::new(&[7; 32]));
        let server = ApiServer::start(store, settings).await.unwrap();
        Self { server, identity: Identity::admin() }
    }

    /// With its controllers running, until the guard is dropped.
    pub(crate) async fn with_controllers() -> (Self, impl Drop) {
        let test_server = Self::new().await;
        let stop = CancellationToken::new();
        let server = test_server.server.clone();
        let token = stop.clone();
        tokio::spawn(async move { server.run_controllers(token).await });
        (test_server, stop.drop_guard())
    }

    pub(crate) async fn raw(&self, request: Request<Body>) -> http::Response<Body> {
        self.server.service(self.identity.clone()).oneshot(request).await.unwrap()
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: String,
    ) -> TestResponse {
        let request = Request::builder().method(method).uri(path).header("Content-Type", kind);
        let response = self.raw(request.body(Body::from(body)).unwrap()).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        TestResponse { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    async fn json(&self, method: &str, path: &str, body: String) -> TestResponse {
        self.send(method, path, "application/json", body).await
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.json("GET", path, String::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> TestResponse {
        self.json("POST", path, body.to_string()).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> TestResponse {
        self.json("PUT", path, body.to_string()).await
    }

    pub(crate) async fn merge(&self, path: &str, body: Value) -> TestResponse {
        self.send("PATCH", path, "application/merge-patch+json", body.to_string()).await
    }

    pub(crate) async fn strategic(&self, path: &str, body: Value) -> TestResponse {
        self.send("PATCH", path, "application/strategic-merge-patch+json", body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> TestResponse {
        self.json("DELETE", path, String::new()).await
    }

    pub(crate) async fn delete_with(&self, path: &str, options: Value) -> TestResponse {
        self.json("DELETE", path, options.to_string()).await
    }

    pub(crate) async fn map(&self, name: &str) -> TestResponse {
        self.post(&format!("{NS}/configmaps"), json!({"metadata": {"name": name}})).await.ok()
    }

    /// Creates a pod in the default namespace.
    pub(crate) async fn pod(&self, name: &str, node: &str) -> TestResponse {
        self.post(&format!("{NS}/pods"), pod(name, node)).await.ok()
    }

    pub(crate) async fn watch(&self, path: &str) -> Watched {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = self.raw(request).await;
        assert_eq!(response.status(), 200, "{path}");
        Watched { body: response.into_body(), text: Vec::new() }
    }
}

pub(crate) fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

/// The lines of a watch as they arrive.
pub(crate) struct Watched {
    body: Body,
    text: Vec<u8>,
}

impl Watched {
    /// The next line, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            self.text.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// The next line as `TYPE name`.
    pub(crate) async fn line(&mut self) -> String {
        let event = tokio::time::timeout(Duration::from_secs(3600), self.next()).await;
        match event.expect("the watch sends no line") {
            None => "end".to_owned(),
            Some(event) => {
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or("-");
                format!("{} {name}", event["type"].as_str().unwrap())
            }
        }
    }

    pub(crate) async fn lines(&mut self, count: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for _ in 0..count {
            lines.push(self.line().await);
        }
        lines
    }

    /// All lines until the server ends the watch.
    pub(crate) async fn rest(mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.line().await {
                line if line == "end" => return lines,
                line => lines.push(line),
            }
        }
    }

    /// The lines available without waiting.
    pub(crate) async fn ready(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let next = tokio::time::timeout(Duration::from_millis(1), self.next()).await;
            let Ok(Some(event)) = next else { return lines };
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or("-");
            lines.push(format!("{} {name}", event["type"].as_str().unwrap()));
        }
    }
}

/// Polls until the check succeeds; time is paused, so waiting takes none.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    for _ in 0..1000 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("did not happen: {what}");
}

/// The whole body.
pub(crate) async fn drained(body: Body) -> String {
    let bytes = body.collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Gives the account `default` of the namespace `default` the role `view`.
pub(crate) async fn grant_view(test_server: &TestServer) {
    let binding = json!({
        "metadata": {"name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}],
        "roleRef": {"kind": "ClusterRole", "name": "view"},
    });
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    test_server.post(path, binding).await.ok();
}
