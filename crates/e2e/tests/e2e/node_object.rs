//! Node object, lease and events, as seen by a real API server.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use podwright_e2e::agent::Agent;
use podwright_e2e::bed::Bed;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(180);
const NODE: &str = "node-1";

/// A bed with a control plane and an agent that registers itself.
struct Joined {
    bed: Bed,
    agent: Agent,
    nodes: Api<Node>,
    client: kube::Client,
}

impl Joined {
    async fn start() -> Self {
        let bed = Bed::builder().control_plane().start().await.unwrap();
        let client = bed.client().await.unwrap();
        let agent = bed
            .agent(NODE)
            .joined()
            .unwrap()
            .argument("--node-labels=team=red")
            .configure(json!({
                "registerWithTaints": [{ "key": "new", "effect": "PreferNoSchedule" }],
                "systemReserved": { "cpu": "100m", "memory": "64Mi" },
                "evictionHard": { "memory.available": "100Mi", "nodefs.available": "1%" },
            }))
            .start()
            .unwrap();
        agent.healthy().await.unwrap();
        Self { bed, agent, nodes: Api::all(client.clone()), client }
    }

    /// Waits until the Node object satisfies the predicate, and returns it.
    async fn until(&self, what: &str, predicate: impl Fn(&Value) -> bool) -> Value {
        let inspect = async || {
            let node = self.nodes.get_opt(NODE).await?;
            let node = serde_json::to_value(&node)?;
            Ok(predicate(&node).then_some(node))
        };
        wait::until(format!("the node: {what}"), LIMIT, inspect).await.unwrap()
    }

    async fn until_event(&self, reasons: &[&str]) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let reported = async || {
            let about = ListParams::default().fields("involvedObject.kind=Node");
            let list = events.list(&about).await?;
            let reported: Vec<String> = list.items.into_iter().filter_map(|e| e.reason).collect();
            Ok(reasons.iter().all(|reason| reported.iter().any(|known| known == reason)))
        };
        wait::until_true(format!("events {reasons:?}"), LIMIT, reported).await.unwrap();
    }

    /// Number of requests of the node for nodes and leases so far, by verb.
    fn request_count(&self, verb: &str, resource: &str) -> usize {
        let audit = self.bed.control_plane().unwrap().audit().unwrap();
        let user = format!("system:node:{NODE}");
        audit.iter().filter(|a| a.user == user && a.verb == verb && a.resource == resource).count()
    }

    fn close(self) {
        drop(self.agent);
        self.bed.close().unwrap();
    }
}

fn condition<'a>(node: &'a Value, kind: &str) -> &'a Value {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}

fn ready(node: &Value) -> bool {
    condition(node, "Ready")["status"] == "True"
}

#[tokio::test]
async fn node_registers_becomes_ready_and_is_recreated_when_deleted() {
    needs_root!();
    let joined = Joined::start().await;
    let node = joined.until("ready", ready).await;
    let status = &node["status"];
    assert_eq!(node["metadata"]["labels"]["team"], "red");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], NODE);
    assert_eq!(node["spec"]["taints"][0]["key"], "new");
    assert_eq!(status["addresses"][0]["type"], "InternalIP");
    assert_eq!(status["addresses"][1], json!({ "type": "Hostname", "address": NODE }));
    assert!(
        status["nodeInfo"]["kubeletVersion"].as_str().unwrap().starts_with("v1.36.4+podwright.")
    );
    let runtime = status["nodeInfo"]["containerRuntimeVersion"].as_str().unwrap();
    assert!(runtime.starts_with("containerd://"), "{runtime}");
    assert_eq!(condition(&node, "MemoryPressure")["reason"], "KubeletHasSufficientMemory");
    assert_eq!(condition(&node, "Ready")["reason"], "KubeletReady");
    assert_ne!(status["capacity"]["memory"], status["allocatable"]["memory"]);
    assert_ne!(status["capacity"]["cpu"], status["allocatable"]["cpu"]);
    let images = joined.until("images", |node| node["status"]["images"].is_array()).await;
    let sizes = images["status"]["images"].as_array().unwrap().iter();
    assert!(sizes.map(|image| image["sizeBytes"].as_i64()).is_sorted_by(|a, b| a >= b));
    joined.until_event(&["Starting", "NodeAllocatableEnforced", "NodeHasSufficientMemory"]).await;

    // A condition written by another client is reverted.
    let unknown = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
    let params = PatchParams::default();
    joined.nodes.patch_status(NODE, &params, &Patch::Strategic(unknown)).await.unwrap();
    joined.until("ready again", ready).await;
    joined.until_event(&["NodeReady"]).await;

    // A deleted node is recreated, with its lease.
    let leases: Api<Lease> = Api::namespaced(joined.client.clone(), "kube-node-lease");
    let owner = |lease: &Lease| lease.metadata.owner_references.clone().unwrap()[0].uid.clone();
    let first = wait::until("a lease", LIMIT, async || Ok(leases.get_opt(NODE).await?)).await;
    assert_eq!(Value::from(owner(&first.unwrap())), node["metadata"]["uid"]);
    joined.nodes.delete(NODE, &DeleteParams::default()).await.unwrap();
    let uid = node["metadata"]["uid"].clone();
    let again = joined.until("back", |node| ready(node) && node["metadata"]["uid"] != uid).await;
    let followed = async || {
        let lease = leases.get_opt(NODE).await?;
        Ok(lease.is_some_and(|lease| again["metadata"]["uid"] == owner(&lease)))
    };
    wait::until_true("a lease of the new node", LIMIT, followed).await.unwrap();

    // Another machine with the same name also renews the lease: both get an event.
    let another = json!({ "spec": { "renewTime": "2100-01-01T00:00:00.000000Z" } });
    leases.patch(NODE, &params, &Patch::Merge(another)).await.unwrap();
    let reported = async || Ok(joined.agent.daemon().log().contains("--hostname-override"));
    wait::until_true("the event about the other machine", LIMIT, reported).await.unwrap();
    let ours = async || {
        let lease = leases.get(NODE).await?;
        let renewed = lease.spec.and_then(|spec| spec.renew_time);
        Ok(!serde_json::to_string(&renewed)?.contains("2100"))
    };
    wait::until_true("our renewal", LIMIT, ours).await.unwrap();
    joined.close();
}

#[tokio::test]
async fn idle_node_renews_its_lease_and_sends_little_else() {
    needs_root!();
    let joined = Joined::start().await;
    joined
        .until("ready, with images", |node| ready(node) && node["status"]["images"].is_array())
        .await;
    let lease = || joined.request_count("update", "leases");
    let patches = || joined.request_count("patch", "nodes");
    let renewed = async |times: usize| {
        let before = lease();
        let more = async || Ok(lease() >= before + times);
        wait::until_true("renewals of the lease", LIMIT, more).await.unwrap();
    };
    renewed(1).await;
    let before = patches();
    renewed(2).await;
    assert_eq!(patches(), before, "an unchanged node is not reported");

    // The server, not the agent, rejects what the node may not do: reserved labels.
    let kubeconfig = joined.bed.control_plane().unwrap().node_kubeconfig(NODE).unwrap();
    let as_node = joined.bed.control_plane().unwrap().client(&kubeconfig).await.unwrap();
    let nodes: Api<Node> = Api::all(as_node);
    for forbidden in [
        json!({ "metadata": { "labels": { "node-restriction.kubernetes.io/x": "y" } } }),
        json!({ "spec": { "taints": [{ "key": "mine", "effect": "NoExecute" }] } }),
    ] {
        let refused = nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(forbidden)).await;
        assert!(matches!(&refused, Err(kube::Error::Api(s)) if s.code == 403), "{refused:?}");
    }
    joined.close();
}

#[tokio::test]
async fn static_pods_run_without_an_api_server_and_the_node_joins_later() {
    needs_root!();
    let mut joined = Joined::start().await;
    joined.until("ready", ready).await;
    joined.bed.control_plane().unwrap().kill_apiserver().await.unwrap();
    joined.agent.restart().await.unwrap();
    joined.agent.healthy().await.unwrap();
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "alone", "namespace": "default" },
        "spec": { "containers": [{
            "name": "app", "image": "localhost/podwright/test:latest",
            "imagePullPolicy": "Never", "args": ["serve"],
        }] },
    });
    joined.agent.add_manifest("alone", &manifest).unwrap();
    let cri = joined.bed.cri().await.unwrap();
    let runs = async || {
        let containers = cri.containers().await?;
        Ok(containers.iter().any(|c| c.state == 1))
    };
    wait::until_true("the static pod to run", LIMIT, runs).await.unwrap();
    joined.bed.control_plane_mut().unwrap().restart_apiserver().await.unwrap();
    let renewed = joined.request_count("update", "leases");
    let again = async || Ok(joined.request_count("update", "leases") > renewed);
    wait::until_true("the lease to be renewed again", LIMIT, again).await.unwrap();
    joined.until("ready", ready).await;
    joined.close();
}
