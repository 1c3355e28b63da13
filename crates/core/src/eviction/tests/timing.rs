//! When memory is looked at again.

use super::*;
use crate::eviction::cadence::{FASTEST, SLOWEST};

#[test]
fn memory_is_looked_at_more_often_near_a_threshold_and_while_it_shrinks() {
    let limits = thresholds(&hard(&[("memory.available", "1Gi")]));
    let mut cadence = Cadence::default();
    let mut next = |mi: u64, at: u64| cadence.next(&limits, &memory(mi * MI, at), second(at));
    assert_eq!(next(7 * 1024, 0), SLOWEST, "an idle node reads nothing in between");
    assert_eq!(next(7 * 1024, 10), SLOWEST);
    // It shrank by 574 MiB/s, and may shrink twice as fast.
    assert_eq!(next(1024 + 400, 20).as_millis(), 400_000 / (2 * 1149));
    assert_eq!(next(1024 + 400, 30), Duration::from_secs(2), "settled");
    assert_eq!(next(1024 + 1, 40), FASTEST);
    assert_eq!(next(1000, 50), FASTEST, "met");
}

#[test]
fn pod_that_grows_steadily_is_seen_at_most_a_moment_after_the_crossing() {
    // Faster ones are found by the notifications of the kernel.
    for speed in [5, 50, 150] {
        let limits = thresholds(&hard(&[("memory.available", "1Gi")]));
        let (mut cadence, mut now) = (Cadence::default(), Duration::ZERO);
        let start = 4 * GI;
        let crossing = Duration::from_secs(3 * 1024) / speed;
        let available = |at: Duration| {
            start.saturating_sub((at.as_secs_f64() * f64::from(speed) * MI as f64) as u64)
        };
        let mut looks = 0;
        while available(now) >= GI {
            now += cadence.next(&limits, &memory(available(now), 0), Mono(now));
            looks += 1;
        }
        let late = now - crossing.min(now);
        assert!(late <= FASTEST + Duration::from_millis(1), "{speed} MiB/s: {late:?} late");
        assert!(looks < 40 + crossing.as_secs(), "{speed} MiB/s: {looks} looks in {crossing:?}");
    }
}

#[test]
fn other_signals_do_not_change_how_often_memory_is_looked_at() {
    let limits = thresholds(&hard(&[("nodefs.available", "10%")]));
    let low = Observations::from([(Signal::NodeFs, seen(1, 100, 0))]);
    assert_eq!(Cadence::default().next(&limits, &low, second(0)), SLOWEST);
}
