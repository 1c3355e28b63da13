use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::PodUid;
use crate::status::queue::{ReportQueue, Sweep};
use crate::time::Mono;

fn uid(name: &str) -> PodUid {
    PodUid::new(name)
}

fn at(second: u64) -> Mono {
    Mono(Duration::from_secs(second))
}

/// Queues a report without a delay.
fn due(queue: &mut ReportQueue, name: &str, changes_ready: bool) {
    queue.check(&uid(name));
    let check = queue.next_check().unwrap();
    assert_eq!(check.uid, uid(name));
    queue.due(check, changes_ready);
}

fn reports(queue: &mut ReportQueue) -> Vec<String> {
    std::iter::from_fn(|| queue.next_ready_change().or_else(|| queue.next_other()))
        .map(|uid| uid.to_string())
        .collect()
}

fn checks(queue: &mut ReportQueue) -> Vec<String> {
    std::iter::from_fn(|| queue.next_check()).map(|check| check.uid.to_string()).collect()
}

#[test]
fn one_event_among_ten_thousand_idle_or_delayed_pods_checks_one() {
    let mut queue = ReportQueue::default();
    for n in 0..10_000 {
        queue.check(&uid(&format!("p{n}")));
    }
    let mut checked = 0;
    while let Some(check) = queue.next_check() {
        checked += 1;
        if checked % 2 == 0 {
            queue.delay(check, at(60));
        }
    }
    assert_eq!(checked, 10_000);
    queue.check(&uid("p77"));
    queue.check(&uid("p77"));
    queue.expire(at(59));
    assert_eq!(checks(&mut queue), ["p77"]);
    assert_eq!(checks(&mut queue), [""; 0]);
}

#[test]
fn changes_of_ready_are_sent_first_and_others_in_turn() {
    let mut queue = ReportQueue::default();
    for (name, changes_ready) in [("z", false), ("a", false), ("y", true), ("b", true)] {
        due(&mut queue, name, changes_ready);
    }
    assert_eq!(reports(&mut queue), ["y", "b", "z", "a"]);
}

#[test]
fn report_that_changes_while_queued_keeps_its_turn() {
    let mut queue = ReportQueue::default();
    due(&mut queue, "z", false);
    due(&mut queue, "a", false);
    due(&mut queue, "z", false);
    assert_eq!(reports(&mut queue), ["z", "a"], "each is queued once");
    let mut queue = ReportQueue::default();
    due(&mut queue, "z", false);
    due(&mut queue, "a", false);
    due(&mut queue, "a", true);
    assert_eq!(reports(&mut queue), ["a", "z"], "it now changes Ready");
}

#[test]
fn event_during_a_check_is_not_lost() {
    let mut queue = ReportQueue::default();
    queue.check(&uid("a"));
    let check = queue.next_check().unwrap();
    queue.check(&uid("a"));
    queue.delay(check, at(60));
    assert_eq!(queue.next_delay(), None, "the outcome is out of date");
    assert_eq!(checks(&mut queue), ["a"]);
}

#[test]
fn pod_has_one_request_in_flight_and_is_checked_after_it() {
    let mut queue = ReportQueue::default();
    due(&mut queue, "a", false);
    assert_eq!(reports(&mut queue), ["a"]);
    queue.check(&uid("a"));
    queue.forget(&uid("a"));
    queue.check(&uid("a"));
    assert_eq!(checks(&mut queue), [""; 0], "a request is in flight");
    queue.sent(&uid("a"));
    assert_eq!(checks(&mut queue), ["a"]);
}

#[test]
fn delayed_pod_is_checked_at_its_time_or_at_its_next_event() {
    let mut queue = ReportQueue::default();
    for (name, second) in [("a", 3), ("b", 2), ("c", 2), ("d", 5)] {
        queue.check(&uid(name));
        let check = queue.next_check().unwrap();
        queue.delay(check, at(second));
    }
    assert_eq!(queue.next_delay(), Some(at(2)));
    queue.check(&uid("d"));
    queue.forget(&uid("c"));
    queue.expire(at(2));
    assert_eq!(checks(&mut queue), ["d", "b"]);
    assert_eq!(queue.next_delay(), Some(at(3)));
    queue.expire(at(9));
    assert_eq!(checks(&mut queue), ["a"]);
    assert_eq!(queue.next_delay(), None);
}

#[test]
fn sweep_visits_each_pod_once_in_slices() {
    for count in [0_usize, 1, 7, 10, 99, 1000] {
        let pods: BTreeMap<PodUid, ()> =
            (0..count).map(|n| (uid(&format!("p{n:04}")), ())).collect();
        let mut sweep = Sweep::default();
        for _pass in 0..2 {
            let slices: Vec<Vec<PodUid>> =
                (0..Sweep::SLICES).map(|_| sweep.next_slice(&pods)).collect();
            let largest = slices.iter().map(Vec::len).max().unwrap();
            assert!(largest <= count.div_ceil(Sweep::SLICES), "{count} pods, slice of {largest}");
            assert_eq!(slices.concat(), pods.keys().cloned().collect::<Vec<_>>());
        }
    }
}

#[test]
fn sweep_misses_no_pod_when_others_come_and_go() {
    let name = |n: usize| uid(&format!("p{n:04}"));
    let mut pods: BTreeMap<PodUid, ()> = (100..200).map(|n| (name(n), ())).collect();
    let mut sweep = Sweep::default();
    let mut visited = Vec::new();
    for slice in 0..Sweep::SLICES {
        visited.extend(sweep.next_slice(&pods));
        pods.remove(&name(100 + slice));
        pods.insert(name(300 + slice), ());
    }
    for n in 110..200 {
        assert!(visited.contains(&name(n)), "{n}");
    }
}
