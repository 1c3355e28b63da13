//! Server-side apply and field managers, as kube-apiserver answers.

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use podwright_apiserver::Identity;
use serde_json::{Value, json};

use super::test_server::{NS, TestResponse, TestServer, pod};

const APPLY: &str = "application/apply-patch+yaml";

async fn apply(server: &TestServer, path: &str, query: &str, body: &Value) -> TestResponse {
    server.send("PATCH", &format!("{NS}/{path}?{query}"), APPLY, body.to_string()).await
}

async fn apply_map(server: &TestServer, manager: &str, data: Value) -> TestResponse {
    apply(server, "configmaps/a", &format!("fieldManager={manager}"), &map(data)).await
}

#[allow(clippy::needless_pass_by_value, reason = "json literals are given as they stand")]
fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

/// Sends with a `User-Agent`.
async fn by(
    server: &TestServer,
    agent: &str,
    method: &str,
    path: &str,
    body: Value,
) -> TestResponse {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let mut request = Request::builder().method(method).uri(path).header("Content-Type", kind);
    if !agent.is_empty() {
        request = request.header("User-Agent", agent);
    }
    let response = server.raw(request.body(Body::from(body.to_string())).unwrap()).await;
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap();
    TestResponse { code: parts.status.as_u16(), headers: parts.headers, body }
}

fn entries(object: &Value) -> Vec<Value> {
    object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default()
}

/// `manager operation subresource` of each entry.
fn owners(object: &Value) -> Vec<String> {
    entries(object)
        .iter()
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}", text("manager"), text("operation"), text("subresource"))
                .trim_end()
                .to_owned()
        })
        .collect()
}

fn fields_of(object: &Value, owner: &str) -> Value {
    let at = owners(object).iter().position(|name| name == owner);
    at.map(|at| entries(object)[at]["fieldsV1"].clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn apply_creates_and_the_same_apply_changes_nothing() {
    let server = TestServer::new().await;
    let created = apply_map(&server, "m1", json!({"a": "1"})).await;
    assert_eq!(created.code, 201, "{}", created.body);
    let entry = json!({"manager": "m1", "operation": "Apply", "apiVersion": "v1",
        "time": "2023-11-14T22:13:20Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}}}});
    assert_eq!(entries(&created.body), [entry]);
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let again = apply_map(&server, "m1", json!({"a": "1"})).await;
    assert_eq!((again.code, &again.body), (200, &created.body));
    assert_eq!(server.get(&format!("{NS}/configmaps/a")).await.body, created.body);
}

#[tokio::test(start_paused = true)]
async fn managers_share_conflict_and_take_over() {
    let server = TestServer::new().await;
    apply_map(&server, "m1", json!({"a": "1", "b": "1"})).await.ok();
    let shared = apply_map(&server, "m2", json!({"a": "1"})).await.ok();
    assert_eq!(owners(&shared.body), ["m2 Apply", "m1 Apply"]);
    assert_eq!(entries(&shared.body)[0].get("time"), None, "a new co-owner has no time");
    let refused = apply_map(&server, "m2", json!({"a": "2"})).await;
    assert_eq!(
        refused.body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Apply failed with 1 conflict: conflict with \"m1\": .data.a",
            "reason": "Conflict", "code": 409,
            "details": {"causes": [{"reason": "FieldManagerConflict",
                "message": "conflict with \"m1\"", "field": ".data.a"}]}})
    );
    let query = "fieldManager=m2&force=true";
    let forced =
        apply(&server, "configmaps/a", query, &map(json!({"a": "2", "b": "2"}))).await.ok();
    assert_eq!(owners(&forced.body), ["m2 Apply"], "an empty entry vanishes");
    // what is left out goes
    let less = apply_map(&server, "m2", json!({"b": "2"})).await.ok();
    assert_eq!(less.body["data"], json!({"b": "2"}));
    let none = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let none = apply(&server, "configmaps/a", "fieldManager=m2", &none).await.ok();
    assert_eq!((none.body.get("data"), owners(&none.body)), (None, vec![]));
}

#[tokio::test(start_paused = true)]
async fn every_write_is_tracked_under_the_name_of_its_client() {
    let server = TestServer::new().await;
    let maps = format!("{NS}/configmaps");
    for (agent, query, manager) in
        [("", "", "unknown"), ("curl/7", "", "curl"), ("curl/7", "?fieldManager=me", "me")]
    {
        let body = json!({"metadata": {"generateName": "x"}, "data": {"a": "1"}});
        let made = by(&server, agent, "POST", &format!("{maps}{query}"), body).await.ok();
        assert_eq!(owners(&made.body), [format!("{manager} Update")]);
    }
    apply_map(&server, "m1", json!({"a": "1", "b": "1"})).await.ok();
    let path = format!("{maps}/a");
    // the stored value again changes nothing
    let before = server.get(&path).await.body;
    let same = by(&server, "curl/7", "PATCH", &path, json!({"data": {"a": "1"}})).await.ok();
    assert_eq!(same.body, before);
    let moved = by(&server, "curl/7", "PATCH", &path, json!({"data": {"a": "2"}})).await.ok();
    assert_eq!(owners(&moved.body), ["m1 Apply", "curl Update"]);
    assert_eq!(fields_of(&moved.body, "m1 Apply"), json!({"f:data": {"f:b": {}}}));
    let refused = apply_map(&server, "m1", json!({"a": "1"})).await;
    assert_eq!(
        refused.message(),
        "Apply failed with 1 conflict: conflict with \"curl\" using v1: .data.a"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pods_creator_owns_defaults_but_not_what_admission_adds() {
    let server = TestServer::new().await;
    let made = by(&server, "curl/7", "POST", &format!("{NS}/pods"), pod("web", "")).await.ok();
    assert_eq!(owners(&made.body), ["curl Update"]);
    assert_eq!(
        fields_of(&made.body, "curl Update"),
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {},
                    "f:imagePullPolicy": {}, "f:name": {}, "f:resources": {},
                    "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {}}},
                "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:restartPolicy": {},
                "f:schedulerName": {}, "f:securityContext": {},
                "f:terminationGracePeriodSeconds": {},
            },
        })
    );
    // the kubelet's status has an entry of its own; a label through it is its, too; a spec is not
    let status = json!({"metadata": {"labels": {"s": "1"}}, "spec": {"nodeName": "x"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let path = format!("{NS}/pods/web/status");
    let kubelet = "kubelet/v1.36.4 (linux/amd64) podwright/0.1.0";
    let patched = by(&server, kubelet, "PATCH", &path, status).await.ok();
    assert_eq!(patched.body["spec"].get("nodeName"), None);
    assert_eq!(
        fields_of(&patched.body, "kubelet Update status"),
        json!({"f:metadata": {"f:labels": {"f:s": {}}},
            "f:status": {"f:phase": {}, "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {".": {},
                "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {}}}}})
    );
    let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "status": {"phase": "Failed"}, "spec": {"priority": 7}});
    let refused = apply(&server, "pods/web/status", "fieldManager=m", &body).await;
    assert_eq!(
        refused.message(),
        "Apply failed with 1 conflict: conflict with \"kubelet\" with subresource \"status\" using v1: .status.phase"
    );
    // the main path ignores a status
    let main = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "status": {"phase": "Failed"}});
    let ignored = apply(&server, "pods/web", "fieldManager=m", &main).await.ok();
    assert_eq!(ignored.body["status"]["phase"], "Running");
    assert!(!owners(&ignored.body).contains(&"m Apply".to_owned()));
    let forced = apply(&server, "pods/web/status", "fieldManager=m&force=true", &body).await.ok();
    assert_eq!(forced.body["status"]["phase"], "Failed");
    assert_eq!(fields_of(&forced.body, "m Apply status"), json!({"f:status": {"f:phase": {}}}));
}

#[tokio::test(start_paused = true)]
async fn managers_are_kept_reset_or_replaced_by_a_write() {
    let server = TestServer::new().await;
    let path = format!("{NS}/configmaps/a");
    for (list, left) in
        [(None, 1), (Some(json!(null)), 1), (Some(json!([{}])), 0), (Some(json!([])), 0)]
    {
        server.delete(&path).await;
        apply_map(&server, "m1", json!({"a": "1"})).await.ok();
        let mut body = map(json!({"a": "1"}));
        if let Some(list) = &list {
            body["metadata"]["managedFields"] = list.clone();
        }
        let put = server.put(&path, body).await.ok();
        assert_eq!(entries(&put.body).len(), left, "PUT {list:?}");
    }
    // after a reset nothing is tracked until the next apply
    let patched = by(&server, "curl/7", "PATCH", &path, json!({"data": {"b": "1"}})).await.ok();
    assert_eq!(entries(&patched.body).len(), 0);
    let applied = apply_map(&server, "m1", json!({"a": "1"})).await.ok();
    assert_eq!(owners(&applied.body), ["m1 Apply", "before-first-apply Update"]);
    // a patch can reset them, too, and replace them
    let reset = json!({"metadata": {"managedFields": []}});
    let reset = server.merge(&path, reset).await.ok();
    assert_eq!(entries(&reset.body).len(), 0);
    apply_map(&server, "m1", json!({"a": "1"})).await.ok();
    let steps = json!([{"op": "replace", "path": "/metadata/managedFields", "value":
        [{"manager": "x", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
          "fieldsV1": {"f:data": {"f:a": {}}}}]}]);
    let replaced =
        server.send("PATCH", &path, "application/json-patch+json", steps.to_string()).await.ok();
    assert_eq!(owners(&replaced.body), ["x Apply"]);
    // an object that has only a name is not tracked
    let bare = by(
        &server,
        "curl/7",
        "POST",
        &format!("{NS}/configmaps"),
        json!({"metadata": {"name": "bare"}}),
    )
    .await;
    assert_eq!(entries(&bare.body).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn invalid_applies_are_refused_as_upstream_refuses_them() {
    let server = TestServer::new().await;
    apply_map(&server, "m1", json!({"a": "1"})).await.ok();
    let long = format!("fieldManager={}", "m".repeat(129));
    let m = "fieldManager=m";
    let with = |field: &str, value: Value| {
        let mut body = map(json!({"a": "1"}));
        body["metadata"][field] = value;
        body
    };
    for (query, body, code, message) in [
        (
            "",
            map(json!({})),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (
            &*long,
            map(json!({})),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than 128 bytes",
        ),
        (
            m,
            json!({"apiVersion": "v1", "kind": "Secret"}),
            400,
            "invalid object type: /v1, Kind=Secret",
        ),
        (m, json!({}), 400, "invalid object type: /, Kind="),
        (m, with("managedFields", json!([])), 400, "metadata.managedFields must be nil"),
        (
            "fieldManager=m&fieldValidation=Ignore",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}, "nope": 1}),
            500,
            "failed to create typed patch object (default/a; /v1, Kind=ConfigMap): .nope: field not declared in schema",
        ),
        (
            m,
            map(json!({"y": 2})),
            500,
            "failed to create typed patch object (a; /v1, Kind=ConfigMap): .data.y: expected string, got &value.valueUnstructured{Value:2}",
        ),
        (
            m,
            with("name", json!("b")),
            400,
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            m,
            with("namespace", json!("other")),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            m,
            with("resourceVersion", json!("1")),
            409,
            "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again",
        ),
    ] {
        let refused = apply(&server, "configmaps/a", query, &body).await;
        assert_eq!((refused.code, refused.message()), (code, message), "{body}");
    }
    let mut body = with("uid", json!("abc"));
    body["metadata"]["name"] = json!("x");
    let uid = apply(&server, "configmaps/x", m, &body).await;
    assert_eq!(
        (uid.code, uid.message()),
        (
            409,
            "Operation cannot be fulfilled on configmaps \"x\": uid mismatch: the provided object specified uid abc, and no existing object was found"
        )
    );
    let other = apply(&server, "configmaps/a", m, &with("uid", json!("abc"))).await;
    assert_eq!(other.code, 422);
    assert!(
        other.message().contains("metadata.uid: Invalid value: \"abc\": field is immutable"),
        "{}",
        other.message()
    );
    for (text, start) in [
        ("{", "error decoding YAML: "),
        ("- a", "error decoding YAML: "),
        ("\u{1}", "error decoding YAML: "),
    ] {
        let path = format!("{NS}/configmaps/a?{m}");
        let refused = server.send("PATCH", &path, APPLY, text.to_owned()).await;
        assert_eq!(refused.code, 400, "{text}");
        assert!(refused.message().starts_with(start), "{}", refused.message());
    }
    let forced = server.merge(&format!("{NS}/configmaps/a?force=true"), json!({})).await;
    assert_eq!(
        (forced.code, forced.message()),
        (
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"
        )
    );
    for kind in ["application/apply-patch+cbor", "text/plain"] {
        let refused =
            server.send("PATCH", &format!("{NS}/configmaps/a?{m}"), kind, "{}".to_owned()).await;
        assert_eq!((refused.code, refused.message()), (415, "415: Unsupported Media Type"));
        assert_eq!(refused.body["details"], json!({}));
    }
}

#[tokio::test(start_paused = true)]
async fn yaml_is_applied_and_its_duplicate_keys_are_reported() {
    let server = TestServer::new().await;
    let yaml =
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  a: \"1\"\n  a: \"2\"\n";
    let send = async |query: &str| {
        let path = format!("{NS}/configmaps/a?fieldManager=m{query}");
        server.send("PATCH", &path, APPLY, yaml.to_owned()).await
    };
    let refused = send("&fieldValidation=Strict").await;
    assert_eq!(refused.code, 400);
    assert!(refused.message().starts_with("error strict decoding YAML: "), "{}", refused.message());
    let created = send("").await;
    assert_eq!((created.code, &created.body["data"]), (201, &json!({"a": "2"})));
    assert!(created.headers["Warning"].to_str().unwrap().contains("duplicate field"));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_says_what_an_apply_would_do() {
    let server = TestServer::new().await;
    let dry = "fieldManager=m&dryRun=All";
    let created = apply(&server, "configmaps/a", dry, &map(json!({"a": "1"}))).await;
    let meta = &created.body["metadata"];
    assert_eq!(created.code, 201);
    assert!(meta.get("uid").is_some() && meta.get("resourceVersion").is_none(), "{meta}");
    assert_eq!(owners(&created.body), ["m Apply"]);
    assert_eq!(server.get(&format!("{NS}/configmaps/a")).await.code, 404);
    // a version in the body does not matter for an object that is absent
    let mut body = map(json!({"a": "1"}));
    body["metadata"]["resourceVersion"] = json!("99");
    assert_eq!(apply(&server, "configmaps/a", "fieldManager=m", &body).await.code, 201);
    let changed = apply(&server, "configmaps/a", dry, &map(json!({"a": "2"}))).await.ok();
    assert_eq!(changed.body["data"], json!({"a": "2"}));
    assert_eq!(server.get(&format!("{NS}/configmaps/a")).await.body["data"], json!({"a": "1"}));
}

#[tokio::test(start_paused = true)]
async fn applying_an_absent_object_needs_the_right_to_create_it() {
    let mut server = TestServer::new().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": "patcher"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}]});
    server.post(&format!("{rbac}/roles"), role).await.ok();
    let binding = json!({"metadata": {"name": "patcher"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "patcher"}});
    server.post(&format!("{rbac}/rolebindings"), binding).await.ok();
    server.post(&format!("{NS}/configmaps"), json!({"metadata": {"name": "there"}})).await.ok();
    server.identity = Identity { user: "jane".to_owned(), ..Identity::anonymous() };
    let refused = apply_map(&server, "m", json!({"a": "1"})).await;
    assert_eq!(refused.code, 403);
    assert!(
        refused.message().contains("cannot create resource \"configmaps\""),
        "{}",
        refused.message()
    );
    let mut body = map(json!({"a": "1"}));
    body["metadata"]["name"] = json!("there");
    apply(&server, "configmaps/there", "fieldManager=m", &body).await.ok();
}

#[tokio::test(start_paused = true)]
async fn a_secrets_text_stays_when_it_is_no_longer_applied() {
    let server = TestServer::new().await;
    let secret = |text: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": text});
    let made = apply(&server, "secrets/s", "fieldManager=m", &secret(json!({"a": "1", "b": "1"})))
        .await
        .ok();
    assert_eq!(fields_of(&made.body, "m Apply"), json!({"f:stringData": {"f:a": {}, "f:b": {}}}));
    let less = apply(&server, "secrets/s", "fieldManager=m", &secret(json!({"a": "1"}))).await.ok();
    assert_eq!(less.body["data"], json!({"a": "MQ==", "b": "MQ=="}));
}

#[tokio::test(start_paused = true)]
async fn kubectls_migration_from_client_side_apply_works() {
    let server = TestServer::new().await;
    let last = "kubectl.kubernetes.io/last-applied-configuration";
    let path = format!("{NS}/configmaps/a");
    // given what `kubectl apply` creates
    let mut body = map(json!({"a": "1", "b": "1"}));
    let text = body.to_string();
    body["metadata"]["annotations"] = json!({last: text});
    server
        .post(&format!("{NS}/configmaps?fieldManager=kubectl-client-side-apply"), body)
        .await
        .ok();
    // when `kubectl apply --server-side` sends a body that lost a key
    let new = map(json!({"a": "2"}));
    let first = apply(
        &server,
        "configmaps/a",
        "fieldManager=kubectl&fieldValidation=Strict&force=false",
        &new,
    )
    .await
    .ok();
    assert_eq!(first.body["data"], json!({"a": "2", "b": "1"}), "b still has its owner");
    assert_eq!(first.body["metadata"]["annotations"][last], format!("{new}\n"));
    // then it applies the annotation as another manager
    let annotation = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a",
        "annotations": {last: first.body["metadata"]["annotations"][last]}}});
    let second =
        apply(&server, "configmaps/a", "fieldManager=kubectl-last-applied&force=true", &annotation)
            .await
            .ok();
    // and gives the manager of client-side apply's fields to its own
    let mut list = entries(&second.body);
    list.retain(|entry| entry["manager"] != "kubectl-client-side-apply");
    for entry in &mut list {
        if entry["manager"] == "kubectl" {
            entry["fieldsV1"] = json!({"f:data": {"f:a": {}, "f:b": {}}});
        }
    }
    let steps = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": list},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": second.version()},
    ]);
    let third =
        server.send("PATCH", &path, "application/json-patch+json", steps.to_string()).await.ok();
    assert_eq!(owners(&third.body), ["kubectl-last-applied Apply", "kubectl Apply"]);
    // so that the first request, repeated, removes the key
    let fourth = apply(&server, "configmaps/a", "fieldManager=kubectl", &new).await.ok();
    assert_eq!(fourth.body["data"], json!({"a": "2"}));
}

#[tokio::test(start_paused = true)]
async fn apply_completes_and_checks_pods_as_a_creation_does() {
    let server = TestServer::new().await;
    let body = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    let spec = json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}],
            "resources": {"requests": {"cpu": "50m"}}}]});
    let made = apply(&server, "pods/p", "fieldManager=m", &body(spec)).await.ok();
    assert_eq!(made.body["spec"]["containers"][0]["ports"][0]["protocol"], "TCP");
    assert_eq!(made.body["status"]["phase"], "Pending");
    assert_eq!(
        fields_of(&made.body, "m Apply"),
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {},
            "f:resources": {"f:requests": {"f:cpu": {}}},
            "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}}}})
    );
    let nameless = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q"},
        "spec": {"containers": [{"image": "i"}]}});
    let refused = apply(&server, "pods/q", "fieldManager=m", &nameless).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    // a resize by apply owns resources only
    let resize = body(json!({"containers": [{"name": "c", "image": "other",
        "resources": {"requests": {"cpu": "100m"}}}]}));
    let resized = apply(&server, "pods/p/resize", "fieldManager=r&force=true", &resize).await.ok();
    assert_eq!(resized.body["spec"]["containers"][0]["image"], "i");
    assert_eq!(resized.body["spec"]["containers"][0]["resources"]["requests"]["cpu"], "100m");
    assert_eq!(
        fields_of(&resized.body, "r Apply resize")["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"]
            ["f:resources"],
        json!({"f:requests": {"f:cpu": {}}})
    );
}

#[tokio::test(start_paused = true)]
async fn stored_objects_keep_their_managers_across_binding_and_deletion() {
    let server = TestServer::new().await;
    by(&server, "curl/7", "POST", &format!("{NS}/pods"), pod("web", "")).await.ok();
    let binding = json!({"metadata": {"name": "web"}, "target": {"kind": "Node", "name": "n1"}});
    server.post(&format!("{NS}/pods/web/binding"), binding).await.ok();
    let bound = server.get(&format!("{NS}/pods/web")).await.ok();
    assert_eq!(owners(&bound.body), ["curl Update"], "a binding records nothing");
    server.delete(&format!("{NS}/pods/web")).await.ok();
    let ending = server.get(&format!("{NS}/pods/web")).await.ok();
    assert_eq!(entries(&ending.body), entries(&bound.body));
}

#[tokio::test(start_paused = true)]
async fn a_wide_body_costs_no_wider_answer() {
    let server = TestServer::new().await;
    let data = |count: usize, value: &str| -> Value {
        Value::Object((0..count).map(|at| (format!("key-{at}"), json!(value))).collect())
    };
    let body = map(data(9000, "x"));
    assert_eq!(apply(&server, "configmaps/a", "fieldManager=m1", &body).await.code, 201);
    let refused = apply(&server, "configmaps/a", "fieldManager=m2", &map(data(9000, "y"))).await;
    assert_eq!(refused.code, 409);
    assert!(refused.message().starts_with("Apply failed with 9000 conflicts: "));
    assert!(refused.body.to_string().len() < 1 << 20, "{}", refused.body.to_string().len());
    // The sets of fields of a wider one are not built.
    let mut wide = map(data(30_000, "x"));
    wide["metadata"]["name"] = json!("b");
    let refused = apply(&server, "configmaps/b", "fieldManager=m1", &wide).await;
    assert_eq!(refused.code, 400);
    assert!(refused.message().contains("too many for server-side apply"), "{}", refused.message());
    let created = server.post(&format!("{NS}/configmaps"), wide).await;
    assert_eq!(created.code, 201, "{}", created.message());
    assert_eq!(created.body["metadata"]["managedFields"], Value::Null);
    // deeper than the parser of what is stored goes
    let deep = format!("{}1{}", "{\"a\":".repeat(5000), "}".repeat(5000));
    for kind in [APPLY, "application/merge-patch+json"] {
        let path = format!("{NS}/configmaps/a?fieldManager=m1");
        let refused = server.send("PATCH", &path, kind, deep.clone()).await;
        assert_eq!(refused.code, 400, "{kind}");
    }
}
