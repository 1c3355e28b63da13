//! Fixture recording: an agent's directory, runtime state and API objects as one text file that
//! `podwright_testkit::fixture` reads.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing JSON field is null, and the output is read by people"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwright_proto::cri;
use podwright_proto::cri::image_service_client::ImageServiceClient;
use podwright_proto::cri::runtime_service_client::RuntimeServiceClient;
use podwright_testkit::fixture::capture;
use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::kubectl::Kubectl;
use crate::registry::Registry;
use crate::wait;

/// Credentials of the registry that serves the private image.
pub const LOGIN: (&str, &str) = ("me", "a secret");
const LIMIT: Duration = Duration::from_secs(180);
const IMAGE: &str = "localhost/podwright/test:latest";

/// Starts one pod of every kind that leaves something on disk, and waits until it has.
pub async fn populate(
    kubectl: &Kubectl,
    registry: &Registry,
    node: &str,
    manifests: &Path,
    root: &Path,
) -> Result<()> {
    let registered = async || kubectl.run(&["get", "node", node]).await.map(Some);
    wait::until("the node to register", LIMIT, registered).await?;
    let default = async || kubectl.run(&["get", "serviceaccount", "default"]).await.map(Some);
    wait::until("the default service account", LIMIT, default).await?;
    let create = async |object: Value| {
        kubectl.run_with(&["create", "-f", "-"], &object.to_string()).await.map(drop)
    };
    let (user, password) = LOGIN;
    let login = registry.docker_config(user, password).to_string();
    create(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "registry" },
        "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": login },
    }))
    .await?;
    create(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" },
        "data": { "colour": "blue" },
    }))
    .await?;
    let stays = "trap 'exit 0' TERM; sleep 100000 & wait";
    for name in ["resized", "deferred"] {
        let mut pod = pod(name, node, stays);
        pod["spec"]["containers"][0]["resources"] = cpu("50m");
        create(pod).await?;
    }
    let mut users = pod("users", node, stays);
    users["spec"]["hostUsers"] = json!(false);
    create(users).await?;
    let mut private = pod("private", node, stays);
    private["spec"]["containers"][0]["image"] = json!(registry.image("team/app:1"));
    private["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
    private["spec"]["imagePullSecrets"] = json!([{ "name": "registry" }]);
    create(private).await?;
    create(with_volumes(pod("volumes", node, &format!("echo kept >/scratch/file; {stays}"))))
        .await?;
    for (name, message, code) in [("finished", "all done", 0), ("failed", "gave up", 3)] {
        let script = format!("printf '{message}' >/dev/termination-log; exit {code}");
        let mut pod = pod(name, node, &script);
        pod["spec"]["restartPolicy"] = json!("Never");
        create(pod).await?;
    }
    let mut plain = pod("static", node, stays);
    plain["spec"]["nodeName"].take();
    let part = manifests.with_extension("part");
    fs::write(&part, format!("{plain:#}\n"))?;
    fs::copy(&part, manifests.join("static.json"))?;
    fs::remove_file(part)?;

    let mirror = format!("static-{node}");
    for name in ["resized", "deferred", "users", "private", "volumes", &mirror] {
        let ready = "-ojsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        until_shows(kubectl, name, ready, "True").await?;
    }
    for (name, phase) in [("finished", "Succeeded"), ("failed", "Failed")] {
        until_shows(kubectl, name, "-ojsonpath={.status.phase}", phase).await?;
    }
    let mut rejected = pod("rejected", node, stays);
    rejected["spec"]["containers"][0]["resources"] = cpu("1000");
    create(rejected).await?;
    until_shows(kubectl, "rejected", "-ojsonpath={.status.reason}", "OutOfcpu").await?;

    let capacity = "-ojsonpath={.status.allocatable.cpu}";
    let all = kubectl.run(&["get", "node", node, capacity]).await?;
    for (name, amount) in [("resized", "75m"), ("deferred", &*all)] {
        let container = json!({ "name": "app", "resources": cpu(amount) });
        let patch = json!({ "spec": { "containers": [container] } }).to_string();
        let patch = format!("--patch={patch}");
        kubectl.run(&["patch", "pod", name, "--subresource=resize", &patch]).await?;
    }
    let granted = "-ojsonpath={.status.containerStatuses[0].resources.requests.cpu}";
    until_shows(kubectl, "resized", granted, "75m").await?;
    let pending = "-ojsonpath={.status.conditions[?(@.type==\"PodResizePending\")].reason}";
    until_shows(kubectl, "deferred", pending, "Deferred").await?;
    until_written(kubectl, root).await
}

/// Starts a pod that keeps failing, and waits until its next start is delayed by back-off.
pub async fn crash(kubectl: &Kubectl, node: &str) -> Result<()> {
    let crashing = pod("crashing", node, "exit 1").to_string();
    kubectl.run_with(&["create", "-f", "-"], &crashing).await?;
    let reason = "-ojsonpath={.status.containerStatuses[0].state.waiting.reason}";
    until_shows(kubectl, "crashing", reason, "CrashLoopBackOff").await
}

/// Waits until the agent's checkpoints contain its decisions; some are written with a delay.
async fn until_written(kubectl: &Kubectl, root: &Path) -> Result<()> {
    let pods = items(&kubectl.run(&["get", "pods", "-ojson"]).await?)?;
    let uid = |pod: &Value| {
        let of_static = &pod["metadata"]["annotations"]["kubernetes.io/config.mirror"];
        let uid = of_static.as_str().or(pod["metadata"]["uid"].as_str());
        uid.unwrap_or_default().to_owned()
    };
    let uids: BTreeSet<String> = pods.iter().map(uid).collect();
    let written = async || {
        let admitted = fs::read_to_string(root.join("admitted_pods_state"))?;
        let granted = fs::read_to_string(root.join("granted_resources_state"))?;
        let missing = uids.iter().find(|uid| !admitted.contains(*uid));
        ensure!(missing.is_none(), "no decision on {missing:?} in {admitted}");
        ensure!(admitted.contains("OutOfcpu"), "{admitted}");
        ensure!(granted.contains("75m") && granted.contains("Deferred"), "{granted}");
        Ok(Some(()))
    };
    wait::until("the checkpoints", LIMIT, written).await
}

async fn until_shows(kubectl: &Kubectl, pod: &str, path: &str, want: &str) -> Result<()> {
    let shows = async || {
        let now = kubectl.run(&["get", "pod", pod, path]).await?;
        if now != want {
            let status = kubectl.run(&["get", "pod", pod, "-ojsonpath={.status}"]).await?;
            anyhow::bail!("{now:?}, with the status {status}");
        }
        Ok(Some(()))
    };
    wait::until(format!("{pod} to show {want}"), LIMIT, shows).await
}

/// The items of a list in JSON.
pub fn items(list: &str) -> Result<Vec<Value>> {
    let mut list: Value = serde_json::from_str(list)?;
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        other => anyhow::bail!("expected a list with items, got {other}"),
    }
}

fn pod(name: &str, node: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": "app", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
            }],
        },
    })
}

fn cpu(amount: &str) -> Value {
    json!({ "requests": { "cpu": amount } })
}

fn with_volumes(mut pod: Value) -> Value {
    pod["spec"]["volumes"] = json!([
        { "name": "settings", "configMap": { "name": "settings" } },
        { "name": "scratch", "emptyDir": {} },
    ]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([
        { "name": "settings", "mountPath": "/settings" },
        { "name": "scratch", "mountPath": "/scratch" },
    ]);
    pod
}

/// A fixture being recorded.
pub struct Recorded(Value);

impl Recorded {
    /// `root` and `manifests` are the agent's directories.
    pub fn new(commit: &str, node: &str, root: &str, manifests: &str) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self(json!({
            "writtenBy": commit,
            "takenAt": jiff::Timestamp::now().to_string(),
            "node": node,
            "cpus": cpus,
            "root": root,
            "manifests": manifests,
        }))
    }

    /// Adds the files of a directory except these.
    pub fn files(mut self, directory: &Path, left_out: &[&str]) -> Result<Self> {
        self.0["leftOut"] = json!(left_out);
        self.0["files"] = taken(directory, left_out)?;
        Ok(self)
    }

    /// Adds manifests outside of the directory.
    pub fn manifests(mut self, directory: &Path) -> Result<Self> {
        self.0["staticPods"] = taken(directory, &[])?;
        Ok(self)
    }

    /// Adds files that a reboot would remove; a name in `left_out` is excluded at any depth.
    pub fn volatile(mut self, directory: &Path, left_out: &[&str]) -> Result<Self> {
        let named = |path: &Path| path.iter().any(|part| left_out.iter().any(|name| part == *name));
        self.0["volatile"] = capture(directory, &named)
            .with_context(|| format!("cannot read {}", directory.display()))?;
        Ok(self)
    }

    pub fn objects(mut self, objects: Vec<Value>) -> Self {
        self.0["objects"] = Value::Array(objects);
        self
    }

    /// Responses of the agent while it ran.
    pub fn answers(mut self, answers: Value) -> Self {
        self.0["answers"] = answers;
        self
    }

    /// Adds the state of the runtime at this socket.
    pub async fn runtime(mut self, socket: &Path) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        let channel = endpoint.connect().await?;
        let mut images = ImageServiceClient::new(channel.clone());
        let mut runtime = RuntimeServiceClient::new(channel);
        let listed = runtime.list_pod_sandbox(cri::ListPodSandboxRequest::default()).await?;
        let mut sandboxes = listed.into_inner().items;
        sandboxes.sort_by_key(|sandbox| sandbox.created_at);
        let listed = runtime.list_containers(cri::ListContainersRequest::default()).await?;
        let mut containers = listed.into_inner().containers;
        containers.sort_by_key(|container| container.created_at);
        let mut recorded_containers = Vec::new();
        for container in &containers {
            let id = container.id.clone();
            let request = cri::ContainerStatusRequest { container_id: id, ..Default::default() };
            let status = runtime.container_status(request).await?.into_inner().status;
            recorded_containers.push(container_value(container, &status.context("no status")?));
        }
        let used: BTreeSet<&String> = containers.iter().map(|it| &it.image_ref).collect();
        let listed = images.list_images(cri::ListImagesRequest::default()).await?.into_inner();
        let named = listed.images.iter().filter(|image| used.contains(&image.id));
        let named = named
            .filter_map(|image| Some(json!({ "id": image.id, "name": image.repo_tags.first()? })));
        self.0["runtime"] = json!({
            "images": named.collect::<Vec<_>>(),
            "sandboxes": sandboxes.iter().map(sandbox_value).collect::<Vec<_>>(),
            "containers": recorded_containers,
        });
        Ok(self)
    }

    pub fn save(&self, path: &Path) -> Result<()> {
        let text = format!("{:#}\n", self.0);
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn taken(directory: &Path, left_out: &[&str]) -> Result<Value> {
    let is_left_out = |path: &Path| left_out.iter().any(|out| path == Path::new(out));
    capture(directory, &is_left_out).with_context(|| format!("cannot read {}", directory.display()))
}

fn sandbox_value(sandbox: &cri::PodSandbox) -> Value {
    let metadata = sandbox.metadata.clone().unwrap_or_default();
    json!({
        "id": sandbox.id,
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
        "attempt": metadata.attempt,
        "handler": sandbox.runtime_handler,
        "ready": sandbox.state() == cri::PodSandboxState::SandboxReady,
        "labels": sandbox.labels,
        "annotations": sandbox.annotations,
    })
}

fn container_value(listed: &cri::Container, status: &cri::ContainerStatus) -> Value {
    let metadata = status.metadata.clone().unwrap_or_default();
    let mounts = status.mounts.iter().map(|mount| {
        json!({
            "containerPath": mount.container_path,
            "hostPath": mount.host_path,
            "readonly": mount.readonly,
        })
    });
    let resources = status.resources.clone().unwrap_or_default().linux.unwrap_or_default();
    let state = match status.state() {
        cri::ContainerState::ContainerCreated => "created",
        cri::ContainerState::ContainerRunning => "running",
        cri::ContainerState::ContainerExited => "exited",
        cri::ContainerState::ContainerUnknown => "unknown",
    };
    json!({
        "id": status.id,
        "sandbox": listed.pod_sandbox_id,
        "name": metadata.name,
        "attempt": metadata.attempt,
        "imageId": listed.image_ref,
        "state": state,
        "exitCode": status.exit_code,
        "labels": status.labels,
        "annotations": status.annotations,
        "mounts": mounts.collect::<Vec<_>>(),
        "resources": {
            "cpuPeriod": resources.cpu_period,
            "cpuQuota": resources.cpu_quota,
            "cpuShares": resources.cpu_shares,
            "memoryLimit": resources.memory_limit_in_bytes,
            "oomScoreAdj": resources.oom_score_adj,
        },
    })
}
