//! Leftovers of exited containers and deleted pods.

use std::fs;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::containerd::Release;
use podwright_e2e::wait;
use podwright_proto::cri::{ContainerState, Image};
use serde_json::json;

use crate::cluster::pod;
use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(90);

#[tokio::test]
async fn crash_loop_keeps_last_dead_container_and_log_and_deleted_pod_keeps_nothing() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let cri = bed.cri().await.unwrap();
    let mut failing = pod("failing", &["exit", "1"]);
    failing["spec"]["nodeName"] = json!(null);
    let manifest = agent.add_manifest("failing", &failing).unwrap();

    let dead = async || {
        let containers = cri.containers().await?;
        let exited = containers.iter().filter(|c| c.state() == ContainerState::ContainerExited);
        let mut attempts: Vec<u32> =
            exited.filter_map(|c| c.metadata.as_ref().map(|m| m.attempt)).collect();
        attempts.sort_unstable();
        anyhow::Ok(attempts)
    };
    // The second restart follows after ten seconds of back-off.
    let only_the_last = async || Ok(dead().await?.as_slice() == [2]);
    wait::until_true("only the newest of three to be left", LIMIT, only_the_last).await.unwrap();
    let directories = agent.log_directories().unwrap();
    let logs = || -> Vec<String> {
        let files = fs::read_dir(directories[0].join("app")).unwrap().flatten();
        files.map(|file| file.file_name().into_string().unwrap()).collect()
    };
    assert_eq!(logs().len(), 1, "{:?}", logs());

    fs::remove_file(manifest).unwrap();
    let nothing = async || {
        let left = cri.containers().await?.len() + cri.sandboxes().await?.len();
        Ok(left == 0 && !directories[0].exists())
    };
    wait::until_true("nothing to be left", LIMIT, nothing).await.unwrap();
    drop(agent);
    bed.close().unwrap();
}

#[tokio::test]
async fn only_images_unused_for_too_long_are_removed() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let agent = bed.agent("node-1").start().unwrap();
    agent.healthy().await.unwrap();
    let mut web = pod("web", &["serve"]);
    web["spec"]["nodeName"] = json!(null);
    agent.add_manifest("web", &web).unwrap();
    let cri = bed.cri().await.unwrap();
    let running = async || {
        let containers = cri.containers().await?;
        Ok(containers.iter().any(|c| c.state() == ContainerState::ContainerRunning))
    };
    wait::until_true("the pod to run", LIMIT, running).await.unwrap();
    let listed = async || {
        let all = podwright_proto::cri::ListImagesRequest::default();
        anyhow::Ok(cri.images.clone().list_images(all).await?.into_inner().images)
    };
    let images = async || {
        let images = listed().await?.into_iter();
        anyhow::Ok(images.flat_map(|image| image.repo_tags).collect::<Vec<_>>())
    };
    // The sandbox image is pinned by every runtime that supports it.
    let can_pin = bed.containerd().release() != Release::V1_6;
    let pause = |image: &&Image| image.repo_tags.iter().any(|tag| tag.contains("/pause"));
    let pinned = listed().await.unwrap().iter().find(pause).map(|image| image.pinned);
    assert_eq!(pinned, Some(can_pin), "{:?}", bed.containerd().release());
    assert!(images().await.unwrap().iter().any(|name| name.contains("busybox")));

    // Restarts the node with a maximum age that every image exceeds. The age counts from the
    // agent's start.
    agent.stop().await.unwrap();
    drop(agent);
    let strict = json!({ "imageMinimumGCAge": "1ns", "imageMaximumGCAge": "2ns" });
    let agent = bed.agent("node-1").configure(strict).start().unwrap();
    let gone = async || Ok(!images().await?.iter().any(|name| name.contains("busybox")));
    wait::until_true("the unused image to go", LIMIT, gone).await.unwrap();
    let left = images().await.unwrap();
    assert!(left.iter().any(|name| name.contains("/test")), "in use: {left:?}");
    assert!(left.iter().any(|name| name.contains("/pause")), "the sandbox image: {left:?}");
    drop(agent);
    bed.close().unwrap();
}
