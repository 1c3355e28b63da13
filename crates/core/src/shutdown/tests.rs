#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::builders::pod;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn with_priority(priority: Option<i32>) -> Pod {
    match priority {
        Some(priority) => pod("p").spec("priority", json!(priority)).build(),
        None => pod("p").build(),
    }
}

fn with_grace(grace: u64) -> Pod {
    pod("p").grace(grace).build()
}

fn groups(groups: &[(i32, u64)]) -> ShutdownGroups {
    let of = |&(priority, period)| ShutdownGroup { priority, period: seconds(period) };
    ShutdownGroups::by_priority(groups.iter().map(of).collect()).unwrap()
}

#[test]
fn two_periods_are_a_group_of_normal_and_one_of_critical_pods() {
    let critical = SYSTEM_CRITICAL;
    for (whole, of_critical, want) in [
        (seconds(30), seconds(10), Some(vec![(0, 20), (critical, 10)])),
        (seconds(30), seconds(0), Some(vec![(0, 30), (critical, 0)])),
        (seconds(30), seconds(30), Some(vec![(0, 0), (critical, 30)])),
        (
            Duration::from_millis(30_900),
            Duration::from_millis(10_900),
            Some(vec![(0, 20), (critical, 10)]),
        ),
        (seconds(0), seconds(0), None),
    ] {
        let found = ShutdownGroups::with_critical(whole, of_critical);
        assert_eq!(found, want.map(|want| groups(&want)), "{whole:?} {of_critical:?}");
    }
}

#[test]
fn nothing_configured_means_no_graceful_shutdown() {
    assert_eq!(ShutdownGroups::by_priority(Vec::new()), None);
}

// The reference, row 38.
#[test]
fn pod_joins_the_highest_group_that_is_not_above_it() {
    let four = groups(&[(3, 1), (1, 1), (4, 1), (2, 1)]);
    for (priority, want) in [
        (Some(-7), 0),
        (None, 0),
        (Some(0), 0),
        (Some(1), 0),
        (Some(2), 1),
        (Some(4), 3),
        (Some(5), 3),
    ] {
        assert_eq!(four.group_of(&with_priority(priority)), want, "{priority:?}");
    }
    let two = ShutdownGroups::with_critical(seconds(20), seconds(10)).unwrap();
    for (priority, want) in
        [(Some(SYSTEM_CRITICAL - 1), 0), (Some(SYSTEM_CRITICAL), 1), (Some(i32::MAX), 1)]
    {
        assert_eq!(two.group_of(&with_priority(priority)), want, "{priority:?}");
    }
}

// The reference, row 35.
#[test]
fn grace_period_is_limited_by_the_period_of_the_group() {
    for (of_pod, period, want) in [(120, 10, 10), (5, 10, 5), (120, 0, 1), (0, 10, 1)] {
        let kill = kill(&with_grace(of_pod), seconds(period));
        assert_eq!(kill.grace, Some(seconds(want)), "{of_pod} {period}");
        let reason = kill.termination_reason.unwrap();
        assert_eq!((reason.reason.as_str(), reason.message.as_str()), (REASON, MESSAGE));
        assert_eq!(reason.disruption.as_deref(), Some(MESSAGE));
    }
}

#[test]
fn only_a_change_of_the_announcement_has_an_effect() {
    assert_eq!(change(false, true), ShutdownChange::Begin);
    assert_eq!(change(true, true), ShutdownChange::Nothing);
    assert_eq!(change(true, false), ShutdownChange::Cancel);
    assert_eq!(change(false, false), ShutdownChange::Nothing);
}

// The reference, row 32.
#[test]
fn delay_is_overridden_only_if_it_is_too_short() {
    let thirty = ShutdownGroups::with_critical(seconds(30), seconds(10)).unwrap().total();
    assert!(needs_override(seconds(5), thirty));
    assert!(!needs_override(seconds(30), thirty));
    assert!(!needs_override(seconds(31), thirty));
    let text = delay_override(thirty);
    assert_eq!(text, "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=30\n");
}

#[test]
fn record_of_a_shutdown_is_upstreams() {
    let start: Timestamp = "2026-03-01T10:00:00.5Z".parse().unwrap();
    let running = ShutdownRecord { start: Some(start), end: None };
    let text = r#"{"startTime":"2026-03-01T10:00:00.5Z","endTime":"0001-01-01T00:00:00Z"}"#;
    assert_eq!(serde_json::to_string(&running).unwrap(), text);
    assert_eq!(serde_json::from_str::<ShutdownRecord>(text).unwrap(), running);
    let with_zone = r#"{"startTime":"2026-03-01T12:00:00.5+02:00","endTime":null}"#;
    assert_eq!(serde_json::from_str::<ShutdownRecord>(with_zone).unwrap(), running);
    assert_eq!(serde_json::from_str::<ShutdownRecord>("{}").unwrap(), ShutdownRecord::default());
    serde_json::from_str::<ShutdownRecord>(r#"{"startTime":7}"#).unwrap_err();
    assert!((ShutdownRecord::seconds(running.start) - 1_772_359_200.5).abs() < 1e-6);
    assert!(ShutdownRecord::seconds(running.end).abs() < f64::EPSILON);
}

proptest! {
    /// Nothing overflows, however absurd the configuration, and a pod of higher priority never ends
    /// in an earlier group.
    #[test]
    fn groups_follow_priorities(
        configured in prop::collection::vec((any::<i32>(), any::<u64>()), 1..6),
        one in any::<i32>(),
        other in any::<i32>(),
    ) {
        let groups = groups(&configured);
        let (low, high) = (one.min(other), one.max(other));
        let of = |priority| groups.group_of(&with_priority(Some(priority)));
        prop_assert!(of(low) <= of(high));
        prop_assert!(groups.groups().get(of(high)).is_some());
        prop_assert!(groups.groups().iter().all(|group| group.period <= groups.total()));
    }
}
