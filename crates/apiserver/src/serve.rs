//! The server on the network: TLS, who is at the other end, and the end of connections.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, Request, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::access::{AUTHENTICATED, Identity};
use crate::server::ApiServer;

/// Connections of one listener; more wait to be accepted.
const CONNECTIONS: usize = 1024;
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A client that says nothing more after it has connected.
const SILENCE: Duration = Duration::from_secs(60);
/// A peer that vanished is found out by pings.
const PING_EVERY: Duration = Duration::from_secs(30);
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
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let tasks = TaskTracker::new();
        loop {
            // Dropping either wait loses nothing: a connection not accepted stays in the backlog.
            let accepted = tokio::select! { biased;
                () = stop.cancelled() => break,
                accepted = accept(&listener, &places) => accepted,
            };
            let Some((stream, place)) = accepted else {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            };
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

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            tracing::warn!(%error, "the API server cannot accept a connection");
            None
        }
    }
}

/// One connection, to its end.
async fn converse(
    server: ApiServer,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    // Port scans, health checks that only connect, clients that distrust us: nothing to tell of.
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        return;
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(|chain| subject(chain.first()?));
    let router = server.router();
    let service = service_fn(move |request: Request<Incoming>| {
        let who = server.who(certificate.as_ref(), request.headers());
        let router = router.clone();
        async move {
            let mut request = request.map(Body::new);
            if let Some(who) = who {
                request.extensions_mut().insert(who);
            }
            let answer: Result<Response, Infallible> = router.oneshot(request).await;
            answer
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(SILENCE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_EVERY);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! { biased;
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(error, "a connection to the API server broke");
    }
}

/// Whom a certificate speaks of: its common name, and its organizations as groups. That it is
/// genuine was checked when the connection was made.
fn subject(certificate: &[u8]) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let user = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|name| name.as_str().ok());
    let groups = groups.chain([AUTHENTICATED]).map(str::to_owned).collect();
    Some(Identity { user, uid: String::new(), groups })
}
