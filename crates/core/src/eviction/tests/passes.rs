//! Passes: conditions, periods, minimum reclaim, stale samples.

use super::*;
use crate::node_status::Pressure;

fn soft() -> Thresholds {
    thresholds(&Sources {
        soft: map(&[("memory.available", "2Gi")]),
        soft_grace: BTreeMap::from([("memory.available".to_owned(), 120_000)]),
        ..hard(&[])
    })
}

fn pass(history: &mut History, limits: &Thresholds, seen: Observations, at: u64) -> Verdict {
    history.pass(limits, seen, TRANSITION, second(at))
}

#[test]
fn soft_threshold_raises_the_condition_at_once_and_acts_after_its_period() {
    let (mut history, limits) = (History::default(), soft());
    let verdict = pass(&mut history, &limits, memory(1500 * MI, 0), 0);
    assert!(verdict.pressure.memory);
    assert_eq!(verdict.first(), None);
    assert_eq!(pass(&mut history, &limits, memory(1500 * MI, 119), 119).first(), None);
    let verdict = pass(&mut history, &limits, memory(1500 * MI, 120), 120);
    assert_eq!(verdict.first().unwrap().threshold.signal, Signal::Memory);
}

#[test]
fn period_starts_again_if_the_threshold_clears_for_one_pass() {
    let (mut history, limits) = (History::default(), soft());
    pass(&mut history, &limits, memory(GI, 0), 0);
    assert!(pass(&mut history, &limits, memory(3 * GI, 110), 110).met.is_empty());
    pass(&mut history, &limits, memory(GI, 115), 115);
    assert_eq!(pass(&mut history, &limits, memory(GI, 130), 130).first(), None);
    assert!(pass(&mut history, &limits, memory(GI, 235), 235).first().is_some());
}

#[test]
fn minimum_reclaim_is_freed_once_the_threshold_was_met() {
    let limits = thresholds(&Sources {
        minimum_reclaim: map(&[("memory.available", "500Mi")]),
        ..hard(&[("memory.available", "1Gi")])
    });
    let mut history = History::default();
    let free = |mi: u64, at| memory(mi * MI, at);
    assert!(pass(&mut history, &limits, free(1200, 0), 0).first().is_none(), "never met before");
    assert!(pass(&mut history, &limits, free(1000, 1), 1).first().is_some());
    assert!(pass(&mut history, &limits, free(1200, 2), 2).first().is_some(), "not resolved");
    assert!(pass(&mut history, &limits, free(1524, 3), 3).first().is_none(), "1Gi and 500Mi");
    assert!(pass(&mut history, &limits, free(1200, 4), 4).first().is_none(), "resolved since");
}

#[test]
fn sample_of_the_runtime_that_did_not_change_raises_the_condition_and_ends_no_pod() {
    let limits = thresholds(&hard(&[("imagefs.available", "15%")]));
    let mut history = History::default();
    let sample = |time: i64| {
        let at = SampleTime::Reported(time);
        Observations::from([(Signal::ImageFs, Observation { available: 1, capacity: 100, at })])
    };
    assert!(pass(&mut history, &limits, sample(7), 0).first().is_some());
    let again = pass(&mut history, &limits, sample(7), 10);
    assert!(again.pressure.disk);
    assert_eq!(again.first(), None);
    assert!(pass(&mut history, &limits, sample(6), 20).first().is_some(), "its clock was set back");
}

#[test]
fn memory_is_acted_on_before_disk() {
    let limits = thresholds(&Sources {
        enforce_pods: true,
        ..hard(&[
            ("imagefs.available", "15%"),
            ("memory.available", "1Gi"),
            ("nodefs.available", "10%"),
            ("pid.available", "10%"),
        ])
    });
    let low = Signal::ALL.into_iter().map(|signal| (signal, seen(1, 100, 0))).collect();
    let verdict = pass(&mut History::default(), &limits, low, 0);
    let order: Vec<Signal> = verdict.due.iter().map(|met| met.threshold.signal).collect();
    let want = [Signal::Memory, Signal::AllocatableMemory, Signal::NodeFs, Signal::ImageFs];
    assert_eq!(order, [&want[..], &[Signal::Pids]].concat());
    assert_eq!(verdict.pressure, Pressure { memory: true, disk: true, pids: true });
}

#[test]
fn pressure_is_reported_until_the_transition_period_has_passed() {
    let limits = thresholds(&hard(&[("memory.available", "1Gi")]));
    let mut history = History::default();
    assert!(pass(&mut history, &limits, memory(1, 0), 0).pressure.memory);
    assert!(pass(&mut history, &limits, memory(4 * GI, 299), 299).pressure.memory);
    assert!(!pass(&mut history, &limits, memory(4 * GI, 300), 300).pressure.memory);
}

#[test]
fn restart_forgets_pressure_and_periods() {
    let verdict = pass(&mut History::default(), &soft(), memory(4 * GI, 0), 0);
    assert_eq!(verdict, Verdict::default());
}

#[test]
fn signal_that_could_not_be_measured_concerns_only_its_own_threshold() {
    let limits = thresholds(&hard(&[("memory.available", "1Gi"), ("nodefs.available", "10%")]));
    let verdict = pass(&mut History::default(), &limits, memory(1, 0), 0);
    assert_eq!(verdict.due.len(), 1);
    assert_eq!(verdict.pressure, Pressure { memory: true, ..Pressure::default() });
}

#[test]
fn reclaim_suffices_only_if_no_threshold_of_any_signal_is_left() {
    let limits = thresholds(&Sources {
        soft: map(&[("memory.available", "2Gi")]),
        soft_grace: BTreeMap::from([("memory.available".to_owned(), 120_000)]),
        minimum_reclaim: map(&[("nodefs.available", "5%")]),
        ..hard(&[("nodefs.available", "10%")])
    });
    let disk = |free| (Signal::NodeFs, seen(free, 100, 0));
    let with_memory =
        |free, bytes| Observations::from([disk(free), (Signal::Memory, seen(bytes, 8 * GI, 0))]);
    assert!(limits.are_resolved(&with_memory(15, 4 * GI)));
    assert!(!limits.are_resolved(&with_memory(14, 4 * GI)), "the minimum reclaim counts");
    assert!(!limits.are_resolved(&with_memory(50, GI)), "memory is low, if only softly");
}
