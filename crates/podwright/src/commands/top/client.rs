//! Readings of the node, from the debug socket of its agent.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use podwright_node::report::events::RecentEvent;
use podwright_node::server::debug_socket::{Explanation, NodeExplanation, PodReason};
use serde::Deserialize;

use crate::commands::objects::Objects;
use crate::commands::status::pod::{self, PodLine};
use crate::commands::why::agent::Agent;
use crate::commands::why::{page, pending};
use crate::printable::printable;
use crate::standalone::Layout;

#[derive(Clone, Debug)]
pub(super) struct Client {
    agent: Agent,
    /// Of `podwright up`, whose API has pods that no node has taken.
    layout: Option<Layout>,
    cores: u64,
}

/// Everything at one moment.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) at: Timestamp,
    pub(super) node: NodeExplanation,
    pub(super) usage: NodeUsage,
    pub(super) pods: Vec<PodRow>,
    pub(super) events: Vec<RecentEvent>,
    /// The page of `podwright why` of the selected pod.
    pub(super) why: Option<Why>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Why {
    pub(super) uid: String,
    pub(super) lines: Vec<String>,
}

/// CPU in thousandths of a core, memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) cpu: u64,
    pub(super) memory: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeUsage {
    pub(super) used: Usage,
    /// What the machine has.
    pub(super) all: Usage,
}

#[derive(Clone, Debug)]
pub(super) struct PodRow {
    pub(super) line: PodLine,
    pub(super) usage: Option<Usage>,
    pub(super) containers: Vec<ContainerRow>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerRow {
    pub(super) name: String,
    /// `init`, `sidecar`, or empty.
    pub(super) kind: &'static str,
    pub(super) image: String,
    pub(super) state: String,
    pub(super) ready: bool,
    pub(super) restarts: i32,
    pub(super) usage: Option<Usage>,
}

impl Client {
    pub(super) fn new(agent: Agent) -> Self {
        let layout = Layout::of_root(agent.root());
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { agent, layout, cores: u64::try_from(cores).unwrap_or(1) }
    }

    pub(super) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Reads the node; `selected`: the pod to explain.
    pub(super) async fn read(&self, selected: Option<&str>) -> anyhow::Result<Reading> {
        let at = Timestamp::now();
        let node: NodeExplanation = self.agent.ask("/node").await?;
        let reasons: Vec<PodReason> = self.agent.ask("/reasons").await?;
        let listed: PodList = self.agent.ask("/kubelet/pods").await?;
        let events: Vec<RecentEvent> = self.agent.ask("/events").await?;
        // Statistics are late after a start, and the rest is worth showing without them.
        let stats: Summary = self.agent.ask("/kubelet/stats/summary").await.unwrap_or_default();
        let objects = match &self.layout {
            Some(layout) => Objects::read(&layout.kubeconfig()).await.unwrap_or_default(),
            None => Objects::default(),
        };
        let mut all = listed.items;
        let is_known = |uid: Option<&String>| {
            all.iter().any(|pod| uid.is_some() && pod.metadata.uid.as_ref() == uid)
        };
        let unassigned = |pod: &&Pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            node.is_none_or(str::is_empty) && !is_known(pod.metadata.uid.as_ref())
        };
        let pending: Vec<Pod> = objects.pods.iter().filter(unassigned).cloned().collect();
        all.extend(pending);
        let why = match selected {
            Some(uid) => self.why(uid, &objects).await,
            None => None,
        };
        let usage = stats.node.node_usage(self.cores);
        let pods = rows(&all, &reasons, &stats, at);
        Ok(Reading { at, node, usage, pods, events, why })
    }

    async fn why(&self, uid: &str, objects: &Objects) -> Option<Why> {
        let explained: anyhow::Result<Explanation> =
            self.agent.ask(&format!("/pods/{uid}/why")).await;
        let explanation = match explained {
            Ok(explanation) => explanation,
            Err(_) => pending::explain(objects, uid, Timestamp::now())?,
        };
        let lines = page::text(&explanation).lines().map(str::to_owned).collect();
        Some(Why { uid: uid.to_owned(), lines })
    }
}

fn rows(pods: &[Pod], reasons: &[PodReason], stats: &Summary, now: Timestamp) -> Vec<PodRow> {
    let stats: BTreeMap<&str, &PodStats> =
        stats.pods.iter().map(|pod| (pod.reference.uid.as_str(), pod)).collect();
    let by_uid: BTreeMap<&str, &Pod> =
        pods.iter().map(|pod| (pod.metadata.uid.as_deref().unwrap_or_default(), pod)).collect();
    let row = |mut line: PodLine| {
        let of_pod = stats.get(line.uid.as_str()).copied();
        let containers = by_uid.get(line.uid.as_str()).map(|pod| containers(pod, of_pod));
        for text in [&mut line.namespace, &mut line.name, &mut line.status] {
            *text = printable(text).into_owned();
        }
        line.reason = line.reason.map(|reason| printable(&reason).into_owned());
        PodRow {
            usage: of_pod.map(|it| it.usage.usage()),
            containers: containers.unwrap_or_default(),
            line,
        }
    };
    pod::of_api(pods, reasons, now).into_iter().map(row).collect()
}

fn containers(pod: &Pod, stats: Option<&PodStats>) -> Vec<ContainerRow> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let status = pod.status.as_ref();
    let of_init = status.and_then(|status| status.init_container_statuses.as_deref());
    let regular = status.and_then(|status| status.container_statuses.as_deref());
    let row = |container: &k8s_openapi::api::core::v1::Container,
               kind: &'static str,
               statuses: &[ContainerStatus]| {
        let status = statuses.iter().find(|status| status.name == container.name);
        let of_container =
            stats.and_then(|stats| stats.containers.iter().find(|it| it.name == container.name));
        ContainerRow {
            name: printable(&container.name).into_owned(),
            kind,
            image: printable(container.image.as_deref().unwrap_or_default()).into_owned(),
            state: printable(&status.map_or_else(|| "not created".to_owned(), state)).into_owned(),
            ready: status.is_some_and(|status| status.ready),
            restarts: status.map_or(0, |status| status.restart_count),
            usage: of_container.map(|it| it.usage.usage()),
        }
    };
    let init = spec.init_containers.iter().flatten().map(|container| {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let kind = if is_sidecar { "sidecar" } else { "init" };
        row(container, kind, of_init.unwrap_or_default())
    });
    let regular = spec.containers.iter().map(|it| row(it, "", regular.unwrap_or_default()));
    init.chain(regular).collect()
}

fn state(status: &ContainerStatus) -> String {
    let Some(state) = &status.state else { return "unknown".to_owned() };
    if state.running.is_some() {
        return "running".to_owned();
    }
    if let Some(waiting) = &state.waiting {
        return waiting.reason.clone().unwrap_or_else(|| "waiting".to_owned());
    }
    match &state.terminated {
        Some(end) => {
            let reason = end.reason.clone().unwrap_or_else(|| "Error".to_owned());
            format!("{reason}, exit code {}", end.exit_code)
        }
        None => "unknown".to_owned(),
    }
}

#[derive(Debug, Deserialize)]
struct PodList {
    #[serde(rename = "items")]
    items: Vec<Pod>,
}

/// The parts of the kubelet's `/stats/summary` that are shown.
#[derive(Debug, Default, Deserialize)]
struct Summary {
    #[serde(rename = "node", default)]
    node: Measured,
    #[serde(rename = "pods", default)]
    pods: Vec<PodStats>,
}

#[derive(Debug, Default, Deserialize)]
struct Measured {
    #[serde(rename = "cpu", default)]
    cpu: Cpu,
    #[serde(rename = "memory", default)]
    memory: Memory,
}

#[derive(Debug, Default, Deserialize)]
struct Cpu {
    #[serde(rename = "usageNanoCores")]
    nano_cores: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct Memory {
    #[serde(rename = "workingSetBytes")]
    working_set: Option<u64>,
    #[serde(rename = "availableBytes")]
    available: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct PodStats {
    #[serde(rename = "podRef")]
    reference: PodReference,
    #[serde(flatten)]
    usage: Measured,
    #[serde(rename = "containers", default)]
    containers: Vec<ContainerStats>,
}

#[derive(Debug, Deserialize)]
struct PodReference {
    #[serde(rename = "uid")]
    uid: String,
}

#[derive(Debug, Deserialize)]
struct ContainerStats {
    #[serde(rename = "name")]
    name: String,
    #[serde(flatten)]
    usage: Measured,
}

impl Measured {
    fn usage(&self) -> Usage {
        let cpu = self.cpu.nano_cores.unwrap_or(0).div_ceil(1_000_000);
        Usage { cpu, memory: self.memory.working_set.unwrap_or(0) }
    }

    fn node_usage(&self, cores: u64) -> NodeUsage {
        let used = self.usage();
        let memory = used.memory.saturating_add(self.memory.available.unwrap_or(0));
        NodeUsage { used, all: Usage { cpu: cores.saturating_mul(1000), memory } }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_have_the_usage_of_their_pod_and_no_control_characters() {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
            "spec": {"containers": [{"name": "app", "image": "i\u{1b}[2J"}],
                "initContainers": [{"name": "side", "image": "i", "restartPolicy": "Always"},
                    {"name": "setup", "image": "i"}]},
            "status": {"phase": "Failed", "reason": "\u{1b}]0;owned\u{7}",
                "containerStatuses": [{"name": "app", "ready": false, "restartCount": 2,
                    "image": "i", "imageID": "",
                    "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]},
        });
        let stats = json!({
            "node": {"cpu": {"usageNanoCores": 420_000_000},
                "memory": {"workingSetBytes": 1000, "availableBytes": 3000}},
            "pods": [{"podRef": {"name": "web", "namespace": "default", "uid": "u1"},
                "cpu": {"usageNanoCores": 1_500_001}, "memory": {"workingSetBytes": 77},
                "containers": [{"name": "app", "memory": {"workingSetBytes": 70}}]}],
        });
        let stats: Summary = serde_json::from_value(stats).unwrap();
        let pods = [serde_json::from_value(pod).unwrap()];
        let rows = rows(&pods, &[], &stats, Timestamp::UNIX_EPOCH);
        assert_eq!(rows[0].usage, Some(Usage { cpu: 2, memory: 77 }));
        let kinds: Vec<_> = rows[0].containers.iter().map(|it| (it.kind, &*it.name)).collect();
        assert_eq!(kinds, [("sidecar", "side"), ("init", "setup"), ("", "app")]);
        let app = &rows[0].containers[2];
        assert_eq!((app.state.as_str(), app.restarts), ("Error, exit code 3", 2));
        assert_eq!(app.usage, Some(Usage { cpu: 0, memory: 70 }));
        let shown = format!("{}{}", rows[0].line.status, app.image);
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        let node = stats.node.node_usage(2);
        assert_eq!((node.used.cpu, node.all.cpu, node.all.memory), (420, 2000, 4000));
    }
}
