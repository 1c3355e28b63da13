//! Options of streaming requests.

use http::HeaderMap;
use http::header::{SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use k8s_openapi::api::core::v1;
use podwright_cri::Streams;

use crate::server::query::Query;

/// The type of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Process,
    Ports,
}

/// WebSocket subprotocols that the runtimes' streaming servers support.
const PROCESS: [&str; 4] =
    ["channel.k8s.io", "base64.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];
const PORTS: [&str; 2] = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io"];

/// A terminal has a single output stream, without stderr.
pub(super) fn streams(query: &Query) -> Result<Streams, &'static str> {
    let tty = query.is_one("tty");
    let streams = Streams {
        stdin: query.is_one("input"),
        stdout: query.is_one("output"),
        stderr: query.is_one("error") && !tty,
        tty,
    };
    let Streams { stdin, stdout, stderr, .. } = streams;
    if !(stdin || stdout || stderr) {
        return Err("you must specify at least 1 of stdin, stdout, stderr");
    }
    Ok(streams)
}

pub(super) fn has_terminal(pod: &v1::Pod, container: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let init = spec.init_containers.iter().flatten();
    let plain = init.chain(&spec.containers).map(|c| (&c.name, c.tty));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| (&c.name, c.tty));
    let mut all = plain.chain(ephemeral);
    all.any(|(name, tty)| name == container && tty == Some(true))
}

/// Over a WebSocket the ports are fixed in the request; over SPDY they come with each stream.
pub(super) fn ports(headers: &HeaderMap, query: &Query) -> Result<Vec<i32>, String> {
    if !is_web_socket(headers) {
        return Ok(Vec::new());
    }
    let texts: Vec<&str> = query.all("port").flat_map(|list| list.split(',')).collect();
    if texts.is_empty() {
        return Err("query parameter \"port\" is required".into());
    }
    let port = |text: &&str| match text.parse::<u16>() {
        Ok(0) => Err(format!("port {text:?} must be > 0")),
        Ok(port) => Ok(i32::from(port)),
        Err(error) => Err(format!("unable to parse {text:?} as a port: {error}")),
    };
    texts.iter().map(port).collect()
}

/// Rejects protocols that no runtime supports while the client can still fall back: kubectl tries
/// a newer WebSocket protocol first, and SPDY when that is rejected.
pub(super) fn protocol(headers: &HeaderMap, purpose: Purpose) -> Result<(), String> {
    if !is_web_socket(headers) {
        return Ok(());
    }
    let offered: Vec<&str> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    let spoken: &[&str] = match purpose {
        Purpose::Process => &PROCESS,
        Purpose::Ports => &PORTS,
    };
    if offered.is_empty() || offered.iter().any(|name| spoken.contains(name)) {
        return Ok(());
    }
    let (offered, spoken) = (offered.join(", "), spoken.join(", "));
    Err(format!("unable to upgrade: none of the protocols {offered} is supported; use {spoken}"))
}

fn is_web_socket(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.trim().eq_ignore_ascii_case("websocket"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn streams_are_selected_with_ones() {
        let none = Streams::default();
        for (query, want) in [
            ("", None),
            ("tty=1", None),
            ("input=true", None),
            ("error=1&tty=1", None),
            ("output=1", Some(Streams { stdout: true, ..none })),
            ("error=1", Some(Streams { stderr: true, ..none })),
            (
                "input=1&output=1&error=1&tty=1",
                Some(Streams { stdin: true, stdout: true, stderr: false, tty: true }),
            ),
        ] {
            assert_eq!(streams(&Query::parse(query)).ok(), want, "{query}");
        }
    }

    #[test]
    fn ports_are_required_over_websocket_only() {
        let (spdy, socket) =
            (headers(&[("upgrade", "SPDY/3.1")]), headers(&[("upgrade", "WebSocket")]));
        for (headers, query, want) in [
            (&spdy, "", Some(vec![])),
            (&spdy, "port=x", Some(vec![])),
            (&socket, "port=80&port=8080,443", Some(vec![80, 8080, 443])),
            (&socket, "", None),
            (&socket, "port=0", None),
            (&socket, "port=65536", None),
            (&socket, "port=", None),
        ] {
            assert_eq!(ports(headers, &Query::parse(query)).ok(), want, "{query}");
        }
    }

    #[test]
    fn unsupported_protocol_is_rejected_before_the_upgrade() {
        for (upgrade, offered, purpose, want) in [
            ("SPDY/3.1", "", Purpose::Process, true),
            ("websocket", "v4.channel.k8s.io", Purpose::Process, true),
            ("websocket", "v5.channel.k8s.io", Purpose::Process, false),
            ("websocket", "v5.channel.k8s.io, v4.channel.k8s.io", Purpose::Process, true),
            ("websocket", "", Purpose::Process, true),
            ("websocket", "SPDY/3.1+portforward.k8s.io", Purpose::Ports, false),
            ("websocket", "v4.channel.k8s.io", Purpose::Ports, true),
            ("WebSocket", "nonsense", Purpose::Ports, false),
        ] {
            let headers = headers(&[("upgrade", upgrade), ("sec-websocket-protocol", offered)]);
            assert_eq!(protocol(&headers, purpose).is_ok(), want, "{upgrade} {offered}");
        }
    }
}
