//! Kinds of Kubernetes that this server does not serve, and what to use instead.
//!
//! They are in discovery without any verb. `kubectl` finds a kind there before it sends a request:
//! one that is missing is "ensure CRDs are installed first", one that is listed is requested, and
//! the response says what to do. Clients that look for something to list, watch or delete, such as
//! `kubectl api-resources` and `kubectl get all`, skip what has no verb.

use serde_json::{Value, json};

/// A kind that is part of Kubernetes and not served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnservedKind {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    pub short_names: &'static [&'static str],
    /// What to use on a single machine; starts with a verb.
    pub instead: &'static str,
}

/// The unserved kind at this path, if any.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static UnservedKind> {
    UNSERVED
        .iter()
        .find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
}

const AS_POD: &str =
    "create a Pod from spec.template, with a name; the node restarts its containers";
const POD_PER_RUN: &str =
    "create a Pod from its pod template, with a name and restartPolicy Never or OnFailure";
const NO_ROUTING: &str = "reach a pod by its IP, a hostPort or `kubectl port-forward`; there are no Services to route to";
const NO_LIMITS: &str = "set resources in each pod";
const NO_EXTENSIONS: &str = "leave it out; the API of a single machine cannot be extended";

const fn kind(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    short_names: &'static [&'static str],
    instead: &'static str,
) -> UnservedKind {
    UnservedKind {
        group,
        version: "v1",
        plural,
        singular,
        kind,
        namespaced: true,
        short_names,
        instead,
    }
}

/// Kinds that users have in their manifests, in the order of discovery.
pub static UNSERVED: &[UnservedKind] = &[
    kind("", "Endpoints", "endpoints", "endpoints", &["ep"], NO_ROUTING),
    kind("", "LimitRange", "limitranges", "limitrange", &["limits"], NO_LIMITS),
    kind(
        "",
        "ReplicationController",
        "replicationcontrollers",
        "replicationcontroller",
        &["rc"],
        AS_POD,
    ),
    kind("", "ResourceQuota", "resourcequotas", "resourcequota", &["quota"], NO_LIMITS),
    kind("apps", "DaemonSet", "daemonsets", "daemonset", &["ds"], AS_POD),
    kind("apps", "Deployment", "deployments", "deployment", &["deploy"], AS_POD),
    kind("apps", "ReplicaSet", "replicasets", "replicaset", &["rs"], AS_POD),
    kind("apps", "StatefulSet", "statefulsets", "statefulset", &["sts"], AS_POD),
    UnservedKind {
        version: "v2",
        ..kind(
            "autoscaling",
            "HorizontalPodAutoscaler",
            "horizontalpodautoscalers",
            "horizontalpodautoscaler",
            &["hpa"],
            "leave it out; the number of pods is the number that you create",
        )
    },
    kind(
        "batch",
        "CronJob",
        "cronjobs",
        "cronjob",
        &["cj"],
        "run `kubectl create` with a Pod from the machine's cron or a systemd timer",
    ),
    kind("batch", "Job", "jobs", "job", &[], POD_PER_RUN),
    kind("discovery.k8s.io", "EndpointSlice", "endpointslices", "endpointslice", &[], NO_ROUTING),
    kind("networking.k8s.io", "Ingress", "ingresses", "ingress", &["ing"], NO_ROUTING),
    kind(
        "networking.k8s.io",
        "NetworkPolicy",
        "networkpolicies",
        "networkpolicy",
        &["netpol"],
        "leave it out; pods reach each other, and other machines reach them through host ports only",
    ),
    kind(
        "policy",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        "poddisruptionbudget",
        &["pdb"],
        "leave it out; there is no other machine that pods could move to",
    ),
    UnservedKind {
        namespaced: false,
        ..kind(
            "storage.k8s.io",
            "StorageClass",
            "storageclasses",
            "storageclass",
            &["sc"],
            "leave it out; a PersistentVolumeClaim gets a directory of this machine, whatever its class",
        )
    },
    UnservedKind {
        namespaced: false,
        ..kind(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            "customresourcedefinition",
            &["crd", "crds"],
            NO_EXTENSIONS,
        )
    },
];

/// Where kubectl asks, before it sends an object of a kind that it does not know, whether that is a
/// custom one. It gives up when there is no response.
pub const CUSTOM_KINDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The list of all custom kinds.
pub fn no_custom_kinds() -> Value {
    json!({
        "kind": "CustomResourceDefinitionList",
        "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"resourceVersion": "1"},
        "items": [],
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::registry::{self, RESOURCES};

    #[test]
    fn no_kind_is_both_served_and_unserved() {
        for kind in UNSERVED {
            assert!(registry::find_kind(kind.group, kind.version, kind.kind).is_none(), "{kind:?}");
            assert!(registry::find(kind.group, kind.version, kind.plural).is_none(), "{kind:?}");
        }
    }

    #[test]
    fn names_that_kubectl_accepts_are_unique() {
        let served = RESOURCES.iter().filter(|resource| resource.is_stored());
        let served = served.flat_map(|resource| resource.short_names.iter().copied());
        let mut seen: BTreeSet<&str> = served.collect();
        for name in UNSERVED.iter().flat_map(|kind| kind.short_names) {
            assert!(seen.insert(name), "{name}");
        }
    }

    /// Discovery shows one version of each group.
    #[test]
    fn group_has_one_version() {
        for kind in UNSERVED {
            let others = UNSERVED.iter().filter(|other| other.group == kind.group);
            let served = RESOURCES.iter().filter(|resource| resource.group == kind.group);
            let versions: BTreeSet<&str> = others
                .map(|other| other.version)
                .chain(served.map(|resource| resource.version))
                .collect();
            assert_eq!(versions.len(), 1, "{}", kind.group);
        }
    }
}
