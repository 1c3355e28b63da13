//! Test bed self-test: every other case depends on it.

use std::path::Path;
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::containerd::Release;
use podwright_proto::cri::PodSandboxState;

use crate::privilege::{needs_root, skipped};

/// The image made by `cargo xtask images`.
const IMAGE: &str = "localhost/podwright/test:latest";

const LIMIT: Duration = Duration::from_secs(180);

async fn sandbox_starts_and_is_removed(release: Release) {
    let bed = Bed::builder().containerd(release).start().await.unwrap();
    let cri = bed.cri().await.unwrap();

    let id = cri.run_sandbox(cri.sandbox("web")).await.unwrap();
    let status = cri.sandbox_status(&id).await.unwrap();
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    let address = status.network.unwrap().ip;
    assert!(address.starts_with("10.88."), "{address}");
    bed.exec(&["busybox", "ping", "-c", "1", "-W", "5", &address]).await.unwrap();
    let containers = cri.containers().await.unwrap();
    assert_eq!(containers, []);

    cri.remove_sandbox(&id).await.unwrap();
    assert_eq!(cri.sandboxes().await.unwrap(), []);
    bed.close().unwrap();
}

#[tokio::test]
async fn sandbox_has_the_beds_network_on_containerd_1_6() {
    needs_root!();
    sandbox_starts_and_is_removed(Release::V1_6).await;
}

#[tokio::test]
async fn sandbox_has_the_beds_network_on_containerd_1_7() {
    needs_root!();
    sandbox_starts_and_is_removed(Release::V1_7).await;
}

#[tokio::test]
async fn sandbox_has_the_beds_network_on_containerd_2() {
    needs_root!();
    sandbox_starts_and_is_removed(Release::V2).await;
}

#[tokio::test]
async fn container_runs_below_the_beds_cgroup_under_every_handler() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let cri = bed.cri().await.unwrap();
    for handler in ["runc", "other", "crun"] {
        let config = cri.sandbox(handler);
        let sandbox = match cri.run_sandbox_with(config.clone(), handler).await {
            Err(error) if format!("{error:#}").contains("hybrid mode not supported") => {
                skipped("crun does not support hybrid cgroup v1 and v2");
                continue;
            }
            sandbox => sandbox.unwrap(),
        };
        let sleep = ["/bin/sleep", "1000"];
        let id = cri.run_container(&sandbox, &config, "app", IMAGE, &sleep).await.unwrap();
        let below = format!("pw-{}/bare/{id}", bed.id());
        let found = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
            .iter()
            .any(|hierarchy| Path::new(hierarchy).join(&below).is_dir());
        assert!(found, "the container of {handler} is not below the bed's cgroup");
    }
    bed.close().unwrap();
}

#[tokio::test]
async fn containers_survive_a_killed_containerd() {
    needs_root!();
    let mut bed = Bed::builder().start().await.unwrap();
    let id = {
        let cri = bed.cri().await.unwrap();
        cri.run_sandbox(cri.sandbox("web")).await.unwrap()
    };
    bed.containerd_mut().restart().await.unwrap();
    let cri = bed.cri().await.unwrap();
    let status = cri.sandbox_status(&id).await.unwrap();
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    bed.close().unwrap();
}

#[tokio::test]
async fn two_beds_at_once_do_not_see_each_other() {
    needs_root!();
    let (one, other) = tokio::join!(Bed::builder().start(), Bed::builder().start());
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_ne!(one.id(), other.id());
    let (cri, others) = (one.cri().await.unwrap(), other.cri().await.unwrap());

    let id = cri.run_sandbox(cri.sandbox("web")).await.unwrap();
    assert_eq!(others.sandboxes().await.unwrap(), []);
    let twin = others.run_sandbox(others.sandbox("web")).await.unwrap();
    let address = cri.sandbox_status(&id).await.unwrap().network.unwrap().ip;
    let same = others.sandbox_status(&twin).await.unwrap().network.unwrap().ip;
    assert_eq!(address, same, "each bed has the whole subnet");

    // when one bed is removed, the other's pod stays
    one.close().unwrap();
    let status = others.sandbox_status(&twin).await.unwrap();
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    other.exec(&["busybox", "ping", "-c", "1", "-W", "5", &same]).await.unwrap();
    other.close().unwrap();
}

#[tokio::test]
async fn server_inside_a_bed_is_reachable_from_the_test() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    std::fs::create_dir(bed.path("pages")).unwrap();
    std::fs::write(bed.path("pages/hello"), "good morning").unwrap();
    let mut httpd = bed.command("busybox");
    httpd.args(["httpd", "-f", "-p", "10.99.0.10:8080", "-h"]).arg(bed.path("pages"));
    let httpd = bed.daemon("httpd", httpd).unwrap();
    let page = async || bed.http_get("http://10.99.0.10:8080/hello").await.map(Some);
    let response = httpd.until("the page", LIMIT, page).await.unwrap();
    assert_eq!(response.text(), "good morning");
    drop(httpd);
    bed.close().unwrap();
}
