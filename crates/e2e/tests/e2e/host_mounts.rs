//! Host mounts and termination messages after a pod has ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kube::api::DeleteParams;
use podwright_e2e::bed::Bed;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, pod, ready, status};
use crate::privilege::needs_root;
use crate::volumes::script;

/// A host directory tree on its own file system, shared as systemd shares `/`.
struct Tree(PathBuf);

impl Tree {
    fn new(path: PathBuf) -> Self {
        fs::create_dir_all(&path).unwrap();
        run("mount", &["-t", "tmpfs", "host"], &path);
        run("mount", &["--make-shared"], &path);
        Self(path)
    }

    /// Mounts a file system with a file in it.
    fn mount(&self, below: &str) {
        let path = self.0.join(below);
        fs::create_dir_all(&path).unwrap();
        run("mount", &["-t", "tmpfs", "users"], &path);
        fs::write(path.join("file"), "precious").unwrap();
    }

    #[track_caller]
    fn assert_there(&self, below: &str) {
        let text = fs::read_to_string(self.0.join(below).join("file"));
        assert_eq!(text.unwrap_or_default(), "precious", "the host lost {below}");
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--recursive", "--lazy"]).arg(&self.0).status();
    }
}

#[track_caller]
fn run(program: &str, arguments: &[&str], path: &Path) {
    let status = Command::new(program).args(arguments).arg(path).status().unwrap();
    assert!(status.success(), "{program} {arguments:?} {}", path.display());
}

/// The mount points at or below a path.
fn mounts_below(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| Path::new(point).starts_with(path)).map(str::to_owned).collect()
}

const WAITS: &str = "trap 'exit 0' TERM; \
    while :; do for f in /part/later/file /local/later/file; do \
    [ -e $f ] && echo \"$f $(cat $f)\"; done; sleep 0.1; done";

#[tokio::test]
async fn pod_end_leaves_the_mounts_of_the_host() {
    needs_root!();
    let cluster = Cluster::start().await;
    let tree = Tree::new(cluster.bed.path("host"));
    fs::create_dir_all(tree.0.join("local")).unwrap();
    tree.mount("disks/before");
    let claim = cluster.claim("data", "pv-1", &tree.0.join("local")).await;
    cluster.bind(&claim, "pv-1").await;
    let volumes = json!([
        {"name": "host", "hostPath": {"path": tree.0}},
        {"name": "local", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]);
    let passed_on = |name: &str, path: &str, propagation: &str| json!({"name": name, "mountPath": path, "mountPropagation": propagation});
    let mut part = passed_on("host", "/part", "HostToContainer");
    part["subPath"] = json!("disks");
    let mut both = passed_on("host", "/both", "Bidirectional");
    both["subPath"] = json!("disks");
    let mounts = json!([
        part, both, passed_on("local", "/local", "HostToContainer"),
        {"name": "memory", "mountPath": "/memory", "subPath": "x"},
    ]);
    let mut wanted = script("uses", WAITS, volumes, mounts);
    // Bidirectional propagation requires a privileged container.
    wanted["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
    let made = cluster.create(wanted).await;
    cluster.until("uses", "ready", ready).await;
    for below in ["disks/later", "disks/later/nested", "local/later"] {
        tree.mount(below);
    }
    cluster.until_line(&made, "/part/later/file precious").await;
    cluster.until_line(&made, "/local/later/file precious").await;

    cluster.pods().delete("uses", &DeleteParams::default()).await.unwrap();
    cluster.until_gone("uses").await;
    for below in ["disks/before", "disks/later", "disks/later/nested", "local/later"] {
        tree.assert_there(below);
    }
    assert_eq!(mounts_below(&cluster.directory_of(&made)), Vec::<String>::new());
    cluster.until_directory_removed(&made).await;
    drop(tree);
    cluster.close();
}

#[tokio::test]
async fn foreign_mount_in_a_volume_is_kept_and_blocks_only_its_own_pod() {
    needs_root!();
    let cluster = Cluster::start().await;
    let text = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let volumes = json!([{"name": "scratch", "emptyDir": {}}]);
    let mounts = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    let mut made = Vec::new();
    for name in ["occupied", "free"] {
        made.push(cluster.create(script(name, text, volumes.clone(), mounts.clone())).await);
        cluster.until(name, "ready", ready).await;
    }
    let scratch = cluster.directory_of(&made[0]).join("volumes/kubernetes.io~empty-dir/scratch");
    let foreign = Tree::new(scratch.join("by-hand"));
    fs::write(foreign.0.join("file"), "precious").unwrap();
    for name in ["occupied", "free"] {
        cluster.pods().delete(name, &DeleteParams::default()).await.unwrap();
    }
    cluster.until_gone("free").await;
    // The log names it, and it is kept.
    let fix = format!("Fix: umount {}", foreign.0.display());
    let named = async || Ok(cluster.agent.daemon().log().contains(&fix));
    wait::until_true("the mount point to be named", LIMIT, named).await.unwrap();
    foreign.assert_there("");
    assert!(cluster.pods().get_opt("occupied").await.unwrap().is_some());
    // After it is unmounted, the pod is removed.
    drop(foreign);
    cluster.until_gone("occupied").await;
    cluster.until_directory_removed(&made[0]).await;
    cluster.close();
}

#[tokio::test]
async fn finished_pod_keeps_termination_message_when_the_agent_is_killed() {
    needs_root!();
    let mut cluster = Cluster::start().await;
    let volumes = json!([{"name": "memory", "emptyDir": {"medium": "Memory"}}]);
    let mounts = json!([{"name": "memory", "mountPath": "/memory"}]);
    let text = "echo -n 'all is well' > /dev/termination-log";
    let mut job = script("job", text, volumes, mounts);
    job["spec"]["restartPolicy"] = json!("Never");
    job["spec"]["containers"][0]["securityContext"] = Value::Null;
    let made = cluster.create(job).await;
    cluster.until("job", "succeeded", |status| status["phase"] == "Succeeded").await;
    let released = async || Ok(!cluster.directory_of(&made).join("volumes").try_exists()?);
    wait::until_true("its volumes to be released", LIMIT, released).await.unwrap();
    let message =
        |status: &Value| status["containerStatuses"][0]["state"]["terminated"]["message"].clone();
    for round in 0..2 {
        cluster.agent.kill().await.unwrap();
        cluster.agent.restart().await.unwrap();
        cluster.agent.healthy().await.unwrap();
        // A later pod has been reported, so this one has been as well.
        let name = format!("marker-{round}");
        cluster.create(pod(&name, &["serve"])).await;
        cluster.until(&name, "ready", ready).await;
        let shown = status(&cluster.pods().get("job").await.unwrap());
        assert_eq!(message(&shown), "all is well", "{shown}");
    }
    cluster.pods().delete("job", &DeleteParams::default()).await.unwrap();
    cluster.until_gone("job").await;
    cluster.until_directory_removed(&made).await;
    cluster.close();
}

#[tokio::test]
async fn volumes_below_a_linked_root_directory_are_unmounted() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let (real, link) = (bed.path("elsewhere/kubelet"), bed.path("link"));
    fs::create_dir_all(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let agent = bed.agent("node-1").argument(format!("--root-dir={}", link.display()));
    let agent = agent.start().unwrap();
    agent.healthy().await.unwrap();
    let mut wanted = pod("uses", &["serve"]);
    wanted["spec"].as_object_mut().unwrap().remove("nodeName");
    wanted["spec"]["volumes"] = json!([
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "down", "downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]);
    wanted["spec"]["containers"][0]["volumeMounts"] = json!([
        {"name": "memory", "mountPath": "/memory", "subPath": "part"},
        {"name": "down", "mountPath": "/down"},
    ]);
    let manifest = agent.add_manifest("uses", &wanted).unwrap();
    let pods = real.join("pods");
    let mounted = async || Ok(mounts_below(&pods).len() == 3);
    wait::until_true("its volumes to be mounted", LIMIT, mounted).await.unwrap();
    fs::remove_file(manifest).unwrap();
    let gone = async || Ok(fs::read_dir(&pods)?.count() == 0);
    wait::until_true("its directory to be gone", LIMIT, gone).await.unwrap();
    assert_eq!(mounts_below(&pods), Vec::<String>::new());
    drop(agent);
    bed.close().unwrap();
}
