//! The ports.
//!
//! A connection costs little until its client is known: the handshake has a time limit, and there are
//! only so many connections; what is said on one is bounded by `podwright-http`. What follows is
//! bounded by what is asked for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use podwright_http::{Negotiated, keep_alive, speak};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::Answer;
use super::auth::{self, Guard, Peer};
use super::certificate::{self, TlsError, TlsSettings};
use super::fresh::FileProblem;
use super::{DRAIN, Server, route};
use crate::metrics::{HttpKey, HttpMetrics, Metrics};

const HANDSHAKE: Duration = Duration::from_secs(10);
const CONNECTIONS: usize = 2048;
/// When the process is out of file descriptors, trying at once would only burn time.
const BREATHER: Duration = Duration::from_millis(100);

/// How the server shows itself, and to whom it listens.
pub struct Doors {
    pub certificate: certificate::Source,
    pub tls: TlsSettings,
    pub auth: auth::Settings,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot listen on {address}; set {setting} to another port or to 0")]
    Bind { address: SocketAddr, setting: &'static str, source: std::io::Error },
    #[error("TLS")]
    Tls(#[from] TlsError),
    #[error("authentication.x509.clientCAFile")]
    ClientCa(#[from] FileProblem),
}

/// Ports that are taken and answer nobody yet.
pub struct Ports {
    secure: TcpListener,
    read_only: Option<TcpListener>,
}

impl Ports {
    /// `secure` is 10250. At `read_only`, 10255, nobody is asked for a name and little is shown.
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

/// Ports with their certificates and their guard.
pub struct Listeners {
    ports: Ports,
    tls: TlsAcceptor,
    guard: Guard,
}

impl Listeners {
    /// Reads, or makes, what a handshake needs.
    pub fn open(ports: Ports, doors: Doors, node: Arc<str>) -> Result<Self, OpenError> {
        let guard = Guard::new(doors.auth, node)?;
        let invite = guard.invites_certificates();
        let tls: ServerConfig = certificate::configure(&doors.certificate, &doors.tls, invite)?;
        Ok(Self { ports, tls: TlsAcceptor::from(Arc::new(tls)), guard })
    }

    /// Serves until stopped; what is under way then may end, but not take long.
    pub async fn serve(self, server: Arc<Server>, metrics: Arc<Metrics>, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        let hall = Arc::new(Hall {
            server: server.clone(),
            metrics,
            guard: self.guard,
            places: Arc::new(Semaphore::new(CONNECTIONS)),
            connections: connections.clone(),
            stop: stop.clone(),
            cut: cut.clone(),
        });
        let secure = hall.clone().accept(self.ports.secure, Door::Secure(self.tls));
        match self.ports.read_only {
            Some(listener) => {
                tokio::join!(secure, hall.clone().accept(listener, Door::ReadOnly));
            }
            None => secure.await,
        }
        connections.close();
        let waited = tokio::time::timeout(DRAIN, connections.wait());
        let (_, ()) = tokio::join!(waited, server.drain());
        cut.cancel();
        connections.wait().await;
    }
}

async fn bind(address: SocketAddr, setting: &'static str) -> Result<TcpListener, OpenError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| OpenError::Bind { address, setting, source })
}

/// What all connections share.
struct Hall {
    server: Arc<Server>,
    metrics: Arc<Metrics>,
    guard: Guard,
    places: Arc<Semaphore>,
    connections: TaskTracker,
    stop: CancellationToken,
    cut: CancellationToken,
}

#[derive(Clone)]
enum Door {
    Secure(TlsAcceptor),
    ReadOnly,
}

impl Hall {
    async fn accept(self: Arc<Self>, listener: TcpListener, door: Door) {
        let accepting = async {
            loop {
                // Closed never: the semaphore lives as long as we do.
                let Ok(place) = self.places.clone().acquire_owned().await else { return };
                let stream = match listener.accept().await {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(BREATHER).await;
                        continue;
                    }
                };
                let (this, door) = (self.clone(), door.clone());
                self.connections.spawn(async move {
                    let cut = this.cut.clone();
                    cut.run_until_cancelled(this.welcome(stream, door)).await;
                    drop(place);
                });
            }
        };
        self.stop.run_until_cancelled(accepting).await;
    }

    async fn welcome(self: &Arc<Self>, stream: TcpStream, door: Door) {
        keep_alive(&stream);
        match door {
            Door::ReadOnly => self.converse(stream, Negotiated::Http1, None).await,
            Door::Secure(tls) => {
                let stream = match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
                    Ok(Ok(stream)) => stream,
                    Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => return,
                };
                let (_, session) = stream.get_ref();
                let certificates = session.peer_certificates().unwrap_or_default();
                let peer = Peer { certificates: certificates.to_vec().into() };
                let spoken = Negotiated::from_alpn(session.alpn_protocol());
                self.converse(stream, spoken, Some(peer)).await;
            }
        }
    }

    /// Without a peer, nobody is asked for a name.
    async fn answer(&self, request: Request<Incoming>, peer: Option<&Peer>) -> Answer {
        let _counted = Counting::begin(&self.metrics.http, &request, peer.is_some());
        let Some(peer) = peer else { return self.server.handle_stranger(request).await };
        let (method, path) = (request.method(), request.uri().path());
        match self.guard.admit(method, path, request.headers(), peer).await {
            Ok(_) => self.server.handle(request).await,
            Err(refusal) => refusal.answer(),
        }
    }

    /// Speaks HTTP on one connection.
    async fn converse(
        self: &Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        spoken: Negotiated,
        peer: Option<Peer>,
    ) {
        let (hall, peer) = (self.clone(), peer.map(Arc::new));
        let answer = move |request: Request<Incoming>| {
            let (hall, peer) = (hall.clone(), peer.clone());
            async move { hall.answer(request, peer.as_deref()).await }
        };
        if let Err(error) = speak(stream, spoken, answer, &self.stop).await {
            tracing::debug!(%error, "a connection ended");
        }
    }
}

/// A request being counted, until it is answered or given up.
struct Counting<'a> {
    metrics: &'a HttpMetrics,
    key: HttpKey,
    began: Instant,
}

impl<'a> Counting<'a> {
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

impl Drop for Counting<'_> {
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
    use podwright_http::HEADERS;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::super::answer::words;
    use super::*;

    /// Bytes that begin as a request does, and go on as they like.
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
        fn whatever_comes_in_is_answered_or_hung_up_on(sent in almost_requests(), h2 in any::<bool>()) {
            let spoken = if h2 { Negotiated::Http2 } else { Negotiated::Http1 };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let (answer, spoken) = runtime.block_on(async {
                let (mut client, server) = duplex(64 * 1024);
                let routed = async |request: Request<Incoming>| {
                    let found = route::route(route::Surface::Full, request.method(), request.uri().path());
                    match found {
                        Ok(_) => words(StatusCode::OK, "here"),
                        Err(miss) => super::super::missed(miss),
                    }
                };
                let stop = CancellationToken::new();
                let speaking = tokio::spawn(async move { speak(server, spoken, routed, &stop).await });
                client.write_all(&sent).await.unwrap();
                let mut answer = Vec::new();
                // Time is paused: whoever waits for more than was sent has waited long enough.
                let reading = tokio::time::timeout(4 * HEADERS, client.read_to_end(&mut answer));
                let closed = reading.await.is_ok();
                drop(client);
                (answer, (closed, speaking.await))
            });
            prop_assert!(spoken.1.is_ok(), "it panicked: {:?}", spoken.1);
            prop_assert!(spoken.0, "the connection was left open");
            if !h2 {
                prop_assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{answer:?}");
            }
        }
    }

    #[test]
    fn methods_that_clients_invent_are_one_label() {
        for (method, want) in [("GET", "GET"), ("PATCH", "PATCH"), ("FLY", "other")] {
            let method = http::Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(counted_method(&method), want);
        }
    }
}
