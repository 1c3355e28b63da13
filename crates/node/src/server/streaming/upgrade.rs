//! Upgrade of a client's request at the runtime's streaming server.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::server::response::{HttpResponse, PLAIN, full_body};

/// Timeout of the streaming server, which runs on this machine.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of an error response that is passed on.
const MAX_ERROR_BODY: usize = 64 * 1024;

/// Headers that belong to one connection, or that must not reach the runtime.
const DROPPED_HEADERS: [&str; 8] = [
    "authorization",
    "cookie",
    "host",
    "proxy-authorization",
    "proxy-connection",
    "keep-alive",
    "te",
    "transfer-encoding",
];

#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error("invalid streaming URL from the runtime: it must be http://HOST:PORT/…")]
    Url,
    #[error("cannot reach the runtime's streaming server at {address}")]
    Dial { address: String, source: std::io::Error },
    #[error("the runtime's streaming server at {address} closed the connection")]
    Exchange { address: String, source: hyper::Error },
    #[error("the runtime's streaming server at {address} did not respond within {TIMEOUT:?}")]
    TimedOut { address: String },
}

/// Result of the upgrade.
pub(super) enum Handover {
    /// The runtime switched protocols. Its side of the stream opens right after the response.
    Open { answer: HttpResponse, runtime: Upgraded },
    /// It did not; this is its response.
    Refused(HttpResponse),
}

/// Whether a request asks for an upgrade.
pub(super) fn is_asked_for(headers: &HeaderMap) -> bool {
    let named = |name: &HeaderName, wanted: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        let mut words = values.flat_map(|value| value.split(',')).map(str::trim);
        words.any(|word| word.eq_ignore_ascii_case(wanted))
    };
    named(&CONNECTION, "upgrade") && headers.contains_key(UPGRADE)
}

pub(super) async fn repeat(
    url: &str,
    method: Method,
    headers: &HeaderMap,
) -> Result<Handover, StreamError> {
    let url: Uri = url.parse().map_err(|_| StreamError::Url)?;
    let plain = url.scheme_str() == Some("http");
    let authority = url.authority().filter(|_| plain).ok_or(StreamError::Url)?.clone();
    let address = authority.to_string();
    let exchange = exchange(&url, &address, method, headers);
    let result = tokio::time::timeout(TIMEOUT, exchange).await;
    result.unwrap_or_else(|_| Err(StreamError::TimedOut { address }))
}

async fn exchange(
    url: &Uri,
    address: &str,
    method: Method,
    headers: &HeaderMap,
) -> Result<Handover, StreamError> {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = url.port_u16().unwrap_or(80);
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|source| StreamError::Dial { address: address.to_owned(), source })?;
    let failed = |source| StreamError::Exchange { address: address.to_owned(), source };
    // Streams may be interactive.
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // Ends with the upgrade, or when the response and the sender are dropped.
    tokio::spawn(connection.with_upgrades());
    let request = request(url, address, method, headers)?;
    let mut response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = Limited::new(response.into_body(), MAX_ERROR_BODY).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        // A success that is not an upgrade would leave the client waiting for one.
        let status = if status.is_success() { StatusCode::BAD_GATEWAY } else { status };
        return Ok(Handover::Refused(full_body(status, PLAIN, body)));
    }
    let runtime = hyper::upgrade::on(&mut response).await.map_err(failed)?;
    let mut answer = full_body(status, PLAIN, Bytes::new());
    *answer.headers_mut() = response.headers().clone();
    Ok(Handover::Open { answer, runtime })
}

#[cfg(feature = "fuzzing")]
pub(super) fn is_passed_on(headers: &HeaderMap) -> bool {
    let url = Uri::from_static("http://127.0.0.1:1/exec/token");
    is_asked_for(headers) && request(&url, "127.0.0.1:1", Method::GET, headers).is_ok()
}

/// The client's request as sent to the runtime, without its query: the CRI call already passed the
/// options.
fn request(
    url: &Uri,
    address: &str,
    method: Method,
    headers: &HeaderMap,
) -> Result<Request<Empty<Bytes>>, StreamError> {
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .body(Empty::new())
        .map_err(|_| StreamError::Url)?;
    for (name, value) in headers {
        let ours =
            DROPPED_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("content-");
        if !ours {
            request.headers_mut().append(name, value.clone());
        }
    }
    let host = HeaderValue::from_str(address).map_err(|_| StreamError::Url)?;
    request.headers_mut().insert(HOST, host);
    Ok(request)
}
