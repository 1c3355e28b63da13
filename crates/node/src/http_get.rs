//! One HTTP request on a connection of its own, for hooks and probes.
//!
//! No proxy, no keep-alive, no compression, no trust in certificates: the question is only
//! whether the container answers. The connection is closed when the answer is read.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Request, Response, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some(text) if text.eq_ignore_ascii_case("https") => Self::Https,
            Some(_) | None => Self::Http,
        }
    }
}

/// Whom to ask for what.
#[derive(Clone, Debug)]
pub struct Question {
    pub scheme: Scheme,
    /// An address or a name.
    pub host: String,
    pub port: u16,
    /// With its query, if it has one.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub user_agent: &'static str,
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
    #[error("{0}")]
    BadQuestion(String),
    #[error("Get \"{url}\": {problem}")]
    Failed { url: String, problem: String },
}

/// Asks once. The caller bounds the time.
pub async fn get(question: &Question, body_limit: usize) -> Result<Answer, GetError> {
    let url = url(question);
    let failed = |problem: String| GetError::Failed { url: url.clone(), problem };
    let request = request(question)?;
    let stream = connect(&question.host, question.port).await.map_err(|error| {
        failed(format!("dial tcp {}:{}: {error}", question.host, question.port))
    })?;
    match question.scheme {
        Scheme::Http => exchange(stream, request, body_limit).await.map_err(failed),
        Scheme::Https => {
            let name = ServerName::try_from(question.host.clone())
                .map_err(|error| failed(error.to_string()))?;
            let tls = TlsConnector::from(trusting()).connect(name, stream).await;
            let stream = tls.map_err(|error| failed(error.to_string()))?;
            exchange(stream, request, body_limit).await.map_err(failed)
        }
    }
}

/// Connects, and closes without lingering: a node full of probes must not run out of ports.
pub async fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let stream = match host.parse::<IpAddr>() {
        Ok(ip) => TcpStream::connect(SocketAddr::new(ip, port)).await?,
        Err(_) => TcpStream::connect((host, port)).await?,
    };
    rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::from_secs(1)))?;
    Ok(stream)
}

fn url(question: &Question) -> String {
    let scheme = match question.scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    format!("{scheme}://{}{}", authority(question), question.path)
}

fn authority(question: &Question) -> String {
    match question.host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{}", question.port),
        Ok(IpAddr::V4(_)) | Err(_) => format!("{}:{}", question.host, question.port),
    }
}

fn request(question: &Question) -> Result<Request<Empty<Bytes>>, GetError> {
    let bad = |problem: String| GetError::BadQuestion(problem);
    let path = if question.path.starts_with('/') {
        question.path.clone()
    } else {
        format!("/{}", question.path)
    };
    let mut request = Request::get(path).body(Empty::new()).map_err(|e| bad(e.to_string()))?;
    let headers = request.headers_mut();
    for (name, value) in &question.headers {
        let name = HeaderName::try_from(name).map_err(|e| bad(format!("header {name:?}: {e}")))?;
        let value = HeaderValue::try_from(value).map_err(|e| bad(format!("header {name}: {e}")))?;
        headers.append(name, value);
    }
    if !headers.contains_key(HOST) {
        let host = HeaderValue::try_from(authority(question)).map_err(|e| bad(e.to_string()))?;
        headers.insert(HOST, host);
    }
    if !headers.contains_key(USER_AGENT) {
        headers.insert(USER_AGENT, HeaderValue::from_static(question.user_agent));
    }
    match headers.get(ACCEPT) {
        None => drop(headers.insert(ACCEPT, HeaderValue::from_static("*/*"))),
        Some(value) if value.is_empty() => drop(headers.remove(ACCEPT)),
        Some(_) => {}
    }
    headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

async fn exchange<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
    body_limit: usize,
) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let work = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        read(response, body_limit).await
    };
    tokio::pin!(work);
    tokio::select! {
        answer = &mut work => answer,
        ended = connection => match ended {
            // The answer may have come with the end of the connection; whoever reads it knows.
            Ok(()) => work.await,
            Err(error) => Err(error.to_string()),
        },
    }
}

async fn read(response: Response<Incoming>, limit: usize) -> Result<Answer, String> {
    let status = response.status().as_u16();
    let location = response.headers().get(hyper::header::LOCATION);
    let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut body = Vec::new();
    let mut incoming = response.into_body();
    while body.len() < limit {
        let Some(frame) = incoming.frame().await else { break };
        if let Ok(data) = frame.map_err(|error| error.to_string())?.into_data() {
            body.extend_from_slice(&data);
        }
    }
    body.truncate(limit);
    Ok(Answer { status, location, body })
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
