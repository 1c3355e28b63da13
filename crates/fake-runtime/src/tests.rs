//! The client against the fake, over the wire, under paused time.

mod calls;
mod events;
mod faults;
mod images;
mod lifecycles;
mod like_containerd;
mod rules;
mod storm;

use std::time::Duration;

use podwright_core::ids::{ContainerId, PodName, PodUid, SandboxId};
use podwright_core::labels;
use podwright_core::observed::ObservedPod;
use podwright_core::time::Mono;
use podwright_cri::{Error, Kind, ObservedContainer};
use podwright_proto::cri;

use super::*;

const IMAGE: &str = "localhost/podwright/app:1";

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Lets the client notice that its connection broke.
async fn notice() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Whether a call failed because of the connection, by the transport's error messages.
fn is_lost(error: &Error) -> bool {
    let words = ["transport error", "operation was canceled", "tcp connect error"];
    error.kind == Kind::Unavailable || words.contains(&error.message.as_str())
}

/// A fake with the one image all pods here use, and a client of it.
struct Bed {
    fake: Fake,
    client: Client,
}

fn bed() -> Bed {
    bed_with(FakeOptions::default())
}

fn bed_with(options: FakeOptions) -> Bed {
    let fake = Fake::start(options);
    fake.images().add(IMAGE).unwrap();
    let client = fake.client_with(Timeouts { call: seconds(10) });
    Bed { fake, client }
}

fn sandbox_config(pod: &str, attempt: u32) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod.into(),
            namespace: "default".into(),
            uid: format!("uid-{pod}"),
            attempt,
        }),
        labels: pod_labels(pod),
        log_directory: format!("/var/log/pods/default_{pod}_uid-{pod}"),
        ..Default::default()
    }
}

fn pod_labels(pod: &str) -> std::collections::BTreeMap<String, String> {
    [
        (labels::POD_NAME.to_owned(), pod.to_owned()),
        (labels::POD_NAMESPACE.to_owned(), "default".to_owned()),
        (labels::POD_UID.to_owned(), format!("uid-{pod}")),
    ]
    .into()
}

fn container_config(pod: &str, name: &str, attempt: u32) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: name.into(), attempt }),
        image: Some(cri::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        labels: pod_labels(pod),
        log_path: format!("{name}/{attempt}.log"),
        ..Default::default()
    }
}

impl Bed {
    async fn sandbox(&self, pod: &str) -> SandboxId {
        self.client.run_sandbox(sandbox_config(pod, 0), "").await.unwrap()
    }

    async fn try_create(
        &self,
        sandbox: &SandboxId,
        pod: &str,
        attempt: u32,
    ) -> Result<ContainerId, Error> {
        let config = container_config(pod, "app", attempt);
        self.client.create_container(sandbox, config, sandbox_config(pod, 0)).await
    }

    async fn create(&self, sandbox: &SandboxId, pod: &str) -> ContainerId {
        self.try_create(sandbox, pod, 0).await.unwrap()
    }

    /// A pod with one running container, `app`.
    async fn running(&self, pod: &str) -> (SandboxId, ContainerId) {
        let sandbox = self.sandbox(pod).await;
        let container = self.create(&sandbox, pod).await;
        self.client.start_container(&container).await.unwrap();
        (sandbox, container)
    }

    async fn observe(&self, pod: &str) -> (ObservedPod, Vec<ObservedContainer>) {
        let (uid, name) = (PodUid::new(format!("uid-{pod}")), PodName::new("default", pod));
        self.client.observe(&uid, &name, Mono::ZERO).await.unwrap()
    }

    fn state(&self, pod: &str) -> Option<ContainerState> {
        self.fake.snapshot().state(pod, "app")
    }
}
