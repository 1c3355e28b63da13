//! An https server on loopback for tests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;

/// Serves these protocols, HTTP/1.1 if there are none. Returns its address and certificate.
pub(crate) async fn serve_tls(
    names: Vec<String>,
    protocols: &[&[u8]],
    respond: fn(&Request<Incoming>) -> String,
) -> (SocketAddr, RootCertStore) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(tcp).await else { continue };
            let service = service_fn(move |request: Request<Incoming>| async move {
                Ok::<_, Infallible>(Response::new(respond(&request)))
            });
            let server = Builder::new(TokioExecutor::new());
            tokio::spawn(async move {
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (address, roots)
}
