//! Pods assigned by a real API server, and their reported status.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
use crate::privilege::needs_root;

#[tokio::test]
async fn pod_runs_is_reported_and_is_removed_when_deleted() {
    needs_root!();
    let cluster = Cluster::start().await;
    let uid = cluster.create(pod("web", &["serve"])).await.metadata.uid;
    let running = cluster.until("web", "ready", ready).await;
    let status = running.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(status.pod_ip.is_some() && status.start_time.is_some());
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));

    cluster.pods().delete("web", &DeleteParams::default()).await.unwrap();
    cluster.until_gone("web").await;
    let cri = cluster.bed.cri().await.unwrap();
    let stopped = cri.containers().await.unwrap();
    let ours = stopped.iter().filter(|c| c.labels.get("io.kubernetes.pod.uid") == uid.as_ref());
    assert!(ours.clone().all(|c| c.state != 1), "its container still runs");

    let events: Api<Event> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let reported = async || {
        let list = events.list(&ListParams::default()).await?;
        let reasons: Vec<String> = list.items.into_iter().filter_map(|e| e.reason).collect();
        let wanted = ["Pulled", "Created", "Started", "Killing"];
        Ok(wanted.iter().all(|reason| reasons.iter().any(|r| r == reason)))
    };
    wait::until_true("its events", LIMIT, reported).await.unwrap();
    cluster.close();
}

#[tokio::test]
async fn run_once_pod_ends_in_the_phase_of_its_exit_code() {
    needs_root!();
    let cluster = Cluster::start().await;
    for (name, code, phase) in [("good", "0", "Succeeded"), ("bad", "7", "Failed")] {
        let mut once = pod(name, &["exit", code]);
        once["spec"]["restartPolicy"] = json!("Never");
        cluster.create(once).await;
        let ended = cluster.until(name, phase, |status| status["phase"] == phase).await;
        let status = serde_json::to_value(ended.status).unwrap();
        let end = &status["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(end["exitCode"].to_string(), code);
    }
    cluster.close();
}

#[tokio::test]
async fn held_pod_waits_with_its_reason_and_starts_when_released() {
    needs_root!();
    let cluster = Cluster::start().await;
    let mut held = pod("held", &["serve"]);
    held["metadata"]["annotations"] = json!({ "podwright/hold": "maintenance" });
    cluster.create(held).await;
    let waits = |status: &Value| {
        status["containerStatuses"][0]["state"]["waiting"]["reason"] == "Blocked"
            && status["phase"] == "Pending"
    };
    cluster.until("held", "blocked", waits).await;
    let release = json!({ "metadata": { "annotations": { "podwright/hold": null } } });
    let params = PatchParams::default();
    cluster.pods().patch("held", &params, &Patch::Merge(release)).await.unwrap();
    cluster.until("held", "ready", ready).await;
    cluster.close();
}

#[tokio::test]
async fn static_pod_has_a_mirror_pod_that_is_recreated() {
    needs_root!();
    let cluster = Cluster::start().await;
    let mut manifest = pod("proxy", &["serve"]);
    manifest["metadata"]["namespace"] = json!(NAMESPACE);
    let file = cluster.agent.add_manifest("proxy", &manifest).unwrap();
    let mirror = cluster.until("proxy-node-1", "ready", ready).await;
    let owners = mirror.metadata.owner_references.clone().unwrap();
    assert_eq!((owners[0].kind.as_str(), owners[0].name.as_str()), ("Node", "node-1"));

    let id = |pod: &Pod| {
        let status = pod.status.clone().unwrap();
        status.container_statuses.unwrap()[0].container_id.clone()
    };
    let (uid, container) = (mirror.metadata.uid.clone(), id(&mirror));
    let now = DeleteParams::default().grace_period(0);
    cluster.pods().delete("proxy-node-1", &now).await.unwrap();
    let pods = cluster.pods();
    let back = async || {
        let pod = pods.get_opt("proxy-node-1").await?;
        let status = pod.as_ref().map(|pod| serde_json::to_value(&pod.status)).transpose()?;
        Ok(pod.filter(|pod| pod.metadata.uid != uid && ready(&status.unwrap_or_default())))
    };
    let again = wait::until("a new mirror", LIMIT, back).await.unwrap();
    assert_eq!(id(&again), container, "the pod itself kept running");

    std::fs::remove_file(file).unwrap();
    cluster.until_gone("proxy-node-1").await;
    cluster.close();
}

#[tokio::test]
async fn restarted_agent_completes_a_deletion_made_while_it_was_down() {
    needs_root!();
    let mut cluster = Cluster::start().await;
    for name in ["kept", "deleted"] {
        cluster.create(pod(name, &["serve"])).await;
    }
    cluster.until("deleted", "ready", ready).await;
    let before = cluster.until("kept", "ready", ready).await;
    cluster.agent.kill().await.unwrap();
    cluster.pods().delete("deleted", &DeleteParams::default()).await.unwrap();
    cluster.agent.restart().await.unwrap();
    cluster.until_gone("deleted").await;
    let after = cluster.pods().get("kept").await.unwrap();
    let shown = |pod: &Pod| {
        let status = pod.status.clone().unwrap();
        (
            status.container_statuses.unwrap()[0].clone(),
            ready(&json!({ "conditions": status.conditions })),
        )
    };
    assert_eq!(shown(&after), shown(&before), "nothing restarted and Ready did not flip");
    cluster.close();
}

/// Unix time of a condition's last transition.
fn since(pod: &Pod, condition: &str) -> i64 {
    let status = serde_json::to_value(&pod.status).unwrap();
    let conditions = status["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|c| c["type"] == condition).unwrap();
    let time: jiff::Timestamp = found["lastTransitionTime"].as_str().unwrap().parse().unwrap();
    time.as_second()
}

#[tokio::test]
async fn unchanged_pod_causes_no_requests() {
    needs_root!();
    let cluster = Cluster::start().await;
    cluster.create(pod("idle", &["serve"])).await;
    let shown = cluster.until("idle", "ready", ready).await;
    let asked = || {
        let audit = cluster.bed.control_plane().unwrap().audit().unwrap();
        let about = |a: &&podwright_e2e::audit::AuditedRequest| {
            a.resource == "pods" && a.user == "system:node:node-1" && a.verb != "watch"
        };
        audit
            .iter()
            .filter(about)
            .map(|a| format!("{} {}", a.verb, a.subresource))
            .collect::<Vec<_>>()
    };
    // The server writes its audit log after it has responded.
    let quiet = async || {
        let before = asked();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let now = asked();
        Ok((now == before).then_some(now))
    };
    let started = wait::until("the end of the requests of a start", LIMIT, quiet).await.unwrap();
    let patches = started.iter().filter(|request| request.starts_with("patch")).count();
    // The sandbox is reported together with its containers, unless they take more than five
    // seconds.
    let containers_took = since(&shown, "Ready") - since(&shown, "PodReadyToStartContainers");
    let most = if containers_took >= 5 { 3 } else { 2 };
    assert!(patches <= most, "a start is at most {most} reports: {started:?}");
    // One full resync against the API, plus a margin.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(asked(), started);
    cluster.close();
}
