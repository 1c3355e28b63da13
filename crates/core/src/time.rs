//! Clock types: monotonic time, wall time, and readings of both.
//!
//! Delays and grace periods use the monotonic clock, so that a step of the wall clock does not
//! affect pods. The wall clock is for reporting, and is compared only with times that came from
//! elsewhere (a container's exit, a deletion request); such a difference is clamped.

use std::ops::{Add, Sub};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A reading of the monotonic clock: time since an arbitrary start.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Mono(pub Duration);

impl Mono {
    pub const ZERO: Self = Self(Duration::ZERO);

    /// Time passed since `earlier`; zero if `earlier` is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Mono {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }
}

impl Sub<Duration> for Mono {
    type Output = Self;

    fn sub(self, back: Duration) -> Self {
        Self(self.0.saturating_sub(back))
    }
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    #[serde(rename = "wall")]
    pub wall: Timestamp,
    #[serde(rename = "mono")]
    pub mono: Mono,
}

impl Now {
    /// Age of a stored wall time, never negative and never more than `limit`.
    ///
    /// A stepped clock makes the raw difference meaningless; the limit bounds the error.
    pub fn age_of(&self, stored: Timestamp, limit: Duration) -> Duration {
        let age = self.wall.duration_since(stored);
        Duration::try_from(age).unwrap_or(Duration::ZERO).min(limit)
    }

    /// Best estimate of the monotonic time of a stored wall time.
    pub fn mono_at(&self, stored: Timestamp, limit: Duration) -> Mono {
        self.mono - self.age_of(stored, limit)
    }
}

/// `1m20s`, as Go prints whole seconds.
pub fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 60, seconds % 60) {
        (0, s) => format!("{s}s"),
        (m, s) => format!("{m}m{s}s"),
    }
}

/// Elapsed time since a stored wall time, which is read once; from then on the monotonic clock
/// counts. Later steps of the wall clock have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopwatch {
    #[serde(rename = "had")]
    had: Duration,
    #[serde(rename = "since")]
    since: Mono,
}

impl Stopwatch {
    pub fn running_since(stored: Timestamp, now: Now) -> Self {
        Self { had: now.age_of(stored, Duration::MAX), since: now.mono }
    }

    pub fn elapsed(self, now: Mono) -> Duration {
        self.had.saturating_add(now.since(self.since))
    }
}

/// Times of the slow periodic sync of every pod.
pub mod resync {
    use std::hash::{Hash, Hasher};
    use std::time::Duration;

    use crate::ids::PodUid;

    /// Up to a fifth longer than `every`, and different for each pod: those that started together
    /// are not synced together.
    pub fn delay(uid: &PodUid, every: Duration) -> Duration {
        let mut hasher = std::hash::DefaultHasher::new();
        uid.hash(&mut hasher);
        let spread = u32::try_from(hasher.finish() % 1000).unwrap_or_default();
        every.saturating_add((every / 5000).saturating_mul(spread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_time_in_the_future_has_age_zero() {
        let now = Now { wall: Timestamp::UNIX_EPOCH, mono: Mono(Duration::from_secs(100)) };
        let tomorrow = Timestamp::from_second(86_400).unwrap();
        assert_eq!(now.age_of(tomorrow, Duration::from_secs(600)), Duration::ZERO);
    }

    #[test]
    fn stopwatch_follows_the_monotonic_clock_once_started() {
        let at = |wall, mono| Now {
            wall: Timestamp::from_second(wall).unwrap(),
            mono: Mono(Duration::from_secs(mono)),
        };
        // Read ten seconds after the agent's start, for something an hour old.
        let watch = Stopwatch::running_since(Timestamp::UNIX_EPOCH, at(3600, 10));
        assert_eq!(watch.elapsed(Mono(Duration::from_secs(10))), Duration::from_secs(3600));
        assert_eq!(watch.elapsed(Mono(Duration::from_secs(40))), Duration::from_secs(3630));
    }

    #[test]
    fn age_is_cut_to_the_limit() {
        let now = Now { wall: Timestamp::from_second(1_000_000).unwrap(), mono: Mono::ZERO };
        assert_eq!(
            now.age_of(Timestamp::UNIX_EPOCH, Duration::from_secs(600)),
            Duration::from_secs(600)
        );
    }

    #[test]
    fn resyncs_of_pods_are_spread_over_a_fifth_of_the_interval() {
        let every = Duration::from_secs(300);
        let delays: std::collections::BTreeSet<Duration> = (0..100)
            .map(|n| resync::delay(&crate::ids::PodUid::new(format!("uid-{n}")), every))
            .collect();
        assert!(delays.len() > 80, "{} different delays", delays.len());
        assert!(delays.iter().all(|delay| (every..every + every / 5).contains(delay)));
    }
}
