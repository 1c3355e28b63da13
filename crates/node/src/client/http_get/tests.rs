//! Tests against servers on loopback with scripted responses.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::client::test_server;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Responds to one connection after the other with these texts, to an empty one not at all. Returns
/// the received requests.
async fn server<const N: usize>(
    answers: [&'static str; N],
) -> (u16, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (told, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut silent = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && !request.starts_with(b"\x16") {
                let mut byte = [0];
                if stream.read(&mut byte).await.unwrap_or(0) == 0 {
                    break;
                }
                request.push(byte[0]);
            }
            told.send(String::from_utf8_lossy(&request).into_owned()).ok();
            stream.write_all(answer.as_bytes()).await.ok();
            if answer.is_empty() || answer.contains("Content-Length: 99") {
                silent.push(stream);
            }
        }
        std::future::pending::<()>().await;
    });
    (port, heard)
}

fn check(port: u16, path: &str, headers: &[(&str, &str)]) -> HttpCheck {
    let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    HttpCheck { https: false, host: None, port, path: path.into(), headers }
}

async fn ask(check: &HttpCheck) -> Result<GetResponse, String> {
    let mut request = GetRequest::of(check, HERE, "kube-probe/1.36");
    request.deadline = Some(Instant::now() + Duration::from_secs(5));
    get(&request).await.map_err(|error| error.to_string())
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn request_has_the_given_headers_and_few_others() {
    for (case, path, headers, want, not) in [
        (
            "defaults",
            "/healthz?full=1",
            &[][..],
            &[
                "GET /healthz?full=1 HTTP/1.1\r\n",
                "User-Agent: kube-probe/1.36\r\n",
                "Accept: */*\r\n",
                "Host: 127.0.0.1:",
                "Connection: close\r\n",
            ][..],
            &["Accept-Encoding"][..],
        ),
        (
            "given headers",
            "",
            &[
                ("User-Agent", "me"),
                ("Accept", ""),
                ("Host", "a.example"),
                ("Host", "b"),
                ("X-A", "1"),
                ("X-A", "2"),
            ],
            &[
                "GET / HTTP/1.1\r\n",
                "User-Agent: me\r\n",
                "Host: a.example\r\n",
                "X-A: 1\r\n",
                "X-A: 2\r\n",
            ],
            &["Accept", "Host: b", "kube-probe"],
        ),
        ("with an odd path", "a b/ü|#here", &[], &["GET /a%20b/%C3%BC%7C HTTP/1.1\r\n"], &["here"]),
    ] {
        let (port, mut heard) = server([OK]).await;
        let answer = ask(&check(port, path, headers)).await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (200, &b"ok"[..]), "{case}");
        let asked = heard.recv().await.unwrap();
        assert!(want.iter().all(|line| asked.contains(line)), "{case}: {asked}");
        assert!(!not.iter().any(|line| asked.contains(line)), "{case}: {asked}");
    }
}

#[tokio::test]
async fn redirect_on_the_same_host_is_followed_with_the_probes_headers() {
    let there = "HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n";
    let (port, mut heard) = server([there, OK]).await;
    let asked = check(port, "/a", &[("Host", "a.example"), ("X-A", "1")]);
    assert_eq!(ask(&asked).await.unwrap().status, 200);
    for path in ["/a", "/b"] {
        let asked = heard.recv().await.unwrap();
        let first = format!("GET {path} HTTP/1.1\r\n");
        assert!(asked.starts_with(&first) && asked.contains("X-A: 1\r\n"), "{asked}");
        assert!(asked.contains("Host: a.example\r\n"), "{asked}");
    }
    let elsewhere = "HTTP/1.1 302 Found\r\nLocation: http://example.invalid/\r\n\r\nmoved";
    let (port, _) = server([elsewhere]).await;
    let answer = ask(&check(port, "/", &[])).await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (302, &b"moved"[..]));
}

#[tokio::test]
async fn missing_response_is_reported_in_gos_words() {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let closed = listener.local_addr().unwrap().port();
    drop(listener);
    let error = ask(&check(closed, "/x", &[])).await.unwrap_err();
    let want = format!(
        "Get \"http://127.0.0.1:{closed}/x\": dial tcp 127.0.0.1:{closed}: connect: connection refused"
    );
    assert_eq!(error, want);

    let (port, _heard) = server(["", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nno more"]).await;
    let check = check(port, "/", &[]);
    for (case, want) in [
        ("no head", "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"),
        (
            "half a body",
            "context deadline exceeded (Client.Timeout or context cancellation while reading body)",
        ),
    ] {
        let mut request = GetRequest::of(&check, HERE, "kube-probe/1.36");
        request.deadline = Some(Instant::now() + Duration::from_millis(300));
        let error = get(&request).await.unwrap_err().to_string();
        assert!(error.ends_with(want), "{case}: {error}");
    }
}

#[tokio::test]
async fn invalid_response_is_an_error_and_long_body_is_truncated() {
    let (port, _heard) = server(["bye\r\n"]).await;
    assert!(ask(&check(port, "/", &[])).await.is_err());

    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        // A response must not be sent before its request.
        while stream.read_u8().await.unwrap() != b'\n' {}
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        // Never ends, until the client closes the connection.
        while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
    });
    let answer = ask(&check(port, "/", &[])).await.unwrap();
    assert_eq!(answer.body.len(), OUTPUT_LIMIT);
}

#[tokio::test]
async fn server_without_tls_is_distinguished_from_a_tls_error() {
    let (port, _heard) = server(["HTTP/1.1 400 Bad Request\r\n\r\n"]).await;
    let mut check = check(port, "/", &[]);
    check.https = true;
    let error = get(&GetRequest::of(&check, HERE, "kube-lifecycle/1.36")).await.unwrap_err();
    assert!(matches!(error, GetError::NoTls { .. }), "{error}");
    assert!(error.to_string().ends_with("http: server gave HTTP response to HTTPS client"));
}

#[test]
fn credentials_are_not_sent_unencrypted() {
    let headers = [("authorization", "secret"), ("X", "1")];
    let headers = headers.map(|(n, v)| (n.to_owned(), v.to_owned()));
    assert_eq!(without_credentials(&headers), [("X".to_owned(), "1".to_owned())]);
}

#[tokio::test]
async fn any_certificate_is_accepted() {
    let key = rcgen::generate_simple_self_signed(vec!["nobody.example".into()]).unwrap();
    let certificate = key.cert.der().clone();
    let secret =
        rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], secret)
        .unwrap();
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        stream.write_all(OK.as_bytes()).await.unwrap();
        stream.shutdown().await.ok();
    });
    let mut check = check(port, "/", &[]);
    check.https = true;
    assert_eq!(ask(&check).await.unwrap().status, 200);
}

#[tokio::test]
async fn redirect_is_followed_even_if_its_body_breaks_off() {
    let there = "HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 50\r\n\r\nhalf";
    let (port, _heard) = server([there, OK]).await;
    assert_eq!(ask(&check(port, "/a", &[])).await.unwrap().status, 200);
    // The final response decides the probe; an incomplete one is a failure.
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf";
    let (port, _heard) = server([half]).await;
    assert!(ask(&check(port, "/a", &[])).await.is_err());
}

/// Responds with everything of the request, headers sorted by name.
fn echo(request: &Request<Incoming>) -> String {
    let headers = request.headers().iter();
    let mut headers: Vec<String> =
        headers.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    headers.sort();
    format!("{:?} {}\n{}", request.version(), request.uri(), headers.join("\n"))
}

#[tokio::test]
async fn https_server_is_asked_over_http2_if_it_has_it() {
    for (protocols, want) in [
        (
            &[&b"h2"[..]][..],
            "HTTP/2.0 https://a.example/healthz?full=1\naccept: */*\n\
             user-agent: kube-probe/1.36\nx-a: 1",
        ),
        (
            &[b"h2", b"http/1.1"],
            "HTTP/2.0 https://a.example/healthz?full=1\naccept: */*\n\
             user-agent: kube-probe/1.36\nx-a: 1",
        ),
        (
            &[b"http/1.1"],
            "HTTP/1.1 /healthz?full=1\naccept: */*\nconnection: close\nhost: a.example\n\
             keep-alive: timeout=5\nuser-agent: kube-probe/1.36\nx-a: 1",
        ),
    ] {
        let (address, _) = test_server::serve_tls(Vec::new(), protocols, echo).await;
        let headers = [("Host", "a.example"), ("X-A", "1"), ("Keep-Alive", "timeout=5")];
        let mut check = check(address.port(), "/healthz?full=1", &headers);
        check.https = true;
        let answer = ask(&check).await.unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(String::from_utf8(answer.body).unwrap(), want);
    }
}

#[tokio::test]
async fn long_body_over_http2_is_truncated() {
    let long = |_: &Request<Incoming>| "x".repeat(1024 * 1024);
    let (address, _) = test_server::serve_tls(Vec::new(), &[b"h2"], long).await;
    let mut check = check(address.port(), "/", &[]);
    check.https = true;
    assert_eq!(ask(&check).await.unwrap().body.len(), OUTPUT_LIMIT);
}

#[tokio::test]
async fn host_that_http2_cannot_send_is_an_error() {
    let (address, _) = test_server::serve_tls(Vec::new(), &[b"h2"], echo).await;
    let mut check = check(address.port(), "/", &[("Host", "not an authority")]);
    check.https = true;
    let error = ask(&check).await.unwrap_err();
    assert!(error.starts_with("Get \"https://127.0.0.1:"), "{error}");
}
