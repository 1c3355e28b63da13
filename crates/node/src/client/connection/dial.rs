//! Dialing of one connection, with back-off after failures.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use podwright_core::backoff::{Doubling, Retry};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::credentials::{Credentials, Security};
use crate::client::proxy::Proxy;
use crate::report::heartbeat::random;

/// Timeout of TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before the next address is tried as well, while an earlier one does not respond.
const FALLBACK_DELAY: Duration = Duration::from_millis(300);
/// Timeout of the name lookup if addresses of an earlier lookup are known.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle time before a ping,
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// and time to the ping's response: a dead peer is detected within 35 s, not 15 minutes.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Low load for a server that is starting, and a fast reconnect.
const RETRY: Doubling = Doubling::new(Duration::from_millis(100), Duration::from_secs(2));

pub(super) struct Dialer {
    credentials: Arc<Credentials>,
    /// Earliest next attempt, after a failure.
    not_before: Option<Instant>,
    retry: Retry,
    /// The problem while the server is unreachable; logged when it begins and when it ends.
    unreachable: Option<String>,
    /// Addresses of the server, or of the proxy, from the last successful lookup, the one that worked last first.
    known: Vec<SocketAddr>,
}

pub(super) enum Dialed {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2 { sender: http2::SendRequest<Full<Bytes>>, most: Arc<AtomicUsize> },
}

impl Dialer {
    pub(super) fn new(credentials: Arc<Credentials>) -> Self {
        let (retry, known) = (Retry::new(RETRY), Vec::new());
        Self { credentials, not_before: None, retry, unreachable: None, known }
    }

    /// One attempt, after the back-off.
    pub(super) async fn dial(&mut self) -> Result<Dialed, String> {
        if let Some(at) = self.not_before {
            tokio::time::sleep_until(at).await;
        }
        let attempt = tokio::time::timeout(CONNECT_TIMEOUT, self.connect()).await;
        let attempt =
            attempt.unwrap_or_else(|_| Err(format!("no response within {CONNECT_TIMEOUT:?}")));
        match attempt {
            Ok(dialed) => {
                self.not_before = None;
                self.retry.reset();
                if self.unreachable.take().is_some() {
                    tracing::info!(server = %self.credentials.server(), "API server is reachable again");
                }
                Ok(dialed)
            }
            Err(problem) => {
                // Jitter: many nodes lose the same server at the same moment.
                let wait = self.retry.next_delay().mul_f64(0.5 + random());
                self.not_before = Some(Instant::now() + wait);
                if self.unreachable.as_ref() != Some(&problem) {
                    let server = self.credentials.server();
                    tracing::warn!(problem, %server, "cannot reach the API server, retrying");
                    self.unreachable = Some(problem.clone());
                }
                Err(problem)
            }
        }
    }

    async fn connect(&mut self) -> Result<Dialed, String> {
        self.resolve().await?;
        let credentials = &self.credentials;
        let (address, dialed) =
            connect_to_first(&self.known, |address| connect(credentials, address)).await?;
        self.known.sort_by_key(|known| *known != address);
        Ok(dialed)
    }

    /// Resolves the name of the server, or of the proxy. If that fails, the addresses of the last lookup are used: TLS
    /// verifies the server there.
    async fn resolve(&mut self) -> Result<(), String> {
        let proxy = self.credentials.proxy().map(Proxy::address);
        let (host, port) = proxy.unwrap_or_else(|| self.credentials.address());
        let timeout = if self.known.is_empty() { CONNECT_TIMEOUT } else { LOOKUP_TIMEOUT };
        let found = match tokio::time::timeout(timeout, lookup_host((host, port))).await {
            Ok(Ok(found)) => Ok(found.collect::<Vec<_>>()),
            Ok(Err(error)) => Err(crate::error_chain::chain(&error)),
            Err(_) => Err(format!("no response within {timeout:?}")),
        };
        match found {
            Ok(found) if !found.is_empty() => {
                let last = self.known.first().copied();
                self.known = found;
                self.known.sort_by_key(|address| Some(*address) != last);
            }
            Ok(_) if self.known.is_empty() => return Err(format!("{host} has no address")),
            Err(problem) if self.known.is_empty() => {
                return Err(format!("connecting to {host}:{port}: {problem}"));
            }
            Ok(_) => {}
            Err(problem) => {
                tracing::debug!(problem, host, "cannot resolve host, using known addresses");
            }
        }
        Ok(())
    }
}

async fn connect(credentials: &Credentials, address: SocketAddr) -> Result<Dialed, String> {
    let (host, port) = credentials.address();
    let security = credentials.security()?;
    let tcp = TcpStream::connect(address).await;
    let Some(proxy) = credentials.proxy() else {
        let server = match host == address.ip().to_string() {
            true => format!("{host}:{port}"),
            false => format!("{host}:{port} ({})", address.ip()),
        };
        let tcp = tcp.map_err(|error| format!("connecting to {server}: {error}"))?;
        // Small requests must not be delayed by Nagle's algorithm.
        let _ = tcp.set_nodelay(true);
        return secure(tcp, security, &server).await;
    };
    let tcp =
        tcp.map_err(|error| format!("connecting to {proxy:?} ({}): {error}", address.ip()))?;
    let _ = tcp.set_nodelay(true);
    let tunnel = proxy.tunnel(tcp, host, port).await?;
    secure(tunnel, security, &format!("{host}:{port} through {proxy:?}")).await
}

/// TLS and HTTP with a server.
async fn secure<S>(stream: S, security: Security, server: &str) -> Result<Dialed, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let failed = |what: &str, error: &dyn std::error::Error| {
        format!("{what} {server}: {}", crate::error_chain::chain(error))
    };
    let (tls, name) = match security {
        Security::Tls(tls, name) => (tls, name),
        Security::Plain => return http1(stream).await.map_err(|e| failed("HTTP with", &e)),
    };
    let stream = TlsConnector::from(tls).connect(name, stream).await;
    let stream = stream.map_err(|error| failed("TLS with", &error))?;
    let dialed = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => http2(stream).await,
        _ => http1(stream).await,
    };
    dialed.map_err(|error| failed("HTTP with", &error))
}

/// Connects to the first address that responds. The addresses are tried in order, each
/// `FALLBACK_DELAY` after the previous one, or immediately when an earlier one fails.
async fn connect_to_first<T, F>(
    addresses: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> Result<(SocketAddr, T), String>
where
    F: Future<Output = Result<T, String>>,
{
    let mut waiting = addresses.iter().copied().enumerate().peekable();
    let mut attempts = FuturesUnordered::new();
    let mut problems = Vec::new();
    loop {
        if let Some((rank, address)) = waiting.next() {
            let attempt = connect(address);
            attempts.push(async move { (rank, address, attempt.await) });
        }
        let has_next = waiting.peek().is_some();
        // Cancel-safe: an unfinished attempt stays in the set, and the delay starts again.
        tokio::select! {
            done = attempts.next() => match done {
                Some((_, address, Ok(connected))) => return Ok((address, connected)),
                Some((rank, _, Err(problem))) => problems.push((rank, problem)),
                None => break,
            },
            () = tokio::time::sleep(FALLBACK_DELAY), if has_next => {}
        }
    }
    // In the order of the addresses, so that the same failure has the same text each time.
    problems.sort();
    let problems: Vec<String> = problems.into_iter().map(|(_, problem)| problem).collect();
    Err(problems.join("; "))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 6443).into()
    }

    /// A server that responds or refuses after a number of milliseconds; `None`: neither.
    async fn server(address: SocketAddr, after: Option<u64>, responds: bool) -> Result<(), String> {
        match after {
            Some(after) => tokio::time::sleep(Duration::from_millis(after)).await,
            None => std::future::pending().await,
        }
        if responds { Ok(()) } else { Err(format!("{address} refused")) }
    }

    #[tokio::test(start_paused = true)]
    async fn unresponsive_address_delays_the_next_one_by_the_fallback_delay_only() {
        for (case, behaviours, want, took) in [
            ("first responds", vec![(Some(20), true), (Some(0), true)], Ok(1), 20),
            ("first is silent", vec![(None, true), (Some(20), true)], Ok(2), 320),
            ("first refuses", vec![(Some(5), false), (Some(20), true)], Ok(2), 25),
            ("first is slow", vec![(Some(350), true), (Some(900), true)], Ok(1), 350),
            ("two are silent", vec![(None, true), (None, true), (Some(7), true)], Ok(3), 607),
            ("all refuse", vec![(Some(9), false), (Some(3), false)], Err(()), 12),
            ("none", vec![], Err(()), 0),
        ] {
            let addresses: Vec<_> = (1..=behaviours.len()).map(|n| address(n as u8)).collect();
            let began = Instant::now();
            let behaviours = &behaviours;
            let found = connect_to_first(&addresses, |tried| {
                let at = addresses.iter().position(|address| *address == tried).unwrap();
                let (after, responds) = behaviours.get(at).copied().unwrap();
                server(tried, after, responds)
            });
            let found = found.await;
            let shown = found.as_ref().map(|(address, ())| *address).map_err(|_| ());
            assert_eq!(shown, want.map(address), "{case}: {found:?}");
            assert_eq!(began.elapsed().as_millis(), took, "{case}");
        }
    }

    #[tokio::test]
    async fn failures_are_reported_in_the_order_of_the_addresses() {
        let addresses = [address(1), address(2)];
        let refused = connect_to_first(&addresses, |tried| server(tried, Some(0), false)).await;
        let want = "192.0.2.1:6443 refused; 192.0.2.2:6443 refused";
        assert_eq!(refused.unwrap_err(), want);
    }
}
