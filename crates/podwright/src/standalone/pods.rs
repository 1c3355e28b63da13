//! Stop of a node's pods through its runtime, in order: containers, sandboxes, their networks.
//!
//! Used for pods that the agent did not stop. Unlike the agent it runs no hooks and keeps no order;
//! containers have the grace period of their pod's spec, which is stored in their annotations.
//!
//! A failure for one pod does not stop the others. Failures are returned to the caller: a private
//! runtime is removed with all its pods anyway, an existing runtime is not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use podwright_core::ids::{ContainerId, SandboxId};
use podwright_core::labels;
use podwright_cri::{Client, Error};
use podwright_proto::cri;

use super::runtime::is_below;

/// Upstream's default grace period.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// With zero the process would get no SIGTERM.
const IMMEDIATE_GRACE: Duration = Duration::from_secs(1);
/// Limit of parallel removals: CNI plugins wait for each other's locks.
const PARALLEL_REMOVALS: usize = 4;

/// Selection of the pods of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodSelection<'a> {
    All,
    /// Pods below a cgroup.
    Below(&'a str),
}

/// Time that running containers have to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grace {
    /// The grace period of their pod, limited to `at_most`.
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
            Self::Own { at_most } => own.unwrap_or(DEFAULT_GRACE).min(at_most).max(IMMEDIATE_GRACE),
            Self::AtOnce => IMMEDIATE_GRACE,
        }
    }
}

/// Outcome of [`end`].
#[derive(Debug, Default)]
pub struct EndedPods {
    /// Pods that were running, as NAMESPACE/NAME.
    pub ran: BTreeSet<String>,
    /// Those of them with a preStop hook, which was not run.
    pub hooks: BTreeSet<String>,
    pub errors: Vec<anyhow::Error>,
}

/// Stops and removes pods, running or not.
pub async fn end(client: &Client, selection: PodSelection<'_>, grace: Grace) -> EndedPods {
    let mut ended = EndedPods::default();
    let sandboxes = match sandboxes(client, selection, &mut ended.errors).await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            ended.errors.push(error.into());
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
                let pod = pod_name(&container.labels);
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
        Err(error) => ended.errors.push(error.into()),
    }
    let removals = sandboxes.iter().map(|(id, _)| async move {
        client.stop_sandbox(id).await?;
        client.remove_sandbox(id).await
    });
    let removed: Vec<_> =
        stream::iter(removals).buffer_unordered(PARALLEL_REMOVALS).collect().await;
    ended.note(removed);
    let running = sandboxes.into_iter().filter_map(|(_, running)| running);
    ended.ran.extend(running);
    ended
}

fn pod_name(labels: &BTreeMap<String, String>) -> String {
    let label = |key: &str| labels.get(key).map_or("", String::as_str);
    format!("{}/{}", label(labels::POD_NAMESPACE), label(labels::POD_NAME))
}

/// Whether any pod has a ready sandbox.
pub async fn any_alive(client: &Client, selection: PodSelection<'_>) -> anyhow::Result<bool> {
    let mut errors = Vec::new();
    let found = sandboxes(client, selection, &mut errors).await?;
    Ok(found.iter().any(|(_, running)| running.is_some()))
}

impl EndedPods {
    fn note(&mut self, outcomes: Vec<Result<(), Error>>) {
        self.errors.extend(outcomes.into_iter().filter_map(Result::err).map(Into::into));
    }
}

/// Sandboxes; with the pod's name if the sandbox is ready.
async fn sandboxes(
    client: &Client,
    selection: PodSelection<'_>,
    errors: &mut Vec<anyhow::Error>,
) -> Result<Vec<(SandboxId, Option<String>)>, Error> {
    let ready = cri::PodSandboxState::SandboxReady as i32;
    let listed = client.list_sandboxes(None).await?;
    let mut chosen = Vec::new();
    for sandbox in listed {
        let id = SandboxId::new(sandbox.id.as_str());
        let ours = match selection {
            PodSelection::All => Ok(true),
            PodSelection::Below(root) => is_below(client, &id, root).await,
        };
        match ours {
            Ok(true) => {
                let running = (sandbox.state == ready).then(|| pod_name(&sandbox.labels));
                chosen.push((id, running));
            }
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    Ok(chosen)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_cri::Timeouts;
    use podwright_fake_runtime::{Code, Fake, FakeOptions, Fault, Rpc, Rule};

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
    async fn failure_for_one_pod_does_not_stop_the_others() {
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
            let ended = end(&client, PodSelection::All, Grace::AtOnce).await;
            assert_eq!(ended.errors.len(), 1, "{rpc:?}: {:?}", ended.errors);
            let left = client.list_sandboxes(None).await.unwrap();
            assert!(left.iter().all(|left| left.labels.get(labels::POD_NAME).unwrap() == "b"));
            assert_eq!(ended.ran.len(), 3, "{rpc:?}: {ended:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_had_exited_are_removed_and_not_counted() {
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
        let ended = end(&client, PodSelection::All, Grace::AtOnce).await;
        assert_eq!(ended.ran, ["default/running".to_owned()].into());
        assert!(client.list_sandboxes(None).await.unwrap().is_empty());
    }

    #[test]
    fn containers_have_the_grace_period_of_their_pod() {
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
