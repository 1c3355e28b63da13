//! Clock: wall and monotonic time for the shells.
//!
//! Decisions take the time as a value; only shells hold a [`Clock`] and read it once per decision.
//! The monotonic reading comes from tokio's clock: under a test's paused time it moves with the
//! timers the test waits for, and in production it is the kernel's. If it were read from the kernel
//! directly, a simulated hour of timers would take no monotonic time.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use podwright_core::time::{Mono, Now};
use tokio::time::Instant;

/// Cheap to clone; all clones show the same time.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Real { start: Instant },
    Simulated { start: Instant, wall: Arc<Mutex<Timestamp>> },
    Manual(Arc<Mutex<Now>>),
}

impl Clock {
    /// The machine's time. Monotonic readings count from now.
    pub fn real() -> Self {
        Self(Kind::Real { start: Instant::now() })
    }

    /// For simulations: both readings follow tokio's (paused) clock, the wall clock starting at
    /// `wall`. Create it within the runtime whose time it follows.
    pub fn simulated(wall: Timestamp) -> Self {
        Self(Kind::Simulated { start: Instant::now(), wall: Arc::new(Mutex::new(wall)) })
    }

    /// For plain tests: stands still until it is advanced.
    pub fn manual(now: Now) -> Self {
        Self(Kind::Manual(Arc::new(Mutex::new(now))))
    }

    pub fn now(&self) -> Now {
        match &self.0 {
            Kind::Real { start } => Now { wall: Timestamp::now(), mono: Mono(start.elapsed()) },
            Kind::Simulated { start, wall } => {
                let passed = start.elapsed();
                Now { wall: later(*wall.lock(), passed), mono: Mono(passed) }
            }
            Kind::Manual(now) => *now.lock(),
        }
    }

    /// Advances a manual clock. No effect on other clocks.
    pub fn advance(&self, by: Duration) {
        match &self.0 {
            Kind::Manual(now) => {
                let mut now = now.lock();
                *now = Now { wall: later(now.wall, by), mono: now.mono + by };
            }
            Kind::Real { .. } | Kind::Simulated { .. } => {}
        }
    }

    /// Steps the wall clock, as an administrator would; no time passes. No effect on the real
    /// clock.
    pub fn step_wall(&self, by: SignedDuration) {
        let step = |wall: &mut Timestamp| *wall = wall.saturating_add(by).unwrap_or(*wall);
        match &self.0 {
            Kind::Real { .. } => {}
            Kind::Simulated { wall, .. } => step(&mut wall.lock()),
            Kind::Manual(now) => step(&mut now.lock().wall),
        }
    }
}

fn later(wall: Timestamp, by: Duration) -> Timestamp {
    wall.saturating_add(by).unwrap_or(wall)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn epoch() -> Now {
        Now { wall: Timestamp::UNIX_EPOCH, mono: Mono::ZERO }
    }

    #[test]
    fn manual_clock_moves_only_when_advanced() {
        let clock = Clock::manual(epoch());
        assert_eq!(clock.now(), epoch());
        let same = clock.clone();
        same.advance(HOUR);
        let now = clock.now();
        assert_eq!((now.wall.as_second(), now.mono), (3600, Mono(HOUR)));
    }

    #[test]
    fn stepping_the_wall_clock_keeps_the_monotonic_time() {
        let clock = Clock::manual(epoch());
        clock.advance(HOUR);
        clock.step_wall(SignedDuration::from_hours(-2));
        let now = clock.now();
        assert_eq!((now.wall.as_second(), now.mono), (-3600, Mono(HOUR)));
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_moves_the_monotonic_reading() {
        let clock = Clock::real();
        let before = clock.now();
        tokio::time::sleep(HOUR).await;
        assert!(clock.now().mono.since(before.mono) >= HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn a_simulated_clock_moves_both_readings_with_paused_time() {
        let clock = Clock::simulated(Timestamp::UNIX_EPOCH);
        tokio::time::sleep(HOUR).await;
        clock.step_wall(SignedDuration::from_hours(1));
        let now = clock.now();
        assert_eq!((now.wall.as_second() / 60, now.mono.0.as_secs() / 60), (120, 60));
    }

    #[test]
    fn a_real_clock_works_outside_of_a_runtime() {
        let clock = Clock::real();
        let (first, second) = (clock.now(), clock.now());
        assert!(second.mono >= first.mono);
        assert!((Timestamp::now() - second.wall).get_seconds() < 60);
    }
}
