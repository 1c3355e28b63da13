//! Client certificates: the common name is the user, the organizations are the groups.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::User;
use crate::server::reload::{FileProblem, Reload, Reloading, read};

/// The client CAs. The file may change at any time.
pub(super) struct ClientCas(Reloading<Arc<dyn ClientCertVerifier>>);

#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    #[error("not signed by a client CA of this node, or not valid now")]
    Untrusted(#[source] rustls::Error),
    #[error("cannot parse the certificate subject")]
    Subject,
}

impl ClientCas {
    pub(super) fn open(path: &Path, reload: Reload) -> Result<Self, FileProblem> {
        let file = path.to_owned();
        Reloading::load(vec![path.to_owned()], reload, move || load(&file)).map(Self)
    }

    /// The user that a certificate chain identifies; `None` if it has no common name.
    pub(super) fn user_of(
        &self,
        chain: &[CertificateDer<'static>],
    ) -> Result<Option<User>, CertificateError> {
        let Some((first, others)) = chain.split_first() else { return Ok(None) };
        self.0
            .get()
            .verify_client_cert(first, others, UnixTime::now())
            .map_err(CertificateError::Untrusted)?;
        let (_, parsed) =
            X509Certificate::from_der(first).map_err(|_| CertificateError::Subject)?;
        let subject = parsed.subject();
        let name = subject.iter_common_name().next().and_then(|name| name.as_str().ok());
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
        let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
        Ok(Some(User {
            name: name.to_owned(),
            groups: groups.map(str::to_owned).collect(),
            ..User::default()
        }))
    }
}

fn load(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, FileProblem> {
    let problem = |problem: String| FileProblem::Content { path: path.to_owned(), problem };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&read(path)?) {
        let certificate =
            certificate.map_err(|error| problem(format!("contains no PEM: {error}")))?;
        roots.add(certificate).map_err(|error| problem(format!("is not a CA: {error}")))?;
    }
    let provider = Arc::new(ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| problem(format!("contains no CA: {error}")))
}

/// Requests a client certificate and verifies only that the client has its key. The certificate
/// itself is verified with each request, so that an invalid one results in a 401 and not in a
/// broken connection.
pub(in crate::server) struct OptionalClientCert {
    provider: Arc<CryptoProvider>,
}

impl OptionalClientCert {
    pub(in crate::server) fn new(provider: Arc<CryptoProvider>) -> Self {
        Self { provider }
    }
}

impl fmt::Debug for OptionalClientCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Invited")
    }
}

impl ClientCertVerifier for OptionalClientCert {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None: the client sends any certificate that it has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
