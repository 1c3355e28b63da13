//! Queue of status reports: which pod is checked next, and which report is sent next.
//!
//! A pod is checked after an event of its own, so the cost of an event does not depend on the
//! number of pods. A [`Sweep`] checks all pods slowly, for events that were missed.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use crate::ids::PodUid;
use crate::time::Mono;

/// A position in the queue. The numbers are a sequence: first in, first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum QueueKey {
    /// Something happened to the pod: it must be checked.
    Check(u64),
    /// The report changes Ready and can be sent.
    ReadyChange(u64),
    /// The report can be sent.
    Other(u64),
    /// The pod is checked again at this time.
    Delayed(Mono, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Queued(QueueKey),
    /// A request is in flight.
    Sending,
}

/// A pod that is being checked. Dropped if there is nothing to send.
#[derive(Debug, PartialEq, Eq)]
pub struct ReportCheck {
    pub uid: PodUid,
    sequence: u64,
}

/// The pods whose reports must be checked or sent. Each pod is in it once; an idle pod is not.
#[derive(Debug, Default)]
pub struct ReportQueue {
    order: BTreeMap<QueueKey, PodUid>,
    states: BTreeMap<PodUid, QueueState>,
    sequence: u64,
}

impl ReportQueue {
    /// Something happened to this pod: it is checked soon. While its report is being sent this has
    /// no effect, because it is checked after that.
    pub fn check(&mut self, uid: &PodUid) {
        let sequence = match self.states.get(uid) {
            Some(QueueState::Sending | QueueState::Queued(QueueKey::Check(_))) => return,
            // It keeps its position, or a pod that changes often would never be sent.
            Some(QueueState::Queued(QueueKey::ReadyChange(turn) | QueueKey::Other(turn))) => *turn,
            Some(QueueState::Queued(QueueKey::Delayed(..))) | None => self.next_number(),
        };
        self.forget(uid);
        self.put(uid.clone(), QueueKey::Check(sequence));
    }

    /// Queues the pods whose delay has passed for a check.
    pub fn expire(&mut self, now: Mono) {
        while let Some((at, uid)) = self.first_delayed()
            && at <= now
        {
            let uid = uid.clone();
            self.check(&uid);
        }
    }

    /// The next pod to check. What happens to it meanwhile queues it again.
    pub fn next_check(&mut self) -> Option<ReportCheck> {
        let (key, _) = self.order.first_key_value()?;
        let QueueKey::Check(sequence) = *key else { return None };
        let (_, uid) = self.order.pop_first()?;
        self.states.remove(&uid);
        Some(ReportCheck { uid, sequence })
    }

    /// The checked report can be sent.
    pub fn due(&mut self, check: ReportCheck, changes_ready: bool) {
        let key = match changes_ready {
            true => QueueKey::ReadyChange(check.sequence),
            false => QueueKey::Other(check.sequence),
        };
        self.put_checked(check, key);
    }

    /// The pod is checked again at this time.
    pub fn delay(&mut self, check: ReportCheck, until: Mono) {
        let key = QueueKey::Delayed(until, check.sequence);
        self.put_checked(check, key);
    }

    /// When the next delay ends.
    pub fn next_delay(&self) -> Option<Mono> {
        self.first_delayed().map(|(at, _)| at)
    }

    /// The next change of Ready to send. [`Self::sent`] must follow.
    pub fn next_ready_change(&mut self) -> Option<PodUid> {
        self.take(QueueKey::ReadyChange(0)..QueueKey::Other(0))
    }

    /// The next report to send that does not change Ready. [`Self::sent`] must follow.
    pub fn next_other(&mut self) -> Option<PodUid> {
        self.take(QueueKey::Other(0)..QueueKey::Delayed(Mono::ZERO, 0))
    }

    pub fn has_other(&self) -> bool {
        let others = QueueKey::Other(0)..QueueKey::Delayed(Mono::ZERO, 0);
        self.order.range(others).next().is_some()
    }

    fn take(&mut self, keys: Range<QueueKey>) -> Option<PodUid> {
        let key = self.order.range(keys).next().map(|(key, _)| *key)?;
        let uid = self.order.remove(&key)?;
        self.states.insert(uid.clone(), QueueState::Sending);
        Some(uid)
    }

    /// The request for this pod has ended; the pod is checked again.
    pub fn sent(&mut self, uid: &PodUid) {
        if self.states.get(uid) == Some(&QueueState::Sending) {
            self.states.remove(uid);
        }
        self.check(uid);
    }

    /// Removes a pod, unless a request for it is in flight: a second one must not start.
    pub fn forget(&mut self, uid: &PodUid) {
        if let Some(QueueState::Queued(key)) = self.states.get(uid).copied() {
            self.order.remove(&key);
            self.states.remove(uid);
        }
    }

    /// Queues a checked pod, unless something happened to it during the check.
    fn put_checked(&mut self, check: ReportCheck, key: QueueKey) {
        if !self.states.contains_key(&check.uid) {
            self.put(check.uid, key);
        }
    }

    fn put(&mut self, uid: PodUid, key: QueueKey) {
        self.states.insert(uid.clone(), QueueState::Queued(key));
        self.order.insert(key, uid);
    }

    fn first_delayed(&self) -> Option<(Mono, &PodUid)> {
        let mut delayed = self.order.range(QueueKey::Delayed(Mono::ZERO, 0)..);
        match delayed.next()? {
            (QueueKey::Delayed(at, _), uid) => Some((*at, uid)),
            (QueueKey::Check(_) | QueueKey::ReadyChange(_) | QueueKey::Other(_), _) => None,
        }
    }

    fn next_number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

/// A pass over all pods in slices of equal size: the safety net for missed events.
#[derive(Debug, Default)]
pub struct Sweep {
    slices: usize,
    visited: usize,
    last: Option<PodUid>,
}

impl Sweep {
    /// Slices of one pass.
    pub const SLICES: usize = 10;

    /// The pods of the next slice. Each pod is in one slice of a pass.
    pub fn next_slice<T>(&mut self, pods: &BTreeMap<PodUid, T>) -> Vec<PodUid> {
        self.slices += 1;
        let size = match self.slices < Self::SLICES {
            true => {
                let until_now = (pods.len() * self.slices).div_ceil(Self::SLICES);
                until_now.saturating_sub(self.visited)
            }
            // Pods may have been added since the pass began.
            false => usize::MAX,
        };
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let rest = pods.range::<PodUid, _>((after, Bound::Unbounded));
        let slice: Vec<PodUid> = rest.map(|(uid, _)| uid.clone()).take(size).collect();
        self.visited += slice.len();
        self.last = slice.last().cloned().or(self.last.take());
        if self.slices == Self::SLICES {
            *self = Self::default();
        }
        slice
    }
}
