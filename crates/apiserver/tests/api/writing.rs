use std::sync::Arc;

use podwright_apiserver::{Clock, Limits, Store};
use serde_json::json;

use super::test_server::{NS, TestServer, pod};

#[tokio::test(start_paused = true)]
async fn new_object_gets_its_identity_from_the_server() {
    let test_server = TestServer::new().await;
    let sent = json!({"metadata": {"name": "a", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z",
        "generation": 9, "deletionTimestamp": "2001-01-01T00:00:00Z", "selfLink": "x",
        "managedFields": [{"manager": "m"}]}});
    let created = test_server.post(&format!("{NS}/configmaps"), sent).await.ok();
    let meta = &created.body["metadata"];
    assert_eq!(created.code, 201);
    assert_eq!(meta["uid"].as_str().unwrap().len(), 36);
    assert_eq!(meta["creationTimestamp"], "2023-11-14T22:13:20Z");
    for absent in ["generation", "deletionTimestamp", "selfLink"] {
        assert_eq!(meta.get(absent), None, "{absent}");
    }
    assert_eq!(meta["managedFields"][0]["manager"], "unknown", "an invalid list is ignored");
    assert_eq!(test_server.get(&format!("{NS}/configmaps/a")).await.body, created.body);
}

#[tokio::test(start_paused = true)]
async fn invalid_creations_are_refused() {
    let test_server = TestServer::new().await;
    test_server.map("there").await;
    let maps = format!("{NS}/configmaps");
    for (case, path, body, code, message) in [
        (
            "there already",
            &*maps,
            json!({"metadata": {"name": "there"}}),
            409,
            "configmaps \"there\" already exists",
        ),
        (
            "with a version",
            &maps,
            json!({"metadata": {"name": "v", "resourceVersion": "5"}}),
            500,
            "resourceVersion should not be set on objects to be created",
        ),
        (
            "nameless",
            &maps,
            json!({"metadata": {}}),
            422,
            "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required",
        ),
        (
            "another kind",
            &maps,
            json!({"kind": "Secret", "metadata": {"name": "s"}}),
            400,
            "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion",
        ),
        (
            "account absent",
            &format!("{NS}/pods"),
            json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "nobody",
                "containers": [{"name": "c", "image": "i"}]}}),
            403,
            "pods \"p\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found",
        ),
        (
            "class absent",
            &format!("{NS}/pods"),
            json!({"metadata": {"name": "p"}, "spec": {"priorityClassName": "none",
                "containers": [{"name": "c", "image": "i"}]}}),
            403,
            "pods \"p\" is forbidden: no PriorityClass with name none was found",
        ),
    ] {
        let response = test_server.post(path, body).await;
        assert_eq!((response.code, response.message()), (code, message), "{case}");
    }
    let service =
        test_server.post(&format!("{NS}/services"), json!({"metadata": {"name": "s"}})).await;
    assert_eq!(service.code, 405);
    assert!(service.message().starts_with("services are read-only here"), "{}", service.message());
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let web = format!("{deployments}/web");
    for (method, path, code) in [
        ("POST", deployments, 405),
        ("PATCH", &web, 405),
        ("GET", deployments, 404),
        ("GET", &web, 404),
        ("DELETE", &web, 404),
    ] {
        let refused = test_server.send(method, path, "application/json", "{}".to_owned()).await;
        assert_eq!(refused.code, code, "{method} {path}");
        let message = refused.message();
        assert!(message.starts_with("Deployment is not served by podwright"), "{message}");
        assert!(message.contains("Instead: create a Pod from spec.template"), "{message}");
    }
    let other = test_server.get("/apis/apps/v1/controllerrevisions").await;
    assert_eq!(other.code, 404);
    assert!(other.message().contains("controllerrevisions.apps is not served here"));
}

#[tokio::test(start_paused = true)]
async fn names_are_generated_until_one_is_free() {
    let test_server = TestServer::new().await;
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let created = test_server
            .post(&format!("{NS}/configmaps"), json!({"metadata": {"generateName": "g-"}}))
            .await
            .ok();
        let name = created.body["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(name.len() == 7 && name.starts_with("g-"), "{name}");
        assert!(names.insert(name));
    }
}

#[tokio::test(start_paused = true)]
async fn update_is_conditional_on_the_version_it_names() {
    let test_server = TestServer::new().await;
    let created = test_server.map("a").await;
    let path = format!("{NS}/configmaps/a");
    let with = |k: &str, version: Option<&str>| {
        let mut map = json!({"metadata": {"name": "a"}, "data": {"k": k}});
        if let Some(version) = version {
            map["metadata"]["resourceVersion"] = version.into();
        }
        map
    };
    let first = test_server.put(&path, with("1", Some(&created.version()))).await.ok();
    let stale = test_server.put(&path, with("2", Some(&created.version()))).await;
    assert_eq!(stale.code, 409);
    let unconditional = test_server.put(&path, with("3", None)).await.ok();
    assert_ne!(unconditional.version(), first.version());
    let same = test_server.put(&path, with("3", Some(&unconditional.version()))).await.ok();
    assert_eq!(same.version(), unconditional.version(), "an update without changes is not written");
    let patch = json!({"metadata": {"resourceVersion": created.version()}, "data": {"k": "4"}});
    assert_eq!(test_server.merge(&path, patch).await.code, 409, "a patch may name a version too");
    assert_eq!(test_server.get(&path).await.body["data"]["k"], "3");
}

#[tokio::test(start_paused = true)]
async fn identity_of_an_object_cannot_be_changed() {
    let test_server = TestServer::new().await;
    test_server.map("a").await;
    let path = format!("{NS}/configmaps/a");
    for (case, response, code) in [
        ("another name", test_server.put(&path, json!({"metadata": {"name": "b"}})).await, 400),
        (
            "another namespace",
            test_server.put(&path, json!({"metadata": {"name": "a", "namespace": "x"}})).await,
            400,
        ),
        (
            "another uid",
            test_server.put(&path, json!({"metadata": {"name": "a", "uid": "x"}})).await,
            409,
        ),
        ("uid patched", test_server.merge(&path, json!({"metadata": {"uid": "x"}})).await, 422),
        ("name patched", test_server.merge(&path, json!({"metadata": {"name": "x"}})).await, 400),
        (
            "birthday patched",
            test_server
                .merge(&path, json!({"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}}))
                .await,
            422,
        ),
        (
            "not there",
            test_server
                .put(&format!("{NS}/configmaps/none"), json!({"metadata": {"name": "none"}}))
                .await,
            404,
        ),
        (
            "not there, patched",
            test_server.merge(&format!("{NS}/configmaps/none"), json!({})).await,
            404,
        ),
    ] {
        assert_eq!(response.code, code, "{case}: {}", response.body);
    }
    // what a client leaves out is kept
    let uid = test_server.get(&path).await.body["metadata"]["uid"].clone();
    let put = test_server.put(&path, json!({"data": {"k": "v"}})).await.ok();
    assert_eq!(put.body["metadata"]["uid"], uid);
    // and a lease is created by an update
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    let made = test_server.put(lease, json!({"metadata": {"name": "n1"}})).await;
    assert_eq!(made.code, 201);
    let renewed =
        json!({"metadata": {"resourceVersion": made.version()}, "spec": {"holderIdentity": "n1"}});
    assert_eq!(test_server.put(lease, renewed).await.code, 200);
    assert_eq!(
        test_server.put(lease, json!({"spec": {"holderIdentity": "n2"}})).await.message(),
        "leases.coordination.k8s.io \"n1\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for \
         an update"
    );
}

#[tokio::test(start_paused = true)]
async fn spec_and_status_are_written_by_separate_requests() {
    let test_server = TestServer::new().await;
    let path = format!("{NS}/pods/a");
    test_server.pod("a", "n1").await;
    let generation = |response: &super::test_server::TestResponse| {
        response.body["metadata"]["generation"].as_i64().unwrap()
    };
    let phase = json!({"status": {"phase": "Running"}, "spec": {"containers": [{"name": "c", "image": "other"}]}});
    let status = test_server.strategic(&format!("{path}/status"), phase.clone()).await.ok();
    assert_eq!(status.body["status"]["phase"], "Running");
    assert_eq!(status.body["spec"]["containers"][0]["image"], "busybox");
    assert_eq!(status.body["status"]["qosClass"], "BestEffort", "the class stays");
    assert_eq!(generation(&status), 1);
    let spec = test_server
        .strategic(&path, json!({"status": {"phase": "Failed"}, "spec": {"containers": [{"name": "c", "image": "other"}]}}))
        .await
        .ok();
    assert_eq!(spec.body["status"]["phase"], "Running");
    assert_eq!(generation(&spec), 2);
    let labelled = test_server
        .merge(&path, json!({"metadata": {"labels": {"x": "y"}, "generation": 7}}))
        .await
        .ok();
    assert_eq!(generation(&labelled), 2);
    // a client that does not know observedGeneration does not clear it
    let observed = json!({"status": {"observedGeneration": 2, "conditions": [
        {"type": "Ready", "status": "True", "observedGeneration": 2}]}});
    test_server.strategic(&format!("{path}/status"), observed).await.ok();
    let old = json!({"status": {"observedGeneration": null, "conditions": [{"type": "Ready", "status": "False"}]}});
    let kept = test_server.merge(&format!("{path}/status"), old).await.ok();
    assert_eq!(kept.body["status"]["observedGeneration"], 2);
    assert_eq!(kept.body["status"]["conditions"][0]["observedGeneration"], 2);
    // a resize changes resources, and nothing else in the request
    let mut sized = pod("sized", "n1");
    sized["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    test_server.post(&format!("{NS}/pods"), sized).await.ok();
    let wanted = json!({"metadata": {"labels": {"z": "z"}}, "spec": {"containers": [{"name": "c", "image": "other",
        "resources": {"requests": {"cpu": "2"}}}]}});
    let resized = test_server.strategic(&format!("{NS}/pods/sized/resize"), wanted).await.ok();
    assert_eq!(resized.body["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    assert_eq!(resized.body["spec"]["containers"][0]["image"], "busybox");
    assert_eq!(resized.body["metadata"]["labels"].get("z"), None);
    assert_eq!(generation(&resized), 2);
    let more = json!({"spec": {"containers": [{"name": "d", "image": "x"}]}});
    assert_eq!(test_server.strategic(&format!("{NS}/pods/sized/resize"), more).await.code, 422);
    // the same for a node's spec and a namespace's finalizers
    test_server.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.ok();
    let node = test_server
        .merge(
            "/api/v1/nodes/n1/status",
            json!({"spec": {"unschedulable": true}, "status": {"capacity": {"cpu": "2"}}}),
        )
        .await
        .ok();
    assert_eq!(
        (node.body["spec"].get("unschedulable"), &node.body["status"]["capacity"]["cpu"]),
        (None, &json!("2"))
    );
    let namespace = test_server
        .merge("/api/v1/namespaces/default", json!({"spec": {"finalizers": []}}))
        .await
        .ok();
    assert_eq!(namespace.body["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(test_server.get(&format!("{path}/status")).await.body["kind"], "Pod");
}

#[tokio::test(start_paused = true)]
async fn dry_run_returns_the_result_and_writes_nothing() {
    let test_server = TestServer::new().await;
    test_server.map("a").await;
    test_server.pod("p", "n1").await;
    let before = test_server.server_revision().await;
    let path = format!("{NS}/configmaps");
    let created = test_server
        .post(&format!("{path}?dryRun=All"), json!({"metadata": {"name": "b"}}))
        .await
        .ok();
    assert_eq!(created.body["metadata"].get("resourceVersion"), None);
    assert_eq!(
        test_server
            .post(&format!("{path}?dryRun=All"), json!({"metadata": {"name": "a"}}))
            .await
            .code,
        409
    );
    let patched =
        test_server.merge(&format!("{path}/a?dryRun=All"), json!({"data": {"k": "v"}})).await.ok();
    assert_eq!(patched.body["data"]["k"], "v");
    test_server.put(&format!("{path}/a?dryRun=All"), json!({"data": {"k": "v"}})).await.ok();
    test_server.delete(&format!("{path}/a?dryRun=All")).await.ok();
    test_server.delete(&format!("{path}?dryRun=All")).await.ok();
    let deleting = test_server.delete(&format!("{NS}/pods/p?dryRun=All")).await.ok();
    assert_eq!(deleting.body["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(test_server.server_revision().await, before);
    assert_eq!(
        test_server
            .post(&format!("{path}?dryRun=Some"), json!({"metadata": {"name": "b"}}))
            .await
            .code,
        422
    );
}

impl TestServer {
    async fn server_revision(&self) -> String {
        self.get("/api/v1/namespaces").await.version()
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_dropped_warned_about_or_refused() {
    let test_server = TestServer::new().await;
    let path = format!("{NS}/pods");
    let mut odd = pod("odd", "");
    odd["spec"]["foo"] = json!(1);
    let strict = test_server.post(&format!("{path}?fieldValidation=Strict"), odd.clone()).await;
    assert_eq!(
        (strict.code, strict.message()),
        (
            400,
            "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.foo\""
        )
    );
    let warned = test_server.post(&path, odd.clone()).await.ok();
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"spec.foo\\\"\"");
    assert_eq!(warned.body["spec"].get("foo"), None);
    let patch = json!({"spec": {"bar": 1}});
    let silent =
        test_server.merge(&format!("{path}/odd?fieldValidation=Ignore"), patch.clone()).await.ok();
    assert!(!silent.headers.contains_key("warning"));
    let refused =
        test_server.strategic(&format!("{path}/odd?fieldValidation=Strict"), patch.clone()).await;
    assert_eq!(
        refused.message(),
        " \"\" is invalid: patch: Invalid value: \"map[spec:map[bar:1]]\": strict decoding error: unknown field \"spec.bar\""
    );
    let twice = r#"{"metadata":{"labels":{"a":"b","a":"c"}}}"#.to_owned();
    let warned = test_server
        .send("PATCH", &format!("{path}/odd"), "application/merge-patch+json", twice)
        .await
        .ok();
    assert_eq!(warned.headers["warning"], "299 - \"duplicate field \\\"metadata.labels.a\\\"\"");
    let strict = test_server.merge(&format!("{path}/odd?fieldValidation=Strict"), patch).await;
    assert!(
        strict.message().contains("strict decoding error: unknown field \"spec.bar\""),
        "{}",
        strict.message()
    );
    assert_eq!(test_server.post(&format!("{path}?fieldValidation=Maybe"), odd).await.code, 422);
}

#[tokio::test(start_paused = true)]
async fn pod_is_bound_only_once() {
    let test_server = TestServer::new().await;
    test_server.pod("a", "").await;
    let binding = |node: &str| json!({"metadata": {"name": "a", "annotations": {"by": "me"}}, "target": {"kind": "Node", "name": node}});
    let path = format!("{NS}/pods/a/binding");
    let nowhere = test_server.post(&path, json!({"metadata": {"name": "a"}})).await;
    assert_eq!((nowhere.code, nowhere.message()), (500, "target.name: Required value"));
    assert_eq!(test_server.post(&path, json!({"target": {"name": "n1"}})).await.code, 400);
    let bound = test_server.post(&path, binding("n1")).await.ok();
    assert_eq!((bound.code, &bound.body["status"]), (201, &json!("Success")));
    let pod = test_server.get(&format!("{NS}/pods/a")).await;
    assert_eq!(pod.body["spec"]["nodeName"], "n1");
    assert_eq!(pod.body["metadata"]["annotations"]["by"], "me");
    assert_eq!(pod.body["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(test_server.post(&path, binding("n2")).await.code, 409);
    assert_eq!(
        test_server
            .post(
                &format!("{NS}/pods/none/binding"),
                json!({"metadata": {"name": "none"}, "target": {"name": "n"}})
            )
            .await
            .code,
        404
    );
    test_server.delete(&format!("{NS}/pods/a")).await.ok();
    assert_eq!(
        test_server.post(&path, binding("n2")).await.message(),
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is being deleted, cannot be assigned to a host"
    );
}

#[tokio::test(start_paused = true)]
async fn new_pod_gets_service_account_priority_and_runtime_class() {
    let test_server = TestServer::new().await;
    let accounts = format!("{NS}/serviceaccounts");
    test_server
        .merge(&format!("{accounts}/default"), json!({"imagePullSecrets": [{"name": "pull"}]}))
        .await
        .ok();
    test_server
        .post("/apis/node.k8s.io/v1/runtimeclasses", json!({"metadata": {"name": "vm"}, "handler": "vm",
            "overhead": {"podFixed": {"cpu": "100m"}}, "scheduling": {"nodeSelector": {"vm": "yes"}}}))
        .await
        .ok();
    let mut wanted = pod("a", "");
    wanted["spec"]["runtimeClassName"] = json!("vm");
    wanted["spec"]["priorityClassName"] = json!("system-node-critical");
    let created = test_server.post(&format!("{NS}/pods"), wanted).await.ok();
    let spec = &created.body["spec"];
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(spec["priority"], 2_000_001_000);
    assert_eq!(spec["overhead"], json!({"cpu": "100m"}));
    assert_eq!(spec["nodeSelector"], json!({"vm": "yes"}));
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(spec["volumes"].as_array().unwrap().len(), 1);
    // a pod that contradicts its class is refused
    let mut other = pod("c", "");
    other["spec"]["runtimeClassName"] = json!("vm");
    other["spec"]["nodeSelector"] = json!({"vm": "no"});
    assert_eq!(
        test_server.post(&format!("{NS}/pods"), other).await.message(),
        "pods \"c\" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; \
         pod.spec.nodeSelector[vm] = no"
    );
    let mut other = pod("d", "");
    other["spec"]["overhead"] = json!({"cpu": "1"});
    assert_eq!(
        test_server.post(&format!("{NS}/pods"), other).await.message(),
        "pods \"d\" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
    );
    // a pod that wants no token gets none
    let mut wanted = pod("b", "");
    wanted["spec"]["automountServiceAccountToken"] = json!(false);
    let created = test_server.post(&format!("{NS}/pods"), wanted).await.ok();
    assert_eq!(created.body["spec"].get("volumes"), None);
    // a client that replaces it may leave out what the server set
    let mut mine = created.body.clone();
    for chosen in ["priority", "preemptionPolicy", "tolerations"] {
        mine["spec"].as_object_mut().unwrap().remove(chosen);
    }
    mine["metadata"]["labels"]["x"] = json!("y");
    let replaced = test_server.put(&format!("{NS}/pods/b"), mine).await.ok();
    assert_eq!(replaced.body["spec"], created.body["spec"]);
    // a mirror pod gets nothing from the API
    let mut mirror = pod("m", "n1");
    mirror["metadata"]["annotations"] =
        json!({"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"});
    let created = test_server.post(&format!("{NS}/pods"), mirror.clone()).await.ok();
    assert_eq!(created.body["spec"].get("volumes"), None);
    mirror["spec"]["serviceAccountName"] = json!("default");
    assert_eq!(
        test_server.post(&format!("{NS}/pods"), mirror).await.message(),
        "pods \"m\" is forbidden: a mirror pod may not reference service accounts"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_patches_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store =
        Store::open(&directory.path().join("s"), Limits::default(), Clock::system()).unwrap();
    let test_server = Arc::new(TestServer::on(store, Clock::system()).await);
    test_server.map("a").await;
    let patchers: Vec<_> = (0..24)
        .map(|i| {
            let test_server = test_server.clone();
            let patch = json!({"data": {format!("k{i}"): i.to_string()}});
            tokio::spawn(async move {
                test_server.merge(&format!("{NS}/configmaps/a"), patch).await.code
            })
        })
        .collect();
    for patcher in patchers {
        assert_eq!(patcher.await.unwrap(), 200);
    }
    let data = test_server.get(&format!("{NS}/configmaps/a")).await.body["data"].clone();
    assert_eq!(data.as_object().map(serde_json::Map::len), Some(24), "{data}");
}

/// `number` is the field number; all content here is shorter than 128 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn protobuf(kind: &str, object: &[u8]) -> String {
    let types = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    let body = [b"k8s\0".to_vec(), field(1, &types), field(2, object)].concat();
    String::from_utf8(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn protobuf_bodies_are_accepted() {
    let test_server = TestServer::new().await;
    let kind = "application/vnd.kubernetes.protobuf";
    let entry = [field(1, b"k"), field(2, b"v")].concat();
    let map = [field(1, &field(1, b"a")), field(2, &entry)].concat();
    let path = format!("{NS}/configmaps");
    let created = test_server.send("POST", &path, kind, protobuf("ConfigMap", &map)).await.ok();
    assert_eq!(created.body["data"], json!({"k": "v"}));
    let another = test_server.send("POST", &path, kind, protobuf("Secret", &map)).await;
    assert_eq!(another.code, 400, "{}", another.body);
    test_server.pod("p", "n1").await;
    let options = protobuf("DeleteOptions", &[1 << 3, 5]);
    let deleting = test_server.send("DELETE", &format!("{NS}/pods/p"), kind, options).await.ok();
    assert_eq!(deleting.body["metadata"]["deletionGracePeriodSeconds"], 5);
}
