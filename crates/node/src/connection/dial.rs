//! Opens one connection, and keeps a decent pace when that fails.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::credentials::{Credentials, Security};
use crate::heartbeat::chance;

/// TCP and TLS together.
const CONNECT: Duration = Duration::from_secs(10);
/// After so much silence the peer is pinged,
const QUIET: Duration = Duration::from_secs(20);
/// and after so much more it is taken for gone: within 35 s, not the kernel's quarter of an hour.
const PING: Duration = Duration::from_secs(15);
const AGAIN_FIRST: Duration = Duration::from_millis(100);
/// Seldom enough for a server that is coming up, and soon enough to be back with it.
const AGAIN_MOST: Duration = Duration::from_secs(2);

pub(super) struct Dialer {
    credentials: Arc<Credentials>,
    /// Not to be tried before, after a failure.
    not_before: Option<Instant>,
    wait: Duration,
    /// Told when it begins and when it ends.
    away: Option<String>,
}

pub(super) enum Dialed {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2 { sender: http2::SendRequest<Full<Bytes>>, most: Arc<AtomicUsize> },
}

impl Dialer {
    pub(super) fn new(credentials: Arc<Credentials>) -> Self {
        Self { credentials, not_before: None, wait: AGAIN_FIRST, away: None }
    }

    /// One attempt, not before its time.
    pub(super) async fn dial(&mut self) -> Result<Dialed, String> {
        if let Some(at) = self.not_before {
            tokio::time::sleep_until(at).await;
        }
        let attempt = tokio::time::timeout(CONNECT, connect(&self.credentials)).await;
        let attempt = attempt.unwrap_or_else(|_| Err(format!("no answer within {CONNECT:?}")));
        match attempt {
            Ok(dialed) => {
                (self.not_before, self.wait) = (None, AGAIN_FIRST);
                if self.away.take().is_some() {
                    tracing::info!(server = %self.credentials.server(), "the API server is back");
                }
                Ok(dialed)
            }
            Err(problem) => {
                // Many nodes lose the same server at the same moment.
                let wait = self.wait.mul_f64(0.5 + chance());
                self.not_before = Some(Instant::now() + wait);
                self.wait = (self.wait * 2).min(AGAIN_MOST);
                if self.away.as_ref() != Some(&problem) {
                    let server = self.credentials.server();
                    tracing::warn!(problem, %server, "cannot reach the API server; trying on");
                    self.away = Some(problem.clone());
                }
                Err(problem)
            }
        }
    }
}

async fn connect(credentials: &Credentials) -> Result<Dialed, String> {
    let (host, port) = credentials.address();
    let failed = |what: &str, error: &dyn std::error::Error| {
        format!("{what} {host}:{port}: {}", crate::causes::chain(error))
    };
    let security = credentials.security()?;
    let tcp = TcpStream::connect((host, port)).await;
    let tcp = tcp.map_err(|error| failed("connecting to", &error))?;
    // A small request should not wait for company.
    let _ = tcp.set_nodelay(true);
    let (tls, name) = match security {
        Security::Tls(tls, name) => (tls, name),
        Security::Plain => return http1(tcp).await.map_err(|e| failed("speaking with", &e)),
    };
    let stream = TlsConnector::from(tls).connect(name, tcp).await;
    let stream = stream.map_err(|error| failed("TLS with", &error))?;
    let dialed = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => http2(stream).await,
        _ => http1(stream).await,
    };
    dialed.map_err(|error| failed("speaking with", &error))
}

async fn http1<S>(stream: S) -> Result<Dialed, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // Whoever waits for an answer gets the error.
        let _ = connection.await;
    });
    Ok(Dialed::Http1(sender))
}

async fn http2<S>(stream: S) -> Result<Dialed, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(QUIET)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await?;
    let most = Arc::new(AtomicUsize::new(connection.current_max_send_streams().max(1)));
    let told = most.clone();
    tokio::spawn(async move {
        let mut connection = pin!(connection);
        let driven = poll_fn(|cx| {
            let done = connection.as_mut().poll(cx);
            told.store(connection.current_max_send_streams().max(1), Relaxed);
            done
        });
        if let Err(error) = driven.await {
            tracing::debug!(%error, "a connection to the API server ended");
        }
    });
    Ok(Dialed::Http2 { sender, most })
}
