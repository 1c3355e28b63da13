//! Logs, exec, attach, port-forward and the proxy of nodes: translates API requests to kubelet
//! requests.
//!
//! Only the node has these streams. A request is rewritten to the one that the kubelet server
//! serves; an upgraded connection is passed through unchanged.

use std::sync::Arc;

pub use axum::body::Body;
use axum::response::Response;
use futures::future::BoxFuture;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use podwright_core::stats::usage::UsageReport;
use serde_json::Value;

use crate::object::Object;
use crate::options::{Freshness, Query};
use crate::registry::NODES;
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;

/// Maximum length of an error message from the node.
const MAX_ERROR_BYTES: usize = 16 << 10;

/// Connects to the node.
pub trait NodeConnector: Send + Sync {
    /// Name of the connected node; `None` while it starts.
    fn node(&self) -> Option<Arc<str>>;

    /// The current usage of the connected node and its pods; `None` while it starts.
    fn usage(&self) -> BoxFuture<'static, Option<UsageReport>>;

    /// `request` is one that the kubelet server serves, such as
    /// `/containerLogs/{namespace}/{pod}/{container}`; an upgradable connection is attached to it
    /// as `hyper::upgrade::OnUpgrade`.
    fn connect(&self, node: &str, request: Request<Body>) -> BoxFuture<'static, Response<Body>>;
}

/// Whether the subresource is a stream.
pub(crate) fn is_stream(info: &RequestInfo) -> bool {
    let streams = ["attach", "exec", "log", "portforward", "proxy"];
    info.subresource.is_some_and(|sub| streams.contains(&sub.name))
}

/// Whether the stream runs a command in a container or talks to its processes.
pub(crate) fn runs_in_container(info: &RequestInfo, path: &str) -> bool {
    if info.resource == &NODES {
        return is_stream(info) && !is_page(path);
    }
    is_stream(info) && info.subresource.is_some_and(|sub| sub.name != "log")
}

/// Whether a path of `nodes/proxy` is one of a page of the node, and not of a stream.
fn is_page(path: &str) -> bool {
    const PAGES: [&str; 9] = [
        "configz",
        "containerLogs",
        "healthz",
        "livez",
        "logs",
        "metrics",
        "pods",
        "runningpods",
        "stats",
    ];
    let rest = path.split_once("/proxy/").map_or("", |(_, rest)| rest);
    let first = rest.split(['/', '?']).next().unwrap_or_default();
    PAGES.contains(&first)
}

impl ApiServer {
    pub(crate) async fn connect(
        &self,
        info: &RequestInfo,
        query: &Query,
        mut request: Request<Body>,
    ) -> Result<Response, ApiError> {
        if info.resource == &NODES {
            return self.proxy_to_node(info, request).await;
        }
        let document = self.get(info, Freshness::Newest)?;
        let pod = document.object(info.resource)?;
        let what = info.subresource.map_or("", |sub| sub.name);
        let stream = StreamRequest { pod: &pod, what, query };
        let node = pod.text("/spec/nodeName");
        let target = stream.target()?;
        if node.is_empty() {
            return match what {
                // An unscheduled pod has no log yet.
                "log" => Ok(Response::new(Body::empty())),
                _ => Err(ApiError::bad_request(format!(
                    "pod {} does not have a host assigned",
                    info.name
                ))),
            };
        }
        let connector = self.connector()?;
        *request.uri_mut() = target;
        let response = connector.connect(node, request).await;
        if response.status().is_client_error() || response.status().is_server_error() {
            return Err(node_error(response).await);
        }
        Ok(response)
    }

    pub(crate) fn connector(&self) -> Result<&Arc<dyn NodeConnector>, ApiError> {
        let connector = self.settings().node_connector.as_ref();
        connector.ok_or_else(|| ApiError::unavailable("no node is connected to this server"))
    }

    /// Passes a request to the kubelet server of a node, and its response back as it is. Who may do
    /// this may do everything that the kubelet server can.
    async fn proxy_to_node(
        &self,
        info: &RequestInfo,
        mut request: Request<Body>,
    ) -> Result<Response, ApiError> {
        let Some(name) = proxied_node(&info.name) else {
            return Err(ApiError::bad_request(format!("invalid proxy address {:?}", info.name)));
        };
        let node = RequestInfo { name: name.to_owned(), ..info.clone() };
        self.get(&node, Freshness::Newest)?;
        let connector = self.connector()?;
        match connector.node() {
            Some(connected) if *connected == *name => {}
            Some(_) => {
                let why = format!("node \"{name}\" is not connected to this server");
                return Err(ApiError::unavailable(why));
            }
            None => {
                return Err(ApiError::unavailable("the node is starting; retry in a few seconds"));
            }
        }
        let target = proxied_uri(request.uri())
            .ok_or_else(|| ApiError::bad_request("the request cannot be passed on"))?;
        *request.uri_mut() = target;
        // The credentials are those for this server.
        request.headers_mut().remove(header::AUTHORIZATION);
        Ok(connector.connect(name, request).await)
    }
}

/// The node's name in `[SCHEME:]NAME[:PORT]`. Scheme and port have no effect: the kubelet server is
/// called in this process.
fn proxied_node(address: &str) -> Option<&str> {
    let (scheme, name, port) = match address.split(':').collect::<Vec<_>>().as_slice() {
        [name] => ("", *name, ""),
        [name, port] => ("", *name, *port),
        [scheme, name, port] => (*scheme, *name, *port),
        _ => return None,
    };
    let known_port = port.is_empty() || port.parse::<u16>().is_ok_and(|port| port > 0);
    (matches!(scheme, "" | "http" | "https") && known_port && !name.is_empty()).then_some(name)
}

/// What follows `/api/v1/nodes/NAME/proxy`, encoded as the client encoded it.
fn proxied_uri(uri: &Uri) -> Option<Uri> {
    const SEGMENTS: usize = 5;
    let mut rest = uri.path();
    for _ in 0..SEGMENTS {
        rest = rest.trim_start_matches('/');
        rest = rest.get(rest.find('/').unwrap_or(rest.len())..)?;
    }
    let path = if rest.is_empty() { "/" } else { rest };
    match uri.query() {
        Some(query) => format!("{path}?{query}").parse().ok(),
        None => path.parse().ok(),
    }
}

/// Converts the node's error, which is plain text, to a Status.
async fn node_error(response: Response<Body>) -> ApiError {
    let code = response.status();
    let body = Limited::new(response.into_body(), MAX_ERROR_BYTES).collect().await;
    let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).trim().to_owned());
    let text = text.unwrap_or_else(|_| "the node's error message is too long".to_owned());
    let reason = match code {
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::INTERNAL_SERVER_ERROR => "InternalError",
        _ => "",
    };
    ApiError { code: code.as_u16(), reason, message: text, details: None }
}

/// A request to a pod's containers.
struct StreamRequest<'a> {
    pod: &'a Object,
    what: &'static str,
    query: &'a Query,
}

impl StreamRequest<'_> {
    /// The URI on the kubelet server.
    fn target(&self) -> Result<Uri, ApiError> {
        let (namespace, name) = (self.pod.namespace(), self.pod.name());
        let (page, renamed): (&str, &[(&str, &str)]) = match self.what {
            "log" => ("containerLogs", &LOG_OPTIONS),
            "exec" => ("exec", &STREAM_OPTIONS),
            "attach" => ("attach", &STREAM_OPTIONS),
            _ => ("portForward", &[("ports", "port")]),
        };
        let mut path = format!("/{page}/{namespace}/{name}");
        if page != "portForward" {
            path.push('/');
            path.push_str(&self.container()?);
        }
        let mut separator = '?';
        for (ours, theirs) in renamed {
            for value in self.query.all(ours) {
                path.push(separator);
                path.push_str(&format!("{theirs}={}", encoded(kubelet_value(ours, value))));
                separator = '&';
            }
        }
        path.parse().map_err(|_| ApiError::bad_request("the request cannot be passed on"))
    }

    /// The requested container; if none is named, the pod must have exactly one.
    fn container(&self) -> Result<String, ApiError> {
        let name = self.pod.name();
        let all = |list: &str| -> Vec<&str> {
            let list = self.pod.value().pointer(&format!("/spec/{list}")).and_then(Value::as_array);
            let names = list.into_iter().flatten().filter_map(|c| c.get("name")?.as_str());
            names.collect()
        };
        let (regular, init, ephemeral) =
            (all("containers"), all("initContainers"), all("ephemeralContainers"));
        match (self.query.get("container").unwrap_or_default(), regular.as_slice()) {
            ("", [only]) if init.is_empty() && ephemeral.is_empty() => Ok((*only).to_owned()),
            ("", _) => {
                let mut message = format!(
                    "a container name must be specified for pod {name}, choose one of: [{}]",
                    regular.join(" ")
                );
                if !init.is_empty() {
                    message
                        .push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
                }
                if !ephemeral.is_empty() {
                    let names = ephemeral.join(" ");
                    message.push_str(&format!(" or one of the ephemeral containers: [{names}]"));
                }
                Err(ApiError::bad_request(message))
            }
            (wanted, _) => {
                if [&regular, &init, &ephemeral].iter().any(|list| list.contains(&wanted)) {
                    return Ok(wanted.to_owned());
                }
                let why = format!("container {wanted} is not valid for pod {name}");
                Err(ApiError::bad_request(why))
            }
        }
    }
}

/// Log options, which have the same name on both sides.
const LOG_OPTIONS: [(&str, &str); 8] = [
    ("follow", "follow"),
    ("previous", "previous"),
    ("timestamps", "timestamps"),
    ("sinceSeconds", "sinceSeconds"),
    ("sinceTime", "sinceTime"),
    ("tailLines", "tailLines"),
    ("limitBytes", "limitBytes"),
    ("stream", "stream"),
];

/// Stream options: the API's name and the kubelet's older name.
const STREAM_OPTIONS: [(&str, &str); 5] = [
    ("stdin", "input"),
    ("stdout", "output"),
    ("stderr", "error"),
    ("tty", "tty"),
    ("command", "command"),
];

/// The kubelet expects 1 where a client may send true.
fn kubelet_value<'v>(option: &str, value: &'v str) -> &'v str {
    match (option, value) {
        ("stdin" | "stdout" | "stderr" | "tty", "true" | "") => "1",
        ("stdin" | "stdout" | "stderr" | "tty", "false") => "0",
        _ => value,
    }
}

/// Percent-encodes everything that has a meaning in a query.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_pages_of_a_node_are_read_without_the_permission_to_create() {
        let of = |rest: &str| is_page(&format!("/api/v1/nodes/n/proxy{rest}"));
        for page in
            ["/metrics", "/metrics/cadvisor", "/pods", "/stats/summary", "/containerLogs/a/b/c"]
        {
            assert!(of(page), "{page}");
        }
        for other in ["", "/", "/exec/a/b/c", "/run/a/b/c", "//pods", "/pods%2f..%2fexec/a/b/c"] {
            assert!(!of(other), "{other}");
        }
        assert!(!is_page("/api/v1/nodes/proxy/proxy/exec/a/b/c"));
    }

    fn pod(extra: &Value) -> Object {
        let mut spec = json!({"containers": [{"name": "web"}]});
        for (key, value) in extra.as_object().into_iter().flatten() {
            crate::json_edit::put(&mut spec, &[key], Some(value.clone()));
        }
        let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
        Object::try_from(pod).unwrap_or_default()
    }

    fn target(pod: &Object, what: &'static str, query: &str) -> Result<String, String> {
        let uri = Uri::try_from(format!("/x?{query}")).unwrap_or_default();
        let query = Query::of(&uri).unwrap_or_default();
        let stream = StreamRequest { pod, what, query: &query };
        stream.target().map(|uri| uri.to_string()).map_err(|error| error.message)
    }

    #[test]
    fn requests_are_translated_to_kubelet_paths() {
        for (what, query, want) in [
            ("log", "", "/containerLogs/n/p/web"),
            (
                "log",
                "tailLines=3&follow=true&pretty=1",
                "/containerLogs/n/p/web?follow=true&tailLines=3",
            ),
            (
                "exec",
                "command=sh&command=-c&command=a%20%26%20b&stdin=true&tty=false&container=web",
                "/exec/n/p/web?input=1&tty=0&command=sh&command=-c&command=a%20%26%20b",
            ),
            ("attach", "stdout=true", "/attach/n/p/web?output=1"),
            ("portforward", "ports=80", "/portForward/n/p?port=80"),
        ] {
            assert_eq!(
                target(&pod(&json!({})), what, query).as_deref(),
                Ok(want),
                "{what} {query}"
            );
        }
    }

    #[test]
    fn proxied_path_is_passed_on_as_the_client_wrote_it() {
        for (given, want) in [
            ("/api/v1/nodes/n/proxy/metrics/cadvisor", "/metrics/cadvisor"),
            ("/api/v1/nodes/n/proxy", "/"),
            ("/api/v1/nodes/n/proxy/", "/"),
            ("/api/v1/nodes/n/proxy/runningpods/", "/runningpods/"),
            ("//api/v1//nodes/n/proxy/stats/summary?a=b&c=d", "/stats/summary?a=b&c=d"),
            ("/api/v1/nodes/n/proxy/..%2f..%2fetc", "/..%2f..%2fetc"),
            ("/api/v1/nodes/n/proxy//etc/passwd", "//etc/passwd"),
        ] {
            let uri = Uri::try_from(given).unwrap_or_default();
            let found = proxied_uri(&uri).map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), Some(want), "{given}");
        }
    }

    #[test]
    fn node_may_be_named_with_scheme_and_port() {
        for (address, want) in [
            ("n1", Some("n1")),
            ("n1:10250", Some("n1")),
            ("https:n1:10250", Some("n1")),
            ("https:n1:", Some("n1")),
            ("n1:kubelet", None),
            ("n1:0", None),
            ("n1:70000", None),
            ("ftp:n1:1", None),
            (":10250", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(proxied_node(address), want, "{address}");
        }
    }

    #[test]
    fn container_name_is_required_if_there_are_several() {
        let several = pod(&json!({"initContainers": [{"name": "first"}]}));
        assert_eq!(
            target(&several, "log", "").unwrap_err(),
            "a container name must be specified for pod p, choose one of: [web] or one of the init containers: [first]"
        );
        assert!(target(&several, "log", "container=first").is_ok());
        assert_eq!(
            target(&several, "log", "container=nope").unwrap_err(),
            "container nope is not valid for pod p"
        );
    }
}
