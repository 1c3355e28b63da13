//! CA certificates of the machine, for servers outside the cluster.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

/// The machine's CA certificates. `SSL_CERT_FILE` and `SSL_CERT_DIR` replace the usual locations.
pub fn load() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "load CA certificates of this machine failed, continuing without");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    roots
}

/// TLS that trusts these CAs and has no client certificate.
pub(crate) fn trusting(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
