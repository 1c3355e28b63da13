//! The API of `podwright up` beyond objects: resource metrics, the node's own pages, descriptions,
//! protection of claims, and kinds that are not served.

use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::privilege::needs_root;
use crate::standalone::Standalone;

const LIMIT: Duration = Duration::from_secs(180);
/// kubectl that prints descriptions of OpenAPI version 3.
const EXPLAINING: [Release; 2] = [Release::V1_32, Release::V1_36];

/// A pod of the test image that runs a shell script.
fn pod(name: &str, script: &str, extra: &Value) -> String {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "main", "image": "localhost/podwright/test:latest",
            "imagePullPolicy": "Never", "command": ["sh", "-c", script],
        }],
    });
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let metadata = json!({"name": name, "labels": {"app": name}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).to_string()
}

async fn run_pod(kubectl: &Kubectl, name: &str, manifest: &str) {
    kubectl.run_with(&["apply", "-f", "-"], manifest).await.unwrap();
    let ready = format!("pod/{name}");
    kubectl.run(&["wait", "--for=condition=Ready", &ready, "--timeout=180s"]).await.unwrap();
}

async fn refused(kubectl: &Kubectl, arguments: &[&str]) -> String {
    format!("{:#}", kubectl.run(arguments).await.unwrap_err())
}

/// The CPU of a row of `kubectl top`, in thousandths of a core.
fn millis(table: &str, name: &str, column: usize) -> u64 {
    let row = table.lines().find(|line| line.split_whitespace().any(|word| word == name));
    let row = row.unwrap_or_else(|| panic!("no row of {name}: {table}"));
    let cell = row.split_whitespace().nth(column).unwrap();
    cell.trim_end_matches('m').parse().unwrap_or_else(|_| panic!("{cell}: {table}"))
}

#[tokio::test]
async fn top_shows_the_usage_of_node_pods_and_containers() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_36);
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();
    let helper = json!({"name": "helper", "image": "localhost/podwright/test:latest",
        "imagePullPolicy": "Never", "command": ["sleep", "1000"]});
    let busy = json!({"name": "main", "image": "localhost/podwright/test:latest",
        "imagePullPolicy": "Never", "command": ["sh", "-c", "while :; do :; done"]});
    run_pod(&kubectl, "busy", &pod("busy", "", &json!({"containers": [busy, helper]}))).await;
    run_pod(&kubectl, "idle", &pod("idle", "sleep 1000", &json!({}))).await;
    let name = run(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]).await;
    for release in Release::ALL {
        let kubectl = node.kubectl(release);
        let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();
        // the first request of all finds no earlier measurement
        let pods = run(&["top", "pod"]).await;
        assert!(pods.starts_with("NAME") && pods.contains("idle"), "{pods}");
        assert!(millis(&pods, "busy", 1) >= 100, "{pods}");
        assert!(millis(&pods, "idle", 1) <= 50, "{pods}");
        let containers = run(&["top", "pod", "--containers"]).await;
        assert!(containers.starts_with("POD"), "{containers}");
        assert!(millis(&containers, "main", 2) >= 100, "{containers}");
        assert!(millis(&containers, "helper", 2) <= 50, "{containers}");
        let everywhere = run(&["top", "pod", "--all-namespaces"]).await;
        assert!(everywhere.starts_with("NAMESPACE") && everywhere.contains("busy"));
        let selected = run(&["top", "pod", "-l", "app=idle"]).await;
        assert!(selected.contains("idle") && !selected.contains("busy"), "{selected}");
        let one = run(&["top", "pod", "busy"]).await;
        assert!(one.contains("busy") && !one.contains("idle"), "{one}");
        let nodes = run(&["top", "node"]).await;
        assert!(nodes.contains("CPU(cores)"), "{nodes}");
        assert!(millis(&nodes, &name, 1) >= 100, "{nodes}");
        assert!(run(&["top", "node", &name]).await.contains('%'));
        let missing = refused(&kubectl, &["top", "pod", "nothing"]).await;
        assert!(missing.contains("pods \"nothing\" not found"), "{missing}");
    }
    let table = run(&["get", "podmetrics.metrics.k8s.io"]).await;
    assert!(table.contains("WINDOW") && table.contains("idle"), "{table}");
    // who may view a namespace may see its usage, and no more
    let bind = ["create", "rolebinding", "jane", "--clusterrole=view", "--user=jane"];
    run(&bind).await;
    assert!(run(&["top", "pod", "--as=jane"]).await.contains("busy"));
    for arguments in [&["top", "pod", "-A", "--as=jane"][..], &["top", "node", "--as=jane"][..]] {
        let denied = refused(&kubectl, arguments).await;
        assert!(denied.contains("Forbidden"), "{denied}");
    }
    // a pod that does not run is left out, and its absence is explained
    let unready = pod("waiting", "", &json!({"nodeSelector": {"no": "node"}}));
    kubectl.run_with(&["apply", "-f", "-"], &unready).await.unwrap();
    assert!(!run(&["top", "pod"]).await.contains("waiting"));
    let address = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/waiting";
    let absent = refused(&kubectl, &["get", "--raw", address]).await;
    assert!(absent.contains("none of its containers run"), "{absent}");
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn pages_of_the_node_are_read_through_the_api() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_36);
    run_pod(&kubectl, "idle", &pod("idle", "echo hello; sleep 1000", &json!({}))).await;
    let nodes = ["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"];
    let name = kubectl.run(&nodes).await.unwrap();
    let page = async |path: &str| {
        kubectl.run(&["get", "--raw", &format!("/api/v1/nodes/{name}/proxy{path}")]).await
    };
    for (path, want) in [
        ("/metrics", "kubelet_running_pods"),
        ("/metrics/cadvisor", "container_cpu_usage_seconds_total"),
        ("/metrics/resource", "node_memory_working_set_bytes"),
        ("/metrics/probes", ""),
        ("/stats/summary", "\"idle\""),
        ("/healthz", "ok"),
        ("/pods", "\"idle\""),
        ("/configz", "kubeletconfig"),
        ("/containerLogs/default/idle/main?tailLines=1", "hello"),
    ] {
        let shown = page(path).await.unwrap_or_else(|error| panic!("{path}: {error:#}"));
        assert!(shown.contains(want), "{path}: {shown}");
    }
    let with_port = format!("/api/v1/nodes/https:{name}:10250/proxy/healthz");
    assert_eq!(kubectl.run(&["get", "--raw", &with_port]).await.unwrap().trim(), "ok");
    // files of the machine are not served, whatever the path looks like
    for path in [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "/logs/../../etc/passwd",
        "/logs/",
        "//etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
    ] {
        let error = format!("{:#}", page(path).await.unwrap_err());
        assert!(!error.contains("root:"), "{path}: {error}");
    }
    let other = "/api/v1/nodes/other/proxy/metrics";
    let missing = refused(&kubectl, &["get", "--raw", other]).await;
    assert!(missing.contains("nodes \"other\" not found"), "{missing}");
    // the right to see a node is not the right to use its pages
    let grant = ["create", "clusterrole", "nodes", "--verb=get,list", "--resource=nodes"];
    kubectl.run(&grant).await.unwrap();
    let bind = ["create", "clusterrolebinding", "nodes", "--clusterrole=nodes", "--user=jane"];
    kubectl.run(&bind).await.unwrap();
    let address = format!("/api/v1/nodes/{name}/proxy/metrics");
    let denied = refused(&kubectl, &["get", "--raw", &address, "--as=jane"]).await;
    assert!(denied.contains("cannot get resource \"nodes/proxy\""), "{denied}");
    let grant = ["create", "clusterrole", "pages", "--verb=get", "--resource=nodes/proxy"];
    kubectl.run(&grant).await.unwrap();
    let bind = ["create", "clusterrolebinding", "pages", "--clusterrole=pages", "--user=jane"];
    kubectl.run(&bind).await.unwrap();
    let allowed = kubectl.run(&["get", "--raw", &address, "--as=jane"]).await.unwrap();
    assert!(allowed.contains("kubelet_running_pods"));
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn explain_prints_descriptions() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    node.run(&["up"]).await.unwrap();
    for release in EXPLAINING {
        let kubectl = node.kubectl(release);
        for (field, want) in [
            ("pod", "Pod is a collection of containers"),
            ("pod.spec", "PodSpec is a description of a pod"),
            ("pod.spec.containers", "List of containers belonging to the pod"),
            ("pod.spec.containers.resources.limits", "maximum amount of compute resources"),
            ("pvc.spec.accessModes", "desired access modes"),
            ("runtimeclass.handler", "underlying runtime"),
            ("rolebinding.roleRef", "RoleRef"),
        ] {
            let explained = kubectl.run(&["explain", field]).await.unwrap();
            let words: Vec<&str> = explained.split_whitespace().collect();
            assert!(words.join(" ").contains(want), "{field}: {explained}");
            assert!(!explained.contains("<empty>"), "{field}: {explained}");
        }
    }
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}

fn deployment() -> String {
    let template = json!({"metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": "nginx"}]}});
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
    let metadata = json!({"name": "web"});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
        .to_string()
}

#[tokio::test]
async fn unserved_kinds_say_what_to_use_instead() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    node.run(&["up"]).await.unwrap();
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"},
        "spec": {"template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "busybox"}]}}}})
    .to_string();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"ports": [{"port": 80}]}})
    .to_string();
    let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": "web"}, "spec": {"defaultBackend": {"service":
            {"name": "web", "port": {"number": 80}}}}})
    .to_string();
    for release in Release::ALL {
        let kubectl = node.kubectl(release);
        for (manifest, want) in [
            (deployment(), "Deployment is not served by podwright"),
            (deployment(), "create a Pod from spec.template"),
            (job.clone(), "restartPolicy Never or OnFailure"),
            (ingress.clone(), "Ingress is not served by podwright"),
            (service.clone(), "services are read-only here"),
        ] {
            for verb in ["apply", "create"] {
                let error = kubectl.run_with(&[verb, "-f", "-"], &manifest).await.unwrap_err();
                let error = format!("{error:#}");
                assert!(error.contains(want), "{verb}: {error}");
                assert!(!error.contains("CRDs"), "{verb}: {error}");
            }
        }
        for arguments in [
            &["get", "deployments"][..],
            &["get", "deploy", "web"],
            &["delete", "deployment", "web"],
            &["scale", "deployment", "web", "--replicas=2"],
            &["create", "deployment", "web", "--image=nginx"],
        ] {
            let error = refused(&kubectl, arguments).await;
            assert!(error.contains("Deployment is not served"), "{arguments:?}: {error}");
        }
        // what looks at all kinds is not disturbed
        let resources = kubectl.run(&["api-resources"]).await.unwrap();
        assert!(!resources.contains("deployments") && resources.contains("pods"), "{resources}");
        assert!(kubectl.run(&["get", "all", "-A"]).await.unwrap().contains("service/kubernetes"));
        assert_eq!(kubectl.run(&["auth", "can-i", "create", "pods"]).await.unwrap().trim(), "yes");
        kubectl.run(&["create", "namespace", "short"]).await.unwrap();
        kubectl.run(&["delete", "namespace", "short", "--timeout=60s"]).await.unwrap();
    }
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}

fn claim(name: &str) -> String {
    let spec = json!({"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Mi"}}});
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": spec})
    .to_string()
}

/// A pod with a claim at `/data`.
fn with_claim(name: &str, claim: &str, script: &str, context: &Value) -> String {
    let container = json!({
        "name": "main", "image": "localhost/podwright/test:latest", "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    });
    let extra = json!({
        "securityContext": context,
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
    });
    pod(name, "", &extra)
}

#[tokio::test]
async fn claims_are_usable_without_root_and_stay_while_they_are_used() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_36);
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();
    for name in ["plain", "grouped"] {
        kubectl.run_with(&["apply", "-f", "-"], &claim(name)).await.unwrap();
    }
    // a user without any privilege writes to its claim
    let script = "id -u > /data/user && sleep 1000";
    let user = json!({"runAsUser": 4321, "runAsGroup": 4321, "runAsNonRoot": true});
    run_pod(&kubectl, "user", &with_claim("user", "plain", script, &user)).await;
    assert_eq!(run(&["exec", "user", "--", "cat", "/data/user"]).await.trim(), "4321");
    // and so do two users that share a group
    let member = |id: u32| json!({"runAsUser": id, "runAsGroup": id, "fsGroup": 7777});
    let first = "umask 007; echo one > /data/one && sleep 1000";
    run_pod(&kubectl, "first", &with_claim("first", "grouped", first, &member(1001))).await;
    run(&["delete", "pod", "first"]).await;
    let second = "echo two >> /data/one && sleep 1000";
    run_pod(&kubectl, "second", &with_claim("second", "grouped", second, &member(1002))).await;
    assert_eq!(run(&["exec", "second", "--", "cat", "/data/one"]).await, "one\ntwo\n");
    let group = run(&["exec", "second", "--", "stat", "-c", "%g %a", "/data"]).await;
    assert_eq!(group.trim(), "7777 2777");

    // a claim that is deleted stays until its pod is gone
    run(&["delete", "pvc", "plain", "--wait=false"]).await;
    let shown = run(&["get", "pvc", "plain"]).await;
    assert!(shown.contains("Terminating"), "{shown}");
    let volume = run(&["get", "pvc", "plain", "-o", "jsonpath={.spec.volumeName}"]).await;
    run(&["exec", "user", "--", "sh", "-c", "echo more > /data/more"]).await;
    // a restarted agent still serves it
    let killed = crate::up_kubectl::agent(&bed, &node).await;
    bed.exec(&["kill", "-9", &killed.to_string()]).await.unwrap();
    node.run(&["up"]).await.unwrap();
    assert!(run(&["get", "pvc", "plain"]).await.contains("Terminating"));
    // no new pod may use it
    let late = with_claim("late", "plain", "sleep 1000", &json!({}));
    kubectl.run_with(&["apply", "-f", "-"], &late).await.unwrap();
    let why = "jsonpath={.status.conditions[?(@.type==\"PodScheduled\")].message}";
    let told = async || {
        let message = kubectl.run(&["get", "pod", "late", "-o", why]).await?;
        Ok(message.contains("persistentvolumeclaim \"plain\" is being deleted"))
    };
    wait::until_true("the new pod to name the claim", LIMIT, told).await.unwrap();
    run(&["delete", "pod", "late", "user"]).await;
    let gone = async || Ok(kubectl.run(&["get", "pvc", "plain"]).await.is_err());
    wait::until_true("the claim to go", LIMIT, gone).await.unwrap();
    let gone = async || Ok(kubectl.run(&["get", "pv", &volume]).await.is_err());
    wait::until_true("its volume to go", LIMIT, gone).await.unwrap();
    let directory = std::path::Path::new(&node.state).join("volumes").join(&volume);
    assert!(!directory.exists(), "{}", directory.display());

    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn watch_begins_with_the_objects_and_a_bookmark() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    node.run(&["up"]).await.unwrap();
    let kubectl = node.kubectl(Release::V1_36);
    let path = "/api/v1/namespaces/default/configmaps?watch=true&allowWatchBookmarks=true\
                &sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    let printed = kubectl.run(&["get", "--raw", path]).await.unwrap();
    let events: Vec<Value> =
        printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds, ["ADDED", "BOOKMARK"], "{printed}");
    let marked = &events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"];
    assert_eq!(marked, "true");
    // informers of this release begin so
    let created = ["wait", "--for=create", "configmap/kube-root-ca.crt", "--timeout=60s"];
    kubectl.run(&created).await.unwrap();
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}
