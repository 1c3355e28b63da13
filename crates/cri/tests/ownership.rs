//! Lists of a runtime that several nodes share.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

use podwright_core::ids::PodUid;
use podwright_cri::{Client, IsOwn};
use podwright_fake_runtime::{Code, Fake, FakeOptions, Fault, Rpc, Rule};
use podwright_proto::cri;

const IMAGE: &str = "localhost/podwright/app:1";

async fn run(client: &Client, pod: &str, cgroup_parent: &str) {
    let metadata = cri::PodSandboxMetadata {
        name: pod.into(),
        uid: pod.into(),
        namespace: "default".into(),
        attempt: 0,
    };
    let labels = [
        ("io.kubernetes.pod.uid", pod),
        ("io.kubernetes.pod.name", pod),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.container.name", "app"),
    ];
    let linux =
        cri::LinuxPodSandboxConfig { cgroup_parent: cgroup_parent.into(), ..Default::default() };
    let config = cri::PodSandboxConfig {
        metadata: Some(metadata),
        labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        log_directory: "/logs".into(),
        linux: Some(linux),
        ..Default::default()
    };
    let sandbox = client.run_sandbox(config.clone(), "").await.unwrap();
    let container = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "app".into(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        labels: config.labels.clone(),
        ..Default::default()
    };
    let made = client.create_container(&sandbox, container, config).await.unwrap();
    client.start_container(&made).await.unwrap();
}

fn runtime() -> (Fake, Client) {
    let fake = Fake::start(FakeOptions::default());
    fake.images().add(IMAGE).unwrap();
    let is_own: IsOwn = Arc::new(|info| {
        info.get("info").is_some_and(|text| text.contains(r#""cgroup_parent":"/ours/"#))
    });
    let client = fake.client().shared_with_others(is_own);
    (fake, client)
}

async fn listed(client: &Client) -> Vec<PodUid> {
    let listed = client.list_pods().await.unwrap();
    let listed_pods: Vec<PodUid> = listed.pods().map(|(uid, _, _)| uid.clone()).collect();
    let left = client.leftovers().await.unwrap();
    let of_sandboxes: BTreeSet<PodUid> = left.sandboxes.into_iter().map(|s| s.pod).collect();
    let of_containers: BTreeSet<PodUid> = left.containers.into_iter().map(|c| c.pod).collect();
    assert_eq!(of_sandboxes, of_containers);
    assert!(listed_pods.iter().eq(&of_sandboxes), "{listed_pods:?} {of_sandboxes:?}");
    listed_pods
}

#[tokio::test(start_paused = true)]
async fn pods_of_another_node_are_not_listed_but_their_images_are_in_use() {
    let (fake, client) = runtime();
    for (pod, parent) in [("a", "/ours/poda"), ("b", "/kubepods/podb"), ("c", "")] {
        run(&client, pod, parent).await;
    }
    assert_eq!(listed(&client).await, [PodUid::new("a")]);
    assert!(client.leftovers().await.unwrap().images_in_use.contains(IMAGE));
    assert_eq!(fake.count(Rpc::PodSandboxStatus), 3, "each is inspected once");
    assert_eq!(fake.client().list_pods().await.unwrap().pods().count(), 3, "a runtime of its own");
}

#[tokio::test(start_paused = true)]
async fn sandbox_that_cannot_be_inspected_is_not_listed_until_it_can() {
    for fault in [Fault::Error(Code::Unknown, "not now".into()), Fault::Hang] {
        let (fake, client) = runtime();
        run(&client, "a", "/ours/poda").await;
        run(&client, "b", "/ours/podb").await;
        fake.fail(Rule::on(Rpc::PodSandboxStatus, fault).pod("b").first(1));
        assert_eq!(client.list_pods().await.unwrap().pods().count(), 1);
        assert_eq!(listed(&client).await.len(), 2);
    }
}
