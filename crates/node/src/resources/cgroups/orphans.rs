//! Removal of orphaned pod cgroups.
//!
//! The processes in them are killed, but a process in uninterruptible sleep may not exit. So each
//! cgroup has its own task, and one that cannot be removed is retried after a delay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::cgroup::CgroupName;
use podwright_core::ids::PodUid;
use podwright_core::time::Mono;
use podwright_host::cgroup::CgroupError;
use podwright_host::clock::Clock;

use super::Cgroups;
use crate::error_chain::chain;

const RETRY: Duration = Duration::from_secs(60);

/// Cgroups to be removed.
#[derive(Default)]
pub(super) struct OrphanedCgroups(Mutex<BTreeMap<PodUid, OrphanedCgroup>>);

enum OrphanedCgroup {
    Removing,
    /// The last attempt failed.
    Failed {
        why: String,
        retry_at: Mono,
    },
}

impl OrphanedCgroups {
    /// Whether this cgroup is being removed.
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        matches!(self.0.lock().get(uid), Some(OrphanedCgroup::Removing))
    }

    /// Returns those that are due, each with the error of its last attempt.
    fn take_due(
        &self,
        on_disk: Vec<(PodUid, CgroupName)>,
        is_kept: impl Fn(&PodUid) -> bool,
        now: Mono,
    ) -> Vec<(PodUid, CgroupName, Option<String>)> {
        let mut all = self.0.lock();
        let is_orphan = |uid: &PodUid| !is_kept(uid) && on_disk.iter().any(|(one, _)| one == uid);
        all.retain(|uid, orphan| match orphan {
            OrphanedCgroup::Removing => true,
            OrphanedCgroup::Failed { .. } => is_orphan(uid),
        });
        let mut due = Vec::new();
        for (uid, name) in on_disk.into_iter().filter(|(uid, _)| !is_kept(uid)) {
            let last_error = match all.get(&uid) {
                None => None,
                Some(OrphanedCgroup::Failed { why, retry_at }) if *retry_at <= now => {
                    Some(why.clone())
                }
                Some(OrphanedCgroup::Failed { .. } | OrphanedCgroup::Removing) => continue,
            };
            all.insert(uid.clone(), OrphanedCgroup::Removing);
            due.push((uid, name, last_error));
        }
        due
    }
}

impl Cgroups {
    /// Every pod that has a cgroup.
    pub async fn pods_on_disk(&self) -> Result<Vec<(PodUid, CgroupName)>, CgroupError> {
        self.host.pods(&self.tree).await
    }

    /// Starts to remove the cgroups of pods that are not kept. A new pod with the same UID waits
    /// until its cgroup is gone.
    pub fn destroy_orphans(
        self: &Arc<Self>,
        on_disk: Vec<(PodUid, CgroupName)>,
        is_kept: impl Fn(&PodUid) -> bool,
        clock: &Clock,
    ) {
        for (uid, name, last_error) in self.orphans.take_due(on_disk, is_kept, clock.now().mono) {
            let (this, clock) = (self.clone(), clock.clone());
            tokio::spawn(async move { this.destroy_orphan(uid, &name, last_error, &clock).await });
        }
    }

    async fn destroy_orphan(
        &self,
        uid: PodUid,
        name: &CgroupName,
        last_error: Option<String>,
        clock: &Clock,
    ) {
        match self.host.destroy(name).await {
            Ok(()) => {
                tracing::info!(%uid, "removed orphaned pod cgroup");
                self.pods.lock().remove(&uid);
                self.orphans.0.lock().remove(&uid);
                self.refresh().await;
            }
            Err(error) => {
                let why = chain(&error);
                if last_error.as_ref() != Some(&why) {
                    tracing::warn!(%uid, error = why, "cannot remove orphaned pod cgroup, retrying");
                }
                let retry_at = clock.now().mono + RETRY;
                self.orphans.0.lock().insert(uid, OrphanedCgroup::Failed { why, retry_at });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    #[test]
    fn stuck_cgroup_is_retried_later_and_blocks_no_other() {
        let uids = ["stuck", "gone", "kept"].map(PodUid::new);
        let [stuck, gone, kept] = &uids;
        let on_disk = || uids.iter().map(|uid| (uid.clone(), CgroupName::ROOT)).collect::<Vec<_>>();
        let orphans = OrphanedCgroups::default();
        let is_kept = |uid: &PodUid| uid == kept;
        let due = |now| {
            let due = orphans.take_due(on_disk(), is_kept, at(now));
            due.into_iter().map(|(uid, _, last_error)| (uid, last_error)).collect::<Vec<_>>()
        };
        assert_eq!(due(0), [(stuck.clone(), None), (gone.clone(), None)]);
        assert!(orphans.has(stuck) && orphans.has(gone));
        assert_eq!(due(2), [], "both are being removed");

        orphans.0.lock().remove(gone);
        let why = "still has processes".to_owned();
        let stays = OrphanedCgroup::Failed { why: why.clone(), retry_at: at(62) };
        orphans.0.lock().insert(stuck.clone(), stays);
        assert!(!orphans.has(stuck), "a new pod with this UID may use it in between");
        assert_eq!(due(4), [(gone.clone(), None)], "the stuck one is in back-off");
        assert_eq!(due(62), [(stuck.clone(), Some(why))]);
        assert_eq!(orphans.take_due(Vec::new(), is_kept, at(64)).len(), 0);
    }
}
