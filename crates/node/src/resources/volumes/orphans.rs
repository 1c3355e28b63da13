//! Removal of the directories of pods that no source names.
//!
//! Every pod directory ends here: its volumes are released when the pod terminates, the rest
//! stays until its source drops the pod. Directories left by an agent that was killed are
//! removed as well. Directories that no agent made are left alone.

use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::ids::PodUid;
use podwright_core::time::Mono;
use podwright_core::volume::teardown::Scope;

use super::{VolumeError, Volumes};
use crate::error_chain::chain;

/// Delay between attempts to remove a directory; the caller runs every two seconds.
const RETRY: Duration = Duration::from_secs(60);

/// Directories to be removed.
#[derive(Default)]
pub(super) struct OrphanedDirectories(Mutex<BTreeMap<PodUid, OrphanedDirectory>>);

enum OrphanedDirectory {
    /// A task is removing it.
    Removing { failed_before: Option<String> },
    /// The last attempt failed; `why` is `None` if a worker was using the directory.
    Failed { why: Option<String>, retry_at: Mono },
}

impl OrphanedDirectories {
    /// A new pod with the same UID has to wait while this is true.
    pub(super) fn is_being_removed(&self, uid: &PodUid) -> bool {
        matches!(self.0.lock().get(uid), Some(OrphanedDirectory::Removing { .. }))
    }
}

impl Volumes {
    /// Removes the directories of these pods, and of those whose last attempt failed some time ago,
    /// each in its own task, so that an unmount that hangs blocks nothing else. Each failure is
    /// logged once.
    pub fn remove_orphans(
        self: &Arc<Self>,
        pods: impl IntoIterator<Item = PodUid>,
        is_kept: impl Fn(&PodUid) -> bool,
    ) {
        let now = self.sources.clock.now().mono;
        let mut orphans = self.orphans.0.lock();
        orphans.retain(|uid, orphan| match orphan {
            OrphanedDirectory::Removing { .. } => true,
            OrphanedDirectory::Failed { .. } => !is_kept(uid),
        });
        let mut due: BTreeMap<PodUid, Option<String>> = BTreeMap::new();
        for uid in pods {
            if !is_kept(&uid) && !orphans.contains_key(&uid) {
                due.insert(uid, None);
            }
        }
        for (uid, orphan) in &*orphans {
            match orphan {
                OrphanedDirectory::Failed { why, retry_at } if *retry_at <= now => {
                    due.insert(uid.clone(), why.clone());
                }
                OrphanedDirectory::Failed { .. } | OrphanedDirectory::Removing { .. } => {}
            }
        }
        for (uid, failed_before) in due {
            if !self.is_on_disk(&uid) {
                orphans.remove(&uid);
                continue;
            }
            orphans.insert(uid.clone(), OrphanedDirectory::Removing { failed_before });
            let this = self.clone();
            tokio::spawn(async move { this.remove_orphan(uid).await });
        }
    }

    /// A UID that is not a file name, such as one with a slash, has no directory.
    fn is_on_disk(&self, uid: &PodUid) -> bool {
        let mut components = Path::new(uid.as_str()).components();
        let is_name = matches!(
            (components.next(), components.next()),
            (Some(Component::Normal(name)), None) if name == uid.as_str()
        );
        is_name && matches!(self.pods.kind(uid.as_str()), Ok(Some(_)))
    }

    #[cfg(test)]
    pub(super) fn is_settled(&self) -> bool {
        let removing =
            |orphan: &OrphanedDirectory| matches!(orphan, OrphanedDirectory::Removing { .. });
        !self.orphans.0.lock().values().any(removing)
    }

    async fn remove_orphan(&self, uid: PodUid) {
        let entry = self.known.lock().get(&uid).cloned();
        let guard = entry.as_ref().map(|entry| entry.try_lock_work());
        let removed = match guard {
            // A worker is using the volumes after all.
            Some(None) => {
                let retry_at = self.sources.clock.now().mono;
                let waits = OrphanedDirectory::Failed { why: None, retry_at };
                self.orphans.0.lock().insert(uid, waits);
                return;
            }
            Some(guard @ Some(_)) => self.tear_down(&uid, Scope::Directory, guard).await,
            None => self.tear_down(&uid, Scope::Directory, None).await,
        };
        let before = self.orphans.0.lock().remove(&uid);
        match removed {
            Ok(()) => {
                tracing::debug!(%uid, "removed orphaned pod directory");
                self.forget(&uid);
            }
            Err(error) => {
                let why = chain(&error);
                let known = match before {
                    Some(OrphanedDirectory::Removing { failed_before }) => failed_before,
                    Some(OrphanedDirectory::Failed { .. }) | None => None,
                };
                let is_new = known.as_ref() != Some(&why);
                if is_new && matches!(error, VolumeError::NotPodDirectory { .. }) {
                    tracing::warn!(
                        directory = %uid,
                        "unknown directory among the pod directories, leaving it in place"
                    );
                } else if is_new {
                    tracing::warn!(
                        %uid, error = why, retry = ?RETRY,
                        "cannot remove orphaned pod directory, retrying"
                    );
                }
                let retry_at = self.sources.clock.now().mono + RETRY;
                self.orphans
                    .0
                    .lock()
                    .insert(uid, OrphanedDirectory::Failed { why: Some(why), retry_at });
            }
        }
    }
}
