//! `/pods` and `/runningpods/`: the desired and the running pods of this node.

use std::collections::BTreeMap;

use http::StatusCode;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_core::labels;
use podwright_cri as cri;
use podwright_proto::cri as proto;
use serde::Serialize;
use serde_json::{Value, json};

use super::response::{HttpResponse, json as as_json, plain_text};
use crate::pods::PodIndex;
use crate::report::status::StatusManager;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<T> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Value,
    items: Vec<T>,
}

fn list<T>(items: Vec<T>) -> List<T> {
    List { kind: "PodList", api_version: "v1", metadata: json!({}), items }
}

/// A pod within a list, without kind and API version.
#[derive(Serialize)]
struct Item<'a> {
    metadata: &'a ObjectMeta,
    spec: &'a Option<v1::PodSpec>,
    status: &'a v1::PodStatus,
}

/// `/pods`: the pods of the sources, each with the newest reported status.
pub(super) fn wanted(pod_index: &PodIndex, status: &StatusManager) -> HttpResponse {
    let pods = pod_index.pods();
    let statuses: Vec<_> = pods.iter().map(|pod| status.get(&pod.uid)).collect();
    let nothing = v1::PodStatus::default();
    let items = pods.iter().zip(&statuses).map(|(pod, reported)| Item {
        metadata: &pod.object.metadata,
        spec: &pod.object.spec,
        status: reported.as_deref().or(pod.object.status.as_ref()).unwrap_or(&nothing),
    });
    as_json(&list(items.collect()))
}

/// `/runningpods/`: the pods that the runtime runs, whether a source names them or not.
pub(super) async fn running(runtime: &cri::Client) -> HttpResponse {
    match runtime.list_containers(None).await {
        Ok(containers) => as_json(&list(running_pods(&containers))),
        Err(error) => plain_text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn running_pods(containers: &[proto::Container]) -> Vec<Value> {
    let mut pods: BTreeMap<&str, (Value, Vec<Value>)> = BTreeMap::new();
    for container in containers {
        let label = |name: &str| container.labels.get(name).map(String::as_str);
        let named = (
            label(labels::POD_UID),
            label(labels::POD_NAME),
            label(labels::POD_NAMESPACE),
            label(labels::CONTAINER_NAME),
        );
        let (Some(uid), Some(name), Some(namespace), Some(container_name)) = named else {
            continue;
        };
        if container.state() != proto::ContainerState::ContainerRunning {
            continue;
        }
        let metadata = json!({ "name": name, "namespace": namespace, "uid": uid });
        let image = container.image.as_ref().map_or("", |image| &image.image);
        let shown = json!({ "name": container_name, "image": image, "resources": {} });
        pods.entry(uid).or_insert_with(|| (metadata, Vec::new())).1.push(shown);
    }
    let pod = |(metadata, containers): (Value, Vec<Value>)| json!({ "metadata": metadata, "spec": { "containers": containers }, "status": {} });
    pods.into_values().map(pod).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn only_running_containers_of_pods_are_listed() {
        let container = |uid: &str, name: &str, state: proto::ContainerState| proto::Container {
            labels: [
                (labels::POD_UID, uid),
                (labels::POD_NAME, "web"),
                (labels::POD_NAMESPACE, "shop"),
                (labels::CONTAINER_NAME, name),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
            image: Some(proto::ImageSpec { image: "sha256:1".into(), ..Default::default() }),
            state: state.into(),
            ..Default::default()
        };
        let stranger = proto::Container {
            state: proto::ContainerState::ContainerRunning.into(),
            ..Default::default()
        };
        let listed = running_pods(&[
            container("u1", "b", proto::ContainerState::ContainerRunning),
            container("u1", "a", proto::ContainerState::ContainerRunning),
            container("u1", "old", proto::ContainerState::ContainerExited),
            stranger,
        ]);
        let want = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
            "spec": { "containers": [
                { "name": "b", "image": "sha256:1", "resources": {} },
                { "name": "a", "image": "sha256:1", "resources": {} },
            ]},
            "status": {},
        });
        assert_eq!(listed, [want]);
    }
}
