//! Exponential back-off: delays that double with each failure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Mono;

/// Delays that double from a first one up to a longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubling {
    first: Duration,
    max: Duration,
}

impl Doubling {
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// The delay after a failure that `earlier` failures came before.
    pub fn after(self, earlier: u32) -> Duration {
        self.first.saturating_mul(2u32.saturating_pow(earlier)).min(self.max)
    }
}

/// Count of consecutive failures, for the delay before the next attempt.
#[derive(Clone, Debug)]
pub struct Retry {
    delays: Doubling,
    failures: u32,
}

impl Retry {
    pub const fn new(delays: Doubling) -> Self {
        Self { delays, failures: 0 }
    }

    /// Counts a failure and returns the delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.delays.after(self.failures);
        self.failures = self.failures.saturating_add(1);
        delay
    }

    /// An attempt succeeded.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A delay, longer by up to a half: those with different seeds do not retry at the same time.
pub fn spread(delay: Duration, seed: u32) -> Duration {
    delay.saturating_add(delay.saturating_mul(seed % 100) / 200)
}

/// Limits of an exponential back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffLimits {
    #[serde(rename = "initial")]
    pub initial: Duration,
    #[serde(rename = "max")]
    pub max: Duration,
    /// Earlier failures are forgotten after this time without one. Not lowered together with
    /// `max`.
    #[serde(rename = "forget_after")]
    pub forget_after: Duration,
}

impl BackoffLimits {
    pub const DEFAULT: Self = Self {
        initial: Duration::from_secs(10),
        max: Duration::from_secs(300),
        forget_after: Duration::from_secs(600),
    };

    /// With the feature gate `ReduceDefaultCrashLoopBackOffDecay`.
    pub const REDUCED: Self =
        Self { initial: Duration::from_secs(1), max: Duration::from_secs(60), ..Self::DEFAULT };

    pub fn capped(max: Duration) -> Self {
        Self::DEFAULT.capped_at(max)
    }

    /// `crashLoopBackOff.maxContainerRestartPeriod`: a cap below the initial delay lowers that
    /// too.
    pub fn capped_at(self, max: Duration) -> Self {
        Self { initial: self.initial.min(max), max, ..self }
    }
}

/// State of one exponential back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    #[serde(rename = "delay")]
    pub delay: Duration,
    #[serde(rename = "last_try")]
    pub last_try: Mono,
}

impl Backoff {
    /// The back-off in effect after a failure at `failed`: its length and its end.
    pub fn in_effect(
        &self,
        failed: Mono,
        now: Mono,
        limits: &BackoffLimits,
    ) -> Option<(Duration, Mono)> {
        if self.is_forgotten(failed, limits) {
            return None;
        }
        let until = failed + self.delay;
        (now < until).then_some((self.delay, until))
    }

    /// The back-off after another attempt.
    pub fn next(this: Option<&Self>, failed: Mono, now: Mono, limits: &BackoffLimits) -> Self {
        let delay = match this {
            Some(b) if !b.is_forgotten(failed, limits) => {
                Doubling::new(b.delay, limits.max).after(1)
            }
            Some(_) | None => limits.initial,
        };
        Self { delay, last_try: now }
    }

    fn is_forgotten(&self, failed: Mono, limits: &BackoffLimits) -> bool {
        failed.since(self.last_try) > limits.forget_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Delays between the starts of a container that runs for these many seconds each time.
    fn gaps(limits: &BackoffLimits, runs_for: &[u64]) -> Vec<u64> {
        let (mut now, mut backoff, mut gaps) = (Mono(s(1000)), None::<Backoff>, Vec::new());
        for run in runs_for {
            let died = now + s(*run);
            let start =
                backoff.and_then(|b| b.in_effect(died, died, limits)).map_or(died, |(_, t)| t);
            gaps.push(start.since(died).as_secs());
            backoff = Some(Backoff::next(backoff.as_ref(), died, start, limits));
            now = start;
        }
        gaps
    }

    #[test]
    fn crash_loop_delay_doubles_up_to_the_cap() {
        let waits = gaps(&BackoffLimits::DEFAULT, &[0; 8]);
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn crash_backoff_resets_after_ten_minutes_without_a_crash() {
        let waits = gaps(&BackoffLimits::DEFAULT, &[0, 0, 0, 601, 0]);
        assert_eq!(waits, [0, 10, 20, 0, 10]);
    }

    #[test]
    fn cap_below_the_initial_delay_replaces_it() {
        let waits = gaps(&BackoffLimits::capped(s(5)), &[0; 4]);
        assert_eq!(waits, [0, 5, 5, 5]);
    }

    #[test]
    fn delays_double_to_the_longest_one_and_start_again_after_a_success() {
        let mut retry = Retry::new(Doubling::new(s(1), s(7)));
        let mut delays = || -> Vec<u64> { (0..5).map(|_| retry.next_delay().as_secs()).collect() };
        assert_eq!(delays(), [1, 2, 4, 7, 7]);
        retry.reset();
        assert_eq!(retry.next_delay(), s(1));
        for (first, max, earlier, want) in
            [(1, 7, 0, 1), (1, 7, 40, 7), (9, 7, 0, 7), (0, 7, 3, 0), (1, 7, u32::MAX, 7)]
        {
            assert_eq!(
                Doubling::new(s(first), s(max)).after(earlier),
                s(want),
                "{first} {earlier}"
            );
        }
    }

    #[test]
    fn spread_adds_up_to_a_half() {
        for (seed, want) in [(0, 10_000), (50, 12_500), (99, 14_950), (100, 10_000)] {
            assert_eq!(spread(s(10), seed), Duration::from_millis(want), "{seed}");
        }
    }
}
