//! Client credentials and CA of the connection to the API server.
//!
//! Read from a kubeconfig: a client certificate, a token, a token file, or an exec plugin. Files may
//! be replaced while the node runs, by whatever renews certificates; they are checked periodically,
//! and new content is used for the next connection. Open connections stay until their last stream
//! has ended, so that no watch is lost.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderValue, Uri, header};
use jiff::Timestamp;
use kube::client::ConfigExt;
use kube::config::{Cluster, KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use podwright_core::certificate::CertificateValidity;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::time::Instant;

use crate::client::proxy::{Proxy, ProxyError};
use crate::client::{certificates, kubeconfig_file};

/// How often the files are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("kubeconfig {path}: cannot be loaded")]
    Kubeconfig { path: String, source: Box<kube::config::KubeconfigError> },
    #[error("kubeconfig {path}: {problem}")]
    Unusable { path: String, problem: String },
    #[error("kubeconfig {path}: invalid proxy")]
    Proxy { path: String, source: ProxyError },
    #[error("kubeconfig {path}: invalid credentials")]
    Refused { path: String, source: Box<kube::Error> },
}

pub struct Credentials {
    kubeconfig: PathBuf,
    config: kube::Config,
    host: String,
    port: u16,
    /// `None` for a plain connection.
    name: Option<ServerName<'static>>,
    /// `proxy-url` of the cluster, or else the proxy of the environment.
    proxy: Option<Proxy>,
    /// The CA file of the cluster, if it is a file.
    authority: Option<PathBuf>,
    /// A certificate that the node renews itself; if present and valid, it replaces the kubeconfig's.
    managed: Option<PathBuf>,
    files: Vec<PathBuf>,
    current: Mutex<Current>,
    generation: AtomicU64,
}

struct Current {
    /// `Err`: why there is no TLS configuration yet.
    tls: Result<Arc<ClientConfig>, String>,
    validity: Option<CertificateValidity>,
    /// The expired certificate that was already logged.
    warned: Option<CertificateValidity>,
    /// Of the files when they were read; `None`: not read yet.
    stamps: Option<Vec<Option<Stamp>>>,
    checked_at: Instant,
}

/// Changes with the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Security of a connection.
pub(super) enum Security {
    Plain,
    Tls(Arc<ClientConfig>, ServerName<'static>),
}

impl Credentials {
    /// `managed` is the path of the certificate that the node renews itself. A missing certificate is
    /// not an error: connections wait for it.
    pub async fn read(
        kubeconfig: &Path,
        managed: Option<PathBuf>,
    ) -> Result<Self, CredentialsError> {
        Self::read_in(kubeconfig, managed, |name| std::env::var(name).ok()).await
    }

    pub(super) async fn read_in(
        kubeconfig: &Path,
        managed: Option<PathBuf>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, CredentialsError> {
        let unusable = |problem: String| CredentialsError::Unusable {
            path: kubeconfig.display().to_string(),
            problem,
        };
        let Loaded { config, authority, proxy_url } = load(kubeconfig).await?;
        let host = config.cluster_url.host().unwrap_or_default();
        // IPv6 addresses are written in brackets.
        let host = host.trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(unusable("the server is not a URL with a host".into()));
        }
        let secure = config.cluster_url.scheme_str() != Some("http");
        let port = config.cluster_url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let name = config.tls_server_name.clone().unwrap_or_else(|| host.clone());
        let name = ServerName::try_from(name).map_err(|error| unusable(error.to_string()))?;
        let authorities = config.root_cert.as_deref().unwrap_or_default();
        let proxy = match proxy_url {
            // As in client-go, NO_PROXY does not apply to it.
            Some(url) => Proxy::parse("proxy-url", &url, authorities).map(Some),
            None => Proxy::from_environment(secure, &host, port, authorities, environment),
        };
        let proxy = proxy.map_err(|source| CredentialsError::Proxy {
            path: kubeconfig.display().to_string(),
            source,
        })?;
        if let Some(proxy) = &proxy {
            tracing::info!(server = %config.cluster_url, ?proxy, "API server is reached through a proxy");
        }
        let auth = &config.auth_info;
        let named = [&auth.client_certificate, &auth.client_key].into_iter().flatten();
        let files: Vec<PathBuf> =
            named.map(PathBuf::from).chain(authority.clone()).chain(managed.clone()).collect();
        let this = Self {
            kubeconfig: kubeconfig.to_owned(),
            host,
            port,
            name: secure.then_some(name),
            proxy,
            authority,
            managed,
            current: Mutex::new(Current {
                tls: Err("not read yet".into()),
                validity: None,
                warned: None,
                stamps: None,
                checked_at: Instant::now(),
            }),
            files,
            config,
            generation: AtomicU64::new(0),
        };
        this.reload();
        Ok(this)
    }

    pub fn config(&self) -> &kube::Config {
        &self.config
    }

    pub fn server(&self) -> &Uri {
        &self.config.cluster_url
    }

    pub(super) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    pub(super) fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// The security of a new connection; `Err` gives the reason that there is none.
    pub(super) fn security(&self) -> Result<Security, String> {
        match &self.name {
            None => Ok(Security::Plain),
            Some(name) => Ok(Security::Tls(self.current.lock().tls.clone()?, name.clone())),
        }
    }

    pub(super) fn refused(&self, source: kube::Error) -> CredentialsError {
        let path = self.kubeconfig.display().to_string();
        CredentialsError::Refused { path, source: Box::new(source) }
    }

    /// Increases with new credentials; connections of an older generation take no new streams.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Checks the files if it is time.
    pub(super) fn refresh(&self) -> u64 {
        if self.current.lock().checked_at.elapsed() >= CHECK_INTERVAL {
            self.reload();
        }
        self.generation()
    }

    /// Checks the files now, after the caller replaced them.
    pub fn reload(&self) {
        let mut current = self.current.lock();
        current.checked_at = Instant::now();
        let stamps = Some(self.files.iter().map(|file| stamp(file)).collect());
        let is_expired =
            current.validity.is_some_and(|validity| validity.is_expired(Timestamp::now()));
        let renewed_by_program = is_expired && self.config.auth_info.exec.is_some();
        if stamps == current.stamps && !renewed_by_program {
            self.warn_if_expired(&mut current, Timestamp::now());
            return;
        }
        let config = self.with_files();
        match tls(&config) {
            Ok(tls) => {
                current.validity = certificate_validity(&tls);
                (current.tls, current.stamps) = (Ok(tls), stamps);
                self.generation.fetch_add(1, Relaxed);
            }
            // Probably only half of a pair is written; the next check finds the other half.
            Err(problem) if current.tls.is_ok() => {
                tracing::warn!(problem, "cannot load new credentials, keeping the old ones");
                return;
            }
            Err(problem) => {
                current.tls = Err(problem);
                current.stamps = stamps;
            }
        }
        if let Some(validity) = current.validity {
            tracing::info!(until = %validity.until, "loaded client certificate");
        }
        self.warn_if_expired(&mut current, Timestamp::now());
    }

    /// Reads everything again although no file has changed, after the server rejected the
    /// credentials.
    pub(super) fn renew(&self) {
        self.current.lock().stamps = None;
        self.reload();
    }

    /// Logs once for each certificate, whether it was expired when loaded or expires later.
    fn warn_if_expired(&self, current: &mut Current, now: Timestamp) {
        let Some(validity) = current.validity.filter(|validity| validity.is_expired(now)) else {
            return;
        };
        if current.warned.replace(validity) != Some(validity) {
            tracing::error!(
                kubeconfig = %self.kubeconfig.display(),
                expired = %validity.until,
                "the node's client certificate has expired: the API server rejects requests, pods \
                 keep running. Fix: replace the certificate, or start with --bootstrap-kubeconfig \
                 so that the node can request a new one"
            );
        }
    }

    /// Validity of the current client certificate, if there is one.
    pub fn validity(&self) -> Option<CertificateValidity> {
        self.current.lock().validity
    }

    /// The configuration with the current content of the files.
    fn with_files(&self) -> kube::Config {
        let mut config = self.config.clone();
        // An expired one does not replace the kubeconfig's.
        let good = |path: &&PathBuf| {
            let validity = std::fs::read(path).ok().as_deref().and_then(certificates::validity);
            validity.is_some_and(|validity| !validity.is_expired(Timestamp::now()))
        };
        if let Some(path) = self.managed.as_ref().filter(good) {
            let path = Some(path.to_string_lossy().into_owned());
            let auth = &mut config.auth_info;
            (auth.client_certificate, auth.client_key) = (path.clone(), path);
            (auth.client_certificate_data, auth.client_key_data) = (None, None);
        }
        if let Some(pem) = self.authority.as_ref().and_then(|path| std::fs::read(path).ok()) {
            let found: Vec<Vec<u8>> =
                CertificateDer::pem_slice_iter(&pem).flatten().map(|der| der.to_vec()).collect();
            // An empty file may still be in the process of being written.
            if !found.is_empty() {
                config.root_cert = Some(found);
            }
        }
        config
    }
}

/// What a kubeconfig contains.
struct Loaded {
    config: kube::Config,
    /// The CA file of the cluster, if it is a file.
    authority: Option<PathBuf>,
    proxy_url: Option<String>,
}

async fn load(path: &Path) -> Result<Loaded, CredentialsError> {
    let failed = |source| {
        let path = path.display().to_string();
        CredentialsError::Kubeconfig { path, source: Box::new(source) }
    };
    let mut kubeconfig = kubeconfig_file::read(path).map_err(failed)?;
    let cluster = cluster(&mut kubeconfig);
    let authority = cluster.as_ref().and_then(|cluster| cluster.certificate_authority.as_ref());
    let authority = authority.map(PathBuf::from);
    // Taken out: kube would parse it before its scheme is checked, with a less clear error.
    let proxy_url = cluster.and_then(|cluster| cluster.proxy_url.take());
    let proxy_url = proxy_url.filter(|url| !url.is_empty());
    let options = KubeConfigOptions::default();
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)?;
    if let Ok(agent) = HeaderValue::try_from(super::user_agent()) {
        config.headers.push((header::USER_AGENT, agent));
    }
    Ok(Loaded { config, authority, proxy_url })
}

/// The cluster of the current context.
fn cluster(kubeconfig: &mut Kubeconfig) -> Option<&mut Cluster> {
    let name = kubeconfig.current_context.as_ref()?;
    let named = kubeconfig.contexts.iter().find(|context| context.name == *name)?;
    let cluster = &named.context.as_ref()?.cluster;
    let named = kubeconfig.clusters.iter_mut().find(|named| named.name == *cluster)?;
    named.cluster.as_mut()
}

fn stamp(path: &Path) -> Option<Stamp> {
    // Follows links: a renewed pair is put in place by a link.
    let about = std::fs::metadata(path).ok()?;
    let modified = (about.mtime(), about.mtime_nsec());
    Some(Stamp { inode: about.ino(), size: about.size(), modified })
}

fn tls(config: &kube::Config) -> Result<Arc<ClientConfig>, String> {
    let named = config.auth_info.client_certificate.as_ref();
    if let Some(missing) = named.filter(|path| !Path::new(path).exists()) {
        return Err(format!("the client certificate {missing} does not exist yet"));
    }
    let mut config = config.clone();
    if config.accept_invalid_certs {
        // Nothing is verified, so the CAs of the system need not be loaded.
        config.root_cert.get_or_insert_default();
    }
    let mut tls =
        config.rustls_client_config().map_err(|error| crate::error_chain::chain(&error))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

/// Validity of the client certificate, from any source; `None`: there is none.
fn certificate_validity(tls: &ClientConfig) -> Option<CertificateValidity> {
    // There is at most one, independent of the server's hints.
    let shown = tls.client_auth_cert_resolver.resolve(&[], &[])?;
    certificates::validity_of(shown.cert.first()?)
}
