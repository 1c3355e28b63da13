//! Endurance: an agent that is killed repeatedly, an API server outage, and pods that are
//! continuously created and deleted.
//!
//! A normal run uses a short form of each; `PODWRIGHT_LONG` the full one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use podwright_e2e::bench::usage::Memory;
use podwright_e2e::wait;
use podwright_e2e::watch::PodWatch;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cluster::{Cluster, LIMIT, not_ready, pod, ready, status};
use crate::privilege::{LONGER, figure, needs_root};

fn long() -> bool {
    std::env::var_os("PODWRIGHT_LONG").is_some()
}

/// For each pod with the name prefix: its container, its restart count, and whether it is ready.
async fn instances(pods: &Api<Pod>, prefix: &str) -> BTreeMap<String, Value> {
    let list = pods.list(&ListParams::default()).await.unwrap();
    let named = list.items.into_iter().filter_map(|pod| Some((pod.metadata.name.clone()?, pod)));
    named
        .filter(|(name, _)| name.starts_with(prefix))
        .map(|(name, pod)| {
            let status = status(&pod);
            let container = &status["containerStatuses"][0];
            let shown =
                json!([container["containerID"], container["restartCount"], ready(&status)]);
            (name, shown)
        })
        .collect()
}

/// Starts pods that must not be disturbed, each with probes that would show it.
async fn steady(cluster: &Cluster, count: usize) {
    for number in 0..count {
        let mut steady = pod(&format!("steady-{number}"), &["serve", "--http", "8080"]);
        let container = &mut steady["spec"]["containers"][0];
        let page = json!({
            "httpGet": { "path": "/", "port": 8080 },
            "periodSeconds": 2,
            // A long timeout, so that a busy machine does not fail the probe: the agent is under
            // test.
            "timeoutSeconds": 20,
        });
        container["readinessProbe"] = page.clone();
        container["livenessProbe"] = page;
        cluster.create(steady).await;
    }
    cluster.until_all_ready(count).await;
}

/// Creates and deletes pods, a few at a time, until stopped. Returns how many were created.
struct Churn {
    stop: Arc<AtomicBool>,
    task: JoinHandle<usize>,
}

impl Churn {
    const AT_A_TIME: usize = 4;

    fn begin(pods: Api<Pod>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let reported = stop.clone();
        let task = tokio::spawn(async move {
            let mut created_count = 0;
            while !reported.load(Ordering::Relaxed) {
                let alive = alive(&pods).await;
                // Deletes the first ready pod; an unready one may be stuck, which is what this test
                // detects.
                let leaving = alive.iter().find(|(_, ready)| *ready).map(|(name, _)| name);
                if alive.len() >= Self::AT_A_TIME
                    && let Some(name) = leaving
                {
                    let _ = pods.delete(name, &DeleteParams::default()).await;
                } else if alive.len() < Self::AT_A_TIME * 2 {
                    let next = pod(&format!("churn-{created_count}"), &["serve"]);
                    let next = serde_json::from_value(next).unwrap();
                    pods.create(&PostParams::default(), &next).await.unwrap();
                    created_count += 1;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            for (name, _) in alive(&pods).await {
                let _ = pods.delete(&name, &DeleteParams::default()).await;
            }
            created_count
        });
        Self { stop, task }
    }

    async fn end(self, pods: &Api<Pod>) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let created_count = self.task.await.unwrap();
        let gone = async || {
            // A request may have failed; pods that are not deleted yet are deleted now.
            for (name, _) in alive(pods).await {
                pods.delete(&name, &DeleteParams::default()).await?;
            }
            let list = pods.list(&ListParams::default()).await?;
            let names = list.items.iter().filter_map(|pod| pod.metadata.name.as_deref());
            let left: Vec<_> = names.filter(|name| name.starts_with("churn")).collect();
            anyhow::ensure!(left.is_empty(), "{left:?} stay");
            Ok(true)
        };
        wait::until_true("the churned pods to be gone", LIMIT, gone).await.unwrap();
        created_count
    }
}

/// The churned pods that are not deleted yet, oldest first, and whether they are ready.
async fn alive(pods: &Api<Pod>) -> Vec<(String, bool)> {
    let Ok(list) = pods.list(&ListParams::default()).await else { return Vec::new() };
    let mut alive: Vec<_> = list
        .items
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter_map(|pod| Some((pod.metadata.name.clone()?, ready(&status(&pod)))))
        .filter(|(name, _)| name.starts_with("churn"))
        .collect();
    let number = |name: &str| name.rsplit('-').next().and_then(|n| n.parse::<usize>().ok());
    alive.sort_by_key(|(name, _)| number(name));
    alive
}

/// Checks that every running container belongs to a pod in the API.
async fn no_orphans(cluster: &Cluster) {
    let cri = cluster.bed.cri().await.unwrap();
    let pods = cluster.pods();
    let none = async || {
        let list = pods.list(&ListParams::default()).await?;
        let known: BTreeSet<_> = list.items.into_iter().filter_map(|p| p.metadata.uid).collect();
        let running = cri.containers().await?.into_iter().filter(|container| container.state == 1);
        let uid = |labels: &BTreeMap<String, String>| {
            labels.get("io.kubernetes.pod.uid").cloned().unwrap_or_default()
        };
        Ok(running.into_iter().all(|container| known.contains(&uid(&container.labels))))
    };
    wait::until_true("every container to have a pod", LIMIT, none).await.unwrap();
}

#[tokio::test]
async fn thirty_pods_are_not_disturbed_when_the_agent_is_killed_ten_times() {
    needs_root!(LONGER);
    let mut cluster = Cluster::start().await;
    steady(&cluster, 30).await;
    let pods = cluster.pods();
    let before = instances(&pods, "steady").await;
    assert_eq!(before.len(), 30);
    let watch = PodWatch::begin(pods.clone(), before.keys()).await.unwrap();
    let churn = Churn::begin(pods.clone());
    // Pseudo-random times, the same in each run.
    let mut moment: u64 = 0x9e37_79b9;
    for _ in 0..if long() { 100 } else { 10 } {
        moment = moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        tokio::time::sleep(Duration::from_millis(100 + (moment >> 33) % 1_400)).await;
        cluster.agent.kill().await.unwrap();
        cluster.agent.restart().await.unwrap();
    }
    cluster.agent.healthy().await.unwrap();
    let created_count = churn.end(&pods).await;
    assert!(created_count > 0, "no pods were churned");
    no_orphans(&cluster).await;
    assert_eq!(instances(&pods, "steady").await, before, "a container was restarted");
    let history = watch.finish("the end").await.unwrap();
    assert_eq!(not_ready(&history), BTreeSet::new(), "Ready flipped");
    cluster.close();
}

#[tokio::test]
async fn an_api_server_gets_all_reports_after_a_long_outage() {
    needs_root!(LONGER);
    let mut cluster = Cluster::start().await;
    steady(&cluster, 5).await;
    cluster.create(pod("dies", &["serve"])).await;
    // Slow enough to be still stopping when the server goes down.
    let mut goes = pod("goes", &["serve", "--linger", "1000"]);
    goes["spec"]["terminationGracePeriodSeconds"] = json!(10);
    cluster.create(goes).await;
    cluster.until("dies", "ready", ready).await;
    cluster.until("goes", "ready", ready).await;
    let pods = cluster.pods();
    let before = instances(&pods, "steady").await;
    let cri = cluster.bed.cri().await.unwrap();
    let of_pod = async |name: &str| {
        let all = cri.containers().await.unwrap();
        let named = all.into_iter().find(|container| {
            let pod = container.labels.get("io.kubernetes.pod.name");
            container.state == 1 && pod.is_some_and(|pod| pod == name)
        });
        named.map(|container| container.id)
    };

    pods.delete("goes", &DeleteParams::default()).await.unwrap();
    // The agent has seen the deletion.
    cluster.until_event("goes", "Killing", "Stopping container app").await;
    cluster.bed.control_plane().unwrap().kill_apiserver().await.unwrap();
    let away = Instant::now();
    let died = of_pod("dies").await.unwrap();
    cluster.bed.containerd().ctr(&["tasks", "kill", "-s", "SIGKILL", &died]).await.unwrap();
    let replaced = async || Ok(of_pod("dies").await.is_some_and(|now| now != died));
    wait::until_true("the dead container to be replaced", LIMIT, replaced).await.unwrap();
    let stopped = async || Ok(of_pod("goes").await.is_none());
    wait::until_true("the deleted pod to stop", LIMIT, stopped).await.unwrap();
    let outage = Duration::from_secs(if long() { 600 } else { 60 });
    tokio::time::sleep(outage.saturating_sub(away.elapsed())).await;

    cluster.bed.control_plane_mut().unwrap().restart_apiserver().await.unwrap();
    cluster.until_gone("goes").await;
    let reported =
        |status: &Value| ready(status) && status["containerStatuses"][0]["restartCount"] == 1;
    cluster.until("dies", "reported", reported).await;
    assert_eq!(instances(&pods, "steady").await, before, "a pod was disturbed by the outage");
    cluster.close();
}

/// Resources that an agent holds on the machine.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    mounts: usize,
    cgroups: Vec<String>,
    namespaces: usize,
    pod_directories: usize,
}

impl Holdings {
    fn of(cluster: &Cluster) -> Self {
        let entries = |path: &std::path::Path| std::fs::read_dir(path).map_or(0, Iterator::count);
        let pid = cluster.agent.daemon().pid();
        let root = cluster.agent.root_dir();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut cgroups = Vec::new();
        let below =
            cluster.bed.environment().cgroup().of("pids", cluster.agent.cgroup_root()).unwrap();
        directories(&below, &mut cgroups);
        assert!(!cgroups.is_empty(), "no QoS cgroups in {}", below.display());
        Self {
            descriptors: entries(format!("/proc/{pid}/fd").as_ref()),
            threads: entries(format!("/proc/{pid}/task").as_ref()),
            mounts: mounts.lines().filter(|line| line.contains(cluster.bed.id())).count(),
            cgroups,
            namespaces: entries(&cluster.bed.path("containerd/state/netns")),
            pod_directories: entries(&root.join("pods")),
        }
    }

    /// Whether it is no more than `wanted`. An idle connection may have been closed meanwhile. A
    /// thread for blocking work exits after ten idle seconds; the agent's occasional work may keep
    /// a few of them, but never one per pod.
    fn within(&self, wanted: &Self) -> bool {
        let Self { descriptors, threads, mounts, cgroups, namespaces, pod_directories } = self;
        *descriptors <= wanted.descriptors
            && *threads <= wanted.threads + 4
            && (mounts, cgroups, namespaces, pod_directories)
                == (&wanted.mounts, &wanted.cgroups, &wanted.namespaces, &wanted.pod_directories)
    }
}

fn directories(path: &std::path::Path, all: &mut Vec<String>) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            all.push(entry.path().display().to_string());
            directories(&entry.path(), all);
        }
    }
}

#[tokio::test]
async fn pods_that_come_and_go_leave_nothing_behind() {
    needs_root!(LONGER);
    let cluster = Cluster::start().await;
    let pods = cluster.pods();
    let minutes = std::env::var("PODWRIGHT_SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    let minutes: u64 = minutes.unwrap_or(if long() { 10 } else { 1 });
    let pid = cluster.agent.daemon().pid();
    // The first few pods set up what stays: connections, watches, the bridge.
    let first = Churn::begin(pods.clone());
    tokio::time::sleep(Duration::from_secs(10)).await;
    first.end(&pods).await;
    let (before, calm) = settled(&cluster, None).await;
    calm.unwrap();
    let early = Memory::of(pid).unwrap();

    let churn = Churn::begin(pods.clone());
    tokio::time::sleep(Duration::from_secs(60 * minutes - 15)).await;
    let created_count = churn.end(&pods).await;
    let (after, calm) = settled(&cluster, Some(&before)).await;
    let mut late = Memory::of(pid).unwrap();
    // Free memory is returned to the machine once a minute.
    let trimmed = async || {
        late = Memory::of(pid)?;
        Ok(late.anonymous < early.anonymous * 1.1 + 1.0)
    };
    let trimmed = wait::until_true("memory to be as before", LIMIT * 2, trimmed).await;
    figure(&format!(
        "soak: {created_count} pods in {minutes} min; {:.1} MB ({:.1} anonymous) before, \
         {:.1} MB ({:.1} anonymous) after",
        early.resident, early.anonymous, late.resident, late.anonymous
    ));
    assert!(after.within(&before), "before: {before:#?}\nafter {created_count} pods: {after:#?}");
    calm.unwrap();
    assert!(trimmed.is_ok(), "memory grew: {early:?} before, {late:?} after {created_count} pods");
    cluster.close();
}

/// The resources held after dead containers are removed: once they are within `wanted` if given,
/// else once they are stable. A file that is only being read is not counted as held, and an idle
/// thread exits after ten seconds.
async fn settled(cluster: &Cluster, wanted: Option<&Holdings>) -> (Holdings, anyhow::Result<()>) {
    const STAYS: Duration = Duration::from_secs(12);
    let cri = cluster.bed.cri().await.unwrap();
    let (mut held, mut since) = (Holdings::of(cluster), Instant::now());
    let settled = async || {
        let before = std::mem::replace(&mut held, Holdings::of(cluster));
        if held != before {
            since = Instant::now();
        }
        let good = wanted.map_or(since.elapsed() >= STAYS, |wanted| held.within(wanted));
        Ok(good && cri.containers().await?.is_empty() && cri.sandboxes().await?.is_empty())
    };
    let settled = wait::until_true("all dead containers to be removed", LIMIT * 2, settled).await;
    (held, settled)
}
