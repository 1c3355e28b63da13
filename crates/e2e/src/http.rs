//! HTTP and HTTPS client inside a bed: for a pod, a kubelet, a metrics endpoint.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::case;
use crate::netns::{NetNs, address_of};
use crate::pki::Pair;

const LIMIT: Duration = Duration::from_secs(120);

/// Which server certificates are accepted.
#[derive(Clone, Default)]
pub enum Trust {
    /// Any: a kubelet may use a self-signed one.
    #[default]
    Anyone,
    /// Those signed by this CA (PEM).
    Authority(String),
}

/// TLS options; not used for plain HTTP.
#[derive(Clone, Default)]
pub struct Tls {
    pub trust: Trust,
    /// The client certificate, if any.
    pub identity: Option<Pair>,
}

#[derive(Clone, Debug)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl HttpResponse {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends one request over a new connection and reads the whole response.
pub async fn send(netns: &NetNs, request: Request<Bytes>, tls: &Tls) -> Result<HttpResponse> {
    let url = request.uri().clone();
    let exchange = async {
        let stream = netns.connect(address_of(&url)?).await?;
        if url.scheme_str() != Some("https") {
            return exchange(stream, request).await;
        }
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host)?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(configure(tls)?));
        exchange(connector.connect(name, stream).await?, request).await
    };
    let _waiting = case::waiting_for(format!("the response of {url}"));
    let response = tokio::time::timeout(LIMIT, exchange).await;
    let late = || format!("no response within {} s", LIMIT.as_secs());
    response.with_context(late).flatten().with_context(|| format!("requesting {url}"))
}

/// Opens a TLS connection from inside a namespace, for a client of the test's own.
pub async fn connect_tls(
    netns: &NetNs,
    address: SocketAddr,
    tls: &Tls,
    protocol: &str,
) -> Result<TlsStream<TcpStream>> {
    let stream = netns.connect(address).await?;
    let mut config = configure(tls)?;
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    Ok(connector.connect(ServerName::from(address.ip()), stream).await?)
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut request: Request<Bytes>,
) -> Result<HttpResponse> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    if let Some(host) = request.uri().authority().map(|host| host.as_str().parse()).transpose()? {
        request.headers_mut().entry(http::header::HOST).or_insert(host);
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).parse()?;
    *request.uri_mut() = path;
    let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    connection.abort();
    Ok(HttpResponse { status: head.status, headers: head.headers, body })
}

fn configure(tls: &Tls) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let builder = match &tls.trust {
        Trust::Anyone => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider))),
        Trust::Authority(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                roots.add(certificate?)?;
            }
            builder.with_root_certificates(roots)
        }
    };
    Ok(match &tls.identity {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain: Result<Vec<_>, _> =
                CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).collect();
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?;
            builder.with_client_auth_cert(chain?, key)?
        }
    })
}

/// Accepts any certificate, but verifies that the server has its key.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
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
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
