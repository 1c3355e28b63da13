//! Image name parsing.
//!
//! The grammar is the one that registries and runtimes share. An invalid name is refused before a
//! pull, with upstream's messages.

/// Invalid image name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageNameError {
    #[error("couldn't parse image name {name:?}: invalid reference format")]
    Format { name: String },
    #[error(
        "couldn't parse image name {name:?}: invalid reference format: repository name ({path}) must be lowercase"
    )]
    Uppercase { name: String, path: String },
    #[error(
        "couldn't parse image name {name:?}: invalid repository name ({name}), cannot specify 64-byte hexadecimal strings"
    )]
    Identifier { name: String },
    #[error(
        "couldn't parse image name {name:?}: repository name must not be more than 255 characters"
    )]
    TooLong { name: String },
}

/// Parts of an image name; `registry` and `path` have the defaults of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference<'a> {
    pub registry: &'a str,
    pub path: &'a str,
    pub tag: Option<&'a str>,
    pub digest: Option<&'a str>,
}

const DEFAULT_REGISTRY: &str = "docker.io";
/// The older name of the default registry, which is replaced.
const LEGACY_REGISTRY: &str = "index.docker.io";

/// Namespace of the default registry's own images.
const LIBRARY: &str = "library/";
/// Maximum length of a path, without the registry.
const MAX_PATH: usize = 255;

impl Reference<'_> {
    fn repository(&self) -> String {
        format!("{}/{}{}", self.registry, library(self.registry, self.path), self.path)
    }
}

/// What the default registry adds to a path without a namespace.
fn library(registry: &str, path: &str) -> &'static str {
    if registry == DEFAULT_REGISTRY && !path.contains('/') { LIBRARY } else { "" }
}

/// Parses an image name.
pub fn parse(name: &str) -> Result<Reference<'_>, ImageNameError> {
    let bad = || ImageNameError::Format { name: name.into() };
    if name.len() == 64 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(ImageNameError::Identifier { name: name.into() });
    }
    let (registry, rest) = match name.split_once('/') {
        Some((LEGACY_REGISTRY, rest)) => (DEFAULT_REGISTRY, rest),
        Some((first, rest)) if is_registry(first) => (first, rest),
        Some(_) | None => (DEFAULT_REGISTRY, name),
    };
    let path_end = rest.find([':', '@']).unwrap_or(rest.len());
    let (path, suffix) = rest.split_at_checked(path_end).ok_or_else(bad)?;
    if path.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(ImageNameError::Uppercase { name: name.into(), path: path.into() });
    }
    let (tag, digest) = match suffix.split_once('@') {
        Some((tag, digest)) => (tag, Some(digest)),
        None => (suffix, None),
    };
    let tag = match tag.strip_prefix(':') {
        Some(tag) => Some(tag),
        None if tag.is_empty() => None,
        None => return Err(bad()),
    };
    let sound = valid_registry(registry)
        && path.split('/').all(valid_component)
        && tag.is_none_or(valid_tag)
        && digest.is_none_or(valid_digest);
    if !sound {
        return Err(bad());
    }
    if library(registry, path).len() + path.len() > MAX_PATH {
        return Err(ImageNameError::TooLong { name: name.into() });
    }
    Ok(Reference { registry, path, tag, digest })
}

/// The name with `:latest` if it has neither tag nor digest. Nothing else is added.
pub fn with_default_tag(name: &str) -> Result<String, ImageNameError> {
    let reference = parse(name)?;
    Ok(match (reference.tag, reference.digest) {
        (None, None) => format!("{name}:latest"),
        (Some(_), _) | (_, Some(_)) => name.into(),
    })
}

/// The name as runtimes store it: with registry, with a tag or a digest, and with only the digest
/// if both are given.
pub fn full_name(name: &str) -> Result<String, ImageNameError> {
    let parts = parse(name)?;
    let end = match (parts.digest, parts.tag) {
        (Some(digest), _) => format!("@{digest}"),
        (None, Some(tag)) => format!(":{tag}"),
        (None, None) => ":latest".into(),
    };
    Ok(format!("{}{end}", parts.repository()))
}

/// The name with registry but without tag and digest: the key of credentials.
pub fn repository(name: &str) -> Result<String, ImageNameError> {
    parse(name).map(|parts| parts.repository())
}

/// Whether the part before the first slash is a host and not part of the path.
fn is_registry(first: &str) -> bool {
    first.contains(['.', ':'])
        || first == "localhost"
        || first.bytes().any(|b| b.is_ascii_uppercase())
}

fn valid_registry(registry: &str) -> bool {
    let (host, port) = match registry.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, "")) => return address.parse::<std::net::Ipv6Addr>().is_ok(),
            Some((address, port)) => {
                if address.parse::<std::net::Ipv6Addr>().is_err() {
                    return false;
                }
                ("", port.strip_prefix(':'))
            }
            None => return false,
        },
        None => match registry.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (registry, None),
        },
    };
    let label = |label: &str| {
        let ends = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        ends(bytes.first())
            && ends(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    };
    let port_ok = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    (host.is_empty() || host.split('.').all(label)) && port.is_none_or(port_ok)
}

/// Lowercase letters and digits, joined by one `.`, one or two `_`, or any number of `-`.
fn valid_component(component: &str) -> bool {
    let mut rest = component;
    loop {
        let word = rest.len()
            - rest.trim_start_matches(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).len();
        if word == 0 {
            return false;
        }
        rest = rest.get(word..).unwrap_or_default();
        if rest.is_empty() {
            return true;
        }
        rest = match rest.as_bytes() {
            [b'-', ..] => rest.trim_start_matches('-'),
            [b'_', b'_', ..] => rest.get(2..).unwrap_or_default(),
            [b'.' | b'_', ..] => rest.get(1..).unwrap_or_default(),
            _ => return false,
        };
    }
}

fn valid_tag(tag: &str) -> bool {
    let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    tag.len() <= 128
        && tag.as_bytes().first().is_some_and(word)
        && tag.as_bytes().iter().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

fn valid_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let starts = algorithm.as_bytes().first().is_some_and(u8::is_ascii_alphabetic);
    starts
        && algorithm
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'.' | b'_' | b'-'))
        && hex.len() >= 32
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_tag_is_latest_and_nothing_else_is_added() {
        let digest = format!("a/b@sha256:{}", "0".repeat(64));
        for (name, want) in [
            ("busybox", "busybox:latest"),
            ("busybox:1", "busybox:1"),
            ("localhost/podwright/test", "localhost/podwright/test:latest"),
            ("registry:5000/a/b", "registry:5000/a/b:latest"),
            ("registry:5000/a/b:c", "registry:5000/a/b:c"),
            ("[fd00::1]:5000/a", "[fd00::1]:5000/a:latest"),
            ("a__b/c---d.e", "a__b/c---d.e:latest"),
            (&digest, &digest),
        ] {
            assert_eq!(with_default_tag(name).as_deref(), Ok(want));
        }
    }

    #[test]
    fn full_name_has_registry_and_tag_or_digest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (name, want, repository_of) in [
            (
                "busybox".to_owned(),
                "docker.io/library/busybox:latest".to_owned(),
                "docker.io/library/busybox",
            ),
            ("user/app:v1".into(), "docker.io/user/app:v1".into(), "docker.io/user/app"),
            ("localhost:5000/app".into(), "localhost:5000/app:latest".into(), "localhost:5000/app"),
            (
                format!("app:v1@{digest}"),
                format!("docker.io/library/app@{digest}"),
                "docker.io/library/app",
            ),
        ] {
            assert_eq!(full_name(&name), Ok(want), "{name}");
            assert_eq!(repository(&name).as_deref(), Ok(repository_of), "{name}");
        }
        assert!(full_name("Not Valid").is_err());
    }

    #[test]
    fn invalid_names_are_refused_with_upstreams_messages() {
        let hex = "ab".repeat(32);
        let long = format!("a/{}", "b".repeat(254));
        for (name, want) in [
            ("", "invalid reference format"),
            ("a b", "invalid reference format"),
            ("a\u{7}", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("a:b:c", "invalid reference format"),
            ("a@sha256:12", "invalid reference format"),
            ("-a", "invalid reference format"),
            ("a:", "invalid reference format"),
            ("Busybox", "repository name (Busybox) must be lowercase"),
            ("UPPER/Case:1", "repository name (Case) must be lowercase"),
            (&hex, "cannot specify 64-byte hexadecimal strings"),
            (&long, "must not be more than 255 characters"),
        ] {
            let error = with_default_tag(name).unwrap_err().to_string();
            assert!(error.contains(want), "{name:?}: {error}");
        }
    }

    /// A full name is parsed again, so that its length must not depend on how it was written.
    #[test]
    fn length_is_that_of_the_path_of_the_full_name() {
        for (prefix, free) in
            [("", 247), ("docker.io/", 247), ("a/", 253), ("registry.example/", 255)]
        {
            let longest = format!("{prefix}{}", "b".repeat(free));
            let full = full_name(&longest).unwrap();
            assert_eq!(full_name(&full), Ok(full.clone()), "{longest}");
            let error = full_name(&format!("{longest}b")).unwrap_err();
            assert!(matches!(error, ImageNameError::TooLong { .. }), "{prefix:?}: {error}");
        }
    }

    #[test]
    fn legacy_name_of_the_default_registry_is_replaced() {
        for (name, want) in [
            ("index.docker.io/busybox", "docker.io/library/busybox:latest"),
            ("index.docker.io/user/app:v1", "docker.io/user/app:v1"),
            ("index.docker.io:443/app", "index.docker.io:443/app:latest"),
        ] {
            assert_eq!(full_name(name).as_deref(), Ok(want));
        }
        // The runtime gets the name as the pod spec has it.
        let asked = with_default_tag("index.docker.io/busybox");
        assert_eq!(asked.as_deref(), Ok("index.docker.io/busybox:latest"));
    }
}
