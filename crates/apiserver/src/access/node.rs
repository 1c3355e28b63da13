//! Node authorization: a node may access its own objects and what its pods need.
//!
//! Two checks, as in upstream's Node authorizer and NodeRestriction: whether the path is allowed at
//! all, and, once the object is known, whether it is this node's. The agent of `podwright up` runs
//! in this process and has the same restrictions, so that what works here works in a cluster.

use std::collections::BTreeSet;

use podwright_api::annotations::ANNOTATION_MIRROR;
use podwright_core::node_status::labels::may_label_itself;
use serde_json::{Map, Value};

use super::{Attributes, Identity, IdentityKind};
use crate::object::Object;
use crate::registry::{LEASES, NODES, PODS, Verb};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::Key;

const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// Whether a node may make this request at all.
pub(super) fn allow(node: &str, requested: &Attributes<'_>) -> Result<(), String> {
    let Attributes { verb, resource, subresource, namespace, name, .. } = *requested;
    let reads = matches!(verb, "get" | "list" | "watch");
    let writes = matches!(verb, "create" | "update" | "patch");
    let allowed = match (resource, subresource) {
        ("nodes", "" | "status") if reads => true,
        ("nodes", "") => writes && (name == node || verb == "create"),
        ("nodes", "status") => writes && name == node,
        ("leases", "") if namespace == NODE_LEASE_NAMESPACE => name == node || verb == "create",
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
    /// Checks an object that a node creates.
    pub(crate) fn restrict_create(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        object: &Object,
    ) -> Result<(), ApiError> {
        let IdentityKind::Node(node) = identity.kind() else { return Ok(()) };
        let refused = match (info.resource, info.subresource.map(|sub| sub.name)) {
            (resource, None) if resource == &PODS => self.mirror_pod_error(node, object)?,
            (resource, None) if resource == &NODES => node_labels_error(node, object),
            (resource, None) if resource == &LEASES => lease_error(node, object),
            (_, Some("token")) => return self.restrict_token(node, info, object),
            _ => None,
        };
        refused.map_or(Ok(()), |why| {
            Err(ApiError::forbidden(info.resource, object.shown_name(), &why))
        })
    }

    /// Why a node may not create this pod: it must be a mirror pod of a pod that it runs, and must
    /// not reference other objects.
    fn mirror_pod_error(&self, node: &str, pod: &Object) -> Result<Option<String>, ApiError> {
        if pod.annotation(ANNOTATION_MIRROR).is_none() {
            return Ok(Some(format!(
                "pod does not have \"{ANNOTATION_MIRROR}\" annotation, node \"{node}\" can only create mirror pods"
            )));
        }
        let only =
            |what: &str| Ok(Some(format!("node \"{node}\" can only create pods with {what}")));
        if pod.text("/spec/nodeName") != node {
            return only("spec.nodeName set to itself");
        }
        let owner = match pod.owner_references() {
            [owner] => owner,
            [] => return only("an owner reference set to itself"),
            _ => return only("a single owner reference set to itself"),
        };
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        let flag = |field: &str| owner.get(field).and_then(Value::as_bool).unwrap_or(false);
        if (text("apiVersion"), text("kind"), text("name")) != ("v1", "Node", node) {
            return only("an owner reference set to itself");
        }
        if !flag("controller") {
            return only("a controller owner reference set to itself");
        }
        if flag("blockOwnerDeletion") {
            return Ok(Some(format!(
                "node \"{node}\" must not set blockOwnerDeletion on an owner reference"
            )));
        }
        let Some(own) = self.read(&NODES, &Key::new(&NODES, "", node))? else {
            return Err(ApiError::not_found(&NODES, node));
        };
        let (given, real) = (text("uid"), own.uid());
        Ok((given != real)
            .then(|| format!("node {node} UID mismatch: expected {given} got {real}")))
    }

    /// Checks that an object that a node changes or deletes is its own.
    pub(crate) fn restrict_existing(
        &self,
        identity: &Identity,
        info: &RequestInfo,
    ) -> Result<(), ApiError> {
        let IdentityKind::Node(node) = identity.kind() else { return Ok(()) };
        if info.resource != &PODS || matches!(info.verb, Verb::Get | Verb::List | Verb::Watch) {
            return Ok(());
        }
        let key = Key::new(&PODS, &info.namespace, &info.name);
        // A missing object is reported by the operation itself.
        let Some(pod) = self.read(&PODS, &key)? else { return Ok(()) };
        if pod.text("/spec/nodeName") == node {
            return Ok(());
        }
        let why =
            format!("node \"{node}\" can only {} pods with spec.nodeName set to itself", info.verb);
        Err(ApiError::forbidden(&PODS, &info.name, &why))
    }

    /// A node may request tokens only for its pods.
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

/// Checks a node's change of an object that is its own.
pub(crate) fn restrict_change(
    identity: &Identity,
    info: &RequestInfo,
    old: &Object,
    new: &Object,
) -> Result<(), ApiError> {
    let IdentityKind::Node(node) = identity.kind() else { return Ok(()) };
    let refused = if info.resource == &NODES {
        node_change_error(node, old, new)
    } else if info.resource == &PODS && labels(old) != labels(new) {
        Some(format!("node \"{node}\" cannot update labels through pod status"))
    } else {
        None
    };
    refused.map_or(Ok(()), |why| Err(ApiError::forbidden(info.resource, &info.name, &why)))
}

fn lease_error(node: &str, lease: &Object) -> Option<String> {
    (lease.name() != node)
        .then(|| "can only access node lease with the same name as the requesting node".to_owned())
}

fn node_labels_error(node: &str, object: &Object) -> Option<String> {
    if object.name() != node {
        let other = object.name();
        return Some(format!("node \"{node}\" is not allowed to modify node \"{other}\""));
    }
    let kept = restricted_labels(&Map::new(), labels(object).unwrap_or(&Map::new()));
    (!kept.is_empty())
        .then(|| format!("node \"{node}\" is not allowed to set the following labels: {kept}"))
}

/// A node may not change its taints or its owner references.
fn node_change_error(node: &str, old: &Object, new: &Object) -> Option<String> {
    let list = |object: &Object, path: &str| {
        object
            .value()
            .pointer(path)
            .filter(|list| list.as_array().is_some_and(|l| !l.is_empty()))
            .cloned()
    };
    for (path, what) in
        [("/spec/taints", "taints"), ("/metadata/ownerReferences", "ownerReferences")]
    {
        if list(old, path) != list(new, path) {
            return Some(format!("node \"{node}\" is not allowed to modify {what}"));
        }
    }
    let none = Map::new();
    let kept = restricted_labels(labels(old).unwrap_or(&none), labels(new).unwrap_or(&none));
    (!kept.is_empty()).then(|| format!("is not allowed to modify labels: {kept}"))
}

fn labels(object: &Object) -> Option<&Map<String, Value>> {
    object.meta().get("labels").and_then(Value::as_object).filter(|labels| !labels.is_empty())
}

/// Changed labels that a node may not set on itself.
fn restricted_labels(old: &Map<String, Value>, new: &Map<String, Value>) -> String {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let kept = |key: &&&String| old.get(**key) != new.get(**key) && !may_label_itself(key);
    keys.iter().filter(kept).map(|key| key.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_reaches_its_own_objects_and_what_pods_need() {
        let requested = |verb, resource, subresource, namespace, name| Attributes {
            verb,
            group: "",
            resource,
            subresource,
            namespace,
            name,
        };
        for (attributes, want) in [
            (requested("patch", "nodes", "status", "", "n1"), true),
            (requested("patch", "nodes", "status", "", "n2"), false),
            (requested("create", "nodes", "", "", ""), true),
            (requested("delete", "nodes", "", "", "n1"), false),
            (requested("update", "leases", "", NODE_LEASE_NAMESPACE, "n1"), true),
            (requested("update", "leases", "", NODE_LEASE_NAMESPACE, "n2"), false),
            (requested("update", "leases", "", "default", "n1"), false),
            (requested("watch", "pods", "", "", ""), true),
            (requested("update", "pods", "", "default", "p"), false),
            (requested("patch", "pods", "status", "default", "p"), true),
            (requested("get", "secrets", "", "default", "s"), true),
            (requested("update", "secrets", "", "default", "s"), false),
            (requested("get", "pods", "exec", "default", "p"), false),
            (requested("create", "namespaces", "", "", ""), false),
        ] {
            assert_eq!(allow("n1", &attributes).is_ok(), want, "{attributes:?}");
        }
    }
}
