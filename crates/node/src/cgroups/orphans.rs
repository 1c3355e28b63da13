//! Cgroups of pods that nobody knows any more.
//!
//! Whatever still runs in one is killed, and may not die: a process that waits for a disk hears no
//! signal. So each has a task of its own, and one that stays is tried again, but not at every look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::cgroup::CgroupName;
use podwright_core::ids::PodUid;
use podwright_core::time::Mono;
use podwright_host::cgroup::CgroupError;
use podwright_host::clock::Clock;

use super::Cgroups;
use crate::causes::chain;

const RETRY: Duration = Duration::from_secs(60);

/// Groups that are to go.
#[derive(Default)]
pub(super) struct Orphans(Mutex<BTreeMap<PodUid, Orphan>>);

enum Orphan {
    UnderWay,
    /// Why it stays, and when to try again.
    Stays {
        why: String,
        retry_at: Mono,
    },
}

impl Orphans {
    /// Whether somebody is at this one just now.
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        matches!(self.0.lock().get(uid), Some(Orphan::UnderWay))
    }

    /// Takes those that are due, each with why it stayed the last time.
    fn take_due(
        &self,
        there: Vec<(PodUid, CgroupName)>,
        kept: &BTreeSet<PodUid>,
        now: Mono,
    ) -> Vec<(PodUid, CgroupName, Option<String>)> {
        let mut all = self.0.lock();
        let lost = |uid: &PodUid| !kept.contains(uid) && there.iter().any(|(one, _)| one == uid);
        all.retain(|uid, orphan| match orphan {
            Orphan::UnderWay => true,
            Orphan::Stays { .. } => lost(uid),
        });
        let mut due = Vec::new();
        for (uid, name) in there.into_iter().filter(|(uid, _)| !kept.contains(uid)) {
            let stayed = match all.get(&uid) {
                None => None,
                Some(Orphan::Stays { why, retry_at }) if *retry_at <= now => Some(why.clone()),
                Some(Orphan::Stays { .. } | Orphan::UnderWay) => continue,
            };
            all.insert(uid.clone(), Orphan::UnderWay);
            due.push((uid, name, stayed));
        }
        due
    }
}

impl Cgroups {
    /// Every pod that has a group.
    pub async fn pods_on_disk(&self) -> Result<Vec<(PodUid, CgroupName)>, CgroupError> {
        self.host.pods(&self.tree).await
    }

    /// Begins to remove the groups of pods that are not among `kept`. From here on until it is gone
    /// such a group is nobody else's: a pod that comes back under its UID waits.
    pub fn destroy_orphans(
        self: &Arc<Self>,
        there: Vec<(PodUid, CgroupName)>,
        kept: &BTreeSet<PodUid>,
        clock: &Clock,
    ) {
        for (uid, name, stayed) in self.orphans.take_due(there, kept, clock.now().mono) {
            let (this, clock) = (self.clone(), clock.clone());
            tokio::spawn(async move { this.destroy_orphan(uid, &name, stayed, &clock).await });
        }
    }

    async fn destroy_orphan(
        &self,
        uid: PodUid,
        name: &CgroupName,
        stayed: Option<String>,
        clock: &Clock,
    ) {
        match self.host.destroy(name).await {
            Ok(()) => {
                tracing::info!(%uid, "removed the cgroup of a pod that is gone");
                self.pods.lock().remove(&uid);
                self.orphans.0.lock().remove(&uid);
                self.refresh().await;
            }
            Err(error) => {
                let why = chain(&error);
                if stayed.as_ref() != Some(&why) {
                    tracing::warn!(%uid, error = why, "a pod that is gone left its cgroup");
                }
                let retry_at = clock.now().mono + RETRY;
                self.orphans.0.lock().insert(uid, Orphan::Stays { why, retry_at });
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
    fn one_that_stays_rests_and_keeps_no_other_from_going() {
        let uids = ["stuck", "gone", "kept"].map(PodUid::new);
        let [stuck, gone, kept] = &uids;
        let there = || uids.iter().map(|uid| (uid.clone(), CgroupName::ROOT)).collect::<Vec<_>>();
        let orphans = Orphans::default();
        let kept = BTreeSet::from([kept.clone()]);
        let due = |now| {
            let due = orphans.take_due(there(), &kept, at(now));
            due.into_iter().map(|(uid, _, stayed)| (uid, stayed)).collect::<Vec<_>>()
        };
        assert_eq!(due(0), [(stuck.clone(), None), (gone.clone(), None)]);
        assert!(orphans.has(stuck) && orphans.has(gone));
        assert_eq!(due(2), [], "somebody is at both");

        orphans.0.lock().remove(gone);
        let why = "still has processes".to_owned();
        let stays = Orphan::Stays { why: why.clone(), retry_at: at(62) };
        orphans.0.lock().insert(stuck.clone(), stays);
        assert!(!orphans.has(stuck), "a pod of this UID may have it back meanwhile");
        assert_eq!(due(4), [(gone.clone(), None)], "and the stuck one rests");
        assert_eq!(due(62), [(stuck.clone(), Some(why))]);
        assert_eq!(orphans.take_due(Vec::new(), &kept, at(64)).len(), 0);
    }
}
