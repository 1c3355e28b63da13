//! Node summary: readiness, and resources requested by pods of what is allocatable.

use std::fmt;

use k8s_openapi::api::core::v1::{Node, Pod};
use podwright_api::qos::{CPU, MEMORY, Overhead, PodResources, ResourceList, amount};
use podwright_api::quantity::Quantity;
use podwright_core::explain::readable_bytes;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(in crate::commands) struct NodeLine {
    #[serde(rename = "name")]
    pub(in crate::commands) name: String,
    #[serde(rename = "ready")]
    pub(in crate::commands) ready: bool,
    #[serde(rename = "cpu")]
    cpu: Share,
    #[serde(rename = "memory")]
    memory: Share,
    /// Number of pending pods.
    #[serde(rename = "pending")]
    pending: usize,
}

/// Requested of allocatable.
#[derive(Debug, Default, Serialize)]
pub(super) struct Share {
    #[serde(rename = "requested")]
    requested: Quantity,
    #[serde(rename = "allocatable")]
    allocatable: Quantity,
}

pub(in crate::commands) fn summary(node: &Node, pods: &[Pod]) -> NodeLine {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let listed = status.and_then(|status| status.allocatable.as_ref());
    let allocatable: ResourceList = listed
        .into_iter()
        .flatten()
        .filter_map(|(name, text)| Some((name.clone(), Quantity::try_from(text).ok()?)))
        .collect();
    let mut requested = ResourceList::new();
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
    let active = |pod: &&Pod| !matches!(phase(pod).as_deref(), Some("Succeeded" | "Failed"));
    let bound = |pod: &&Pod| {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        name.is_some() && name == node.metadata.name.as_ref()
    };
    for pod in pods.iter().filter(active).filter(bound) {
        let resources = pod.spec.as_ref().and_then(|spec| PodResources::parse(spec).ok());
        for (name, quantity) in resources.unwrap_or_default().requests(Overhead::Included) {
            *requested.entry(name).or_default() += quantity;
        }
    }
    let share = |name: &str| Share {
        requested: amount(&requested, name),
        allocatable: amount(&allocatable, name),
    };
    NodeLine {
        name: node.metadata.name.clone().unwrap_or_default(),
        ready: conditions
            .into_iter()
            .flatten()
            .any(|each| each.type_ == "Ready" && each.status == "True"),
        cpu: share(CPU),
        memory: share(MEMORY),
        pending: pods.iter().filter(|pod| phase(pod).as_deref() == Some("Pending")).count(),
    }
}

impl fmt::Display for NodeLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = if self.ready { "Ready" } else { "not ready" };
        write!(
            f,
            "node {} {ready}, requested: cpu {} of {}, memory {} of {}",
            self.name,
            self.cpu.requested,
            self.cpu.allocatable,
            readable_bytes(self.memory.requested.unsigned_value()),
            readable_bytes(self.memory.allocatable.unsigned_value())
        )?;
        match self.pending {
            0 => writeln!(f),
            pending => writeln!(f, ", {pending} pending"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_of_active_pods_on_the_node_are_added_up() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "status": {
                "allocatable": {"cpu": "2", "memory": "1Gi"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))
        .unwrap();
        let pod = |name: &str, node: &str, phase: &str| -> Pod {
            let resources = json!({"requests": {"cpu": "250m", "memory": "64Mi"}});
            let spec =
                json!({"nodeName": node, "containers": [{"name": "c", "resources": resources}]});
            let pod = json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}});
            serde_json::from_value(pod).unwrap()
        };
        let pods = [
            pod("a", "n", "Running"),
            pod("b", "n", "Failed"),
            pod("c", "", "Pending"),
            pod("d", "n", "Running"),
        ];
        assert_eq!(
            summary(&node, &pods).to_string(),
            "node n Ready, requested: cpu 500m of 2, memory 128Mi of 1Gi, 1 pending\n"
        );
    }
}
