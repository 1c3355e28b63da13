//! What an HTTP answer means to a probe.
//!
//! A redirect within the same host is followed: servers like to add a slash. One to another host
//! is not, or a container could make the node ask anyone anything; the answer then counts as it
//! is, a success with a warning.

use super::Outcome;
use super::check::kept;

/// Where a request went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub https: bool,
    /// A name or an address, the latter without brackets.
    pub host: String,
    pub port: u16,
    /// With its query.
    pub path: String,
}

/// Somewhere else to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    pub to: Place,
    /// It names no host, so a Host header of the asker's own still fits.
    pub same_authority: bool,
}

const MOST_REDIRECTS: usize = 10;

/// Where an answer sends us on to: an answer from `asked`, reached by `followed` redirects from
/// `first`. `None`: nowhere, or to a host we do not follow to. `Err`: the redirects lead nowhere.
pub fn redirect(
    first: &Place,
    asked: &Place,
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
    let to = reference.from(asked);
    if !to.host.eq_ignore_ascii_case(&first.host) {
        return Ok(None);
    }
    if followed + 1 >= MOST_REDIRECTS {
        return Err("stopped after 10 redirects".into());
    }
    Ok(Some(Redirect { to, same_authority }))
}

/// What the final answer to a probe means.
pub fn outcome(status: u16, body: &[u8]) -> Outcome {
    match status {
        200..=299 => Outcome::Success,
        300..=399 => {
            let body = kept(body);
            Outcome::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        // The body is the container's business, and may be secret.
        _ => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// A `Location`, whole or in part.
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

    fn from(self, base: &Place) -> Place {
        let https = self.https.unwrap_or(base.https);
        let (host, port) = match self.authority {
            Some((host, port)) => (host, port.unwrap_or(if https { 443 } else { 80 })),
            None => return Place { path: resolve(&base.path, self.path), ..base.clone() },
        };
        Place { https, host, port, path: resolve("/", self.path) }
    }
}

fn parse_authority(authority: &str) -> Option<(String, Option<u16>)> {
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let (host, port) = match place.strip_prefix('[') {
        Some(six) => {
            let (host, rest) = six.split_once(']')?;
            (host, rest.strip_prefix(':'))
        }
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let port = match port.filter(|port| !port.is_empty()) {
        Some(port) => Some(port.parse().ok()?),
        None => None,
    };
    Some((host.to_owned(), port))
}

/// A path, perhaps relative, seen from another one.
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
    let folder = base_path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let joined = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{folder}/{path}"),
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
    let mut ends_in_folder = false;
    for segment in path.split('/').skip(1) {
        ends_in_folder = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let tail = if ends_in_folder && !segments.is_empty() { "/" } else { "" };
    format!("/{}{tail}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, port: u16, path: &str) -> Place {
        Place { https: false, host: host.into(), port, path: path.into() }
    }

    fn redirected(status: u16, location: Option<&str>) -> Result<Option<Redirect>, String> {
        let asked = place("10.0.0.7", 8080, "/a/b?c");
        redirect(&asked, &asked, 0, status, location)
    }

    #[test]
    fn a_status_from_200_to_399_is_a_success() {
        let failed = |code| Outcome::Failure(format!("HTTP probe failed with statuscode: {code}"));
        let warned = Outcome::Warning("Probe terminated redirects, Response body: body".into());
        for (status, want) in [
            (199, failed(199)),
            (200, Outcome::Success),
            (204, Outcome::Success),
            (299, Outcome::Success),
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
    fn row_26_a_redirect_is_followed_on_the_same_host_only() {
        let here = |port, path: &str| Some((place("10.0.0.7", port, path), false));
        let there = |path: &str| Some((place("10.0.0.7", 8080, path), true));
        let secure = Place { https: true, ..place("10.0.0.7", 443, "/x") };
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
    fn a_redirect_that_leads_nowhere_is_an_error() {
        for location in ["ftp://10.0.0.7/", "http://10.0.0.7:99999/", "http://[::1/"] {
            assert!(redirected(301, Some(location)).is_err(), "{location}");
        }
        let asked = place("h", 80, "/loop");
        let around = |followed| redirect(&asked, &asked, followed, 302, Some("/loop"));
        assert!(around(8).is_ok());
        assert_eq!(around(9), Err("stopped after 10 redirects".to_owned()));
    }
}
