//! Evaluation of the HTTP response to a probe.
//!
//! A redirect to the same host is followed, as servers commonly add a slash. A redirect to another
//! host is not, or a container could make the node send requests anywhere; the response then
//! counts as a success with a warning.

use super::ProbeOutcome;
use super::check::{EXCERPT, kept};
use crate::explain::excerpt;

/// Target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTarget {
    pub https: bool,
    /// A host name or an address, the latter without brackets.
    pub host: String,
    pub port: u16,
    /// Path and query.
    pub path: String,
}

/// The next request after a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    pub to: HttpTarget,
    /// The location names no host, so a custom Host header still applies.
    pub same_authority: bool,
}

const MAX_REDIRECTS: usize = 10;

/// The redirect that a response demands. The response came from `requested`, reached by `followed`
/// redirects from `first`. `None`: no redirect, or one to another host. `Err`: an invalid location
/// or too many redirects.
pub fn redirect(
    first: &HttpTarget,
    requested: &HttpTarget,
    followed: usize,
    status: u16,
    location: Option<&str>,
) -> Result<Option<Redirect>, String> {
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = location.filter(|location| !location.is_empty()) else { return Ok(None) };
    let bad = || format!("failed to parse Location header {location:?}");
    let reference = Reference::parse(location).ok_or_else(bad)?;
    let same_authority = reference.authority.is_none();
    let to = reference.from(requested);
    if !to.host.eq_ignore_ascii_case(&first.host) {
        return Ok(None);
    }
    if followed + 1 >= MAX_REDIRECTS {
        return Err("stopped after 10 redirects".into());
    }
    Ok(Some(Redirect { to, same_authority }))
}

/// Outcome of the final response to a probe.
pub fn outcome(status: u16, body: &[u8]) -> ProbeOutcome {
    match status {
        200..=299 => ProbeOutcome::Success,
        300..=399 => {
            let body = kept(body);
            ProbeOutcome::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        // The body may contain secrets, so it is not reported.
        _ => ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// What a user sees of a response: `status 503: warming up`.
pub fn answer(status: u16, body: &[u8]) -> String {
    match excerpt(&kept(body), EXCERPT).as_str() {
        "" => format!("status {status}"),
        body => format!("status {status}: {body}"),
    }
}

/// A `Location` header, absolute or relative.
struct Reference<'a> {
    https: Option<bool>,
    authority: Option<(String, Option<u16>)>,
    path: &'a str,
}

impl<'a> Reference<'a> {
    fn parse(location: &'a str) -> Option<Self> {
        let location = location.split_once('#').map_or(location, |(before, _)| before);
        let (https, rest) = match location.split_once("://") {
            Some((scheme, rest)) if !scheme.contains(['/', '?']) => {
                let https = match scheme.to_ascii_lowercase().as_str() {
                    "http" => false,
                    "https" => true,
                    _ => return None,
                };
                (Some(https), rest)
            }
            Some(_) | None => match location.strip_prefix("//") {
                Some(rest) => (None, rest),
                None => return Some(Self { https: None, authority: None, path: location }),
            },
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at_checked(end)?;
        Some(Self { https, authority: Some(parse_authority(authority)?), path })
    }

    fn from(self, base: &HttpTarget) -> HttpTarget {
        let https = self.https.unwrap_or(base.https);
        let (host, port) = match self.authority {
            Some((host, port)) => (host, port.unwrap_or(if https { 443 } else { 80 })),
            None => return HttpTarget { path: resolve(&base.path, self.path), ..base.clone() },
        };
        HttpTarget { https, host, port, path: resolve("/", self.path) }
    }
}

fn parse_authority(authority: &str) -> Option<(String, Option<u16>)> {
    let target = authority.rsplit_once('@').map_or(authority, |(_, target)| target);
    let (host, port) = match target.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']')?;
            (host, rest.strip_prefix(':'))
        }
        None => target.split_once(':').map_or((target, None), |(host, port)| (host, Some(port))),
    };
    let port = match port.filter(|port| !port.is_empty()) {
        Some(port) => Some(port.parse().ok()?),
        None => None,
    };
    Some((host.to_owned(), port))
}

/// Resolves a path, perhaps relative, against a base.
fn resolve(base: &str, path: &str) -> String {
    let base_path = base.split_once('?').map_or(base, |(path, _)| path);
    if path.is_empty() {
        return base.to_owned();
    }
    if path.starts_with('?') {
        return format!("{base_path}{path}");
    }
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let directory = base_path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let joined = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{directory}/{path}"),
    };
    let mut resolved = without_dots(&joined);
    if let Some(query) = query {
        resolved.push('?');
        resolved.push_str(query);
    }
    resolved
}

fn without_dots(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_directory = false;
    for segment in path.split('/').skip(1) {
        ends_in_directory = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let tail = if ends_in_directory && !segments.is_empty() { "/" } else { "" };
    format!("/{}{tail}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, port: u16, path: &str) -> HttpTarget {
        HttpTarget { https: false, host: host.into(), port, path: path.into() }
    }

    fn redirected(status: u16, location: Option<&str>) -> Result<Option<Redirect>, String> {
        let requested = target("10.0.0.7", 8080, "/a/b?c");
        redirect(&requested, &requested, 0, status, location)
    }

    #[test]
    fn status_from_200_to_399_is_a_success() {
        let failed =
            |code| ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {code}"));
        let warned =
            ProbeOutcome::Warning("Probe terminated redirects, Response body: body".into());
        for (status, want) in [
            (199, failed(199)),
            (200, ProbeOutcome::Success),
            (204, ProbeOutcome::Success),
            (299, ProbeOutcome::Success),
            (300, warned.clone()),
            (302, warned.clone()),
            (399, warned),
            (400, failed(400)),
            (503, failed(503)),
        ] {
            assert_eq!(outcome(status, b"body"), want, "{status}");
        }
    }

    #[test]
    fn redirect_is_followed_on_the_same_host_only() {
        let here = |port, path: &str| Some((target("10.0.0.7", port, path), false));
        let there = |path: &str| Some((target("10.0.0.7", 8080, path), true));
        let secure = HttpTarget { https: true, ..target("10.0.0.7", 443, "/x") };
        for (location, want) in [
            ("/x", there("/x")),
            ("x", there("/a/x")),
            ("?d", there("/a/b?d")),
            ("../x/./y?z=/#top", there("/x/y?z=/")),
            ("../../../..", there("/")),
            ("http://10.0.0.7:9090/x", here(9090, "/x")),
            ("HTTP://10.0.0.7", here(80, "/")),
            ("//10.0.0.7:81?q", here(81, "/?q")),
            ("https://user@10.0.0.7/x", Some((secure, false))),
            ("http://example.com/", None),
            ("//10.0.0.8/", None),
            ("http://[::1]:80/", None),
            ("", None),
        ] {
            let want = want.map(|(to, same_authority)| Redirect { to, same_authority });
            assert_eq!(redirected(302, Some(location)), Ok(want), "{location}");
        }
        assert_eq!(redirected(302, None), Ok(None));
        assert_eq!(redirected(304, Some("/x")), Ok(None), "not every 3xx is a redirect");
    }

    #[test]
    fn invalid_or_endless_redirect_is_an_error() {
        for location in ["ftp://10.0.0.7/", "http://10.0.0.7:99999/", "http://[::1/"] {
            assert!(redirected(301, Some(location)).is_err(), "{location}");
        }
        let requested = target("h", 80, "/loop");
        let around = |followed| redirect(&requested, &requested, followed, 302, Some("/loop"));
        assert!(around(8).is_ok());
        assert_eq!(around(9), Err("stopped after 10 redirects".to_owned()));
    }
}
