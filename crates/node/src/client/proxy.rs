//! HTTP proxies between the node and a server: `proxy-url` of a kubeconfig, and the environment.
//!
//! The environment is read as every Go program reads it: `HTTPS_PROXY` for https servers,
//! `HTTP_PROXY` for http servers, and `NO_PROXY` with the exceptions; loopback is never proxied.
//! Servers are reached through a tunnel (`CONNECT`), so TLS is still between the node and the server.

mod exceptions;

use std::sync::Arc;

use base64::Engine;
use http::{HeaderValue, Uri};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use self::exceptions::is_excepted;
use super::system_roots;

/// Size limit of a proxy's response to `CONNECT`.
const MAX_HEAD: usize = 8 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error(
        "{field}: socks5 proxies are not supported. Fix: use a proxy with an http:// or https:// URL"
    )]
    Socks { field: &'static str },
    // The URL is not shown: it may contain a password.
    #[error("{field}: must be a URL with a host that begins with http:// or https://")]
    Invalid { field: &'static str },
    #[error("{field}: cannot set up TLS with the proxy")]
    Tls { field: &'static str, source: rustls::Error },
}

/// An HTTP proxy.
#[derive(Clone)]
pub struct Proxy {
    host: String,
    port: u16,
    /// For a proxy that is reached over TLS itself.
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// `Proxy-Authorization`, from the user and password of the URL.
    authorization: Option<HeaderValue>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "proxy {}:{}", self.host, self.port)
    }
}

/// A connection through a proxy.
pub(crate) trait Tunnel: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Tunnel for S {}

impl Proxy {
    /// The proxy of a URL. `field` is where the URL was found. An https proxy is verified with the
    /// CAs of the machine and with `authorities`; it never gets a client certificate.
    pub fn parse(
        field: &'static str,
        url: &str,
        authorities: &[Vec<u8>],
    ) -> Result<Self, ProxyError> {
        let invalid = || ProxyError::Invalid { field };
        let (scheme, _) = url.split_once("://").ok_or_else(invalid)?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            "socks5" | "socks5h" => return Err(ProxyError::Socks { field }),
            _ => return Err(invalid()),
        };
        let url: Uri = url.parse().map_err(|_| invalid())?;
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(invalid());
        }
        let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let userinfo = url.authority().and_then(|authority| authority.as_str().rsplit_once('@'));
        let authorization = match userinfo {
            Some((userinfo, _)) => Some(basic(userinfo).ok_or_else(invalid)?),
            None => None,
        };
        let tls = match secure {
            false => None,
            true => {
                let mut roots = system_roots::load();
                let ders = authorities.iter().map(|der| CertificateDer::from(der.as_slice()));
                roots.add_parsable_certificates(ders);
                let tls = system_roots::trusting(roots)
                    .map_err(|source| ProxyError::Tls { field, source })?;
                let name = ServerName::try_from(host.clone()).map_err(|_| invalid())?;
                Some((TlsConnector::from(Arc::new(tls)), name))
            }
        };
        Ok(Self { host, port, tls, authorization })
    }

    /// The proxy that the environment names for a server, if any.
    pub fn from_environment(
        secure: bool,
        host: &str,
        port: u16,
        authorities: &[Vec<u8>],
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ProxyError> {
        let first_of = |names: [&str; 2]| {
            names.into_iter().filter_map(&environment).find(|value| !value.is_empty())
        };
        let (field, names) = match secure {
            true => ("HTTPS_PROXY", ["HTTPS_PROXY", "https_proxy"]),
            false => ("HTTP_PROXY", ["HTTP_PROXY", "http_proxy"]),
        };
        let Some(url) = first_of(names) else { return Ok(None) };
        let exceptions = first_of(["NO_PROXY", "no_proxy"]).unwrap_or_default();
        if is_excepted(host, port, &exceptions) {
            return Ok(None);
        }
        let url = if url.contains("://") { url } else { format!("http://{url}") };
        Self::parse(field, &url, authorities).map(Some)
    }

    pub(crate) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    pub(crate) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Connects to the proxy itself, over `tcp`.
    pub(crate) async fn connect(&self, tcp: TcpStream) -> Result<Box<dyn Tunnel>, String> {
        let Some((connector, name)) = &self.tls else { return Ok(Box::new(tcp)) };
        let stream = connector.connect(name.clone(), tcp).await;
        let stream = stream
            .map_err(|error| format!("TLS with {self:?}: {}", crate::error_chain::chain(&error)))?;
        Ok(Box::new(stream))
    }

    /// Connects to a server through the proxy, over `tcp`.
    pub(crate) async fn tunnel(
        &self,
        tcp: TcpStream,
        host: &str,
        port: u16,
    ) -> Result<Box<dyn Tunnel>, String> {
        let mut stream = self.connect(tcp).await?;
        let server =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut request = format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(authorization.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        let failed = |error: std::io::Error| format!("connecting through {self:?}: {error}");
        stream.write_all(&request).await.map_err(failed)?;
        stream.flush().await.map_err(failed)?;
        let mut head = Vec::new();
        // One byte at a time: what follows the empty line belongs to the server.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == MAX_HEAD {
                return Err(format!("connecting through {self:?}: response is too long"));
            }
            head.push(stream.read_u8().await.map_err(failed)?);
        }
        let head = String::from_utf8_lossy(&head);
        let status = head.lines().next().unwrap_or_default();
        match status.strip_prefix("HTTP/1.").and_then(|rest| rest.split_once(' ')) {
            Some((_, code)) if code.split(' ').next() == Some("200") => Ok(stream),
            Some((_, code)) => Err(format!("{self:?} refused to connect to {server}: {code}")),
            None => Err(format!("{self:?} is not an HTTP proxy")),
        }
    }
}

/// `Basic` credentials of `user:password`, percent-encoded as in a URL.
pub(crate) fn basic(userinfo: &str) -> Option<HeaderValue> {
    let decoded: Vec<u8> = percent_encoding::percent_decode_str(userinfo).collect();
    // A user without a password still needs the colon.
    let colon: &[u8] = if userinfo.contains(':') { b"" } else { b":" };
    let encoded = base64::engine::general_purpose::STANDARD.encode([&decoded, colon].concat());
    let mut header = HeaderValue::try_from(format!("Basic {encoded}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn proxy_urls_are_parsed_and_socks5_is_refused_by_name() {
        let address = |url| {
            let proxy = Proxy::parse("proxy-url", url, &[]);
            proxy.map(|proxy| format!("{proxy:?}")).map_err(|error| error.to_string())
        };
        for (url, want) in [
            ("http://proxy.example", "proxy proxy.example:80"),
            ("https://proxy.example", "proxy proxy.example:443"),
            ("http://user:pass@10.0.0.1:3128/", "proxy 10.0.0.1:3128"),
            ("http://[::1]:3128", "proxy ::1:3128"),
        ] {
            assert_eq!(address(url).as_deref(), Ok(want), "{url}");
        }
        for url in ["proxy.example:3128", "ftp://proxy.example", "http://", "http://s3cret@"] {
            let error = address(url).unwrap_err();
            assert!(error.starts_with("proxy-url: must be a URL"), "{url}: {error}");
            assert!(!error.contains("s3cret"));
        }
        let error = address("socks5://proxy.example:1080").unwrap_err();
        assert!(error.starts_with("proxy-url: socks5 proxies are not supported. Fix:"), "{error}");
    }

    #[test]
    fn credentials_in_the_url_become_a_header_that_is_not_shown() {
        let proxy = Proxy::parse("proxy-url", "http://al%40x:p%20w@proxy:1", &[]).unwrap();
        let header = proxy.authorization().unwrap();
        // al@x:p w
        assert_eq!(header, "Basic YWxAeDpwIHc=");
        assert_eq!(format!("{header:?} {proxy:?}"), "Sensitive proxy proxy:1");
    }

    #[test]
    fn environment_is_read_as_go_programs_read_it() {
        type Variables<'a> = &'a [(&'a str, &'a str)];
        let cases: [(&str, bool, &str, Variables<'_>, Option<&str>); 8] = [
            ("nothing set", true, "api", &[], None),
            ("without scheme", true, "api", &[("HTTPS_PROXY", "p:3128")], Some("proxy p:3128")),
            ("lower case", true, "api", &[("https_proxy", "http://p:1")], Some("proxy p:1")),
            (
                "empty",
                true,
                "api",
                &[("HTTPS_PROXY", ""), ("https_proxy", "p:1")],
                Some("proxy p:1"),
            ),
            ("other scheme", true, "api", &[("HTTP_PROXY", "p:1")], None),
            ("plain server", false, "api", &[("HTTP_PROXY", "p:1")], Some("proxy p:1")),
            ("exception", true, "api", &[("HTTPS_PROXY", "p:1"), ("no_proxy", "api")], None),
            ("loopback", true, "127.0.0.1", &[("HTTPS_PROXY", "p:1")], None),
        ];
        for (case, secure, host, variables, want) in cases {
            let read = |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            let found = Proxy::from_environment(secure, host, 6443, &[], read).unwrap();
            assert_eq!(found.map(|proxy| format!("{proxy:?}")).as_deref(), want, "{case}");
        }
        let socks = |name: &str| (name == "HTTPS_PROXY").then(|| "socks5://p:1".to_owned());
        let error = Proxy::from_environment(true, "api", 6443, &[], socks).unwrap_err();
        assert!(error.to_string().starts_with("HTTPS_PROXY: socks5"), "{error}");
    }
}
