//! When to look at memory again.
//!
//! A pass every ten seconds loses to the kernel's OOM killer: a pod can allocate gigabytes in
//! between. So memory alone is read more often the closer a threshold is, and the faster it comes
//! closer. Far away from every threshold nothing is read in between.

use std::collections::BTreeMap;
use std::time::Duration;

use super::signal::{Observations, Resource, Signal};
use super::thresholds::Thresholds;
use crate::time::Mono;

/// The period of passes.
pub(super) const SLOWEST: Duration = Duration::from_secs(10);
/// Reading two files ten times per second is little beside what is happening then.
pub(super) const FASTEST: Duration = Duration::from_millis(100);
/// Growth to expect even if there was none so far, in bytes per second.
const SUDDEN_GROWTH: f64 = 100.0 * 1024.0 * 1024.0;
/// A pod may allocate faster than it did.
const ACCELERATION: f64 = 2.0;

/// The last readings of memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cadence {
    last: BTreeMap<Signal, (u64, Mono)>,
}

impl Cadence {
    /// Time until the next look: half of the time until a threshold could be reached.
    pub fn next(
        &mut self,
        thresholds: &Thresholds,
        observed: &Observations,
        now: Mono,
    ) -> Duration {
        let mut shortest = SLOWEST;
        for threshold in thresholds.iter() {
            let signal = threshold.signal;
            if signal.resource() != Resource::Memory {
                continue;
            }
            let Some(seen) = observed.get(&signal) else { continue };
            let growth = self.last.get(&signal).map_or(0.0, |(available, at)| {
                let lost = available.saturating_sub(seen.available);
                let seconds = now.since(*at).as_secs_f64();
                if seconds > 0.0 { lost as f64 / seconds } else { 0.0 }
            });
            let distance = seen.available.saturating_sub(threshold.amount(seen.capacity));
            let expected = (growth * ACCELERATION).max(SUDDEN_GROWTH);
            let seconds = (distance as f64 / expected / 2.0).min(SLOWEST.as_secs_f64());
            shortest = shortest.min(Duration::from_secs_f64(seconds));
        }
        self.last =
            observed.iter().map(|(signal, seen)| (*signal, (seen.available, now))).collect();
        shortest.max(FASTEST)
    }
}
