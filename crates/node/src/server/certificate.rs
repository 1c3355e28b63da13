//! Serving certificate and TLS configuration of the kubelet server.
//!
//! The certificate comes from two files, which may be replaced at any time, or is self-signed and
//! stored in the certificate directory, so that a node is reachable before a CA has signed
//! anything. A self-signed certificate is replaced at a start that cannot read it or finds it in
//! its last month; upstream lets it expire.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::auth::x509::OptionalClientCert;
use super::reload::{FileProblem, Reload, Reloading, read};

const LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);
const RENEW: SignedDuration = SignedDuration::from_hours(30 * 24);
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Source of the serving certificate.
#[derive(Clone, Debug)]
pub enum Source {
    Files {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// `kubelet.crt` and `kubelet.key` in this directory, created if necessary.
    SelfSigned {
        directory: PathBuf,
        host: String,
        addresses: Vec<IpAddr>,
    },
}

/// TLS configuration.
#[derive(Clone, Debug, Default)]
pub struct TlsSettings {
    /// `ReloadKubeletServerCertificateFile`.
    pub reload: Reload,
    /// Minimum version TLS 1.3.
    pub only_13: bool,
    /// Cipher suites for TLS 1.2; empty: all secure ones. Those of 1.3 cannot be configured.
    pub cipher_suites: Vec<String>,
    /// Key exchange groups by their registered numbers, best first; empty: all secure ones.
    pub groups: Vec<u16>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot load the serving certificate")]
    Certificate(#[from] FileProblem),
    #[error(
        "cannot create a self-signed serving certificate. Fix: set tlsCertFile and tlsPrivateKeyFile"
    )]
    Make(#[from] rcgen::Error),
    #[error("cannot write {}. Fix: make the certificate directory (--cert-dir) writable", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("no usable TLS version and cipher suite. Fix: relax tlsMinVersion or tlsCipherSuites")]
    Protocol(#[source] rustls::Error),
}

/// TLS configuration of a listener. Client certificates are requested but optional, and verified
/// with each request, where an invalid one can be reported.
pub(super) fn configure(
    source: &Source,
    settings: &TlsSettings,
    invite_clients: bool,
) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(provider(settings));
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions(settings))
        .map_err(TlsError::Protocol)?;
    let certificate = Arc::new(Serving::new(source, settings.reload, provider.clone())?);
    let mut config = if invite_clients {
        builder.with_client_cert_verifier(Arc::new(OptionalClientCert::new(provider)))
    } else {
        builder.with_no_client_auth()
    }
    .with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn versions(settings: &TlsSettings) -> &'static [&'static SupportedProtocolVersion] {
    use rustls::version::TLS13;
    static ONLY_13: [&SupportedProtocolVersion; 1] = [&TLS13];
    if settings.only_13 { &ONLY_13 } else { rustls::DEFAULT_VERSIONS }
}

fn provider(settings: &TlsSettings) -> CryptoProvider {
    let mut provider = ring::default_provider();
    if !settings.cipher_suites.is_empty() {
        let wanted = |name: &str| {
            settings.cipher_suites.iter().any(|wanted| {
                // Go also accepts a shorter name for these two.
                name == wanted || name.strip_suffix("_SHA256").is_some_and(|short| short == wanted)
            })
        };
        provider
            .cipher_suites
            .retain(|suite| suite.tls13().is_some() || suite.suite().as_str().is_some_and(wanted));
    }
    if !settings.groups.is_empty() {
        let preference = |group: u16| settings.groups.iter().position(|wanted| *wanted == group);
        provider.kx_groups.retain(|group| preference(u16::from(group.name())).is_some());
        provider.kx_groups.sort_by_key(|group| preference(u16::from(group.name())));
    }
    provider
}

/// The certificate in use.
struct Serving(Reloading<CertifiedKey>);

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Serving")
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.get())
    }
}

impl Serving {
    fn new(
        source: &Source,
        reload: Reload,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let (certificate, key) = match source {
            Source::Files { certificate, key } => (certificate.clone(), key.clone()),
            Source::SelfSigned { directory, host, addresses } => {
                let pair = self_signed_files(directory);
                if needs_replacement(&pair.0, &pair.1, &provider, Timestamp::now()) {
                    create_self_signed(&pair.0, &pair.1, host, addresses, Timestamp::now())?;
                }
                pair
            }
        };
        let paths = vec![certificate.clone(), key.clone()];
        let load = move || load(&certificate, &key, &provider);
        Ok(Self(Reloading::load(paths, reload, load)?))
    }
}

fn load(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, FileProblem> {
    let problem =
        |path: &Path, problem: String| FileProblem::Content { path: path.into(), problem };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(certificate)?).collect();
    let chain = chain.map_err(|error| problem(certificate, format!("contains no PEM: {error}")))?;
    // The error must not quote the key; these errors only name the problem.
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|error| problem(key, format!("contains no key: {error}")))?;
    CertifiedKey::from_der(chain, secret, provider)
        .map_err(|error| problem(certificate, format!("does not match its key: {error}")))
}

/// Whether the self-signed certificate is missing, invalid, or about to expire.
fn needs_replacement(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
    now: Timestamp,
) -> bool {
    let Ok(pair) = load(certificate, key, provider) else { return true };
    let Some(first) = pair.cert.first() else { return true };
    let Ok((_, parsed)) = X509Certificate::from_der(first) else { return true };
    let end = parsed.validity().not_after.timestamp();
    now.as_second().saturating_add(RENEW.as_secs()) >= end
}

fn create_self_signed(
    certificate: &Path,
    key: &Path,
    host: &str,
    addresses: &[IpAddr],
    now: Timestamp,
) -> Result<(), TlsError> {
    let mut params = CertificateParams::new(vec![host.to_owned()])?;
    params.subject_alt_names.extend(addresses.iter().map(|ip| SanType::IpAddress(*ip)));
    let name = format!("{host}@{}", now.as_second());
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // Tolerates client clocks that differ by less than a day.
    let day = |by: SignedDuration| {
        let date = now.saturating_add(by).unwrap_or(now).to_zoned(TimeZone::UTC).date();
        let part = |number: i8| u8::try_from(number).unwrap_or(1);
        rcgen::date_time_ymd(date.year().into(), part(date.month()), part(date.day()))
    };
    params.not_before = day(-DAY);
    params.not_after = day(LIFETIME);
    let pair = KeyPair::generate()?;
    let signed = params.self_signed(&pair)?;
    let directory = certificate.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory)
        .map_err(|source| TlsError::Write { path: directory.to_owned(), source })?;
    // The key first: a certificate without its key is replaced, a key alone is harmless.
    write(key, &pair.serialize_pem(), 0o600)?;
    write(certificate, &signed.pem(), 0o644)?;
    tracing::info!(certificate = %certificate.display(), "created self-signed serving certificate");
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let failed = |source| TlsError::Write { path: path.to_owned(), source };
    let part = path.with_extension("part");
    // Left by an agent that was killed; it may have a different mode.
    let _ = std::fs::remove_file(&part);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&part).map_err(failed)?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&part, path).map_err(failed)
}

/// Paths of the self-signed certificate and its key.
pub fn self_signed_files(directory: &Path) -> (PathBuf, PathBuf) {
    (directory.join("kubelet.crt"), directory.join("kubelet.key"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn self_signed(directory: &Path) -> Source {
        Source::SelfSigned {
            directory: directory.to_owned(),
            host: "node-1".into(),
            addresses: vec![IpAddr::from([10, 0, 0, 1])],
        }
    }

    #[test]
    fn self_signed_certificate_is_created_once_with_a_private_key_mode() {
        let directory = tempfile::tempdir().unwrap();
        let source = self_signed(&directory.path().join("pki"));
        configure(&source, &TlsSettings::default(), true).unwrap();
        let key = directory.path().join("pki/kubelet.key");
        assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let first = std::fs::read(&key).unwrap();
        configure(&source, &TlsSettings::default(), true).unwrap();
        assert_eq!(std::fs::read(&key).unwrap(), first, "kept across a restart");
        std::fs::write(directory.path().join("pki/kubelet.crt"), "garbage").unwrap();
        configure(&source, &TlsSettings::default(), true).unwrap();
        assert_ne!(std::fs::read(&key).unwrap(), first, "replaced when it cannot be read");
    }

    #[test]
    fn certificate_is_renewed_in_its_last_month() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (directory.path().join("c"), directory.path().join("k"));
        let provider = ring::default_provider();
        let now = Timestamp::now();
        let made = now.saturating_sub(LIFETIME).unwrap();
        for (age_left, want) in [(40, false), (29, true), (-1, true)] {
            let at = made.saturating_add(SignedDuration::from_hours(24 * age_left)).unwrap();
            create_self_signed(&certificate, &key, "node-1", &[], at).unwrap();
            assert_eq!(
                needs_replacement(&certificate, &key, &provider, now),
                want,
                "{age_left} days"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn new_files_are_used_without_restart_and_mismatched_pair_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (directory.path().join("c"), directory.path().join("k"));
        create_self_signed(&certificate, &key, "old", &[], Timestamp::now()).unwrap();
        let source = Source::Files { certificate: certificate.clone(), key: key.clone() };
        let serving =
            Serving::new(&source, Reload::OnChange, Arc::new(ring::default_provider())).unwrap();
        let in_use = || serving.0.get().cert[0].clone();
        let old = in_use();
        let (new_certificate, new_key) = (directory.path().join("c2"), directory.path().join("k2"));
        create_self_signed(&new_certificate, &new_key, "the new one", &[], Timestamp::now())
            .unwrap();
        let a_while = std::time::Duration::from_secs(2);
        std::fs::rename(&new_certificate, &certificate).unwrap();
        tokio::time::advance(a_while).await;
        assert_eq!(in_use(), old, "the key does not match yet");
        std::fs::rename(&new_key, &key).unwrap();
        tokio::time::advance(a_while).await;
        assert_ne!(in_use(), old);
    }

    #[test]
    fn error_never_contains_the_key() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (directory.path().join("c"), directory.path().join("k"));
        create_self_signed(&certificate, &key, "node-1", &[], Timestamp::now()).unwrap();
        let secret = "MIsecretsecretsecret";
        for text in [
            secret.to_owned(),
            format!("-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----\n"),
        ] {
            std::fs::write(&key, text).unwrap();
            let source = Source::Files { certificate: certificate.clone(), key: key.clone() };
            let error = configure(&source, &TlsSettings::default(), false).unwrap_err();
            assert!(!format!("{error:?}").contains(secret), "{error:?}");
        }
    }

    #[test]
    fn settings_choose_suites_and_groups() {
        let names = |settings: &TlsSettings| {
            let provider = provider(settings);
            let suites = provider.cipher_suites.iter();
            let old: Vec<_> = suites.filter(|s| s.tls13().is_none()).map(|s| s.suite()).collect();
            let groups: Vec<u16> = provider.kx_groups.iter().map(|g| u16::from(g.name())).collect();
            (old, groups)
        };
        let suite = rustls::CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256;
        for name in
            ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]
        {
            let settings =
                TlsSettings { cipher_suites: vec![name.into()], ..TlsSettings::default() };
            assert_eq!(names(&settings).0, [suite], "{name}");
        }
        let settings = TlsSettings { groups: vec![24, 29, 9999], ..TlsSettings::default() };
        assert_eq!(names(&settings).1, [24, 29]);
        assert!(!names(&TlsSettings::default()).0.is_empty());
        let impossible = TlsSettings { groups: vec![9999], ..TlsSettings::default() };
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(
            configure(&self_signed(directory.path()), &impossible, false),
            Err(TlsError::Protocol(_))
        ));
    }
}
