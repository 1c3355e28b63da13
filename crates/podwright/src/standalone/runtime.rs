//! The runtime that holds a node's pods: a private containerd, or one that was there before.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use podwright_core::ids::SandboxId;
use podwright_cri::{Client, Endpoint, Timeouts};
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

/// Checks that a runtime which is not ours can be used, before anything is made. An agent takes
/// every pod of its runtime that it does not know for the leftover of a past life and ends it, so
/// a runtime that serves another node is refused.
pub async fn examine(endpoint: &str, cgroup_root: &str, absent: Absent) -> anyhow::Result<()> {
    let endpoint: Endpoint = endpoint.parse()?;
    let client = match (answers(&endpoint).await, absent) {
        (Ok(client), _) => client,
        (Err(_), Absent::Awaited) => return Ok(()),
        (Err(error), Absent::Refused) => return Err(error),
    };
    let mut foreign = Vec::new();
    for sandbox in client.leftovers().await?.sandboxes {
        if !is_below(&client, &sandbox.id, cgroup_root).await? {
            foreign.push(sandbox.id);
        }
    }
    if !foreign.is_empty() {
        bail!(
            "{} pods of another node are in the runtime at {}, and this node's agent would end \
             them: name a runtime that no kubelet uses, or none for a private one",
            foreign.len(),
            endpoint.path().display()
        );
    }
    Ok(())
}

/// Whether a sandbox lives below a cgroup; this is how the pods of nodes are told apart.
pub async fn is_below(client: &Client, id: &SandboxId, root: &str) -> anyhow::Result<bool> {
    let info = client.sandbox_info(id).await?;
    let parent = info.get("info").and_then(|text| cgroup_in(text));
    let below = |path: &str| path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
    Ok(parent.is_some_and(|parent| below(&parent)))
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
mod tests {
    use super::*;

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
