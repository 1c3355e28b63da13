//! Controllers: built-in objects, namespaces and their contents, pod binding, claims and volumes,
//! dependents of deleted objects, aggregated roles, expiry of events.
//!
//! Each controller is one loop: wait for the store to change, read what changed, act through the
//! same verbs as any client. What fails, because of a conflict or a disk error, is retried in the
//! next iteration.

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
mod protection;
mod roles;

pub(crate) use bootstrap::namespace_contents;
pub use claims::{ClaimDirectories, ReclaimDirectory};

/// How often old events are expired when nothing is written.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// Delay after a failure, even if nothing changes.
const RETRY_AFTER: Duration = Duration::from_secs(5);

impl ApiServer {
    /// Runs all controllers until `stop`.
    pub async fn run_controllers(&self, stop: CancellationToken) {
        tokio::join!(
            self.run_namespace_controller(stop.clone()),
            self.run_garbage_collector(stop.clone()),
            self.run_binding_controller(stop.clone()),
            self.run_claims_controller(stop.clone()),
            self.run_aggregation_controller(stop.clone()),
            self.expire_events(stop),
        );
    }

    /// Whether any object of these kinds has changed; true if the log no longer reaches back to
    /// `since`.
    pub(crate) fn any_changed(&self, kinds: &[&'static Resource], since: Revision) -> bool {
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
                tracing::warn!(%error, "expire events failed, retrying in a minute");
            }
        }
    }
}

/// Waits until a controller should run again: the store changed, or the retry delay after a failure
/// is over. False: stopped.
async fn wait_for_change(
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
