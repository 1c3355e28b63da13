//! `podwright why` on a running agent, for pods that do not run as they should.

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

/// Runs the command beside the agent: its output, and whether it succeeded.
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

/// Polls until the output contains all these words.
async fn until_output(agent: &Agent, pod: &str, words: &[&str]) -> Value {
    let reported = async || {
        let (text, _) = why(agent, pod, &["-o", "json"]);
        let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
        anyhow::ensure!(missing.is_empty(), "{missing:?} is not in {text}");
        Ok(Some(serde_json::from_str(&text)?))
    };
    wait::until(format!("why {pod}"), LIMIT, reported).await.unwrap()
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
async fn why_names_what_a_pod_waits_for_and_the_fix() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();

    // Loopback refuses the connection immediately.
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
    let reported = until_output(&agent, "unpullable", &words).await;
    assert!(reported["failed"][0]["times"].as_u64().unwrap() >= 1, "{reported}");

    // In back-off after an exit, not just restarting.
    let words = ["CrashLoopBackOff", "\"nextStart\": \"20", "\"next\": \"20", "\"since\": \"20"];
    let reported = until_output(&agent, "default/crashing", &words).await;
    assert_eq!(reported["containers"][0]["lastExit"]["code"], 3, "{reported}");

    let reported = until_output(&agent, "held-node-1", &["held: ", "maintenance"]).await;
    assert!(reported["wayOut"].as_str().unwrap().contains("podwright/hold"), "{reported}");

    let reported = until_output(&agent, "deaf", &["\"state\": \"running\""]).await;
    let uid = reported["uid"].as_str().unwrap().to_owned();
    std::fs::remove_file(stopping).unwrap();
    let words = ["\"stage\": \"Terminating\"", "\"what\": \"stopping app", "grace"];
    until_output(&agent, &uid, &words).await;

    let (page, reported) = why(&agent, "crashing", &[]);
    assert!(reported && page.starts_with("default/crashing-node-1 ("), "{page}");
    replays(&agent, &bed.path("case.json")).await;
    unknown(&agent);
    drop(agent);
    bed.close().unwrap();
}

/// What is not in a plan: logs, answers of probes, images on the node, manifests without a pod.
#[tokio::test]
async fn why_shows_logs_probe_answers_pull_policies_and_broken_manifests() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();

    let says = json!({ "command": ["sh", "-c", "echo one; echo two; exit 3"] });
    agent.add_manifest("talking", &pod("talking", says)).unwrap();
    let probe =
        |command: &str| json!({ "exec": { "command": ["sh", "-c", command] }, "periodSeconds": 1 });
    let mut unready = json!({ "args": ["serve"] });
    unready["readinessProbe"] = probe("echo cache is cold; exit 5");
    agent.add_manifest("unready", &pod("unready", unready)).unwrap();
    let mut unhealthy = json!({ "args": ["serve"] });
    unhealthy["livenessProbe"] = probe("echo deadlock; exit 1");
    let mut unhealthy = pod("unhealthy", unhealthy);
    unhealthy["spec"]["terminationGracePeriodSeconds"] = json!(1);
    agent.add_manifest("unhealthy", &unhealthy).unwrap();
    // It is on the node, and no registry has it.
    let pulls = json!({ "imagePullPolicy": "Always", "args": ["serve"] });
    agent.add_manifest("pulling", &pod("pulling", pulls)).unwrap();

    let words = ["CrashLoopBackOff", "kubectl logs -n default talking-node-1 --previous"];
    let reported = until_output(&agent, "talking", &words).await;
    assert_eq!(reported["containers"][0]["lastExit"]["log"], json!(["one", "two"]), "{reported}");
    let words =
        ["running; app is not ready: its readiness probe failed", "exit code 5: cache is cold"];
    let reported = until_output(&agent, "unready", &words).await;
    let probe = &reported["containers"][0]["probes"][0];
    assert_eq!((&probe["kind"], &probe["passed"]), (&json!("Readiness"), &json!(0)), "{probe}");
    let words = ["make app pass its liveness probe", "exit code 1: deadlock", "\"restarts\": "];
    until_output(&agent, "unhealthy", &words).await;
    let reported = until_output(&agent, "pulling", &["imagePullPolicy: IfNotPresent"]).await;
    assert!(!reported.to_string().contains("check the image name"), "{reported}");

    let broken = agent.add_manifest("broken", &json!({})).unwrap();
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: broken\nspec:\n  containers:\n  - name: C\n    \
                image: i\n";
    std::fs::write(&broken, text).unwrap();
    let words =
        ["\"line\": 7", "spec.containers[0].name: Invalid value", "\"effect\": \"Ignored\""];
    until_output(&agent, broken.to_str().unwrap(), &words).await;
    let node = async || {
        let root = agent.root_dir();
        let (page, _) = podwright(&["why", "--node", "--root-dir", root.to_str().unwrap()]);
        let parts = [
            "node node-1: Ready",
            "stuck      default/talking-node-1: ",
            "broken",
            ":7: pod broken",
        ];
        let missing: Vec<_> = parts.iter().filter(|part| !page.contains(**part)).collect();
        anyhow::ensure!(missing.is_empty(), "{missing:?} is not in {page}");
        Ok(true)
    };
    wait::until_true("why --node", LIMIT, node).await.unwrap();
    drop(agent);
    bed.close().unwrap();
}

/// Problems outside of the pod: a missing object and missing capacity.
#[tokio::test]
async fn why_names_missing_objects_and_missing_capacity() {
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
    let words = ["mounting volumes", "configmap \\\"absent\\\" not found", "\"wayOut\": \""];
    until_output(agent, "shop/mounts", &words).await;
    let words =
        ["CreateContainerConfigError", "configmap \\\"vars\\\" not found", "\"wayOut\": \""];
    until_output(agent, "shop/variable", &words).await;
    let words =
        ["OutOfmemory", "enough resource: memory", "request at most", "\"allocatable\": \""];
    until_output(agent, "shop/large", &words).await;
    cluster.close();
}

/// A recorded case contains no secret and reproduces the agent's decision.
async fn replays(agent: &Agent, file: &Path) {
    let file = file.to_str().unwrap();
    let same = async || {
        let (reported, recorded) = why(agent, "crashing", &["-o", "json", "--record", file]);
        anyhow::ensure!(recorded, "{reported}");
        let case = std::fs::read_to_string(file)?;
        assert!(case.contains("PASSWORD") && !case.contains("hunter2"), "{case}");
        let (plan, replayed) = podwright(&["plan", file]);
        assert!(replayed, "{plan}");
        let mut reported = serde_json::Deserializer::from_str(&reported).into_iter::<Value>();
        let reported = reported.next().unwrap()?;
        // The container may have restarted between the two requests; then try again.
        let same = plan.contains(reported["why"].as_str().unwrap_or_default());
        anyhow::ensure!(same, "{plan}\ndiffers from the report: {reported}");
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
