//! Labels that a node may set on itself.
//!
//! Labels keep pods off certain nodes, so a compromised node must not be able to choose its own.
//! The rule is checked twice: on the node's configuration, and by the embedded API server on
//! requests from the node.

/// Labels in the namespaces `kubernetes.io` and `k8s.io` that a node may set on itself.
pub const SELF_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Namespaces, with their subdomains, in which a node may set any label on itself.
pub const SELF_LABEL_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Whether a node may set a label on itself: any outside the reserved namespaces, inside them only
/// those that are not reserved for the control plane.
pub fn may_label_itself(key: &str) -> bool {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    let within = |domain: &str| {
        namespace.strip_suffix(domain).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
    };
    let reserved = within("kubernetes.io") || within("k8s.io");
    !reserved
        || SELF_LABELS.contains(&key)
        || SELF_LABEL_NAMESPACES.iter().any(|domain| within(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_cannot_set_labels_reserved_for_the_control_plane() {
        for (key, want) in [
            ("team", true),
            ("example.com/team", true),
            ("notkubernetes.io/x", true),
            ("kubernetes.io/hostname", true),
            ("topology.kubernetes.io/zone", true),
            ("node.kubernetes.io/anything", true),
            ("my.node.kubernetes.io/anything", true),
            ("kubelet.kubernetes.io/x", true),
            ("kubernetes.io/x", false),
            ("node-role.kubernetes.io/control-plane", false),
            ("node-restriction.kubernetes.io/x", false),
            ("k8s.io/x", false),
            ("a.k8s.io/x", false),
        ] {
            assert_eq!(may_label_itself(key), want, "{key}");
        }
    }
}
