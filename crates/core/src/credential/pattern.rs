//! Registry location patterns with wildcards.

/// Location of a configuration key: without the scheme and without the API version that Docker
/// appends.
pub(super) fn key(location: &str) -> String {
    let bare = location.strip_prefix("https://").or_else(|| location.strip_prefix("http://"));
    let (host, path) = split(bare.unwrap_or(location));
    let path = match path.get(..4) {
        Some("/v1/" | "/v2/") => path.get(3..).unwrap_or_default(),
        Some(_) | None => path,
    };
    match path {
        "" | "/" => host.to_owned(),
        path => format!("{host}{path}"),
    }
}

/// Whether an image matches a pattern: same port, same number of host labels, each label matches,
/// and the path has the pattern's path as a prefix.
pub fn matches(pattern: &str, image: &str) -> bool {
    let ((pattern, prefix), (host, path)) = (split(pattern), split(image));
    let ((pattern, pattern_port), (host, port)) = (host_port(pattern), host_port(host));
    if pattern_port != port || !path.starts_with(prefix) {
        return false;
    }
    let (mut patterns, mut parts) = (pattern.split('.'), host.split('.'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return true,
            (Some(pattern), Some(part)) if glob(pattern, part) => {}
            (Some(_) | None, Some(_)) | (Some(_), None) => return false,
        }
    }
}

/// Splits into host with port and path with its leading slash.
fn split(location: &str) -> (&str, &str) {
    location.split_at(location.find('/').unwrap_or(location.len()))
}

fn host_port(host: &str) -> (&str, &str) {
    // An IPv6 address in brackets is followed by a port; otherwise brackets are a character class.
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    if let Some((address, port)) = bracketed {
        return (address, port);
    }
    match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => (name, port),
        Some(_) | None => (host, ""),
    }
}

/// Shell wildcards within one host label: `*`, `?`, `[a-z]`, `\`.
fn glob(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    // Position of the last star and what it matched: enough for backtracking without exponential
    // time.
    let (mut p, mut t, mut star) = (0, 0, None::<(usize, usize)>);
    while t < text.len() {
        let rest = pattern.get(p..).unwrap_or_default();
        let one = text.get(t).copied().and_then(|c| single(rest, c));
        if rest.first() == Some(&'*') {
            star = Some((p, t));
            p += 1;
        } else if let Some(length) = one {
            p += length;
            t += 1;
        } else if let Some((at, taken)) = star {
            (p, t) = (at + 1, taken + 1);
            star = Some((at, taken + 1));
        } else {
            return false;
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|c| *c == '*')
}

/// Length of the pattern element that matches this character; `None` if it does not match.
fn single(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['\\', escaped, ..] => (*escaped == c).then_some(2),
        ['[', class @ ..] => {
            let end = class.iter().position(|c| *c == ']').filter(|end| *end > 0)?;
            let (inverted, class) = match class.get(..end)? {
                ['^', class @ ..] => (true, class),
                class => (false, class),
            };
            (in_class(class, c) != inverted).then_some(end + 2)
        }
        [literal, ..] => (*literal == c).then_some(1),
        [] => None,
    }
}

fn in_class(mut class: &[char], c: char) -> bool {
    loop {
        class = match class {
            [low, '-', high, rest @ ..] => {
                if (*low..=*high).contains(&c) {
                    return true;
                }
                rest
            }
            [one, rest @ ..] => {
                if *one == c {
                    return true;
                }
                rest
            }
            [] => return false,
        };
    }
}
