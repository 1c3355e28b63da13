use std::sync::Arc;

use podwright_apiserver::{Clock, Limits, Store};
use serde_json::json;

use super::world::{NS, World, pod};

#[tokio::test(start_paused = true)]
async fn a_new_object_gets_its_identity_from_the_server() {
    let world = World::new().await;
    let sent = json!({"metadata": {"name": "a", "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z",
        "generation": 9, "deletionTimestamp": "2001-01-01T00:00:00Z", "selfLink": "x",
        "managedFields": [{"manager": "m"}]}});
    let created = world.post(&format!("{NS}/configmaps"), sent).await.ok();
    let meta = &created.body["metadata"];
    assert_eq!(created.code, 201);
    assert_eq!(meta["uid"].as_str().unwrap().len(), 36);
    assert_eq!(meta["creationTimestamp"], "2023-11-14T22:13:20Z");
    for absent in ["generation", "deletionTimestamp", "selfLink", "managedFields"] {
        assert_eq!(meta.get(absent), None, "{absent}");
    }
    assert_eq!(world.get(&format!("{NS}/configmaps/a")).await.body, created.body);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_created_is_refused() {
    let world = World::new().await;
    world.map("there").await;
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
        let answer = world.post(path, body).await;
        assert_eq!((answer.code, answer.message()), (code, message), "{case}");
    }
    let service = world.post(&format!("{NS}/services"), json!({"metadata": {"name": "s"}})).await;
    assert_eq!(service.code, 405);
    assert!(service.message().starts_with("services are read-only here"), "{}", service.message());
    let unserved = world.post("/apis/apps/v1/namespaces/default/deployments", json!({})).await;
    assert_eq!(unserved.code, 404);
    assert!(
        unserved.message().contains("deployments.apps is not served here"),
        "{}",
        unserved.message()
    );
}

#[tokio::test(start_paused = true)]
async fn names_are_generated_until_one_is_free() {
    let world = World::new().await;
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let created = world
            .post(&format!("{NS}/configmaps"), json!({"metadata": {"generateName": "g-"}}))
            .await
            .ok();
        let name = created.body["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(name.len() == 7 && name.starts_with("g-"), "{name}");
        assert!(names.insert(name));
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_is_conditional_on_the_version_it_names() {
    let world = World::new().await;
    let created = world.map("a").await;
    let path = format!("{NS}/configmaps/a");
    let with = |k: &str, version: Option<&str>| {
        let mut map = json!({"metadata": {"name": "a"}, "data": {"k": k}});
        if let Some(version) = version {
            map["metadata"]["resourceVersion"] = version.into();
        }
        map
    };
    let first = world.put(&path, with("1", Some(&created.version()))).await.ok();
    let stale = world.put(&path, with("2", Some(&created.version()))).await;
    assert_eq!(stale.code, 409);
    let unconditional = world.put(&path, with("3", None)).await.ok();
    assert_ne!(unconditional.version(), first.version());
    let same = world.put(&path, with("3", Some(&unconditional.version()))).await.ok();
    assert_eq!(same.version(), unconditional.version(), "what changes nothing is not written");
    let patch = json!({"metadata": {"resourceVersion": created.version()}, "data": {"k": "4"}});
    assert_eq!(world.merge(&path, patch).await.code, 409, "a patch may name a version too");
    assert_eq!(world.get(&path).await.body["data"]["k"], "3");
}

#[tokio::test(start_paused = true)]
async fn who_an_object_is_cannot_be_changed() {
    let world = World::new().await;
    world.map("a").await;
    let path = format!("{NS}/configmaps/a");
    for (case, answer, code) in [
        ("another name", world.put(&path, json!({"metadata": {"name": "b"}})).await, 400),
        (
            "another namespace",
            world.put(&path, json!({"metadata": {"name": "a", "namespace": "x"}})).await,
            400,
        ),
        (
            "another uid",
            world.put(&path, json!({"metadata": {"name": "a", "uid": "x"}})).await,
            409,
        ),
        ("uid patched", world.merge(&path, json!({"metadata": {"uid": "x"}})).await, 422),
        ("name patched", world.merge(&path, json!({"metadata": {"name": "x"}})).await, 400),
        (
            "birthday patched",
            world
                .merge(&path, json!({"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}}))
                .await,
            422,
        ),
        (
            "not there",
            world
                .put(&format!("{NS}/configmaps/none"), json!({"metadata": {"name": "none"}}))
                .await,
            404,
        ),
        ("not there, patched", world.merge(&format!("{NS}/configmaps/none"), json!({})).await, 404),
    ] {
        assert_eq!(answer.code, code, "{case}: {}", answer.body);
    }
    // what a client leaves out stays as it is
    let uid = world.get(&path).await.body["metadata"]["uid"].clone();
    let put = world.put(&path, json!({"data": {"k": "v"}})).await.ok();
    assert_eq!(put.body["metadata"]["uid"], uid);
    // and a lease is made by writing it
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
    let made = world.put(lease, json!({"metadata": {"name": "n1"}})).await;
    assert_eq!(made.code, 201);
    let renewed =
        json!({"metadata": {"resourceVersion": made.version()}, "spec": {"holderIdentity": "n1"}});
    assert_eq!(world.put(lease, renewed).await.code, 200);
    assert_eq!(
        world.put(lease, json!({"spec": {"holderIdentity": "n2"}})).await.message(),
        "leases.coordination.k8s.io \"n1\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for \
         an update"
    );
}

#[tokio::test(start_paused = true)]
async fn spec_and_status_are_written_at_their_own_addresses() {
    let world = World::new().await;
    let path = format!("{NS}/pods/a");
    world.pod("a", "n1").await;
    let generation =
        |answer: &super::world::Answer| answer.body["metadata"]["generation"].as_i64().unwrap();
    let phase = json!({"status": {"phase": "Running"}, "spec": {"containers": [{"name": "c", "image": "other"}]}});
    let status = world.strategic(&format!("{path}/status"), phase.clone()).await.ok();
    assert_eq!(status.body["status"]["phase"], "Running");
    assert_eq!(status.body["spec"]["containers"][0]["image"], "busybox");
    assert_eq!(status.body["status"]["qosClass"], "BestEffort", "the class stays");
    assert_eq!(generation(&status), 1);
    let spec = world
        .strategic(&path, json!({"status": {"phase": "Failed"}, "spec": {"containers": [{"name": "c", "image": "other"}]}}))
        .await
        .ok();
    assert_eq!(spec.body["status"]["phase"], "Running");
    assert_eq!(generation(&spec), 2);
    let labelled =
        world.merge(&path, json!({"metadata": {"labels": {"x": "y"}, "generation": 7}})).await.ok();
    assert_eq!(generation(&labelled), 2);
    // who does not know observedGeneration does not clear it
    let observed = json!({"status": {"observedGeneration": 2, "conditions": [
        {"type": "Ready", "status": "True", "observedGeneration": 2}]}});
    world.strategic(&format!("{path}/status"), observed).await.ok();
    let old = json!({"status": {"observedGeneration": null, "conditions": [{"type": "Ready", "status": "False"}]}});
    let kept = world.merge(&format!("{path}/status"), old).await.ok();
    assert_eq!(kept.body["status"]["observedGeneration"], 2);
    assert_eq!(kept.body["status"]["conditions"][0]["observedGeneration"], 2);
    // a resize changes resources, and nothing that comes with them
    let mut sized = pod("sized", "n1");
    sized["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    world.post(&format!("{NS}/pods"), sized).await.ok();
    let wanted = json!({"metadata": {"labels": {"z": "z"}}, "spec": {"containers": [{"name": "c", "image": "other",
        "resources": {"requests": {"cpu": "2"}}}]}});
    let resized = world.strategic(&format!("{NS}/pods/sized/resize"), wanted).await.ok();
    assert_eq!(resized.body["spec"]["containers"][0]["resources"]["requests"]["cpu"], "2");
    assert_eq!(resized.body["spec"]["containers"][0]["image"], "busybox");
    assert_eq!(resized.body["metadata"]["labels"].get("z"), None);
    assert_eq!(generation(&resized), 2);
    let more = json!({"spec": {"containers": [{"name": "d", "image": "x"}]}});
    assert_eq!(world.strategic(&format!("{NS}/pods/sized/resize"), more).await.code, 422);
    // a node's spec and a namespace's finalizers likewise
    world.post("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await.ok();
    let node = world
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
    let namespace =
        world.merge("/api/v1/namespaces/default", json!({"spec": {"finalizers": []}})).await.ok();
    assert_eq!(namespace.body["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(world.get(&format!("{path}/status")).await.body["kind"], "Pod");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_answers_and_writes_nothing() {
    let world = World::new().await;
    world.map("a").await;
    world.pod("p", "n1").await;
    let before = world.server_revision().await;
    let path = format!("{NS}/configmaps");
    let created =
        world.post(&format!("{path}?dryRun=All"), json!({"metadata": {"name": "b"}})).await.ok();
    assert_eq!(created.body["metadata"].get("resourceVersion"), None);
    assert_eq!(
        world.post(&format!("{path}?dryRun=All"), json!({"metadata": {"name": "a"}})).await.code,
        409
    );
    let patched =
        world.merge(&format!("{path}/a?dryRun=All"), json!({"data": {"k": "v"}})).await.ok();
    assert_eq!(patched.body["data"]["k"], "v");
    world.put(&format!("{path}/a?dryRun=All"), json!({"data": {"k": "v"}})).await.ok();
    world.delete(&format!("{path}/a?dryRun=All")).await.ok();
    world.delete(&format!("{path}?dryRun=All")).await.ok();
    let deleting = world.delete(&format!("{NS}/pods/p?dryRun=All")).await.ok();
    assert_eq!(deleting.body["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(world.server_revision().await, before);
    assert_eq!(
        world.post(&format!("{path}?dryRun=Some"), json!({"metadata": {"name": "b"}})).await.code,
        422
    );
}

impl World {
    async fn server_revision(&self) -> String {
        self.get("/api/v1/namespaces").await.version()
    }
}

#[tokio::test(start_paused = true)]
async fn fields_that_nobody_knows_are_dropped_warned_of_or_refused() {
    let world = World::new().await;
    let path = format!("{NS}/pods");
    let mut odd = pod("odd", "");
    odd["spec"]["foo"] = json!(1);
    let strict = world.post(&format!("{path}?fieldValidation=Strict"), odd.clone()).await;
    assert_eq!(
        (strict.code, strict.message()),
        (
            400,
            "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.foo\""
        )
    );
    let warned = world.post(&path, odd.clone()).await.ok();
    assert_eq!(warned.headers["warning"], "299 - \"unknown field \\\"spec.foo\\\"\"");
    assert_eq!(warned.body["spec"].get("foo"), None);
    let patch = json!({"spec": {"bar": 1}});
    let silent =
        world.merge(&format!("{path}/odd?fieldValidation=Ignore"), patch.clone()).await.ok();
    assert!(!silent.headers.contains_key("warning"));
    let refused =
        world.strategic(&format!("{path}/odd?fieldValidation=Strict"), patch.clone()).await;
    assert_eq!(
        refused.message(),
        " \"\" is invalid: patch: Invalid value: \"map[spec:map[bar:1]]\": strict decoding error: unknown field \"spec.bar\""
    );
    let twice = r#"{"metadata":{"labels":{"a":"b","a":"c"}}}"#.to_owned();
    let warned = world
        .send("PATCH", &format!("{path}/odd"), "application/merge-patch+json", twice)
        .await
        .ok();
    assert_eq!(warned.headers["warning"], "299 - \"duplicate field \\\"metadata.labels.a\\\"\"");
    let strict = world.merge(&format!("{path}/odd?fieldValidation=Strict"), patch).await;
    assert!(
        strict.message().contains("strict decoding error: unknown field \"spec.bar\""),
        "{}",
        strict.message()
    );
    assert_eq!(world.post(&format!("{path}?fieldValidation=Maybe"), odd).await.code, 422);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once_and_for_all() {
    let world = World::new().await;
    world.pod("a", "").await;
    let binding = |node: &str| json!({"metadata": {"name": "a", "annotations": {"by": "me"}}, "target": {"kind": "Node", "name": node}});
    let path = format!("{NS}/pods/a/binding");
    let nowhere = world.post(&path, json!({"metadata": {"name": "a"}})).await;
    assert_eq!((nowhere.code, nowhere.message()), (500, "target.name: Required value"));
    assert_eq!(world.post(&path, json!({"target": {"name": "n1"}})).await.code, 400);
    let bound = world.post(&path, binding("n1")).await.ok();
    assert_eq!((bound.code, &bound.body["status"]), (201, &json!("Success")));
    let pod = world.get(&format!("{NS}/pods/a")).await;
    assert_eq!(pod.body["spec"]["nodeName"], "n1");
    assert_eq!(pod.body["metadata"]["annotations"]["by"], "me");
    assert_eq!(pod.body["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(world.post(&path, binding("n2")).await.code, 409);
    assert_eq!(
        world
            .post(
                &format!("{NS}/pods/none/binding"),
                json!({"metadata": {"name": "none"}, "target": {"name": "n"}})
            )
            .await
            .code,
        404
    );
    world.delete(&format!("{NS}/pods/a")).await.ok();
    assert_eq!(
        world.post(&path, binding("n2")).await.message(),
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is being deleted, cannot be assigned to a host"
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_is_given_its_account_priority_and_runtime() {
    let world = World::new().await;
    let accounts = format!("{NS}/serviceaccounts");
    world
        .merge(&format!("{accounts}/default"), json!({"imagePullSecrets": [{"name": "pull"}]}))
        .await
        .ok();
    world
        .post("/apis/node.k8s.io/v1/runtimeclasses", json!({"metadata": {"name": "vm"}, "handler": "vm",
            "overhead": {"podFixed": {"cpu": "100m"}}, "scheduling": {"nodeSelector": {"vm": "yes"}}}))
        .await
        .ok();
    let mut wanted = pod("a", "");
    wanted["spec"]["runtimeClassName"] = json!("vm");
    wanted["spec"]["priorityClassName"] = json!("system-node-critical");
    let created = world.post(&format!("{NS}/pods"), wanted).await.ok();
    let spec = &created.body["spec"];
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(spec["priority"], 2_000_001_000);
    assert_eq!(spec["overhead"], json!({"cpu": "100m"}));
    assert_eq!(spec["nodeSelector"], json!({"vm": "yes"}));
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(spec["volumes"].as_array().unwrap().len(), 1);
    // one that wants no token gets none
    let mut wanted = pod("b", "");
    wanted["spec"]["automountServiceAccountToken"] = json!(false);
    let created = world.post(&format!("{NS}/pods"), wanted).await.ok();
    assert_eq!(created.body["spec"].get("volumes"), None);
    // who replaces it need not repeat what the server chose
    let mut mine = created.body.clone();
    for chosen in ["priority", "preemptionPolicy", "tolerations"] {
        mine["spec"].as_object_mut().unwrap().remove(chosen);
    }
    mine["metadata"]["labels"]["x"] = json!("y");
    let replaced = world.put(&format!("{NS}/pods/b"), mine).await.ok();
    assert_eq!(replaced.body["spec"], created.body["spec"]);
    // a mirror of a static pod has nothing from here
    let mut mirror = pod("m", "n1");
    mirror["metadata"]["annotations"] =
        json!({"kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"});
    let created = world.post(&format!("{NS}/pods"), mirror.clone()).await.ok();
    assert_eq!(created.body["spec"].get("volumes"), None);
    mirror["spec"]["serviceAccountName"] = json!("default");
    assert_eq!(
        world.post(&format!("{NS}/pods"), mirror).await.message(),
        "pods \"m\" is forbidden: a mirror pod may not reference service accounts"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn patches_at_the_same_time_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("s"), Limits::default(), Clock::system()).unwrap();
    let world = Arc::new(World::on(store, Clock::system()).await);
    world.map("a").await;
    let patchers: Vec<_> = (0..24)
        .map(|i| {
            let world = world.clone();
            let patch = json!({"data": {format!("k{i}"): i.to_string()}});
            tokio::spawn(
                async move { world.merge(&format!("{NS}/configmaps/a"), patch).await.code },
            )
        })
        .collect();
    for patcher in patchers {
        assert_eq!(patcher.await.unwrap(), 200);
    }
    let data = world.get(&format!("{NS}/configmaps/a")).await.body["data"].clone();
    assert_eq!(data.as_object().map(serde_json::Map::len), Some(24), "{data}");
}

/// `number` is a field's; everything here is shorter than 128 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

fn protobuf(kind: &str, object: &[u8]) -> String {
    let types = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
    let body = [b"k8s\0".to_vec(), field(1, &types), field(2, object)].concat();
    String::from_utf8(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn bodies_may_be_protobuf() {
    let world = World::new().await;
    let kind = "application/vnd.kubernetes.protobuf";
    let entry = [field(1, b"k"), field(2, b"v")].concat();
    let map = [field(1, &field(1, b"a")), field(2, &entry)].concat();
    let path = format!("{NS}/configmaps");
    let created = world.send("POST", &path, kind, protobuf("ConfigMap", &map)).await.ok();
    assert_eq!(created.body["data"], json!({"k": "v"}));
    let another = world.send("POST", &path, kind, protobuf("Secret", &map)).await;
    assert_eq!(another.code, 400, "{}", another.body);
    world.pod("p", "n1").await;
    let options = protobuf("DeleteOptions", &[1 << 3, 5]);
    let deleting = world.send("DELETE", &format!("{NS}/pods/p"), kind, options).await.ok();
    assert_eq!(deleting.body["metadata"]["deletionGracePeriodSeconds"], 5);
}
