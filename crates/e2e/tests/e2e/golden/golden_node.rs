//! Test node on which all cases run: a rebuild of the node that the recordings were made on.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use podwright_e2e::agent::Agent;
use podwright_e2e::bed::Bed;
use podwright_e2e::containerd::Release;
use podwright_e2e::cri_proxy::{self, CallOutcome, CriProxy};
use podwright_e2e::embedded::Embedded;
use podwright_e2e::netns::NODE_ADDRESS;
use serde_json::{Value, json};

use super::history::PodHistory;
use super::names::Names;
use super::observation::Call;

pub(super) const NODE: &str = "node1";

pub(super) struct GoldenNode {
    pub(super) agent: Agent,
    pub(super) client: kube::Client,
    pub(super) history: PodHistory,
    tap: CriProxy,
    api: Embedded,
    bed: Bed,
}

impl GoldenNode {
    pub(super) async fn start() -> Result<Self> {
        Self::start_with(json!({})).await
    }

    /// With changes to the agent's configuration.
    pub(super) async fn start_with(change: Value) -> Result<Self> {
        let bed = Bed::builder().containerd(Release::V1_6).start().await?;
        let api = Embedded::start(&bed).await?;
        let client = api.client();
        let history = PodHistory::begin(client.clone()).await?;
        let nodes: Api<Node> = Api::all(client.clone());
        let node = serde_json::from_value(node())?;
        nodes.create(&PostParams::default(), &node).await.context("posting the node")?;
        let tap = CriProxy::start(&bed.path("tap"), &bed.containerd().socket())?;
        let agent = bed
            .agent(NODE)
            .kubeconfig(api.kubeconfig())
            .configure(change)
            .configure(json!({ "containerRuntimeEndpoint": tap.endpoint(), "maxPods": 250 }))
            .start()?;
        agent.healthy().await?;
        Ok(Self { agent, client, history, tap, api, bed })
    }

    /// A page of the agent's server, which runs without authorization here.
    pub(super) async fn page(&self, path: &str) -> Result<String> {
        let response = self.bed.http_get(&format!("{}{path}", self.agent.url())).await?;
        ensure!(response.status.is_success(), "{path}: {} {}", response.status, response.text());
        Ok(response.text())
    }

    /// Removes everything.
    pub(super) fn close(self) {
        let Self { agent, tap, api, bed, .. } = self;
        drop((agent, tap, api));
        bed.close().unwrap();
    }

    /// Number of calls so far, for all pods.
    pub(super) fn count_calls(&self) -> usize {
        self.tap.read(<[_]>::len)
    }

    /// The calls about one pod, before and from the `split`-th of all, and the names of their ids.
    pub(super) fn calls(&self, uid: &str, split: usize, ip: &str) -> (Vec<Call>, Vec<Call>, Names) {
        self.tap.read(|all| {
            let mut own = BTreeSet::from([uid.to_owned()]);
            let mut mine: Vec<(usize, Call, Option<String>)> = Vec::new();
            for (place, call) in all.iter().enumerate() {
                if !subjects(&call.request).any(|subject| own.contains(subject)) {
                    continue;
                }
                let id = made(&call.outcome);
                own.extend(id.clone());
                mine.push((place, reported(call), id));
            }
            let ids = mine.iter().map(|(_, call, id)| (call, id.as_deref()));
            let names = Names::ours(ids, self.place(uid, ip));
            let (before, after): (Vec<_>, Vec<_>) =
                mine.into_iter().partition(|(place, ..)| *place < split);
            let calls = |list: Vec<(usize, Call, Option<String>)>| {
                list.into_iter().map(|(_, call, _)| call).collect()
            };
            (calls(before), calls(after), names)
        })
    }

    /// Values that depend on this machine.
    fn place(&self, uid: &str, ip: &str) -> BTreeMap<String, String> {
        let text = |path: std::path::PathBuf| path.display().to_string();
        BTreeMap::from([
            (uid.to_owned(), "<uid>".to_owned()),
            (ip.to_owned(), "<podIP>".to_owned()),
            (NODE_ADDRESS.to_string(), "<nodeIP>".to_owned()),
            (text(self.agent.root_dir()), "<root>".to_owned()),
            (text(self.agent.pod_logs()), "<logs>".to_owned()),
            (self.agent.cgroup_root().to_owned(), String::new()),
        ])
    }
}

/// The subjects of a request: a sandbox, a container, or a pod by its UID.
fn subjects(request: &Value) -> impl Iterator<Item = &str> {
    let places = [
        "/pod_sandbox_id",
        "/container_id",
        "/config/metadata/uid",
        "/sandbox_config/metadata/uid",
    ];
    places.into_iter().filter_map(|place| request.pointer(place)?.as_str())
}

/// The id of a created object in a response.
fn made(outcome: &CallOutcome) -> Option<String> {
    let CallOutcome::Response(response) = outcome else { return None };
    let ids = ["pod_sandbox_id", "container_id"].map(|field| response[field].as_str());
    ids.into_iter().flatten().next().map(str::to_owned)
}

fn reported(call: &cri_proxy::Call) -> Call {
    let error = match &call.outcome {
        CallOutcome::InProgress | CallOutcome::Response(_) => None,
        CallOutcome::Error(code, message) => Some(format!("{code:?}: {message}")),
    };
    Call { method: call.method.clone(), request: call.request.clone(), error }
}

/// A node with capacity for every case except the one that must not fit.
fn node() -> Value {
    let amounts = json!({ "cpu": "2", "memory": "24580016Ki", "pods": "250" });
    json!({
        "metadata": { "name": NODE, "labels": { "kubernetes.io/hostname": NODE } },
        "status": { "capacity": amounts, "allocatable": amounts },
    })
}
