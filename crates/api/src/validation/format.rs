//! Format checks of names, keys and numbers. Each check returns its problems, if any.

use std::net::IpAddr;

pub type Problems = Vec<String>;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const KEY_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start \
                        and end with an alphanumeric character";

/// A DNS label: no dots.
pub fn dns_label(value: &str) -> Problems {
    let mut problems = too_long(value, 63, "characters");
    if !is_label(value) {
        problems.push(if is_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            expected(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or \
                 '-', and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            )
        });
    }
    problems
}

/// A DNS subdomain: labels separated by dots.
pub fn dns_subdomain(value: &str) -> Problems {
    dns_subdomain_in(value, "characters")
}

fn dns_subdomain_in(value: &str, unit: &str) -> Problems {
    let mut problems = too_long(value, 253, unit);
    if !is_subdomain(value) {
        problems.push(expected(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character",
            &format!("{LABEL}(\\.{LABEL})*"),
            &["example.com"],
        ));
    }
    problems
}

/// The same, but underscores are allowed, as in search domains.
pub fn dns_subdomain_with_underscores(value: &str) -> Problems {
    let label = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let is_loose_label = |part: &str| {
        let part = part.strip_prefix('_').unwrap_or(part);
        is_word(part, is_lower_or_digit, |b| is_lower_or_digit(b) || b == b'-' || b == b'_')
    };
    let mut problems = too_long(value, 253, "characters");
    if !value.split('.').all(is_loose_label) {
        problems.push(expected(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '_', '-' or '.', and must start and end with an alphanumeric character",
            &format!("{label}(\\.{label})*"),
            &["example.com"],
        ));
    }
    problems
}

/// A label key, with an optional domain before a slash.
pub fn qualified_name(value: &str) -> Problems {
    let mut problems = Problems::new();
    let examples = ["MyName", "my.name", "123-abc"];
    let mut parts = value.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(""), Some(name), None) => {
            problems.push("prefix part must be non-empty".to_owned());
            name
        }
        (Some(prefix), Some(name), None) => {
            let of_prefix = dns_subdomain_in(prefix, "bytes");
            problems.extend(of_prefix.into_iter().map(|text| format!("prefix part {text}")));
            name
        }
        _ => {
            let rule = expected(KEY_RULE, KEY, &examples);
            return vec![format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    }
    problems
        .extend(too_long(name, 63, "bytes").into_iter().map(|text| format!("name part {text}")));
    if !is_key(name) {
        problems.push(format!("name part {}", expected(KEY_RULE, KEY, &examples)));
    }
    problems
}

pub fn label_value(value: &str) -> Problems {
    let mut problems = too_long(value, 63, "bytes");
    if !value.is_empty() && !is_key(value) {
        problems.push(expected(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', \
             '_' or '.', and must start and end with an alphanumeric character",
            &format!("({KEY})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    problems
}

/// The name of an environment variable.
pub fn env_name(value: &str) -> Problems {
    let mut problems = Problems::new();
    if value.is_empty() {
        problems.push("environment variable name must be non-empty".to_owned());
    }
    if !value.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        problems.push(
            "a valid environment variable name must consist only of printable ASCII characters \
             other than '='"
                .to_owned(),
        );
    }
    problems
}

/// A key of a ConfigMap or Secret, which may become a file name.
pub fn config_key(value: &str) -> Problems {
    let mut problems = too_long(value, 253, "characters");
    let is_ok = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if value.is_empty() || !value.bytes().all(is_ok) {
        problems.push(expected(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match value {
        "." => problems.push("must not be '.'".to_owned()),
        ".." => problems.push("must not be '..'".to_owned()),
        _ if value.starts_with("..") => problems.push("must not start with '..'".to_owned()),
        _ => {}
    }
    problems
}

pub fn port_name(value: &str) -> Problems {
    let mut problems = too_long(value, 15, "characters");
    if value.is_empty() || !value.bytes().all(|b| is_lower_or_digit(b) || b == b'-') {
        problems.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !value.bytes().any(|b| b.is_ascii_lowercase()) {
        problems.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        problems.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        problems.push("must not begin or end with a hyphen".to_owned());
    }
    problems
}

pub fn port_number(value: i64) -> Problems {
    in_range(value, 1, 65535)
}

/// A user or group number.
pub fn user_id(value: i64) -> Problems {
    in_range(value, 0, i64::from(i32::MAX))
}

pub fn http_header_name(value: &str) -> Problems {
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Problems::new();
    }
    vec![expected(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// An IP address. Forms that parsers read differently are refused.
pub fn ip_address(value: &str) -> Problems {
    match value.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            vec!["must not be an IPv4-mapped IPv6 address".to_owned()]
        }
        Ok(_) => Problems::new(),
        Err(_) if has_leading_zeros(value) => vec!["must not have leading 0s".to_owned()],
        Err(_) => {
            vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
        }
    }
}

/// Whether it is an IPv4 address with leading zeros.
fn has_leading_zeros(value: &str) -> bool {
    let trim = |part: &str| match part.trim_start_matches('0') {
        "" if !part.is_empty() => "0".to_owned(),
        rest => rest.to_owned(),
    };
    let trimmed: Vec<String> = value.split('.').map(trim).collect();
    trimmed.len() == 4 && trimmed.join(".").parse::<IpAddr>().is_ok()
}

/// The name of a kernel setting, with dots or slashes.
pub fn is_sysctl_name(value: &str) -> bool {
    let is_segment = |part: &str| {
        is_word(part, is_lower_or_digit, |b| is_lower_or_digit(b) || b == b'-' || b == b'_')
    };
    value.len() <= 253 && value.split(['.', '/']).all(is_segment)
}

pub fn in_range(value: i64, low: i64, high: i64) -> Problems {
    if (low..=high).contains(&value) {
        return Problems::new();
    }
    vec![format!("must be between {low} and {high}, inclusive")]
}

/// A name prefix (`generateName`) may end in a dash.
pub fn as_prefix(check: fn(&str) -> Problems, prefix: &str) -> Problems {
    match prefix.strip_suffix('-') {
        // upstream replaces the dash and the character before it, so that `a--` is fine too
        Some(rest) if !rest.is_empty() => {
            let mut kept = rest.to_owned();
            kept.pop();
            kept.push('a');
            check(&kept)
        }
        _ => check(prefix),
    }
}

fn is_label(value: &str) -> bool {
    is_word(value, is_lower_or_digit, |b| is_lower_or_digit(b) || b == b'-')
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_key(value: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_alphanumeric();
    is_word(value, alnum, |b| alnum(b) || matches!(b, b'-' | b'_' | b'.'))
}

fn is_lower_or_digit(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_word(value: &str, at_the_ends: impl Fn(u8) -> bool, inside: impl Fn(u8) -> bool) -> bool {
    value.bytes().next().is_some_and(&at_the_ends)
        && value.bytes().last().is_some_and(&at_the_ends)
        && value.bytes().all(inside)
}

fn too_long(value: &str, limit: usize, unit: &str) -> Problems {
    if value.len() > limit {
        return vec![format!("must be no more than {limit} {unit}")];
    }
    Problems::new()
}

fn expected(rule: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|text| format!("'{text}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{regex}')", examples.join(" or "))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_subdomains() {
        let long = "a".repeat(64);
        for (value, label, subdomain) in [
            ("a", true, true),
            ("a-1", true, true),
            ("a.b", false, true),
            ("", false, false),
            ("-a", false, false),
            ("a-", false, false),
            ("A", false, false),
            ("a..b", false, false),
            ("a_b", false, false),
            (long.as_str(), false, true),
        ] {
            assert_eq!(dns_label(value).is_empty(), label, "label {value}");
            assert_eq!(dns_subdomain(value).is_empty(), subdomain, "subdomain {value}");
        }
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns_label(&long), ["must be no more than 63 characters"]);
    }

    #[test]
    fn qualified_names() {
        for (value, want) in [
            ("a", vec![]),
            ("example.com/A_b.c", vec![]),
            ("/a", vec!["prefix part must be non-empty"]),
            (
                "a/",
                vec![
                    "name part must be non-empty",
                    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
                ],
            ),
        ] {
            assert_eq!(qualified_name(value), want, "{value}");
        }
        assert!(qualified_name("a/b/c")[0].starts_with("a valid label key must consist of"));
        assert!(qualified_name("A/b")[0].starts_with("prefix part a lowercase RFC 1123 subdomain"));
    }

    #[test]
    fn addresses() {
        for (value, want) in [
            ("10.0.0.1", None),
            ("fe80::1", None),
            ("10.0.0.01", Some("must not have leading 0s")),
            ("::ffff:1.2.3.4", Some("must not be an IPv4-mapped IPv6 address")),
            ("10.0.0", Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")),
            ("x", Some("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")),
        ] {
            assert_eq!(ip_address(value).first().map(String::as_str), want, "{value}");
        }
    }

    #[test]
    fn name_prefix_may_end_in_a_dash() {
        for (prefix, ok) in
            [("web-", true), ("web--", true), ("-", false), ("Web-", false), ("web", true)]
        {
            assert_eq!(as_prefix(dns_subdomain, prefix).is_empty(), ok, "{prefix}");
        }
    }

    #[test]
    fn other_name_formats() {
        assert!(env_name("a.b-c d").is_empty());
        assert!(!env_name("a=b").is_empty());
        assert!(!env_name("é").is_empty());
        assert!(config_key("..data")[0].contains("must not start with '..'"));
        assert_eq!(config_key("."), ["must not be '.'"]);
        assert!(port_name("http-1").is_empty());
        assert_eq!(port_name("1"), ["must contain at least one letter (a-z)"]);
        assert_eq!(port_name("a--b"), ["must not contain consecutive hyphens"]);
        assert!(is_sysctl_name("net.ipv4.conf.eth0/1.x_y"));
        assert!(!is_sysctl_name("net..a"));
        assert_eq!(port_number(0), ["must be between 1 and 65535, inclusive"]);
        assert!(dns_subdomain_with_underscores("_srv.a_b.c").is_empty());
        assert!(!http_header_name("X Y").is_empty());
        assert!(label_value("").is_empty());
    }
}
