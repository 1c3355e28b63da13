//! Validation of node names, labels and taints.
//!
//! The API server enforces the same rules when the node registers. Checked here, violations are
//! found before anything runs and name the flag to correct.

/// Name of this node: the override, or the machine's hostname, trimmed and in lower case.
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

/// Validates the key of a label or taint; returns the error.
pub fn key_error(key: &str) -> Option<&'static str> {
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

/// Validates the value of a label or taint; returns the error.
pub fn value_error(value: &str) -> Option<&'static str> {
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

/// Whether this is a lower-case DNS subdomain (RFC 1123).
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
    fn node_name_is_the_override_or_the_hostname() {
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
    fn keys_and_values_follow_the_label_syntax() {
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
            assert_eq!(key_error(key).is_none(), sound, "{key:?}");
        }
        for (value, sound) in
            [("", true), ("a", true), ("A_b.c-1", true), ("a ", false), ("a/b", false)]
        {
            assert_eq!(value_error(value).is_none(), sound, "{value:?}");
        }
        assert!(value_error(&"a".repeat(64)).is_some());
    }
}
