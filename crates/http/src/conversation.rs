//! HTTP on one connection.

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

use crate::quiet::Business;

/// From the first byte of a connection, or the end of the last answer, to the end of the headers.
pub const HEADERS: Duration = Duration::from_secs(90);
/// A request line and its headers. `kubectl exec` with a long script fits.
pub const HEADER_BYTES: usize = 128 * 1024;
const STREAMS: u32 = 250;
/// A client that vanished without a word is noticed after about three of these.
const ALIVE: Duration = Duration::from_secs(30);
/// For a goodbye to somebody who has asked nothing.
const FAREWELL: Duration = Duration::from_secs(2);

/// Which HTTP is spoken, as the handshake has settled it. Guessing it from the first bytes would
/// mean to wait for them, for ever if need be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiated {
    Http1,
    Http2,
}

impl Negotiated {
    /// By TLS's application protocol; without one it is HTTP/1.
    pub fn from_alpn(protocol: Option<&[u8]>) -> Self {
        match protocol {
            Some(b"h2") => Self::Http2,
            _ => Self::Http1,
        }
    }
}

/// One conversation, to its end; once stopped, to the end of what is under way. A client that asks
/// nothing for [`HEADERS`] is hung up on.
pub async fn speak<A, F, B>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    spoken: Negotiated,
    answer: A,
    stop: &CancellationToken,
) -> hyper::Result<()>
where
    A: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let business = Business::default();
    let asked = business.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let under_way = asked.begin();
        let answer = answer(request);
        async move { Ok::<_, Infallible>(under_way.until_read(answer.await)) }
    });
    let io = TokioIo::new(stream);
    match spoken {
        Negotiated::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX))
                .keep_alive_interval(ALIVE)
                .serve_connection(io, service);
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = business.rests_for(HEADERS) => {
                    connection.as_mut().graceful_shutdown();
                    // One that never greeted has nobody to say goodbye to.
                    tokio::time::timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
                }
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
        Negotiated::Http1 => {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS)
                .max_buf_size(HEADER_BYTES)
                .serve_connection(io, service)
                .with_upgrades();
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    }
}

/// Streams are silent for hours, and a client whose machine lost power says no goodbye.
pub fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, ALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, ALIVE);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use http_body_util::Full;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    /// A connection to a server that answers `/slow` after an hour and all else at once.
    fn connect(
        spoken: Negotiated,
        stop: &CancellationToken,
    ) -> (DuplexStream, JoinHandle<hyper::Result<()>>) {
        let (client, server) = duplex(64 * 1024);
        let stop = stop.clone();
        let answer = async |request: Request<Incoming>| {
            if request.uri().path() == "/slow" {
                tokio::time::sleep(Duration::from_secs(3600)).await;
            }
            Response::new(Full::new(Bytes::from("here")))
        };
        let speaking = tokio::spawn(async move { speak(server, spoken, answer, &stop).await });
        (client, speaking)
    }

    async fn all(mut client: DuplexStream) -> String {
        let mut text = Vec::new();
        client.read_to_end(&mut text).await.unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_too_long_over_its_headers_is_hung_up_on() {
        // The preface of HTTP/2, and an empty SETTINGS.
        const GREETING: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        for (spoken, sent) in [
            (Negotiated::Http1, ""),
            (Negotiated::Http1, "GET / HTTP/1.1\r\nhost: a\r\nx-slow:"),
            (Negotiated::Http2, ""),
            (Negotiated::Http2, "PRI * HTTP/2.0\r\n"),
            (Negotiated::Http2, GREETING),
        ] {
            let (mut client, speaking) = connect(spoken, &CancellationToken::new());
            client.write_all(sent.as_bytes()).await.unwrap();
            let began = Instant::now();
            let _ = all(client).await;
            assert!(began.elapsed() < 2 * HEADERS, "{spoken:?} {sent:?}");
            let _ = speaking.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_answers_pings_and_asks_nothing_is_hung_up_on() {
        let (client, speaking) = connect(Negotiated::Http2, &CancellationToken::new());
        let handshake = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(
            TokioExecutor::new(),
            TokioIo::new(client),
        );
        let (mut asking, connection) = handshake.await.unwrap();
        let connection = tokio::spawn(connection);
        let request = Request::get("http://a/slow").body(Full::default()).unwrap();
        let began = Instant::now();
        let answer = asking.send_request(request).await.unwrap();
        assert!(began.elapsed() >= Duration::from_secs(3600), "what is asked is waited for");
        drop(answer);
        let _ = connection.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(3600) + 2 * HEADERS);
        let _ = speaking.await.unwrap();
    }

    #[tokio::test]
    async fn a_request_that_is_too_long_is_refused_before_it_is_read() {
        const ENDLESS: usize = 10 * 1024 * 1024;
        for (case, begin) in [("a path", "GET /"), ("a header", "GET / HTTP/1.1\r\nhost: a\r\nx: ")]
        {
            let (client, _speaking) = connect(Negotiated::Http1, &CancellationToken::new());
            let (mut reading, mut writing) = tokio::io::split(client);
            let writer = tokio::spawn(async move {
                let _ = writing.write_all(begin.as_bytes()).await;
                let mut sent = 0;
                while sent < ENDLESS && writing.write_all(&[b'a'; 4096]).await.is_ok() {
                    sent += 4096;
                }
                sent
            });
            let mut answer = [0; 12];
            reading.read_exact(&mut answer).await.unwrap();
            let status = std::str::from_utf8(&answer[9..12]).unwrap().to_owned();
            assert!(["414", "431"].contains(&status.as_str()), "{case}: {status}");
            drop(reading);
            assert!(writer.await.unwrap() < 2 * HEADER_BYTES + 128 * 1024, "{case}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_answered_after_the_stop_and_nothing_more() {
        let stop = CancellationToken::new();
        let (mut busy, _) = connect(Negotiated::Http1, &stop);
        let (idle, _) = connect(Negotiated::Http1, &stop);
        busy.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        stop.cancel();
        assert_eq!(all(idle).await, "");
        let answer = all(busy).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
}
