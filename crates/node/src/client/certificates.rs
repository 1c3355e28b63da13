//! Client certificate of the node: TLS bootstrap and rotation.
//!
//! A new machine has a bootstrap token that may only request a certificate. The certificate is
//! renewed while the old one is still valid. Only requests to the API wait for it: static pods run
//! before.

mod kubeconfig;
mod request;
mod store;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::backoff::{Doubling, Retry};
use podwright_core::certificate::CertificateValidity;
use podwright_core::time::Now;
use podwright_host::clock::Clock;
use tokio_util::sync::CancellationToken;

pub use self::kubeconfig::{KubeconfigError, needs_bootstrap, write_from_bootstrap};
pub use self::request::RequestError;
pub use self::store::{Store, StoreError};
use crate::client::connection::credentials::Credentials;
use crate::report::heartbeat::random;

/// Interval of checks of a valid certificate. Wall clocks jump, and files are replaced.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum interval.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks without a certificate and without a bootstrap client.
const MISSING_INTERVAL: Duration = Duration::from_secs(10);
const RETRY: Doubling = Doubling::new(Duration::from_secs(2), Duration::from_secs(32));

/// Keeps the client certificate valid.
pub struct ClientCertificate {
    pub store: Store,
    pub node: Arc<str>,
    /// The credentials of the node's connections; reloaded after a renewal.
    pub credentials: Arc<Credentials>,
    /// Authenticated as the node.
    pub client: kube::Client,
    /// Authenticated by the bootstrap token, which may only request a certificate.
    pub bootstrap: Option<kube::Client>,
    /// `rotateCertificates`.
    pub rotate: bool,
    pub clock: Clock,
}

/// The certificate in use.
#[derive(Clone, Copy, Debug)]
struct Current {
    validity: CertificateValidity,
    /// From 0 to 1.
    jitter: f64,
    /// When it was loaded.
    since: Now,
}

/// The next action for the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CertificateAction {
    /// At least until then.
    Nothing {
        until: Duration,
    },
    Renewal,
    /// There is none, or it has expired.
    New,
}

impl ClientCertificate {
    /// Requests and renews certificates until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let work = async {
            // One jitter value per certificate; drawing again would renew as early as possible.
            let mut current: Option<Current> = None;
            let (mut retry, mut logged) = (Retry::new(RETRY), false);
            loop {
                let validity = self.credentials.validity();
                let now = self.clock.now();
                if let Some(validity) = validity
                    && current.is_none_or(|current| current.validity != validity)
                {
                    current = Some(Current { validity, jitter: random(), since: now });
                }
                let known = current.filter(|_| validity.is_some());
                let client = match next_action(known, self.rotate, now) {
                    CertificateAction::Nothing { until } => {
                        retry.reset();
                        logged = false;
                        tokio::time::sleep(until.clamp(MIN_INTERVAL, CHECK_INTERVAL)).await;
                        continue;
                    }
                    CertificateAction::Renewal => &self.client,
                    CertificateAction::New => match &self.bootstrap {
                        Some(bootstrap) => bootstrap,
                        None => {
                            // The credentials have logged the problem; a user may replace them.
                            tokio::time::sleep(MISSING_INTERVAL).await;
                            self.credentials.reload();
                            continue;
                        }
                    },
                };
                let problem = match self.obtain(client).await {
                    Ok(()) if self.is_valid() => {
                        // A very short-lived certificate must not cause a busy loop.
                        tokio::time::sleep(MIN_INTERVAL).await;
                        continue;
                    }
                    Ok(()) => {
                        "the certificate has already expired. Fix: check the clocks".to_owned()
                    }
                    Err(error) => crate::error_chain::chain(&error),
                };
                if !logged {
                    tracing::warn!(problem, "cannot get a client certificate, retrying");
                    logged = true;
                }
                tokio::time::sleep(retry.next_delay()).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    fn is_valid(&self) -> bool {
        self.credentials
            .validity()
            .is_some_and(|validity| !validity.is_expired(self.clock.now().wall))
    }

    /// Requests a certificate, stores it and reloads the credentials.
    async fn obtain(&self, client: &kube::Client) -> Result<(), RequestError> {
        let key = self.store.pending_key()?;
        let certificate = request::client_certificate(client, &self.node, &key).await;
        if let Err(RequestError::Rejected { .. }) = &certificate {
            // The next attempt needs a new request.
            self.store.remove_pending_key()?;
        }
        let certificate = certificate?;
        let file = self.store.keep(&certificate, &key, self.clock.now().wall)?;
        self.store.remove_pending_key()?;
        tracing::info!(file = %file.display(), "stored new client certificate");
        self.credentials.reload();
        Ok(())
    }
}

fn next_action(current: Option<Current>, rotate: bool, now: Now) -> CertificateAction {
    let valid = current.filter(|current| !current.validity.is_expired(now.wall));
    let Some(Current { validity, jitter, since }) = valid else { return CertificateAction::New };
    let due = if rotate { validity.renewal(jitter) } else { validity.until };
    // By both clocks: the wall clock may have been set back since the certificate was loaded.
    let by_wall = Duration::try_from(due.duration_since(now.wall)).unwrap_or_default();
    let at_first = Duration::try_from(due.duration_since(since.wall)).unwrap_or_default();
    let until = by_wall.min(at_first.saturating_sub(now.mono.since(since.mono)));
    match until.is_zero() {
        false => CertificateAction::Nothing { until },
        true => CertificateAction::Renewal,
    }
}

/// Validity of the first certificate in a PEM file.
pub fn validity(pem: &[u8]) -> Option<CertificateValidity> {
    use x509_parser::pem::Pem;
    let found = Pem::iter_from_buffer(pem).flatten().find(|pem| pem.label == "CERTIFICATE")?;
    validity_of(&found.contents)
}

/// Validity of a certificate.
pub fn validity_of(der: &[u8]) -> Option<CertificateValidity> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let validity = certificate.validity();
    let time = |seconds: i64| Timestamp::from_second(seconds).ok();
    Some(CertificateValidity {
        from: time(validity.not_before.timestamp())?,
        until: time(validity.not_after.timestamp())?,
    })
}

#[cfg(test)]
mod tests;
