//! Container runtime of the standalone node: the private containerd or an existing runtime.

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

/// A local runtime that does not respond within this time is not usable.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Runtime<'a> {
    layout: &'a Layout,
    given: Option<Endpoint>,
}

impl<'a> Runtime<'a> {
    pub fn of(layout: &'a Layout, record: &Record) -> anyhow::Result<Self> {
        let given = record.up_options.runtime.as_deref().map(str::parse).transpose()?;
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

    /// Whether it is running. An existing runtime is probed, because it has no pid file of ours.
    pub async fn is_up(&self) -> anyhow::Result<bool> {
        match &self.given {
            Some(endpoint) => Ok(connect(endpoint).await.is_ok()),
            None => Ok(Containerd::new(self.layout).daemon().running()?.is_some()),
        }
    }
}

async fn connect(endpoint: &Endpoint) -> anyhow::Result<Client> {
    let client = Client::new(endpoint, Timeouts { call: RESPONSE_TIMEOUT });
    let version = tokio::time::timeout(RESPONSE_TIMEOUT, client.version()).await;
    let socket = endpoint.path().display();
    version
        .map_err(anyhow::Error::new)
        .and_then(|response| Ok(response?))
        .with_context(|| format!("no container runtime responds at {socket}"))?;
    Ok(client)
}

/// What to do if the runtime does not respond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    Refused,
    /// Continue; the agent waits for it.
    Awaited,
}

/// Checks that an existing runtime can be used, before anything is created. If it does not respond
/// yet, the agent repeats the check when it does.
pub async fn examine(endpoint: &str, cgroup_root: &str, absent: Absent) -> anyhow::Result<()> {
    let endpoint: Endpoint = endpoint.parse()?;
    let client = match (connect(&endpoint).await, absent) {
        (Ok(client), _) => client,
        (Err(_), Absent::Awaited) => return Ok(()),
        (Err(error), Absent::Refused) => return Err(error),
    };
    refuse_pods_of_others(&client, cgroup_root)
        .await
        .with_context(|| format!("cannot use the runtime at {}", endpoint.path().display()))
}

/// Refuses a runtime that serves another node, because both would share images, network and
/// configuration. Pods of another node that appear later are ignored ([`is_own`]).
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
        let pods = if others == 1 { "pod" } else { "pods" };
        bail!(
            "it has {others} {pods} of another node. Fix: use a runtime that no kubelet uses, or \
             omit --container-runtime-endpoint for a private one"
        );
    }
    Ok(())
}

fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<podwright_cri::Error>().is_some_and(|error| error.kind == Kind::NotFound)
}

/// Whether a sandbox is below a cgroup, which identifies the node of a pod.
pub async fn is_below(client: &Client, id: &SandboxId, root: &str) -> anyhow::Result<bool> {
    Ok(is_info_below(&client.sandbox_info(id).await?, root))
}

/// Predicate for the pods of a node in a shared runtime.
pub fn is_own(cgroup_root: &str) -> IsOwn {
    let root = cgroup_root.to_owned();
    Arc::new(move |info| is_info_below(info, &root))
}

fn is_info_below(info: &BTreeMap<String, String>, root: &str) -> bool {
    let parent = info.get("info").and_then(|text| cgroup_in(text));
    let below = |path: &str| path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
    parent.is_some_and(|parent| below(&parent))
}

/// The cgroup in the runtime's verbose sandbox info: the requested one (containerd) or the one in
/// the OCI spec (any runtime).
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
    let requested = info.config.linux.and_then(|linux| linux.cgroup_parent);
    requested.or_else(|| info.spec?.linux?.path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_fake_runtime::{Fake, FakeOptions};
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
        assert!(error.starts_with("it has 1 pod of another node"), "{error}");
        let shared = client.shared_with_others(is_own("/pw"));
        let listed = shared.list_pods().await.unwrap();
        let pods: Vec<&str> = listed.pods().map(|(uid, _, _)| uid.as_str()).collect();
        assert_eq!(pods, ["ours"]);
    }

    #[test]
    fn cgroup_of_a_sandbox_is_read_from_the_verbose_info() {
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
