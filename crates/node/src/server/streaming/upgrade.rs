//! A client's upgrade, repeated at the runtime's streaming server.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::server::answer::{Answer, PLAIN, whole};

/// The runtime is on this machine; it answers at once or not at all.
const PATIENCE: Duration = Duration::from_secs(30);
/// How much of a refusal is passed on.
const REFUSAL: usize = 64 * 1024;

/// Headers that belong to one connection, or that the runtime has no business seeing.
const OURS: [&str; 8] = [
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
    #[error("the runtime's streaming URL cannot be used: it must be http://HOST:PORT/…")]
    Url,
    #[error("cannot reach the runtime's streaming server at {address}")]
    Dial { address: String, source: std::io::Error },
    #[error("the runtime's streaming server at {address} broke off")]
    Exchange { address: String, source: hyper::Error },
    #[error("the runtime's streaming server at {address} did not answer within {PATIENCE:?}")]
    Silent { address: String },
}

/// What became of it.
pub(super) enum Handover {
    /// The runtime speaks the protocol. Its side of the stream opens right after the answer.
    Open { answer: Answer, runtime: Upgraded },
    /// It does not; this is what it said.
    Refused(Answer),
}

/// Whether a client wants more than an answer.
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
    let patience = tokio::time::timeout(PATIENCE, exchange).await;
    patience.unwrap_or_else(|_| Err(StreamError::Silent { address }))
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
    let broke = |source| StreamError::Exchange { address: address.to_owned(), source };
    // People type into these.
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
    // It ends with the upgrade, or when the answer and the sender are dropped.
    tokio::spawn(connection.with_upgrades());
    let request = request(url, address, method, headers)?;
    let mut response = sender.send_request(request).await.map_err(broke)?;
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = Limited::new(response.into_body(), REFUSAL).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        // A success that is no upgrade would leave the client waiting for one.
        let status = if status.is_success() { StatusCode::BAD_GATEWAY } else { status };
        return Ok(Handover::Refused(whole(status, PLAIN, body)));
    }
    let runtime = hyper::upgrade::on(&mut response).await.map_err(broke)?;
    let mut answer = whole(status, PLAIN, Bytes::new());
    *answer.headers_mut() = response.headers().clone();
    Ok(Handover::Open { answer, runtime })
}

/// The client's request as the runtime gets it: what it needs to know of the query it was told over
/// the CRI.
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
        let ours = OURS.contains(&name.as_str()) || name.as_str().starts_with("content-");
        if !ours {
            request.headers_mut().append(name, value.clone());
        }
    }
    let host = HeaderValue::from_str(address).map_err(|_| StreamError::Url)?;
    request.headers_mut().insert(HOST, host);
    Ok(request)
}
