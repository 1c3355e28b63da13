//! Upgrade and downgrade: another build replaces the agent, and no pod is disturbed.
//!
//! The other build is that of an earlier commit (`testbed/provide podwright-earlier`). Only
//! user-visible state is compared, never files: a later program may store them in another form, if
//! it reads those of the earlier one and the earlier one still works with its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::{images, tools, wait};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready, status};
use crate::privilege::{LONGER, needs_root};
use crate::standalone::Standalone;

/// Number of pods with probes from the API server; static pods are additional.
const PROBED: usize = 30;
/// Annotation that the watch must have shown on each pod.
const MARK: &str = "example.org/mark";
/// Created last; no node runs it.
const MARKER: &str = "marker";

#[derive(Clone, Copy, Debug)]
enum End {
    Terminated,
    Killed,
}

#[tokio::test]
async fn thirty_probed_pods_keep_running_when_the_agent_is_upgraded_and_downgraded() {
    needs_root!(LONGER);
    let (earlier, current) = (tools::earlier().unwrap(), tools::podwright().unwrap());
    let mut cluster = joined(&earlier).await;
    let finished = start_pods(&cluster).await;
    let statics =
        [format!("static-{}", cluster.agent.node()), format!("aside-{}", cluster.agent.node())];
    let names: BTreeSet<String> =
        (0..PROBED).map(|number| format!("steady-{number}")).chain(statics.clone()).collect();
    let before = node_state(&cluster, &names, &finished).await;
    assert_eq!(before.pods.len(), names.len() + finished.len());
    let watch = Watch::start(&cluster, names.clone()).await;

    let replacements = [
        (&current, End::Terminated),
        (&earlier, End::Killed),
        (&current, End::Killed),
        (&earlier, End::Terminated),
        (&current, End::Terminated),
    ];
    for (number, (program, end)) in replacements.into_iter().enumerate() {
        match end {
            End::Terminated => cluster.agent.stop().await.unwrap(),
            End::Killed => cluster.agent.kill().await.unwrap(),
        };
        cluster.agent.restart_as(program).await.unwrap();
        cluster.agent.healthy().await.unwrap();
        // An agent that has started a new pod has seen the others and reported their status.
        let proof = format!("proof-{number}");
        cluster.create(pod(&proof, &["serve"])).await;
        cluster.until(&proof, "ready", ready).await;
        let now = node_state(&cluster, &names, &finished).await;
        assert_eq!(now, before, "after {} ({end:?} before)", program.display());
    }

    let flips = watch.finish(&cluster, &statics).await;
    assert_eq!(flips, Vec::<String>::new(), "a pod was disturbed");
    assert_eq!(node_state(&cluster, &names, &finished).await, before);
    // The current program still stops what the earlier one started.
    for name in ["steady-0", "steady-29", "succeeded"] {
        cluster.pods().delete(name, &Default::default()).await.unwrap();
        cluster.until_gone(name).await;
    }
    cluster.close();
}

/// A node whose agent is this program.
async fn joined(program: &Path) -> Cluster {
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let client = bed.client().await.unwrap();
    bed.control_plane().unwrap().create_namespace(NAMESPACE).await.unwrap();
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": "node-1" } })).unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let command = [program.as_os_str().to_owned(), "kubelet".into()];
    let agent = bed.agent("node-1").joined().unwrap().command_line(command).start().unwrap();
    agent.healthy().await.unwrap();
    Cluster { bed, agent, client }
}

/// Every pod of the case. Returns the names of those that do not run, and stay as they are.
async fn start_pods(cluster: &Cluster) -> BTreeSet<String> {
    let objects = PostParams::default();
    let map = json!({ "metadata": { "name": "map" }, "data": { "key": "value" } });
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    maps.create(&objects, &serde_json::from_value(map).unwrap()).await.unwrap();
    let secret = json!({ "metadata": { "name": "secret" }, "stringData": { "key": "value" } });
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    secrets.create(&objects, &serde_json::from_value(secret).unwrap()).await.unwrap();

    for number in 0..PROBED {
        let name = format!("steady-{number}");
        let steady = match number % 5 {
            0 => with_volumes(probed(&name), &cluster.agent.root_dir().join("shared")),
            1 => with_init(probed(&name)),
            2 => with_second(probed(&name)),
            _ => probed(&name),
        };
        cluster.create(steady).await;
    }
    // A sidecar is newer than the bed's API server; a manifest keeps the field.
    let (mut plain, mut aside) = (probed("static"), with_sidecar(probed("aside")));
    for pod in [&mut plain, &mut aside] {
        pod["metadata"]["namespace"] = json!(NAMESPACE);
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
    }
    cluster.agent.add_manifest("static", &plain).unwrap();
    cluster.agent.add_manifest("aside", &aside).unwrap();

    let mut selects = pod("rejected", &["serve"]);
    selects["spec"]["nodeSelector"] = json!({ "no": "where" });
    let once = |name: &str, code: &str| {
        let mut once = pod(name, &["exit", code]);
        once["spec"]["restartPolicy"] = json!("Never");
        once
    };
    for (ends, phase) in [
        (selects, "Failed"),
        (once("failed", "3"), "Failed"),
        (once("succeeded", "0"), "Succeeded"),
    ] {
        let name = ends["metadata"]["name"].as_str().unwrap().to_owned();
        cluster.create(ends).await;
        cluster.until(&name, phase, |status| status["phase"] == phase).await;
    }
    cluster.until_all_ready(PROBED + 2).await;
    ["rejected", "failed", "succeeded"].map(str::to_owned).into()
}

/// A pod with a readiness and a liveness probe.
fn probed(name: &str) -> Value {
    let mut pod = pod(name, &["serve", "--http", "8080"]);
    let page = json!({
        "httpGet": { "path": "/", "port": 8080 },
        "periodSeconds": 2,
        // A long timeout, so that a busy machine does not fail the probe: the agent is under test.
        "timeoutSeconds": 20,
    });
    let container = &mut pod["spec"]["containers"][0];
    container["readinessProbe"] = page.clone();
    container["livenessProbe"] = page;
    pod
}

fn test_container(name: &str, args: &[&str]) -> Value {
    let image = "localhost/podwright/test:latest";
    json!({ "name": name, "image": image, "imagePullPolicy": "Never", "args": args })
}

fn with_init(mut pod: Value) -> Value {
    pod["spec"]["initContainers"] = json!([test_container("first", &["exit", "0"])]);
    pod
}

fn with_sidecar(mut pod: Value) -> Value {
    let mut side = test_container("side", &["serve", "--http", "8081"]);
    side["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"] = json!([side]);
    pod
}

/// With a second container that has an exec probe.
fn with_second(mut pod: Value) -> Value {
    let mut second = test_container("second", &["serve", "--http", "8082"]);
    let command = json!({ "exec": { "command": ["/bin/true"] }, "timeoutSeconds": 20 });
    second["readinessProbe"] = command.clone();
    second["livenessProbe"] = command;
    pod["spec"]["containers"].as_array_mut().unwrap().push(second);
    pod
}

/// With a volume of each kind, and sub paths.
fn with_volumes(mut pod: Value, shared: &Path) -> Value {
    pod["spec"]["volumes"] = json!([
        { "name": "map", "configMap": { "name": "map" } },
        { "name": "secret", "secret": { "secretName": "secret" } },
        { "name": "down", "downwardAPI": { "items": [
            { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
        { "name": "all", "projected": { "sources": [
            { "configMap": { "name": "map" } },
            { "serviceAccountToken": { "path": "token", "expirationSeconds": 600 } }] } },
        { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } },
        { "name": "disk", "emptyDir": {} },
        { "name": "host", "hostPath": { "path": shared, "type": "DirectoryOrCreate" } },
    ]);
    let mounts = ["map", "secret", "down", "all", "memory", "disk", "host"];
    let mut mounts: Vec<Value> = mounts
        .iter()
        .map(|name| json!({ "name": name, "mountPath": format!("/{name}") }))
        .collect();
    mounts.push(json!({ "name": "map", "mountPath": "/one", "subPath": "key" }));
    mounts.push(json!({ "name": "disk", "mountPath": "/part", "subPath": "part" }));
    pod["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
    pod
}

/// State that must not change while the agent is replaced.
#[derive(Debug, PartialEq)]
struct NodeState {
    /// Pods in the API, by name.
    pods: BTreeMap<String, Value>,
    /// Ready sandboxes and running containers, by pod.
    runtime: BTreeMap<String, BTreeSet<String>>,
}

async fn node_state(
    cluster: &Cluster,
    running: &BTreeSet<String>,
    finished: &BTreeSet<String>,
) -> NodeState {
    let list = cluster.pods().list(&ListParams::default()).await.unwrap();
    let mut pods = BTreeMap::new();
    for pod in list.items {
        let name = pod.metadata.name.clone().unwrap();
        if running.contains(&name) || finished.contains(&name) {
            pods.insert(name, shown(&serde_json::to_value(&pod).unwrap()));
        }
    }
    let cri = cluster.bed.cri().await.unwrap();
    let mut runtime: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut note = |labels: &BTreeMap<String, String>, id: &str| {
        let name = labels.get("io.kubernetes.pod.name").cloned().unwrap_or_default();
        if running.contains(&name) || finished.contains(&name) {
            runtime.entry(name).or_default().insert(id.to_owned());
        }
    };
    for sandbox in cri.sandboxes().await.unwrap().iter().filter(|s| s.state == 0) {
        note(&sandbox.labels, &sandbox.id);
    }
    for container in cri.containers().await.unwrap().iter().filter(|c| c.state == 1) {
        note(&container.labels, &container.id);
    }
    NodeState { pods, runtime }
}

/// The fields of a pod that must not change. They include the time it became ready: a pod that was
/// briefly not ready would show another time.
///
/// Left out, because the earlier program changes them at each start: the times of a static pod, and
/// containers of a rejected pod, which never had any.
fn shown(pod: &Value) -> Value {
    let status = &pod["status"];
    let rejected = status["reason"] == "NodeAffinity";
    let from_file = !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null();
    let instances = |list: &str| -> Vec<Value> {
        let all = status[list].as_array().into_iter().flatten().filter(|_| !rejected);
        let instance = |c: &Value| {
            let code = &c["state"]["terminated"]["exitCode"];
            json!([c["name"], c["containerID"], c["restartCount"], c["ready"], code])
        };
        all.map(instance).collect()
    };
    let time = |time: &Value| if from_file { Value::Null } else { time.clone() };
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let readiness: Vec<Value> = conditions
        .filter(|c| !rejected && (c["type"] == "Ready" || c["type"] == "ContainersReady"))
        .map(|c| json!([c["type"], c["status"], time(&c["lastTransitionTime"])]))
        .collect();
    json!({
        "uid": pod["metadata"]["uid"],
        "phase": status["phase"],
        "reason": status["reason"],
        "ip": status["podIP"],
        "startTime": time(&status["startTime"]),
        "readiness": readiness,
        "init": instances("initContainerStatuses"),
        "containers": instances("containerStatuses"),
    })
}

/// Watches every change of the pods, and records those that show a disturbance.
struct Watch {
    notes: Arc<Mutex<Notes>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Notes {
    /// Pods that were seen with the mark, and the marker.
    marked: BTreeSet<String>,
    disturbances: Vec<String>,
    /// Why the watch stopped.
    broken: Option<String>,
}

impl Watch {
    /// Starts from the current state, without a gap: each watch resumes where the previous one
    /// ended, and an expired resource version fails the case.
    async fn start(cluster: &Cluster, names: BTreeSet<String>) -> Self {
        let pods = cluster.pods();
        let list = pods.list(&ListParams::default()).await.unwrap();
        let mut version = list.metadata.resource_version.unwrap();
        let notes: Arc<Mutex<Notes>> = Arc::default();
        let shared = notes.clone();
        let task = tokio::spawn(async move {
            loop {
                let params = WatchParams::default().timeout(280);
                let mut changes = match pods.watch(&params, &version).await {
                    Ok(changes) => changes.boxed(),
                    Err(error) => {
                        shared.lock().unwrap().broken = Some(format!("{error:?}"));
                        return;
                    }
                };
                while let Some(change) = changes.next().await {
                    let mut notes = shared.lock().unwrap();
                    match notes.take(change, &names) {
                        Ok(newer) => version = newer,
                        Err(error) => {
                            notes.broken = Some(error);
                            return;
                        }
                    }
                }
            }
        });
        Self { notes, task }
    }

    /// Marks the pods, and waits until the watch has shown all marks. Returns the disturbances.
    async fn finish(self, cluster: &Cluster, unmarked: &[String]) -> Vec<String> {
        let pods = cluster.pods();
        let mark = Patch::Merge(json!({ "metadata": { "annotations": { MARK: "seen" } } }));
        let mut wanted: BTreeSet<String> = [MARKER.to_owned()].into();
        for number in 0..PROBED {
            let name = format!("steady-{number}");
            pods.patch(&name, &PatchParams::default(), &mark).await.unwrap();
            wanted.insert(name);
        }
        // Only the agent writes mirror pods: they are watched, but not marked.
        assert!(unmarked.iter().all(|name| !wanted.contains(name)));
        let mut marker = pod(MARKER, &["serve"]);
        marker["spec"].as_object_mut().unwrap().remove("nodeName");
        cluster.create(marker).await;
        let seen = async || {
            let notes = self.notes.lock().unwrap();
            assert_eq!(notes.broken, None, "the watch of the case broke");
            let missing: Vec<_> = wanted.difference(&notes.marked).collect();
            anyhow::ensure!(missing.is_empty(), "not seen: {missing:?}");
            Ok(true)
        };
        wait::until_true("the watch to show every mark", LIMIT, seen).await.unwrap();
        self.task.abort();
        let notes = self.notes.lock().unwrap();
        notes.disturbances.clone()
    }
}

impl Notes {
    /// Records a change; returns its resource version, or why the watch cannot continue.
    fn take(
        &mut self,
        change: kube::Result<WatchEvent<Pod>>,
        names: &BTreeSet<String>,
    ) -> Result<String, String> {
        let (pod, gone) = match change {
            Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => (pod, false),
            Ok(WatchEvent::Deleted(pod)) => (pod, true),
            Ok(WatchEvent::Bookmark(mark)) => return Ok(mark.metadata.resource_version),
            Ok(WatchEvent::Error(error)) => return Err(format!("{error:?}")),
            Err(error) => return Err(format!("{error:?}")),
        };
        let name = pod.metadata.name.clone().unwrap_or_default();
        let annotations = pod.metadata.annotations.as_ref();
        if name == MARKER || annotations.is_some_and(|all| all.contains_key(MARK)) {
            self.marked.insert(name.clone());
        }
        let status = status(&pod);
        if names.contains(&name) {
            let restarts = |list: &str| -> i64 {
                let all = status[list].as_array().into_iter().flatten();
                all.filter_map(|container| container["restartCount"].as_i64()).sum()
            };
            let restarted = restarts("containerStatuses") + restarts("initContainerStatuses");
            if gone || !ready(&status) || restarted > 0 {
                self.disturbances.push(format!("{name}: gone {gone}, {status}"));
            }
        }
        pod.metadata.resource_version.ok_or_else(|| format!("{name} has no version"))
    }
}

/// The pods of a standalone node, as they must stay.
async fn alone(kubectl: &Kubectl) -> BTreeMap<String, Value> {
    let list = kubectl.run(&["get", "pods", "-o", "json"]).await.unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let pods = list["items"].as_array().unwrap();
    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
    pods.iter().map(|pod| (name(pod), shown(pod))).collect()
}

/// Runs `up` of a program on the node's state directory.
async fn up(bed: &Bed, program: &Path, node: &Standalone<'_>) -> String {
    let program = program.to_str().unwrap();
    bed.exec(&[program, "up", "--state-dir", &node.state]).await.unwrap()
}

async fn load_test_image(bed: &Bed, program: &Path, node: &Standalone<'_>) {
    let archives = images::archives().unwrap();
    let named = |archive: &&images::Archive| archive.path.ends_with("test.tar");
    let archive = archives.iter().find(named).expect("cargo xtask images makes it");
    let (program, archive) = (program.to_str().unwrap(), archive.path.to_str().unwrap());
    bed.exec(&[program, "images", "--state-dir", &node.state, "load", archive]).await.unwrap();
}

#[tokio::test]
async fn standalone_node_keeps_its_pods_when_another_build_takes_over() {
    needs_root!(LONGER);
    let (earlier, current) = (tools::earlier().unwrap(), tools::podwright().unwrap());
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    up(&bed, &earlier, &node).await;
    load_test_image(&bed, &earlier, &node).await;
    let kubectl = node.kubectl(Release::V1_32);
    let apply = async |object: Value| {
        kubectl.run_with(&["apply", "-f", "-"], &object.to_string()).await.unwrap();
    };
    apply(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "map" },
        "data": { "key": "value" } }))
    .await;
    apply(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "secret" },
        "stringData": { "key": "value" } }))
    .await;
    apply(json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Mi" } } } }))
    .await;
    let mut claims = probed("claims");
    claims["spec"]["volumes"] =
        json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    claims["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }]);
    let running = [
        probed("plain"),
        with_init(probed("init")),
        with_sidecar(probed("sidecar")),
        with_second(probed("second")),
        with_volumes(probed("volumes"), &bed.path("shared")),
        claims,
    ];
    for mut pod in running {
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        apply(pod).await;
    }
    kubectl
        .run(&["wait", "--for=condition=Ready", "pods", "--all", "--timeout=180s"])
        .await
        .unwrap();
    let mut once = pod("once", &["exit", "3"]);
    once["spec"]["restartPolicy"] = json!("Never");
    once["spec"].as_object_mut().unwrap().remove("nodeName");
    apply(once).await;
    let ended = async || {
        let once = &alone(&kubectl).await["once"];
        anyhow::ensure!(once["phase"] == "Failed", "it shows {once}");
        Ok(true)
    };
    wait::until_true("the pod that runs once to end", LIMIT, ended).await.unwrap();
    let before = alone(&kubectl).await;
    assert_eq!(before.len(), 7);

    for (number, program) in [&current, &earlier, &current].into_iter().enumerate() {
        let agent = node.pid("agent");
        up(&bed, program, &node).await;
        assert_ne!(node.pid("agent"), agent, "{} takes over", program.display());
        // An agent that has started a new pod has seen the others and reported their status.
        let proof = format!("proof-{number}");
        let mut new = probed(&proof);
        new["spec"].as_object_mut().unwrap().remove("nodeName");
        apply(new).await;
        let ready = format!("pod/{proof}");
        kubectl.run(&["wait", "--for=condition=Ready", &ready, "--timeout=180s"]).await.unwrap();
        kubectl.run(&["delete", "pod", &proof]).await.unwrap();
        assert_eq!(alone(&kubectl).await, before, "after `up` of {}", program.display());
    }
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}
