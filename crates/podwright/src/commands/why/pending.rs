//! Explanation of a pod that no node has taken yet: only the API knows it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use podwright_core::explain::pending::{self, PendingReason};
use podwright_core::explain::unwell;
use podwright_core::lifecycle::Stage;
use podwright_core::pod::{Pod, Source};
use podwright_node::server::debug_socket::{ContainerLine, Explanation, PodLine};

use crate::commands::objects::Objects;

/// The pods of the API as [`PodLine`]s, so that they are found by the same names.
pub(in crate::commands) fn lines(objects: &Objects) -> Vec<PodLine> {
    let line = |pod: &v1::Pod| PodLine {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        manifest: None,
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        mirror: None,
    };
    objects.pods.iter().map(line).collect()
}

/// Explains the pod with this UID; `None`: there is none.
pub(in crate::commands) fn explain(
    objects: &Objects,
    uid: &str,
    as_of: Timestamp,
) -> Option<Explanation> {
    let object = objects.pods.iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid))?;
    let reasons = reasons(objects, object);
    let spec = object.spec.as_ref();
    let assigned = spec.and_then(|spec| spec.node_name.as_deref()).filter(|name| !name.is_empty());
    let why = match (reasons.first(), assigned) {
        (Some(reason), None) => format!("pending, no node takes it: {}", reason.text),
        (None, None) => "pending: it has not been assigned to a node yet".to_owned(),
        (_, Some(node)) => unwell::reason(object)
            .unwrap_or_else(|| format!("assigned to {node}, whose agent does not have it")),
    };
    let conditions = object.status.as_ref().and_then(|status| status.conditions.as_ref());
    let scheduled = conditions.into_iter().flatten().find(|it| it.type_ == "PodScheduled");
    let since = scheduled.and_then(|condition| condition.last_transition_time.as_ref());
    let since = since.or(object.metadata.creation_timestamp.as_ref()).map(|time| time.0);
    let containers = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let containers = containers.iter().map(|container| ContainerLine {
        name: container.name.clone(),
        state: "not created".to_owned(),
        restarts: 0,
        last_exit: None,
        next_start: None,
        probes: Vec::new(),
    });
    Some(Explanation {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
        uid: uid.to_owned(),
        source: Source::Api.as_str().to_owned(),
        stage: Stage::Syncing,
        why,
        since,
        fix: reasons.iter().find_map(|reason| reason.fix.clone()),
        underway: None,
        failed: Vec::new(),
        next: None,
        containers: containers.collect(),
        pending: if assigned.is_none() { reasons } else { Vec::new() },
        volumes: Vec::new(),
        ended: None,
        recent: Vec::new(),
        as_of,
    })
}

/// Why no node takes the pod: what the node lacks, else what the API says.
fn reasons(objects: &Objects, object: &v1::Pod) -> Vec<PendingReason> {
    let parse = |pod: &v1::Pod| Pod::parse(pod.clone(), Source::Api).ok().map(Arc::new);
    let Some(pod) = parse(object) else { return pending::reported(object).into_iter().collect() };
    let pods: Vec<Arc<Pod>> = objects.pods.iter().filter_map(parse).collect();
    let of_nodes = objects.nodes.iter().flat_map(|node| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        pending::reasons(&pod, &pending::counted(&pods, name, &pod), node)
    });
    let of_nodes: Vec<PendingReason> = of_nodes.collect();
    if of_nodes.is_empty() {
        return pending::reported(object).into_iter().collect();
    }
    of_nodes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
    fn pod(name: &str, node: &str, cpu: &str, status: Value) -> v1::Pod {
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}});
        let metadata = json!({"name": name, "namespace": "default", "uid": name});
        let spec = json!({"nodeName": node, "containers": [container]});
        let pod = json!({"metadata": metadata, "spec": spec, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pending_pod_is_explained_by_what_the_node_lacks_or_what_the_api_says() {
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "2",
            "memory": "1Gi", "pods": "9"}}});
        let unbound = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled",
            "status": "False", "reason": "Unschedulable",
            "message": "persistentvolumeclaim \"data\" not found"}]});
        let objects = Objects {
            nodes: vec![serde_json::from_value(node).unwrap()],
            pods: vec![
                pod("web", "n", "1500m", json!({"phase": "Running"})),
                pod("large", "", "1", json!({"phase": "Pending"})),
                pod("unbound", "", "1m", unbound),
            ],
        };
        let now = Timestamp::UNIX_EPOCH;
        let large = explain(&objects, "large", now).unwrap();
        assert!(
            large.why.contains("cpu: requested 1, free 500m of 2 allocatable"),
            "{}",
            large.why
        );
        assert!(large.fix.unwrap().contains("delete default/web (1500m)"));
        assert_eq!(large.pending[0].shortage.as_ref().unwrap().holders.len(), 1);
        let unbound = explain(&objects, "unbound", now).unwrap();
        assert!(unbound.why.contains("\"data\" not found"), "{}", unbound.why);
        assert!(unbound.fix.unwrap().contains("create the claim"));
        assert_eq!(explain(&objects, "absent", now), None);
        assert_eq!(lines(&objects).len(), 3);
    }
}
