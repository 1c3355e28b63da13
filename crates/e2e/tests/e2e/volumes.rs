//! Content of volumes, on real mounts and a real API server.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use podwright_e2e::bed::Bed;
use podwright_e2e::containerd::Release;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
use crate::privilege::{figure, needs_root};

impl Cluster {
    pub(crate) fn objects<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) async fn make<K>(&self, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let object = serde_json::from_value(object).unwrap();
        self.objects().create(&PostParams::default(), &object).await.unwrap()
    }

    pub(crate) async fn edit<K>(&self, name: &str, change: Value)
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + serde::de::DeserializeOwned,
    {
        let change = Patch::Merge(change);
        self.objects::<K>().patch(name, &PatchParams::default(), &change).await.unwrap();
    }

    fn log_of(&self, pod: &Pod) -> PathBuf {
        let (name, uid) = (pod.metadata.name.clone().unwrap(), pod.metadata.uid.clone().unwrap());
        self.agent.pod_logs().join(format!("{NAMESPACE}_{name}_{uid}/app/0.log"))
    }

    /// Waits for this exact line of the container, and returns how long it took.
    pub(crate) async fn until_line(&self, pod: &Pod, line: &str) -> Duration {
        let (log, asked) = (self.log_of(pod), Instant::now());
        let output = async || {
            let text = std::fs::read_to_string(&log)?;
            // A timestamp, a stream and a tag precede the container's output.
            Ok(text.lines().any(|known| known.splitn(4, ' ').nth(3) == Some(line)))
        };
        wait::until_true(format!("the line {line:?}"), LIMIT, output).await.unwrap();
        asked.elapsed()
    }

    /// A local volume and a claim on it, not bound yet.
    pub(crate) async fn claim(
        &self,
        name: &str,
        volume: &str,
        path: &Path,
    ) -> PersistentVolumeClaim {
        let persistent: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = json!({"metadata": {"name": volume}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "by-hand",
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}}}});
        let volume = serde_json::from_value(volume).unwrap();
        persistent.create(&PostParams::default(), &volume).await.unwrap();
        self.make(json!({"metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand",
            "resources": {"requests": {"storage": "1Gi"}}}}))
            .await
    }

    /// Binds manually, like the controller: first the volume, then the claim.
    pub(crate) async fn bind(&self, claim: &PersistentVolumeClaim, volume: &str) {
        let name = claim.metadata.name.as_deref().unwrap();
        let reference = json!({"namespace": NAMESPACE, "name": name, "uid": claim.metadata.uid});
        let bind = Patch::Merge(json!({"spec": {"claimRef": reference}}));
        let persistent: Api<PersistentVolume> = Api::all(self.client.clone());
        persistent.patch(volume, &PatchParams::default(), &bind).await.unwrap();
        self.edit::<PersistentVolumeClaim>(name, json!({"spec": {"volumeName": volume}})).await;
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        let claims = self.objects::<PersistentVolumeClaim>();
        claims.patch_status(name, &PatchParams::default(), &bound).await.unwrap();
    }

    /// The directory is removed after the pod, asynchronously.
    pub(crate) async fn until_directory_removed(&self, pod: &Pod) {
        let directory = self.directory_of(pod);
        let gone = async || Ok(!directory.try_exists()?);
        wait::until_true(format!("{} to be gone", directory.display()), LIMIT, gone).await.unwrap();
    }

    pub(crate) fn directory_of(&self, pod: &Pod) -> PathBuf {
        self.agent.root_dir().join("pods").join(pod.metadata.uid.as_deref().unwrap())
    }
}

/// A pod whose container runs a shell script as an unprivileged user.
pub(crate) fn script(name: &str, script: &str, volumes: Value, mounts: Value) -> Value {
    let mut pod = pod(name, &[]);
    let container = &mut pod["spec"]["containers"][0];
    container["command"] = json!(["/bin/sh", "-c", script]);
    container["volumeMounts"] = mounts;
    container["securityContext"] = json!({ "runAsUser": 1000, "runAsGroup": 1000 });
    pod["spec"]["volumes"] = volumes;
    pod
}

/// A script that prints the content of files whenever it changes.
fn print_changes(files: &[&str]) -> String {
    let files = files.join(" ");
    format!(
        "trap 'exit 0' TERM; cd /tmp 2>/dev/null; \
         while :; do now=$(cat {files} 2>/dev/null | tr '\\n' ' '); \
         [ \"$now\" = \"$was\" ] || {{ echo \"$now\"; was=$now; }}; sleep 0.02; done"
    )
}

#[tokio::test]
async fn every_kind_of_volume_is_readable_by_its_users() {
    needs_root!();
    let cluster = Cluster::start().await;
    cluster
        .make::<ConfigMap>(json!({"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}}))
        .await;
    cluster
        .make::<Secret>(json!({"metadata": {"name": "s"}, "stringData": {"k": "hunter2"}}))
        .await;
    let shared = cluster.agent.root_dir().join("shared");
    let volumes = json!([
        {"name": "map", "configMap": {"name": "m", "items": [{"key": "a", "path": "sub/a"}]}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o440}},
        {"name": "down", "downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": "all", "projected": {"sources": [
            {"configMap": {"name": "m"}}, {"secret": {"name": "s"}},
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600, "audience": "x"}}]}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {"name": "disk", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": shared, "type": "DirectoryOrCreate"}},
    ]);
    let mounts = json!([
        {"name": "map", "mountPath": "/map"}, {"name": "secret", "mountPath": "/secret"},
        {"name": "down", "mountPath": "/down"}, {"name": "all", "mountPath": "/all"},
        {"name": "memory", "mountPath": "/memory"}, {"name": "disk", "mountPath": "/disk"},
        {"name": "host", "mountPath": "/host"},
        {"name": "map", "mountPath": "/one", "subPath": "sub/a"},
        {"name": "disk", "mountPath": "/part", "subPathExpr": "$(NAME)/x"},
    ]);
    let text = "echo map $(cat /map/sub/a) secret $(cat /secret/k) down $(cat /down/name); \
        echo all $(cat /all/b) $(cat /all/k) token $(cut -d. -f1 /all/token | wc -l); \
        echo x > /memory/f && echo x > /disk/f && echo y > /part/f && echo wrote; \
        echo size $(df -k /memory | tail -1 | awk '{print $2}') one $(cat /one) host $(ls /host); \
        (echo z > /map/z) 2>/dev/null || echo read-only; \
        trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let mut wanted = script("kinds", text, volumes, mounts);
    wanted["spec"]["securityContext"] = json!({ "fsGroup": 4321 });
    wanted["spec"]["containers"][0]["env"] =
        json!([{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    std::fs::create_dir_all(shared.join("seen")).unwrap();
    let made = cluster.create(wanted).await;
    cluster.until("kinds", "ready", ready).await;
    for line in [
        "map 1 secret hunter2 down kinds",
        "all 2 hunter2 token 1",
        "wrote",
        "size 8192 one 1 host seen",
        "read-only",
    ] {
        cluster.until_line(&made, line).await;
    }
    let part = cluster.directory_of(&made).join("volumes/kubernetes.io~empty-dir/disk/kinds/x/f");
    assert_eq!(std::fs::read_to_string(part).unwrap(), "y\n");

    assert!(!cluster.agent.daemon().log().contains("hunter2"), "a Secret is in the log");

    cluster.pods().delete("kinds", &DeleteParams::default()).await.unwrap();
    cluster.until_gone("kinds").await;
    cluster.until_directory_removed(&made).await;
    assert!(shared.join("seen").exists(), "a hostPath directory must not be emptied");
    cluster.close();
}

#[tokio::test]
async fn edit_is_visible_in_the_container_at_once() {
    needs_root!();
    let cluster = Cluster::start().await;
    cluster.make::<ConfigMap>(json!({"metadata": {"name": "m"}, "data": {"a": "0"}})).await;
    cluster.make::<Secret>(json!({"metadata": {"name": "s"}, "stringData": {"k": "0"}})).await;
    let volumes = json!([
        {"name": "map", "configMap": {"name": "m"}}, {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "down", "downwardAPI": {"items": [
            {"path": "l", "fieldRef": {"fieldPath": "metadata.labels['edit']"}}]}},
        {"name": "later", "configMap": {"name": "late", "optional": true}},
    ]);
    let mounts = json!([
        {"name": "map", "mountPath": "/map"}, {"name": "secret", "mountPath": "/secret"},
        {"name": "down", "mountPath": "/down"}, {"name": "later", "mountPath": "/later"},
    ]);
    // One process per file, so that each prints its own changes.
    let each = ["/map/a", "/secret/k", "/down/l", "/later/x"].map(|file| {
        format!(
            "( while :; do n=$(cat {file} 2>/dev/null); [ \"$n\" = \"$w\" ] || \
            {{ echo \"{file} $n\"; w=$n; }}; sleep 0.02; done ) &"
        )
    });
    let text = format!("trap 'exit 0' TERM; {} while :; do sleep 0.1; done", each.join(" "));
    let made = cluster.create(script("edits", &text, volumes, mounts)).await;
    cluster.until("edits", "ready", ready).await;
    cluster.until_line(&made, "/map/a 0").await;

    let mut took = Vec::new();
    for round in 1..=7 {
        let text = round.to_string();
        let began = Instant::now();
        cluster.edit::<ConfigMap>("m", json!({"data": {"a": text}})).await;
        cluster.until_line(&made, &format!("/map/a {round}")).await;
        took.push(began.elapsed());
        let began = Instant::now();
        cluster.edit::<Secret>("s", json!({"stringData": {"k": text}})).await;
        cluster.until_line(&made, &format!("/secret/k {round}")).await;
        took.push(began.elapsed());
        let began = Instant::now();
        cluster.edit::<Pod>("edits", json!({"metadata": {"labels": {"edit": text}}})).await;
        cluster.until_line(&made, &format!("/down/l {round}")).await;
        took.push(began.elapsed());
    }
    took.sort_unstable();
    let (median, most) = (took[took.len() / 2], took[took.len() - 1]);
    let of = took.len();
    figure(&format!("edit to container: median {median:.2?}, longest {most:.2?} of {of}"));
    assert!(median < Duration::from_secs(10), "upstream takes a minute; this was {median:?}");

    // An optional source appears and disappears.
    cluster.make::<ConfigMap>(json!({"metadata": {"name": "late"}, "data": {"x": "here"}})).await;
    cluster.until_line(&made, "/later/x here").await;
    let gone = DeleteParams::default();
    cluster.objects::<ConfigMap>().delete("late", &gone).await.unwrap();
    cluster.until_line(&made, "/later/x ").await;
    cluster.close();
}

#[tokio::test]
async fn missing_object_is_reported_and_the_pod_runs_when_it_appears() {
    needs_root!();
    let cluster = Cluster::start().await;
    let volumes = json!([
        {"name": "s", "secret": {"secretName": "absent"}},
        {"name": "unused", "configMap": {"name": "nobody-cares"}},
    ]);
    let mounts = json!([{"name": "s", "mountPath": "/s"}]);
    let made = cluster.create(script("waits", &print_changes(&["/s/k"]), volumes, mounts)).await;
    let wanted = r#"MountVolume.SetUp failed for volume "s" : secret "absent" not found"#;
    let events: Api<Event> = cluster.objects();
    let reported = async || {
        let list = events.list(&ListParams::default()).await?;
        let is = |event: &Event| {
            event.reason.as_deref() == Some("FailedMount")
                && event.message.as_deref() == Some(wanted)
        };
        Ok(list.items.iter().any(is))
    };
    wait::until_true("the event", LIMIT, reported).await.unwrap();
    let waits = |status: &Value| {
        status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ContainerCreating"
    };
    cluster.until("waits", "waiting", waits).await;
    let began = Instant::now();
    cluster.make::<Secret>(json!({"metadata": {"name": "absent"}, "stringData": {"k": "v"}})).await;
    cluster.until_line(&made, "v").await;
    figure(&format!("missing Secret created to container runs: {:.2?}", began.elapsed()));

    // The same for an environment variable.
    let mut needs = pod("variable", &["serve"]);
    needs["spec"]["containers"][0]["env"] =
        json!([{"name": "V", "valueFrom": {"configMapKeyRef": {"name": "vars", "key": "v"}}}]);
    cluster.create(needs).await;
    let refused = |status: &Value| {
        let waiting = &status["containerStatuses"][0]["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError"
            && waiting["message"] == "configmap \"vars\" not found"
    };
    cluster.until("variable", "refused", refused).await;
    let began = Instant::now();
    cluster.make::<ConfigMap>(json!({"metadata": {"name": "vars"}, "data": {"v": "1"}})).await;
    cluster.until("variable", "ready", ready).await;
    figure(&format!("missing ConfigMap created to pod Ready: {:.2?}", began.elapsed()));
    cluster.close();
}

#[tokio::test]
async fn secret_is_only_in_memory_and_leaves_nothing() {
    needs_root!();
    let mut cluster = Cluster::start().await;
    const WORD: &str = "correct-horse-battery";
    cluster.make::<Secret>(json!({"metadata": {"name": "s"}, "stringData": {"k": WORD}})).await;
    let volumes = json!([
        {"name": "plain", "secret": {"secretName": "s"}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": "s"}}]}},
    ]);
    let mounts =
        json!([{"name": "plain", "mountPath": "/plain"}, {"name": "all", "mountPath": "/all"}]);
    let text = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let mut made = Vec::new();
    for name in ["stays", "goes"] {
        made.push(cluster.create(script(name, text, volumes.clone(), mounts.clone())).await);
        cluster.until(name, "ready", ready).await;
    }
    let root = cluster.agent.root_dir();
    let on_disk = |root: &Path| files_with(root, WORD, OnDisk::Only);
    assert_eq!(files_with(&root, WORD, OnDisk::AndInMemory).len(), 4, "all copies are readable");
    assert_eq!(on_disk(&root), Vec::<PathBuf>::new());

    cluster.pods().delete("goes", &DeleteParams::default()).await.unwrap();
    cluster.until_gone("goes").await;
    cluster.until_directory_removed(&made[1]).await;
    // What remains after the agent was killed.
    cluster.agent.kill().await.unwrap();
    cluster.pods().delete("stays", &DeleteParams::default()).await.unwrap();
    cluster.agent.restart().await.unwrap();
    cluster.until_gone("stays").await;
    assert_eq!(files_with(&root, WORD, OnDisk::AndInMemory), Vec::<PathBuf>::new());
    assert!(!cluster.agent.daemon().log().contains(WORD), "the Secret is in the log");
    cluster.close();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OnDisk {
    Only,
    AndInMemory,
}

/// The files below a directory that contain a word.
fn files_with(directory: &Path, word: &str, which: OnDisk) -> Vec<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let disk = std::fs::symlink_metadata(directory).unwrap().dev();
    let (mut found, mut open) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in there(std::fs::read_dir(directory)).into_iter().flatten() {
            let path = entry.unwrap().path();
            let Some(metadata) = there(std::fs::symlink_metadata(&path)) else { continue };
            if which == OnDisk::Only && metadata.dev() != disk {
                continue;
            }
            if metadata.is_dir() {
                open.push(path);
            } else if metadata.is_file() {
                let text = there(std::fs::read(&path)).unwrap_or_default();
                if text.windows(word.len()).any(|part| part == word.as_bytes()) {
                    found.push(path);
                }
            }
        }
    }
    found
}

/// The content, unless the file vanished since it was listed, as temporary files do.
fn there<T>(read: std::io::Result<T>) -> Option<T> {
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        read => Some(read.unwrap()),
    }
}

#[tokio::test]
async fn image_volume_is_mounted_where_the_runtime_supports_it() {
    needs_root!();
    let bed = Bed::builder().containerd(Release::V2).start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let image = "localhost/podwright/test:latest";
    let volumes = json!([{"name": "files", "image": {"reference": image, "pullPolicy": "Never"}}]);
    let mounts = json!([{"name": "files", "mountPath": "/files"}]);
    let text = "test -x /files/bin/busybox && echo found; \
        (echo x > /files/x) 2>/dev/null || echo read-only; \
        trap 'exit 0' TERM; while :; do sleep 0.1; done";
    agent.add_manifest("reads", &script("reads", text, volumes, mounts)).unwrap();
    let output = async || {
        let directories = agent.log_directories()?;
        let Some(directory) = directories.first() else { return Ok(false) };
        let log = std::fs::read_to_string(directory.join("app/0.log"))?;
        Ok(log.contains(" found\n") && log.contains(" read-only\n"))
    };
    wait::until_true("the files of the image", LIMIT, output).await.unwrap();
    drop(agent);
    bed.close().unwrap();
}

#[tokio::test]
async fn restarted_agent_adopts_its_volumes() {
    needs_root!();
    let mut cluster = Cluster::start().await;
    cluster.make::<ConfigMap>(json!({"metadata": {"name": "m"}, "data": {"a": "0"}})).await;
    let volumes = json!([{"name": "map", "configMap": {"name": "m"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}}]);
    let mounts =
        json!([{"name": "map", "mountPath": "/map"}, {"name": "memory", "mountPath": "/memory"}]);
    let mut made = Vec::new();
    for name in ["kept", "deleted"] {
        let text = print_changes(&["/map/a"]);
        let pod = script(name, &text, volumes.clone(), mounts.clone());
        made.push(cluster.create(pod).await);
        cluster.until(name, "ready", ready).await;
    }
    cluster.agent.kill().await.unwrap();
    cluster.edit::<ConfigMap>("m", json!({"data": {"a": "1"}})).await;
    cluster.pods().delete("deleted", &DeleteParams::default()).await.unwrap();
    cluster.agent.restart().await.unwrap();
    cluster.until_line(&made[0], "1").await;
    cluster.edit::<ConfigMap>("m", json!({"data": {"a": "2"}})).await;
    cluster.until_line(&made[0], "2").await;
    cluster.until_gone("deleted").await;
    cluster.until_directory_removed(&made[1]).await;
    let kept = cluster.pods().get("kept").await.unwrap().status.unwrap();
    assert_eq!(kept.container_statuses.unwrap()[0].restart_count, 0);
    cluster.close();
}

#[tokio::test]
async fn bound_claim_provides_persistent_data() {
    needs_root!();
    let cluster = Cluster::start().await;
    let data = cluster.agent.root_dir().join("data");
    std::fs::create_dir_all(&data).unwrap();
    let claim = cluster.claim("data", "pv-1", &data).await;
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
    let mounts = json!([{"name": "d", "mountPath": "/d"}]);
    let text = "echo kept > /d/file && echo wrote; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let mut wanted = script("claims", text, volumes, mounts);
    wanted["spec"]["securityContext"] = json!({ "fsGroup": 4321 });
    let made = cluster.create(wanted).await;
    let events: Api<Event> = cluster.objects();
    let reported = async || {
        let list = events.list(&ListParams::default()).await?;
        let mut output = list.items.iter().filter_map(|event| event.message.as_deref());
        Ok(output.any(|m| m.ends_with("error processing PVC shop/data: PVC is not bound")))
    };
    wait::until_true("the event", LIMIT, reported).await.unwrap();

    cluster.bind(&claim, "pv-1").await;
    cluster.until_line(&made, "wrote").await;
    cluster.pods().delete("claims", &DeleteParams::default()).await.unwrap();
    cluster.until_gone("claims").await;
    assert_eq!(std::fs::read_to_string(data.join("file")).unwrap(), "kept\n");
    cluster.until_directory_removed(&made).await;
    cluster.close();
}
