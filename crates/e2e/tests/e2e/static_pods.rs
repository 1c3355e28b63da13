//! Static pods: a manifest becomes a running container, follows its file, and survives the agent.

use std::fs;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::cri::Cri;
use podwright_e2e::wait;
use podwright_proto::cri::ContainerState;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(180);
const UID: &str = "io.kubernetes.pod.uid";

/// A pod that waits and exits immediately on SIGTERM.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": "app",
                "image": "localhost/podwright/test:latest",
                "imagePullPolicy": "Never",
                "args": ["serve", "--http", "8080"],
            }],
        },
    })
}

/// Ids of the running containers, with their pods' names, UIDs and restart counts.
async fn running(cri: &Cri) -> anyhow::Result<Vec<(String, String, String)>> {
    let label = |container: &podwright_proto::cri::Container, key: &str| {
        container.labels.get(key).cloned().unwrap_or_default()
    };
    let containers = cri.containers().await?;
    let alive = containers.iter().filter(|c| c.state() == ContainerState::ContainerRunning);
    let mut found: Vec<_> =
        alive.map(|c| (label(c, "io.kubernetes.pod.name"), label(c, UID), c.id.clone())).collect();
    found.sort();
    Ok(found)
}

/// Waits until exactly these pods run, and returns them.
async fn until_running(cri: &Cri, names: &[&str]) -> Vec<(String, String, String)> {
    let inspect = async || {
        let found = running(cri).await?;
        let same = found.iter().map(|(name, _, _)| name.as_str()).eq(names.iter().copied());
        Ok(same.then_some(found))
    };
    wait::until(&format!("{names:?} to run"), LIMIT, inspect).await.unwrap()
}

#[tokio::test]
async fn manifest_starts_a_pod_an_edit_replaces_it_and_removal_stops_it() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let cri = bed.cri().await.unwrap();

    let file = agent.add_manifest("web", &pod("web")).unwrap();
    let first = until_running(&cri, &["web-node-1"]).await;
    let sandboxes = cri.sandboxes().await.unwrap();
    let status = cri.sandbox_status(&sandboxes[0].id).await.unwrap();
    let page = format!("http://{}:8080/", status.network.unwrap().ip);
    let response = async || Ok(bed.http_get(&page).await.is_ok());
    wait::until_true("the pod to respond", LIMIT, response).await.unwrap();

    let mut edited = pod("web");
    edited["spec"]["containers"][0]["env"] = json!([{ "name": "COLOUR", "value": "blue" }]);
    agent.add_manifest("web", &edited).unwrap();
    let replaced = async || {
        let now = running(&cri).await?;
        Ok(now.len() == 1 && now[0].1 != first[0].1)
    };
    wait::until_true("the edited pod to replace the first", LIMIT, replaced).await.unwrap();

    fs::write(&file, "{ this is no manifest").unwrap();
    fs::write(agent.manifests().join("other.yaml"), format!("{}", pod("other"))).unwrap();
    until_running(&cri, &["other-node-1", "web-node-1"]).await;

    fs::remove_file(&file).unwrap();
    fs::remove_file(agent.manifests().join("other.yaml")).unwrap();
    until_running(&cri, &[]).await;
    let empty = async || Ok(agent.pod_directories()?.is_empty());
    wait::until_true("the pod directories to be removed", LIMIT, empty).await.unwrap();
    drop(agent);
    bed.close().unwrap();
}

#[tokio::test]
async fn restarted_agent_adopts_its_pods_and_stops_those_removed_meanwhile() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let mut agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let cri = bed.cri().await.unwrap();
    agent.add_manifest("a", &pod("a")).unwrap();
    let gone = agent.add_manifest("b", &pod("b")).unwrap();
    let before = until_running(&cri, &["a-node-1", "b-node-1"]).await;

    agent.kill().await.unwrap();
    fs::remove_file(gone).unwrap();
    agent.restart().await.unwrap();
    agent.healthy().await.unwrap();
    let after = until_running(&cri, &["a-node-1"]).await;
    assert_eq!(after[0], before[0], "the same container, not a new one");
    drop(agent);
    bed.close().unwrap();
}

/// Another node agent computes another UID from the same manifest, and sends the same requests.
#[tokio::test]
async fn static_pod_that_another_node_agent_started_goes_on() {
    needs_root!();
    const OTHERS: &str = "5f1c1d3b8ef84e0a9f60a2b7f4d2c8aa";
    let bed = Bed::builder().start().await.unwrap();
    let mut agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let cri = bed.cri().await.unwrap();
    let shared = agent.root_dir().join("shared");
    fs::create_dir_all(&shared).unwrap();
    let with_volume = |name: &str| {
        let mut pod = pod(name);
        let spec = &mut pod["spec"];
        let file = json!({ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } });
        spec["volumes"] = json!([
            { "name": "data", "hostPath": { "path": shared } },
            { "name": "names", "downwardAPI": { "items": [file] } },
        ]);
        let container = &mut spec["containers"][0];
        container["volumeMounts"] = json!([
            { "name": "data", "mountPath": "/data" },
            { "name": "names", "mountPath": "/names" },
        ]);
        container["env"] = json!([{ "name": "COLOUR", "value": "blue" }]);
        container["resources"] = json!({ "limits": { "cpu": "100m", "memory": "64Mi" } });
        pod
    };
    for (name, uid) in [("same", OTHERS), ("edited", "5f1c1d3b8ef84e0a9f60a2b7f4d2c8ab")] {
        let mut of_other = with_volume(name);
        of_other["metadata"]["uid"] = json!(uid);
        agent.add_manifest(name, &of_other).unwrap();
    }
    let before = until_running(&cri, &["edited-node-1", "same-node-1"]).await;
    assert_eq!(before[1].1, OTHERS);

    agent.kill().await.unwrap();
    agent.add_manifest("same", &with_volume("same")).unwrap();
    let mut edited = with_volume("edited");
    edited["spec"]["containers"][0]["env"][0]["value"] = json!("red");
    agent.add_manifest("edited", &edited).unwrap();
    agent.restart().await.unwrap();
    agent.healthy().await.unwrap();
    let replaced = async || {
        let now = running(&cri).await?;
        Ok((now.len() == 2 && now[0].1 != before[0].1).then_some(now))
    };
    let after = wait::until("the edited pod to be replaced", LIMIT, replaced).await.unwrap();
    assert_eq!(after[1], before[1], "the same container, not a new one");

    agent.kill().await.unwrap();
    agent.restart().await.unwrap();
    agent.healthy().await.unwrap();
    assert_eq!(until_running(&cri, &["edited-node-1", "same-node-1"]).await, after);
    drop(agent);
    bed.close().unwrap();
}

#[tokio::test]
async fn exited_container_is_restarted() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let cri = bed.cri().await.unwrap();
    let mut once = pod("again");
    once["spec"]["containers"][0]["args"] = json!(["exit", "7", "--after", "1"]);
    agent.add_manifest("again", &once).unwrap();
    let restarted = async || {
        let containers = cri.containers().await?;
        Ok(containers.iter().any(|c| c.metadata.as_ref().is_some_and(|m| m.attempt > 0)))
    };
    wait::until_true("the second attempt", LIMIT, restarted).await.unwrap();
    drop(agent);
    bed.close().unwrap();
}

#[tokio::test]
async fn pod_from_url_survives_errors_and_stops_when_no_longer_listed() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let listener = bed.netns().listen(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (response, answers) = tokio::sync::watch::channel(("200 OK", pod("afar").to_string()));
    let (asked, asks) = tokio::sync::watch::channel(0_u32);
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let (status, body) = answers.borrow().clone();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
            let text = format!("{head}connection: close\r\n\r\n{body}");
            let _ = stream.write_all(text.as_bytes()).await;
            asked.send_modify(|times| *times += 1);
        }
    });
    let url = format!("http://{address}/pods");
    let settings = json!({ "staticPodURL": url, "httpCheckFrequency": "200ms" });
    let agent = bed.agent("node-1").configure(settings).start().unwrap();
    agent.healthy().await.unwrap();
    let cri = bed.cri().await.unwrap();
    let first = until_running(&cri, &["afar-node-1"]).await;
    // Polled a few more times, with an error response.
    response.send_replace(("500 Internal Server Error", String::new()));
    let before = *asks.borrow();
    let again = async || Ok(*asks.borrow() > before + 3);
    wait::until_true("more requests", LIMIT, again).await.unwrap();
    assert_eq!(until_running(&cri, &["afar-node-1"]).await, first);
    response.send_replace(("200 OK", String::new()));
    until_running(&cri, &[]).await;
    serving.abort();
    drop(agent);
    bed.close().unwrap();
}

#[tokio::test]
async fn two_nodes_on_one_runtime_do_not_touch_each_others_pods() {
    needs_root!();
    let one = Bed::builder().start().await.unwrap();
    let two = Bed::builder().start().await.unwrap();
    let agents = [one.agent("node-1").start().unwrap(), two.agent("node-2").start().unwrap()];
    for (agent, name) in agents.iter().zip(["a", "b"]) {
        agent.healthy().await.unwrap();
        agent.add_manifest(name, &pod(name)).unwrap();
    }
    let (cri_one, cri_two) = (one.cri().await.unwrap(), two.cri().await.unwrap());
    let first = until_running(&cri_one, &["a-node-1"]).await;
    let second = until_running(&cri_two, &["b-node-2"]).await;
    // The absence of an effect can only be waited for: three rounds of housekeeping of both.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(running(&cri_one).await.unwrap(), first);
    assert_eq!(running(&cri_two).await.unwrap(), second);
    drop(agents);
    one.close().unwrap();
    two.close().unwrap();
}
