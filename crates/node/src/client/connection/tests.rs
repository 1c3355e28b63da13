//! Tests against a real HTTP/2 server on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use base64::Engine;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use rcgen::KeyPair;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::*;

/// The server's action for a request, by its number.
type Behaviour = fn(usize) -> Act;

#[derive(Clone, Copy)]
enum Act {
    Answer,
    /// 429, retry immediately.
    Busy,
    /// Respond, and close the connection for all other requests.
    GoAway,
    /// Begin a response that never ends.
    Stream,
    /// 500.
    Fault,
    /// Never respond.
    Silence,
    /// Stop all activity on this connection, as after a power failure.
    Freeze,
}

struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    dir: TempDir,
    /// A connection is frozen.
    frozen: CancellationToken,
    stop: CancellationToken,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Certificate of the server; the same after a restart.
struct Identity {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl Identity {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        Self { certificate: params.self_signed(&key).unwrap(), key }
    }

    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::new(self.server_config()))
    }

    fn server_config(&self) -> rustls::ServerConfig {
        // Another test may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let der = CertificateDer::from(self.certificate.der().to_vec());
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        let mut tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![der], key)
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        tls
    }

    fn kubeconfig(&self, address: SocketAddr) -> String {
        let authority = base64::engine::general_purpose::STANDARD.encode(self.certificate.pem());
        let cluster = json!({
            "server": format!("https://{address}"), "certificate-authority-data": authority,
        });
        let document = json!({
            "clusters": [{ "name": "c", "cluster": cluster }],
            "users": [{ "name": "u", "user": { "token": "t" } }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "x",
        });
        document.to_string()
    }
}

impl Server {
    async fn start(streams: u32, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, &Identity::new(), streams, behaviour)
    }

    fn on(listener: TcpListener, identity: &Identity, streams: u32, behaviour: Behaviour) -> Self {
        let address = listener.local_addr().unwrap();
        let dir = TempDir::new().unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(kubeconfig, identity.kubeconfig(address)).unwrap();
        let (connections, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let (counted, stopped) = (connections.clone(), stop.clone());
        let frozen = CancellationToken::new();
        let freeze = frozen.clone();
        let acceptor = identity.acceptor();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            let requests = Arc::new(AtomicUsize::new(0));
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let Ok(stream) = acceptor.accept(tcp).await else { continue };
                counted.fetch_add(1, SeqCst);
                let (requests, stopped) = (requests.clone(), stopped.clone());
                // Only the first connection that is told to freeze does.
                let freeze =
                    if freeze.is_cancelled() { CancellationToken::new() } else { freeze.clone() };
                tokio::spawn(serve(stream, streams, behaviour, requests, freeze, stopped));
            }
        }));
        Self { address, connections, dir, frozen, stop }
    }

    async fn connections(&self) -> (Connections, kube::Client) {
        let path = self.dir.path().join("kubeconfig");
        let credentials = Arc::new(Credentials::read(&path, None).await.unwrap());
        let client = Connections::client(&credentials, &Arc::default()).unwrap();
        (Connections::new(credentials, Arc::default()), client)
    }
}

async fn serve(
    stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>,
    streams: u32,
    behaviour: Behaviour,
    requests: Arc<AtomicUsize>,
    freeze: CancellationToken,
    stop: CancellationToken,
) {
    let leave = CancellationToken::new();
    let (leaving, freezing) = (leave.clone(), freeze.clone());
    let service = service_fn(move |_: Request<hyper::body::Incoming>| {
        let act = behaviour(requests.fetch_add(1, SeqCst));
        let (leave, freeze) = (leave.clone(), freeze.clone());
        async move {
            if let Act::Freeze = act {
                freeze.cancel();
            }
            match answer(act, &leave) {
                Some(response) => Ok::<_, Infallible>(response),
                None => std::future::pending().await,
            }
        }
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(streams)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => return,
        () = leaving.cancelled() => connection.as_mut().graceful_shutdown(),
        // The socket stays open, so the peer is not notified.
        () = freezing.cancelled() => stop.cancelled().await,
    }
    let _ = connection.await;
}

type Answered = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// `None`: no response.
fn answer(act: Act, leave: &CancellationToken) -> Option<Response<Answered>> {
    let node = json!({ "metadata": { "name": "n" } }).to_string();
    let whole = |text: String| Full::new(Bytes::from(text)).boxed_unsync();
    Some(match act {
        Act::Silence | Act::Freeze => return None,
        Act::Fault => Response::builder().status(500).body(whole("no".to_owned())).unwrap(),
        Act::Answer => Response::new(whole(node)),
        Act::GoAway => {
            leave.cancel();
            Response::new(whole(node))
        }
        Act::Busy => {
            let response = Response::builder().status(429).header(header::RETRY_AFTER, "0");
            response.body(whole(String::new())).unwrap()
        }
        Act::Stream => {
            let never = futures::stream::pending::<Result<hyper::body::Frame<Bytes>, Infallible>>();
            Response::new(http_body_util::StreamBody::new(never).boxed_unsync())
        }
    })
}

fn watch(server: &Server, number: usize) -> Request<Body> {
    let uri = format!("https://{}/api/v1/pods?watch=true&n={number}", server.address);
    Request::get(uri).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn stream_above_the_limit_opens_another_connection_without_waiting() {
    let server = Server::start(2, |_| Act::Stream).await;
    let (connections, _) = server.connections().await;
    let mut open = Vec::new();
    for number in 0..5 {
        open.push(connections.clone().answer(watch(&server, number)).await.unwrap());
    }
    assert_eq!(server.connections.load(SeqCst), 3, "five streams, two on each");
    // A stream that ended frees its slot.
    open.remove(0);
    open.push(connections.clone().answer(watch(&server, 5)).await.unwrap());
    assert_eq!(server.connections.load(SeqCst), 3);
    assert_eq!(connections.pool.connections(), 3);
}

#[tokio::test]
async fn repeated_goaway_loses_no_request() {
    let server =
        Server::start(100, |number| if number % 3 == 2 { Act::GoAway } else { Act::Answer }).await;
    let (_, client) = server.connections().await;
    let nodes: Api<Node> = Api::all(client);
    for _ in 0..10 {
        let asked = (0..6).map(|_| nodes.get("n"));
        for answer in futures::future::join_all(asked).await {
            answer.unwrap();
        }
    }
    assert!(server.connections.load(SeqCst) > 1);
}

#[tokio::test]
async fn watch_survives_on_a_connection_that_takes_no_new_streams() {
    let server = Server::start(100, |number| match number {
        0 => Act::Stream,
        1 => Act::GoAway,
        _ => Act::Answer,
    })
    .await;
    let (connections, _) = server.connections().await;
    let ask = |connections: &Connections| {
        let uri = format!("https://{}/api/v1/nodes/n", server.address);
        connections.clone().answer(Request::get(uri).body(Body::empty()).unwrap())
    };
    let mut watch = connections.clone().answer(watch(&server, 0)).await.unwrap();
    for _ in 0..5 {
        ask(&connections).await.unwrap();
    }
    assert!(futures::poll!(watch.frame()).is_pending(), "it is still open");
    assert_eq!(server.connections.load(SeqCst), 2);
}

#[tokio::test]
async fn busy_server_is_retried_after_its_delay() {
    let server =
        Server::start(100, |number| if number < 3 { Act::Busy } else { Act::Answer }).await;
    let (_, client) = server.connections().await;
    Api::<Node>::all(client).get("n").await.unwrap();
}

#[tokio::test]
async fn watch_waits_for_an_unreachable_server_and_other_requests_fail() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let identity = Identity::new();
    drop(listener);
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("kubeconfig");
    std::fs::write(&path, identity.kubeconfig(address)).unwrap();
    let credentials = Arc::new(Credentials::read(&path, None).await.unwrap());
    let connections = Connections::new(credentials, Arc::default());
    let uri = format!("https://{address}/api/v1/pods?watch=true");
    let request = Request::get(uri).body(Body::empty()).unwrap();
    let waiting = tokio::spawn(connections.clone().answer(request));
    let error = connections.pool.stream_slot(Some(Duration::from_millis(300))).await.err().unwrap();
    assert!(error.to_string().contains("cannot reach the API server"), "{error}");
    assert!(!waiting.is_finished());
    let listener = TcpListener::bind(address).await.unwrap();
    let server = Server::on(listener, &identity, 100, |_| Act::Stream);
    waiting.await.unwrap().unwrap();
    assert_eq!(server.connections.load(SeqCst), 1);
}

#[tokio::test]
async fn server_error_and_missing_response_are_reported() {
    let server = Server::start(100, |number| match number {
        0 => Act::Fault,
        _ => Act::Silence,
    })
    .await;
    let (_, client) = server.connections().await;
    let nodes: Api<Node> = Api::all(client);
    let error = nodes.get("n").await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 500), "{error}");
    // The connection is alive, so the response timeout applies.
    tokio::time::pause();
    let error = nodes.get("n").await.unwrap_err();
    assert!(matches!(&error, kube::Error::Service(_) | kube::Error::HyperError(_)), "{error:?}");
}

#[tokio::test]
async fn vanished_peer_is_detected_by_ping() {
    let server = Server::start(100, |number| match number {
        0 => Act::Stream,
        1 => Act::Freeze,
        _ => Act::Answer,
    })
    .await;
    let (connections, _) = server.connections().await;
    let mut watch = connections.clone().answer(watch(&server, 0)).await.unwrap();
    let uri = format!("https://{}/api/v1/nodes/n", server.address);
    let request = Request::get(uri).body(Body::empty()).unwrap();
    let asked = tokio::spawn(connections.clone().answer(request));
    // The request has to arrive before time is paused.
    while connections.pool.connections() == 0 || !server.frozen.is_cancelled() {
        tokio::task::yield_now().await;
    }
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    assert!(watch.frame().await.is_none_or(|frame| frame.is_err()), "it ends");
    assert!(began.elapsed() <= Duration::from_secs(45), "{:?}", began.elapsed());
    tokio::time::resume();
    // A read is idempotent, so it is repeated on another connection.
    assert_eq!(asked.await.unwrap().unwrap().status(), 200);
    assert_eq!(server.connections.load(SeqCst), 2);
}

#[tokio::test]
async fn credentials_without_files_are_loaded_once() {
    let server = Server::start(100, |_| Act::Answer).await;
    let path = server.dir.path().join("kubeconfig");
    let credentials = Credentials::read(&path, None).await.unwrap();
    for _ in 0..3 {
        credentials.reload();
    }
    assert_eq!(credentials.generation(), 1, "connections are not replaced without need");
}

#[tokio::test]
async fn exec_plugin_runs_again_when_its_certificate_has_expired() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Identity::new();
    // The output of the plugin.
    let says = dir.path().join("says");
    let give = |until: i32| {
        let key = KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        let answer = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {
                "clientCertificateData": certificate.pem(), "clientKeyData": key.serialize_pem(),
            },
        });
        std::fs::write(&says, answer.to_string()).unwrap();
    };
    let mut kubeconfig: serde_json::Value =
        serde_json::from_str(&authority.kubeconfig(([127, 0, 0, 1], 1).into())).unwrap();
    kubeconfig["users"][0]["user"] = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "cat",
        "args": [says.to_str().unwrap()], "interactiveMode": "Never",
    } });
    let path = dir.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();

    give(2001);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let credentials = Credentials::read(&path, None).await.unwrap();
    assert!(credentials.validity().unwrap().is_expired(jiff::Timestamp::now()));
    give(2999);
    for _ in 0..3 {
        credentials.reload();
    }
    assert!(!credentials.validity().unwrap().is_expired(jiff::Timestamp::now()));
    assert_eq!(credentials.generation(), 2, "a valid certificate is kept");
}

#[tokio::test]
async fn dial_that_outlasts_its_caller_serves_the_next_one() {
    // The kernel accepts the connection, but no server responds on it yet.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, identity) = (listener.local_addr().unwrap(), Identity::new());
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("kubeconfig");
    std::fs::write(&path, identity.kubeconfig(address)).unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let credentials = Arc::new(Credentials::read(&path, None).await.unwrap());
    let connections = Connections::new(credentials, Arc::default());
    assert!(connections.pool.stream_slot(Some(Duration::from_millis(100))).await.is_err());
    let server = Server::on(listener, &identity, 100, |_| Act::Answer);
    // The connection is opened although no request waits for it. The client has completed its
    // handshake before the server has read the end of it, so both sides are awaited.
    let opened = async {
        while connections.pool.connections() == 0 || server.connections.load(SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), opened).await.unwrap();
    connections.pool.stream_slot(Some(UNREACHABLE_TIMEOUT)).await.unwrap();
    assert_eq!(connections.pool.connections(), 1, "the slot is on the same connection");
    assert_eq!(server.connections.load(SeqCst), 1);
}

#[tokio::test]
async fn requests_name_the_kubelet_as_their_user_agent() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, Identity::new().kubeconfig(([127, 0, 0, 1], 1).into())).unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let credentials = Credentials::read(&path, None).await.unwrap();
    let sent: Vec<_> = credentials.config().headers.iter().map(|(name, _)| name).collect();
    assert_eq!(sent, [header::USER_AGENT]);
    let (manager, rest) =
        credentials.config().headers[0].1.to_str().unwrap().split_once('/').unwrap();
    assert_eq!(manager, "kubelet");
    assert!(rest.starts_with("v1.36.4 (linux/") && rest.contains(") podwright/"), "{rest}");
}

/// A CONNECT proxy that connects every tunnel to one server, and counts them.
struct ConnectProxy {
    address: SocketAddr,
    targets: Arc<parking_lot::Mutex<Vec<String>>>,
}

impl ConnectProxy {
    /// With an identity it is an https proxy.
    async fn start(server: SocketAddr, identity: Option<&Identity>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let targets = Arc::<parking_lot::Mutex<Vec<String>>>::default();
        let counted = targets.clone();
        let acceptor = identity.map(|identity| {
            let mut tls = identity.server_config();
            tls.alpn_protocols.clear();
            TlsAcceptor::from(Arc::new(tls))
        });
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                match &acceptor {
                    None => drop(tokio::spawn(tunnel(tcp, server, counted.clone()))),
                    Some(acceptor) => {
                        let Ok(stream) = acceptor.accept(tcp).await else { continue };
                        tokio::spawn(tunnel(stream, server, counted.clone()));
                    }
                }
            }
        });
        Self { address, targets }
    }
}

async fn tunnel<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    stream: S,
    server: SocketAddr,
    targets: Arc<parking_lot::Mutex<Vec<String>>>,
) {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
    let mut stream = tokio::io::BufReader::new(stream);
    let (mut head, mut line) = (String::new(), String::new());
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).await.unwrap();
        head.push_str(&line);
    }
    let authorized = head.contains("Proxy-Authorization: Basic dTpw\r\n");
    targets.lock().push(head.lines().next().unwrap().to_owned());
    if !authorized {
        let refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        return stream.write_all(refusal).await.unwrap();
    }
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
    let mut forward = tokio::net::TcpStream::connect(server).await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut forward).await;
}

impl Server {
    /// Writes a kubeconfig with another server URL and a `proxy-url`.
    fn proxied(&self, identity: &Identity, server: &str, proxy_url: &str) -> std::path::PathBuf {
        let mut kubeconfig: serde_json::Value =
            serde_json::from_str(&identity.kubeconfig(self.address)).unwrap();
        kubeconfig["clusters"][0]["cluster"]["server"] = server.into();
        kubeconfig["clusters"][0]["cluster"]["tls-server-name"] = "127.0.0.1".into();
        kubeconfig["clusters"][0]["cluster"]["proxy-url"] = proxy_url.into();
        let path = self.dir.path().join("proxied");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        path
    }
}

#[tokio::test]
async fn proxy_url_of_the_kubeconfig_carries_every_connection() {
    let identity = Identity::new();
    for secure in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Server::on(listener, &identity, 100, |_| Act::Answer);
        let proxy = ConnectProxy::start(server.address, secure.then_some(&identity)).await;
        let scheme = if secure { "https" } else { "http" };
        let url = format!("{scheme}://u:p@{}", proxy.address);
        // The name is resolved by the proxy only.
        let path = server.proxied(&identity, "https://api.invalid:6443", &url);
        // NO_PROXY has no effect on a proxy-url.
        let environment = |name: &str| (name == "NO_PROXY").then(|| "*".to_owned());
        let credentials = Credentials::read_in(&path, None, environment).await.unwrap();
        let client = Connections::client(&Arc::new(credentials), &Arc::default()).unwrap();
        let nodes: Api<Node> = Api::all(client);
        for _ in 0..3 {
            nodes.get("n").await.unwrap();
        }
        assert_eq!(*proxy.targets.lock(), ["CONNECT api.invalid:6443 HTTP/1.1"], "{scheme}");
        assert_eq!(server.connections.load(SeqCst), 1, "HTTP/2 in the tunnel");
    }
}

#[tokio::test]
async fn proxy_of_the_environment_is_used_unless_excepted() {
    let identity = Identity::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::on(listener, &identity, 100, |_| Act::Answer);
    let proxy = ConnectProxy::start(server.address, None).await;
    let url = format!("u:p@{}", proxy.address);
    let path = server.proxied(&identity, "https://api.invalid:6443", "");
    let read = |exceptions: &'static str| {
        let url = url.clone();
        Credentials::read_in(&path, None, move |name| match name {
            "HTTPS_PROXY" => Some(url.clone()),
            "NO_PROXY" => Some(exceptions.to_owned()),
            _ => None,
        })
    };
    let credentials = read("10.0.0.0/8").await.unwrap();
    let client = Connections::client(&Arc::new(credentials), &Arc::default()).unwrap();
    Api::<Node>::all(client).get("n").await.unwrap();
    assert_eq!(proxy.targets.lock().len(), 1);
    assert!(read(".invalid").await.unwrap().proxy().is_none());
}

#[tokio::test]
async fn refusal_of_a_proxy_is_reported_without_its_password() {
    let identity = Identity::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::on(listener, &identity, 100, |_| Act::Answer);
    let proxy = ConnectProxy::start(server.address, None).await;
    let url = format!("http://u:wrong-s3cret@{}", proxy.address);
    let path = server.proxied(&identity, "https://api.invalid:6443", &url);
    let credentials = Arc::new(Credentials::read(&path, None).await.unwrap());
    let connections = Connections::new(credentials, Arc::default());
    let error = connections.pool.stream_slot(Some(Duration::from_secs(1))).await.err().unwrap();
    let error = error.to_string();
    let want = format!(
        "proxy {} refused to connect to api.invalid:6443: 407 Proxy Authentication Required",
        proxy.address
    );
    assert!(error.contains(&want) && !error.contains("s3cret"), "{error}");
}

#[tokio::test]
async fn socks5_proxy_url_is_refused_by_its_field() {
    let identity = Identity::new();
    let server = Server::start(100, |_| Act::Answer).await;
    let path = server.proxied(&identity, "https://api.invalid:6443", "socks5://10.0.0.1:1080");
    let error = Credentials::read(&path, None).await.err().unwrap();
    let shown = crate::error_chain::chain(&error);
    assert!(
        shown.contains("invalid proxy: proxy-url: socks5 proxies are not supported"),
        "{shown}"
    );
}
