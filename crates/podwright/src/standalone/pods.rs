//! Ends the pods of a node through its runtime, in order: containers, sandboxes, their networks.
//!
//! One that does not end keeps no other from ending. What could not be done is told, and left to
//! whoever asked: a private runtime goes away with all it holds, one that was there before does
//! not.

use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use podwright_core::ids::{ContainerId, SandboxId};
use podwright_cri::{Client, Error};

use super::runtime::is_below;

/// What a container gets to end when the whole node goes down.
const GRACE: Duration = Duration::from_secs(10);
/// Networks are taken down by programs that wait for each other.
const AT_ONCE: usize = 4;

/// Which pods of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose<'a> {
    All,
    /// Those below a cgroup.
    Below(&'a str),
}

#[derive(Debug, Default)]
pub struct Ended {
    pub pods: usize,
    pub troubles: Vec<anyhow::Error>,
}

/// Stops and removes pods, dead or alive.
pub async fn end(client: &Client, whose: Whose<'_>) -> Ended {
    let mut ended = Ended::default();
    let sandboxes = match sandboxes(client, whose, &mut ended.troubles).await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            ended.troubles.push(error.into());
            return ended;
        }
    };
    match client.list_containers(None).await {
        Ok(containers) => {
            let ours = containers.iter().filter(|container| {
                sandboxes.iter().any(|sandbox| sandbox.as_str() == container.pod_sandbox_id)
            });
            let stops = ours.map(|container| async {
                client.stop_container(&ContainerId::new(container.id.as_str()), GRACE).await
            });
            ended.note(join_all(stops).await);
        }
        Err(error) => ended.troubles.push(error.into()),
    }
    let removals = sandboxes.iter().map(|id| async move {
        client.stop_sandbox(id).await?;
        client.remove_sandbox(id).await
    });
    let removed: Vec<_> = stream::iter(removals).buffer_unordered(AT_ONCE).collect().await;
    ended.pods = removed.iter().filter(|outcome| outcome.is_ok()).count();
    ended.note(removed);
    ended
}

impl Ended {
    fn note(&mut self, outcomes: Vec<Result<(), Error>>) {
        self.troubles.extend(outcomes.into_iter().filter_map(Result::err).map(Into::into));
    }
}

async fn sandboxes(
    client: &Client,
    whose: Whose<'_>,
    troubles: &mut Vec<anyhow::Error>,
) -> Result<Vec<SandboxId>, Error> {
    let listed = client.list_sandboxes(None).await?;
    let mut chosen = Vec::new();
    for sandbox in listed {
        let id = SandboxId::new(sandbox.id.as_str());
        let ours = match whose {
            Whose::All => Ok(true),
            Whose::Below(root) => is_below(client, &id, root).await,
        };
        match ours {
            Ok(true) => chosen.push(id),
            Ok(false) => {}
            Err(error) => troubles.push(error),
        }
    }
    Ok(chosen)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_core::labels;
    use podwright_cri::Timeouts;
    use podwright_cri::fake::{Code, Fake, FakeOptions, Fault, Rpc, Rule};
    use podwright_proto::cri;

    use super::*;

    const IMAGE: &str = "localhost/podwright/app:1";

    async fn run(client: &Client, pod: &str) {
        let metadata = cri::PodSandboxMetadata {
            name: pod.into(),
            uid: pod.into(),
            namespace: "default".into(),
            attempt: 0,
        };
        let labels =
            [(labels::POD_UID, pod), (labels::POD_NAME, pod), (labels::POD_NAMESPACE, "default")];
        let config = cri::PodSandboxConfig {
            metadata: Some(metadata),
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            log_directory: "/logs".into(),
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

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_will_not_end_keeps_no_other_from_ending() {
        let refused = || Fault::Error(Code::Unknown, "the shim is stuck".into());
        for (fault, rpc) in [
            (Fault::Hang, Rpc::StopContainer),
            (refused(), Rpc::StopContainer),
            (Fault::Hang, Rpc::StopPodSandbox),
            (refused(), Rpc::RemovePodSandbox),
        ] {
            let fake = Fake::start(FakeOptions::default());
            fake.images().add(IMAGE).unwrap();
            let client = fake.client_with(Timeouts { call: Duration::from_secs(5) });
            for pod in ["a", "b", "c"] {
                run(&client, pod).await;
            }
            fake.fail(Rule::on(rpc, fault).pod("b"));
            let ended = end(&client, Whose::All).await;
            assert_eq!(ended.troubles.len(), 1, "{rpc:?}: {:?}", ended.troubles);
            let left = client.list_sandboxes(None).await.unwrap();
            assert!(left.iter().all(|left| left.labels.get(labels::POD_NAME).unwrap() == "b"));
            assert!(ended.pods >= 2, "{rpc:?}: {ended:?}");
        }
    }
}
