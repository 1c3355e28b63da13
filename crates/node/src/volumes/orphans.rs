//! Directories of pods that are no longer wanted.
//!
//! This is how every pod's directory goes: its volumes are released at the end of its life, the
//! rest stays until the pod is gone from its source. A directory that an agent did not get to
//! before it was killed is found here as well. What no agent made is left alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::ids::PodUid;
use podwright_core::time::Mono;
use podwright_core::volume::teardown::Scope;

use super::{VolumeError, Volumes};
use crate::causes::chain;

/// One that cannot be removed is tried again, but not every two seconds.
const RETRY: Duration = Duration::from_secs(60);

/// Folders that are to go.
#[derive(Default)]
pub(super) struct Orphans(Mutex<BTreeMap<PodUid, Orphan>>);

enum Orphan {
    /// Somebody is at it, for as long as it takes.
    UnderWay { failed_before: Option<String> },
    /// Why it stays, and when to try again.
    Stays { why: String, retry_at: Mono },
}

impl Orphans {
    /// A pod that comes back under the same UID has to wait for this.
    pub(super) fn is_being_removed(&self, uid: &PodUid) -> bool {
        matches!(self.0.lock().get(uid), Some(Orphan::UnderWay { .. }))
    }
}

impl Volumes {
    /// Removes the folders of pods that are not among `kept`, each in a task of its own: an
    /// unmount that hangs keeps nobody waiting. What stays is reported once.
    pub fn remove_orphans(self: &Arc<Self>, kept: &BTreeSet<PodUid>) {
        let on_disk = match self.pods_on_disk() {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(error = chain(&error), "cannot list the pods' folders");
                return;
            }
        };
        let now = self.sources.clock.now().mono;
        let mut orphans = self.orphans.0.lock();
        orphans.retain(|uid, orphan| match orphan {
            Orphan::UnderWay { .. } => true,
            Orphan::Stays { .. } => on_disk.contains(uid) && !kept.contains(uid),
        });
        for uid in on_disk.into_iter().filter(|uid| !kept.contains(uid)) {
            let failed_before = match orphans.remove(&uid) {
                Some(Orphan::Stays { why, retry_at }) if retry_at <= now => Some(why),
                Some(waits) => {
                    orphans.insert(uid, waits);
                    continue;
                }
                None => None,
            };
            orphans.insert(uid.clone(), Orphan::UnderWay { failed_before });
            let this = self.clone();
            tokio::spawn(async move { this.remove_orphan(uid).await });
        }
    }

    #[cfg(test)]
    pub(super) fn is_settled(&self) -> bool {
        let under_way = |orphan: &Orphan| matches!(orphan, Orphan::UnderWay { .. });
        !self.orphans.0.lock().values().any(under_way)
    }

    async fn remove_orphan(&self, uid: PodUid) {
        let entry = self.known.lock().get(&uid).cloned();
        let turn = entry.as_ref().map(|entry| entry.turn_if_free());
        let removed = match turn {
            // A worker is at it after all.
            Some(None) => {
                self.orphans.0.lock().remove(&uid);
                return;
            }
            Some(turn @ Some(_)) => self.take_down(&uid, Scope::Directory, turn).await,
            None => self.take_down(&uid, Scope::Directory, None).await,
        };
        let before = self.orphans.0.lock().remove(&uid);
        match removed {
            Ok(()) => {
                tracing::debug!(%uid, "removed the directory of a pod that is gone");
                self.forget(&uid);
            }
            Err(error) => {
                let why = chain(&error);
                let known = match before {
                    Some(Orphan::UnderWay { failed_before }) => failed_before,
                    Some(Orphan::Stays { .. }) | None => None,
                };
                let is_new = known.as_ref() != Some(&why);
                if is_new && matches!(error, VolumeError::NotAPods { .. }) {
                    tracing::warn!(
                        directory = %uid,
                        "unknown directory among those of pods, leaving it alone"
                    );
                } else if is_new {
                    tracing::warn!(
                        %uid, error = why, retry = ?RETRY,
                        "cannot remove the directory of a pod that is gone, retrying"
                    );
                }
                let retry_at = self.sources.clock.now().mono + RETRY;
                self.orphans.0.lock().insert(uid, Orphan::Stays { why, retry_at });
            }
        }
    }
}
