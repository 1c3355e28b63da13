//! Disruptions around a running pod: its runtime is killed, its node loses power, its API server
//! goes down, another client edits its status or reuses its name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use podwright_e2e::wait;
use podwright_e2e::watch::PodWatch;
use podwright_proto::cri::Container;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, NAMESPACE, not_ready, pod, ready, status};
use crate::privilege::needs_root;

/// Container id and restart count of each pod, by pod name.
async fn instances(cluster: &Cluster) -> BTreeMap<String, (Option<String>, i32)> {
    let list = cluster.pods().list(&ListParams::default()).await.unwrap();
    let instance = |pod: Pod| {
        let container = pod.status?.container_statuses?.into_iter().next()?;
        Some((pod.metadata.name?, (container.container_id, container.restart_count)))
    };
    list.items.into_iter().filter_map(instance).collect()
}

#[tokio::test]
async fn pods_are_not_disturbed_when_containerd_and_the_agent_are_killed() {
    needs_root!();
    let count = if std::env::var_os("PODWRIGHT_LONG").is_some() { 100 } else { 30 };
    let mut cluster = Cluster::start().await;
    for number in 0..count {
        cluster.create(pod(&format!("pod-{number}"), &["serve"])).await;
    }
    cluster.until_all_ready(count).await;
    let before = instances(&cluster).await;
    assert_eq!(before.len(), count);
    let watch = PodWatch::begin(cluster.pods(), before.keys()).await.unwrap();

    for _ in 0..3 {
        cluster.bed.containerd_mut().restart().await.unwrap();
    }
    cluster.agent.kill().await.unwrap();
    cluster.agent.restart().await.unwrap();
    cluster.agent.healthy().await.unwrap();
    for _ in 0..3 {
        cluster.bed.containerd_mut().restart().await.unwrap();
    }
    // A new pod proves that the agent works again and has reported the others.
    cluster.create(pod("after", &["serve"])).await;
    cluster.until("after", "ready", ready).await;

    let mut now = instances(&cluster).await;
    now.remove("after");
    assert_eq!(now, before, "a container was restarted");
    let history = watch.finish("the end").await.unwrap();
    assert_eq!(not_ready(&history), BTreeSet::new(), "Ready flipped");
    cluster.close();
}

#[tokio::test]
async fn node_that_lost_power_starts_what_should_run_and_fails_what_ran_once() {
    needs_root!();
    let mut cluster = Cluster::start().await;
    cluster.create(pod("service", &["serve"])).await;
    let mut once = pod("once", &["serve"]);
    once["spec"]["restartPolicy"] = json!("Never");
    cluster.create(once).await;
    cluster.until_all_ready(2).await;

    cluster.agent.kill().await.unwrap();
    cluster.bed.containerd().kill().await.unwrap();
    let pods = format!("{}/kubepods", cluster.agent.cgroup_root());
    let pods = cluster.bed.environment().cgroup().of("pids", &pods).unwrap();
    assert!(kill_everything_below(&pods) > 0, "no process is in {}", pods.display());
    cluster.bed.containerd_mut().restart().await.unwrap();
    cluster.agent.restart().await.unwrap();

    let restarted =
        |status: &Value| ready(status) && status["containerStatuses"][0]["restartCount"] == 1;
    cluster.until("service", "to be restarted", restarted).await;
    let failed = cluster.until("once", "failed", |status| status["phase"] == "Failed").await;
    assert_eq!(status(&failed)["containerStatuses"][0]["restartCount"], 0);
    cluster.close();
}

/// Kills all processes in a cgroup, like a power cut. Returns how many there were.
fn kill_everything_below(cgroup: &std::path::Path) -> usize {
    let mut killed = 0;
    for entry in std::fs::read_dir(cgroup).unwrap().flatten() {
        if entry.path().is_dir() {
            killed += kill_everything_below(&entry.path());
        }
    }
    let processes = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
    for process in processes.lines().map(|pid| pid.parse().unwrap()) {
        // It may have exited with its neighbour.
        let _ =
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(process), nix::sys::signal::SIGKILL);
        killed += 1;
    }
    killed
}

#[tokio::test]
async fn foreign_status_edit_is_reverted_and_foreign_conditions_stay() {
    needs_root!();
    let cluster = Cluster::start().await;
    cluster.create(pod("web", &["serve"])).await;
    cluster.until("web", "ready", ready).await;
    let edit = json!({ "status": {
        "message": "written by another client",
        "conditions": [
            { "type": "Ready", "status": "False" },
            { "type": "example.org/checked", "status": "True" },
        ],
    } });
    let params = PatchParams::default();
    cluster.pods().patch_status("web", &params, &Patch::Strategic(edit)).await.unwrap();
    let repaired = |status: &Value| ready(status) && status["message"].is_null();
    let pod = cluster.until("web", "repaired", repaired).await;
    let conditions = pod.status.unwrap().conditions.unwrap();
    assert!(conditions.iter().any(|c| c.type_ == "example.org/checked" && c.status == "True"));
    cluster.close();
}

#[tokio::test]
async fn reused_name_is_a_different_pod() {
    needs_root!();
    let cluster = Cluster::start().await;
    let first = cluster.create(pod("web", &["serve", "--linger", "1000"])).await.metadata.uid;
    cluster.until("web", "ready", ready).await;
    let at_once = DeleteParams::default().grace_period(0);
    cluster.pods().delete("web", &at_once).await.unwrap();
    let second = cluster.create(pod("web", &["serve"])).await.metadata.uid;
    assert_ne!(first, second);
    let now = cluster.until("web", "ready", ready).await;
    assert_eq!(now.metadata.uid, second, "the new pod was confused with the old one");

    let cri = cluster.bed.cri().await.unwrap();
    let stopped = async || {
        let running = cri.containers().await?.into_iter().filter(|c| c.state == 1);
        let ours = |c: &Container| c.labels.get("io.kubernetes.pod.uid") == first.as_ref();
        Ok(!running.into_iter().any(|c| ours(&c)))
    };
    wait::until_true("the old pod's container to stop", LIMIT, stopped).await.unwrap();
    let now = cluster.pods().get("web").await.unwrap();
    assert!(ready(&status(&now)) && now.metadata.deletion_timestamp.is_none());
    cluster.close();
}

#[tokio::test]
async fn pod_deleted_during_an_api_outage_stops_and_is_removed_afterwards() {
    needs_root!();
    let mut cluster = Cluster::start().await;
    let mut slow = pod("slow", &["serve", "--linger", "1000"]);
    slow["spec"]["terminationGracePeriodSeconds"] = json!(3);
    cluster.create(slow).await;
    cluster.create(pod("dies", &["serve"])).await;
    cluster.until_all_ready(2).await;
    let cri = cluster.bed.cri().await.unwrap();
    let before = instances(&cluster).await;

    cluster.pods().delete("slow", &DeleteParams::default()).await.unwrap();
    // The agent has seen the deletion.
    cluster.until_event("slow", "Killing", "Stopping container app").await;
    let plane = cluster.bed.control_plane().unwrap();
    plane.kill_apiserver().await.unwrap();
    let running = async || {
        let all = cri.containers().await?;
        let running = all.into_iter().filter(|c| c.state == 1);
        anyhow::Ok(running.map(|c| c.id).collect::<Vec<_>>())
    };
    wait::until_true("the pod to stop", LIMIT, async || Ok(running().await?.len() == 1))
        .await
        .unwrap();
    // Another container exits during the outage and is restarted nevertheless.
    let id = running().await.unwrap().remove(0);
    cluster.bed.containerd().ctr(&["tasks", "kill", "-s", "SIGKILL", &id]).await.unwrap();
    let replaced = async || Ok(running().await?.first().is_some_and(|now| *now != id));
    wait::until_true("the other pod's container to be replaced", LIMIT, replaced).await.unwrap();

    cluster.bed.control_plane_mut().unwrap().restart_apiserver().await.unwrap();
    cluster.until_gone("slow").await;
    let reported =
        |status: &Value| ready(status) && status["containerStatuses"][0]["restartCount"] == 1;
    cluster.until("dies", "reported", reported).await;
    let after = instances(&cluster).await;
    assert_ne!(after.get("dies"), before.get("dies"));
    cluster.close();
}

#[tokio::test]
async fn pod_deleted_during_an_image_pull_does_not_wait_for_it() {
    needs_root!();
    let cluster = Cluster::start().await;
    // A registry that accepts connections and never responds.
    let address: SocketAddr = "10.99.0.10:5000".parse().unwrap();
    let registry = cluster.bed.netns().listen(address).await.unwrap();
    let (called, mut calls) = tokio::sync::mpsc::unbounded_channel();
    let accepting = tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((connection, _)) = registry.accept().await {
            silent.push(connection);
            let _ = called.send(());
        }
    });
    let mut waits = pod("waits", &[]);
    let container = &mut waits["spec"]["containers"][0];
    container["image"] = json!(format!("{address}/never/ends:latest"));
    container["imagePullPolicy"] = json!("Always");
    cluster.create(waits).await;
    calls.recv().await.unwrap();

    let uid = cluster.pods().get("waits").await.unwrap().metadata.uid;
    let exactly = DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    };
    cluster.pods().delete("waits", &exactly).await.unwrap();
    cluster.until_gone("waits").await;
    let cri = cluster.bed.cri().await.unwrap();
    let named =
        |c: &Container| c.labels.get("io.kubernetes.pod.name").is_some_and(|name| name == "waits");
    assert!(!cri.containers().await.unwrap().iter().any(named));
    accepting.abort();
    cluster.close();
}

#[tokio::test]
async fn force_deleted_pod_still_gets_its_grace_period() {
    needs_root!();
    let cluster = Cluster::start().await;
    let mut last_words = pod("writes", &["serve"]);
    let directory = cluster.bed.path("last-words");
    std::fs::create_dir(&directory).unwrap();
    last_words["spec"]["terminationGracePeriodSeconds"] = json!(20);
    last_words["spec"]["volumes"] =
        json!([{ "name": "out", "hostPath": { "path": directory, "type": "Directory" } }]);
    let container = &mut last_words["spec"]["containers"][0];
    container["command"] = json!([
        "sh",
        "-c",
        "trap 'sleep 1; echo bye >/out/bye; exit 0' TERM; touch /out/up; \
         while :; do sleep 0.1; done"
    ]);
    container["volumeMounts"] = json!([{ "name": "out", "mountPath": "/out" }]);
    cluster.create(last_words).await;
    cluster.until("writes", "ready", ready).await;
    // A Ready pod may not have set its trap yet.
    let prepared = async || Ok(directory.join("up").exists());
    wait::until_true("its trap", LIMIT, prepared).await.unwrap();
    cluster.pods().delete("writes", &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.until_gone("writes").await;
    let output = async || Ok(directory.join("bye").exists());
    wait::until_true("its output on SIGTERM", LIMIT, output).await.unwrap();
    let audit = cluster.bed.control_plane().unwrap().audit().unwrap();
    let events = audit.iter().filter(|a| a.resource == "pods" && a.namespace == NAMESPACE);
    let deletes = events.filter(|a| a.verb == "delete" && a.user.starts_with("system:node:"));
    assert_eq!(deletes.count(), 0, "the agent must not delete a removed object");
    cluster.close();
}
