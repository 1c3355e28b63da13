//! Eviction under real pressure: memory inside a cgroup, disk and inodes on file systems that the
//! case owns.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, Node};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use podwright_e2e::bed::Bed;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready, status};
use crate::privilege::{LONGER, figure, needs_root};

const MI: u64 = 1 << 20;
/// Memory of all pods, and how much of it is left when they are evicted.
const ALL_PODS: u64 = 300 * MI;
const LEFT: u64 = 100 * MI;
/// A pressure condition ends soon after the pressure, so that the next run begins as the first.
const TRANSITION: &str = "3s";

/// A pod with a container that ends with an error on SIGTERM, so that its eviction is its result.
fn victim(name: &str, args: &[&str]) -> Value {
    let mut victim = pod(name, args);
    let second = pod(name, &["signals", "--code", "7"])["spec"]["containers"][0].clone();
    let containers = victim["spec"]["containers"].as_array_mut().unwrap();
    containers.push(second);
    containers[1]["name"] = json!("second");
    victim["spec"]["restartPolicy"] = json!("Always");
    victim
}

/// Burstable, so that it is admitted under memory pressure.
fn requesting(mut pod: Value, memory: &str) -> Value {
    pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "memory": memory } });
    pod
}

fn total_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// A node whose pods together have little memory.
async fn small_memory() -> Cluster {
    let reserved = total_memory() - ALL_PODS;
    let configuration = json!({
        "systemReserved": { "memory": reserved.to_string() },
        "evictionHard": { "memory.available": format!("{}Mi", LEFT / MI) },
        "evictionPressureTransitionPeriod": TRANSITION,
    });
    Cluster::configured(Bed::builder().control_plane(), |_| configuration.clone()).await
}

async fn condition(cluster: &Cluster, kind: &str) -> String {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let node = nodes.get("node-1").await.unwrap();
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition.type_ == kind);
    found.map(|condition| condition.status).unwrap_or_default()
}

async fn until_condition(cluster: &Cluster, kind: &str, want: &str) {
    let is_reported = async || Ok(condition(cluster, kind).await == want);
    wait::until_true(format!("{kind} {want}"), LIMIT, is_reported).await.unwrap();
}

/// The `Evicted` events of a pod.
async fn evictions(cluster: &Cluster, pod: &str) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let list = events.list(&ListParams::default()).await.unwrap().items;
    let about = |event: &Event| event.involved_object.name.as_deref() == Some(pod);
    let evicted = |event: &Event| event.reason.as_deref() == Some("Evicted");
    list.into_iter().filter(|event| about(event) && evicted(event)).collect()
}

fn disruption(status: &Value) -> Option<&Value> {
    let conditions = status["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == "DisruptionTarget")
}

/// Watches the memory of a group from outside: when it crossed an amount, and when its processes
/// were ended.
struct Observer {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(Option<Instant>, Option<Instant>, u64)>,
}

impl Observer {
    fn start(group: PathBuf, crossing: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut crossed, mut ended, mut most) = (None, None, 0);
            while !stopped.load(SeqCst) {
                let used = working_set(&group).unwrap_or(0);
                most = most.max(used);
                if used > crossing {
                    crossed.get_or_insert_with(Instant::now);
                }
                if crossed.is_some() && used + 20 * MI < most {
                    ended.get_or_insert_with(Instant::now);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            (crossed, ended, most)
        });
        Self { stop, thread }
    }

    fn finish(self) -> (Option<Instant>, Option<Instant>, u64) {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

/// Of a group of either version.
fn working_set(group: &Path) -> Option<u64> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok();
    let used: u64 = number("memory.usage_in_bytes").or_else(|| number("memory.current"))?;
    let stat = fs::read_to_string(group.join("memory.stat")).ok()?;
    let of = |key: &str| -> Option<u64> {
        stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
    };
    let inactive = of("total_inactive_file ").or_else(|| of("inactive_file "))?;
    Some(used.saturating_sub(inactive))
}

#[tokio::test]
async fn pod_that_allocates_steadily_is_evicted_before_the_kernel_kills_anything() {
    needs_root!(LONGER);
    let runs = if std::env::var_os("PODWRIGHT_LONG").is_some() { 20 } else { 3 };
    let cluster = small_memory().await;
    cluster.create(requesting(pod("modest", &["alloc", "20"]), "100Mi")).await;
    cluster.until("modest", "ready", ready).await;
    let environment = cluster.bed.environment();
    let all_pods = format!("{}/kubepods", cluster.agent.cgroup_root());
    let all_pods = environment.cgroup().of("memory", &all_pods).unwrap();
    let mut delays = Vec::new();
    for run in 0..runs {
        let name = format!("greedy-{run}");
        let observer = Observer::start(all_pods.clone(), ALL_PODS - LEFT);
        // 50 MB per second: two seconds from the threshold to the limit.
        let args = ["alloc", "2000", "--step", "1", "--every", "20"];
        cluster.create(requesting(victim(&name, &args), "1Mi")).await;
        let ended = cluster.until(&name, "evicted", |status| status["phase"] == "Failed").await;
        let (crossed, stopped, most) = observer.finish();
        let status = status(&ended);
        assert_eq!(status["reason"], "Evicted", "{status:#}");
        let message = status["message"].as_str().unwrap();
        let start = "The node was low on resource: memory. Threshold quantity: 100Mi, available: ";
        assert!(message.starts_with(start), "{message}");
        assert!(message.contains("Container app was using"), "{message}");
        assert_eq!(disruption(&status).unwrap()["message"], message);
        for container in status["containerStatuses"].as_array().unwrap() {
            let ended = &container["state"]["terminated"];
            assert_ne!(ended["reason"], "OOMKilled", "run {run}: {container:#}");
            let code = if container["name"] == "app" { 0 } else { 7 };
            // By SIGTERM, or after its second by SIGKILL.
            assert!(ended["exitCode"] == code || ended["exitCode"] == 137, "{container:#}");
        }
        assert!(most < ALL_PODS, "the limit was reached: {} MiB", most / MI);
        delays.push(stopped.unwrap().saturating_duration_since(crossed.unwrap()).as_millis());
        let events = evictions(&cluster, &name).await;
        assert_eq!(events.len(), 1, "{events:#?}");
        let annotations = events[0].metadata.annotations.clone().unwrap();
        assert_eq!(annotations["starved_resource"], "memory");
        // The other one has no request and is named too, if it has been measured.
        let offending = annotations["offending_containers"].as_str();
        assert!(offending == "app" || offending == "app,second", "{offending}");
        until_condition(&cluster, "MemoryPressure", "False").await;
        cluster.pods().delete(&name, &DeleteParams::default()).await.unwrap();
        cluster.until_gone(&name).await;
    }
    delays.sort_unstable();
    figure(&format!(
        "memory eviction: the memory of a pod that allocates 50 MiB/s is back {} ms (median), {} ms \
         (most) after the threshold was crossed, in {runs} runs",
        delays[runs / 2],
        delays[runs - 1],
    ));
    let modest = cluster.pods().get("modest").await.unwrap();
    assert!(ready(&status(&modest)), "it stayed within its request");
    assert!(evictions(&cluster, "modest").await.is_empty());
    cluster.close();
}

#[tokio::test]
async fn memory_pressure_is_a_condition_and_refuses_best_effort_pods() {
    needs_root!();
    let cluster = small_memory().await;
    // Above the threshold, and exempt: nothing can be done about the pressure.
    let mut critical = pod("critical", &["alloc", "220"]);
    critical["spec"]["priorityClassName"] = json!("system-node-critical");
    cluster.create(critical).await;
    until_condition(&cluster, "MemoryPressure", "True").await;
    cluster.create(pod("late", &["serve"])).await;
    let refused = cluster.until("late", "refused", |status| status["phase"] == "Failed").await;
    let refused = status(&refused);
    assert_eq!(refused["reason"], "Evicted");
    assert_eq!(refused["message"], "Pod was rejected: The node had condition: [MemoryPressure]. ");
    let critical = cluster.pods().get("critical").await.unwrap();
    assert!(status(&critical)["phase"] == "Running", "{:#}", status(&critical));
    let log = cluster.agent.daemon().log();
    assert!(log.contains("unable to evict any pods"), "{log}");
    cluster.pods().delete("critical", &DeleteParams::default()).await.unwrap();
    until_condition(&cluster, "MemoryPressure", "False").await;
    cluster.create(pod("later", &["serve"])).await;
    cluster.until("later", "ready", ready).await;
    cluster.close();
}

/// A small file system for the root directory of an agent.
struct Disk(PathBuf);

impl Disk {
    fn new(path: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "tmpfs", "-o", options, "podwright-e2e"]).arg(&path);
        assert!(mount.status().unwrap().success(), "mount a tmpfs on {}", path.display());
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--recursive", "--lazy"]).arg(&self.0).status();
    }
}

/// A node whose root directory is on a small file system.
async fn small_disk(eviction: Value) -> (Cluster, Disk) {
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let client = bed.client().await.unwrap();
    bed.control_plane().unwrap().create_namespace(NAMESPACE).await.unwrap();
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": "node-1" } })).unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&Default::default(), &node).await.unwrap();
    let disk = Disk::new(bed.path("agents/node-1/root"), "size=64m,nr_inodes=4000,mode=755");
    let configuration = json!({
        "evictionHard": eviction,
        "evictionPressureTransitionPeriod": TRANSITION,
        "volumeStatsAggPeriod": "2s",
    });
    let agent = bed.agent("node-1").joined().unwrap().configure(configuration).start().unwrap();
    agent.healthy().await.unwrap();
    (Cluster { bed, agent, client }, disk)
}

#[allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
fn with_volume(mut pod: Value, empty_dir: Value) -> Value {
    pod["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": empty_dir }]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }]);
    pod
}

/// The directory of the pod's volume "data" on the node.
async fn volume(cluster: &Cluster, pod: &str) -> PathBuf {
    let uid = cluster.pods().get(pod).await.unwrap().metadata.uid.unwrap();
    let volumes = cluster.agent.root_dir().join("pods").join(uid).join("volumes");
    volumes.join("kubernetes.io~empty-dir/data")
}

#[tokio::test]
async fn pod_that_fills_the_disk_is_evicted_and_others_stay() {
    needs_root!();
    let (cluster, _disk) = small_disk(json!({ "nodefs.available": "20Mi" })).await;
    for name in ["writer", "reader"] {
        cluster.create(with_volume(victim(name, &["serve"]), json!({}))).await;
    }
    for name in ["writer", "reader"] {
        cluster.until(name, "ready", ready).await;
    }
    let node: Api<Node> = Api::all(cluster.client.clone());
    let allocatable = node.get("node-1").await.unwrap().status.unwrap().allocatable.unwrap();
    assert_eq!(allocatable["ephemeral-storage"].0, "44Mi");
    fs::write(volume(&cluster, "writer").await.join("file"), vec![1; 50 << 20]).unwrap();
    until_condition(&cluster, "DiskPressure", "True").await;
    let evicted = cluster.until("writer", "evicted", |status| status["phase"] == "Failed").await;
    let evicted = status(&evicted);
    assert_eq!(evicted["reason"], "Evicted");
    let message = evicted["message"].as_str().unwrap();
    let start = "The node was low on resource: ephemeral-storage. Threshold quantity: 20Mi, ";
    assert!(message.starts_with(start), "{message}");
    let events = evictions(&cluster, "writer").await;
    assert_eq!(events.len(), 1);
    let annotations = events[0].metadata.annotations.clone().unwrap();
    assert_eq!(annotations["starved_resource"], "ephemeral-storage");
    // Its volume is removed, and the pressure ends with it.
    until_condition(&cluster, "DiskPressure", "False").await;
    let reader = cluster.pods().get("reader").await.unwrap();
    assert!(ready(&status(&reader)), "{:#}", status(&reader));
    cluster.create(pod("next", &["serve"])).await;
    cluster.until("next", "ready", ready).await;
    cluster.close();
}

#[tokio::test]
async fn pod_that_uses_up_inodes_is_evicted() {
    needs_root!();
    let (cluster, _disk) = small_disk(json!({ "nodefs.inodesFree": "1000" })).await;
    for name in ["many", "few"] {
        cluster.create(with_volume(victim(name, &["serve"]), json!({}))).await;
    }
    for name in ["many", "few"] {
        cluster.until(name, "ready", ready).await;
    }
    let directory = volume(&cluster, "many").await;
    for file in 0..3200 {
        fs::write(directory.join(file.to_string()), "").unwrap();
    }
    let evicted = cluster.until("many", "evicted", |status| status["phase"] == "Failed").await;
    let message = status(&evicted)["message"].clone();
    let start = "The node was low on resource: inodes. Threshold quantity: 1k, available: ";
    assert!(message.as_str().unwrap().starts_with(start), "{message}");
    until_condition(&cluster, "DiskPressure", "False").await;
    assert!(ready(&status(&cluster.pods().get("few").await.unwrap())));
    cluster.close();
}

#[tokio::test]
async fn pods_over_their_own_storage_limits_are_evicted_without_pressure_on_the_node() {
    needs_root!();
    let (cluster, _disk) = small_disk(json!({})).await;
    let limited = |name: &str| {
        let mut pod = with_volume(victim(name, &["serve"]), json!({}));
        pod["spec"]["containers"][0]["resources"] =
            json!({ "limits": { "ephemeral-storage": "4Mi" } });
        pod
    };
    cluster.create(with_volume(victim("sized", &["serve"]), json!({ "sizeLimit": "2Mi" }))).await;
    cluster.create(with_volume(victim("within", &["serve"]), json!({ "sizeLimit": "9Mi" }))).await;
    cluster.create(limited("limited")).await;
    for name in ["sized", "within", "limited"] {
        cluster.until(name, "ready", ready).await;
        fs::write(volume(&cluster, name).await.join("file"), vec![1; 5 << 20]).unwrap();
    }
    for (name, want) in [
        ("sized", "Usage of EmptyDir volume \"data\" exceeds the limit \"2Mi\". "),
        (
            "limited",
            "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. ",
        ),
    ] {
        let evicted = cluster.until(name, "evicted", |status| status["phase"] == "Failed").await;
        let evicted = status(&evicted);
        assert_eq!((&evicted["reason"], &evicted["message"]), (&json!("Evicted"), &json!(want)));
        assert_eq!(disruption(&evicted), None, "the node lacks nothing");
        assert_eq!(evictions(&cluster, name).await.len(), 1);
    }
    assert_eq!(condition(&cluster, "DiskPressure").await, "False");
    assert!(ready(&status(&cluster.pods().get("within").await.unwrap())));
    cluster.close();
}

#[tokio::test]
async fn node_without_local_storage_isolation_has_no_ephemeral_storage_and_is_ready() {
    needs_root!();
    let configuration = json!({ "localStorageCapacityIsolation": false });
    let bed = Bed::builder().control_plane();
    let cluster = Cluster::configured(bed, |_| configuration.clone()).await;
    until_condition(&cluster, "Ready", "True").await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let status = nodes.get("node-1").await.unwrap().status.unwrap();
    assert!(!status.capacity.unwrap().contains_key("ephemeral-storage"));
    assert!(!status.allocatable.unwrap().contains_key("ephemeral-storage"));
    cluster.close();
}

#[tokio::test]
async fn pressure_on_process_ids_refuses_pods_of_every_class() {
    needs_root!();
    let configuration = json!({ "evictionHard": { "pid.available": "100.0%" } });
    let bed = Bed::builder().control_plane();
    let cluster = Cluster::configured(bed, |_| configuration.clone()).await;
    until_condition(&cluster, "PIDPressure", "True").await;
    cluster.create(requesting(pod("late", &["serve"]), "1Mi")).await;
    let refused = cluster.until("late", "refused", |status| status["phase"] == "Failed").await;
    let refused = status(&refused);
    assert_eq!(refused["reason"], "Evicted");
    assert_eq!(refused["message"], "Pod was rejected: The node had condition: [PIDPressure]. ");
    cluster.close();
}
