//! In-place resize of a running pod, on a real runtime and in real cgroups.
//!
//! The bed's API server may be older than in-place resize. It stores objects as JSON here, and the
//! first test edits the stored object as a newer server would: the agent cannot tell the
//! difference. The second test uses the embedded API server.

use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams};
use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::Release;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
use crate::privilege::{needs_root, skipped};
use crate::standalone::Standalone;

/// The first release whose API server supports it.
const RESIZES: u32 = 33;

/// Changes the resources of the pod's only container. Returns the new generation.
async fn resize(cluster: &Cluster, name: &str, resources: Value) -> i64 {
    if cluster.bed.control_plane().unwrap().minor_version().await.unwrap() < RESIZES {
        resize_in_store(cluster, name, resources).await;
    } else {
        let container = json!({ "name": "app", "resources": resources });
        let patch = Patch::Strategic(json!({ "spec": { "containers": [container] } }));
        let params = PatchParams::default();
        cluster.pods().patch_subresource("resize", name, &params, &patch).await.unwrap();
    }
    cluster.pods().get(name).await.unwrap().metadata.generation.unwrap_or(0)
}

/// Changes the resources of a pod in etcd, bypassing the API server.
async fn resize_in_store(cluster: &Cluster, name: &str, resources: Value) {
    let base64 = |bytes: Vec<u8>| serde_json::to_value(ByteString(bytes)).unwrap();
    let key = base64(format!("/registry/pods/{NAMESPACE}/{name}").into_bytes());
    let plane = cluster.bed.control_plane().unwrap();
    let found = plane.ask_etcd("range", &json!({ "key": key })).await.unwrap();
    let ByteString(stored) = serde_json::from_value(found["kvs"][0]["value"].clone()).unwrap();
    let mut object: Value = serde_json::from_slice(&stored).unwrap();
    object["spec"]["containers"][0]["resources"] = resources;
    let value = base64(object.to_string().into_bytes());
    plane.ask_etcd("put", &json!({ "key": key, "value": value })).await.unwrap();
}

fn resources(cpu: [&str; 2], memory: [&str; 2]) -> Value {
    json!({
        "requests": { "cpu": cpu[0], "memory": memory[0] },
        "limits": { "cpu": cpu[1], "memory": memory[1] },
    })
}

/// The limits that the kernel enforces for a burstable pod below `root`, or for one of its
/// containers.
fn enforced(root: &str, uid: &str, container: &str) -> [String; 3] {
    let read = |hierarchy: &str, file: &str| {
        let group = format!("/sys/fs/cgroup/{hierarchy}{root}/kubepods/burstable/pod{uid}");
        let path = format!("{group}/{container}/{file}");
        std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
    };
    [
        read("cpu", "cpu.shares"),
        read("cpu", "cpu.cfs_quota_us"),
        read("memory", "memory.limit_in_bytes"),
    ]
}

async fn until_enforced(root: &str, uid: &str, container: &str, want: [&str; 3]) {
    let same = async || {
        let now = enforced(root, uid, container);
        anyhow::ensure!(now == want, "{container:?} has {now:?}");
        Ok(true)
    };
    wait::until_true(format!("{want:?}"), LIMIT, same).await.unwrap();
}

#[tokio::test]
async fn running_pod_is_resized_without_a_restart() {
    needs_root!();
    if !std::path::Path::new("/sys/fs/cgroup/cpu").exists() {
        return skipped("the test reads cgroup v1 files, this machine has v2");
    }
    let bed =
        Bed::builder().control_plane().apiserver_flag("--storage-media-type=application/json");
    let mut cluster = Cluster::on(bed).await;
    let mut web = pod("web", &["serve"]);
    web["spec"]["containers"][0]["resources"] = resources(["100m", "200m"], ["32Mi", "64Mi"]);
    cluster.create(web).await;
    let web = cluster.until("web", "ready", ready).await;
    let uid = web.metadata.uid.clone().unwrap();
    let id = container_id(&web);
    let root = cluster.agent.cgroup_root().to_owned();
    until_enforced(&root, &uid, "", ["102", "20000", "67108864"]).await;

    let generation = resize(&cluster, "web", resources(["150m", "300m"], ["32Mi", "128Mi"])).await;
    until_enforced(&root, &uid, "", ["153", "30000", "134217728"]).await;
    until_enforced(&root, &uid, &id, ["153", "30000", "134217728"]).await;
    let reported = |what: &str, cpu: &str, memory: &str, more: &str| {
        format!(
            "Pod resize {what}: {{\"containers\":[{{\"name\":\"app\",\"resources\":{{\
             \"limits\":{{\"cpu\":\"300m\",\"memory\":\"{memory}\"}},\
             \"requests\":{{\"cpu\":\"{cpu}\",\"memory\":\"32Mi\"}}}}}}],\"generation\":{generation}{more}}}"
        )
    };
    for (reason, what) in [("ResizeStarted", "started"), ("ResizeCompleted", "completed")] {
        cluster.until_event("web", reason, &reported(what, "150m", "128Mi", "")).await;
    }

    // A killed and restarted agent neither reverts nor repeats the resize.
    cluster.agent.kill().await.unwrap();
    cluster.agent.restart().await.unwrap();
    cluster.agent.healthy().await.unwrap();

    // A current API server rejects what the node can never provide; otherwise the agent detects it.
    resize_in_store(&cluster, "web", resources(["1000", "1000"], ["32Mi", "128Mi"])).await;
    let condition = |status: &Value, kind: &str| {
        let mut all = status["conditions"].as_array().into_iter().flatten();
        all.find(|c| c["type"] == kind).map(|c| c["reason"].clone())
    };
    let deferred =
        |status: &Value| condition(status, "PodResizePending") == Some("Deferred".into());
    cluster.until("web", "the resize to be deferred", deferred).await;
    assert_eq!(enforced(&root, &uid, &id), ["153", "30000", "134217728"]);

    // Two pages of memory: too little to run anything.
    resize(&cluster, "web", resources(["150m", "300m"], ["4Ki", "8Ki"])).await;
    let refused = |status: &Value| condition(status, "PodResizeInProgress") == Some("Error".into());
    let web = cluster.until("web", "the resize to be rejected", refused).await;
    assert_eq!(container_id(&web), id, "nothing restarted");
    assert_eq!(enforced(&root, &uid, &id), ["153", "30000", "134217728"]);

    resize(&cluster, "web", resources(["50m", "100m"], ["32Mi", "64Mi"])).await;
    until_enforced(&root, &uid, "", ["51", "10000", "67108864"]).await;
    until_enforced(&root, &uid, &id, ["51", "10000", "67108864"]).await;
    let over = |status: &Value| {
        condition(status, "PodResizeInProgress").is_none()
            && condition(status, "PodResizePending").is_none()
    };
    let web = cluster.until("web", "resized", over).await;
    assert_eq!(container_id(&web), id, "nothing restarted");
    cluster.close();
}

fn container_id(pod: &k8s_openapi::api::core::v1::Pod) -> String {
    let status = serde_json::to_value(&pod.status).unwrap();
    let id = status["containerStatuses"][0]["containerID"].as_str().unwrap();
    id.strip_prefix("containerd://").unwrap().to_owned()
}

/// On the embedded API server, which supports both.
#[tokio::test]
async fn running_init_container_and_pod_level_resources_are_resized() {
    needs_root!();
    if !std::path::Path::new("/sys/fs/cgroup/cpu").exists() {
        return skipped("the test reads cgroup v1 files, this machine has v2");
    }
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let (root, kubectl) = (node.cgroup_root(), node.kubectl(Release::V1_36));
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();
    let resize = async |patch: Value| {
        let patch = format!("--patch={patch}");
        run(&["patch", "pod", "whole", "--subresource=resize", &patch]).await
    };
    let shown = async |field: &str| {
        let path = format!("-ojsonpath={{.{field}}}");
        run(&["get", "pod", "whole", &path]).await
    };
    let until_shown = async |field: &str, want: &str| {
        let same = async || {
            let now = shown(field).await;
            anyhow::ensure!(now == want, "{field} is {now:?}");
            Ok(true)
        };
        wait::until_true(format!("{field} to be {want:?}"), LIMIT, same).await.unwrap();
    };

    let container = |name: &str, script: &str| {
        json!({
            "name": name, "image": "localhost/podwright/test:latest", "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
        })
    };
    let cpu = |request: &str, limit: &str| json!({ "requests": { "cpu": request }, "limits": { "cpu": limit } });
    // It outlives the command that lets it end: when its last process exits, all others are killed.
    let mut first = container("first", "until [ -e /go ]; do sleep 0.1; done; sleep 3");
    first["resources"] = cpu("50m", "100m");
    let spec = json!({
        "terminationGracePeriodSeconds": 0,
        "resources": resources(["100m", "200m"], ["32Mi", "64Mi"]),
        "initContainers": [first], "containers": [container("main", "sleep 1000")],
    });
    let whole =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "whole"}, "spec": spec});
    kubectl.run_with(&["apply", "-f", "-"], &whole.to_string()).await.unwrap();
    let started = "status.initContainerStatuses[0].state.running.startedAt";
    let runs = async || Ok(!shown(started).await.is_empty());
    wait::until_true("the init container to run", LIMIT, runs).await.unwrap();
    let uid = shown("metadata.uid").await;
    let id = async |kind: &str| {
        let id = shown(&format!("status.{kind}[0].containerID")).await;
        id.strip_prefix("containerd://").unwrap().to_owned()
    };
    let init = id("initContainerStatuses").await;
    until_enforced(&root, &uid, &init, ["51", "10000", "67108864"]).await;

    let more = cpu("75m", "150m");
    resize(json!({"spec": {"initContainers": [{"name": "first", "resources": more}]}})).await;
    until_enforced(&root, &uid, &init, ["76", "15000", "67108864"]).await;
    assert_eq!(id("initContainerStatuses").await, init, "nothing restarted");
    run(&["exec", "whole", "-c", "first", "--", "touch", "/go"]).await;
    run(&["wait", "--for=condition=Ready", "pod/whole", "--timeout=180s"]).await;
    let main = id("containerStatuses").await;
    until_enforced(&root, &uid, "", ["102", "20000", "67108864"]).await;

    resize(json!({"spec": {"resources": resources(["150m", "300m"], ["32Mi", "128Mi"])}})).await;
    until_enforced(&root, &uid, "", ["153", "30000", "134217728"]).await;
    // It has no resources of its own, so the pod's limits apply, and its request as well.
    until_enforced(&root, &uid, &main, ["307", "30000", "134217728"]).await;
    until_shown("status.resources.limits.memory", "128Mi").await;
    until_shown("status.conditions[?(@.type==\"PodResizeInProgress\")].type", "").await;

    // Two pages of memory: an impossible size is shown as allocated, but not as actuated.
    resize(json!({"spec": {"resources": resources(["150m", "300m"], ["4Ki", "8Ki"])}})).await;
    until_shown("status.conditions[?(@.type==\"PodResizeInProgress\")].reason", "Error").await;
    assert_eq!(shown("status.allocatedResources.memory").await, "4Ki");
    assert_eq!(shown("status.resources.limits.memory").await, "128Mi");
    assert_eq!(enforced(&root, &uid, "")[2], "134217728");
    assert_eq!(id("containerStatuses").await, main, "nothing restarted");
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}
