//! Rules for names: of the node, of its labels and taints.
//!
//! The API server enforces the same rules when the node registers. Checked here they are found
//! before anything runs, and with the flag to correct.

/// The name of this node: the override, or the machine's hostname, trimmed and in lower case.
pub fn node_name(hostname: &str, hostname_override: &str) -> Result<String, String> {
    let chosen = if hostname_override.trim().is_empty() { hostname } else { hostname_override };
    let name = chosen.trim().to_lowercase();
    if is_dns_name(&name) {
        return Ok(name);
    }
    Err(format!(
        "gives the node the name {name:?}, which must be a DNS name: at most 253 lower-case \
         letters, digits, '-' and '.', beginning and ending with a letter or digit"
    ))
}

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

/// What is wrong with a label's or taint's key.
pub fn key_trouble(key: &str) -> Option<&'static str> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|prefix| !is_dns_name(prefix)) {
        return Some("must have a DNS name before the slash");
    }
    (name.is_empty() || !is_name_part(name)).then_some(
        "must have a name of at most 63 letters, digits, '-', '_' and '.', beginning and ending \
         with a letter or digit",
    )
}

/// What is wrong with a label's or taint's value.
pub fn value_trouble(value: &str) -> Option<&'static str> {
    (!value.is_empty() && !is_name_part(value)).then_some(
        "must be empty, or at most 63 letters, digits, '-', '_' and '.', beginning and ending with \
         a letter or digit",
    )
}

fn is_name_part(text: &str) -> bool {
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// A DNS subdomain as RFC 1123 has it, in lower case.
fn is_dns_name(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= 253
        && text.split('.').all(|label| {
            !label.is_empty()
                && label.chars().all(is_inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_its_override_or_its_hostname() {
        for (hostname, given, want) in [
            ("Worker-1", "", Some("worker-1")),
            ("worker-1", "  Other.Example.COM ", Some("other.example.com")),
            ("worker-1", "   ", Some("worker-1")),
            ("", "", None),
            ("under_score", "", None),
            ("-dash", "", None),
            ("a..b", "", None),
        ] {
            assert_eq!(node_name(hostname, given).ok().as_deref(), want, "{hostname:?} {given:?}");
        }
        assert!(node_name(&"a".repeat(254), "").is_err());
    }

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

    #[test]
    fn keys_and_values_follow_the_rules_of_labels() {
        for (key, sound) in [
            ("a", true),
            ("example.com/a.b_c-D", true),
            ("", false),
            ("/a", false),
            ("Example.com/a", false),
            ("a/b/c", false),
            ("-a", false),
            ("a b", false),
        ] {
            assert_eq!(key_trouble(key).is_none(), sound, "{key:?}");
        }
        for (value, sound) in
            [("", true), ("a", true), ("A_b.c-1", true), ("a ", false), ("a/b", false)]
        {
            assert_eq!(value_trouble(value).is_none(), sound, "{value:?}");
        }
        assert!(value_trouble(&"a".repeat(64)).is_some());
    }
}
