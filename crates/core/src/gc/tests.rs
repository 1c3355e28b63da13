use std::collections::BTreeSet;

use super::*;
use crate::time::Mono;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn mono(seconds: u64) -> Mono {
    Mono(Duration::from_secs(seconds))
}

/// `pod/container#attempt` in sandbox `pod-s`, created at the given second.
fn dead(name: &str, created: i64) -> ListedContainer {
    let (pod, rest) = name.split_once('/').unwrap();
    let (container, attempt) = rest.split_once('#').unwrap();
    ListedContainer {
        id: ContainerId::new(name),
        pod: PodUid::new(pod),
        container: container.into(),
        sandbox: SandboxId::new(format!("{pod}-s")),
        attempt: attempt.parse().unwrap(),
        created: at(created),
        state: ListedState::Exited,
    }
}

fn chosen(
    listed: &[ListedContainer],
    policy: &ContainerPolicy,
    over: &[&str],
) -> Vec<(String, bool)> {
    let is_over = |pod: &PodUid| over.contains(&pod.as_str());
    let evictions = containers(listed, policy, is_over, at(1000));
    evictions.into_iter().map(|e| (e.id.to_string(), e.stop_first)).collect()
}

fn names(chosen: &[(String, bool)]) -> Vec<&str> {
    chosen.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn newest_dead_instance_of_each_container_is_kept() {
    let listed = [
        dead("p/a#0", 1),
        dead("p/a#2", 3),
        dead("p/a#1", 2),
        dead("p/b#0", 4),
        ListedContainer { state: ListedState::Running, ..dead("q/a#9", 0) },
        dead("q/a#8", 0),
    ];
    let got = chosen(&listed, &ContainerPolicy::default(), &[]);
    assert_eq!(names(&got), ["p/a#0", "p/a#1"], "a running one does not count as dead");
}

#[test]
fn all_dead_containers_of_a_finished_pod_are_removed() {
    let running = ListedContainer { state: ListedState::Running, ..dead("gone/a#1", 5) };
    let listed = [dead("gone/a#0", 1), running, dead("kept/a#0", 2)];
    let got = chosen(&listed, &ContainerPolicy::default(), &["gone"]);
    assert_eq!(names(&got), ["gone/a#0"]);
}

#[test]
fn container_in_unknown_state_is_stopped_first() {
    let lost = ListedContainer { state: ListedState::Unknown, ..dead("p/a#0", 1) };
    let got = chosen(&[lost, dead("p/a#1", 2)], &ContainerPolicy::default(), &[]);
    assert_eq!(got, [("p/a#0".to_owned(), true)]);
}

#[test]
fn container_about_to_start_does_not_count_as_dead() {
    let created = |name, at| ListedContainer { state: ListedState::Created, ..dead(name, at) };
    let listed = [dead("p/a#0", 1), created("p/a#1", 2), created("p/a#2", 3)];
    let policy = ContainerPolicy::default();
    assert_eq!(names(&chosen(&listed, &policy, &[])), ["p/a#0"], "one that never started goes on");
    let crashed = [dead("p/a#0", 1), created("p/a#1", 2)];
    assert_eq!(chosen(&crashed, &policy, &[]), []);
    assert_eq!(names(&chosen(&crashed, &policy, &["p"])), ["p/a#0", "p/a#1"]);
}

#[test]
fn policy_limits_age_instances_per_container_and_total() {
    let listed =
        [dead("p/a#0", 1), dead("p/a#1", 2), dead("p/a#2", 3), dead("q/b#0", 4), dead("q/b#1", 5)];
    let policy = |min_age, per_container, in_total| ContainerPolicy {
        min_age: Duration::from_secs(min_age),
        per_container,
        in_total,
    };
    for (case, policy, want) in [
        ("no limit", policy(0, None, None), vec![]),
        ("too young", policy(997, Some(0), None), vec!["p/a#0", "p/a#1", "p/a#2"]),
        (
            "none of a container",
            policy(0, Some(0), None),
            vec!["p/a#0", "p/a#1", "p/a#2", "q/b#0", "q/b#1"],
        ),
        ("fair shares", policy(0, None, Some(4)), vec!["p/a#0"]),
        ("one each at least", policy(0, None, Some(2)), vec!["p/a#0", "p/a#1", "q/b#0"]),
        (
            "fewer than containers",
            policy(0, None, Some(1)),
            vec!["p/a#0", "p/a#1", "p/a#2", "q/b#0"],
        ),
    ] {
        assert_eq!(names(&chosen(&listed, &policy, &[])), want, "{case}");
    }
}

#[test]
fn dead_containers_are_removed_after_the_clock_was_set_back() {
    let policy = ContainerPolicy { min_age: Duration::from_secs(60), ..Default::default() };
    let got = chosen(&[dead("p/a#0", 5000), dead("p/a#1", 5001)], &policy, &[]);
    assert_eq!(names(&got), ["p/a#0"]);
}

/// The attempt is the last digit of the id.
fn sandbox(id: &str, pod: &str, created: i64, ready: bool) -> ListedSandbox {
    let attempt = id.chars().last().and_then(|digit| digit.to_digit(10)).unwrap();
    let (id, pod, created) = (SandboxId::new(id), PodUid::new(pod), at(created));
    ListedSandbox { id, pod, attempt, created, ready }
}

#[test]
fn highest_attempt_is_kept_regardless_of_creation_times() {
    let listed = [dead("p/a#0", 7200), dead("p/a#1", 0), dead("p/a#10", 3), dead("p/a#9", 5)];
    let got = chosen(&listed, &ContainerPolicy::default(), &[]);
    assert_eq!(names(&got), ["p/a#0", "p/a#1", "p/a#9"]);
    // The one about to be started was created after the clock was set back.
    let created = ListedContainer { state: ListedState::Created, ..dead("p/a#1", 0) };
    assert_eq!(chosen(&[dead("p/a#0", 7200), created], &ContainerPolicy::default(), &[]), []);
    let sandboxes =
        sandboxes(&[sandbox("p0", "p", 7200, false), sandbox("p1", "p", 0, false)], &[], |_| false);
    assert_eq!(sandboxes, [SandboxId::new("p0")]);
}

#[test]
fn sandbox_is_removed_if_dead_empty_and_not_the_newest() {
    let lives_in = ListedContainer { sandbox: SandboxId::new("p1"), ..dead("p/a#0", 1) };
    let listed = [
        sandbox("p0", "p", 0, false),
        sandbox("p1", "p", 1, false),
        sandbox("p2", "p", 2, false),
        sandbox("gone0", "gone", 0, false),
        sandbox("gone1", "gone", 1, true),
        sandbox("q0", "q", 3, false),
    ];
    let got = sandboxes(&listed, &[lives_in], |pod| pod.as_str() == "gone");
    let got: Vec<&str> = got.iter().map(SandboxId::as_str).collect();
    assert_eq!(got, ["gone0", "p0"]);
}

#[test]
fn log_directories_and_links_name_their_owners() {
    for (name, want) in [
        ("default_web_1234", Some("1234")),
        ("ns_a_b_1234", Some("1234")),
        ("web_1234", None),
        ("__1234", None),
        ("lost+found", None),
        ("default_web_", None),
    ] {
        let owner = log_directory_owner(name);
        assert_eq!(owner.as_ref().map(PodUid::as_str), want, "{name}");
    }
    for (name, want) in [
        ("web_default_app-abc123.log", Some("abc123")),
        ("web-0_default_my-app-abc.log", Some("abc")),
        ("web_default_app.log", None),
        ("web_default_app-.log", None),
        ("web_default_app-abc", None),
    ] {
        let owner = log_link_container(name);
        assert_eq!(owner.as_ref().map(ContainerId::as_str), want, "{name}");
    }
}

// === Images ===

const POLICY: ImagePolicy =
    ImagePolicy { high: 85, low: 80, min_age: Duration::from_secs(120), max_age: None };

fn image(id: &str, size: u64) -> ListedImage {
    ListedImage { id: id.to_owned(), names: vec![format!("{id}:tag")], size, pinned: false }
}

fn used(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

fn ids(removals: &[ImageRemoval]) -> Vec<&str> {
    removals.iter().map(|removal| removal.id.as_str()).collect()
}

#[test]
fn disk_usage_is_rounded_as_upstream() {
    for (available, used, excess) in
        [(50, 50, 0), (16, 84, 0), (15, 85, 5), (5, 95, 15), (0, 100, 20), (500, 0, 0)]
    {
        let disk = Disk { capacity: 100, available };
        assert_eq!(disk.used_percent(), Ok(used), "{available}");
        assert_eq!(disk.excess(&POLICY), Ok(excess), "{available}");
    }
    let nothing = Disk { capacity: 0, available: 0 };
    assert_eq!(nothing.excess(&POLICY), Err(DiskError::NoCapacity));
    let huge = Disk { capacity: u64::MAX, available: 0 };
    assert_eq!(huge.used_percent(), Ok(100));
}

#[test]
fn images_in_use_and_pinned_images_are_kept() {
    let pinned = ListedImage { pinned: true, ..image("pinned", 10) };
    let listed = [image("used", 10), image("named", 10), pinned, image("free", 10)];
    let mut records = ImageRecords::default();
    records.note(&listed, &used(&["used", "named:tag"]), mono(0));
    let removals = records.reclaimable(&POLICY, Mono::ZERO + POLICY.min_age);
    assert_eq!(ids(&removals), ["free"]);
}

#[test]
fn longest_unused_images_are_removed_until_enough_is_freed() {
    let listed = [image("a", 10), image("b", 10), image("c", 10), image("young", 10)];
    let mut records = ImageRecords::default();
    records.note(&listed[..3], &used(&["a", "b"]), mono(0));
    records.note(&listed[..3], &used(&["a"]), mono(100));
    records.note(&listed, &used(&[]), mono(200));
    let some = records.reclaimable(&POLICY, mono(200));
    assert_eq!(ids(&some), ["c", "b", "a"], "the youngest has not reached its age");
    for (what, freed, met) in [
        (Reclaim::Bytes(0), 0, true),
        (Reclaim::Bytes(11), 10, false),
        (Reclaim::Bytes(11), 11, true),
        (Reclaim::Everything, u64::MAX, false),
    ] {
        assert_eq!(what.is_met(freed), met, "{what:?} with {freed}");
    }
    records.forget(&used(&["c", "young"]));
    assert_eq!(records.ids().collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn image_that_disappeared_is_new_when_it_returns() {
    let mut records = ImageRecords::default();
    records.note(&[image("a", 1)], &used(&[]), mono(0));
    records.note(&[], &used(&[]), mono(100));
    records.note(&[image("a", 1)], &used(&[]), mono(150));
    assert_eq!(records.reclaimable(&POLICY, mono(200)), []);
}

#[test]
fn unused_images_expire_only_after_the_agent_ran_for_the_maximum_age() {
    let policy = ImagePolicy { max_age: Some(Duration::from_secs(1000)), ..POLICY };
    let mut records = ImageRecords::default();
    records.note(&[image("a", 1), image("b", 1), image("c", 1)], &used(&["a", "b"]), mono(0));
    records.note(&[image("a", 1), image("b", 1), image("c", 1)], &used(&["a"]), mono(900));
    let outdated = |age| records.outdated(&policy, Duration::from_secs(age), mono(1500));
    assert_eq!(outdated(1000), []);
    let got = outdated(1001);
    assert_eq!(ids(&got), ["c", "b"]);
    assert!(got.iter().all(|removal| removal.why == RemovalReason::Age));
    assert!(!ImagePolicy { high: 100, ..POLICY }.is_on() && policy.is_on());
}
