//! One node joined to a real API server, for cases that need nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Api;
use kube::api::{ListParams, PostParams};
use podwright_e2e::agent::Agent;
use podwright_e2e::bed::{Bed, BedBuilder};
use podwright_e2e::wait;
use podwright_e2e::watch::History;
use serde_json::{Value, json};

pub(crate) const LIMIT: Duration = Duration::from_secs(180);
/// The namespace of the cases' pods.
pub(crate) const NAMESPACE: &str = "shop";

/// A bed with a control plane, a node object and an agent that joined as that node.
pub(crate) struct Cluster {
    pub(crate) bed: Bed,
    pub(crate) agent: Agent,
    pub(crate) client: kube::Client,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::on(Bed::builder().control_plane()).await
    }

    /// On a bed that the case has configured.
    pub(crate) async fn on(bed: BedBuilder) -> Self {
        Self::configured(bed, |_| json!({})).await
    }

    /// With changes to the agent's configuration, which may depend on the bed.
    pub(crate) async fn configured(bed: BedBuilder, change: impl Fn(&Bed) -> Value) -> Self {
        let bed = bed.start().await.unwrap();
        let client = bed.client().await.unwrap();
        bed.control_plane().unwrap().create_namespace(NAMESPACE).await.unwrap();
        let node = json!({ "metadata": { "name": "node-1" } });
        let node: Node = serde_json::from_value(node).unwrap();
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let agent = bed.agent("node-1").joined().unwrap();
        let agent = agent.configure(change(&bed)).start().unwrap();
        agent.healthy().await.unwrap();
        Self { bed, agent, client }
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) async fn create(&self, pod: Value) -> Pod {
        let pod = serde_json::from_value(pod).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap()
    }

    /// Waits until the pod's status satisfies the predicate, and returns the pod.
    pub(crate) async fn until(
        &self,
        name: &str,
        what: &str,
        predicate: impl Fn(&Value) -> bool,
    ) -> Pod {
        let pods = self.pods();
        let inspect = async || {
            let pod = pods.get(name).await?;
            Ok(predicate(&status(&pod)).then_some(pod))
        };
        wait::until(format!("{name}: {what}"), LIMIT, inspect).await.unwrap()
    }

    /// Waits until this many pods are ready.
    pub(crate) async fn until_all_ready(&self, count: usize) {
        let pods = self.pods();
        let all = async || {
            let list = pods.list(&ListParams::default()).await?;
            Ok(list.items.iter().filter(|pod| ready(&status(pod))).count() == count)
        };
        wait::until_true(format!("{count} pods to be ready"), LIMIT * 2, all).await.unwrap();
    }

    pub(crate) async fn until_gone(&self, name: &str) {
        let pods = self.pods();
        let gone = async || Ok(pods.get_opt(name).await?.is_none());
        wait::until_true(format!("{name} to be gone"), LIMIT, gone).await.unwrap();
    }

    /// Waits for an event of a pod with this reason and message.
    pub(crate) async fn until_event(&self, pod: &str, reason: &str, message: &str) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let reported = async || {
            let list = events.list(&ListParams::default()).await?;
            let about = list.items.iter().filter(|e| text(&e.involved_object.name) == pod);
            let reported: Vec<String> =
                about.map(|e| format!("{}: {}", text(&e.reason), text(&e.message))).collect();
            let wanted = format!("{reason}: {message}");
            anyhow::ensure!(reported.contains(&wanted), "of {wanted:?} only: {reported:#?}");
            Ok(true)
        };
        wait::until_true(format!("the event of {pod}"), LIMIT, reported).await.unwrap();
    }

    pub(crate) fn close(self) {
        drop(self.agent);
        self.bed.close().unwrap();
    }
}

/// A pod of the test server.
pub(crate) fn pod(name: &str, args: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "nodeName": "node-1",
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": "app",
                "image": "localhost/podwright/test:latest",
                "imagePullPolicy": "Never",
                "args": args,
            }],
        },
    })
}

/// A pod's status, as JSON.
pub(crate) fn status(pod: &Pod) -> Value {
    serde_json::to_value(&pod.status).unwrap()
}

/// The pods that were not ready at some time.
pub(crate) fn not_ready(history: &History) -> BTreeSet<String> {
    let flipped = history.iter().filter(|(_, states)| !states.iter().all(|p| ready(&status(p))));
    flipped.map(|(name, _)| name.clone()).collect()
}

/// Whether a status, as JSON, has the Ready condition.
pub(crate) fn ready(status: &Value) -> bool {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}
