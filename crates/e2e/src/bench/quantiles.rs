//! Three quantiles of a list of durations.

use std::time::Duration;

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Quantiles {
    /// In seconds. `None` if there are no times.
    pub fn of(times: &[Duration]) -> Option<Self> {
        let mut seconds: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
        seconds.sort_by(f64::total_cmp);
        // Nearest rank: a duration that was actually measured.
        let rank = |percent: usize| (seconds.len() * percent).div_ceil(100).saturating_sub(1);
        let at = |percent| seconds.get(rank(percent)).copied();
        Some(Self { p50: at(50)?, p90: at(90)?, p99: at(99)? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let times: Vec<_> = (1..=100).rev().map(Duration::from_secs).collect();
        let wanted = Quantiles { p50: 50.0, p90: 90.0, p99: 99.0 };
        assert_eq!(Quantiles::of(&times), Some(wanted));
        let one = Quantiles::of(&[Duration::from_secs(3)]).unwrap();
        assert_eq!((one.p50, one.p99), (3.0, 3.0));
        assert_eq!(Quantiles::of(&[]), None);
    }
}
