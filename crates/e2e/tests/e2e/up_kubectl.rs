//! Stock `kubectl` of three releases against `podwright up`: one machine, no control plane.

use std::path::PathBuf;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::bench::usage::Memory;
use podwright_e2e::bystanders::Bystanders;
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::process::output;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::privilege::{figure, needs_root};
use crate::standalone::Standalone;

const LIMIT: Duration = Duration::from_secs(180);

/// A pod of the test image that serves a page, with additional spec fields.
fn server(name: &str, extra: &Value) -> String {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "web", "image": "localhost/podwright/test:latest",
            "imagePullPolicy": "Never", "args": ["serve", "--http", "8080"],
        }],
    });
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    pod.to_string()
}

fn pid(text: &str) -> u32 {
    text.lines().next().and_then(|line| line.trim().parse().ok()).expect("the agent runs")
}

/// The pid of this node's agent.
pub(crate) async fn agent(bed: &Bed, node: &Standalone<'_>) -> u32 {
    let pattern = format!("up --foreground --state-dir {}", node.state);
    pid(&bed.exec(&["pgrep", "--full", "--", &pattern]).await.unwrap())
}

async fn objects(kubectl: &Kubectl, suffix: &str) {
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();
    let name = format!("map-{suffix}");
    let map = name.as_str();
    let manifest = |data: Value| {
        let labels = json!({"age": suffix});
        let metadata = json!({"name": map, "labels": labels});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
            .to_string()
    };
    let apply = async |arguments: &[&str], data: Value| {
        let mut command = vec!["apply", "-f", "-"];
        command.extend(arguments);
        kubectl.run_with(&command, &manifest(data)).await
    };
    // dry run, then created, then read in every form
    let tried = apply(&["--dry-run=server"], json!({"a": "1"})).await.unwrap();
    assert!(tried.contains("created (server dry run)"), "{tried}");
    assert!(kubectl.run(&["get", "configmap", map]).await.is_err(), "a dry run leaves nothing");
    assert!(apply(&[], json!({"a": "1", "b": "2"})).await.unwrap().contains("created"));
    assert!(apply(&[], json!({"a": "1", "b": "2"})).await.unwrap().contains("unchanged"));
    assert!(apply(&[], json!({"a": "3"})).await.unwrap().contains("configured"));
    let data = run(&["get", "configmap", map, "-o", "jsonpath={.data}"]).await;
    assert_eq!(data, r#"{"a":"3"}"#, "apply removes fields of the previous apply");
    let table = run(&["get", "cm", "-l", &format!("age={suffix}")]).await;
    assert!(table.starts_with("NAME") && table.contains(map), "{table}");
    assert!(run(&["get", "cm", map, "-o", "yaml"]).await.contains("kind: ConfigMap"));
    assert!(run(&["describe", "cm", map]).await.contains("Data"));
    // a diff is reported by its exit code
    let diff = kubectl.run_with(&["diff", "-f", "-"], &manifest(json!({"a": "4"}))).await;
    assert!(format!("{:#}", diff.unwrap_err()).contains("exit"), "there is a difference");
    // changed in every way
    run(&["patch", "cm", map, "--type", "merge", "-p", r#"{"data":{"m":"1"}}"#]).await;
    let add = r#"[{"op":"add","path":"/data/j","value":"1"}]"#;
    run(&["patch", "cm", map, "--type", "json", "-p", add]).await;
    run(&["patch", "cm", map, "-p", r#"{"data":{"s":"1"}}"#]).await;
    run(&["label", "cm", map, "colour=red"]).await;
    run(&["annotate", "cm", map, "note=short"]).await;
    let mut edit = kubectl.command(&["edit", "configmap", map]);
    edit.env("KUBE_EDITOR", "sed -i 's/^  a: .*/  a: edited/'");
    tokio::task::spawn_blocking(move || output(&mut edit)).await.unwrap().unwrap();
    let shown: Value = serde_json::from_str(&run(&["get", "cm", map, "-o", "json"]).await).unwrap();
    assert_eq!(shown["data"], json!({"a": "edited", "m": "1", "j": "1", "s": "1"}));
    assert_eq!(shown["metadata"]["labels"]["colour"], "red");
    assert_eq!(shown["metadata"]["annotations"]["note"], "short");
    // and deleted
    run(&["delete", "configmap", map, "--wait=true"]).await;
    assert!(kubectl.run(&["get", "configmap", map]).await.is_err());
}

/// `manager operation [subresource]` of each entry of `--show-managed-fields`, sorted.
async fn managers(kubectl: &Kubectl, kind: &str, name: &str) -> Vec<String> {
    let shown = kubectl.run(&["get", kind, name, "-o", "json", "--show-managed-fields"]).await;
    let shown: Value = serde_json::from_str(&shown.unwrap()).unwrap();
    let list = shown["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let line = |entry: &Value| {
        let fields = ["manager", "operation", "subresource"].map(|field| text(entry, field));
        fields.join(" ").trim_end().to_owned()
    };
    let mut managers: Vec<String> = list.iter().map(line).collect();
    managers.sort();
    managers
}

/// Server-side apply: creation, removal, conflict, force, diff, edit, and kubectl's migration of
/// an object that client-side apply created.
async fn server_side_apply(kubectl: &Kubectl, suffix: &str) {
    let name = format!("side-{suffix}");
    let map = name.as_str();
    let manifest = |data: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": map}, "data": data})
            .to_string()
    };
    let apply = async |arguments: &[&str], data: Value| {
        let mut command = vec!["apply", "-f", "-"];
        command.extend(arguments);
        kubectl.run_with(&command, &manifest(data)).await
    };
    let data = async || {
        let shown = kubectl.run(&["get", "cm", map, "-o", "jsonpath={.data}"]).await.unwrap();
        serde_json::from_str::<Value>(&shown).unwrap_or_default()
    };
    let side = "--server-side";
    let diff = kubectl.run_with(&["diff", side, "-f", "-"], &manifest(json!({"a": "1"}))).await;
    assert!(format!("{:#}", diff.unwrap_err()).contains("exit"), "a new object is a difference");
    let applied = apply(&[side], json!({"a": "1", "b": "1"})).await.unwrap();
    assert!(applied.contains("serverside-applied"), "{applied}");
    kubectl
        .run_with(&["diff", side, "-f", "-"], &manifest(json!({"a": "1", "b": "1"})))
        .await
        .expect("no difference");
    apply(&[side], json!({"a": "1"})).await.unwrap();
    assert_eq!(data().await, json!({"a": "1"}), "what is no longer applied is removed");
    // somebody edits it: a conflict, until it is forced
    let mut edit = kubectl.command(&["edit", "configmap", map]);
    edit.env("KUBE_EDITOR", "sed -i 's/^  a: .*/  a: edited/'");
    tokio::task::spawn_blocking(move || output(&mut edit)).await.unwrap().unwrap();
    let refused = format!("{:#}", apply(&[side], json!({"a": "2"})).await.unwrap_err());
    let conflict = "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using v1: .data.a";
    assert!(refused.contains(conflict), "{refused}");
    assert_eq!(data().await, json!({"a": "edited"}));
    let tried = apply(&[side, "--force-conflicts", "--dry-run=server"], json!({"a": "2"})).await;
    assert!(tried.unwrap().contains("serverside-applied (server dry run)"));
    apply(&[side, "--force-conflicts"], json!({"a": "2"})).await.unwrap();
    assert_eq!(data().await, json!({"a": "2"}));
    assert_eq!(managers(kubectl, "cm", map).await, ["kubectl Apply"]);
    kubectl.run(&["delete", "cm", map]).await.unwrap();
    // kubectl migrates an object of client-side apply, and a key that its manifest lost goes
    apply(&[], json!({"a": "1", "b": "1"})).await.unwrap();
    assert_eq!(managers(kubectl, "cm", map).await, ["kubectl-client-side-apply Update"]);
    apply(&[side], json!({"a": "2"})).await.unwrap();
    assert_eq!(data().await, json!({"a": "2"}));
    let owners = managers(kubectl, "cm", map).await;
    assert_eq!(owners, ["kubectl Apply", "kubectl-last-applied Apply"]);
    // and client-side apply still works afterwards
    assert!(apply(&[], json!({"a": "3"})).await.unwrap().contains("configured"));
    assert_eq!(data().await, json!({"a": "3"}));
    kubectl.run(&["delete", "cm", map]).await.unwrap();
}

async fn certificates_and_tokens(kubectl: &Kubectl) {
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();
    let resources = run(&["api-resources"]).await;
    for kind in ["pods", "configmaps", "leases", "runtimeclasses", "priorityclasses"] {
        assert!(resources.contains(kind), "{resources}");
    }
    let explained = run(&["explain", "pod.spec.containers"]).await;
    assert!(explained.contains("volumeMounts"), "{explained}");
    assert_eq!(run(&["auth", "can-i", "create", "pods"]).await.trim(), "yes");
    let robot = "--as=system:serviceaccount:default:default";
    let asked = kubectl.run(&["auth", "can-i", "list", "secrets", robot]).await;
    assert!(asked.is_err(), "a service account has no rights without a role");
    // typos are reported by kubectl before it sends a request
    let typo = server("typo", &json!({"restartPolcy": "Never"}));
    let refused = kubectl.run_with(&["apply", "-f", "-"], &typo).await.unwrap_err();
    assert!(format!("{refused:#}").contains("restartPolcy"), "{refused:#}");
    let unserved = kubectl.run(&["create", "deployment", "d", "--image=x"]).await.unwrap_err();
    assert!(!format!("{unserved:#}").contains("panic"), "{unserved:#}");
}

/// Logs, exec, cp and port-forward of a serving pod.
async fn streams(bed: &Bed, kubectl: &Kubectl) {
    let logged = kubectl.run(&["logs", "hello"]).await.unwrap();
    assert!(logged.contains("8080"), "{logged}");
    let printed = kubectl.run(&["exec", "hello", "--", "sh", "-c", "echo out; echo err >&2"]).await;
    assert!(printed.unwrap().contains("out"));
    let failed = kubectl.run(&["exec", "hello", "--", "sh", "-c", "exit 3"]).await.unwrap_err();
    assert!(format!("{failed:#}").contains("exit code 3"), "{failed:#}");
    let received = kubectl.run_with(&["exec", "-i", "hello", "--", "cat"], "through stdin").await;
    assert_eq!(received.unwrap(), "through stdin");
    let file = bed.path("copied");
    std::fs::write(&file, "a file").unwrap();
    kubectl.run(&["cp", file.to_str().unwrap(), "hello:/tmp/copied"]).await.unwrap();
    let there = kubectl.run(&["exec", "hello", "--", "cat", "/tmp/copied"]).await.unwrap();
    assert_eq!(there, "a file");
    let forwarding = kubectl.command(&["port-forward", "pod/hello", "18081:8080"]);
    let forwarding = bed.daemon("forwarding", forwarding).unwrap();
    let page = async || Ok(bed.http_get("http://127.0.0.1:18081/").await.ok());
    let page = forwarding.until("the forwarded page", LIMIT, page).await.unwrap();
    assert_eq!(page.status, 200);
    forwarding.kill().await.unwrap();
    let missing = kubectl.run(&["logs", "nobody"]).await.unwrap_err();
    assert!(format!("{missing:#}").contains("not found"), "{missing:#}");
}

#[tokio::test]
async fn every_kubectl_release_reads_and_writes_objects() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    let printed = node.run(&["up"]).await.unwrap();
    assert!(printed.contains("is Ready") && printed.contains("KUBECONFIG="), "{printed}");
    for (release, suffix) in
        [(Release::V1_20, "old"), (Release::V1_32, "middle"), (Release::V1_36, "new")]
    {
        let kubectl = node.kubectl(release);
        objects(&kubectl, suffix).await;
        certificates_and_tokens(&kubectl).await;
        if release != Release::V1_20 {
            server_side_apply(&kubectl, suffix).await; // the older one does not migrate
        }
        // a namespace has its default objects, and its deletion removes its content
        kubectl.run(&["create", "namespace", suffix]).await.unwrap();
        let account = ["get", "serviceaccount", "default", "-n", suffix];
        let furnished = async || kubectl.run(&account).await.map(Some);
        wait::until("the service account of the namespace", LIMIT, furnished).await.unwrap();
        kubectl.run(&["create", "configmap", "left", "-n", suffix]).await.unwrap();
        kubectl.run(&["delete", "namespace", suffix]).await.unwrap();
        assert!(kubectl.run(&["get", "namespace", suffix]).await.is_err());
    }
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}

#[tokio::test]
async fn applied_pod_runs_and_survives_agent_restart_and_down() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();
    let ready = ["wait", "--for=condition=Ready", "pod/hello", "--timeout=180s"];

    kubectl.run_with(&["apply", "-f", "-"], &server("hello", &json!({}))).await.unwrap();
    run(&ready).await;
    let shown = run(&["get", "pod", "hello", "-o", "wide"]).await;
    assert!(shown.contains("1/1") && shown.contains("Running"), "{shown}");
    let ip = run(&["get", "pod", "hello", "-o", "jsonpath={.status.podIP}"]).await;
    let url = format!("http://{ip}:8080/");
    let page = async || bed.http_get(&url).await.map(Some);
    assert_eq!(wait::until("the pod's page", LIMIT, page).await.unwrap().status, 200);
    let described = run(&["describe", "pod", "hello"]).await;
    assert!(described.contains("Successfully assigned default/hello"), "{described}");

    let owners = managers(&kubectl, "pod", "hello").await;
    assert_eq!(owners, ["kubectl-client-side-apply Update", "kubelet Update status"]);

    for release in Release::ALL {
        streams(&bed, &node.kubectl(release)).await;
    }

    // a pod that does not fit reports it, and starts when there is capacity
    let greedy = json!({"containers": [{
        "name": "web", "image": "localhost/podwright/test:latest", "imagePullPolicy": "Never",
        "args": ["serve", "--http", "8080"], "resources": {"requests": {"cpu": "1000"}},
    }]});
    kubectl.run_with(&["apply", "-f", "-"], &server("greedy", &greedy)).await.unwrap();
    let why = "jsonpath={.status.conditions[?(@.type==\"PodScheduled\")].message}";
    let reported = async || {
        let message = kubectl.run(&["get", "pod", "greedy", "-o", why]).await?;
        Ok(message.contains("Insufficient cpu (requested 1k"))
    };
    wait::until_true("the unschedulable pod to report the missing resource", LIMIT, reported)
        .await
        .unwrap();
    run(&["delete", "pod", "greedy"]).await;

    // every acknowledged write survives kill -9, and no container is disturbed
    let uid = run(&["get", "pod", "hello", "-o", "jsonpath={.metadata.uid}"]).await;
    run(&["create", "configmap", "acknowledged", "--from-literal=a=b"]).await;
    let killed = agent(&bed, &node).await;
    bed.exec(&["kill", "-9", &killed.to_string()]).await.unwrap();
    node.run(&["up"]).await.unwrap();
    assert_eq!(run(&["get", "cm", "acknowledged", "-o", "jsonpath={.data.a}"]).await, "b");
    run(&ready).await;
    let same = "jsonpath={.metadata.uid} {.status.containerStatuses[0].restartCount}";
    assert_eq!(run(&["get", "pod", "hello", "-o", same]).await, format!("{uid} 0"));

    // down stops it, up starts it again
    node.run(&["down"]).await.unwrap();
    node.run(&["up"]).await.unwrap();
    let back = async || {
        let pods = node.pods().await;
        Ok(pods.iter().any(|pod| pod["running"] == 1))
    };
    wait::until_true("the pod to come back", LIMIT, back).await.unwrap();
    assert_eq!(run(&["get", "pod", "hello", "-o", "jsonpath={.metadata.uid}"]).await, uid);

    run(&["delete", "pod", "hello"]).await;
    assert!(kubectl.run(&["get", "pod", "hello"]).await.is_err());
    let asked = format!("{:#}", node.run(&["reset"]).await.unwrap_err());
    assert!(asked.contains("nothing deleted"), "{asked}");
    node.run(&["reset", "--yes"]).await.unwrap();
    let left = std::fs::read_dir(&node.state).into_iter().flatten().flatten();
    let left: Vec<PathBuf> = left.map(|entry| entry.path()).collect();
    assert!(left.iter().all(|path| Bystanders::is_one(path)), "{left:?}");
    drop(kubectl);
    bed.close().unwrap();
}

/// Figures for the README; with `PODWRIGHT_LONG` for the maximum number of pods. Set
/// `PODWRIGHT_BIN` to measure the release build.
#[tokio::test]
async fn time_to_first_pod_and_memory_are_printed() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    node.run(&["down"]).await.unwrap();
    let began = std::time::Instant::now();
    node.run(&["up"]).await.unwrap();
    let up = began.elapsed();
    kubectl.run_with(&["apply", "-f", "-"], &server("first", &json!({}))).await.unwrap();
    kubectl.run(&["wait", "--for=condition=Ready", "pod/first", "--timeout=180s"]).await.unwrap();
    let first = began.elapsed();
    figure(&format!("warm up: node Ready after {up:.2?}, the first pod after {first:.2?}"));
    kubectl.run(&["delete", "pod", "first"]).await.unwrap();
    let many = if std::env::var_os("PODWRIGHT_LONG").is_some() { 110 } else { 10 };
    let manifests: Vec<String> =
        (0..many).map(|number| server(&format!("pod-{number}"), &json!({}))).collect();
    let before = Memory::of(agent(&bed, &node).await).unwrap();
    kubectl.run_with(&["apply", "-f", "-"], &manifests.join("\n")).await.unwrap();
    let wait = ["wait", "--for=condition=Ready", "pod", "--all", "--timeout=300s"];
    kubectl.run(&wait).await.unwrap();
    let after = Memory::of(agent(&bed, &node).await).unwrap();
    figure(&format!(
        "up: {:.1} MB with no pods ({:.1} anonymous), {:.1} MB with {many} ({:.1} anonymous)",
        before.resident, before.anonymous, after.resident, after.anonymous
    ));
    let containerd = Memory::of(pid(&node.pid("containerd"))).unwrap();
    figure(&format!("its containerd beside it: {:.1} MB with {many} pods", containerd.resident));
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}
