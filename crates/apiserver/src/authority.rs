//! Certificate authorities of one machine's API server.
//!
//! One signs the server certificate, which does not expire: its key is on the same disk with the
//! same permissions, so expiry would protect nothing, and a machine that boots with a wrong clock
//! must still start. Another signs client certificates, which leave the machine and therefore
//! expire. They are two, so that all client certificates can be revoked at once while pods still
//! trust the server.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use podwright_core::certificate::CertificateValidity;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::{RootCertStore, crypto};

/// What an authority signs certificates for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorityUse {
    Servers,
    Clients,
}

impl AuthorityUse {
    /// The authority's own name. Two authorities must differ, because a client picks its
    /// certificate by the names that the server accepts.
    const fn name(self) -> &'static str {
        match self {
            Self::Servers => "podwright",
            Self::Clients => "podwright-clients",
        }
    }
}

/// A certificate authority.
pub struct Authority {
    certificate: String,
    key: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct CertificatePair {
    pub certificate: String,
    pub key: String,
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot create a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("cannot use the server certificate: {0}")]
    Use(#[from] rustls::Error),
    #[error("certificate or key is damaged: {0}; delete it to get a new one")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("cannot verify client certificates: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

impl Authority {
    pub fn create(signs_for: AuthorityUse) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let params = description(signs_for);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, key: key.serialize_pem(), issuer: Issuer::new(params, key) })
    }

    /// Reads an authority from its PEM files.
    pub fn read(
        signs_for: AuthorityUse,
        certificate: String,
        key: String,
    ) -> Result<Self, AuthorityError> {
        CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let pair = KeyPair::from_pem(&key)?;
        Ok(Self { certificate, key, issuer: Issuer::new(description(signs_for), pair) })
    }

    /// PEM; public.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// PEM; secret.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Certificate for a server that is reached at these names and addresses.
    pub fn server(
        &self,
        names: &[&str],
        addresses: &[IpAddr],
    ) -> Result<CertificatePair, AuthorityError> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Certificate for a client: user `user` in `groups`.
    pub fn client(
        &self,
        user: &str,
        groups: &[&str],
        validity: CertificateValidity,
    ) -> Result<CertificatePair, AuthorityError> {
        let mut params = CertificateParams::default();
        params.not_before = SystemTime::from(validity.from).into();
        params.not_after = SystemTime::from(validity.until).into();
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
    ) -> Result<CertificatePair, AuthorityError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(CertificatePair { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// TLS configuration of a server with this certificate, for an authority of clients: a client
    /// with a certificate of another is refused. A client without one can use a token instead.
    pub fn tls(&self, server: &CertificatePair) -> Result<Arc<ServerConfig>, AuthorityError> {
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

impl std::fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pair(…)")
    }
}

/// Always the same, because the issuer in a certificate must match the subject of the authority.
fn description(signs_for: AuthorityUse) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, signs_for.name());
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}
