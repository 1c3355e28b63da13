//! `podwright up` and `podwright down`, as a user runs them.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::machine::Kind;
use podwright_e2e::process::{COMMAND_LIMIT, Stdin, everything, output, run};
use podwright_e2e::{images, tools, wait};
use podwright_proto::cri::PortMapping;
use serde_json::{Value, json};

use crate::machine_unchanged::{Before, create_machine_wide_bystanders};
use crate::privilege::{isolated, needs_root};

const LIMIT: Duration = Duration::from_secs(180);
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// A standalone node in the bed's network, with the machine's containerd and plugins.
pub(crate) struct Standalone<'a> {
    bed: &'a Bed,
    pub(crate) program: String,
    pub(crate) state: String,
    _undertaker: DownOnDrop,
    /// Bystanders are created in the state directory once it exists.
    bystanders: bool,
}

impl<'a> Standalone<'a> {
    pub(crate) fn new(bed: &'a Bed, state: &str) -> Self {
        let program = tools::podwright().unwrap().to_string_lossy().into_owned();
        let state = bed.path(state).to_string_lossy().into_owned();
        let mut down = bed.command(&program);
        down.args(["down", "--state-dir", &state]);
        Self { bed, program, state, _undertaker: DownOnDrop(down), bystanders: true }
    }

    /// A node whose state directory the case fills itself.
    pub(crate) fn without_bystanders(bed: &'a Bed, state: &str) -> Self {
        Self { bystanders: false, ..Self::new(bed, state) }
    }

    /// A running node with the test image loaded.
    pub(crate) async fn up(bed: &'a Bed) -> Self {
        let node = Self::new(bed, "up");
        node.run(&["up"]).await.unwrap();
        node.load_test_image().await;
        node
    }

    /// `kubectl` with the kubeconfig that the node wrote.
    pub(crate) fn kubectl(&self, release: Release) -> Kubectl {
        let kubeconfig = Path::new(&self.state).join("kubeconfig");
        self.bed.kubectl_with(release, kubeconfig).unwrap()
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = vec![self.program.as_str()];
        command.extend(arguments);
        command.extend(["--state-dir", &self.state]);
        let printed = self.bed.exec(&command).await?;
        if arguments.first() == Some(&"up")
            && self.bystanders
            && let Some(bystanders) = self.bed.bystanders()
        {
            bystanders.create_in_state_directory(Path::new(&self.state))?;
        }
        Ok(printed)
    }

    /// The cgroup of all its pods, once it is up.
    pub(crate) fn cgroup_root(&self) -> String {
        let made = json_of(&Path::new(&self.state).join("made.json"));
        made["cgroup_root"].as_str().unwrap().to_owned()
    }

    /// Identifies this node in the names of its cgroups and directories, once it is up.
    pub(crate) fn instance(&self) -> String {
        self.cgroup_root().split('-').next_back().unwrap().to_owned()
    }

    /// The directory of its pid files and sockets, once it is up.
    pub(crate) fn run_directory(&self) -> PathBuf {
        Path::new("/run/podwright").join(self.instance())
    }

    /// The pid of its agent or its containerd.
    pub(crate) fn pid(&self, of: &str) -> String {
        json_of(&self.run_directory().join(format!("{of}.pid")))["pid"].to_string()
    }

    pub(crate) fn put_manifest(&self, pod: &Value) {
        let name = format!("{}.yaml", pod["metadata"]["name"].as_str().unwrap());
        fs::write(Path::new(&self.state).join("manifests").join(name), pod.to_string()).unwrap();
    }

    /// The address of its pod, once that responds.
    async fn address_of_pod(&self) -> String {
        let address = async || {
            let pods = self.pods().await;
            let up = pods.iter().find(|pod| pod["running"] == 1);
            anyhow::Ok(up.and_then(|pod| pod["ip"].as_str()).map(str::to_owned))
        };
        // The API shows the last address until the agent has reported another.
        let answers = async || {
            let Some(ip) = address().await? else { return Ok(None) };
            let page = format!("http://{ip}:8080/");
            anyhow::Ok(self.bed.http_get(&page).await.is_ok().then_some(ip))
        };
        wait::until("the pod to respond", LIMIT, answers).await.unwrap()
    }

    pub(crate) async fn pods(&self) -> Vec<Value> {
        let status = self.run(&["status", "--output", "json"]).await.unwrap();
        let status: Value = serde_json::from_str(&status).unwrap();
        status["pods"].as_array().cloned().unwrap_or_default()
    }

    pub(crate) async fn load_test_image(&self) {
        let archives = images::archives().unwrap();
        let named = |archive: &&images::Archive| archive.path.ends_with("test.tar");
        let archive = archives.iter().find(named).expect("cargo xtask images makes it");
        let archive = archive.path.to_string_lossy().into_owned();
        let load = ["images", "--state-dir", &self.state, "load", &archive];
        let mut command = vec![self.program.as_str()];
        command.extend(load);
        self.bed.exec(&command).await.unwrap();
    }
}

/// Stops the node of a failed case: a bed does not know the node's own cgroup.
struct DownOnDrop(Command);

impl Drop for DownOnDrop {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The failure of the case is what matters.
            let _ = output(&mut self.0);
        }
    }
}

fn json_of(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// A pod that serves a page, also at a host port.
fn web(host_port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "hello" },
        "spec": { "terminationGracePeriodSeconds": 2, "containers": [{
            "name": "web", "image": "localhost/podwright/test:latest",
            "imagePullPolicy": "Never", "args": ["serve", "--http", "8080"],
            "ports": [{ "containerPort": 8080, "hostPort": host_port }],
        }] },
    })
}

/// Checks that leftovers of a running node would be detected.
async fn assert_seen(before: &Before, bed: &Bed, instance: &str) {
    let changes = before.changes(bed, &[instance]).await;
    let bridge = format!("pw-{instance}");
    for (kind, text) in [
        (Kind::Mount, "overlay"),
        (Kind::Mount, "nsfs"),
        (Kind::Cgroup, instance),
        (Kind::Link, bridge.as_str()),
        (Kind::Rule, instance),
        (Kind::Sysctl, "net/ipv4/ip_forward: 0  ->  1"),
        (Kind::Process, " podwright"),
        (Kind::Process, " containerd: "),
        (Kind::Process, " containerd-shim: "),
        (Kind::Process, " pause: "),
        (Kind::Process, " testserver: "),
        (Kind::File, "/run/podwright/"),
        (Kind::File, "/run/containerd/s/"),
        (Kind::File, "/var/lib/cni/results/"),
    ] {
        assert!(changes.names(kind, text), "no {kind} {text} in\n{changes}");
    }
}

/// Disables forwarding, which a node enables. In a bed it is enabled by default.
async fn forward_nothing(bed: &Bed) {
    bed.exec(&["sh", "-c", &format!("echo 0 >{FORWARDING}")]).await.unwrap();
}

#[tokio::test]
async fn up_runs_a_pod_and_down_leaves_nothing() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    forward_nothing(&bed).await;
    create_machine_wide_bystanders();
    let node = Standalone::new(&bed, "up");
    let before = Before::take(&bed).await;

    node.run(&["up"]).await.unwrap();
    let instance = node.instance();
    node.load_test_image().await;
    node.put_manifest(&web(18080));
    node.address_of_pod().await;

    let again = node.run(&["up"]).await.unwrap();
    assert!(again.contains("containerd") && again.contains("agent: already running"), "{again}");
    let uid = node.pods().await[0]["uid"].clone();
    assert_eq!(node.pods().await[0]["restarts"], 0);
    let examined = async || {
        let mut doctor = bed.command(&node.program);
        doctor.args(["doctor", "--state-dir", &node.state]);
        let printed = everything(&run(&mut doctor, Stdin::Ends(b""), COMMAND_LIMIT)?);
        anyhow::ensure!(printed.contains("is running and Ready"), "{printed}");
        Ok(true)
    };
    wait::until_true("the doctor to report no problems", LIMIT, examined).await.unwrap();

    assert_seen(&before, &bed, &instance).await;
    node.run(&["down"]).await.unwrap();
    before.assert_same(&bed, &[bed.id(), &instance]).await;

    node.run(&["up"]).await.unwrap();
    node.address_of_pod().await;
    assert_eq!(node.pods().await[0]["uid"], uid, "the same manifest is the same pod");

    // a killed containerd removes nothing itself: network namespaces, links, shims, sockets
    bed.exec(&["kill", "-9", &node.pid("containerd")]).await.unwrap();
    bed.exec(&["kill", "-9", &node.pid("agent")]).await.unwrap();
    node.run(&["down"]).await.unwrap();
    before.assert_same(&bed, &[bed.id(), &instance]).await;
    bed.close().unwrap();
}

#[tokio::test]
async fn removing_one_of_two_nodes_keeps_the_other_and_the_machine_network() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    forward_nothing(&bed).await;
    // like a kubelet with its own plugins
    let foreign = ["-t", "nat", "-N", "CNI-0123456789abcdef"];
    let entry = [
        "-t",
        "nat",
        "-A",
        "POSTROUTING",
        "-s",
        "10.9.9.9",
        "-m",
        "comment",
        "--comment",
        "name: \"cbr0\" id: \"x\"",
        "-j",
        "CNI-0123456789abcdef",
    ];
    let before = Before::take(&bed).await;
    let (one, other) = (Standalone::new(&bed, "one"), Standalone::new(&bed, "other"));
    for (node, port) in [(&one, 18080), (&other, 18081)] {
        node.run(&["up"]).await.unwrap();
        node.load_test_image().await;
        node.put_manifest(&web(port));
        node.address_of_pod().await;
    }
    for command in [&foreign[..], &entry[..]] {
        bed.exec(&[&["iptables"], command].concat()).await.unwrap();
    }
    let (first, second) = (one.instance(), other.instance());
    let of_the_other = async || {
        let rules = bed.exec(&["iptables-save"]).await.unwrap();
        rules.lines().filter(|line| line.contains(&second)).count()
    };
    let rules = of_the_other().await;

    let printed = one.run(&["down"]).await.unwrap();
    assert!(printed.contains("ip_forward") && printed.contains("are kept"), "{printed}");
    assert_eq!(of_the_other().await, rules);
    assert_eq!(bed.exec(&["cat", FORWARDING]).await.unwrap().trim(), "1");
    let page = async || Ok(bed.http_get("http://10.99.0.10:18081/").await.is_ok());
    wait::until_true("the page of the other node", LIMIT, page).await.unwrap();
    let left = bed.exec(&["iptables-save"]).await.unwrap();
    assert!(!left.contains(&first), "{left}");

    other.run(&["down"]).await.unwrap();
    let left = bed.exec(&["iptables-save", "-t", "nat"]).await.unwrap();
    assert!(left.contains("cbr0"), "{left}");
    for (action, end) in [("-D", &entry[3..]), ("-X", &foreign[3..])] {
        bed.exec(&[&["iptables", "-t", "nat", action], end].concat()).await.unwrap();
    }
    before.assert_same(&bed, &[bed.id(), &first, &second]).await;
    bed.close().unwrap();
}

#[tokio::test]
async fn existing_runtime_keeps_nothing_of_a_removed_node() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");

    // a runtime that does not respond is reported before anything is created
    let unserved = format!("unix://{}", bed.path("nobody.sock").display());
    let refused = node.run(&["up", "--container-runtime-endpoint", &unserved]).await.unwrap_err();
    assert!(format!("{refused:#}").contains("nobody.sock"), "{refused:#}");
    assert!(!Path::new(&node.state).join("made.json").exists());

    // and so is one with the pods of another node
    let cri = bed.cri().await.unwrap();
    let mut config = cri.sandbox("neighbour");
    let label = |end: &str, value: &str| (format!("io.kubernetes.pod.{end}"), value.to_owned());
    config.labels = [label("uid", "u"), label("name", "neighbour"), label("namespace", "n")].into();
    // With a host port: the plugins' chains for them belong to the runtime and stay.
    let port = PortMapping { container_port: 80, host_port: 18090, ..Default::default() };
    config.port_mappings = vec![port];
    let neighbour = cri.run_sandbox(config).await.unwrap();
    let endpoint = bed.containerd().endpoint();
    let up = ["up", "--container-runtime-endpoint", &endpoint];
    let refused = node.run(&up).await.unwrap_err();
    assert!(format!("{refused:#}").contains("another node"), "{refused:#}");
    cri.remove_sandbox(&neighbour).await.unwrap();
    let before = Before::take(&bed).await;

    node.run(&up).await.unwrap();
    let instance = node.instance();
    node.put_manifest(&web(18080));
    node.address_of_pod().await;
    let other = node.run(&["up", "--container-runtime-endpoint", &unserved]).await.unwrap_err();
    assert!(format!("{other:#}").contains("podwright down"), "{other:#}");
    let bare = cri.run_sandbox(cri.sandbox("bare")).await.unwrap();
    let printed = node.run(&["down"]).await.unwrap();
    assert!(printed.contains("1 pod stopped"), "{printed}");
    let left: Vec<String> = cri.sandboxes().await.unwrap().into_iter().map(|it| it.id).collect();
    assert_eq!(left, std::slice::from_ref(&bare), "foreign sandboxes stay");
    cri.remove_sandbox(&bare).await.unwrap();
    before.assert_same(&bed, &[bed.id(), &instance]).await;

    // a private runtime that is started next is removed with the node
    node.run(&["up"]).await.unwrap();
    let containerd = node.pid("containerd");
    node.run(&["down"]).await.unwrap();
    // an unreaped process is still listed, but has no program any more
    assert!(fs::read_link(format!("/proc/{containerd}/exe")).is_err());
    bed.close().unwrap();
}

#[tokio::test]
async fn run_script_shows_a_pod_and_removes_everything() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    create_machine_wide_bystanders();
    let node = Standalone::new(&bed, "run");
    let before = Before::take(&bed).await;
    let script = async |arguments: &[&str]| {
        let mut command = bed.command(&tools::repository().join("run").to_string_lossy());
        command.args(arguments).env("HOME", bed.path("home"));
        command.env("PODWRIGHT_STATE", &node.state).env("PODWRIGHT_BIN", &node.program);
        bed.environment().run(command).await.unwrap()
    };

    for reported in ["agent: started", "agent: already running"] {
        let printed = script(&[]).await;
        for part in [reported, "is Ready", "hello from podwright", "./run --down"] {
            assert!(printed.contains(part), "no {part:?} in\n{printed}");
        }
    }
    let bystanders = bed.bystanders().unwrap();
    bystanders.create_in_state_directory(Path::new(&node.state)).unwrap();
    let instance = node.instance();
    let printed = script(&["--down"]).await;
    assert!(printed.contains("stopped; data kept in"), "{printed}");
    assert!(!bed.path("home").exists(), "kubectl wrote into HOME");
    before.assert_same(&bed, &[bed.id(), &instance]).await;
    bed.close().unwrap();
}

#[tokio::test]
async fn running_node_applies_new_options_or_reports_why_not() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    node.put_manifest(&web(18080));
    let ip = node.address_of_pod().await;
    let gateway = format!("{}.1", ip.rsplit_once('.').unwrap().0);
    let port = fs::read_to_string(Path::new(&node.state).join("api/port")).unwrap();
    let open = async || bed.http_get(&format!("https://{gateway}:{port}/version")).await.is_ok();
    assert!(open().await);

    // cordoned, and stays so until uncordoned
    let mut agent = node.pid("agent");
    for (arguments, is_open, replaced) in [
        (&["up", "--no-pod-api"][..], false, true),
        (&["up"], false, false),
        (&["up", "--no-pod-api=false"], true, true),
    ] {
        let printed = node.run(arguments).await.unwrap();
        assert_eq!(
            printed.contains("restarting with new flags"),
            replaced,
            "{arguments:?}: {printed}"
        );
        assert_eq!(open().await, is_open, "{arguments:?}");
        let now = node.pid("agent");
        assert_eq!(now != agent, replaced, "{arguments:?}");
        agent = now;
    }
    let refused = node.run(&["up", "--pod-cidr", "10.55.0.0/16"]).await.unwrap_err();
    assert!(format!("{refused:#}").contains("podwright down"), "{refused:#}");

    // another build replaces the running one
    let another = bed.path("podwright");
    fs::copy(&node.program, &another).unwrap();
    let same = bed.exec(&[another.to_str().unwrap(), "up", "--state-dir", &node.state]).await;
    assert!(same.unwrap().contains("agent: already running"), "a copy is the same build");
    let mut file = fs::OpenOptions::new().append(true).open(&another).unwrap();
    file.write_all(b"another build").unwrap();
    drop(file);
    let printed = bed.exec(&[another.to_str().unwrap(), "up", "--state-dir", &node.state]).await;
    assert!(printed.as_ref().is_ok_and(|printed| printed.contains("another build")), "{printed:?}");
    let program = fs::read_link(format!("/proc/{}/exe", node.pid("agent"))).unwrap();
    assert_eq!(program, another);

    let pods = node.pods().await;
    assert_eq!((&pods[0]["running"], &pods[0]["restarts"]), (&json!(1), &json!(0)), "{pods:?}");
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}
