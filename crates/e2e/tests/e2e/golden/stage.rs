//! The place where all cases are performed: the node that the recordings were made on, rebuilt.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use podwright_e2e::agent::Agent;
use podwright_e2e::bed::Bed;
use podwright_e2e::containerd::Release;
use podwright_e2e::embedded::Embedded;
use podwright_e2e::netns::NODE_ADDRESS;
use podwright_e2e::wiretap::{self, Outcome, Wiretap};
use serde_json::{Value, json};

use super::account::Call;
use super::chronicle::Chronicle;
use super::names::Names;

pub(super) const NODE: &str = "node1";

pub(super) struct Stage {
    pub(super) agent: Agent,
    pub(super) client: kube::Client,
    pub(super) chronicle: Chronicle,
    tap: Wiretap,
    api: Embedded,
    bed: Bed,
}

impl Stage {
    pub(super) async fn set() -> Result<Self> {
        Self::set_with(json!({})).await
    }

    /// With changes to the agent's configuration.
    pub(super) async fn set_with(change: Value) -> Result<Self> {
        let bed = Bed::builder().containerd(Release::V1_6).start().await?;
        let api = Embedded::start(&bed).await?;
        let client = api.client();
        let chronicle = Chronicle::begin(client.clone()).await?;
        let nodes: Api<Node> = Api::all(client.clone());
        let node = serde_json::from_value(node())?;
        nodes.create(&PostParams::default(), &node).await.context("posting the node")?;
        let tap = Wiretap::start(&bed.path("tap"), &bed.containerd().socket())?;
        let agent = bed
            .agent(NODE)
            .kubeconfig(api.kubeconfig())
            .configure(change)
            .configure(json!({ "containerRuntimeEndpoint": tap.endpoint(), "maxPods": 250 }))
            .start()?;
        agent.healthy().await?;
        Ok(Self { agent, client, chronicle, tap, api, bed })
    }

    /// A page of the agent's server, which here lets everybody in.
    pub(super) async fn page(&self, path: &str) -> Result<String> {
        let answer = self.bed.http_get(&format!("{}{path}", self.agent.url())).await?;
        ensure!(answer.status.is_success(), "{path}: {} {}", answer.status, answer.text());
        Ok(answer.text())
    }

    /// Clears everything away.
    pub(super) fn strike(self) {
        let Self { agent, tap, api, bed, .. } = self;
        drop((agent, tap, api));
        bed.close().unwrap();
    }

    /// How many calls there were so far, of all pods.
    pub(super) fn count_calls(&self) -> usize {
        self.tap.read(<[_]>::len)
    }

    /// The calls about one pod, before and from the `split`-th of all, and what their ids are
    /// called.
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
                mine.push((place, told(call), id));
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

    /// What is this machine's and not the pod's.
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

/// What a request is about: a sandbox, a container, or a pod by its UID.
fn subjects(request: &Value) -> impl Iterator<Item = &str> {
    let places = [
        "/pod_sandbox_id",
        "/container_id",
        "/config/metadata/uid",
        "/sandbox_config/metadata/uid",
    ];
    places.into_iter().filter_map(|place| request.pointer(place)?.as_str())
}

/// The id that an answer gives to something new.
fn made(outcome: &Outcome) -> Option<String> {
    let Outcome::Answer(answer) = outcome else { return None };
    let ids = ["pod_sandbox_id", "container_id"].map(|field| answer[field].as_str());
    ids.into_iter().flatten().next().map(str::to_owned)
}

fn told(call: &wiretap::Call) -> Call {
    let error = match &call.outcome {
        Outcome::UnderWay | Outcome::Answer(_) => None,
        Outcome::Refusal(code, message) => Some(format!("{code:?}: {message}")),
    };
    Call { method: call.method.clone(), request: call.request.clone(), error }
}

/// A node with room for every case but the one that is too big.
fn node() -> Value {
    let amounts = json!({ "cpu": "2", "memory": "24580016Ki", "pods": "250" });
    json!({
        "metadata": { "name": NODE, "labels": { "kubernetes.io/hostname": NODE } },
        "status": { "capacity": amounts, "allocatable": amounts },
    })
}
