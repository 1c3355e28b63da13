//! `podwright up` and `podwright down`, as a user runs them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::listing::{Difference, Listing};
use podwright_e2e::{images, tools, wait};
use serde_json::{Value, json};

use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(60);

/// A node of its own in the bed's network, with the machine's containerd and plugins.
pub(crate) struct Standalone<'a> {
    bed: &'a Bed,
    program: String,
    pub(crate) state: String,
}

impl<'a> Standalone<'a> {
    pub(crate) fn new(bed: &'a Bed, state: &str) -> Self {
        let program = tools::podwright().unwrap().to_string_lossy().into_owned();
        let state = bed.path(state).to_string_lossy().into_owned();
        Self { bed, program, state }
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = vec![self.program.as_str()];
        command.extend(arguments);
        command.extend(["--state-dir", &self.state]);
        self.bed.exec(&command).await
    }

    /// What tells this node from others in the names of its cgroups and folders, once it is up.
    fn instance(&self) -> String {
        let made = fs::read_to_string(Path::new(&self.state).join("made.json")).unwrap();
        let made: Value = serde_json::from_str(&made).unwrap();
        made["cgroup_root"].as_str().and_then(|name| name.split('-').next_back()).unwrap().into()
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

/// What of the machine and of the bed's network a node could leave changed.
struct Traces {
    machine: Listing,
    network: BTreeSet<String>,
}

impl Traces {
    async fn take(bed: &Bed) -> Self {
        let mut network = BTreeSet::new();
        for command in [
            &["ip", "-o", "link"][..],
            &["iptables-save"],
            &["cat", "/proc/sys/net/ipv4/ip_forward"],
        ] {
            let text = bed.exec(command).await.unwrap();
            // Counters, times and tables without a rule are no traces.
            let noise = |line: &str| {
                let builtin = line.starts_with(':') && !line.starts_with(":CNI");
                builtin || line.starts_with(['#', '*']) || line == "COMMIT"
            };
            network.extend(text.lines().filter(|line| !noise(line)).map(str::to_owned));
        }
        Self { machine: Listing::take().unwrap(), network }
    }

    /// Other tests use the machine meanwhile, so that only what has one of the names counts there;
    /// nobody else is in the network.
    fn assert_same(&self, after: &Self, names: &[&str]) {
        let Difference { added, removed } = self.machine.difference(&after.machine);
        let ours = |line: &&String| names.iter().any(|name| line.contains(name));
        let changed: Vec<_> = added.iter().chain(&removed).filter(ours).collect();
        assert!(changed.is_empty(), "{changed:#?}");
        assert_eq!(self.network, after.network);
    }
}

#[tokio::test]
async fn up_runs_a_pod_and_down_leaves_nothing() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    let before = Traces::take(&bed).await;

    node.run(&["up"]).await.unwrap();
    let instance = node.instance();
    node.load_test_image().await;
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "hello" },
        "spec": { "terminationGracePeriodSeconds": 2, "containers": [{
            "name": "web", "image": "localhost/podwright/test:latest",
            "imagePullPolicy": "Never", "args": ["serve", "--http", "8080"],
            "ports": [{ "containerPort": 8080, "hostPort": 18080 }],
        }] },
    });
    let file = Path::new(&node.state).join("manifests/hello.yaml");
    fs::write(&file, manifest.to_string()).unwrap();
    let address = async || {
        let pods = node.pods().await;
        let up = pods.iter().find(|pod| pod["running"] == 1);
        Ok(up.and_then(|pod| pod["ip"].as_str()).map(str::to_owned))
    };
    let ip = wait::until("the pod to run", LIMIT, address).await.unwrap();
    let page = format!("http://{ip}:8080/");
    let answers = async || Ok(bed.http_get(&page).await.is_ok());
    wait::until_true("the pod to answer", LIMIT, answers).await.unwrap();

    let again = node.run(&["up"]).await.unwrap();
    assert!(again.contains("containerd") && again.contains("runs already"), "{again}");
    let uid = node.pods().await[0]["uid"].clone();
    assert_eq!(node.pods().await[0]["restarts"], 0);

    node.run(&["down"]).await.unwrap();
    before.assert_same(&Traces::take(&bed).await, &[bed.id(), &instance]);

    node.run(&["up"]).await.unwrap();
    wait::until("the pod to come back with its data", LIMIT, address).await.unwrap();
    assert_eq!(node.pods().await[0]["uid"], uid, "the same manifest is the same pod");
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}
