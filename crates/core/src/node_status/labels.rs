//! Which labels a node may give itself.
//!
//! Pods are kept off a machine by labels, so a machine that was taken must not be able to choose
//! its own. The rule is asked twice: of what the node is configured with, and, where we are the API
//! server too, of what it sends.

/// Labels of the namespaces `kubernetes.io` and `k8s.io` that a node may give itself.
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

/// Namespaces, with their subdomains, in which a node may give itself any label.
pub const SELF_LABEL_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// Whether a node may put a label on itself: outside the reserved namespaces always, inside only
/// what the control plane does not keep for itself.
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
    fn a_node_gives_itself_no_label_that_the_control_plane_keeps() {
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
