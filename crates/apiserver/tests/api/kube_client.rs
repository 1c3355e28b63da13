//! The server as the node uses it: through a `kube::Client`, in-process.
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::core::WatchEvent;
use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};
use serde_json::json;

async fn server() -> ApiServer {
    let clock = Clock::system();
    let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
    ApiServer::start(store, Settings::new(clock, Ids::seeded(1))).await.unwrap()
}

async fn client() -> kube::Client {
    kube::Client::new(server().await.service(Identity::admin()), "default")
}

fn pod(name: &str, node: Option<&str>) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "busybox"}], "terminationGracePeriodSeconds": 30}
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    serde_json::from_value(pod).unwrap()
}

fn code<T: std::fmt::Debug>(result: kube::Result<T>) -> u16 {
    match result.unwrap_err() {
        kube::Error::Api(status) => status.code,
        other => panic!("not a response of the server: {other}"),
    }
}

#[tokio::test]
async fn pod_is_created_listed_patched_and_deleted() {
    let pods: Api<Pod> = Api::default_namespaced(client().await);
    // created
    let created = pods.create(&PostParams::default(), &pod("web", Some("n1"))).await.unwrap();
    assert_eq!(created.metadata.generation, Some(1));
    assert_eq!(created.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(created.status.as_ref().unwrap().qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(code(pods.create(&PostParams::default(), &pod("web", None)).await), 409);
    // listed
    pods.create(&PostParams::default(), &pod("other", None)).await.unwrap();
    let on_node = ListParams::default().fields("spec.nodeName=n1");
    assert_eq!(pods.list(&on_node).await.unwrap().items.len(), 1);
    assert_eq!(
        pods.list(&ListParams::default().labels("app in (web,other)")).await.unwrap().items.len(),
        2
    );
    // only its status is patched
    let patch = json!({"metadata": {"uid": created.metadata.uid}, "spec": {"nodeName": "n2"},
        "status": {"phase": "Running"}});
    let patched =
        pods.patch_status("web", &PatchParams::default(), &Patch::Strategic(&patch)).await.unwrap();
    assert_eq!(patched.status.unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(patched.spec.unwrap().node_name.as_deref(), Some("n1"));
    // deleted with a grace period, which may only shrink, and finally with none
    let deleting = pods.delete("web", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(deleting.metadata.deletion_grace_period_seconds, Some(30));
    assert_eq!(deleting.metadata.generation, Some(2));
    let longer = pods
        .delete("web", &DeleteParams::default().grace_period(60))
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(longer.metadata.deletion_grace_period_seconds, Some(30));
    let shorter =
        pods.delete("web", &DeleteParams::default().grace_period(3)).await.unwrap().left().unwrap();
    assert_eq!(shorter.metadata.deletion_grace_period_seconds, Some(3));
    assert!(shorter.metadata.deletion_timestamp < deleting.metadata.deletion_timestamp);
    let wrong = DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            uid: Some("other".to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    assert_eq!(code(pods.delete("web", &wrong.clone().grace_period(0)).await), 409);
    let right = DeleteParams {
        preconditions: Some(kube::api::Preconditions {
            uid: created.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    pods.delete("web", &right.grace_period(0)).await.unwrap();
    assert_eq!(code(pods.get("web").await), 404);
    // an unscheduled pod is deleted at once
    pods.delete("other", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(pods.get("other").await), 404);
}

#[tokio::test]
async fn watch_shows_objects_that_start_and_stop_matching() {
    let pods: Api<Pod> = Api::default_namespaced(client().await);
    let start = pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let params = WatchParams::default().fields("spec.nodeName=n1").labels("app=web");
    let mut seen = pods.watch(&params, &start).await.unwrap().boxed();
    // unbound: does not match; bound: matches; relabelled: no longer matches
    pods.create(&PostParams::default(), &pod("web", None)).await.unwrap();
    let binding = json!({"metadata": {"name": "web"}, "target": {"kind": "Node", "name": "n1"}});
    let request = http::Request::post("/api/v1/namespaces/default/pods/web/binding");
    let request = request.header("content-type", "application/json");
    let request = request.body(serde_json::to_vec(&binding).unwrap()).unwrap();
    let client = pods.clone().into_client();
    client.request::<serde_json::Value>(request).await.unwrap();
    pods.patch(
        "web",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}})),
    )
    .await
    .unwrap();
    pods.patch(
        "web",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"labels": {"app": "x"}}})),
    )
    .await
    .unwrap();
    let label = |pod: &Pod| pod.metadata.labels.as_ref().unwrap()["app"].clone();
    let mut kinds = Vec::new();
    while kinds.len() < 3 {
        match seen.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(pod) => kinds.push(("added", label(&pod))),
            WatchEvent::Modified(pod) => kinds.push(("modified", label(&pod))),
            WatchEvent::Deleted(pod) => kinds.push(("deleted", label(&pod))),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(error) => panic!("{error}"),
        }
    }
    let web = "web".to_owned();
    assert_eq!(kinds, [("added", web.clone()), ("modified", web.clone()), ("deleted", web)]);
}

#[tokio::test]
async fn node_registers_reports_and_renews_its_lease() {
    let client = client().await;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "2"}}});
    let node: Node = serde_json::from_value(node).unwrap();
    let node = nodes.create(&PostParams::default(), &node).await.unwrap();
    assert_eq!(node.status.unwrap().capacity.unwrap()["cpu"].0, "2");
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let node =
        nodes.patch_status("n1", &PatchParams::default(), &Patch::Strategic(ready)).await.unwrap();
    assert_eq!(node.status.unwrap().conditions.unwrap()[0].status, "True");
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "n1"}, "spec": {
        "holderIdentity": "n1", "leaseDurationSeconds": 40, "renewTime": "2024-01-01T00:00:00.000000Z"}})).unwrap();
    let mut lease = leases.create(&PostParams::default(), &lease).await.unwrap();
    lease.spec.as_mut().unwrap().lease_duration_seconds = Some(41);
    let renewed = leases.replace("n1", &PostParams::default(), &lease).await.unwrap();
    assert_ne!(renewed.metadata.resource_version, lease.metadata.resource_version);
    assert_eq!(code(leases.replace("n1", &PostParams::default(), &lease).await), 409);
    let events: Api<Event> = Api::default_namespaced(client);
    let event: Event = serde_json::from_value(
        json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"},
        "reason": "Started", "message": "m", "type": "Normal"}),
    )
    .unwrap();
    events.create(&PostParams::default(), &event).await.unwrap();
    assert_eq!(
        events.list(&ListParams::default().fields("reason=Started")).await.unwrap().items.len(),
        1
    );
}

#[tokio::test]
async fn secrets_config_maps_and_namespaces_are_served() {
    let server = server().await;
    let client = kube::Client::new(server.service(Identity::admin()), "default");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let names: Vec<String> = namespaces
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|n| n.metadata.name)
        .collect();
    assert_eq!(names, ["default", "kube-node-lease", "kube-public", "kube-system"]);
    let fresh: Namespace = serde_json::from_value(json!({"metadata": {"name": "fresh"}})).unwrap();
    namespaces.create(&PostParams::default(), &fresh).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "fresh");
    maps.get("kube-root-ca.crt").await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client, "fresh");
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"generateName": "s-"}, "data": {"a": "Yg=="}}))
            .unwrap();
    let secret = secrets.create(&PostParams::default(), &secret).await.unwrap();
    assert!(secret.metadata.name.unwrap().starts_with("s-"));
    // and deleting the namespace deletes everything in it
    let stop = tokio_util::sync::CancellationToken::new();
    let controllers = tokio::spawn({
        let stop = stop.clone();
        async move { server.run_controllers(stop).await }
    });
    let start = namespaces.list(&ListParams::default()).await.unwrap();
    let start = start.metadata.resource_version.unwrap();
    let mut changes = namespaces.watch(&WatchParams::default(), &start).await.unwrap().boxed();
    namespaces.delete("fresh", &DeleteParams::default()).await.unwrap();
    let gone = async {
        while let Some(change) = changes.try_next().await.unwrap() {
            if matches!(change, WatchEvent::Deleted(_)) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone)
        .await
        .expect("the namespace is not deleted");
    assert_eq!(code(namespaces.get("fresh").await), 404);
    assert!(secrets.list(&ListParams::default()).await.unwrap().items.is_empty());
    stop.cancel();
    controllers.await.unwrap();
}
