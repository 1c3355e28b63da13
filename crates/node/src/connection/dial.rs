//! Dialing of one connection, with back-off after failures.

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
use crate::heartbeat::random;

/// Timeout of TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time before a ping,
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// and time to the ping's response: a dead peer is detected within 35 s, not 15 minutes.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Low load for a server that is starting, and a fast reconnect.
const RETRY_MAX: Duration = Duration::from_secs(2);

pub(super) struct Dialer {
    credentials: Arc<Credentials>,
    /// Earliest next attempt, after a failure.
    not_before: Option<Instant>,
    wait: Duration,
    /// The problem while the server is unreachable; logged when it begins and when it ends.
    unreachable: Option<String>,
}

pub(super) enum Dialed {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2 { sender: http2::SendRequest<Full<Bytes>>, most: Arc<AtomicUsize> },
}

impl Dialer {
    pub(super) fn new(credentials: Arc<Credentials>) -> Self {
        Self { credentials, not_before: None, wait: RETRY_FIRST, unreachable: None }
    }

    /// One attempt, after the back-off.
    pub(super) async fn dial(&mut self) -> Result<Dialed, String> {
        if let Some(at) = self.not_before {
            tokio::time::sleep_until(at).await;
        }
        let attempt = tokio::time::timeout(CONNECT_TIMEOUT, connect(&self.credentials)).await;
        let attempt =
            attempt.unwrap_or_else(|_| Err(format!("no response within {CONNECT_TIMEOUT:?}")));
        match attempt {
            Ok(dialed) => {
                (self.not_before, self.wait) = (None, RETRY_FIRST);
                if self.unreachable.take().is_some() {
                    tracing::info!(server = %self.credentials.server(), "API server is reachable again");
                }
                Ok(dialed)
            }
            Err(problem) => {
                // Jitter: many nodes lose the same server at the same moment.
                let wait = self.wait.mul_f64(0.5 + random());
                self.not_before = Some(Instant::now() + wait);
                self.wait = (self.wait * 2).min(RETRY_MAX);
                if self.unreachable.as_ref() != Some(&problem) {
                    let server = self.credentials.server();
                    tracing::warn!(problem, %server, "cannot reach the API server, retrying");
                    self.unreachable = Some(problem.clone());
                }
                Err(problem)
            }
        }
    }
}

async fn connect(credentials: &Credentials) -> Result<Dialed, String> {
    let (host, port) = credentials.address();
    let failed = |what: &str, error: &dyn std::error::Error| {
        format!("{what} {host}:{port}: {}", crate::error_chain::chain(error))
    };
    let security = credentials.security()?;
    let tcp = TcpStream::connect((host, port)).await;
    let tcp = tcp.map_err(|error| failed("connecting to", &error))?;
    // Small requests must not be delayed by Nagle's algorithm.
    let _ = tcp.set_nodelay(true);
    let (tls, name) = match security {
        Security::Tls(tls, name) => (tls, name),
        Security::Plain => return http1(tcp).await.map_err(|e| failed("HTTP with", &e)),
    };
    let stream = TlsConnector::from(tls).connect(name, tcp).await;
    let stream = stream.map_err(|error| failed("TLS with", &error))?;
    let dialed = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => http2(stream).await,
        _ => http1(stream).await,
    };
    dialed.map_err(|error| failed("HTTP with", &error))
}

async fn http1<S>(stream: S) -> Result<Dialed, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        // The waiting request gets the error.
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
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await?;
    let most = Arc::new(AtomicUsize::new(connection.current_max_send_streams().max(1)));
    let limit = most.clone();
    tokio::spawn(async move {
        let mut connection = pin!(connection);
        let driven = poll_fn(|cx| {
            let done = connection.as_mut().poll(cx);
            limit.store(connection.current_max_send_streams().max(1), Relaxed);
            done
        });
        if let Err(error) = driven.await {
            tracing::debug!(%error, "connection to the API server ended");
        }
    });
    Ok(Dialed::Http2 { sender, most })
}
