//! Pod source: static pods from a manifest URL, fetched periodically.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request, Response, StatusCode, Uri, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1;
use podwright_core::pod::Source;
use podwright_core::pod::features::PodFeatures;
use podwright_core::pod::manifest::{self, Origin};
use podwright_core::pod::merge::SourceUpdate;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::client::proxy::{Proxy, basic};
use crate::client::system_roots;
use crate::pods::Delivery;

const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_SIZE: usize = 10 * 1024 * 1024;

pub struct ManifestUrl {
    pub url: Uri,
    pub headers: HeaderMap,
    pub node: Arc<str>,
    /// `httpCheckFrequency`.
    pub every: Duration,
    pub features: PodFeatures,
    /// TLS of the server; `None` for http.
    pub tls: Option<Arc<ClientConfig>>,
    pub proxy: Option<Proxy>,
}

/// Whether a machine between this one and the server can change what the server responds.
pub fn is_exposed(url: &Uri) -> bool {
    let host = host(url);
    let is_loopback = host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
    url.scheme_str() == Some("http") && host != "localhost" && !is_loopback
}

/// Takes user and password out of a URL, as the `Authorization` header that they stand for: a URL is
/// shown in logs. `None` if they cannot be sent.
pub fn split_credentials(url: Uri) -> Option<(Uri, Option<HeaderValue>)> {
    let Some(authority) = url.authority() else { return Some((url, None)) };
    let Some((userinfo, host)) = authority.as_str().rsplit_once('@') else {
        return Some((url, None));
    };
    let authorization = basic(userinfo)?;
    let authority = host.parse().ok()?;
    let mut parts = url.into_parts();
    parts.authority = Some(authority);
    Some((Uri::from_parts(parts).ok()?, Some(authorization)))
}

/// The host of a URL; an IPv6 address without its brackets.
pub fn host(url: &Uri) -> &str {
    url.host().unwrap_or_default().trim_matches(['[', ']'])
}

/// The port of a URL, or the usual one of its scheme.
pub fn port(url: &Uri) -> u16 {
    let usual = if url.scheme_str() == Some("https") { 443 } else { 80 };
    url.port_u16().unwrap_or(usual)
}

/// TLS with a server of manifests that one of these CAs vouches for; HTTP/2 where the server has it.
pub fn tls(roots: RootCertStore) -> Result<Arc<ClientConfig>, rustls::Error> {
    let mut tls = system_roots::trusting(roots)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

impl ManifestUrl {
    pub async fn run(self, deliveries: mpsc::Sender<Delivery>, stop: CancellationToken) {
        let mut last = None;
        let work = async {
            loop {
                match self.fetch().await {
                    // Stored before it is parsed, so that an invalid document is logged once.
                    Ok(body) if last.as_ref() != Some(&body) => {
                        if let Some(pods) = self.read(&body) {
                            let delivery =
                                Delivery { source: Source::Http, news: SourceUpdate::All(pods) };
                            if deliveries.send(delivery).await.is_err() {
                                return;
                            }
                        }
                        last = Some(body);
                    }
                    Ok(_) => {}
                    Err(problem) => {
                        tracing::warn!(url = %self.url, error = problem, "fetch manifest URL failed, pods keep running");
                    }
                }
                tokio::time::sleep(self.every).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn fetch(&self) -> Result<Bytes, String> {
        let response = async {
            let (response, _connection) = self.request().await?;
            if response.status() != StatusCode::OK {
                return Err(format!("the server responded with {}", response.status()));
            }
            let body = Limited::new(response.into_body(), MAX_SIZE).collect().await;
            Ok(body.map_err(|error| crate::error_chain::chain(&*error))?.to_bytes())
        };
        tokio::time::timeout(TIMEOUT, response)
            .await
            .map_err(|_| "no response within 10 s".to_owned())?
    }

    /// Sends one request, on a new connection: the interval is longer than servers keep idle ones.
    async fn request(&self) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), String> {
        let (host, port) = (host(&self.url), port(&self.url));
        let address = self.proxy.as_ref().map_or((host, port), Proxy::address);
        let tcp = TcpStream::connect(address).await;
        let tcp = tcp.map_err(|e| format!("connecting to {}:{}: {e}", address.0, address.1))?;
        match (&self.tls, &self.proxy) {
            (None, None) => self.over_http1(tcp, self.origin_form()?).await,
            // Without TLS a proxy is given the whole URL.
            (None, Some(proxy)) => {
                let mut request = self.origin_form()?;
                *request.uri_mut() = self.url.clone();
                if let Some(authorization) = proxy.authorization() {
                    let headers = request.headers_mut();
                    headers.insert(header::PROXY_AUTHORIZATION, authorization.clone());
                }
                self.over_http1(proxy.connect(tcp).await?, request).await
            }
            (Some(tls), None) => self.over_tls(tls, tcp).await,
            (Some(tls), Some(proxy)) => {
                self.over_tls(tls, proxy.tunnel(tcp, host, port).await?).await
            }
        }
    }

    async fn over_tls<S>(
        &self,
        tls: &Arc<ClientConfig>,
        stream: S,
    ) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let host = host(&self.url);
        let failed = |error: &dyn std::error::Error| {
            format!("TLS with {host}: {}", crate::error_chain::chain(error))
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
        let stream = TlsConnector::from(tls.clone()).connect(name, stream).await;
        let stream = stream.map_err(|error| failed(&error))?;
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => self.over_http2(stream).await,
            _ => self.over_http1(stream, self.origin_form()?).await,
        }
    }

    async fn over_http1<S>(
        &self,
        stream: S,
        request: Request<Empty<Bytes>>,
    ) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let failed = |error: hyper::Error| crate::error_chain::chain(&error);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let connection = spawn(connection);
        Ok((sender.send_request(request).await.map_err(failed)?, connection))
    }

    async fn over_http2<S>(
        &self,
        stream: S,
    ) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), String>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let failed = |error: hyper::Error| crate::error_chain::chain(&error);
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(failed)?;
        let connection = spawn(connection);
        Ok((sender.send_request(request).await.map_err(failed)?, connection))
    }

    /// The request as a server itself expects it over HTTP/1.1.
    fn origin_form(&self) -> Result<Request<Empty<Bytes>>, String> {
        let path = self.url.path_and_query().map_or("/", |path| path.as_str());
        let host = self.url.host().unwrap_or_default();
        let host = match self.url.port_u16() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let mut request = Request::get(path).header(header::HOST, host);
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.headers.clone());
        }
        request.body(Empty::new()).map_err(|error| error.to_string())
    }

    /// The pods of a document; `None` if it is invalid. An empty body means no pods.
    fn read(&self, body: &Bytes) -> Option<Vec<v1::Pod>> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Some(Vec::new());
        }
        let location = self.url.to_string();
        let origin = Origin {
            source: Source::Http,
            location: &location,
            node: &self.node,
            features: self.features,
        };
        let text = String::from_utf8_lossy(body);
        let pods = match manifest::pods(&text, origin) {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(url = %self.url, %error, "invalid manifest, ignored; pods keep running");
                return None;
            }
        };
        let valid = pods.into_iter().filter_map(|pod| match pod {
            Ok(pod) => Some(pod),
            Err(error) => {
                tracing::warn!(url = %self.url, %error, "invalid pod in manifest, ignored");
                None
            }
        });
        Some(valid.collect())
    }
}

/// Drives a connection until it ends or its handle is dropped. The request gets the error.
fn spawn<E>(
    connection: impl Future<Output = Result<(), E>> + Send + 'static,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = connection.await;
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::test_server;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n\
                       spec: {containers: [{name: app, image: i}]}\n";

    fn manifest_url(url: &str) -> ManifestUrl {
        ManifestUrl {
            url: url.parse().unwrap(),
            headers: HeaderMap::new(),
            node: "node-1".into(),
            every: Duration::from_secs(20),
            features: PodFeatures::DEFAULT,
            tls: None,
            proxy: None,
        }
    }

    /// Responds to each request with the next of these, then always with the last one.
    async fn serve(listener: TcpListener, responses: Vec<(&'static str, String)>) {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            assert!(String::from_utf8_lossy(&request[..read]).contains("x-token: t"));
            let (status, body) = &responses[number.min(responses.len() - 1)];
            let length = body.len();
            let response = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn errors_keep_the_pods_and_an_empty_document_removes_them() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pods", listener.local_addr().unwrap());
        let responses = [
            ("200 OK", POD.to_owned()),
            ("200 OK", POD.to_owned()),
            ("500 Internal Server Error", String::new()),
            ("200 OK", "no manifest at all".to_owned()),
            ("200 OK", "\n".to_owned()),
        ];
        tokio::spawn(serve(listener, responses.to_vec()));
        let headers = [("x-token".parse().unwrap(), "t".parse().unwrap())].into_iter().collect();
        let every = Duration::from_millis(1);
        let remote = ManifestUrl { headers, every, ..manifest_url(&url) };
        let (deliveries, mut delivered) = mpsc::channel(8);
        let stop = CancellationToken::new();
        let running = tokio::spawn(remote.run(deliveries, stop.clone()));
        for want in [vec!["web-node-1"], vec![]] {
            let delivery = delivered.recv().await.unwrap();
            assert_eq!(delivery.source, Source::Http);
            let SourceUpdate::All(pods) = delivery.news else { panic!("{:?}", delivery.news) };
            let names: Vec<_> =
                pods.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
            assert_eq!(names, want, "only changes are delivered");
        }
        stop.cancel();
        running.await.unwrap();
        assert!(delivered.recv().await.is_none(), "nothing is delivered twice");
    }

    #[tokio::test]
    async fn response_of_more_than_ten_mebibytes_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pods", listener.local_addr().unwrap());
        let responses = [MAX_SIZE, MAX_SIZE + 1].map(|size| ("200 OK", "x".repeat(size))).to_vec();
        tokio::spawn(serve(listener, responses));
        let headers = [("x-token".parse().unwrap(), "t".parse().unwrap())].into_iter().collect();
        let remote = ManifestUrl { headers, ..manifest_url(&url) };
        assert_eq!(remote.fetch().await.map(|body| body.len()), Ok(MAX_SIZE));
        let refused = remote.fetch().await.unwrap_err();
        assert!(refused.contains("length limit exceeded"), "{refused}");
    }

    /// An https server with these protocols. Responds with the protocol, host, path and token of
    /// each request.
    async fn serve_tls(protocols: &[&[u8]]) -> (std::net::SocketAddr, RootCertStore) {
        let names = vec!["127.0.0.1".to_owned(), "manifests.example".to_owned()];
        test_server::serve_tls(names, protocols, |request| {
            let host = request.headers().get("host").map(|host| host.to_str().unwrap());
            let host = host.or(request.uri().authority().map(|named| named.as_str()));
            let token = request.headers().get("x-token").unwrap().to_str().unwrap();
            let (version, path) = (request.version(), request.uri().path());
            format!("{version:?} {} {path} {token}", host.unwrap_or("none"))
        })
        .await
    }

    #[tokio::test]
    async fn https_server_is_verified_and_http2_is_used_where_offered() {
        for (protocols, want) in [
            (&[&b"h2"[..], b"http/1.1"][..], "HTTP/2.0"),
            (&[b"http/1.1"], "HTTP/1.1"),
            (&[], "HTTP/1.1"),
        ] {
            let (address, roots) = serve_tls(protocols).await;
            let mut remote = manifest_url(&format!("https://{address}/pods"));
            remote.headers.insert("x-token", "t".parse().unwrap());
            remote.tls = Some(tls(roots).unwrap());
            let body = remote.fetch().await.unwrap();
            assert_eq!(body, format!("{want} {address} /pods t").into_bytes());
            // Without its CA the server is not trusted.
            remote.tls = Some(tls(RootCertStore::empty()).unwrap());
            let error = remote.fetch().await.unwrap_err();
            assert!(
                error.contains("TLS with 127.0.0.1") && error.contains("UnknownIssuer"),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn proxy_carries_https_in_a_tunnel_and_http_by_its_url() {
        let (server, roots) = serve_tls(&[b"h2"]).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://user:pass@{}", listener.local_addr().unwrap());
        let proxy = Some(Proxy::parse("HTTPS_PROXY", &url, &[]).unwrap());
        let heads = tokio::spawn(async move {
            let mut heads = Vec::new();
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = vec![0; 4096];
                let read = stream.read(&mut head).await.unwrap();
                let head = String::from_utf8_lossy(&head[..read]).into_owned();
                assert!(head.to_lowercase().contains("proxy-authorization: basic dxnlcjpwyxnz"));
                let response = "HTTP/1.1 200 OK\r\n";
                if head.starts_with("CONNECT") {
                    stream.write_all(format!("{response}\r\n").as_bytes()).await.unwrap();
                    let mut forward = TcpStream::connect(server).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut forward).await;
                } else {
                    let response = format!("{response}content-length: 0\r\n\r\n");
                    stream.write_all(response.as_bytes()).await.unwrap();
                }
                heads.push(head.lines().next().unwrap().to_owned());
            }
            heads
        });
        let mut remote = manifest_url("https://manifests.example/pods");
        remote.headers.insert("x-token", "t".parse().unwrap());
        let remote = ManifestUrl { tls: Some(tls(roots).unwrap()), proxy: proxy.clone(), ..remote };
        assert_eq!(remote.fetch().await.unwrap(), "HTTP/2.0 manifests.example /pods t");
        let plain = ManifestUrl { proxy, ..manifest_url("http://manifests.example/pods") };
        assert_eq!(plain.fetch().await.unwrap(), "");
        let want = [
            "CONNECT manifests.example:443 HTTP/1.1",
            "GET http://manifests.example/pods HTTP/1.1",
        ];
        assert_eq!(heads.await.unwrap(), want);
    }

    #[test]
    fn credentials_of_the_url_become_a_header() {
        let split = |url: &str| split_credentials(url.parse().unwrap()).unwrap();
        let (url, authorization) = split("https://u:p@m.example:8443/pods?x=1");
        assert_eq!(url, "https://m.example:8443/pods?x=1");
        assert_eq!(authorization.unwrap(), "Basic dTpw");
        let (url, authorization) = split("https://m.example/p@ds");
        assert_eq!((url.to_string().as_str(), authorization), ("https://m.example/p@ds", None));
    }

    #[test]
    fn plain_http_is_exposed_unless_it_is_on_loopback() {
        for (url, want) in [
            ("http://manifests.example/x", true),
            ("http://10.0.0.1:8080/x", true),
            ("http://[fd00::1]/x", true),
            ("http://localhost:8080/x", false),
            ("http://127.0.0.2/x", false),
            ("http://[::1]:80/x", false),
            ("https://manifests.example/x", false),
        ] {
            assert_eq!(is_exposed(&url.parse().unwrap()), want, "{url}");
        }
    }
}
