//! Client credentials of the standalone node: the owner's kubeconfig and those of other users.
//!
//! Client certificates have an authority of their own. Builds up to 0.1.0 signed them with the
//! server's authority and without an end; those are not accepted any more.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use podwright_apiserver::Authority;
use podwright_apiserver::access::MASTERS;
use podwright_apiserver::authority::AuthorityUse;
use podwright_core::certificate::{CertificateValidity, is_due};
use tokio_util::sync::CancellationToken;

use super::kubeconfig::{self, EntryNames};
use super::{Layout, api};

/// User of the owner's kubeconfig.
const ADMIN: &str = "podwright-admin";
const ADMIN_LIFETIME: SignedDuration = SignedDuration::from_hours(7 * 24);
/// How often the time is compared: a machine may sleep, or its clock may be set.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Certificates are valid from a little earlier, for clients whose clock is behind.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// The authority of client certificates, created if there is none.
pub fn authority(directory: &Path) -> anyhow::Result<Authority> {
    api::authority(directory, "client-ca", AuthorityUse::Clients)
}

/// A validity period that starts now.
pub fn valid_for(lifetime: SignedDuration) -> anyhow::Result<CertificateValidity> {
    let now = Timestamp::now();
    let until = now.checked_add(lifetime).context("the time of expiry is out of range")?;
    Ok(CertificateValidity { from: now.checked_sub(CLOCK_SKEW)?, until })
}

/// The owner's kubeconfig, which may do everything.
pub struct AdminKubeconfig {
    path: PathBuf,
    names: EntryNames,
    url: String,
    /// Certificate of the server's authority, PEM.
    server_authority: String,
    clients: Authority,
}

impl AdminKubeconfig {
    pub fn new(layout: &Layout, url: String, server_authority: String, clients: Authority) -> Self {
        let names = EntryNames::of_admin(layout, ADMIN);
        Self { path: layout.kubeconfig(), names, url, server_authority, clients }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Writes the file with a new certificate.
    pub fn write(&self) -> anyhow::Result<CertificateValidity> {
        let validity = valid_for(ADMIN_LIFETIME)?;
        let pair = self.clients.client(ADMIN, &[MASTERS], validity)?;
        let text = kubeconfig::text(&self.url, &self.server_authority, &self.names, &pair);
        kubeconfig::write(&self.path, &text)?;
        Ok(validity)
    }

    /// Renews the certificate at half of its time until `stop`.
    pub async fn renew(self, mut validity: CertificateValidity, stop: CancellationToken) {
        loop {
            tokio::select! { biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
            }
            if !is_due(validity, Timestamp::now()) {
                continue;
            }
            match self.write() {
                Ok(renewed) => {
                    validity = renewed;
                    tracing::info!(file = %self.path.display(), until = %validity.until,
                        "kubeconfig: client certificate renewed");
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(file = %self.path.display(), error, until = %validity.until,
                        "kubeconfig: renew client certificate failed, retrying in a minute");
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_apiserver::authority::AuthorityUse;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn kubeconfig_is_renewed_at_half_of_its_time_while_the_node_runs() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let admin = || {
            let clients = Authority::create(AuthorityUse::Clients).unwrap();
            let url = "https://127.0.0.1:6443".to_owned();
            AdminKubeconfig::new(&layout, url, "authority".to_owned(), clients)
        };
        let read = || std::fs::read_to_string(layout.kubeconfig()).unwrap();
        let an_hour = Duration::from_secs(3600);
        let fresh = admin().write().unwrap();
        let first = read();
        let renewing = admin().renew(fresh, CancellationToken::new());
        assert!(tokio::time::timeout(an_hour, renewing).await.is_err(), "it runs until stopped");
        assert_eq!(read(), first);

        let now = Timestamp::now();
        let days = |days: i64| SignedDuration::from_hours(24 * days);
        let half = CertificateValidity { from: now - days(4), until: now + days(3) };
        let renewing = admin().renew(half, CancellationToken::new());
        assert!(tokio::time::timeout(CHECK_INTERVAL * 3 / 2, renewing).await.is_err());
        let second = read();
        assert_ne!(second, first);
    }
}
