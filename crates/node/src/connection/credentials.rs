//! Who we are to the API server, and whom we believe to be it.
//!
//! Read from a kubeconfig: a client certificate, a token, a file with a token, a program that gives
//! one. Files may be replaced under a running node, by whoever renews certificates; they are looked
//! at now and then, and what is new is used for the next connection. Those that are open stay until
//! their last stream has ended, so that no watch is lost.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderValue, Uri, header};
use jiff::Timestamp;
use kube::client::ConfigExt;
use kube::config::{KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use podwright_core::certificate::Life;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::time::Instant;

use crate::certificates;

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(10);
const USER_AGENT: &str = concat!("podwright/", env!("CARGO_PKG_VERSION"));

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("kubeconfig {path}: cannot be used")]
    Kubeconfig { path: String, source: Box<kube::config::KubeconfigError> },
    #[error("kubeconfig {path}: {problem}")]
    Unusable { path: String, problem: String },
    #[error("kubeconfig {path}: its credentials cannot be used")]
    Refused { path: String, source: Box<kube::Error> },
}

pub struct Credentials {
    kubeconfig: PathBuf,
    config: kube::Config,
    host: String,
    port: u16,
    /// `None` for a plain connection.
    name: Option<ServerName<'static>>,
    /// The file of the cluster's authority, if it is one.
    authority: Option<PathBuf>,
    /// A pair that the node renews itself; once it is there it counts, whatever the kubeconfig has.
    managed: Option<PathBuf>,
    files: Vec<PathBuf>,
    current: Mutex<Current>,
    generation: AtomicU64,
}

struct Current {
    /// `Err`: why there is nothing to show yet.
    tls: Result<Arc<ClientConfig>, String>,
    life: Option<Life>,
    /// It was said that this life is over.
    told: Option<Life>,
    /// Of the files when they were read; `None`: they were not yet.
    stamps: Option<Vec<Option<Stamp>>>,
    looked: Instant,
}

/// Tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// What a connection is made with.
pub(super) enum Security {
    Plain,
    Tls(Arc<ClientConfig>, ServerName<'static>),
}

impl Credentials {
    /// `managed` is where the node keeps a pair that it renews itself. A certificate that is not
    /// there yet is no error: connections wait for it.
    pub async fn read(
        kubeconfig: &Path,
        managed: Option<PathBuf>,
    ) -> Result<Self, CredentialsError> {
        let unusable = |problem: String| CredentialsError::Unusable {
            path: kubeconfig.display().to_string(),
            problem,
        };
        let (config, authority) = load(kubeconfig).await?;
        if config.proxy_url.is_some() {
            return Err(unusable("proxy-url is not supported; remove it".into()));
        }
        let host = config.cluster_url.host().unwrap_or_default();
        // Addresses of the sixth version are written in brackets.
        let host = host.trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(unusable("the server is no URL with a host".into()));
        }
        let secure = config.cluster_url.scheme_str() != Some("http");
        let port = config.cluster_url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let name = config.tls_server_name.clone().unwrap_or_else(|| host.clone());
        let name = ServerName::try_from(name).map_err(|error| unusable(error.to_string()))?;
        let auth = &config.auth_info;
        let named = [&auth.client_certificate, &auth.client_key].into_iter().flatten();
        let files: Vec<PathBuf> =
            named.map(PathBuf::from).chain(authority.clone()).chain(managed.clone()).collect();
        let this = Self {
            kubeconfig: kubeconfig.to_owned(),
            host,
            port,
            name: secure.then_some(name),
            authority,
            managed,
            current: Mutex::new(Current {
                tls: Err("not read yet".into()),
                life: None,
                told: None,
                stamps: None,
                looked: Instant::now(),
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

    /// What to connect with; `Err` says what is missing.
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

    /// Grows when there is something new; connections of an older generation take no new streams.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Looks at the files if it is time.
    pub(super) fn refresh(&self) -> u64 {
        if self.current.lock().looked.elapsed() >= LOOK {
            self.reload();
        }
        self.generation()
    }

    /// Looks at the files now: somebody knows that they are new.
    pub fn reload(&self) {
        let mut current = self.current.lock();
        current.looked = Instant::now();
        let stamps = Some(self.files.iter().map(|file| stamp(file)).collect());
        let is_over = current.life.is_some_and(|life| life.is_over(Timestamp::now()));
        let renewed_by_program = is_over && self.config.auth_info.exec.is_some();
        if stamps == current.stamps && !renewed_by_program {
            self.warn_if_over(&mut current, Timestamp::now());
            return;
        }
        let config = self.with_files();
        match tls(&config) {
            Ok(tls) => {
                current.life = shown_life(&tls);
                (current.tls, current.stamps) = (Ok(tls), stamps);
                self.generation.fetch_add(1, Relaxed);
            }
            // Half of a pair is written, most likely: the next look finds the other half.
            Err(problem) if current.tls.is_ok() => {
                tracing::warn!(problem, "new credentials cannot be read; the old ones are kept");
                return;
            }
            Err(problem) => {
                current.tls = Err(problem);
                current.stamps = stamps;
            }
        }
        if let Some(life) = current.life {
            tracing::info!(until = %life.until, "the client certificate was read");
        }
        self.warn_if_over(&mut current, Timestamp::now());
    }

    /// Said once of each certificate, whether it was over when it came or ends under the node.
    fn warn_if_over(&self, current: &mut Current, now: Timestamp) {
        let Some(life) = current.life.filter(|life| life.is_over(now)) else { return };
        if current.told.replace(life) != Some(life) {
            tracing::error!(
                kubeconfig = %self.kubeconfig.display(),
                expired = %life.until,
                "the node's client certificate has expired, so the API server will not know us; \
                 pods run on. Replace the certificate, or start with --bootstrap-kubeconfig so \
                 that the node can ask for a new one"
            );
        }
    }

    /// How long the client certificate that is used now is good, if there is one.
    pub fn life(&self) -> Option<Life> {
        self.current.lock().life
    }

    /// The configuration with what the files hold now.
    fn with_files(&self) -> kube::Config {
        let mut config = self.config.clone();
        // One that is over is no better than what the kubeconfig has.
        let good = |path: &&PathBuf| {
            let life = std::fs::read(path).ok().as_deref().and_then(certificates::life);
            life.is_some_and(|life| !life.is_over(Timestamp::now()))
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
            // An authority that is being written is not no authority.
            if !found.is_empty() {
                config.root_cert = Some(found);
            }
        }
        config
    }
}

/// The configuration, and the file of the cluster's authority if it is one.
async fn load(path: &Path) -> Result<(kube::Config, Option<PathBuf>), CredentialsError> {
    let failed = |source| {
        let path = path.display().to_string();
        CredentialsError::Kubeconfig { path, source: Box::new(source) }
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    let authority = authority(&kubeconfig);
    let options = KubeConfigOptions::default();
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)?;
    config.headers.push((header::USER_AGENT, HeaderValue::from_static(USER_AGENT)));
    Ok((config, authority))
}

fn authority(kubeconfig: &Kubeconfig) -> Option<PathBuf> {
    let name = kubeconfig.current_context.as_ref()?;
    let named = kubeconfig.contexts.iter().find(|context| context.name == *name)?;
    let cluster = &named.context.as_ref()?.cluster;
    let named = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?;
    named.cluster.as_ref()?.certificate_authority.as_ref().map(PathBuf::from)
}

fn stamp(path: &Path) -> Option<Stamp> {
    // Through links: that is how a renewed pair is put in place.
    let about = std::fs::metadata(path).ok()?;
    let modified = (about.mtime(), about.mtime_nsec());
    Some(Stamp { inode: about.ino(), size: about.size(), modified })
}

fn tls(config: &kube::Config) -> Result<Arc<ClientConfig>, String> {
    let named = config.auth_info.client_certificate.as_ref();
    if let Some(missing) = named.filter(|path| !Path::new(path).exists()) {
        return Err(format!("the client certificate {missing} is not there yet"));
    }
    let mut config = config.clone();
    if config.accept_invalid_certs {
        // Nobody is believed, so it does not matter whether the machine knows any authority.
        config.root_cert.get_or_insert_default();
    }
    let mut tls = config.rustls_client_config().map_err(|error| crate::causes::chain(&error))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(tls))
}

/// How long the certificate is good that we show, wherever it came from; `None`: we show none.
fn shown_life(tls: &ClientConfig) -> Option<Life> {
    // There is one at most, whatever the server would like.
    let shown = tls.client_auth_cert_resolver.resolve(&[], &[])?;
    certificates::life_of(shown.cert.first()?)
}
