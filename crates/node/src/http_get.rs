//! One HTTP request on a connection of its own, for hooks and probes.
//!
//! No proxy, no keep-alive, no compression, no trust in certificates: the question is only
//! whether the container answers. The connection is closed when the answer is read, and its
//! socket is left to the kernel: waiting for the other side to agree (`SO_LINGER`) would make
//! closing block on a container that is gone, and would not free the port any sooner.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, LOCATION, USER_AGENT};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, Response, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use podwright_core::probe::check::{HttpCheck, OUTPUT_LIMIT};
use podwright_core::probe::http::{Place, redirect};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, InvalidMessage, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// Longer headers are not read.
const MAX_HEAD: usize = 128 * 1024;

/// Whom to ask for what, and as whom.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    pub place: Place,
    pub headers: &'a [(String, String)],
    pub user_agent: &'static str,
    /// `None`: the caller bounds the time.
    pub deadline: Option<Instant>,
}

impl<'a> Question<'a> {
    /// `address` is the pod's, for a check that names no host.
    pub fn of(check: &'a HttpCheck, address: IpAddr, user_agent: &'static str) -> Self {
        let host = check.host.clone().unwrap_or_else(|| address.to_string());
        let place =
            Place { https: check.https, host, port: check.port, path: on_wire(&check.path) };
        Self { place, headers: &check.headers, user_agent, deadline: None }
    }
}

/// An answer, of which only a part of the body is kept.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub location: Option<String>,
    pub body: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum GetError {
    #[error("Get {url:?}: {problem}")]
    Failed { url: String, problem: String },
    /// We spoke TLS, and somebody answered who does not.
    #[error("Get {url:?}: http: server gave HTTP response to HTTPS client")]
    NoTls { url: String },
    /// An answer began and did not end.
    #[error("{problem}")]
    Body { problem: String },
}

/// Asks, and asks again where a redirect on the same host leads.
pub async fn get(question: &Question<'_>) -> Result<Answer, GetError> {
    let first = &question.place;
    let (mut place, mut own_host) = (first.clone(), true);
    for followed in 0.. {
        let answer = get_once(question, &place, own_host).await?;
        let next = redirect(first, &place, followed, answer.status, answer.location.as_deref());
        let failed = |problem| GetError::Failed { url: place.path.clone(), problem };
        match next.map_err(failed)? {
            None => return Ok(answer),
            Some(next) => {
                own_host &= next.same_authority;
                place = next.to;
            }
        }
    }
    // The redirects end before the numbers do.
    Err(GetError::Failed { url: url(&place), problem: "too many redirects".into() })
}

async fn get_once(
    question: &Question<'_>,
    place: &Place,
    own_host: bool,
) -> Result<Answer, GetError> {
    let failed = |problem: String| GetError::Failed { url: url(place), problem };
    let request = request(question, place, own_host).map_err(failed)?;
    let late = || failed(TOO_LATE.into());
    let head = async {
        let stream = connect(&place.host, place.port)
            .await
            .map_err(|error| failed(dial_error(&place.host, place.port, &error)))?;
        if !place.https {
            return exchange(stream, request).await.map_err(failed);
        }
        let name = ServerName::try_from(place.host.clone());
        let name = name.map_err(|error| failed(error.to_string()))?;
        match TlsConnector::from(trusting()).connect(name, stream).await {
            Ok(stream) => exchange(stream, request).await.map_err(failed),
            Err(error) if is_plain_text(&error) => Err(GetError::NoTls { url: url(place) }),
            Err(error) => Err(failed(error.to_string())),
        }
    };
    let (response, mut connection) = within(question.deadline, head).await.ok_or_else(late)??;
    let status = response.status().as_u16();
    let location = response.headers().get(LOCATION);
    let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body = within(question.deadline, connection.drive(read(response))).await;
    let late = || GetError::Body { problem: TOO_LATE_FOR_BODY.into() };
    let body = body.ok_or_else(late)?.map_err(|problem| GetError::Body { problem })?;
    Ok(Answer { status, location, body })
}

const TOO_LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
const TOO_LATE_FOR_BODY: &str =
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

/// Why a connection was not made, in the words people search for.
pub fn dial_error(host: &str, port: u16, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => {
            let text = nix::errno::Errno::from_raw(number).desc().to_lowercase();
            format!("dial tcp {}: connect: {text}", authority(host, port))
        }
        None => format!("dial tcp: lookup {host}: {error}"),
    }
}

fn url(place: &Place) -> String {
    let scheme = if place.https { "https" } else { "http" };
    format!("{scheme}://{}{}", authority(&place.host, place.port), place.path)
}

/// `host:port`, with brackets where an address needs them.
pub fn authority(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        Ok(IpAddr::V4(_)) | Err(_) => format!("{host}:{port}"),
    }
}

/// A path as it may be sent: absolute, without fragment, and what is no URL character encoded.
fn on_wire(path: &str) -> String {
    let path = path.split_once('#').map_or(path, |(path, _)| path);
    let mut wire = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        wire.push('/');
    }
    for byte in path.bytes() {
        match byte {
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' | 0..=0x20 | 0x7f.. => {
                wire.push_str(&format!("%{byte:02X}"));
            }
            other => wire.push(other.into()),
        }
    }
    wire
}

fn request(
    question: &Question<'_>,
    place: &Place,
    own_host: bool,
) -> Result<Request<Empty<Bytes>>, String> {
    let mut request = Request::get(&place.path).body(Empty::new()).map_err(|e| e.to_string())?;
    let headers = request.headers_mut();
    for (name, value) in question.headers {
        let known = HeaderName::try_from(name);
        let known = known.map_err(|_| format!("net/http: invalid header field name {name:?}"))?;
        let value = HeaderValue::try_from(value)
            .map_err(|_| format!("net/http: invalid header field value for {name:?}"))?;
        // One host is asked, whatever the list says.
        if known != HOST || (own_host && !headers.contains_key(HOST)) {
            headers.append(known, value);
        }
    }
    if headers.get(HOST).is_none_or(HeaderValue::is_empty) {
        let host = HeaderValue::try_from(authority(&place.host, place.port));
        headers.insert(HOST, host.map_err(|e| e.to_string())?);
    }
    for (name, default) in [(USER_AGENT, question.user_agent), (ACCEPT, "*/*")] {
        match headers.get(&name) {
            None => drop(headers.insert(name, HeaderValue::from_static(default))),
            Some(value) if value.is_empty() => drop(headers.remove(name)),
            Some(_) => {}
        }
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

/// The headers without what must not travel unencrypted.
pub fn without_credentials(headers: &[(String, String)]) -> Vec<(String, String)> {
    let secret = |name: &str| name.eq_ignore_ascii_case(AUTHORIZATION.as_str());
    headers.iter().filter(|(name, _)| !secret(name)).cloned().collect()
}

/// Sends a request and waits for the head of the answer.
async fn exchange<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
) -> Result<(Response<Incoming>, Wire), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut settings = http1::Builder::new();
    settings.title_case_headers(true).max_buf_size(MAX_HEAD);
    let (mut sender, connection) =
        settings.handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let mut wire = Wire(Some(Box::pin(connection)));
    let answer = wire.drive(async { sender.send_request(request).await }).await;
    Ok((answer.map_err(|error| told(&error))?, wire))
}

/// The connection under an exchange. It moves only while someone drives it.
struct Wire(Option<std::pin::Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>);

impl Wire {
    async fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        if let Some(connection) = &mut self.0 {
            tokio::select! {
                done = &mut work => return done,
                // What was read before the end is still there for whoever waits for it, and
                // errors reach them too.
                _ended = connection => self.0 = None,
            }
        }
        work.await
    }
}

/// A broken exchange, as Go names it.
fn told(error: &hyper::Error) -> String {
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
        if let Ok(data) = frame.map_err(|error| told(&error))?.into_data() {
            body.extend_from_slice(&data);
        }
    }
    body.truncate(OUTPUT_LIMIT);
    Ok(body)
}

/// The other side does not speak TLS at all.
fn is_plain_text(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(error, Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

/// TLS without asking who it is: a container's certificate is its own business.
fn trusting() -> Arc<ClientConfig> {
    static CONFIG: std::sync::LazyLock<Arc<ClientConfig>> = std::sync::LazyLock::new(|| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Arc::new(AnyCertificate(provider.clone()));
        let builder = ClientConfig::builder_with_provider(provider);
        // The provider's own versions always suit it.
        let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS);
        #[allow(clippy::expect_used, reason = "a fixed configuration, covered by a test")]
        let builder = builder.expect("ring speaks TLS 1.2 and 1.3");
        Arc::new(
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth(),
        )
    });
    CONFIG.clone()
}

#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

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
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
