//! The private containerd of `podwright up` dies, hangs or cannot start: the agent starts it again
//! and says so, and pods do not notice.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::Release;
use podwright_e2e::process::{COMMAND_LIMIT, Stdin, everything, run};
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::privilege::needs_root;
use crate::standalone::Standalone;

const LIMIT: Duration = Duration::from_secs(180);

fn pod(name: &str) -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
            "name": "web", "image": "localhost/podwright/test:latest",
            "imagePullPolicy": "Never", "args": ["serve", "--http", "8080"],
        }]},
    });
    pod.to_string()
}

/// A node and its pods.
struct Case<'a> {
    node: Standalone<'a>,
    bed: &'a Bed,
}

impl<'a> Case<'a> {
    async fn with_pod(bed: &'a Bed) -> Self {
        let case = Self { node: Standalone::up(bed).await, bed };
        case.start("web").await;
        case
    }

    async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        self.node.kubectl(Release::V1_32).run(arguments).await
    }

    async fn start(&self, name: &str) {
        let kubectl = self.node.kubectl(Release::V1_32);
        kubectl.run_with(&["apply", "-f", "-"], &pod(name)).await.unwrap();
        let wait = ["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"];
        kubectl.run(&wait).await.unwrap();
    }

    /// Processes in the cgroups of all pods.
    fn processes(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let root = self.node.cgroup_root();
        collect(&self.bed.environment().cgroup().of("pids", &root).unwrap(), &mut found);
        found
    }

    async fn restarts(&self) -> String {
        let path = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
        self.kubectl(&["get", "pods", "-o", path]).await.unwrap()
    }

    /// Waits until another containerd than the one with this pid responds.
    async fn replaced(&self, pid: &str) {
        let is_replaced = async || {
            let now = fs::read_to_string(self.node.run_directory().join("containerd.pid"))?;
            let now: Value = serde_json::from_str(&now)?;
            let version = self.bed.exec(&["ctr", "--address", &self.socket(), "version"]).await;
            Ok(now["pid"].as_u64() != pid.parse().ok() && version.is_ok())
        };
        wait::until_true("containerd to be started again", LIMIT, is_replaced).await.unwrap();
    }

    fn socket(&self) -> String {
        self.node.run_directory().join("containerd.sock").to_string_lossy().into_owned()
    }

    /// Waits until `podwright status` contains these texts.
    async fn status_shows(&self, texts: &[&str]) {
        let shown = async || {
            let status = self.node.run(&["status"]).await?;
            Ok(texts.iter().all(|text| status.contains(text)))
        };
        wait::until_true(format!("the status to contain {texts:?}"), LIMIT, shown).await.unwrap();
    }

    async fn events(&self) -> String {
        let columns = "custom-columns=REASON:.reason,MESSAGE:.message";
        let node = ["get", "events", "-A", "--field-selector", "involvedObject.kind=Node"];
        self.kubectl(&[&node[..], &["-o", columns]].concat()).await.unwrap()
    }

    async fn event(&self, reason: &str, message: &str) {
        let seen = async || {
            let events = self.events().await;
            Ok(events.lines().any(|it| it.starts_with(reason) && it.contains(message)))
        };
        wait::until_true(format!("the event {reason}: {message}"), LIMIT, seen).await.unwrap();
    }

    fn doctor(&self) -> String {
        let mut doctor = self.bed.command(&self.node.program);
        doctor.args(["doctor", "--state-dir", &self.node.state]);
        everything(&run(&mut doctor, Stdin::Ends(b""), COMMAND_LIMIT).unwrap())
    }

    async fn kill(&self, signal: &str, of: &str) -> String {
        let pid = self.node.pid(of);
        self.bed.exec(&["kill", signal, &pid]).await.unwrap();
        pid
    }
}

fn collect(directory: &Path, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        collect(&entry.path(), found);
    }
    let processes = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    found.extend(processes.lines().map(str::to_owned));
}

fn limits(pid: &str) -> String {
    fs::read_to_string(Path::new("/proc").join(pid).join("limits")).unwrap()
}

fn oom_score(pid: &str) -> String {
    fs::read_to_string(Path::new("/proc").join(pid).join("oom_score_adj")).unwrap()
}

#[tokio::test]
async fn killed_or_hanging_containerd_is_started_again_and_pods_do_not_notice() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let case = Case::with_pod(&bed).await;
    let (before, first) = (case.processes(), case.node.pid("containerd"));
    assert!(before.len() >= 2, "sandbox and container: {before:?}");
    let (limits_before, score_before) = (limits(&first), oom_score(&first));

    case.kill("-KILL", "containerd").await;
    case.replaced(&first).await;
    let texts = ["containerd was started again once", "agent running, runtime running"];
    case.status_shows(&texts).await;
    case.event("ContainerRuntimeExited", "containerd").await;
    case.event("ContainerRuntimeStarted", "containers kept running").await;
    let second = case.node.pid("containerd");
    assert_eq!((limits(&second), oom_score(&second)), (limits_before, score_before));
    let doctor = case.doctor();
    assert!(doctor.contains("started again once by this agent"), "{doctor}");

    // The second one is a child of the agent, so its end is known.
    case.kill("-KILL", "containerd").await;
    case.replaced(&second).await;
    // Until it has started, it has longer to respond.
    case.status_shows(&["started again 2 times", "killed by signal 9 (SIGKILL)"]).await;
    let third = case.node.pid("containerd");
    assert!(!Path::new("/proc").join(&second).exists(), "an ended containerd is reaped");

    case.kill("-STOP", "containerd").await;
    case.replaced(&third).await;
    case.event("ContainerRuntimeHanging", "does not respond").await;
    case.status_shows(&["did not respond and was killed"]).await;

    assert_eq!(case.processes(), before);
    assert_eq!(case.restarts().await, "0");
    case.start("after").await;
    assert!(case.processes().is_superset(&before));
    case.node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}

#[tokio::test]
async fn containerd_is_supervised_by_each_new_agent() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let case = Case::with_pod(&bed).await;
    let before = case.processes();
    let first = case.node.pid("containerd");
    case.kill("-KILL", "agent").await;
    assert!(case.node.run(&["status"]).await.unwrap().contains("agent not running"));
    // Nothing starts containerd while no agent runs; `up` does.
    case.kill("-KILL", "containerd").await;
    case.node.run(&["up"]).await.unwrap();
    let second = case.node.pid("containerd");
    assert_ne!(second, first);
    // An agent that finds it running supervises it as well.
    case.kill("-KILL", "agent").await;
    case.node.run(&["up"]).await.unwrap();
    assert_eq!(case.node.pid("containerd"), second);
    case.kill("-KILL", "containerd").await;
    case.replaced(&second).await;
    assert_eq!(case.processes(), before);
    assert_eq!(case.restarts().await, "0");
    // Killed at the beginning of a stop: the pods stop by the agent all the same.
    case.kill("-KILL", "containerd").await;
    let printed = case.node.run(&["down"]).await.unwrap();
    assert!(printed.contains("1 pod stopped"), "{printed}");
    bed.close().unwrap();
}

#[tokio::test]
async fn containerd_that_cannot_start_is_reported_with_the_reason_and_recovers() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let case = Case::with_pod(&bed).await;
    let before = case.processes();
    let data = Path::new(&case.node.state).join("containerd/root");
    let kept = data.with_extension("kept");
    case.kill("-STOP", "containerd").await;
    fs::rename(&data, &kept).unwrap();
    fs::write(&data, "not a directory").unwrap();
    case.kill("-KILL", "containerd").await;

    let reason = "not a directory";
    let texts = ["runtime not running", reason, "next start in "];
    case.status_shows(&texts).await;
    let doctor = case.doctor();
    assert!(doctor.contains(" is down: ") && doctor.contains(reason), "{doctor}");
    let images = case.node.run(&["images", "list"]).await.unwrap_err();
    assert!(format!("{images:#}").contains(reason), "{images:#}");
    // The node's condition names the reason too.
    let condition = async || {
        let path = "jsonpath={.items[0].status.conditions[?(@.type=='Ready')].message}";
        let message = case.kubectl(&["get", "nodes", "-o", path]).await?;
        Ok(message.contains("container runtime is down: ") && message.contains(reason))
    };
    wait::until_true("the node to be not ready", LIMIT, condition).await.unwrap();
    assert_eq!(case.processes(), before);

    fs::remove_file(&data).unwrap();
    fs::rename(&kept, &data).unwrap();
    case.event("ContainerRuntimeStarted", "started again").await;
    assert_eq!(case.processes(), before);
    assert_eq!(case.restarts().await, "0");
    case.start("after").await;
    case.node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}

#[tokio::test]
async fn existing_runtime_is_never_killed_or_started() {
    needs_root!();
    let mut bed = Bed::builder().start().await.unwrap();
    let endpoint = bed.containerd().endpoint();
    {
        let node = Standalone::new(&bed, "up");
        node.run(&["up", "--container-runtime-endpoint", &endpoint]).await.unwrap();
        assert!(!node.run_directory().join("containerd.json").exists());
        bed.containerd().kill().await.unwrap();
        let down = async || {
            let status = node.run(&["status"]).await?;
            Ok(status.contains("runtime not running"))
        };
        wait::until_true("the runtime to be down", LIMIT, &down).await.unwrap();
        // Longer than the first delays of a supervised one.
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!node.run_directory().join("containerd.pid").exists());
        assert!(down().await.unwrap());
    }
    bed.containerd_mut().restart().await.unwrap();
    let node = Standalone::new(&bed, "up");
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}
