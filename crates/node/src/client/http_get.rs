//! One HTTP request on a separate connection, for hooks and probes.
//!
//! No proxy, no keep-alive, no compression, no certificate verification: only whether the container
//! responds matters. HTTP/2 is used where a TLS server has it, because some have nothing else. The
//! connection is closed when the response is read, and its socket is left to the kernel: waiting for
//! the peer (`SO_LINGER`) would make closing block on a container that no longer exists, and would
//! not free the port any sooner.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::{http1, http2};
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, LOCATION, USER_AGENT};
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::uri::{Authority, Scheme};
use hyper::{Request, Response, Uri, body::Incoming};
use hyper_util::rt::TokioIo;
use podwright_core::probe::check::{HttpCheck, OUTPUT_LIMIT};
use podwright_core::probe::http::{HttpTarget, redirect};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, InvalidMessage, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::connection_tasks::ConnectionTasks;

/// Maximum size of the response head.
const MAX_HEAD: usize = 128 * 1024;
/// The same for HTTP/2.
const MAX_HEADER_LIST: u32 = 128 * 1024;
/// The protocol's name in TLS.
const HTTP_2: &[u8] = b"h2";
/// Headers of an HTTP/1.1 connection, which HTTP/2 forbids.
const CONNECTION_HEADERS: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// A GET request.
#[derive(Clone, Debug)]
pub struct GetRequest<'a> {
    pub target: HttpTarget,
    pub headers: &'a [(String, String)],
    pub user_agent: &'static str,
    /// `None`: the caller bounds the time.
    pub deadline: Option<Instant>,
}

impl<'a> GetRequest<'a> {
    /// `address` is the pod's, for a check without a host.
    pub fn of(check: &'a HttpCheck, address: IpAddr, user_agent: &'static str) -> Self {
        let host = check.host.clone().unwrap_or_else(|| address.to_string());
        let target =
            HttpTarget { https: check.https, host, port: check.port, path: on_wire(&check.path) };
        Self { target, headers: &check.headers, user_agent, deadline: None }
    }
}

/// A response with a truncated body.
#[derive(Clone, Debug)]
pub struct GetResponse {
    pub status: u16,
    pub location: Option<String>,
    pub body: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum GetError {
    #[error("Get {url:?}: {problem}")]
    Failed { url: String, problem: String },
    /// The server does not speak TLS.
    #[error("Get {url:?}: http: server gave HTTP response to HTTPS client")]
    NoTls { url: String },
    /// The response was incomplete.
    #[error("{problem}")]
    Body { problem: String },
}

/// Sends the request and follows redirects on the same host.
pub async fn get(get_request: &GetRequest<'_>) -> Result<GetResponse, GetError> {
    let first = &get_request.target;
    let (mut target, mut own_host) = (first.clone(), true);
    for followed in 0.. {
        let (head, response, connection) = get_head(get_request, &target, own_host).await?;
        let next = redirect(first, &target, followed, head.status, head.location.as_deref());
        let failed = |problem| GetError::Failed { url: target.path.clone(), problem };
        match next.map_err(failed)? {
            None => {
                let body = get_body(get_request, response, connection).await?;
                return Ok(GetResponse { body, ..head });
            }
            // The body of a followed redirect is not read: it may be incomplete.
            Some(next) => {
                own_host &= next.same_authority;
                target = next.to;
            }
        }
    }
    // Unreachable: the number of redirects is limited.
    Err(GetError::Failed { url: url(&target), problem: "too many redirects".into() })
}

/// The response without its body, which is not read yet.
async fn get_head(
    get_request: &GetRequest<'_>,
    target: &HttpTarget,
    own_host: bool,
) -> Result<(GetResponse, Response<Incoming>, DrivenConnection), GetError> {
    let failed = |problem: String| GetError::Failed { url: url(target), problem };
    let request = request(get_request, target, own_host).map_err(failed)?;
    let timed_out = || failed(HEADERS_TIMEOUT.into());
    let head = async {
        let stream = connect(&target.host, target.port)
            .await
            .map_err(|error| failed(dial_error(&target.host, target.port, &error)))?;
        if !target.https {
            return exchange(stream, request).await.map_err(failed);
        }
        let name = ServerName::try_from(target.host.clone());
        let name = name.map_err(|error| failed(error.to_string()))?;
        match TlsConnector::from(unverified_tls()).connect(name, stream).await {
            Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(HTTP_2) => {
                exchange_http2(stream, request).await.map_err(failed)
            }
            Ok(stream) => exchange(stream, request).await.map_err(failed),
            Err(error) if is_plain_text(&error) => Err(GetError::NoTls { url: url(target) }),
            Err(error) => Err(failed(error.to_string())),
        }
    };
    let (response, connection) =
        within(get_request.deadline, head).await.ok_or_else(timed_out)??;
    let status = response.status().as_u16();
    let location = response.headers().get(LOCATION);
    let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
    Ok((GetResponse { status, location, body: Vec::new() }, response, connection))
}

async fn get_body(
    get_request: &GetRequest<'_>,
    response: Response<Incoming>,
    mut connection: DrivenConnection,
) -> Result<Vec<u8>, GetError> {
    let body = within(get_request.deadline, connection.drive(read(response))).await;
    connection.close().await;
    let timed_out = || GetError::Body { problem: BODY_TIMEOUT.into() };
    body.ok_or_else(timed_out)?.map_err(|problem| GetError::Body { problem })
}

const HEADERS_TIMEOUT: &str =
    "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
const BODY_TIMEOUT: &str =
    "context deadline exceeded (Client.Timeout or context cancellation while reading body)";

/// `None`: the deadline came first.
async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}

pub async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    match host.parse::<IpAddr>() {
        Ok(ip) => TcpStream::connect(SocketAddr::new(ip, port)).await,
        Err(_) => TcpStream::connect((host, port)).await,
    }
}

/// A connection error in Go's words.
pub fn dial_error(host: &str, port: u16, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => {
            let text = nix::errno::Errno::from_raw(number).desc().to_lowercase();
            format!("dial tcp {}: connect: {text}", authority(host, port))
        }
        None => format!("dial tcp: lookup {host}: {error}"),
    }
}

fn url(target: &HttpTarget) -> String {
    let scheme = if target.https { "https" } else { "http" };
    format!("{scheme}://{}{}", authority(&target.host, target.port), target.path)
}

/// `host:port`, with brackets for IPv6 addresses.
pub fn authority(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        Ok(IpAddr::V4(_)) | Err(_) => format!("{host}:{port}"),
    }
}

/// A path in wire format: absolute, without fragment, and percent-encoded.
fn on_wire(path: &str) -> String {
    let path = path.split_once('#').map_or(path, |(path, _)| path);
    let mut driven = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        driven.push('/');
    }
    for byte in path.bytes() {
        match byte {
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | 0..=0x20 | 0x7f.. => {
                driven.push_str(&format!("%{byte:02X}"));
            }
            other => driven.push(other.into()),
        }
    }
    driven
}

fn request(
    get_request: &GetRequest<'_>,
    target: &HttpTarget,
    own_host: bool,
) -> Result<Request<Empty<Bytes>>, String> {
    let mut request = Request::get(&target.path).body(Empty::new()).map_err(|e| e.to_string())?;
    let headers = request.headers_mut();
    for (name, value) in get_request.headers {
        let known = HeaderName::try_from(name);
        let known = known.map_err(|_| format!("net/http: invalid header field name {name:?}"))?;
        let value = HeaderValue::try_from(value)
            .map_err(|_| format!("net/http: invalid header field value for {name:?}"))?;
        // Only one Host header is sent, even if the list has several.
        if known != HOST || (own_host && !headers.contains_key(HOST)) {
            headers.append(known, value);
        }
    }
    if headers.get(HOST).is_none_or(HeaderValue::is_empty) {
        let host = HeaderValue::try_from(authority(&target.host, target.port));
        headers.insert(HOST, host.map_err(|e| e.to_string())?);
    }
    for (name, default) in [(USER_AGENT, get_request.user_agent), (ACCEPT, "*/*")] {
        match headers.get(&name) {
            None => drop(headers.insert(name, HeaderValue::from_static(default))),
            Some(value) if value.is_empty() => drop(headers.remove(name)),
            Some(_) => {}
        }
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

/// The headers without those that must not be sent unencrypted.
pub fn without_credentials(headers: &[(String, String)]) -> Vec<(String, String)> {
    let secret = |name: &str| name.eq_ignore_ascii_case(AUTHORIZATION.as_str());
    headers.iter().filter(|(name, _)| !secret(name)).cloned().collect()
}

/// Sends a request and waits for the head of the response.
async fn exchange<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
) -> Result<(Response<Incoming>, DrivenConnection), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut settings = http1::Builder::new();
    settings.title_case_headers(true).max_buf_size(MAX_HEAD);
    let (mut sender, connection) =
        settings.handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let mut driven = DrivenConnection::new(connection, ConnectionTasks::default());
    let response = driven.drive(async { sender.send_request(request).await }).await;
    Ok((response.map_err(|error| error_text(&error))?, driven))
}

/// [`exchange`] over HTTP/2.
async fn exchange_http2<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
) -> Result<(Response<Incoming>, DrivenConnection), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let request = for_http2(request)?;
    let tasks = ConnectionTasks::default();
    let mut settings = http2::Builder::new(tasks.executor());
    settings.max_header_list_size(MAX_HEADER_LIST);
    let (mut sender, connection) =
        settings.handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let mut driven = DrivenConnection::new(connection, tasks);
    let response = driven.drive(async { sender.send_request(request).await }).await;
    Ok((response.map_err(|error| error_text(&error))?, driven))
}

/// HTTP/2 has the host in the URI, and no headers of the connection.
fn for_http2(mut request: Request<Empty<Bytes>>) -> Result<Request<Empty<Bytes>>, String> {
    let headers = request.headers_mut();
    for name in CONNECTION_HEADERS {
        headers.remove(name);
    }
    let host = headers.remove(HOST);
    let host = host.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTPS);
    parts.authority = Some(Authority::try_from(host).map_err(|error| error.to_string())?);
    *request.uri_mut() = Uri::from_parts(parts).map_err(|error| error.to_string())?;
    Ok(request)
}

/// The connection of an exchange. It makes progress only while it is driven, and ends when this is
/// dropped.
struct DrivenConnection {
    connection: Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>,
    /// HTTP/2 is read and written in a task.
    tasks: ConnectionTasks,
}

impl DrivenConnection {
    fn new(
        connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
        tasks: ConnectionTasks,
    ) -> Self {
        Self { connection: Some(Box::pin(connection)), tasks }
    }

    async fn close(self) {
        drop(self.connection);
        self.tasks.close().await;
    }

    async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        if let Some(connection) = &mut self.connection {
            tokio::select! {
                done = &mut work => return done,
                // Data read before the end is still available to the waiting side, and errors reach it
                // too.
                _ended = connection => self.connection = None,
            }
        }
        work.await
    }
}

/// A broken exchange in Go's words.
fn error_text(error: &hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        return "EOF".into();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let number = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    match number {
        Some(number) => {
            format!("read: {}", nix::errno::Errno::from_raw(number).desc().to_lowercase())
        }
        None => error.to_string(),
    }
}

async fn read(response: Response<Incoming>) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    let mut incoming = response.into_body();
    while body.len() < OUTPUT_LIMIT {
        let Some(frame) = incoming.frame().await else { break };
        if let Ok(data) = frame.map_err(|error| error_text(&error))?.into_data() {
            body.extend_from_slice(&data);
        }
    }
    body.truncate(OUTPUT_LIMIT);
    Ok(body)
}

/// Whether the server does not speak TLS at all.
fn is_plain_text(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

/// TLS without certificate verification, as upstream for probes.
fn unverified_tls() -> Arc<ClientConfig> {
    static CONFIG: std::sync::LazyLock<Arc<ClientConfig>> = std::sync::LazyLock::new(|| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Arc::new(AnyCertificate);
        let builder = ClientConfig::builder_with_provider(provider);
        // The default provider supports all versions.
        let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS);
        #[allow(clippy::expect_used, reason = "a fixed configuration, covered by a test")]
        let builder = builder.expect("ring speaks TLS 1.2 and 1.3");
        let mut config =
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        config.alpn_protocols = vec![HTTP_2.to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    });
    CONFIG.clone()
}

/// Verifies neither the certificate nor the handshake's signature. The signature only shows that
/// the server has the key of a certificate of unknown origin, and verifying it would reject
/// certificates that Go accepts: X.509 v1, RSA below 2048 bits, P-521, unknown critical extensions.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SCHEMES.to_vec()
    }
}

/// All schemes, so that the server can choose one that fits its key.
const SCHEMES: &[SignatureScheme] = &[
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED448,
    SignatureScheme::RSA_PKCS1_SHA1,
    SignatureScheme::ECDSA_SHA1_Legacy,
];

#[cfg(test)]
mod certificate_tests;
#[cfg(test)]
mod tests;
