//! The runtime that holds a node's pods: a private containerd, or one that was there before.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use podwright_core::ids::SandboxId;
use podwright_cri::{Client, Endpoint, IsOwn, Kind, Timeouts};
use serde::Deserialize;

use super::containerd::Containerd;
use super::{Layout, Record};

/// A runtime on this machine answers soon, or something is wrong with it.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct Runtime<'a> {
    layout: &'a Layout,
    given: Option<Endpoint>,
}

impl<'a> Runtime<'a> {
    pub fn of(layout: &'a Layout, record: &Record) -> anyhow::Result<Self> {
        let given = record.wishes.runtime.as_deref().map(str::parse).transpose()?;
        Ok(Self { layout, given })
    }

    pub fn socket(&self) -> PathBuf {
        match &self.given {
            Some(endpoint) => endpoint.path().to_owned(),
            None => self.layout.socket(),
        }
    }

    pub fn client(&self) -> anyhow::Result<Client> {
        let endpoint = self.socket().to_string_lossy().parse()?;
        Ok(Client::new(&endpoint, Timeouts::default()))
    }

    /// Whether it runs. One that is not ours is asked: there is no process of ours to look for.
    pub async fn is_up(&self) -> anyhow::Result<bool> {
        match &self.given {
            Some(endpoint) => Ok(answers(endpoint).await.is_ok()),
            None => Ok(Containerd::new(self.layout).daemon().running()?.is_some()),
        }
    }
}

async fn answers(endpoint: &Endpoint) -> anyhow::Result<Client> {
    let client = Client::new(endpoint, Timeouts { call: PATIENCE });
    let asked = tokio::time::timeout(PATIENCE, client.version()).await;
    let socket = endpoint.path().display();
    asked
        .map_err(anyhow::Error::new)
        .and_then(|answer| Ok(answer?))
        .with_context(|| format!("no container runtime answers at {socket}"))?;
    Ok(client)
}

/// Whether to go on when the runtime is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    Refused,
    /// The agent waits for it.
    Awaited,
}

/// Checks that a runtime which is not ours can be used, before anything is made. If it is not there
/// yet, the agent does the same as soon as it answers.
pub async fn examine(endpoint: &str, cgroup_root: &str, absent: Absent) -> anyhow::Result<()> {
    let endpoint: Endpoint = endpoint.parse()?;
    let client = match (answers(&endpoint).await, absent) {
        (Ok(client), _) => client,
        (Err(_), Absent::Awaited) => return Ok(()),
        (Err(error), Absent::Refused) => return Err(error),
    };
    refuse_pods_of_others(&client, cgroup_root)
        .await
        .with_context(|| format!("cannot use the runtime at {}", endpoint.path().display()))
}

/// Refuses a runtime that serves another node: the two would share its images, its network and its
/// configuration. One that begins to serve another later is put up with ([`is_own`]).
pub async fn refuse_pods_of_others(client: &Client, cgroup_root: &str) -> anyhow::Result<()> {
    let mut others = 0_usize;
    for sandbox in client.leftovers().await?.sandboxes {
        match is_below(client, &sandbox.id, cgroup_root).await {
            Ok(true) => {}
            Ok(false) => others += 1,
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    if others > 0 {
        bail!(
            "{others} pods of another node are in it. Fix: name a runtime that no kubelet uses, or \
             none for a private one"
        );
    }
    Ok(())
}

fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<podwright_cri::Error>().is_some_and(|error| error.kind == Kind::NotFound)
}

/// Whether a sandbox lives below a cgroup; this is how the pods of nodes are told apart.
pub async fn is_below(client: &Client, id: &SandboxId, root: &str) -> anyhow::Result<bool> {
    Ok(is_info_below(&client.sandbox_info(id).await?, root))
}

/// The pods of a node in a runtime that it shares with others.
pub fn is_own(cgroup_root: &str) -> IsOwn {
    let root = cgroup_root.to_owned();
    Arc::new(move |info| is_info_below(info, &root))
}

fn is_info_below(info: &BTreeMap<String, String>, root: &str) -> bool {
    let parent = info.get("info").and_then(|text| cgroup_in(text));
    let below = |path: &str| path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
    parent.is_some_and(|parent| below(&parent))
}

/// The cgroup that a runtime's own description of a sandbox names: what containerd was asked for,
/// or what any runtime made of it.
fn cgroup_in(text: &str) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Info {
        config: Section,
        #[serde(rename = "runtimeSpec")]
        spec: Option<Section>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Section {
        linux: Option<Linux>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Linux {
        cgroup_parent: Option<String>,
        #[serde(rename = "cgroupsPath")]
        path: Option<String>,
    }
    let info: Info = serde_json::from_str(text).ok()?;
    let asked = info.config.linux.and_then(|linux| linux.cgroup_parent);
    asked.or_else(|| info.spec?.linux?.path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_cri::fake::{Fake, FakeOptions};
    use podwright_proto::cri;

    use super::*;

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
        ];
        let linux = cri::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.into(),
            ..Default::default()
        };
        let config = cri::PodSandboxConfig {
            metadata: Some(metadata),
            labels: labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            log_directory: "/logs".into(),
            linux: Some(linux),
            ..Default::default()
        };
        client.run_sandbox(config, "").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn runtime_with_pods_of_another_node_is_refused_and_they_are_not_listed() {
        let fake = Fake::start(FakeOptions::default());
        let client = fake.client();
        refuse_pods_of_others(&client, "/pw").await.unwrap();
        run(&client, "ours", "/pw/kubepods/podours").await;
        refuse_pods_of_others(&client, "/pw").await.unwrap();
        run(&client, "other", "/pwx/kubepods/podother").await;
        let error = refuse_pods_of_others(&client, "/pw").await.unwrap_err().to_string();
        assert!(error.starts_with("1 pods of another node"), "{error}");
        let shared = client.shared_with_others(is_own("/pw"));
        let pods: Vec<String> =
            shared.glance().await.unwrap().keys().map(ToString::to_string).collect();
        assert_eq!(pods, ["ours"]);
    }

    #[test]
    fn the_cgroup_of_a_sandbox_is_read_from_what_runtimes_tell() {
        for (text, want) in [
            (r#"{"config":{"linux":{"cgroup_parent":"/pw/pod1"}},"pid":7}"#, Some("/pw/pod1")),
            (r#"{"runtimeSpec":{"linux":{"cgroupsPath":"/pw/pod1/x"}}}"#, Some("/pw/pod1/x")),
            (r#"{"config":{"annotations":{"cgroup_parent":"/pw"}}}"#, None),
            ("{}", None),
            ("", None),
        ] {
            assert_eq!(cgroup_in(text).as_deref(), want, "{text}");
        }
    }
}
