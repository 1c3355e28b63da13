//! Rate limit of image pulls: `registryPullQPS` and `registryBurst`.

use crate::time::Mono;

/// Token bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Throttle {
    per_second: f64,
    burst: f64,
    filled: f64,
    at: Mono,
}

impl Throttle {
    /// `None` if there is no limit.
    pub fn new(per_second: u32, burst: u32, now: Mono) -> Option<Self> {
        let (per_second, burst) = (f64::from(per_second), f64::from(burst.max(1)));
        (per_second > 0.0).then_some(Self { per_second, burst, filled: burst, at: now })
    }

    /// Takes one token if available.
    pub fn take(&mut self, now: Mono) -> bool {
        let grown = now.since(self.at).as_secs_f64() * self.per_second;
        self.filled = (self.filled + grown).min(self.burst);
        self.at = now;
        let free = self.filled >= 1.0;
        if free {
            self.filled -= 1.0;
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn burst_passes_and_then_the_rate_applies() {
        let at = |millis| Mono(Duration::from_millis(millis));
        let mut throttle = Throttle::new(5, 10, at(0)).unwrap();
        assert_eq!((0..20).filter(|_| throttle.take(at(0))).count(), 10);
        assert_eq!((0..20).filter(|_| throttle.take(at(1000))).count(), 5);
        assert!(!throttle.take(at(1100)) && throttle.take(at(1200)));
        assert_eq!((0..99).filter(|_| throttle.take(at(600_000))).count(), 10, "never more");
        assert_eq!(Throttle::new(0, 10, at(0)), None);
    }
}
