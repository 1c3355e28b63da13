//! Pods with user namespaces, whose root is unprivileged on the node.

use std::fs;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::containerd::Release;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::pod;
use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(180);

/// A pod that prints its uid map.
fn user_namespace_pod(name: &str) -> Value {
    let mut pod = pod(name, &[]);
    pod["spec"]["nodeName"] = json!(null);
    pod["spec"]["hostUsers"] = json!(false);
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!("docker.io/library/busybox:latest");
    container["args"] = json!(["sh", "-c", "cat /proc/self/uid_map; exec sleep 1000"]);
    pod
}

/// Waits until the metrics show this many started and failed pods with user namespaces.
async fn until_counted(bed: &Bed, tried_and_failed: [&str; 2]) {
    let counted = async || {
        let page = bed.http_get("http://127.0.0.1:10255/metrics").await?.text();
        let value = |name: &str| {
            let name = format!("kubelet_started_user_namespaced_pods_{name} ");
            page.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_default().to_owned()
        };
        let now = ["total", "errors_total"].map(value);
        anyhow::ensure!(now == tried_and_failed, "{now:?}");
        Ok(true)
    };
    wait::until_true(format!("{tried_and_failed:?}"), LIMIT, counted).await.unwrap();
}

#[tokio::test]
async fn pods_with_user_namespaces_get_exclusive_id_ranges() {
    needs_root!();
    // Older releases do not report their support.
    let bed = Bed::builder().containerd(Release::V2).start().await.unwrap();
    let agent = bed.agent("node-1").configure(json!({ "readOnlyPort": 10255 })).start().unwrap();
    agent.healthy().await.unwrap();
    for name in ["a", "b"] {
        agent.add_manifest(name, &user_namespace_pod(name)).unwrap();
    }
    let maps = async || {
        let mut maps = Vec::new();
        for pod in agent.log_directories()? {
            let log = fs::read_to_string(pod.join("app/0.log")).unwrap_or_default();
            let output = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
            maps.extend(output.map(|map| map.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        maps.sort();
        Ok((maps.len() == 2).then_some(maps))
    };
    let maps = wait::until("both to print their uid maps", LIMIT, maps).await.unwrap();
    assert_eq!(maps, ["0 131072 65536", "0 65536 65536"]);

    // Its sandbox is created and its container is not.
    let mut broken = user_namespace_pod("c");
    broken["spec"]["containers"][0]["command"] = json!(["/no/such/program"]);
    until_counted(&bed, ["2", "0"]).await;
    agent.add_manifest("c", &broken).unwrap();
    until_counted(&bed, ["3", "1"]).await;
    drop(agent);
    bed.close().unwrap();
}
