//! Start and stop of an agent on a bed, for any kubelet.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, PostParams};
use podwright_e2e::bed::Bed;
use podwright_e2e::{tools, wait};
use serde_json::{Value, json};

use crate::privilege::{needs_root, skipped};

const LIMIT: Duration = Duration::from_secs(120);

/// A program that serves /healthz like a kubelet and logs how it was started.
fn fake_kubelet(bed: &Bed) -> PathBuf {
    let path = bed.path("fake_kubelet");
    let pages = bed.path("pages");
    fs::create_dir(&pages).unwrap();
    fs::write(pages.join("healthz"), "ok").unwrap();
    let script = format!(
        "#!/bin/sh\necho \"started with $*\"\nexec busybox httpd -f -p 127.0.0.1:10248 -h {}\n",
        pages.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn configuration(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[tokio::test]
async fn agent_configuration_shares_nothing_with_the_machine() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let change = json!({ "maxPods": 7, "clusterDNS": null });
    let agent = bed.agent("node-1").program(fake_kubelet(&bed)).configure(change).start().unwrap();
    agent.healthy().await.unwrap();

    let config = configuration(&agent.configuration());
    let directory = bed.path("");
    for field in ["podLogsDir", "staticPodPath", "volumePluginDir"] {
        let path = Path::new(config[field].as_str().unwrap());
        assert!(path.starts_with(&directory) && path.is_dir(), "{field} is {}", path.display());
    }
    assert_eq!(config["cgroupRoot"], format!("/pw-{}/node-1", bed.id()));
    assert_eq!(config["containerRuntimeEndpoint"], bed.containerd().endpoint());
    assert_eq!((&config["maxPods"], config.get("clusterDNS")), (&json!(7), None));
    let log = agent.daemon().log();
    assert!(log.contains(&format!("--root-dir={}", agent.root_dir().display())), "{log}");
    drop(agent);
    bed.close().unwrap();
}

#[tokio::test]
async fn killed_agent_is_restarted_with_the_same_command() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let mut agent = bed.agent("node-1").program(fake_kubelet(&bed)).start().unwrap();
    agent.healthy().await.unwrap();
    let before = agent.daemon().pid();

    let status = agent.kill().await.unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    agent.restart().await.unwrap();
    agent.healthy().await.unwrap();
    assert_ne!(agent.daemon().pid(), before);
    let log = agent.daemon().log();
    let starts: Vec<_> = log.lines().filter(|line| line.starts_with("started with")).collect();
    assert_eq!(starts.len(), 2, "{log}");
    assert_eq!(starts[0], starts[1]);
    drop(agent);
    bed.close().unwrap();
}

/// A pod of the sandbox image, which is always present.
fn pod(bed: &Bed, name: &str) -> Value {
    let image = bed.containerd().pause_image();
    let container = json!({ "name": "app", "image": image, "imagePullPolicy": "Never" });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name },
        "spec": { "nodeName": "node-1", "containers": [container] },
    })
}

#[tokio::test]
async fn upstream_kubelet_joins_by_bootstrap_and_runs_pods() {
    needs_root!();
    let Some(reference) = tools::reference() else {
        return skipped("PODWRIGHT_REFERENCE is not set to an upstream kubelet");
    };
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let agent = bed.agent("node-1").program(reference).bootstrapped().unwrap().start().unwrap();
    agent.healthy().await.unwrap();
    bed.control_plane().unwrap().create_namespace("shop").await.unwrap();
    let client = bed.client().await.unwrap();
    let nodes = Api::<Node>::all(client.clone());
    let node = async || Ok(nodes.get_opt("node-1").await?);
    agent.daemon().until("the node", LIMIT, node).await.unwrap();

    agent.add_manifest("static", &pod(&bed, "static")).unwrap();
    let pods = Api::<Pod>::namespaced(client, "shop");
    let web = serde_json::from_value(pod(&bed, "web")).unwrap();
    pods.create(&PostParams::default(), &web).await.unwrap();
    let running = async || {
        let status = pods.get("web").await?.status;
        Ok(status.is_some_and(|status| status.phase.as_deref() == Some("Running")))
    };
    wait::until_true("the pod to run", LIMIT, running).await.unwrap();
    let cri = bed.cri().await.unwrap();
    let both = async || Ok(cri.containers().await?.len() == 2);
    wait::until_true("the static pod to run", LIMIT, both).await.unwrap();
    drop(agent);
    bed.close().unwrap();
}
