//! The server on the network: TLS, authentication and the shutdown of connections.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, Request, header};
use hyper::body::Incoming;
use podwright_http::{
    ConnectionLimiter, ConnectionLimits, ConnectionPermit, HttpVersion, keep_alive, serve_http,
};
use rustls::ServerConfig;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::access::{AUTHENTICATED, CREDENTIAL, Identity};
use crate::in_flight::{InFlight, PeerShare};
use crate::server::ApiServer;

/// Limits per listener. A pod's clients use a handful of connections.
const LIMITS: ConnectionLimits = ConnectionLimits {
    all: 1024,
    per_address: 32,
    unauthenticated: 256,
    unauthenticated_per_address: 32,
};
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay after a failed accept, most likely for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Addresses from which a listener accepts connections. Connections from others are closed before
/// anything is read from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// This machine.
    Loopback,
    /// Addresses from the first to the last.
    Range(Ipv4Addr, Ipv4Addr),
}

impl Peers {
    pub fn range((first, last): (Ipv4Addr, Ipv4Addr)) -> Self {
        Self::Range(first, last)
    }

    fn include(self, peer: IpAddr) -> bool {
        match (self, peer.to_canonical()) {
            (Self::Loopback, peer) => peer.is_loopback(),
            (Self::Range(first, last), IpAddr::V4(peer)) => (first..=last).contains(&peer),
            (Self::Range(..), IpAddr::V6(_)) => false,
        }
    }
}

/// The shares of one client address.
#[derive(Clone, Debug)]
struct Shares {
    own: PeerShare,
    anonymous: PeerShare,
}

impl ApiServer {
    /// Serves connections until `stop`, then gives open requests a short time to finish.
    pub async fn serve(
        &self,
        listener: TcpListener,
        peers: Peers,
        tls: Arc<ServerConfig>,
        stop: CancellationToken,
    ) {
        let (in_flight, anonymous) = (InFlight::new(), InFlight::anonymous());
        let acceptor = TlsAcceptor::from(tls);
        let limiter = ConnectionLimiter::new(LIMITS);
        let tasks = TaskTracker::new();
        loop {
            // Dropping either wait loses nothing: a connection not accepted stays in the backlog.
            let accepted = tokio::select! { biased;
                () = stop.cancelled() => break,
                accepted = limiter.accept_from(&listener, |peer| peers.include(peer)) => accepted,
            };
            let (stream, permit) = match accepted {
                Ok(Some(accepted)) => accepted,
                Ok(None) => {
                    tracing::debug!(
                        "API server: connection refused: not a peer of this listener, or at its limit"
                    );
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "API server: accept connection failed, retrying");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            keep_alive(&stream);
            let (server, acceptor, stop) = (self.clone(), acceptor.clone(), stop.clone());
            let peer = permit.peer();
            let shares = Shares { own: in_flight.of(peer), anonymous: anonymous.of(peer) };
            tasks.spawn(async move {
                serve_admitted(server, acceptor, stream, Arc::new(permit), shares, stop).await;
            });
        }
        tasks.close();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, tasks.wait()).await.is_err() {
            tracing::debug!("API server: closing connections still open at shutdown");
        }
    }

    /// Authenticates by client certificate or bearer token; `None` if it is invalid or expired.
    fn authenticate(
        &self,
        certificate: Option<&Certified>,
        headers: &HeaderMap,
    ) -> Option<Identity> {
        if let Some(Certified { identity, expires }) = certificate {
            // The handshake has checked this for its own time, and connections may stay open.
            let expired = self.now().as_second() >= *expires;
            return (!expired).then(|| identity.clone());
        }
        let Some(authorization) = headers.get(header::AUTHORIZATION) else {
            return Some(Identity::anonymous());
        };
        let (scheme, token) = authorization.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        self.identify(token.trim(), &[])
    }
}

/// Serves one connection until it is closed or may not stay.
async fn serve_admitted(
    server: ApiServer,
    acceptor: TlsAcceptor,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    permit: Arc<ConnectionPermit>,
    shares: Shares,
    stop: CancellationToken,
) {
    tokio::select! {
        () = serve_connection(server, acceptor, stream, permit.clone(), shares, stop) => {}
        () = permit.expired() => {}
    }
}

/// Serves one connection until it is closed.
async fn serve_connection(
    server: ApiServer,
    acceptor: TlsAcceptor,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    permit: Arc<ConnectionPermit>,
    shares: Shares,
    stop: CancellationToken,
) {
    // Port scans, connect-only health checks and clients that do not trust our certificate fail
    // here: not worth a log line.
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| Certified::of(chain.first()?));
    let protocol = HttpVersion::from_alpn(session.alpn_protocol());
    let router = server.router();
    let handler = move |request: Request<Incoming>| {
        let identity = server.authenticate(certificate.as_ref(), request.headers());
        let authenticated = identity.as_ref().is_some_and(|identity| identity.is_in(AUTHENTICATED));
        if authenticated {
            permit.authenticated();
        }
        let share = if authenticated { &shares.own } else { &shares.anonymous };
        let (router, share) = (router.clone(), share.clone());
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(share);
            if let Some(identity) = identity {
                request.extensions_mut().insert(identity);
            }
            let response: Result<Response, Infallible> = router.oneshot(request).await;
            response.unwrap_or_else(|never| match never {})
        }
    };
    if let Err(error) = serve_http(stream, protocol, handler, &stop).await {
        tracing::trace!(%error, "API server: connection failed");
    }
}

/// Identity in a client certificate: the common name is the user, organizations are groups. The TLS
/// handshake has already verified the certificate.
struct Certified {
    identity: Identity,
    /// Seconds since 1970.
    expires: i64,
}

impl Certified {
    fn of(certificate: &[u8]) -> Option<Self> {
        let digest = Sha256::digest(certificate);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let extra = BTreeMap::from([(CREDENTIAL, vec![format!("X509SHA256={digest}")])]);
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let subject = certificate.subject();
        let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|name| name.as_str().ok());
        let groups = groups.chain([AUTHENTICATED]).map(str::to_owned).collect();
        let expires = certificate.validity().not_after.timestamp();
        Some(Self { identity: Identity { user, uid: String::new(), groups, extra }, expires })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
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
    use crate::authority::AuthorityUse;
    use crate::{Authority, Clock, Ids, Limits, Settings, Store};

    /// Returns a connection after its handshake; the task ends when the server has closed it.
    async fn connect(protocol: &str) -> (TlsStream<DuplexStream>, tokio::task::JoinHandle<()>) {
        let authority = Authority::create(AuthorityUse::Servers).unwrap();
        let pair = authority.server(&[], &[IpAddr::V4(Ipv4Addr::LOCALHOST)]).unwrap();
        let acceptor = TlsAcceptor::from(authority.tls(&pair).unwrap());
        let store = Store::in_memory(Limits::default(), Clock::system()).unwrap();
        let settings = Settings::new(Clock::system(), Ids::system());
        let server = ApiServer::start(store, settings).await.unwrap();
        let (client, peer_end) = duplex(64 * 1024);
        let limiter = ConnectionLimiter::new(LIMITS);
        let permit = Arc::new(limiter.try_admit(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap());
        let peer = IpAddr::V4(Ipv4Addr::new(10, 213, 0, 2));
        let shares =
            Shares { own: InFlight::new().of(peer), anonymous: InFlight::anonymous().of(peer) };
        let serving = tokio::spawn(serve_admitted(
            server,
            acceptor,
            peer_end,
            permit,
            shares,
            CancellationToken::new(),
        ));
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
        let stream = TlsConnector::from(Arc::new(config)).connect(name, client).await.unwrap();
        (stream, serving)
    }

    #[test]
    fn peers_of_a_listener() {
        let pods = Peers::Range(Ipv4Addr::new(10, 213, 0, 0), Ipv4Addr::new(10, 213, 255, 255));
        for (peer, is_local, is_pod) in [
            ("127.0.0.1", true, false),
            ("127.1.2.3", true, false),
            ("::ffff:127.0.0.1", true, false),
            ("::1", true, false),
            ("10.213.0.1", false, true),
            ("::ffff:10.213.255.255", false, true),
            ("10.214.0.0", false, false),
            ("10.212.255.255", false, false),
            ("192.168.1.2", false, false),
            ("fe80::1", false, false),
        ] {
            let address: IpAddr = peer.parse().unwrap();
            assert_eq!(Peers::Loopback.include(address), is_local, "{peer}");
            assert_eq!(pods.include(address), is_pod, "{peer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connection_is_closed() {
        for protocol in ["http/1.1", "h2"] {
            let (mut stream, serving) = connect(protocol).await;
            let began = Instant::now();
            let mut received = Vec::new();
            let _ = stream.read_to_end(&mut received).await;
            serving.await.unwrap();
            assert!(began.elapsed() <= podwright_http::AUTHENTICATION_TIMEOUT, "{protocol}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn idle_http2_connection_is_closed_although_it_answers_pings() {
        let (stream, serving) = connect("h2").await;
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let request =
            Request::get("https://127.0.0.1/healthz").body(Empty::<Bytes>::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        drop(response);
        let began = Instant::now();
        serving.await.unwrap();
        assert!(began.elapsed() < 2 * podwright_http::HEADER_TIMEOUT);
    }
}
