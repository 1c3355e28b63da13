//! Listeners of the kubelet server: the ports, TLS and authentication.
//!
//! Resources of unauthenticated clients are bounded by `podwright-http`: the number of connections,
//! the time until a connection must have sent a request that is permitted, and what it may send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use podwright_http::{
    ConnectionLimiter, ConnectionLimits, ConnectionPermit, HttpVersion, keep_alive, serve_http,
};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::{self, AccessControl, Peer};
use super::certificate::{self, TlsError, TlsSettings};
use super::reload::FileProblem;
use super::response::HttpResponse;
use super::{DRAIN, Server, route};
use crate::telemetry::metrics::{HttpKey, HttpMetrics, Metrics};

/// Limits of each port. An API server has one address and a connection for each of its streams.
const LIMITS: ConnectionLimits = ConnectionLimits {
    all: 2048,
    per_address: 2048,
    unauthenticated: 256,
    unauthenticated_per_address: 128,
};
/// Anybody may read this port, so that no address may take all of it.
const READ_ONLY_LIMITS: ConnectionLimits = ConnectionLimits { all: 256, per_address: 32, ..LIMITS };
/// Pause after a failed accept, which would otherwise spin when file descriptors run out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Configuration of the listeners: certificate, TLS and authentication.
pub struct ListenerSettings {
    pub certificate: certificate::Source,
    pub tls: TlsSettings,
    pub auth: auth::AuthSettings,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot listen on {address}. Fix: set {setting} to another port or to 0")]
    Bind { address: SocketAddr, setting: &'static str, source: std::io::Error },
    #[error("cannot configure TLS")]
    Tls(#[from] TlsError),
    #[error("cannot load authentication.x509.clientCAFile")]
    ClientCa(#[from] FileProblem),
}

/// Bound ports that do not accept connections yet.
pub struct Ports {
    secure: TcpListener,
    read_only: Option<TcpListener>,
}

impl Ports {
    /// `secure` is 10250. `read_only`, 10255, has no authentication and serves little.
    pub async fn take(
        secure: SocketAddr,
        read_only: Option<SocketAddr>,
    ) -> Result<Self, OpenError> {
        let secure = bind(secure, "port").await?;
        let read_only = match read_only {
            Some(address) => Some(bind(address, "readOnlyPort").await?),
            None => None,
        };
        Ok(Self { secure, read_only })
    }
}

/// Ports with TLS and authentication.
pub struct Listeners {
    ports: Ports,
    tls: TlsAcceptor,
    access_control: AccessControl,
}

impl Listeners {
    /// Loads or creates the certificates.
    pub fn open(
        ports: Ports,
        listener_settings: ListenerSettings,
        node: Arc<str>,
    ) -> Result<Self, OpenError> {
        let access_control = AccessControl::new(listener_settings.auth, node)?;
        let invite = access_control.requests_certificates();
        let tls: ServerConfig =
            certificate::configure(&listener_settings.certificate, &listener_settings.tls, invite)?;
        Ok(Self { ports, tls: TlsAcceptor::from(Arc::new(tls)), access_control })
    }

    /// Serves until stopped, then waits a short time for requests in progress.
    pub async fn serve(self, server: Arc<Server>, metrics: Arc<Metrics>, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let abort = CancellationToken::new();
        let context = Arc::new(ConnectionContext {
            server: server.clone(),
            metrics,
            access_control: self.access_control,
            connections: connections.clone(),
            stop: stop.clone(),
            abort: abort.clone(),
        });
        let secure = PortKind::Secure(self.tls);
        let secure = context.clone().accept(self.ports.secure, secure, LIMITS);
        match self.ports.read_only {
            Some(listener) => {
                let read_only =
                    context.clone().accept(listener, PortKind::ReadOnly, READ_ONLY_LIMITS);
                tokio::join!(secure, read_only);
            }
            None => secure.await,
        }
        connections.close();
        let waited = tokio::time::timeout(DRAIN, connections.wait());
        let (_, ()) = tokio::join!(waited, server.drain());
        abort.cancel();
        connections.wait().await;
    }
}

async fn bind(address: SocketAddr, setting: &'static str) -> Result<TcpListener, OpenError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| OpenError::Bind { address, setting, source })
}

/// State shared by all connections.
struct ConnectionContext {
    server: Arc<Server>,
    metrics: Arc<Metrics>,
    access_control: AccessControl,
    connections: TaskTracker,
    stop: CancellationToken,
    abort: CancellationToken,
}

#[derive(Clone)]
enum PortKind {
    Secure(TlsAcceptor),
    ReadOnly,
}

impl ConnectionContext {
    async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        port: PortKind,
        limits: ConnectionLimits,
    ) {
        let limiter = ConnectionLimiter::new(limits);
        let accepting = async {
            loop {
                let (stream, permit) = match limiter.accept(&listener).await {
                    Ok(Some(accepted)) => accepted,
                    Ok(None) => continue,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection, retrying");
                        tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                        continue;
                    }
                };
                let (this, port, permit) = (self.clone(), port.clone(), Arc::new(permit));
                self.connections.spawn(async move {
                    let abort = this.abort.clone();
                    let serving = this.handle_connection(stream, port, permit.clone());
                    tokio::select! {
                        () = serving => {}
                        () = permit.expired() => {}
                        () = abort.cancelled() => {}
                    }
                });
            }
        };
        self.stop.run_until_cancelled(accepting).await;
    }

    async fn handle_connection(
        self: &Arc<Self>,
        stream: TcpStream,
        port: PortKind,
        permit: Arc<ConnectionPermit>,
    ) {
        keep_alive(&stream);
        match port {
            PortKind::ReadOnly => {
                self.serve_http(stream, HttpVersion::Http1, None, permit).await;
            }
            PortKind::Secure(tls) => {
                let stream = match tls.accept(stream).await {
                    Ok(stream) => stream,
                    Err(error) => return tracing::debug!(%error, "TLS handshake failed"),
                };
                let (_, session) = stream.get_ref();
                let certificates = session.peer_certificates().unwrap_or_default();
                let peer = Peer { certificates: certificates.to_vec().into() };
                let protocol = HttpVersion::from_alpn(session.alpn_protocol());
                self.serve_http(stream, protocol, Some(peer), permit).await;
            }
        }
    }

    /// Without a peer the request is from the read-only port.
    async fn answer(
        &self,
        request: Request<Incoming>,
        peer: Option<&Peer>,
        permit: &ConnectionPermit,
    ) -> HttpResponse {
        let _counted = RequestCounter::begin(&self.metrics.http, &request, peer.is_some());
        let Some(peer) = peer else {
            permit.authenticated();
            return self.server.handle_read_only(request).await;
        };
        let (method, path) = (request.method(), request.uri().path());
        let checking = permit.check_credentials();
        match self.access_control.admit(method, path, request.headers(), peer).await {
            Ok(_) => {
                permit.authenticated();
                drop(checking);
                self.server.handle(request).await
            }
            Err(refusal) => refusal.answer(),
        }
    }

    /// Serves HTTP on one connection.
    async fn serve_http(
        self: &Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        protocol: HttpVersion,
        peer: Option<Peer>,
        permit: Arc<ConnectionPermit>,
    ) {
        let (context, peer) = (self.clone(), peer.map(Arc::new));
        let answer = move |request: Request<Incoming>| {
            let (context, peer, permit) = (context.clone(), peer.clone(), permit.clone());
            async move { context.answer(request, peer.as_deref(), &permit).await }
        };
        if let Err(error) = serve_http(stream, protocol, answer, &self.stop).await {
            tracing::debug!(%error, "connection ended with an error");
        }
    }
}

/// Counts a request until it is complete or dropped.
struct RequestCounter<'a> {
    metrics: &'a HttpMetrics,
    key: HttpKey,
    began: Instant,
}

impl<'a> RequestCounter<'a> {
    fn begin(metrics: &'a HttpMetrics, request: &Request<Incoming>, authenticated: bool) -> Self {
        let path = route::counted_as(request.uri().path());
        let key = HttpKey {
            method: counted_method(request.method()),
            path,
            server: if authenticated { "readwrite" } else { "readonly" },
            long_running: route::is_long_running(path),
        };
        metrics.began(key);
        Self { metrics, key, began: Instant::now() }
    }
}

impl Drop for RequestCounter<'_> {
    fn drop(&mut self) {
        self.metrics.ended(self.key, self.began.elapsed());
    }
}

fn counted_method(method: &http::Method) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    KNOWN.into_iter().find(|known| method.as_str() == *known).unwrap_or("other")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use http::StatusCode;
    use podwright_http::HEADER_TIMEOUT;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::super::response::plain_text;
    use super::*;

    /// Byte sequences that start like a request.
    fn almost_requests() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "GET ",
            "POST ",
            "FLY ",
            "/pods",
            "/exec/ns/web/app",
            "/..%2f",
            "?a=b",
            " HTTP/1.1\r\n",
            " HTTP/1.0\r\n",
            " HTTP/9.9\r\n",
            "host: a\r\n",
            "host",
            ": ",
            "\r\n",
            "\n",
            "\r\n\r\n",
            "content-length: 5\r\n",
            "content-length: -1\r\n",
            "content-length: 99999999999999999999\r\n",
            "transfer-encoding: chunked\r\n",
            "5\r\nhello\r\n",
            "ffffffffffffffff\r\n",
            "0\r\n\r\n",
            "connection: upgrade\r\nupgrade: SPDY/3.1\r\n",
            "connection: close\r\n",
            "expect: 100-continue\r\n",
            "authorization: Bearer x\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]);
        let bytes = prop::collection::vec(any::<u8>(), 0..16);
        let piece = prop_oneof![8 => piece.prop_map(|text| text.as_bytes().to_vec()), 1 => bytes];
        prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(podwright_testkit::mutation::config())]

        #[test]
        fn any_input_is_answered_or_closed(sent in almost_requests(), h2 in any::<bool>()) {
            let protocol = if h2 { HttpVersion::Http2 } else { HttpVersion::Http1 };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let (answer, protocol) = runtime.block_on(async {
                let (mut client, server) = duplex(64 * 1024);
                let routed = async |request: Request<Incoming>| {
                    let found = route::route(route::Surface::Full, request.method(), request.uri().path());
                    match found {
                        Ok(_) => plain_text(StatusCode::OK, "here"),
                        Err(miss) => super::super::missed(miss),
                    }
                };
                let stop = CancellationToken::new();
                let speaking = tokio::spawn(async move { serve_http(server, protocol, routed, &stop).await });
                client.write_all(&sent).await.unwrap();
                let mut answer = Vec::new();
                // Time is paused: a server that waits for more input runs into its timeout.
                let reading = tokio::time::timeout(4 * HEADER_TIMEOUT, client.read_to_end(&mut answer));
                let closed = reading.await.is_ok();
                drop(client);
                (answer, (closed, speaking.await))
            });
            prop_assert!(protocol.1.is_ok(), "panicked: {:?}", protocol.1);
            prop_assert!(protocol.0, "the connection was left open");
            if !h2 {
                prop_assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{answer:?}");
            }
        }
    }

    #[test]
    fn unknown_methods_share_one_label() {
        for (method, want) in [("GET", "GET"), ("PATCH", "PATCH"), ("FLY", "other")] {
            let method = http::Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(counted_method(&method), want);
        }
    }
}
