//! One pass over the thresholds: which pressure the node is under, and what it acts on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::signal::{Observation, Observations, Resource, Signal};
use super::thresholds::{EvictionThreshold, Thresholds};
use crate::node_status::Pressure;
use crate::time::Mono;

/// What one pass passes on to the next. A restart forgets it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// Since when each threshold is met.
    met_since: BTreeMap<Key, Mono>,
    /// Thresholds whose period had elapsed.
    due: BTreeSet<Key>,
    observed: Observations,
    /// When each pressure was last seen.
    pressed: BTreeMap<Kind, Mono>,
}

/// A threshold; there is one hard and one soft at most of each signal.
type Key = (Signal, bool);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Memory,
    Disk,
    Pids,
}

impl Kind {
    fn of(signal: Signal) -> Self {
        match signal.resource() {
            Resource::Memory => Self::Memory,
            Resource::EphemeralStorage | Resource::Inodes => Self::Disk,
            Resource::Pids => Self::Pids,
        }
    }
}

/// A threshold that is acted on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Met {
    pub threshold: EvictionThreshold,
    pub observation: Observation,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// The pressure that the node reports.
    pub pressure: Pressure,
    /// Thresholds that are due, by samples newer than those of the last pass; the first is acted on.
    pub due: Vec<Met>,
    /// Thresholds that are met, or were and are not resolved; each with the time since then.
    pub met: Vec<(EvictionThreshold, Duration)>,
}

impl Verdict {
    /// What to act on.
    pub fn first(&self) -> Option<&Met> {
        self.due.first()
    }
}

fn key(threshold: &EvictionThreshold) -> Key {
    (threshold.signal, threshold.soft)
}

impl History {
    /// One pass. A pressure is reported for `transition` after it was last seen, so that it does not
    /// come and go.
    pub fn pass(
        &mut self,
        thresholds: &Thresholds,
        observed: Observations,
        transition: Duration,
        now: Mono,
    ) -> Verdict {
        let is_met = |threshold: &EvictionThreshold| {
            observed.get(&threshold.signal).is_some_and(|seen| {
                let was_due = self.due.contains(&key(threshold));
                threshold.is_met(seen) || (was_due && threshold.is_unresolved(seen))
            })
        };
        let met: Vec<EvictionThreshold> =
            thresholds.iter().filter(|threshold| is_met(threshold)).copied().collect();
        let since: BTreeMap<Key, Mono> = met
            .iter()
            .map(|threshold| {
                let key = key(threshold);
                (key, self.met_since.get(&key).copied().unwrap_or(now))
            })
            .collect();
        for threshold in &met {
            self.pressed.insert(Kind::of(threshold.signal), now);
        }
        let elapsed = |threshold: &EvictionThreshold| {
            since.get(&key(threshold)).map_or(Duration::ZERO, |since| now.since(*since))
        };
        let due: Vec<EvictionThreshold> =
            met.iter().filter(|threshold| elapsed(threshold) >= threshold.grace).copied().collect();
        let is_new = |signal: Signal, seen: &Observation| {
            self.observed.get(&signal).is_none_or(|before| seen.at.is_newer_than(before.at))
        };
        let mut acted_on: Vec<Met> = due
            .iter()
            .filter_map(|threshold| {
                let observation = *observed.get(&threshold.signal)?;
                is_new(threshold.signal, &observation)
                    .then_some(Met { threshold: *threshold, observation })
            })
            .collect();
        acted_on.sort_by_key(|met| key(&met.threshold));
        let met = met.iter().map(|threshold| (*threshold, elapsed(threshold))).collect();
        self.due = due.iter().map(key).collect();
        self.met_since = since;
        self.observed = observed;
        Verdict { pressure: self.pressure(transition, now), due: acted_on, met }
    }

    fn pressure(&self, transition: Duration, now: Mono) -> Pressure {
        let recent =
            |kind: Kind| self.pressed.get(&kind).is_some_and(|seen| now.since(*seen) < transition);
        Pressure {
            memory: recent(Kind::Memory),
            disk: recent(Kind::Disk),
            pids: recent(Kind::Pids),
        }
    }

    /// What the last pass observed.
    pub fn observed(&self) -> &Observations {
        &self.observed
    }
}

impl Thresholds {
    /// Whether the node has enough of everything, so that no pod needs to be evicted.
    pub fn are_resolved(&self, observed: &Observations) -> bool {
        !self.iter().any(|threshold| {
            observed.get(&threshold.signal).is_some_and(|seen| threshold.is_unresolved(seen))
        })
    }

    /// Whether a threshold of memory is met: a reason for a pass right now.
    pub fn memory_is_met(&self, observed: &Observations) -> bool {
        self.iter().any(|threshold| {
            threshold.signal.resource() == Resource::Memory
                && observed.get(&threshold.signal).is_some_and(|seen| threshold.is_met(seen))
        })
    }
}
