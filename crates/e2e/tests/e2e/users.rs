//! Pods whose root is nobody on the node.

use std::fs;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::containerd::Release;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::pod;
use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(180);

/// A pod that says which ids its own are on the node.
fn own_users(name: &str) -> Value {
    let mut pod = pod(name, &[]);
    pod["spec"]["nodeName"] = json!(null);
    pod["spec"]["hostUsers"] = json!(false);
    let container = &mut pod["spec"]["containers"][0];
    container["image"] = json!("docker.io/library/busybox:latest");
    container["args"] = json!(["sh", "-c", "cat /proc/self/uid_map; exec sleep 1000"]);
    pod
}

#[tokio::test]
async fn pods_with_users_of_their_own_get_blocks_of_ids_that_nobody_else_has() {
    needs_root!();
    // Older ones do not say that they can.
    let bed = Bed::builder().containerd(Release::V2).start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    for name in ["a", "b"] {
        agent.add_manifest(name, &own_users(name)).unwrap();
    }
    let maps = async || {
        let mut maps = Vec::new();
        for pod in fs::read_dir(agent.pod_logs())?.flatten() {
            let log = fs::read_to_string(pod.path().join("app/0.log")).unwrap_or_default();
            let said = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
            maps.extend(said.map(|map| map.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        maps.sort();
        Ok((maps.len() == 2).then_some(maps))
    };
    let maps = wait::until("both to say who they are", LIMIT, maps).await.unwrap();
    assert_eq!(maps, ["0 131072 65536", "0 65536 65536"]);
    drop(agent);
    bed.close().unwrap();
}
