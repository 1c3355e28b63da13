//! Admission by resources, enforced limits, and preemption.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use podwright_e2e::agent::Agent;
use podwright_e2e::bed::Bed;
use serde_json::{Value, json};

use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(90);
const NODE: &str = "node-1";

struct Cluster {
    bed: Bed,
    agent: Agent,
    pods: Api<Pod>,
    nodes: Api<Node>,
}

impl Cluster {
    async fn start() -> Self {
        let bed = Bed::builder().control_plane().start().await.unwrap();
        let client = bed.client().await.unwrap();
        let builder = bed.agent(NODE).joined().unwrap();
        let agent = builder.argument("--node-labels=disk=ssd").start().unwrap();
        agent.healthy().await.unwrap();
        let pods = Api::namespaced(client.clone(), "default");
        Self { bed, agent, pods, nodes: Api::all(client) }
    }

    async fn create(&self, pod: &Value) {
        let pod = serde_json::from_value(pod.clone()).unwrap();
        self.pods.create(&PostParams::default(), &pod).await.unwrap();
    }

    /// Waits until the pod's status satisfies the predicate, and returns the status.
    async fn until(&self, name: &str, what: &str, predicate: impl Fn(&Value) -> bool) -> Value {
        let inspect = async || {
            let pod = self.pods.get_opt(name).await?;
            let status = serde_json::to_value(pod.and_then(|pod| pod.status))?;
            Ok(predicate(&status).then_some(status))
        };
        let what = format!("{name}: {what}");
        self.agent.daemon().until(what, LIMIT, inspect).await.unwrap()
    }

    /// Cgroup directory of a guaranteed pod for a controller: such pods are not below a QoS cgroup.
    fn group(&self, controller: &str, uid: &str) -> PathBuf {
        let group = format!("{}/kubepods/pod{uid}", self.agent.cgroup_root());
        self.bed.environment().cgroup().of(controller, &group).unwrap()
    }

    fn close(self) {
        drop(self.agent);
        self.bed.close().unwrap();
    }
}

fn pod(name: &str, args: &[&str], container: &Value) -> Value {
    let mut app = json!({
        "name": "app", "image": "localhost/podwright/test:latest",
        "imagePullPolicy": "Never", "args": args,
    });
    app.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "nodeName": NODE, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 2, "containers": [app],
        },
    })
}

/// Whether the existing one of these files has the expected value.
fn one_of(group: &Path, files: &[(&str, &str)]) -> Result<(), String> {
    let found = files.iter().find(|(file, _)| group.join(file).exists());
    let (file, want) = found.ok_or_else(|| format!("{} has none of {files:?}", group.display()))?;
    let value = std::fs::read_to_string(group.join(file)).map_err(|error| error.to_string())?;
    let value = value.trim();
    if value == *want { Ok(()) } else { Err(format!("{file} is {value:?}, not {want:?}")) }
}

fn running(status: &Value) -> bool {
    status["phase"] == "Running"
}

#[tokio::test]
async fn pods_that_do_not_fit_are_rejected_permanently_with_the_reason() {
    needs_root!();
    let mut cluster = Cluster::start().await;
    let port = json!({ "ports": [{ "containerPort": 8080, "hostPort": 18080 }] });
    let mut first = pod("first", &["serve"], &port);
    first["spec"]["nodeSelector"] = json!({ "disk": "ssd" });
    cluster.create(&first).await;
    let started = cluster.until("first", "running", running).await;

    let plain = json!({});
    let mut sysctl = pod("sysctl", &["serve"], &plain);
    sysctl["spec"]["securityContext"] =
        json!({ "sysctls": [{ "name": "kernel.msgmax", "value": "65536" }] });
    let mut elsewhere = pod("elsewhere", &["serve"], &plain);
    elsewhere["spec"]["nodeSelector"] = json!({ "disk": "hdd" });
    let big = json!({ "resources": { "requests": { "memory": "900Gi" } } });
    for (pod, reason, message) in [
        (pod("big", &["serve"], &big), "OutOfmemory", "requested: 966367641600, used: 0"),
        (pod("port", &["serve"], &port), "NodePorts", "Predicate NodePorts failed"),
        (sysctl, "SysctlForbidden", "forbidden sysctl: \"kernel.msgmax\" not allowlisted"),
        (elsewhere, "NodeAffinity", "didn't match Pod's node affinity/selector"),
    ] {
        cluster.create(&pod).await;
        let name = pod["metadata"]["name"].as_str().unwrap();
        let status = cluster.until(name, "failed", |s| s["phase"] == "Failed").await;
        assert_eq!(status["reason"], reason);
        let reported = status["message"].as_str().unwrap();
        assert!(
            reported.starts_with("Pod was rejected: ") && reported.contains(message),
            "{reported}"
        );
    }

    // A running pod is not admitted again, whatever the node has become.
    let relabel = json!({ "metadata": { "labels": { "disk": "hdd" } } });
    let params = PatchParams::default();
    cluster.nodes.patch(NODE, &params, &Patch::Merge(relabel)).await.unwrap();
    cluster.agent.kill().await.unwrap();
    let state = cluster.agent.root_dir().join("admitted_pods_state");
    std::fs::write(&state, b"garbage").unwrap();
    cluster.agent.restart().await.unwrap();
    cluster.agent.healthy().await.unwrap();
    cluster.create(&pod("after", &["serve"], &plain)).await;
    cluster.until("after", "running", running).await;
    let still = cluster.until("first", "running", running).await;
    assert_eq!(still["containerStatuses"], started["containerStatuses"]);
    assert!(cluster.agent.root_dir().join("admitted_pods_state.corrupt-1").exists());
    cluster.close();
}

#[tokio::test]
async fn ordinary_pod_is_preempted_by_a_static_pod() {
    needs_root!();
    let cluster = Cluster::start().await;
    let cpu = |amount: &str| json!({ "resources": { "requests": { "cpu": amount } } });
    cluster.create(&pod("small", &["serve"], &cpu("100m"))).await;
    cluster.create(&pod("large", &["serve"], &cpu("1500m"))).await;
    cluster.until("small", "running", running).await;
    cluster.until("large", "running", running).await;
    cluster.agent.add_manifest("proxy", &pod("proxy", &["serve"], &cpu("1"))).unwrap();
    let victim = cluster.until("large", "preempted", |s| s["phase"] == "Failed").await;
    assert_eq!(victim["reason"], "Preempting");
    assert_eq!(victim["message"], "Preempted in order to admit critical pod");
    cluster.until("proxy-node-1", "running", running).await;
    cluster.until("small", "running", running).await;
    cluster.close();
}

#[tokio::test]
async fn container_is_killed_at_its_memory_limit_and_throttled_at_its_cpu_limit() {
    needs_root!();
    let cluster = Cluster::start().await;
    let limits = |cpu: &str, memory: &str| json!({ "resources": { "limits": { "cpu": cpu, "memory": memory } } });
    let mut greedy = pod("greedy", &["alloc", "256"], &limits("500m", "32Mi"));
    greedy["spec"]["restartPolicy"] = json!("Never");
    cluster.create(&greedy).await;
    // The runtime may learn of the exit before the reason, and a pod is Failed only after all its
    // containers have stopped.
    let end = |status: &Value| status["containerStatuses"][0]["state"]["terminated"].clone();
    let killed = |s: &Value| end(s)["reason"] == "OOMKilled" && s["phase"] == "Failed";
    let dead = cluster.until("greedy", "killed and failed", killed).await;
    assert_eq!(end(&dead)["exitCode"], 137);

    cluster.create(&pod("busy", &["burn"], &limits("100m", "64Mi"))).await;
    cluster.until("busy", "running", running).await;
    let uid = cluster.pods.get("busy").await.unwrap().metadata.uid.unwrap();
    let group = cluster.group("cpu", &uid);
    // cgroup v1, or v2 with quota and period in one file.
    assert_eq!(
        one_of(&group, &[("cpu.cfs_quota_us", "10000"), ("cpu.max", "10000 100000")]),
        Ok(())
    );
    let (memory, limit) = (cluster.group("memory", &uid), (64u64 << 20).to_string());
    assert_eq!(
        one_of(&memory, &[("memory.limit_in_bytes", &limit), ("memory.max", &limit)]),
        Ok(())
    );
    let throttled = async || {
        let stat = std::fs::read_to_string(group.join("cpu.stat"))?;
        let times = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        Ok(times.and_then(|times| times.parse::<u64>().ok()).is_some_and(|times| times > 5))
    };
    podwright_e2e::wait::until_true("it to be throttled", LIMIT, throttled).await.unwrap();
    cluster.close();
}
