//! Machine snapshot before and after `down`, `reset`, the deletion of a pod and a restart of the
//! agent: identical. `down` and `./run --down` are in `standalone.rs`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use podwright_e2e::agent::Agent;
use podwright_e2e::bed::Bed;
use podwright_e2e::bystanders::STATE_DIRECTORY_BYSTANDER;
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::machine::{Difference, Entry, Kind, MachineSnapshot, Scope};
use podwright_e2e::wait;
use podwright_proto::cri::ContainerState;
use serde_json::{Value, json};

use crate::cluster::pod;
use crate::privilege::{isolated, needs_root};
use crate::standalone::Standalone;

const LIMIT: Duration = Duration::from_secs(180);

/// Snapshot of the machine and the bed's network.
pub(crate) struct Before {
    snapshot: MachineSnapshot,
    scope: Scope,
}

impl Before {
    pub(crate) async fn take(bed: &Bed) -> Self {
        Self::take_of(bed, Scope::new()).await
    }

    /// Without what the scope leaves out.
    pub(crate) async fn take_of(bed: &Bed, scope: Scope) -> Self {
        let snapshot = MachineSnapshot::take_in(bed.netns(), &scope).await.unwrap();
        Self { snapshot, scope }
    }

    /// The changes since then. Of the cgroups, those with one of the names count. Bystanders that
    /// were created meanwhile are verified separately.
    pub(crate) async fn changes(&self, bed: &Bed, names: &[&str]) -> Difference {
        let now = MachineSnapshot::take_in(bed.netns(), &self.scope).await.unwrap();
        let is_bystander = |entry: &Entry| {
            entry.kind == Kind::Mount && entry.name.contains(STATE_DIRECTORY_BYSTANDER)
        };
        self.snapshot.difference(&now).without_cgroups_of_others(names).without(is_bystander)
    }

    pub(crate) async fn assert_same(&self, bed: &Bed, names: &[&str]) {
        let changes = self.changes(bed, names).await;
        assert!(changes.is_empty(), "{changes}");
        bed.bystanders().unwrap().assert_untouched();
    }

    /// Waits until the only differences are those that `expected` selects: a deleted pod is gone
    /// from the API before its last cgroup is.
    async fn until_same(&self, bed: &Bed, names: &[&str], expected: impl Fn(&Entry) -> bool) {
        let same = async || {
            let changes = self.changes(bed, names).await;
            // The agent may be replaced by exactly one other.
            let agents = |these: &[Entry]| these.iter().filter(|entry| is_process(entry)).count();
            let (ended, started) = (agents(&changes.removed), agents(&changes.added));
            anyhow::ensure!(
                ended == started,
                "{ended} agents ended, {started} started:\n{changes}"
            );
            let changes = changes.without(&expected);
            anyhow::ensure!(changes.is_empty(), "{changes}");
            Ok(true)
        };
        wait::until_true("the machine to be unchanged", Duration::from_secs(30), same)
            .await
            .unwrap();
        bed.bystanders().unwrap().assert_untouched();
    }
}

/// Creates a user's files in directories that runtimes and nodes share.
pub(crate) fn create_machine_wide_bystanders() {
    for file in [
        "/var/log/containers/user-notes.log",
        "/var/lib/cni/results/user-notes",
        "/run/containerd/s/user-notes",
        "/run/podwright/user-notes",
    ] {
        let file = Path::new(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "a user's").unwrap();
    }
    std::os::unix::fs::symlink("/etc/hostname", "/var/log/containers/user-link.log").unwrap();
    let added = Command::new("ip").args(["netns", "add", "user-net"]).status().unwrap();
    assert!(added.success());
}

/// Another node, on another containerd, with a running pod.
struct Neighbour {
    agent: Agent,
    bed: Bed,
    container: String,
}

impl Neighbour {
    async fn start() -> Self {
        let bed = Bed::builder().start().await.unwrap();
        let agent = bed.agent("neighbour").start().unwrap();
        agent.healthy().await.unwrap();
        agent.add_manifest("web", &static_pod("web", &bed)).unwrap();
        let container = running(&bed).await;
        Self { agent, bed, container }
    }

    async fn assert_unharmed(&self) {
        assert_eq!(
            running(&self.bed).await,
            self.container,
            "the neighbour's container was replaced"
        );
        self.bed.bystanders().unwrap().assert_untouched();
    }

    fn close(self) {
        drop(self.agent);
        self.bed.close().unwrap();
    }
}

/// Waits until one container runs, and returns its id.
async fn running(bed: &Bed) -> String {
    let cri = bed.cri().await.unwrap();
    let inspect = async || {
        let containers = cri.containers().await?;
        let running = containers.iter().find(|c| c.state() == ContainerState::ContainerRunning);
        Ok(running.map(|container| container.id.clone()))
    };
    wait::until("a container to run", LIMIT, inspect).await.unwrap()
}

/// Waits until no pod of the node has a cgroup, which is removed last.
async fn until_no_pod(node: &str) {
    let gone = async || {
        let now = MachineSnapshot::take(&Scope::new())?;
        let mut cgroups = now.entries().filter(|entry| entry.kind == Kind::Cgroup);
        Ok(!cgroups.any(|entry| is_cgroup_of_pod(&entry.name) && entry.name.contains(node)))
    };
    wait::until_true("the pods' cgroups to be gone", LIMIT, gone).await.unwrap();
}

/// Does not match every name with `pod`: all cgroups of a node are below `/podwright-…`.
fn is_cgroup_of_pod(name: &str) -> bool {
    name.split_once("/kubepods").is_some_and(|(_, tail)| tail.contains("/pod"))
}

/// Whether an entry is the process of an agent.
fn is_process(entry: &Entry) -> bool {
    entry.kind == Kind::Process && entry.name.contains(" podwright")
}

/// Whether an entry belongs to an agent, which a restart replaces.
fn is_agent(entry: &Entry) -> bool {
    // It contains the pid of the last lock holder.
    let lock = entry.kind == Kind::File
        && entry.name.starts_with("/run/podwright/")
        && entry.name.ends_with(".lock");
    is_process(entry) || lock
}

/// A static pod with a memory volume and a host path volume.
fn static_pod(name: &str, bed: &Bed) -> Value {
    let mut pod = pod(name, &["serve", "--http", "8080"]);
    pod["spec"]["nodeName"] = json!(null);
    pod["spec"]["volumes"] = json!([
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "host", "hostPath": {"path": bed.path("user-disk")}},
    ]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "memory", "mountPath": "/memory"},
        {"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"},
    ]);
    pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 18080}]);
    pod
}

/// A pod with every kind of volume, sub paths, propagation in both directions and a host port, and
/// the objects that it needs.
fn everything(bed: &Bed) -> String {
    let disks = bed.path("user-disks");
    let volumes = json!([
        {"name": "map", "configMap": {"name": "settings"}},
        {"name": "secret", "secret": {"secretName": "password"}},
        {"name": "down", "downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "settings"}}, {"secret": {"name": "password"}},
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "disk", "emptyDir": {}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "host", "hostPath": {"path": bed.path("user-disk")}},
        {"name": "disks", "hostPath": {"path": disks}},
    ]);
    let mounts = json!([
        {"name": "map", "mountPath": "/map"},
        {"name": "secret", "mountPath": "/secret"},
        {"name": "down", "mountPath": "/down"},
        {"name": "all", "mountPath": "/all"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "disk", "mountPath": "/disk"},
        {"name": "claim", "mountPath": "/claim"},
        {"name": "host", "mountPath": "/host", "mountPropagation": "Bidirectional"},
        {"name": "host", "mountPath": "/seen", "mountPropagation": "HostToContainer"},
        {"name": "disk", "mountPath": "/part", "subPath": "made/here"},
        {"name": "map", "mountPath": "/one", "subPath": "key"},
        {"name": "claim", "mountPath": "/claimed", "subPath": "part"},
        {"name": "disks", "mountPath": "/disks", "subPath": "disks"},
    ]);
    let container = json!({
        "name": "main", "image": "localhost/podwright/test:latest", "imagePullPolicy": "Never",
        "args": ["serve", "--http", "8080"], "securityContext": {"privileged": true},
        "ports": [{"containerPort": 8080, "hostPort": 18080}], "volumeMounts": mounts,
    });
    let objects = [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
            "data": {"key": "value"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "password"},
            "stringData": {"password": "hunter2"}}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Mi"}}}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "everything"}, "spec": {
            "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes}}),
    ];
    objects.map(|object| object.to_string()).join("\n")
}

/// An isolated node surrounded by a user's objects.
async fn node_among_others(bed: &Bed) -> (Standalone<'_>, Kubectl) {
    create_machine_wide_bystanders();
    // the source of a sub path, on a shared file system
    let bystanders = bed.bystanders().unwrap();
    bystanders.create_mounts(&bed.path("user-disks")).unwrap();
    fs::create_dir(bed.path("user-disks/disks")).unwrap();
    bystanders.create_mounts(&bed.path("user-disks/disks/user-ssd")).unwrap();
    let node = Standalone::up(bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    (node, kubectl)
}

async fn create_everything(bed: &Bed, kubectl: &Kubectl) {
    kubectl.run_with(&["apply", "-f", "-"], &everything(bed)).await.unwrap();
    let ready = ["wait", "--for=condition=Ready", "pod/everything", "--timeout=180s"];
    kubectl.run(&ready).await.unwrap();
}

async fn delete_everything(kubectl: &Kubectl) {
    for object in ["pod/everything", "pvc/data", "configmap/settings", "secret/password"] {
        kubectl.run(&["delete", object]).await.unwrap();
    }
}

#[tokio::test]
async fn deleted_pod_with_every_kind_of_volume_leaves_the_machine_unchanged() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    let neighbour = Neighbour::start().await;
    let (node, kubectl) = node_among_others(&bed).await;
    let instance = node.instance();
    let names = [bed.id(), neighbour.bed.id(), &instance];
    // The first pod sets up what stays: the bridge, and the plugins' chains for host ports.
    create_everything(&bed, &kubectl).await;
    delete_everything(&kubectl).await;
    until_no_pod(&instance).await;
    let scope = Scope::new().without_files_of(node.run_directory(), "the node is running");
    let before = Before::take_of(&bed, scope).await;

    create_everything(&bed, &kubectl).await;
    let during = before.changes(&bed, &names).await;
    for (kind, text) in [
        (Kind::Mount, "volume-subpaths"),
        (Kind::Mount, "kubernetes.io~secret"),
        (Kind::Mount, "kubernetes.io~projected"),
        (Kind::Process, "testserver"),
        (Kind::Rule, "18080"),
        (Kind::Link, "veth"),
    ] {
        assert!(during.names(kind, text), "no {kind} {text} of the pod in\n{during}");
    }
    let mut cgroups = during.added.iter().filter(|entry| entry.kind == Kind::Cgroup);
    assert!(
        cgroups.any(|entry| is_cgroup_of_pod(&entry.name)),
        "no cgroup of the pod in\n{during}"
    );
    delete_everything(&kubectl).await;
    before.until_same(&bed, &names, |_| false).await;
    neighbour.assert_unharmed().await;

    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    neighbour.close();
    bed.close().unwrap();
}

#[tokio::test]
async fn restarted_and_replaced_agent_leaves_the_machine_unchanged() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    let (node, kubectl) = node_among_others(&bed).await;
    let instance = node.instance();
    let names = [bed.id(), instance.as_str()];
    create_everything(&bed, &kubectl).await;
    let scope = Scope::new().without_files_of(node.run_directory(), "pids of the agent");
    let before = Before::take_of(&bed, scope).await;
    let restarts = ["get", "pod", "everything", "-o"];
    let restarts =
        [&restarts[..], &["jsonpath={.status.containerStatuses[0].restartCount}"]].concat();

    for signal in ["-KILL", "-TERM"] {
        let agent = node.pid("agent");
        bed.exec(&["kill", signal, &agent]).await.unwrap();
        // A killed process closes its sockets after its program: until then its ports are in use.
        let closed = || fs::read_dir(format!("/proc/{agent}/fd")).map_or(0, Iterator::count) == 0;
        let gone = async || Ok(fs::read_link(format!("/proc/{agent}/exe")).is_err() && closed());
        wait::until_true("the agent to end", LIMIT, gone).await.unwrap();
        node.run(&["up"]).await.unwrap();
        assert_ne!(node.pid("agent"), agent, "after {signal}");
        before.until_same(&bed, &names, is_agent).await;
        assert_eq!(kubectl.run(&restarts).await.unwrap(), "0", "after {signal}");
    }

    let another = bed.path("podwright");
    fs::copy(&node.program, &another).unwrap();
    let mut file = fs::OpenOptions::new().append(true).open(&another).unwrap();
    file.write_all(b"another build").unwrap();
    drop(file);
    bed.exec(&[another.to_str().unwrap(), "up", "--state-dir", &node.state]).await.unwrap();
    let program = fs::read_link(format!("/proc/{}/exe", node.pid("agent"))).unwrap();
    assert_eq!(program, another);
    before.until_same(&bed, &names, is_agent).await;
    assert_eq!(kubectl.run(&restarts).await.unwrap(), "0", "after it was replaced");

    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn reset_leaves_the_machine_unchanged() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    create_machine_wide_bystanders();
    bed.bystanders().unwrap().create_mounts(&bed.path("user-disks")).unwrap();
    fs::create_dir(bed.path("user-disks/disks")).unwrap();
    let neighbour = Neighbour::start().await;
    let before = Before::take(&bed).await;

    let node = Standalone::up(&bed).await;
    let instance = node.instance();
    let kubectl = node.kubectl(Release::V1_32);
    create_everything(&bed, &kubectl).await;
    node.run(&["reset", "--yes"]).await.unwrap();
    before.assert_same(&bed, &[bed.id(), neighbour.bed.id(), &instance]).await;
    neighbour.assert_unharmed().await;
    drop(kubectl);
    neighbour.close();
    bed.close().unwrap();
}

#[tokio::test]
async fn restarted_kubelet_and_its_finished_pods_leave_the_machine_unchanged() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    create_machine_wide_bystanders();
    let mut agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let names = [bed.id()];
    // The first pod sets up what stays: the bridge, and the plugins' chains for host ports.
    let cri = bed.cri().await.unwrap();
    let gone =
        async || Ok(agent.pod_directories()?.is_empty() && cri.sandboxes().await?.is_empty());
    let first = agent.add_manifest("first", &static_pod("first", &bed)).unwrap();
    running(&bed).await;
    fs::remove_file(first).unwrap();
    wait::until_true("the first pod to be gone", LIMIT, gone).await.unwrap();
    until_no_pod(bed.id()).await;
    let without_pods = Before::take(&bed).await;

    let manifest = agent.add_manifest("web", &static_pod("web", &bed)).unwrap();
    let container = running(&bed).await;
    let with_pod = Before::take(&bed).await;
    assert!(!without_pods.changes(&bed, &names).await.is_empty());
    for graceful in [false, true] {
        if graceful {
            agent.stop().await.unwrap();
        }
        agent.restart().await.unwrap();
        agent.healthy().await.unwrap();
        with_pod.until_same(&bed, &names, is_agent).await;
        assert_eq!(running(&bed).await, container, "graceful: {graceful}");
    }
    fs::remove_file(manifest).unwrap();
    let gone =
        async || Ok(agent.pod_directories()?.is_empty() && cri.sandboxes().await?.is_empty());
    wait::until_true("the pod to be gone", LIMIT, gone).await.unwrap();
    without_pods.until_same(&bed, &names, is_agent).await;
    drop(agent);
    bed.close().unwrap();
}
