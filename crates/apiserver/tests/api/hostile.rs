//! Hostile requests: the server responds in JSON to every input and keeps running.

use axum::body::Body;
use http::Request;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use serde_json::{Value, json};

use super::test_server::{NS, TestServer, drained};

#[tokio::test(start_paused = true)]
async fn unsupported_bodies_and_types_are_refused() {
    let test_server = TestServer::new().await;
    test_server.map("a").await;
    let maps = format!("{NS}/configmaps");
    let big = format!("{{\"data\":{{\"k\":\"{}\"}}}}", "x".repeat(3 << 20));
    for (case, method, path, kind, body, code) in [
        ("too large", "POST", maps.clone(), "application/json", big, 413),
        (
            "protobuf",
            "POST",
            maps.clone(),
            "application/vnd.kubernetes.protobuf",
            String::new(),
            400,
        ),
        (
            "an apply in another form",
            "PATCH",
            format!("{maps}/a"),
            "application/apply-patch+cbor",
            "{}".to_owned(),
            415,
        ),
        (
            "a patch without a type",
            "PATCH",
            format!("{maps}/a"),
            "application/json",
            "{}".to_owned(),
            415,
        ),
        (
            "no patch",
            "PATCH",
            format!("{maps}/a"),
            "application/merge-patch+json",
            "{".to_owned(),
            400,
        ),
        (
            "a list as a patch",
            "PATCH",
            format!("{maps}/a"),
            "application/merge-patch+json",
            "[]".to_owned(),
            400,
        ),
        ("no options", "DELETE", format!("{maps}/a"), "application/json", "[".to_owned(), 400),
        ("no YAML", "POST", maps.clone(), "application/yaml", "a: [".to_owned(), 400),
        ("CBOR", "POST", maps.clone(), "application/cbor", "a".to_owned(), 415),
        ("empty", "POST", maps.clone(), "application/json", String::new(), 400),
    ] {
        let response = test_server.send(method, &path, kind, body).await;
        assert_eq!(response.code, code, "{case}: {}", response.body);
        assert_eq!(response.body["kind"], "Status", "{case}");
    }
    let path = format!("{maps}/a");
    let patch = test_server.send("PATCH", &path, "application/json", "{}".to_owned()).await;
    let said = (&patch.body["message"], &patch.body["details"]);
    assert_eq!(said, (&json!("415: Unsupported Media Type"), &json!({})));
    let request = Request::get(&maps).header("Accept", "application/cbor");
    assert_eq!(test_server.raw(request.body(Body::empty()).unwrap()).await.status(), 406);
    assert_eq!(
        test_server.get(&format!("{maps}/a")).await.code,
        200,
        "existing objects are unchanged"
    );
}

fn method() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"])
}

fn path() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "api",
        "v1",
        "apis",
        "namespaces",
        "default",
        "pods",
        "a",
        "status",
        "binding",
        "eviction",
        "resize",
        "ephemeralcontainers",
        "token",
        "serviceaccounts",
        "configmaps",
        "nodes",
        "events",
        "events.k8s.io",
        "coordination.k8s.io",
        "leases",
        "finalize",
        "log",
        "exec",
        "..",
        "%2e%2e",
        "%2F",
        "%ff",
        "%",
        "",
        "x%00y",
        "authentication.k8s.io",
        "tokenreviews",
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "openapi",
        "v3",
    ]);
    let query = prop::sample::select(vec![
        "",
        "?watch=1&timeoutSeconds=1",
        "?limit=1",
        "?limit=99999999999999999999",
        "?continue=e30",
        "?labelSelector=%00(",
        "?fieldSelector=a%5C",
        "?dryRun=All",
        "?fieldValidation=Strict",
        "?gracePeriodSeconds=-9223372036854775808",
        "?gracePeriodSeconds=9223372036854775807",
        "?resourceVersion=18446744073709551615",
        "?watch=1&timeoutSeconds=1&resourceVersion=18446744073709551615",
        "?%zz",
        "?includeObject=Object",
    ]);
    let real = prop::sample::select(vec![
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/pods/a",
        "/api/v1/namespaces/default/pods/a/status",
        "/api/v1/namespaces/default/pods/a/binding",
        "/api/v1/namespaces/default/pods/a/eviction",
        "/api/v1/namespaces/default/pods/a/resize",
        "/api/v1/namespaces/default/pods/a/ephemeralcontainers",
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/configmaps/a",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/events",
        "/api/v1/namespaces/default/persistentvolumeclaims",
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        "/api/v1/namespaces/kube-node-lease/finalize",
        "/api/v1/namespaces",
        "/api/v1/nodes",
        "/api/v1/persistentvolumes",
        "/apis/events.k8s.io/v1/namespaces/default/events",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases/a",
        "/apis/node.k8s.io/v1/runtimeclasses",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        "/apis/authentication.k8s.io/v1/tokenreviews",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    ]);
    let made = prop::collection::vec(word, 0..8).prop_map(|words| format!("/{}", words.join("/")));
    let path = prop_oneof![4 => real.prop_map(str::to_owned), 1 => made];
    (path, query).prop_map(|(path, query)| format!("{path}{query}"))
}

fn json_like() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z\\u{0}/.]{0,8}".prop_map(Value::from),
        Just(json!("2024-01-01T00:00:00Z")),
    ];
    let key = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "name",
        "namespace",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "containers",
        "volumes",
        "data",
        "stringData",
        "uid",
        "resourceVersion",
        "generateName",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "target",
        "kind",
        "apiVersion",
        "op",
        "path",
        "value",
        "$patch",
        "conditions",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "resources",
        "limits",
        "cpu",
        "image",
        "boundObjectRef",
        "expirationSeconds",
        "audiences",
        "deleteOptions",
        "preconditions",
        "tolerations",
        "type",
    ]);
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A server is created for each case, so there are few cases; with `PODWRIGHT_LONG` as many times
/// more as in `mutation` of the testkit, which depends on this crate.
fn config() -> ProptestConfig {
    let times = if std::env::var_os("PODWRIGHT_LONG").is_some() { 200 } else { 1 };
    let kept = FileFailurePersistence::WithSource("regressions");
    ProptestConfig {
        cases: 48 * times,
        failure_persistence: Some(Box::new(kept)),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_request_makes_the_server_fail(
        requests in prop::collection::vec((method(), path(), json_like(), 0..4_usize), 1..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let test_server = TestServer::new().await;
            test_server.map("a").await;
            test_server.pod("a", "n1").await;
            for (method, path, body, kind) in requests {
                let kind = ["application/json", "application/merge-patch+json", "application/json-patch+json",
                    "application/strategic-merge-patch+json"][kind];
                let Ok(request) = Request::builder().method(method).uri(&path).header("Content-Type", kind)
                    .body(Body::from(body.to_string())) else { continue };
                let response = test_server.raw(request).await;
                let code = response.status().as_u16();
                let response = drained(response.into_body()).await;
                // kube-apiserver has a few refusals with 500 too; our own internal errors are
                // marked.
                let own_fault = code >= 500 && response.contains("InternalError");
                assert!(!own_fault, "{method} {path} {body}: {response}");
            }
            let healthy = test_server.get("/api/v1/namespaces/default/pods").await;
            assert_eq!(healthy.code, 200);
        });
    }
}

#[tokio::test]
async fn bodies_of_what_is_not_stored_are_small() {
    let server = TestServer::new().await;
    let filler = "x".repeat(64 << 10);
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (path, body) in [
        (review.to_owned(), json!({"spec": {"resourceAttributes": {"verb": filler}}})),
        (
            "/apis/authentication.k8s.io/v1/tokenreviews".to_owned(),
            json!({"spec": {"token": filler}}),
        ),
        (format!("{NS}/pods/web/eviction"), json!({"metadata": {"name": filler}})),
        (format!("{NS}/serviceaccounts/default/token"), json!({"spec": {"audiences": [filler]}})),
    ] {
        let refused = server.post(&path, body).await;
        assert_eq!(refused.code, 413, "{path}: {}", refused.body);
    }
    let deleted = server.delete_with(&format!("{NS}/configmaps/c"), json!({"x": filler})).await;
    assert_eq!(deleted.code, 413, "{}", deleted.body);
    // what is stored may be large
    let map = json!({"metadata": {"name": "large"}, "data": {"a": "x".repeat(500 << 10)}});
    server.post(&format!("{NS}/configmaps"), map).await.ok();
}
