//! Probes of running containers: their effect on readiness, restarts and events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Request;
use k8s_openapi::api::core::v1::Pod;
use podwright_e2e::bed::Bed;
use podwright_e2e::bench::usage::{self, Memory};
use podwright_e2e::http::{Tls, send};
use podwright_e2e::wait;
use podwright_e2e::watch::PodWatch;
use podwright_proto::cri::ExecSyncRequest;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, NAMESPACE, not_ready, pod, ready};
use crate::privilege::{figure, needs_root};

const SERVE: [&str; 6] = ["serve", "--http", "8080", "--tcp", "7070", "--log-requests"];

/// A serving pod with these probes.
fn probed(name: &str, probes: Value) -> Value {
    let mut pod = pod(name, &SERVE);
    let Value::Object(probes) = probes else { panic!("probes") };
    pod["spec"]["containers"][0].as_object_mut().unwrap().extend(probes);
    pod
}

fn http(path: &str) -> Value {
    json!({ "httpGet": { "path": path, "port": 8080 }, "periodSeconds": 1 })
}

fn sh(script: &str) -> Value {
    json!({ "exec": { "command": ["sh", "-c", script] }, "periodSeconds": 1 })
}

/// A probe with a timeout in seconds: on a busy machine a response can be late and correct.
fn with_timeout(mut probe: Value, seconds: u32) -> Value {
    probe["timeoutSeconds"] = json!(seconds);
    probe
}

/// Sets the health that the pod reports. Its program may run and not listen yet.
async fn set(cluster: &Cluster, pod: &Pod, verdict: &str) {
    let ip = pod.status.clone().unwrap().pod_ip.unwrap();
    let ask = async || {
        let request = Request::post(format!("http://{ip}:8080/set/{verdict}"));
        let request = request.body(Default::default())?;
        send(cluster.bed.netns(), request, &Tls::default()).await
    };
    let received = async || {
        let status = ask().await?.status;
        anyhow::ensure!(status.is_success(), "status {status}");
        Ok(true)
    };
    wait::until_true(format!("{ip} to set {verdict}"), LIMIT, received).await.unwrap();
}

#[tokio::test]
async fn readiness_gates_ready_and_startup_gates_readiness() {
    needs_root!();
    let cluster = Cluster::start().await;
    cluster.create(probed("web", json!({ "readinessProbe": http("/readyz") }))).await;
    let mut slow = probed(
        "slow",
        json!({
            "startupProbe": sh("test -e /tmp/up"),
            "readinessProbe": { "tcpSocket": { "port": 7070 }, "periodSeconds": 1 },
            "livenessProbe": http("/healthz"),
        }),
    );
    slow["spec"]["containers"][0]["startupProbe"]["failureThreshold"] = json!(100);
    cluster.create(slow).await;

    let web = cluster.until("web", "ready", ready).await;
    set(&cluster, &web, "ready/false").await;
    cluster.until("web", "not ready any more", |status| !ready(status)).await;
    let failed = "Readiness probe failed: HTTP probe failed with statuscode: 503";
    cluster.until_event("web", "Unhealthy", failed).await;
    set(&cluster, &web, "ready/true").await;
    let again = cluster.until("web", "ready again", ready).await;
    assert_eq!(id(&again), id(&web), "readiness must not restart anything");

    cluster.until_event("slow", "Unhealthy", "Startup probe failed: ").await;
    let held = cluster.pods().get("slow").await.unwrap();
    let status = serde_json::to_value(&held.status).unwrap();
    assert_eq!(status["containerStatuses"][0]["started"], json!(false));
    assert!(!ready(&status));
    assert!(!log(&cluster, &held).contains("/healthz"), "liveness waits for startup");
    exec(&cluster, &held, &["touch", "/tmp/up"]).await;
    let up = cluster.until("slow", "ready", ready).await;
    let probed_once = async || Ok(log(&cluster, &up).contains("GET /healthz 200 kube-probe/1.36"));
    wait::until_true("a liveness probe", LIMIT, probed_once).await.unwrap();
    cluster.close();
}

#[tokio::test]
async fn container_that_fails_its_liveness_probe_is_restarted() {
    needs_root!();
    let cluster = Cluster::start().await;
    let mut http_liveness = probed("web", json!({ "livenessProbe": http("/healthz") }));
    http_liveness["spec"]["containers"][0]["livenessProbe"]["failureThreshold"] = json!(2);
    http_liveness["spec"]["containers"][0]["livenessProbe"]["terminationGracePeriodSeconds"] =
        json!(1);
    cluster.create(http_liveness).await;
    let mut stuck = probed("stuck", json!({ "readinessProbe": sh("sleep 5") }));
    stuck["spec"]["containers"][0]["livenessProbe"] = sh("echo alive; sleep 5; exit 0");
    stuck["spec"]["containers"][0]["livenessProbe"]["failureThreshold"] = json!(1);
    stuck["spec"]["restartPolicy"] = json!("Never");
    // It exits gracefully on SIGTERM, however long that takes.
    stuck["spec"]["terminationGracePeriodSeconds"] = json!(30);
    cluster.create(stuck).await;

    let web = cluster.until("web", "ready", ready).await;
    set(&cluster, &web, "live/false").await;
    let restarted = |status: &Value| status["containerStatuses"][0]["restartCount"] == 1;
    let web = cluster.until("web", "restarted", restarted).await;
    let failed = "Liveness probe failed: HTTP probe failed with statuscode: 500";
    cluster.until_event("web", "Unhealthy", failed).await;
    let killed = "Container app failed liveness probe, will be restarted";
    cluster.until_event("web", "Killing", killed).await;
    assert_eq!(web.status.unwrap().phase.as_deref(), Some("Running"));

    cluster.until("stuck", "over", |status| status["phase"] == "Succeeded").await;
    let late = "Liveness probe failed: command timed out: \
                \"sh -c echo alive; sleep 5; exit 0\" timed out after 1s";
    cluster.until_event("stuck", "Unhealthy", late).await;
    cluster.until_event("stuck", "Killing", "Stopping container app").await;
    cluster.close();
}

#[tokio::test]
async fn three_deaths_of_the_agent_change_no_readiness_and_restart_nothing() {
    needs_root!();
    let mut cluster = Cluster::start().await;
    let tcp = with_timeout(json!({ "tcpSocket": { "port": 7070 }, "periodSeconds": 1 }), 30);
    let (exec, live) = (with_timeout(sh("true"), 30), with_timeout(http("/healthz"), 30));
    let all = [
        (
            "web",
            json!({ "readinessProbe": with_timeout(http("/readyz"), 30), "livenessProbe": live }),
        ),
        ("tcp", json!({ "readinessProbe": tcp, "livenessProbe": live })),
        ("all", json!({ "startupProbe": exec, "readinessProbe": exec, "livenessProbe": live })),
    ];
    let mut before = BTreeMap::new();
    for (name, probes) in &all {
        cluster.create(probed(name, probes.clone())).await;
    }
    for (name, _) in &all {
        before.insert((*name).to_owned(), cluster.until(name, "ready", ready).await);
    }
    let watch = PodWatch::begin(cluster.pods(), before.keys()).await.unwrap();
    for _ in 0..3 {
        cluster.agent.kill().await.unwrap();
        let probed_once: Vec<usize> = before.values().map(|pod| log(&cluster, pod).len()).collect();
        cluster.agent.restart().await.unwrap();
        cluster.agent.healthy().await.unwrap();
        let probed = async || {
            let now = before.values().map(|pod| log(&cluster, pod).len());
            Ok(now.zip(&probed_once).all(|(now, before)| now > *before))
        };
        wait::until_true("the new agent to probe", LIMIT, probed).await.unwrap();
    }
    for (name, pod) in &before {
        let after = cluster.pods().get(name).await.unwrap();
        assert_eq!(id(&after), id(pod), "{name} restarted");
    }
    let history = watch.finish("the end").await.unwrap();
    assert_eq!(not_ready(&history), BTreeSet::new(), "flipped: {history:#?}");
    cluster.close();
}

/// With `PODWRIGHT_LONG`: a hundred pods for two minutes. As static pods, observed on the kubelet
/// server, because the bed's API server does not support gRPC probes.
#[tokio::test]
async fn many_probes_change_no_readiness_restart_nothing_and_leak_nothing() {
    needs_root!();
    let long = std::env::var_os("PODWRIGHT_LONG").is_some();
    let (many, over) =
        if long { (100, Duration::from_secs(120)) } else { (6, Duration::from_secs(5)) };
    let cluster = Cluster::start().await;
    let kinds = [
        http("/healthz"),
        json!({ "tcpSocket": { "port": 7070 }, "periodSeconds": 1 }),
        json!({ "grpc": { "port": 9090 }, "periodSeconds": 1 }),
    ]
    .map(|probe| with_timeout(probe, 10));
    for number in 0..many {
        let name = format!("probed-{number}");
        let (readiness, liveness) = (&kinds[number % 3], &kinds[(number + 1) % 3]);
        let mut pod =
            probed(&name, json!({ "readinessProbe": readiness, "livenessProbe": liveness }));
        pod["metadata"]["namespace"] = json!(NAMESPACE);
        let args = ["serve", "--http", "8080", "--tcp", "7070", "--grpc", "9090"];
        pod["spec"]["containers"][0]["args"] = json!(args);
        cluster.agent.add_manifest(&name, &pod).unwrap();
    }
    let admin = cluster.admin();
    let ready_states = async || {
        let page = cluster.request("GET", "/pods", &admin).await;
        let pods: Value = serde_json::from_slice(&page.body)?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let ready: Vec<ReadyState> = pods.iter().filter_map(ReadyState::of).collect();
        anyhow::ensure!(ready.len() == many, "{} of {many} are ready", ready.len());
        Ok(Some(ready))
    };
    let mut before = wait::until("all pods to be ready", 5 * LIMIT, ready_states).await.unwrap();
    // A probe that was delayed by a hundred starts shows its result three periods later.
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let now = wait::until("all pods to be ready", 5 * LIMIT, ready_states).await.unwrap();
        let settled = now == before;
        before = now;
        if settled {
            break;
        }
    }
    let agent = cluster.agent.daemon().pid();
    let (sockets_before, memory_before) = (sockets(agent), Memory::of(agent).unwrap());
    let answers_before =
        answers(&cluster.request("GET", "/metrics/probes", &admin).await.text(), "successful");
    let millicores = usage::millicores(agent, over).await.unwrap();
    let (sockets_after, memory_after) = (sockets(agent), Memory::of(agent).unwrap());
    assert_eq!(
        ready_states().await.unwrap().unwrap(),
        before,
        "readiness changed or a container restarted"
    );
    // A probe has a socket only while it runs; a leak would be hundreds of sockets per second.
    assert!(sockets_after < sockets_before + 50, "{sockets_before} sockets, then {sockets_after}");
    let response = cluster.request("GET", "/metrics/probes", &admin).await;
    let counts = response.text();
    // Every pod answered probes meanwhile: stable readiness without probes proves nothing.
    let answers_after = answers(&counts, "successful");
    assert_eq!(answers_after.len(), many, "{counts}");
    for (pod, after) in &answers_after {
        let before = answers_before.get(pod).copied().unwrap_or_default();
        assert!(*after > before, "{pod} answered no probe meanwhile: {counts}");
    }
    let of = |result: &str| answers(&counts, result).values().sum::<u64>();
    figure(&format!(
        "{many} pods with two probes a second each, for {over:?}: {} answers, {} failures; \
         {millicores:.1} millicores; {:.1} then {:.1} MB; {sockets_before} then {sockets_after} sockets",
        of("successful"),
        of("failed"),
        memory_before.resident,
        memory_after.resident,
    ));
    cluster.close();
}

/// Ready state of a pod: since when, and in which container.
#[derive(Debug, PartialEq)]
struct ReadyState {
    name: Value,
    since: Value,
    container: Value,
}

impl ReadyState {
    fn of(pod: &Value) -> Option<Self> {
        let status = &pod["status"];
        let conditions = status["conditions"].as_array()?;
        let ready = conditions.iter().find(|c| c["type"] == "Ready" && c["status"] == "True")?;
        Some(Self {
            name: pod["metadata"]["name"].clone(),
            since: ready["lastTransitionTime"].clone(),
            container: status["containerStatuses"][0]["containerID"].clone(),
        })
    }
}

/// Number of probe results of this kind per pod, from the metrics.
fn answers(counts: &str, result: &str) -> BTreeMap<String, u64> {
    let mut answers = BTreeMap::new();
    for line in counts.lines().filter(|line| line.starts_with("prober_probe_total{")) {
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            rest.split('"').next().map(str::to_owned)
        };
        if label("result").is_some_and(|found| found == result) {
            let count: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            *answers.entry(label("pod").unwrap()).or_default() += count;
        }
    }
    answers
}

fn sockets(pid: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// gRPC probes are newer than the bed's API server, but the agent supports them.
#[tokio::test]
async fn grpc_probes_delay_readiness_and_restart() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let grpc =
        |service: &str| json!({ "grpc": { "port": 9090, "service": service }, "periodSeconds": 1 });
    let mut manifest = pod("health", &[]);
    let container = &mut manifest["spec"]["containers"][0];
    container["args"] = json!([
        "serve",
        "--http",
        "8080",
        "--grpc",
        "9090",
        "--ready-after",
        "2",
        "--fail-after",
        "6",
        "--log-requests"
    ]);
    container["startupProbe"] = grpc("readiness");
    container["startupProbe"]["failureThreshold"] = json!(60);
    container["readinessProbe"] = http("/readyz");
    container["livenessProbe"] = grpc("liveness");
    agent.add_manifest("health", &manifest).unwrap();
    let cri = bed.cri().await.unwrap();
    let restarted = async || {
        let containers = cri.containers().await?;
        Ok(containers.iter().any(|c| c.metadata.as_ref().is_some_and(|m| m.attempt == 1)))
    };
    wait::until_true("a restart by the liveness probe", LIMIT, restarted).await.unwrap();
    let directory = agent.log_directories().unwrap().remove(0);
    let log = std::fs::read_to_string(directory.join("app/0.log")).unwrap();
    assert!(log.contains("GET /readyz 200"), "{log}");
    assert!(!log.contains("GET /readyz 503"), "probed before the startup probe succeeded: {log}");
    drop(agent);
    bed.close().unwrap();
}

fn id(pod: &Pod) -> Option<String> {
    pod.status.clone()?.container_statuses?.first()?.container_id.clone()
}

/// Output of the pod's first container.
fn log(cluster: &Cluster, pod: &Pod) -> String {
    let meta = &pod.metadata;
    let [namespace, name, uid] =
        [&meta.namespace, &meta.name, &meta.uid].map(|part| part.clone().unwrap());
    let directory = cluster.agent.pod_logs().join(format!("{namespace}_{name}_{uid}"));
    std::fs::read_to_string(directory.join("app/0.log")).unwrap_or_default()
}

async fn exec(cluster: &Cluster, pod: &Pod, command: &[&str]) {
    let id = id(pod).unwrap();
    let id = id.strip_prefix("containerd://").unwrap();
    let cri = cluster.bed.cri().await.unwrap();
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    let request = ExecSyncRequest { container_id: id.to_owned(), cmd: command, timeout: 10 };
    let done = cri.runtime.clone().exec_sync(request).await.unwrap().into_inner();
    assert_eq!(done.exit_code, 0, "{done:?}");
}
