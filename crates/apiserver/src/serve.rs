//! The server on the network: TLS, who is at the other end, and the end of connections.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, Request, header};
use hyper::body::Incoming;
use podwright_http::{Negotiated, Place, Places, keep_alive, speak};
use rustls::ServerConfig;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::access::{AUTHENTICATED, CREDENTIAL, Identity};
use crate::server::ApiServer;

/// Connections of one listener; more wait to be accepted.
const CONNECTIONS: usize = 1024;
/// Of these, for one address. A pod's clients share a handful.
const SHARE: usize = 128;
const HANDSHAKE: Duration = Duration::from_secs(10);
const FAREWELL: Duration = Duration::from_secs(2);
/// After a refused accept: out of file handles, most likely.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

impl ApiServer {
    /// Serves whoever connects until told to stop, then lets open requests end for a moment.
    pub async fn serve(
        &self,
        listener: TcpListener,
        tls: Arc<ServerConfig>,
        stop: CancellationToken,
    ) {
        let acceptor = TlsAcceptor::from(tls);
        let places = Places::new(CONNECTIONS, SHARE);
        let tasks = TaskTracker::new();
        loop {
            // Dropping either wait loses nothing: a connection not accepted stays in the backlog.
            let accepted = tokio::select! { biased;
                () = stop.cancelled() => break,
                accepted = accept(&listener, &places) => accepted,
            };
            let (stream, place) = match accepted {
                Ok(Some(accepted)) => accepted,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(%error, "the API server cannot accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            keep_alive(&stream);
            let (server, acceptor, stop) = (self.clone(), acceptor.clone(), stop.clone());
            tasks.spawn(async move {
                converse(server, acceptor, stream, stop).await;
                drop(place);
            });
        }
        tasks.close();
        if tokio::time::timeout(FAREWELL, tasks.wait()).await.is_err() {
            tracing::debug!("connections to the API server are cut off");
        }
    }

    /// Who asks, by what the connection and the request show; `None` for a token that is no good.
    fn who(&self, certificate: Option<&Identity>, headers: &HeaderMap) -> Option<Identity> {
        if let Some(identity) = certificate {
            return Some(identity.clone());
        }
        let Some(shown) = headers.get(header::AUTHORIZATION) else {
            return Some(Identity::anonymous());
        };
        let (scheme, token) = shown.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        self.identify(token.trim(), &[])
    }
}

/// The next connection; `None` is one too many of its peer.
async fn accept(
    listener: &TcpListener,
    places: &Places,
) -> std::io::Result<Option<(TcpStream, Place)>> {
    let Some(free) = places.free().await else { return Ok(None) };
    let (stream, peer) = listener.accept().await?;
    let place = free.take(peer.ip());
    if place.is_none() {
        tracing::debug!(%peer, "a connection to the API server is one too many of its peer");
    }
    Ok(place.map(|place| (stream, place)))
}

/// One connection, to its end.
async fn converse(
    server: ApiServer,
    acceptor: TlsAcceptor,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) {
    // Port scans, health checks that only connect, clients that distrust us: nothing to tell of.
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        return;
    };
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| subject(chain.first()?));
    let spoken = Negotiated::from_alpn(session.alpn_protocol());
    let router = server.router();
    let answer = move |request: Request<Incoming>| {
        let who = server.who(certificate.as_ref(), request.headers());
        let router = router.clone();
        async move {
            let mut request = request.map(Body::new);
            if let Some(who) = who {
                request.extensions_mut().insert(who);
            }
            let answer: Result<Response, Infallible> = router.oneshot(request).await;
            answer.unwrap_or_else(|never| match never {})
        }
    };
    if let Err(error) = speak(stream, spoken, answer, &stop).await {
        tracing::trace!(%error, "a connection to the API server broke");
    }
}

/// Whom a certificate speaks of: its common name, and its organizations as groups. That it is
/// genuine was checked when the connection was made.
fn subject(certificate: &[u8]) -> Option<Identity> {
    let digest = Sha256::digest(certificate);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let extra = BTreeMap::from([(CREDENTIAL, vec![format!("X509SHA256={digest}")])]);
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|name| name.as_str().ok());
    let groups = groups.chain([AUTHENTICATED]).map(str::to_owned).collect();
    Some(Identity { user, uid: String::new(), groups, extra })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use bytes::Bytes;
    use http_body_util::Empty;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, RootCertStore, crypto};
    use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
    use tokio::time::Instant;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use super::*;
    use crate::{Authority, Clock, Ids, Limits, Settings, Store};

    /// A connection after its handshake; the server's end of it is over when the task is.
    async fn connect(protocol: &str) -> (TlsStream<DuplexStream>, tokio::task::JoinHandle<()>) {
        let authority = Authority::create().unwrap();
        let pair = authority.server(&[], &[IpAddr::V4(Ipv4Addr::LOCALHOST)]).unwrap();
        let acceptor = TlsAcceptor::from(authority.tls(&pair).unwrap());
        let store = Store::in_memory(Limits::default(), Clock::system()).unwrap();
        let settings = Settings::new(Clock::system(), Ids::system());
        let server = ApiServer::start(store, settings).await.unwrap();
        let (ours, theirs) = duplex(64 * 1024);
        let serving = tokio::spawn(converse(server, acceptor, theirs, CancellationToken::new()));
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let stream = TlsConnector::from(Arc::new(config)).connect(name, ours).await.unwrap();
        (stream, serving)
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_hung_up_on() {
        for protocol in ["http/1.1", "h2"] {
            let (mut stream, serving) = connect(protocol).await;
            let began = Instant::now();
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said).await;
            serving.await.unwrap();
            assert!(began.elapsed() < 2 * podwright_http::HEADERS, "{protocol}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_nothing_more_is_hung_up_on_though_it_answers_pings() {
        let (stream, serving) = connect("h2").await;
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut asking, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let request =
            Request::get("https://127.0.0.1/healthz").body(Empty::<Bytes>::new()).unwrap();
        let answer = asking.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        drop(answer);
        let began = Instant::now();
        serving.await.unwrap();
        assert!(began.elapsed() < 2 * podwright_http::HEADERS);
    }
}
