//! HTTP on one connection: timeouts, header size limit, keep-alive and graceful shutdown.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::idle::ActiveRequests;
use crate::unread::{PIECE_BYTES, UnreadResponses};

/// From the start of a connection, or the end of the last response, to the end of the headers.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum size of a request line and its headers. `kubectl exec` with a long script fits.
pub const MAX_HEADER_BYTES: usize = 128 * 1024;
/// Concurrent requests on one connection, as in kube-apiserver.
const MAX_STREAMS: u32 = 100;
/// Bytes of requests that a connection may send ahead of what is read. Bodies are read as they come
/// or not at all.
const CONNECTION_WINDOW: u32 = 256 << 10;
const STREAM_WINDOW: u32 = 64 << 10;
/// How often unread responses are looked for.
const UNREAD_CHECK: Duration = Duration::from_secs(5);
/// Keep-alive interval. A vanished client is detected after about three of them.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Limit on the graceful shutdown of an idle connection.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// HTTP version settled by the TLS handshake. Guessing it from the first bytes would mean to wait
/// for them, possibly for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    Http1,
    Http2,
}

impl HttpVersion {
    /// From the ALPN protocol; HTTP/1 if there is none.
    pub fn from_alpn(protocol: Option<&[u8]>) -> Self {
        match protocol {
            Some(b"h2") => Self::Http2,
            _ => Self::Http1,
        }
    }
}

/// Serves one connection until it is closed; after `stop`, until the requests in progress are
/// done. A connection without a request for [`HEADER_TIMEOUT`] is closed, and so is one with a
/// response that is not read within its [`UnreadLimit`](crate::UnreadLimit).
pub async fn serve_http<A, F, B>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    protocol: HttpVersion,
    handler: A,
    stop: &CancellationToken,
) -> hyper::Result<()>
where
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let requests = ActiveRequests::default();
    let counted = requests.clone();
    let unread = UnreadResponses::default();
    let watched = unread.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let active = counted.begin();
        let (response, watched) = (handler(request), watched.clone());
        async move { Ok::<_, Infallible>(active.until_read(response.await, &watched)) }
    });
    let io = TokioIo::new(stream);
    match protocol {
        HttpVersion::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(MAX_STREAMS)
                .max_header_list_size(u32::try_from(MAX_HEADER_BYTES).unwrap_or(u32::MAX))
                .keep_alive_interval(KEEP_ALIVE)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .initial_stream_window_size(STREAM_WINDOW)
                .max_send_buf_size(PIECE_BYTES)
                .serve_connection(io, service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = requests.wait_idle(HEADER_TIMEOUT) => {
                    connection.as_mut().graceful_shutdown();
                    // A client that never sent the preface does not take part in the shutdown.
                    tokio::time::timeout(SHUTDOWN_TIMEOUT, connection).await.unwrap_or(Ok(()))
                }
                () = unread.wait_overdue(UNREAD_CHECK) => Ok(()),
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
        HttpVersion::Http1 => {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(MAX_HEADER_BYTES)
                .serve_connection(io, service)
                .with_upgrades();
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = unread.wait_overdue(UNREAD_CHECK) => Ok(()),
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    }
}

/// Enables TCP keep-alive: streams can be idle for hours, and a client whose machine lost power
/// closes nothing.
pub fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEP_ALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use http_body_util::Full;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    /// Connects to a server that responds to `/slow` after an hour and to all else at once.
    fn connect(
        protocol: HttpVersion,
        stop: &CancellationToken,
    ) -> (DuplexStream, JoinHandle<hyper::Result<()>>) {
        let (client, server) = duplex(64 * 1024);
        let stop = stop.clone();
        let handler = async |request: Request<Incoming>| {
            if request.uri().path() == "/slow" {
                tokio::time::sleep(Duration::from_secs(3600)).await;
            }
            Response::new(Full::new(Bytes::from("done")))
        };
        let serving =
            tokio::spawn(async move { serve_http(server, protocol, handler, &stop).await });
        (client, serving)
    }

    async fn all(mut client: DuplexStream) -> String {
        let mut text = Vec::new();
        client.read_to_end(&mut text).await.unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_slow_headers_is_closed() {
        // The preface of HTTP/2, and an empty SETTINGS.
        const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        for (protocol, sent) in [
            (HttpVersion::Http1, ""),
            (HttpVersion::Http1, "GET / HTTP/1.1\r\nhost: a\r\nx-slow:"),
            (HttpVersion::Http2, ""),
            (HttpVersion::Http2, "PRI * HTTP/2.0\r\n"),
            (HttpVersion::Http2, PREFACE),
        ] {
            let (mut client, serving) = connect(protocol, &CancellationToken::new());
            client.write_all(sent.as_bytes()).await.unwrap();
            let began = Instant::now();
            let _ = all(client).await;
            assert!(began.elapsed() < 2 * HEADER_TIMEOUT, "{protocol:?} {sent:?}");
            let _ = serving.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn http2_connection_that_only_answers_pings_is_closed() {
        let (client, serving) = connect(HttpVersion::Http2, &CancellationToken::new());
        let handshake = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(
            TokioExecutor::new(),
            TokioIo::new(client),
        );
        let (mut sender, connection) = handshake.await.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::get("http://a/slow").body(Full::default()).unwrap();
        let began = Instant::now();
        let response = sender.send_request(request).await.unwrap();
        assert!(began.elapsed() >= Duration::from_secs(3600), "a request in progress is not idle");
        drop(response);
        let _ = connection.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(3600) + 2 * HEADER_TIMEOUT);
        let _ = serving.await.unwrap();
    }

    /// Connects to a server that responds with a megabyte, which the client must read.
    fn connect_to_large(protocol: HttpVersion) -> (DuplexStream, JoinHandle<hyper::Result<()>>) {
        let (client, server) = duplex(64 * 1024);
        let handler = async |_: Request<Incoming>| {
            let mut response = Response::new(Full::new(Bytes::from(vec![b'a'; 1 << 20])));
            response.extensions_mut().insert(crate::UnreadLimit(Duration::from_secs(60)));
            response
        };
        let stop = CancellationToken::new();
        let serving =
            tokio::spawn(async move { serve_http(server, protocol, handler, &stop).await });
        (client, serving)
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_is_not_read_ends_the_connection() {
        let began = Instant::now();
        let (mut client, serving) = connect_to_large(HttpVersion::Http1);
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let _ = serving.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(70), "HTTP/1: {:?}", began.elapsed());

        // A client that never grants a window still answers pings.
        let began = Instant::now();
        let (client, serving) = connect_to_large(HttpVersion::Http2);
        let handshake = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(1)
            .handshake::<_, Full<Bytes>>(TokioIo::new(client));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let request = Request::get("http://a/").body(Full::default()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let _ = serving.await.unwrap();
        assert!(began.elapsed() >= Duration::from_secs(60), "HTTP/2: {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(70), "HTTP/2: {:?}", began.elapsed());
        drop(response);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_gets_all_of_a_response() {
        let (mut client, _serving) = connect_to_large(HttpVersion::Http1);
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut received = 0;
        let mut buffer = vec![0; 32 * 1024];
        loop {
            tokio::time::sleep(Duration::from_secs(30)).await;
            match client.read(&mut buffer).await.unwrap() {
                0 => break,
                read => received += read,
            }
        }
        assert!(received > 1 << 20, "{received}");
    }

    #[tokio::test]
    async fn oversized_request_is_refused_before_it_is_read() {
        const ENDLESS: usize = 10 * 1024 * 1024;
        for (case, begin) in [("a path", "GET /"), ("a header", "GET / HTTP/1.1\r\nhost: a\r\nx: ")]
        {
            let (client, _speaking) = connect(HttpVersion::Http1, &CancellationToken::new());
            let (mut reading, mut writing) = tokio::io::split(client);
            let writer = tokio::spawn(async move {
                let _ = writing.write_all(begin.as_bytes()).await;
                let mut sent = 0;
                while sent < ENDLESS && writing.write_all(&[b'a'; 4096]).await.is_ok() {
                    sent += 4096;
                }
                sent
            });
            let mut response = [0; 12];
            reading.read_exact(&mut response).await.unwrap();
            let status = std::str::from_utf8(&response[9..12]).unwrap().to_owned();
            assert!(["414", "431"].contains(&status.as_str()), "{case}: {status}");
            drop(reading);
            assert!(writer.await.unwrap() < 2 * MAX_HEADER_BYTES + 128 * 1024, "{case}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_in_progress_are_served_after_stop() {
        let stop = CancellationToken::new();
        let (mut busy, _) = connect(HttpVersion::Http1, &stop);
        let (idle, _) = connect(HttpVersion::Http1, &stop);
        busy.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
        assert_eq!(all(idle).await, "");
        let response = all(busy).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(response.contains("connection: close"), "{response}");
    }
}
