//! What the server does by itself: the objects that every cluster has, the contents of each
//! namespace, the node of each pod, the volume of each claim, the dependents of deleted objects, the
//! events that have had their time.
//!
//! Each controller is one loop: it waits for the store to change, looks at what changed, and
//! acts through the same verbs as any client. What it did not get done, because somebody wrote
//! in between or a disk failed, it finds again the next time it looks.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::document::Revision;
use crate::registry::Resource;
use crate::server::ApiServer;
use crate::store::{HistoryError, Scope};

mod binding;
mod bootstrap;
mod claims;
mod dependents;
mod namespaces;

pub(crate) use bootstrap::namespace_contents;
pub use claims::{ClaimDirectories, ReclaimDirectory, is_claim_volume};

/// How often the store is asked to let old events go when nothing is written.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// After something failed; what failed is tried again then even if nothing changes.
const RETRY_AFTER: Duration = Duration::from_secs(5);

impl ApiServer {
    /// Runs all of them until told to stop.
    pub async fn run_controllers(&self, stop: CancellationToken) {
        tokio::join!(
            self.tend_namespaces(stop.clone()),
            self.tend_dependents(stop.clone()),
            self.tend_bindings(stop.clone()),
            self.tend_claims(stop.clone()),
            self.expire_events(stop),
        );
    }

    /// Whether anything of these kinds has changed; of what the log no longer tells it may have.
    fn touched(&self, kinds: &[&'static Resource], since: Revision) -> bool {
        kinds.iter().any(|kind| match self.store().history(&Scope::new(kind, None), since, 1) {
            Ok(history) => !history.events.is_empty(),
            Err(HistoryError::TooOld { .. } | HistoryError::Store(_)) => true,
        })
    }

    async fn expire_events(&self, stop: CancellationToken) {
        loop {
            tokio::select! { biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EXPIRE_EVERY) => {}
            }
            if let Err(error) = self.store().expire().await {
                tracing::warn!(%error, "cannot let old events go; trying again in a minute");
            }
        }
    }
}

/// Waits until a controller should look again: the store changed, or something failed a while ago.
/// False: it is told to stop.
async fn next_look(
    changes: &mut watch::Receiver<Revision>,
    failed: bool,
    stop: &CancellationToken,
) -> bool {
    tokio::select! { biased;
        () = stop.cancelled() => false,
        changed = changes.changed() => changed.is_ok(),
        () = tokio::time::sleep(RETRY_AFTER), if failed => true,
    }
}
