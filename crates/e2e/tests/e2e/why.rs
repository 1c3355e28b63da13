//! `podwright why`, asked of a running agent about pods that do not run as they should.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use podwright_e2e::agent::Agent;
use podwright_e2e::bed::Bed;
use podwright_e2e::process::{COMMAND_LIMIT, Stdin, everything, run};
use podwright_e2e::{tools, wait};
use serde_json::{Value, json};

use crate::cluster::{self, Cluster};
use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(180);

/// Runs the command beside the agent: what it printed, and whether it succeeded.
fn podwright(arguments: &[&str]) -> (String, bool) {
    let mut command = Command::new(tools::podwright().unwrap());
    command.args(arguments);
    let output = run(&mut command, Stdin::Ends(b""), COMMAND_LIMIT).unwrap();
    (everything(&output), output.status.success())
}

fn why(agent: &Agent, pod: &str, more: &[&str]) -> (String, bool) {
    let root = agent.root_dir();
    let mut arguments = vec!["why", pod, "--root-dir", root.to_str().unwrap()];
    arguments.extend(more);
    podwright(&arguments)
}

/// Asks until the answer has all these words.
async fn until_told(agent: &Agent, pod: &str, words: &[&str]) -> Value {
    let told = async || {
        let (text, _) = why(agent, pod, &["-o", "json"]);
        let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
        anyhow::ensure!(missing.is_empty(), "{missing:?} is not in {text}");
        Ok(Some(serde_json::from_str(&text)?))
    };
    wait::until(format!("why {pod}"), LIMIT, told).await.unwrap()
}

fn pod(name: &str, container: Value) -> Value {
    let mut container = container;
    container["name"] = json!("app");
    container["imagePullPolicy"] =
        container.get("imagePullPolicy").cloned().unwrap_or(json!("Never"));
    if container["image"].is_null() {
        container["image"] = json!("localhost/podwright/test:latest");
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name },
        "spec": { "terminationGracePeriodSeconds": 30, "containers": [container] },
    })
}

#[tokio::test]
async fn it_names_what_a_pod_waits_for_and_the_way_out() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();

    // Loopback answers at once that nobody listens.
    let image = json!({ "image": "127.0.0.1:1/none:1", "imagePullPolicy": "Always" });
    agent.add_manifest("unpullable", &pod("unpullable", image)).unwrap();
    let crash =
        json!({ "args": ["exit", "3"], "env": [{ "name": "PASSWORD", "value": "hunter2" }] });
    agent.add_manifest("crashing", &pod("crashing", crash)).unwrap();
    let mut held = pod("held", json!({ "args": ["serve"] }));
    held["metadata"]["annotations"] = json!({ "podwright/hold": "maintenance" });
    agent.add_manifest("held", &held).unwrap();
    let deaf = json!({ "command": ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"] });
    let stopping = agent.add_manifest("deaf", &pod("deaf", deaf)).unwrap();

    let words = ["ErrImagePull", "127.0.0.1:1/none:1", "check the image name", "refused"];
    let told = until_told(&agent, "unpullable", &words).await;
    assert!(told["failed"][0]["times"].as_u64().unwrap() >= 1, "{told}");

    // Resting after an exit, not just starting again.
    let words = ["CrashLoopBackOff", "logs --previous", "\"next\": \"20", "\"since\": \"20"];
    until_told(&agent, "default/crashing", &words).await;

    let told = until_told(&agent, "held-node-1", &["held back", "maintenance"]).await;
    assert!(told["wayOut"].as_str().unwrap().contains("podwright/hold"), "{told}");

    let told = until_told(&agent, "deaf", &["\"state\": \"runs\""]).await;
    let uid = told["uid"].as_str().unwrap().to_owned();
    std::fs::remove_file(stopping).unwrap();
    let words = ["\"stage\": \"Terminating\"", "\"what\": \"stopping app", "grace"];
    until_told(&agent, &uid, &words).await;

    let (page, told) = why(&agent, "crashing", &[]);
    assert!(told && page.starts_with("default/crashing-node-1 ("), "{page}");
    replays(&agent, &bed.path("case.json")).await;
    unknown(&agent);
    drop(agent);
    bed.close().unwrap();
}

/// What the API and the node do not give.
#[tokio::test]
async fn it_names_an_object_that_is_missing_and_room_that_is_not_there() {
    needs_root!();
    let cluster = Cluster::start().await;
    let mut mounts = cluster::pod("mounts", &["serve"]);
    mounts["spec"]["volumes"] = json!([{ "name": "settings", "configMap": { "name": "absent" } }]);
    mounts["spec"]["containers"][0]["volumeMounts"] =
        json!([{ "name": "settings", "mountPath": "/settings" }]);
    cluster.create(mounts).await;
    let mut variable = cluster::pod("variable", &["serve"]);
    variable["spec"]["containers"][0]["env"] = json!([{ "name": "V", "valueFrom": { "configMapKeyRef": { "name": "vars", "key": "v" } } }]);
    cluster.create(variable).await;
    let mut large = cluster::pod("large", &["serve"]);
    large["spec"]["containers"][0]["resources"] = json!({ "requests": { "memory": "900Gi" } });
    cluster.create(large).await;

    let agent = &cluster.agent;
    let words = ["mounting its volumes", "configmap \\\"absent\\\" not found", "\"wayOut\": \""];
    until_told(agent, "shop/mounts", &words).await;
    let words =
        ["CreateContainerConfigError", "configmap \\\"vars\\\" not found", "\"wayOut\": \""];
    until_told(agent, "shop/variable", &words).await;
    until_told(agent, "shop/large", &["OutOfmemory", "enough resource: memory"]).await;
    cluster.close();
}

/// A recorded case tells no secret and leads to what the agent decided.
async fn replays(agent: &Agent, file: &Path) {
    let file = file.to_str().unwrap();
    let same = async || {
        let (told, recorded) = why(agent, "crashing", &["-o", "json", "--record", file]);
        anyhow::ensure!(recorded, "{told}");
        let case = std::fs::read_to_string(file)?;
        assert!(case.contains("PASSWORD") && !case.contains("hunter2"), "{case}");
        let (plan, replayed) = podwright(&["plan", file]);
        assert!(replayed, "{plan}");
        let mut told = serde_json::Deserializer::from_str(&told).into_iter::<Value>();
        let told = told.next().unwrap()?;
        // The container may have started again between the two questions; then ask again.
        let same = plan.contains(told["why"].as_str().unwrap_or_default());
        anyhow::ensure!(same, "{plan}\nis not what was told: {told}");
        Ok(true)
    };
    wait::until_true("a replay that decides the same", LIMIT, same).await.unwrap();
}

fn unknown(agent: &Agent) {
    let (text, found) = why(agent, "crashnig", &[]);
    assert!(!found && text.contains("default/crashing-node-1"), "{text}");
    let (text, found) = podwright(&["why", "web", "--root-dir", "/nonexistent"]);
    assert!(!found && text.contains("--root-dir"), "{text}");
}
