//! Resources of a running pod change, on a real runtime and in real cgroups.
//!
//! The API server of the bed is older than in-place resize. It stores objects as JSON here, and
//! the test edits what it stored, as a newer one would have: the agent cannot tell the difference.

use http::Request;
use k8s_openapi::ByteString;
use podwright_e2e::agent::Agent;
use podwright_e2e::bed::Bed;
use podwright_e2e::http::{Tls, send};
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
use crate::privilege::needs_root;

const ETCD: &str = "http://127.0.0.1:2379";

async fn etcd(cluster: &Cluster, call: &str, body: Value) -> Value {
    let request = Request::post(format!("{ETCD}/v3/kv/{call}"));
    let request = request.body(body.to_string().into()).unwrap();
    let answer = send(cluster.bed.netns(), request, &Tls::default()).await.unwrap();
    serde_json::from_slice(&answer.body).unwrap()
}

/// Changes the resources of a pod behind the API server's back.
async fn resize(cluster: &Cluster, name: &str, resources: Value) {
    let base64 = |bytes: Vec<u8>| serde_json::to_value(ByteString(bytes)).unwrap();
    let key = base64(format!("/registry/pods/{NAMESPACE}/{name}").into_bytes());
    let found = etcd(cluster, "range", json!({ "key": key })).await;
    let ByteString(stored) = serde_json::from_value(found["kvs"][0]["value"].clone()).unwrap();
    let mut object: Value = serde_json::from_slice(&stored).unwrap();
    object["spec"]["containers"][0]["resources"] = resources;
    let value = base64(object.to_string().into_bytes());
    etcd(cluster, "put", json!({ "key": key, "value": value })).await;
}

fn resources(cpu: [&str; 2], memory: [&str; 2]) -> Value {
    json!({
        "requests": { "cpu": cpu[0], "memory": memory[0] },
        "limits": { "cpu": cpu[1], "memory": memory[1] },
    })
}

/// What the kernel enforces for a burstable pod, or for one of its containers.
fn enforced(agent: &Agent, uid: &str, container: &str) -> [String; 3] {
    let read = |hierarchy: &str, file: &str| {
        let root = format!("/sys/fs/cgroup/{hierarchy}{}", agent.cgroup_root());
        let path = format!("{root}/kubepods/burstable/pod{uid}/{container}/{file}");
        std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
    };
    [
        read("cpu", "cpu.shares"),
        read("cpu", "cpu.cfs_quota_us"),
        read("memory", "memory.limit_in_bytes"),
    ]
}

async fn until_enforced(cluster: &Cluster, uid: &str, container: &str, want: [&str; 3]) {
    let same = async || {
        let now = enforced(&cluster.agent, uid, container);
        anyhow::ensure!(now == want, "{container:?} has {now:?}");
        Ok(true)
    };
    wait::until_true(format!("{want:?}"), LIMIT, same).await.unwrap();
}

#[tokio::test]
async fn rows_26_and_27_a_running_pod_gets_other_resources_without_a_restart() {
    needs_root!();
    if !std::path::Path::new("/sys/fs/cgroup/cpu").exists() {
        return; // The values are read as version 1 has them.
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
    until_enforced(&cluster, &uid, "", ["102", "20000", "67108864"]).await;

    resize(&cluster, "web", resources(["150m", "300m"], ["32Mi", "128Mi"])).await;
    until_enforced(&cluster, &uid, "", ["153", "30000", "134217728"]).await;
    until_enforced(&cluster, &uid, &id, ["153", "30000", "134217728"]).await;
    let told = |what: &str, cpu: &str, memory: &str, more: &str| {
        format!(
            "Pod resize {what}: {{\"containers\":[{{\"name\":\"app\",\"resources\":{{\
             \"limits\":{{\"cpu\":\"300m\",\"memory\":\"{memory}\"}},\
             \"requests\":{{\"cpu\":\"{cpu}\",\"memory\":\"32Mi\"}}}}}}],\"generation\":0{more}}}"
        )
    };
    for (reason, what) in [("ResizeStarted", "started"), ("ResizeCompleted", "completed")] {
        cluster.until_told("web", reason, &told(what, "150m", "128Mi", "")).await;
    }

    // Killed and started again, the agent neither reverts nor repeats it.
    cluster.agent.kill().await.unwrap();
    cluster.agent.restart().await.unwrap();
    cluster.agent.healthy().await.unwrap();

    resize(&cluster, "web", resources(["1000", "1000"], ["32Mi", "128Mi"])).await;
    let condition = |status: &Value, kind: &str| {
        let mut all = status["conditions"].as_array().into_iter().flatten();
        all.find(|c| c["type"] == kind).map(|c| c["reason"].clone())
    };
    let deferred =
        |status: &Value| condition(status, "PodResizePending") == Some("Deferred".into());
    cluster.until("web", "to wait for room", deferred).await;
    assert_eq!(enforced(&cluster.agent, &uid, &id), ["153", "30000", "134217728"]);

    // Two pages: nothing runs in that.
    resize(&cluster, "web", resources(["150m", "300m"], ["4Ki", "8Ki"])).await;
    let refused = |status: &Value| condition(status, "PodResizeInProgress") == Some("Error".into());
    let web = cluster.until("web", "to be refused", refused).await;
    assert_eq!(container_id(&web), id, "nothing restarted");
    assert_eq!(enforced(&cluster.agent, &uid, &id), ["153", "30000", "134217728"]);

    resize(&cluster, "web", resources(["50m", "100m"], ["32Mi", "64Mi"])).await;
    until_enforced(&cluster, &uid, "", ["51", "10000", "67108864"]).await;
    until_enforced(&cluster, &uid, &id, ["51", "10000", "67108864"]).await;
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
