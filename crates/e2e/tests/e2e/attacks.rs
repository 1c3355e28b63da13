//! Attacks on a node of `podwright up`, by its pods, by accounts with a role, and by neighbours on
//! the network: real pods, bounded in time and size, on the networks of the case only.
//!
//! During each attack other pods have probes that must stay green, and the memory of the agent is
//! measured: it may exceed what it uses when idle by [`MAX_GROWTH`].

mod load;
mod network;
mod privileges;

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::Request;
use hyper::body::Bytes;
use podwright_e2e::bed::Bed;
use podwright_e2e::bench::usage::Memory;
use podwright_e2e::http::{HttpResponse, Tls, Trust, send};
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::netns::NetNs;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::privilege::figure;
use crate::standalone::Standalone;

/// How much memory an attack may cost, in MB.
const MAX_GROWTH: f64 = 64.0;
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A pod that serves a page, with probes that fail after a few seconds without it.
fn probed(name: &str, account: &str) -> Value {
    let page = json!({
        "httpGet": {"path": "/", "port": 8080},
        "periodSeconds": 2,
        // Other cases load the machine.
        "timeoutSeconds": 10,
    });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1, "serviceAccountName": account,
            "containers": [{
                "name": "web", "image": "localhost/podwright/test:latest",
                "imagePullPolicy": "Never",
                "args": ["serve", "--http", "8080", "--log-requests"],
                "readinessProbe": page, "livenessProbe": page,
            }],
        },
    })
}

/// A node with two pods: one that attacks, and one that must not notice.
struct Attacked<'a> {
    node: Standalone<'a>,
    kubectl: Kubectl,
    /// Ready since when, and how often restarted, by pod.
    healthy: String,
    /// When the pods were ready.
    since: Instant,
    /// Memory of the agent before the first attack.
    idle: OnceLock<f64>,
}

impl<'a> Attacked<'a> {
    /// The attacker runs as this service account, which has the role, if one is given.
    async fn start(bed: &'a Bed, role: Option<&str>) -> Self {
        let node = Standalone::up(bed).await;
        let kubectl = node.kubectl(Release::V1_32);
        let account = if role.is_some() { "attacker" } else { "default" };
        if let Some(role) = role {
            kubectl.run(&["create", "serviceaccount", account]).await.unwrap();
            let subject = format!("--serviceaccount=default:{account}");
            let role = format!("--clusterrole={role}");
            let binding = ["create", "rolebinding", account, &role, &subject];
            kubectl.run(&binding).await.unwrap();
        }
        for pod in [probed("victim", "default"), probed("attacker", account)] {
            kubectl.run_with(&["apply", "-f", "-"], &pod.to_string()).await.unwrap();
        }
        let (healthy, since, idle) = (String::new(), Instant::now(), OnceLock::new());
        let mut this = Self { node, kubectl, healthy, since, idle };
        this.until_ready("victim").await;
        this.until_ready("attacker").await;
        this.healthy = this.health().await;
        this.since = Instant::now();
        this
    }

    async fn until_ready(&self, pod: &str) {
        let pod = format!("pod/{pod}");
        let ready = ["wait", "--for=condition=Ready", &pod, "--timeout=180s"];
        self.kubectl.run(&ready).await.unwrap();
    }

    /// Changes if a pod restarts or its Ready condition changes.
    async fn health(&self) -> String {
        const PATH: &str = "jsonpath={range .items[*]}{.metadata.name} \
            {.status.conditions[?(@.type==\"Ready\")].status} \
            {.status.conditions[?(@.type==\"Ready\")].lastTransitionTime} \
            {.status.containerStatuses[0].restartCount}\n{end}";
        let health = self.kubectl.run(&["get", "pods", "-o", PATH]).await.unwrap();
        let named = |line: &&str| line.starts_with("victim ") || line.starts_with("attacker ");
        let lines: Vec<&str> = health.lines().filter(named).collect();
        assert!(
            lines.iter().all(|line| line.contains(" True ") && line.ends_with(" 0")),
            "{health}"
        );
        lines.join("\n")
    }

    /// The probes of the victim were sent all the time, and none failed.
    async fn assert_healthy(&self) {
        assert_eq!(self.health().await, self.healthy);
        let log = self.kubectl.run(&["logs", "victim"]).await.unwrap();
        let answered = u64::try_from(log.lines().count()).unwrap();
        let seconds = self.since.elapsed().as_secs();
        figure(&format!("victim: ready, {answered} probes answered in {seconds} s"));
        // Two every two seconds; the machine is busy with the attack.
        assert!(answered >= seconds / 4, "{answered} probes in {seconds} s");
    }

    /// Measures the memory of the agent from now on, compared with that before the first attack.
    fn watch_memory(&self) -> MemoryWatch {
        let agent = self.agent();
        let idle = *self.idle.get_or_init(|| Memory::of(agent).unwrap().anonymous);
        MemoryWatch::begin(agent, idle)
    }

    /// The attacker's position: its network and its token.
    async fn attacker(&self) -> PodClient {
        let inside = async |command: &str| {
            let exec = ["exec", "attacker", "--", "sh", "-c", command];
            self.kubectl.run(&exec).await.unwrap().trim().to_owned()
        };
        let address = inside("echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT").await;
        PodClient {
            netns: NetNs::of_process(&self.process_of("attacker").await),
            api: address.parse().unwrap(),
            authority: inside(&format!("cat {TOKEN}/ca.crt")).await,
            token: inside(&format!("cat {TOKEN}/token")).await,
        }
    }

    async fn jsonpath(&self, pod: &str, path: &str) -> String {
        let path = format!("jsonpath={path}");
        self.kubectl.run(&["get", "pod", pod, "-o", &path]).await.unwrap()
    }

    /// The pid of a pod's server, on the machine.
    async fn process_of(&self, pod: &str) -> String {
        let uid = self.jsonpath(pod, "{.metadata.uid}").await;
        let of_pod = |pid: &str| {
            let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
            read("cgroup").is_ok_and(|cgroup| cgroup.contains(&uid))
                && read("cmdline").is_ok_and(|line| line.contains("serve\0"))
        };
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().into_string().ok());
        pids.find(|pid| of_pod(pid)).unwrap()
    }

    fn agent(&self) -> u32 {
        self.node.pid("agent").parse().unwrap()
    }

    async fn end(self) {
        self.node.run(&["down"]).await.unwrap();
    }
}

/// A client in the network of a pod.
#[derive(Clone)]
struct PodClient {
    netns: NetNs,
    api: SocketAddr,
    authority: String,
    token: String,
}

impl PodClient {
    fn tls(&self) -> Tls {
        Tls { trust: Trust::Authority(self.authority.clone()), identity: None }
    }

    fn request(&self, method: &str, path: &str) -> http::request::Builder {
        let url = format!("https://{}{path}", self.api);
        let authorization = format!("Bearer {}", self.token);
        Request::builder().method(method).uri(url).header("authorization", authorization)
    }

    async fn send(&self, method: &str, path: &str, body: Value) -> anyhow::Result<HttpResponse> {
        self.send_text(method, path, body.to_string()).await
    }

    async fn send_text(
        &self,
        method: &str,
        path: &str,
        body: String,
    ) -> anyhow::Result<HttpResponse> {
        let request = self.request(method, path).header("content-type", "application/json");
        send(&self.netns, request.body(Bytes::from(body))?, &self.tls()).await
    }
}

/// Measures the memory of the agent until it ends.
struct MemoryWatch {
    idle: f64,
    stop: Arc<AtomicBool>,
    task: JoinHandle<f64>,
}

impl MemoryWatch {
    fn begin(agent: u32, idle: f64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut peak = idle;
            while !stopped.load(Ordering::Relaxed) {
                peak = peak.max(Memory::of(agent).unwrap().anonymous);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            peak
        });
        Self { idle, stop, task }
    }

    async fn assert_small(self, attack: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let (idle, peak) = (self.idle, self.task.await.unwrap());
        let growth = peak - idle;
        figure(&format!(
            "{attack}: agent memory {idle:.1} MB idle, {peak:.1} MB at most ({growth:+.1} MB)"
        ));
        assert!(growth <= MAX_GROWTH, "{attack}: {idle:.1} MB idle, {peak:.1} MB at most");
    }
}
