//! `serve`, seen from outside.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use crate::program::{LIMIT, Program, http};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;

#[test]
fn pages_respond_as_requested() {
    let mut server = Program::start(&["serve", "--http", "0"]);
    let port = server.port("http");
    for (path, status, body) in [
        ("/", 200, "hello from web-0\n"),
        ("/healthz", 200, "ok\n"),
        ("/readyz", 200, "ok\n"),
        ("/status/418", 418, "418 I'm a teapot\n"),
        ("/status/101", 400, "no such status\n"),
        ("/status/20", 400, "no such status\n"),
        ("/delay/1", 200, "after 1 ms\n"),
        ("/headers", 200, "host: pod\nx-probe: yes\n"),
        ("/bytes/0", 200, ""),
        ("/bytes/10000", 200, &"x".repeat(10_000)),
    ] {
        let response = http("GET", port, path);
        assert_eq!((response.status, response.body.as_str()), (status, body), "{path}");
    }
    assert!(http("GET", port, "/env").body.lines().any(|line| line == "POD_NAME=web-0"));

    let redirect = http("GET", port, "/redirect?to=http://other:81/x");
    assert_eq!(redirect.status, 302);
    assert!(redirect.head.contains("location: http://other:81/x"), "{}", redirect.head);
}

#[test]
fn health_changes_by_request_and_is_mirrored_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("healthy");
    let mut server =
        Program::start(&["serve", "--http", "0", "--health-file", file.to_str().unwrap()]);
    let port = server.port("http");
    until("the file exists", || file.exists());

    assert_eq!(http("POST", port, "/set/ready/false").status, 200);
    assert_eq!(http("GET", port, "/readyz").status, 503);
    assert_eq!(http("GET", port, "/healthz").status, 200);

    assert_eq!(http("POST", port, "/set/live/false").status, 200);
    assert_eq!(http("GET", port, "/healthz").status, 500);
    until("the file is removed", || !file.exists());

    http("POST", port, "/set/live/true");
    http("POST", port, "/set/ready/true");
    assert_eq!(http("GET", port, "/healthz").status, 200);
    assert_eq!(http("GET", port, "/readyz").status, 200);
    until("the file is back", || file.exists());
}

#[test]
fn readiness_starts_and_liveness_ends_with_time() {
    let mut server =
        Program::start(&["serve", "--http", "0", "--ready-after", "0.05", "--fail-after", "0.05"]);
    let port = server.port("http");
    until("it is ready", || http("GET", port, "/readyz").status == 200);
    until("it is not live", || http("GET", port, "/healthz").status == 500);

    let mut never = Program::start(&["serve", "--http", "0", "--ready-after", "3600"]);
    let port = never.port("http");
    assert_eq!(http("GET", port, "/readyz").status, 503);
}

#[test]
fn request_can_end_it_with_any_code() {
    let mut server = Program::start(&["serve", "--http", "0"]);
    let port = server.port("http");
    assert_eq!(http("POST", port, "/exit/7").body, "goodbye\n");
    assert_eq!(server.end().0.code(), Some(7));
}

#[test]
fn sigterm_ends_it_with_its_code_even_with_an_open_connection() {
    for (arguments, code) in [
        (&["serve", "--tcp", "0"][..], 0),
        (&["serve", "--tcp", "0", "--stop-code", "3", "--linger", "0.05"], 3),
    ] {
        let mut server = Program::start(arguments);
        let _client = TcpStream::connect(("127.0.0.1", server.port("tcp"))).unwrap();
        server.send(Signal::TERM);
        let (status, output) = server.end();
        assert_eq!((status.code(), output.as_str()), (Some(code), "asked to stop\n"));
    }
}

#[test]
fn requests_are_logged_with_their_status() {
    let mut server = Program::start(&["serve", "--http", "0", "--log-requests"]);
    let port = server.port("http");
    http("GET", port, "/status/204");
    assert_eq!(server.line(), "GET /status/204 204 -");
}

#[test]
fn tcp_port_echoes() {
    let mut server = Program::start(&["serve", "--tcp", "0"]);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port("tcp"))).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"there and back").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    assert_eq!(back, "there and back");
}

#[test]
fn grpc_health_follows_the_state() {
    let mut server =
        Program::start(&["serve", "--http", "0", "--grpc", "0", "--ready-after", "3600"]);
    let (web, grpc) = (server.port("http"), server.port("grpc"));
    const SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 1];
    const NOT_SERVING: &[u8] = &[0, 0, 0, 0, 2, 8, 2];

    assert_eq!(call(grpc, "Check", &request("")), ("0".into(), SERVING.into()));
    assert_eq!(call(grpc, "Check", &request("liveness")), ("0".into(), SERVING.into()));
    assert_eq!(call(grpc, "Check", &request("readiness")), ("0".into(), NOT_SERVING.into()));
    assert_eq!(call(grpc, "Check", &request("other")), ("5".into(), vec![]));
    assert_eq!(call(grpc, "Check", b"\0\0"), ("3".into(), vec![]));
    assert_eq!(call(grpc, "Watch", &request("")), ("12".into(), vec![]));

    http("POST", web, "/set/live/false");
    assert_eq!(call(grpc, "Check", &request("")), ("0".into(), NOT_SERVING.into()));
}

/// A framed HealthCheckRequest, written by hand from the specification.
fn request(service: &str) -> Vec<u8> {
    let message = match service.len() as u8 {
        0 => vec![],
        length => [&[10, length], service.as_bytes()].concat(),
    };
    [&[0, 0, 0, 0, message.len() as u8], message.as_slice()].concat()
}

/// A gRPC call: the status, from trailers or headers, and the body.
fn call(port: u16, method: &str, body: &[u8]) -> (String, Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let request = http::Request::post(format!("http://pod/grpc.health.v1.Health/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(Bytes::copy_from_slice(body)))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let headers = response.headers().clone();
        let body = response.into_body().collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = headers.get("grpc-status").or(trailers.get("grpc-status")).unwrap();
        (status.to_str().unwrap().to_owned(), body.to_bytes().to_vec())
    })
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {LIMIT:?} until {what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
