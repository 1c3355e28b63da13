//! What a node may do: what its work needs, to objects that are its own.
//!
//! Two questions, as with upstream's Node authorizer and NodeRestriction: whether the address may
//! be asked at all, and, once the object is known, whether it is this node's. The agent of
//! `podwright up` is part of this very process; it is held to the same limits, so that what works
//! here works in a cluster.

use super::{Attributes, Identity, Part};
use crate::object::Object;
use crate::registry::{NODES, PODS, Resource, Verb};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::Key;

const LEASES_OF_NODES: &str = "kube-node-lease";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Labels that only the machine's owner sets, so that pods can be kept off a node that was taken.
const OWNERS_LABELS: &str = "node-restriction.kubernetes.io/";

/// Whether a node may ask for this at all.
pub(super) fn allow(node: &str, asked: &Attributes<'_>) -> Result<(), String> {
    let Attributes { verb, resource, subresource, namespace, name, .. } = *asked;
    let reads = matches!(verb, "get" | "list" | "watch");
    let writes = matches!(verb, "create" | "update" | "patch");
    let allowed = match (resource, subresource) {
        ("nodes", "" | "status") if reads => true,
        ("nodes", "") => writes && (name == node || verb == "create"),
        ("nodes", "status") => writes && name == node,
        ("leases", "") if namespace == LEASES_OF_NODES => name == node || verb == "create",
        ("pods", "") => reads || matches!(verb, "create" | "delete"),
        ("pods", "status") => reads || writes,
        ("pods", "eviction") | ("serviceaccounts", "token") => verb == "create",
        ("configmaps" | "secrets" | "persistentvolumeclaims" | "persistentvolumes", "") => reads,
        ("services" | "runtimeclasses" | "serviceaccounts" | "priorityclasses", "") => reads,
        ("persistentvolumeclaims", "status") => reads || writes,
        ("events", "") => writes,
        ("tokenreviews" | "subjectaccessreviews", "") => verb == "create",
        _ => false,
    };
    if allowed {
        return Ok(());
    }
    Err(format!("node \"{node}\" is only allowed what its pods and its own objects need"))
}

impl ApiServer {
    /// Whether an object that a node makes is one that a node may make.
    pub(crate) fn restrict_create(
        &self,
        who: &Identity,
        info: &RequestInfo,
        object: &Object,
    ) -> Result<(), ApiError> {
        let Part::Node(node) = who.part() else { return Ok(()) };
        let name = object.shown_name();
        let refuse = |why: &str| Err(ApiError::forbidden(info.resource, name, why));
        match (info.resource, info.subresource.map(|sub| sub.name)) {
            (resource, None) if resource == &PODS => {
                if object.annotation(MIRROR).is_none() {
                    return refuse(&format!(
                        "pod does not have \"{MIRROR}\" annotation, node \"{node}\" can only create mirror pods"
                    ));
                }
                if object.text("/spec/nodeName") != node {
                    return refuse(&format!(
                        "node \"{node}\" can only create pods with spec.nodeName set to itself"
                    ));
                }
                Ok(())
            }
            (resource, None) if resource == &NODES => restrict_node_object(node, object),
            (_, Some("token")) => self.restrict_token(node, info, object),
            _ => Ok(()),
        }
    }

    /// Whether an object that a node changes or deletes is its own.
    pub(crate) fn restrict_existing(
        &self,
        who: &Identity,
        info: &RequestInfo,
    ) -> Result<(), ApiError> {
        let Part::Node(node) = who.part() else { return Ok(()) };
        if info.resource != &PODS || matches!(info.verb, Verb::Get | Verb::List | Verb::Watch) {
            return Ok(());
        }
        let key = Key::new(&PODS, &info.namespace, &info.name);
        // One that is gone is told by whoever looks for it next.
        let Some(pod) = self.read(&PODS, &key)? else { return Ok(()) };
        if pod.text("/spec/nodeName") == node {
            return Ok(());
        }
        let why =
            format!("node \"{node}\" can only {} pods with spec.nodeName set to itself", info.verb);
        Err(ApiError::forbidden(&PODS, &info.name, &why))
    }

    /// A node asks for tokens on behalf of its pods only.
    fn restrict_token(
        &self,
        node: &str,
        info: &RequestInfo,
        request: &Object,
    ) -> Result<(), ApiError> {
        let refuse = |why: &str| Err(ApiError::forbidden(info.resource, &info.name, why));
        let name = request.text("/spec/boundObjectRef/name");
        if request.text("/spec/boundObjectRef/kind") != "Pod" || name.is_empty() {
            return refuse(&format!(
                "node \"{node}\" can only request tokens that are bound to a pod"
            ));
        }
        let pod = self.read(&PODS, &Key::new(&PODS, &info.namespace, name))?;
        let Some(pod) = pod else { return Err(ApiError::not_found(&PODS, name)) };
        if pod.text("/spec/nodeName") != node {
            return refuse(&format!(
                "node \"{node}\" requested a token bound to a pod scheduled on a different node"
            ));
        }
        Ok(())
    }
}

fn restrict_node_object(node: &str, object: &Object) -> Result<(), ApiError> {
    let refuse = |resource: &Resource, why: String| {
        Err(ApiError::forbidden(resource, object.shown_name(), &why))
    };
    if object.name() != node {
        return refuse(
            &NODES,
            format!("node \"{node}\" is not allowed to modify node \"{}\"", object.name()),
        );
    }
    let labels = object.meta().get("labels").and_then(serde_json::Value::as_object);
    let theirs = labels.into_iter().flatten().find(|(key, _)| key.starts_with(OWNERS_LABELS));
    if let Some((label, _)) = theirs {
        return refuse(&NODES, format!("is not allowed to set the following labels: {label}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_reaches_its_own_objects_and_what_pods_need() {
        let asked = |verb, resource, subresource, namespace, name| Attributes {
            verb,
            group: "",
            resource,
            subresource,
            namespace,
            name,
        };
        for (question, want) in [
            (asked("patch", "nodes", "status", "", "n1"), true),
            (asked("patch", "nodes", "status", "", "n2"), false),
            (asked("create", "nodes", "", "", ""), true),
            (asked("delete", "nodes", "", "", "n1"), false),
            (asked("update", "leases", "", LEASES_OF_NODES, "n1"), true),
            (asked("update", "leases", "", LEASES_OF_NODES, "n2"), false),
            (asked("update", "leases", "", "default", "n1"), false),
            (asked("watch", "pods", "", "", ""), true),
            (asked("update", "pods", "", "default", "p"), false),
            (asked("patch", "pods", "status", "default", "p"), true),
            (asked("get", "secrets", "", "default", "s"), true),
            (asked("update", "secrets", "", "default", "s"), false),
            (asked("get", "pods", "exec", "default", "p"), false),
            (asked("create", "namespaces", "", "", ""), false),
        ] {
            assert_eq!(allow("n1", &question).is_ok(), want, "{question:?}");
        }
    }
}
