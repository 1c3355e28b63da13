use std::sync::Arc;
use std::time::Duration;

use podwright_core::builders;
use podwright_core::pod::Source;
use podwright_core::status::queue::Sweep;
use serde_json::json;

use super::*;

const PODS: usize = 10_000;

/// A status manager with a report of each of these pods, which the pod index does not know.
fn manager(pods: &[Pod]) -> (Arc<StatusManager>, Clock) {
    let clock = Clock::manual(builders::t(0));
    let status = StatusManager::new(
        Arc::new(PodIndex::default()),
        Arc::new(|_: &PodUid| PodLeftovers::default()),
        "containerd".into(),
        clock.clone(),
        Arc::new(Metrics::default()),
    );
    for pod in pods {
        status.set(pod, phase("Pending"));
    }
    (status, clock)
}

fn pods(source: Source, count: usize) -> Vec<Pod> {
    let name = |n| format!("{}-{n}", source.as_str());
    (0..count).map(|n| builders::pod(&name(n)).container("c").build_from(source)).collect()
}

fn phase(phase: &str) -> v1::PodStatus {
    serde_json::from_value(json!({ "phase": phase })).unwrap()
}

#[test]
fn one_event_among_ten_thousand_pods_checks_one_report() {
    let (from_api, from_files) = (pods(Source::Api, PODS), pods(Source::File, 2));
    let all: Vec<Pod> = from_api.iter().chain(&from_files).cloned().collect();
    let (status, _) = manager(&all);
    assert_eq!(status.check_changed(), PODS + 2, "each new report once");
    assert_eq!(status.check_changed(), 0, "nothing happened");

    status.set(&all[77], phase("Pending"));
    assert_eq!(status.check_changed(), 0, "the report is unchanged");
    status.set(&all[77], phase("Running"));
    status.set(&all[77], phase("Failed"));
    assert_eq!(status.check_changed(), 1, "two events of one pod");
    status.recheck(&all[78].uid);
    assert_eq!(status.check_changed(), 1, "a deletion request");
    status.mirror_changed();
    assert_eq!(status.check_changed(), 2, "only static pods have mirror pods");
}

#[test]
fn sweep_checks_a_tenth_of_the_reports() {
    let (status, _) = manager(&pods(Source::File, PODS));
    status.check_changed();
    for _ in 0..Sweep::SLICES {
        status.sweep();
        assert_eq!(status.check_changed(), PODS / Sweep::SLICES);
    }
}

#[test]
fn pod_that_waits_without_an_event_is_checked_within_a_second() {
    let (status, clock) = manager(&pods(Source::Api, 1));
    assert_eq!(status.check_changed(), 1);
    let mut checked = 0;
    for _ in 0..100 {
        clock.advance(Duration::from_millis(100));
        checked += status.check_changed();
    }
    assert!((10..=14).contains(&checked), "{checked} checks in ten seconds");
}

#[test]
fn removed_pod_is_not_checked_again() {
    let all = pods(Source::Api, 3);
    let (status, clock) = manager(&all);
    status.check_changed();
    all.iter().skip(1).for_each(|pod| status.forget(&pod.uid));
    clock.advance(Duration::from_secs(10));
    assert_eq!(status.check_changed(), 1);
    status.recheck(&all[1].uid);
    assert_eq!(status.check_changed(), 0);
}
