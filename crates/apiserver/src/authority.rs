//! The certificates of one machine's API server.
//!
//! An authority of its own signs the server's certificate and those that people show. They do not
//! expire: the key lies beside what it protects, on the same disk and for the same eyes, so a
//! date would protect nothing, and a machine that wakes up with a wrong clock must still start.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::{RootCertStore, crypto};

const NAME: &str = "podwright";

/// Signs certificates.
pub struct Authority {
    certificate: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the certificate of the server cannot be used: {0}")]
    Use(#[from] rustls::Error),
    #[error("a certificate or key is damaged; delete it to get a new one: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("certificates of clients cannot be checked: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

impl Authority {
    pub fn create() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let certificate = description().self_signed(&key)?.pem();
        Ok(Self { certificate, key: key.serialize_pem(), issuer: Issuer::new(description(), key) })
    }

    /// The one that these were written by.
    pub fn read(certificate: String, key: String) -> Result<Self, AuthorityError> {
        CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let pair = KeyPair::from_pem(&key)?;
        Ok(Self { certificate, key, issuer: Issuer::new(description(), pair) })
    }

    /// PEM; for everybody to see.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// PEM; for nobody to see.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// For a server that is reached under these names and addresses.
    pub fn server(&self, names: &[&str], addresses: &[IpAddr]) -> Result<Pair, AuthorityError> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// For a client that the server knows as `user`, a member of `groups`.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Pair, AuthorityError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Pair, AuthorityError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// How the server speaks TLS: with this pair, and asking clients for a certificate of this
    /// authority. A client may have none; it may have a token.
    pub fn tls(&self, server: &Pair) -> Result<Arc<ServerConfig>, AuthorityError> {
        let provider = Arc::new(crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes())?)?;
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()?;
        let chain = vec![CertificateDer::from_pem_slice(server.certificate.as_bytes())?];
        let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes())?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(…)")
    }
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pair(…)")
    }
}

/// The same every time, because whoever signs must be named as the certificate names it.
fn description() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}
