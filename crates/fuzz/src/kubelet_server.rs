//! Connections to the kubelet server, from the first byte to the options of a request.

use http::Request;
use hyper::body::Incoming;
use podwright_http::{HEADER_TIMEOUT, HttpVersion, serve_http};
use podwright_node::server::fuzzing;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio_util::sync::CancellationToken;

/// The bytes that a client sends, after one that chooses the version of HTTP.
pub(crate) fn requests(bytes: &[u8]) {
    let Some((first, sent)) = bytes.split_first() else { return };
    let http1 = first % 4 != 0;
    let version = if http1 { HttpVersion::Http1 } else { HttpVersion::Http2 };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.unwrap_or_else(|error| panic!("{error}"));
    runtime.block_on(async {
        let (client, server) = duplex(1 << 20);
        let (mut reading, mut writing) = tokio::io::split(client);
        let handler = async |request: Request<Incoming>| fuzzing::respond(&request);
        let stop = CancellationToken::new();
        let serving =
            tokio::spawn(async move { serve_http(server, version, handler, &stop).await });
        let mut received = Vec::new();
        let exchange = async {
            let _ = writing.write_all(sent).await;
            let _ = reading.read_to_end(&mut received).await;
        };
        let closed = tokio::time::timeout(4 * HEADER_TIMEOUT, exchange).await.is_ok();
        assert!(closed, "the connection stays open");
        assert!(serving.await.is_ok(), "the server panicked");
        if http1 {
            assert!(received.is_empty() || received.starts_with(b"HTTP/1."), "{received:?}");
        }
    });
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let h1 = [
        "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /containerLogs/ns/web/app?tailLines=5&sinceTime=2026-01-01T00:00:00Z&limitBytes=9&follow=true HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST /exec/ns/web/uid/app?command=a%20b&input=1&output=1&tty=1 HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\r\n",
        "GET /attach/ns/web/app?error=1&output=1 HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-protocol: v5.channel.k8s.io, v4.channel.k8s.io\r\n\r\n",
        "GET /portForward/ns/web?port=80,81&port=82 HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "POST /run/ns/web/app?cmd=ls+-l HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET /stats/summary?only_cpu_and_memory=true HTTP/1.0\r\n\r\n",
        "GET /metrics/cadvisor/ HTTP/1.1\r\nhost: a\r\nauthorization: Bearer x\r\n\r\nGET /..%2fpods HTTP/1.1\r\nhost: a\r\n\r\n",
    ];
    let mut seeds: Vec<Vec<u8>> =
        h1.iter().map(|text| [b"\x01", text.as_bytes()].concat()).collect();
    // The preface, empty SETTINGS, and HEADERS of GET /pods.
    let mut h2 = b"\0PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    h2.extend_from_slice(b"\0\0\x0c\x01\x05\0\0\0\x01\x82\x86\x41\x01a\x44\x05/pods");
    seeds.push(h2);
    seeds
}
