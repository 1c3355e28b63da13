//! Certificates that Go accepts when it does not verify them, made by `openssl`.

use std::sync::Arc;

use base64::Engine;
use podwright_core::probe::check::HttpCheck;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{GetRequest, get};

/// Stands for a key that our own library cannot sign with.
#[derive(Clone, Copy, Debug)]
struct AnyKey(SignatureScheme, SignatureAlgorithm);

impl SigningKey for AnyKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&self.0).then(|| Box::new(*self) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.1
    }
}

impl Signer for AnyKey {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        Ok(vec![1; 64])
    }

    fn scheme(&self) -> SignatureScheme {
        self.0
    }
}

#[derive(Debug)]
struct One(Arc<CertifiedKey>);

impl ResolvesServerCert for One {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

async fn probe(
    certificate: &str,
    key: AnyKey,
    version: &'static SupportedProtocolVersion,
) -> Result<u16, String> {
    let certificate = base64::prelude::BASE64_STANDARD.decode(certificate).unwrap();
    let certified = CertifiedKey::new(vec![CertificateDer::from(certificate)], Arc::new(key));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(One(Arc::new(certified))));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(mut stream) = acceptor.accept(stream).await else { return };
        // A response that arrives before the request is not a response to it.
        while stream.read_u8().await.unwrap() != b'\n' {}
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.ok();
        stream.shutdown().await.ok();
    });
    let (path, headers) = ("/".to_owned(), Vec::new());
    let check = HttpCheck { https: true, host: None, port: address.port(), path, headers };
    let answer = get(&GetRequest::of(&check, address.ip(), "kube-probe/1.36")).await;
    answer.map(|answer| answer.status).map_err(|error| error.to_string())
}

#[tokio::test]
async fn https_probe_accepts_every_certificate_that_go_accepts_unverified() {
    use SignatureAlgorithm::{ECDSA, RSA};
    use SignatureScheme::{ECDSA_NISTP256_SHA256, ECDSA_NISTP521_SHA512, RSA_PSS_SHA256};
    for (case, certificate, scheme, algorithm) in [
        ("X.509 v1", V1, ECDSA_NISTP256_SHA256, ECDSA),
        ("unknown critical extension", CRITICAL_EXTENSION, ECDSA_NISTP256_SHA256, ECDSA),
        ("RSA of 1024 bits", RSA_1024, RSA_PSS_SHA256, RSA),
        ("P-521", P_521, ECDSA_NISTP521_SHA512, ECDSA),
    ] {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let answer = probe(certificate, AnyKey(scheme, algorithm), version).await;
            assert_eq!(answer, Ok(200), "{case}, {version:?}");
        }
    }
}

const V1: &str = "\
MIIBHDCBwwIUHl+B0aFmllG3qw4n/PC16PrLBXQwCgYIKoZIzj0EAwIwEDEOMAwGA1UEAwwFcHJvYmUwIBcNMjYxMTE4\
MTE1OTUyWhgPMjEyNjEwMjUxMTU5NTJaMBAxDjAMBgNVBAMMBXByb2JlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\
s7jg0GQX8z5UJrQmZwkACnJy3VMtDJuaG5VP9oH5Qm29kr1+QdmrPnqtnS4xanUILOwpHpUm9FzCW9tM7EW5lzAKBggq\
hkjOPQQDAgNIADBFAiEAry0gl+a/UHl/UQ+4AlbLFust2d/nE/wkmeql1gWQ2HYCIAOczkEmsfpcehhPbjoawqiiI+CS\
7jFObnjMyjMsP8Nz";

const CRITICAL_EXTENSION: &str = "\
MIIBhzCCASygAwIBAgIUPLSJBT+ao1VE0b7YuHza5GMDrSkwCgYIKoZIzj0EAwIwEDEOMAwGA1UEAwwFcHJvYmUwIBcN\
MjYxMTE4MTE1OTUyWhgPMjEyNjEwMjUxMTU5NTJaMBAxDjAMBgNVBAMMBXByb2JlMFkwEwYHKoZIzj0CAQYIKoZIzj0D\
AQcDQgAEs7jg0GQX8z5UJrQmZwkACnJy3VMtDJuaG5VP9oH5Qm29kr1+QdmrPnqtnS4xanUILOwpHpUm9FzCW9tM7EW5\
l6NiMGAwHQYDVR0OBBYEFI/hP2YcCIefLF9sH1Ljn7IytM0iMB8GA1UdIwQYMBaAFI/hP2YcCIefLF9sH1Ljn7IytM0i\
MA8GA1UdEwEB/wQFMAMBAf8wDQYEKgMEBQEB/wQCBQAwCgYIKoZIzj0EAwIDSQAwRgIhAP0r49sdse+WHZJJHfgl6453\
9CkF1dcofwDrgN3wORGKAiEAuH4ThvfBi+GUk4IS5Uh8bwIbEebF/1Q5qcgbltcWyNo=";

const RSA_1024: &str = "\
MIIB/jCCAWegAwIBAgIUcAg1aeYUpvpoQGuAyvPwhVQYO6YwDQYJKoZIhvcNAQELBQAwEDEOMAwGA1UEAwwFcHJvYmUw\
IBcNMjYxMTE4MTE1OTUyWhgPMjEyNjEwMjUxMTU5NTJaMBAxDjAMBgNVBAMMBXByb2JlMIGfMA0GCSqGSIb3DQEBAQUA\
A4GNADCBiQKBgQCtJpzSh/a38VvqPtg1i542fQEElIQTLBDmM7hxDnYXVVxjm/ncr0eUk38eG76iIL5EBbCvgYTHnBE6\
hcNXtQ9r/22oSM+SDZj8mWz3PQJOQv7cOqhyIyAJX+gbW3RstMeO7gaNqzdtR2jEYZF6HWkC8VL6Co7Rgh20aBSfm1nl\
7wIDAQABo1MwUTAdBgNVHQ4EFgQUb854t59gkILGWZZ9he54+CAUyN8wHwYDVR0jBBgwFoAUb854t59gkILGWZZ9he54\
+CAUyN8wDwYDVR0TAQH/BAUwAwEB/zANBgkqhkiG9w0BAQsFAAOBgQCbfqvxQLN3G8J/kbVTjTEi/qECGY9HRckHRNlL\
Ztbk7tHHv2FffjtIpNEUsi6+Nj1d0sUIyoOVwBjglT0kra3CVzQ2oBScuXnpLC5/Ew5g2av9wufItnACbnbpl8CO98d2\
ONuow9441m/V80SHzbiLNAsNb3WW8geKvLdjU3JH9g==";

const P_521: &str = "\
MIIB/jCCAWCgAwIBAgIUV4nXqGIMOhngdCBPrSFHAvpx19gwCgYIKoZIzj0EAwIwEDEOMAwGA1UEAwwFcHJvYmUwIBcN\
MjYxMTE4MTE1OTUyWhgPMjEyNjEwMjUxMTU5NTJaMBAxDjAMBgNVBAMMBXByb2JlMIGbMBAGByqGSM49AgEGBSuBBAAj\
A4GGAAQBh/40sHN/kP6tkNTHhLMn/4QmO7v4dmHAjn+ftADPpHcG0mPcf2nhyLYIK2vXUGFhAGuT+1pnfAGEPD1xzkwj\
KNEA2f0ckX+b16urlZzG4pJxqvBCEbzoxW59gIHIJXpO6ZMaxQ1o7O81AjTE90hTwc5hF4zK+FWLyhjR4VRxb2NwGr2j\
UzBRMB0GA1UdDgQWBBRC/mNvbBU5uR/GNiLTWitLKykUajAfBgNVHSMEGDAWgBRC/mNvbBU5uR/GNiLTWitLKykUajAP\
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA4GLADCBhwJCAcLDnOrcsh5k+0ohTVdk5kDnVKKAjm2Km1ubQLDl+jyR\
tY/+GH5UryoZG8oJJTwfKLaHHDiNRaMSHbuA0l7C0y9LAkEUA54ybpvzIZRkHRQGnSq511+86li4LANpz3R/+IatSVbp\
8AXKp1QN/gI8qEY5WZZABbsHWhm+5xZiDSrWBmMPrw==";
