//! The node's own client certificate: asked for at first, renewed in time.
//!
//! A new machine has a bootstrap token that may do one thing, ask for a certificate; with that it
//! is a node. The certificate is renewed while the old one still works. Nothing waits for any of
//! it but requests to the API: static pods run before the node has a name.

mod kubeconfig;
mod request;
mod store;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::certificate::Life;
use podwright_host::clock::Clock;
use tokio_util::sync::CancellationToken;

pub use self::kubeconfig::{KubeconfigError, needs_bootstrap, write_from_bootstrap};
pub use self::request::RequestError;
pub use self::store::{Store, StoreError};
use crate::connection::credentials::Credentials;
use crate::heartbeat::chance;

/// Between two looks at a certificate that is good. Wall clocks jump, and files are replaced.
const LOOK: Duration = Duration::from_secs(60);
/// The least between two of anything.
const SOON: Duration = Duration::from_secs(1);
/// Between two looks while there is none and nobody to ask for one.
const MISSING: Duration = Duration::from_secs(10);
const RETRY_FIRST: Duration = Duration::from_secs(2);
const RETRY_MOST: Duration = Duration::from_secs(32);

/// Keeps the client certificate good.
pub struct ClientCertificate {
    pub store: Store,
    pub node: Arc<str>,
    /// What the node's connections use; told when there is something new.
    pub credentials: Arc<Credentials>,
    /// Speaks as the node.
    pub client: kube::Client,
    /// Speaks as nobody yet, and may only ask.
    pub bootstrap: Option<kube::Client>,
    /// `rotateCertificates`.
    pub rotate: bool,
    pub clock: Clock,
}

/// What to do about the certificate now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Until then, at least.
    Nothing {
        until: Duration,
    },
    Renewal,
    /// There is none, or it has expired.
    New,
}

impl ClientCertificate {
    /// Asks and renews until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let work = async {
            // One chance for each certificate, or it would be renewed as early as possible.
            let mut luck: Option<(Life, f64)> = None;
            let (mut wait, mut told) = (RETRY_FIRST, false);
            loop {
                let life = self.credentials.life();
                if let Some(life) = life
                    && luck.is_none_or(|(known, _)| known != life)
                {
                    luck = Some((life, chance()));
                }
                let known = luck.filter(|_| life.is_some());
                let client = match need(known, self.rotate, self.clock.now().wall) {
                    Need::Nothing { until } => {
                        (wait, told) = (RETRY_FIRST, false);
                        tokio::time::sleep(until.clamp(SOON, LOOK)).await;
                        continue;
                    }
                    Need::Renewal => &self.client,
                    Need::New => match &self.bootstrap {
                        Some(bootstrap) => bootstrap,
                        None => {
                            // The credentials have told what is wrong; somebody may replace them.
                            tokio::time::sleep(MISSING).await;
                            self.credentials.reload();
                            continue;
                        }
                    },
                };
                let problem = match self.obtain(client).await {
                    Ok(()) if self.is_good() => {
                        // One so short that it is due at once must not make us ask all the time.
                        tokio::time::sleep(SOON).await;
                        continue;
                    }
                    Ok(()) => "the one we got is over already; are the clocks right?".to_owned(),
                    Err(error) => crate::causes::chain(&error),
                };
                if !told {
                    tracing::warn!(problem, "cannot get a client certificate; trying on");
                    told = true;
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY_MOST);
            }
        };
        stop.run_until_cancelled(work).await;
    }

    fn is_good(&self) -> bool {
        self.credentials.life().is_some_and(|life| !life.is_over(self.clock.now().wall))
    }

    /// Asks for a certificate, keeps it and lets the connections know.
    async fn obtain(&self, client: &kube::Client) -> Result<(), RequestError> {
        let key = self.store.pending_key()?;
        let certificate = request::client_certificate(client, &self.node, &key).await;
        if let Err(RequestError::Refused { .. }) = &certificate {
            // The next try is another request.
            self.store.forget_pending_key()?;
        }
        let certificate = certificate?;
        let file = self.store.keep(&certificate, &key, self.clock.now().wall)?;
        self.store.forget_pending_key()?;
        tracing::info!(file = %file.display(), "the node has a new client certificate");
        self.credentials.reload();
        Ok(())
    }
}

fn need(life: Option<(Life, f64)>, rotate: bool, now: Timestamp) -> Need {
    let Some((life, luck)) = life.filter(|(life, _)| !life.is_over(now)) else { return Need::New };
    let due = if rotate { life.renewal(luck) } else { life.until };
    match Duration::try_from(due.duration_since(now)) {
        Ok(until) if !until.is_zero() => Need::Nothing { until },
        Ok(_) | Err(_) => Need::Renewal,
    }
}

/// How long the first certificate in a PEM file is good.
pub fn life(pem: &[u8]) -> Option<Life> {
    use x509_parser::pem::Pem;
    let found = Pem::iter_from_buffer(pem).flatten().find(|pem| pem.label == "CERTIFICATE")?;
    life_of(&found.contents)
}

/// How long a certificate is good.
pub fn life_of(der: &[u8]) -> Option<Life> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let validity = certificate.validity();
    let time = |seconds: i64| Timestamp::from_second(seconds).ok();
    Some(Life {
        from: time(validity.not_before.timestamp())?,
        until: time(validity.not_after.timestamp())?,
    })
}

#[cfg(test)]
mod tests;
