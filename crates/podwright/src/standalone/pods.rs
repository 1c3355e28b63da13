//! Ends the pods of a node through its runtime, in order: containers, sandboxes, their networks.
//!
//! This is for what the agent did not stop itself, which knows hooks and order: containers get the
//! time that their pod's spec gives them, which the runtime keeps for us.
//!
//! One that does not end keeps no other from ending. What could not be done is told, and left to
//! whoever asked: a private runtime goes away with all it holds, one that was there before does
//! not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use podwright_core::ids::{ContainerId, SandboxId};
use podwright_core::labels;
use podwright_cri::{Client, Error};
use podwright_proto::cri;

use super::runtime::is_below;

/// As upstream's default: what a pod gets that says nothing.
const USUAL_GRACE: Duration = Duration::from_secs(30);
/// "At once" still lets a process notice; zero would be SIGKILL with no word before.
const AT_ONCE_GRACE: Duration = Duration::from_secs(1);
/// Networks are taken down by programs that wait for each other.
const AT_ONCE: usize = 4;

/// Which pods of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose<'a> {
    All,
    /// Those below a cgroup.
    Below(&'a str),
}

/// How much time running containers get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// What the spec of their pod says, but no longer than this.
    Own {
        at_most: Duration,
    },
    AtOnce,
}

impl Grace {
    fn of(self, container: &cri::Container) -> Duration {
        let annotated = container.annotations.get(labels::TERMINATION_GRACE);
        let own = annotated.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        match self {
            Self::Own { at_most } => own.unwrap_or(USUAL_GRACE).min(at_most).max(AT_ONCE_GRACE),
            Self::AtOnce => AT_ONCE_GRACE,
        }
    }
}

#[derive(Debug, Default)]
pub struct Ended {
    /// Pods that ran, as NAMESPACE/NAME.
    pub ran: BTreeSet<String>,
    /// Those of them with a preStop hook, which only the agent could have run.
    pub hooks: BTreeSet<String>,
    pub troubles: Vec<anyhow::Error>,
}

/// Stops and removes pods, dead or alive.
pub async fn end(client: &Client, whose: Whose<'_>, grace: Grace) -> Ended {
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
            let running = cri::ContainerState::ContainerRunning as i32;
            let ours: Vec<_> = containers
                .iter()
                .filter(|container| container.state == running)
                .filter(|container| {
                    sandboxes.iter().any(|(id, _)| id.as_str() == container.pod_sandbox_id)
                })
                .collect();
            for container in &ours {
                let pod = name_in(&container.labels);
                if container.annotations.contains_key(labels::PRE_STOP_HANDLER) {
                    ended.hooks.insert(pod.clone());
                }
                ended.ran.insert(pod);
            }
            let stops = ours.iter().map(|container| async {
                let id = ContainerId::new(container.id.as_str());
                client.stop_container(&id, grace.of(container)).await
            });
            ended.note(join_all(stops).await);
        }
        Err(error) => ended.troubles.push(error.into()),
    }
    let removals = sandboxes.iter().map(|(id, _)| async move {
        client.stop_sandbox(id).await?;
        client.remove_sandbox(id).await
    });
    let removed: Vec<_> = stream::iter(removals).buffer_unordered(AT_ONCE).collect().await;
    ended.note(removed);
    let alive = sandboxes.into_iter().filter_map(|(_, alive)| alive);
    ended.ran.extend(alive);
    ended
}

fn name_in(labels: &BTreeMap<String, String>) -> String {
    let label = |key: &str| labels.get(key).map_or("", String::as_str);
    format!("{}/{}", label(labels::POD_NAMESPACE), label(labels::POD_NAME))
}

/// Whether any pod has a sandbox that is alive.
pub async fn any_alive(client: &Client, whose: Whose<'_>) -> anyhow::Result<bool> {
    let mut troubles = Vec::new();
    let found = sandboxes(client, whose, &mut troubles).await?;
    Ok(found.iter().any(|(_, alive)| alive.is_some()))
}

impl Ended {
    fn note(&mut self, outcomes: Vec<Result<(), Error>>) {
        self.troubles.extend(outcomes.into_iter().filter_map(Result::err).map(Into::into));
    }
}

/// Sandboxes, with the names of the pods of those that are alive.
async fn sandboxes(
    client: &Client,
    whose: Whose<'_>,
    troubles: &mut Vec<anyhow::Error>,
) -> Result<Vec<(SandboxId, Option<String>)>, Error> {
    let ready = cri::PodSandboxState::SandboxReady as i32;
    let listed = client.list_sandboxes(None).await?;
    let mut chosen = Vec::new();
    for sandbox in listed {
        let id = SandboxId::new(sandbox.id.as_str());
        let ours = match whose {
            Whose::All => Ok(true),
            Whose::Below(root) => is_below(client, &id, root).await,
        };
        match ours {
            Ok(true) => {
                let alive = (sandbox.state == ready).then(|| name_in(&sandbox.labels));
                chosen.push((id, alive));
            }
            Ok(false) => {}
            Err(error) => troubles.push(error),
        }
    }
    Ok(chosen)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_cri::Timeouts;
    use podwright_cri::fake::{Code, Fake, FakeOptions, Fault, Rpc, Rule};

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
            let ended = end(&client, Whose::All, Grace::AtOnce).await;
            assert_eq!(ended.troubles.len(), 1, "{rpc:?}: {:?}", ended.troubles);
            let left = client.list_sandboxes(None).await.unwrap();
            assert!(left.iter().all(|left| left.labels.get(labels::POD_NAME).unwrap() == "b"));
            assert_eq!(ended.ran.len(), 3, "{rpc:?}: {ended:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_had_ended_before_are_removed_and_not_counted() {
        let fake = Fake::start(FakeOptions::default());
        fake.images().add(IMAGE).unwrap();
        let client = fake.client_with(Timeouts { call: Duration::from_secs(5) });
        for pod in ["running", "ended"] {
            run(&client, pod).await;
        }
        for sandbox in client.list_sandboxes(None).await.unwrap() {
            if sandbox.labels.get(labels::POD_NAME).unwrap() == "ended" {
                client.stop_sandbox(&SandboxId::new(sandbox.id.as_str())).await.unwrap();
            }
        }
        let ended = end(&client, Whose::All, Grace::AtOnce).await;
        assert_eq!(ended.ran, ["default/running".to_owned()].into());
        assert!(client.list_sandboxes(None).await.unwrap().is_empty());
    }

    #[test]
    fn containers_get_the_grace_of_their_pod() {
        let container = |grace: Option<&str>| cri::Container {
            annotations: grace
                .map(|grace| (labels::TERMINATION_GRACE.to_owned(), grace.to_owned()))
                .into_iter()
                .collect(),
            ..Default::default()
        };
        let own = |most: u64| Grace::Own { at_most: Duration::from_secs(most) };
        for (annotated, grace, seconds) in [
            (Some("120"), own(600), 120),
            (Some("120"), own(2), 2),
            (Some("0"), own(600), 1),
            (Some("soon"), own(600), 30),
            (None, own(600), 30),
            (Some("120"), Grace::AtOnce, 1),
        ] {
            let got = grace.of(&container(annotated));
            assert_eq!(got, Duration::from_secs(seconds), "{annotated:?} {grace:?}");
        }
    }
}
