//! Refresh schedule: when the volumes of each pod are looked at next.

use std::collections::{BTreeMap, BTreeSet};

use podwright_core::ids::PodUid;
use podwright_core::time::Mono;

#[derive(Debug, Default)]
pub(super) struct RefreshSchedule {
    times: BTreeMap<PodUid, Mono>,
    /// The same, by time.
    order: BTreeSet<(Mono, PodUid)>,
}

impl RefreshSchedule {
    /// Replaces the time of a pod; `None`: not at all.
    pub(super) fn set(&mut self, uid: &PodUid, at: Option<Mono>) {
        let before = match at {
            Some(at) => self.times.insert(uid.clone(), at),
            None => self.times.remove(uid),
        };
        if before != at {
            if let Some(before) = before {
                self.order.remove(&(before, uid.clone()));
            }
            self.order.extend(at.map(|at| (at, uid.clone())));
        }
    }

    /// Removes the pods whose time has come, the earliest first.
    pub(super) fn take_due(&mut self, now: Mono) -> Vec<PodUid> {
        let mut due = Vec::new();
        while self.next().is_some_and(|at| at <= now)
            && let Some((_, uid)) = self.order.pop_first()
        {
            self.times.remove(&uid);
            due.push(uid);
        }
        due
    }

    /// The earliest time.
    pub(super) fn next(&self) -> Option<Mono> {
        self.order.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pods_are_due_in_order_of_their_last_time(
            steps in prop::collection::vec((0u8..6, prop::option::of(0u64..9)), 0..40),
            now in 0u64..10,
        ) {
            let at = |seconds| Mono(Duration::from_secs(seconds));
            let (mut schedule, mut last) = (RefreshSchedule::default(), BTreeMap::new());
            for (pod, time) in steps {
                schedule.set(&PodUid::new(format!("{pod}")), time.map(at));
                last.insert(pod, time);
            }
            let mut expected: Vec<(u64, u8)> =
                last.into_iter().filter_map(|(pod, time)| Some((time?, pod))).collect();
            expected.sort_unstable();
            prop_assert_eq!(schedule.next(), expected.first().map(|(time, _)| at(*time)));
            let due: Vec<String> = schedule.take_due(at(now)).iter().map(|u| u.to_string()).collect();
            let (past, future): (Vec<_>, Vec<_>) =
                expected.into_iter().partition(|(time, _)| *time <= now);
            let past: Vec<String> = past.into_iter().map(|(_, pod)| pod.to_string()).collect();
            prop_assert_eq!(due, past);
            prop_assert_eq!(schedule.times.len(), future.len());
            prop_assert_eq!(schedule.order.len(), future.len());
        }
    }
}
