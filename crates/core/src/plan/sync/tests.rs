//! Tests of back-off: when a container may start, and what it shows until then.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::super::tests::steps_of;
use super::super::{Case, decide};
use super::*;
use crate::builders::{case, observed, pod, t};
use crate::lifecycle::Request;

/// A container that was restarted once and exited again at second 100.
fn crashed_again(seconds: u64) -> Case {
    let pod = pod("web").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited("app", 1, t(90)).exited("app", 1, t(100));
    let seen = seen.build();
    let (name, key): (Arc<str>, u64) = ("app".into(), pod.containers[0].backoff_key);
    let mut case = case(pod, seen, t(seconds));
    let older = case.observed.instances[1].clone();
    case.attempts.note_restart(&name, key, &older, t(91), &case.crash_backoff);
    let newest = case.observed.instances[0].clone();
    case.attempts.note_exit(&name, key, &newest, t(100));
    case
}

fn fail_hook(case: &mut Case) {
    let (name, key) = ("app".into(), case.pod.containers[0].backoff_key);
    let (reason, wait) = (StartError::PostStartHookError, Duration::from_secs(10));
    case.attempts.note_start_failure(&name, key, reason, "hook failed".into(), t(100), wait);
}

#[test]
fn exit_is_shown_briefly_before_the_crash_loop_backoff() {
    for (second, shown, wakes) in [(101, None, 102), (102, Some("CrashLoopBackOff"), 110)] {
        let plan = decide(&crashed_again(second).inputs());
        let waiting = plan.waiting.get("app").map(|waiting| waiting.reason.as_str());
        assert_eq!((waiting, plan.wake_at), (shown, Some(t(wakes).mono)), "second {second}");
        assert!(plan.steps.is_empty(), "it is in back-off all the time");
        assert!(plan.why.fix.is_some());
    }
}

#[test]
fn failed_post_start_hook_is_shown_before_the_backoff() {
    for (second, shown) in [(101, "PostStartHookError"), (102, "CrashLoopBackOff")] {
        let mut case = crashed_again(second);
        fail_hook(&mut case);
        let plan = decide(&case.inputs());
        assert_eq!(plan.waiting["app"].reason.as_str(), shown, "second {second}");
    }
}

#[test]
fn first_failed_post_start_hook_restarts_at_once() {
    let pod = pod("web").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited("app", 0, t(100)).build();
    let mut case = case(pod, seen, t(100));
    fail_hook(&mut case);
    let plan = decide(&case.inputs());
    assert!(plan.steps.iter().any(|step| step.start().is_some()), "{plan:?}");
    assert_eq!(plan.waiting["app"].reason.as_str(), "PostStartHookError");
}

#[test]
fn created_container_that_failed_to_run_is_retried_as_a_crash() {
    let pod = pod("web").container("app").build();
    let exited = observed(&pod).sandbox_ready().exited("app", 128, t(100)).build();
    let nothing = observed(&pod).sandbox_ready().build();
    for (seen, starts) in [(exited, true), (nothing, false)] {
        let mut case = case(pod.clone(), seen, t(101));
        let (name, key) = ("app".into(), case.pod.containers[0].backoff_key);
        let (reason, wait) = (StartError::RunContainerError, Duration::from_secs(10));
        case.attempts.note_start_failure(&name, key, reason, "no /nope".into(), t(100), wait);
        let plan = decide(&case.inputs());
        assert_eq!(plan.steps.iter().any(|step| step.start().is_some()), starts, "{plan:?}");
        assert_eq!(plan.waiting["app"].reason.as_str(), "RunContainerError");
    }
}

#[test]
fn waiting_message_names_the_image_in_pull_backoff() {
    let pod = pod("web").container("app").build();
    let seen = observed(&pod).sandbox_ready().build();
    for (reason, second, shown, message) in [
        (StartError::ErrImagePull, 101, "ErrImagePull", "gone"),
        (
            StartError::ErrImagePull,
            102,
            "ImagePullBackOff",
            "Back-off pulling image \"files:1\": ErrImagePull: gone",
        ),
        (
            StartError::ImagePullBackOff,
            101,
            "ImagePullBackOff",
            "Back-off pulling image \"files:1\": ErrImagePull: gone",
        ),
    ] {
        let mut case = case(pod.clone(), seen.clone(), t(second));
        let (name, key) = ("app".into(), case.pod.containers[0].backoff_key);
        let (image, wait) = ("files:1".into(), Duration::from_secs(12));
        case.attempts.note_pull_failure(&image, StartError::ErrImagePull, "gone", t(100));
        case.attempts.note_start_failure(&name, key, reason, "gone".into(), t(100), wait);
        case.attempts.note_unpulled(&name, key, &image);
        let plan = decide(&case.inputs());
        let waiting = &plan.waiting["app"];
        assert_eq!((waiting.reason.as_str(), waiting.message.as_str()), (shown, message));
        assert!(plan.steps.iter().all(|step| step.start().is_none()), "{plan:?}");
    }
}

#[test]
fn highest_attempt_is_current_and_lower_ones_are_duplicates() {
    let pod = pod("web").container("app").build();
    // The clock was set back by two hours between the two.
    let seen = observed(&pod).sandbox_ready().exited("app", 1, t(7200)).running("app", t(100));
    let seen = seen.build();
    assert_eq!(seen.newest("app").map(|i| i.attempt), Some(1));
    let plan = decide(&case(pod.clone(), seen.clone(), t(200)).inputs());
    assert!(plan.steps.is_empty(), "the running instance stays: {plan:?}");
    // Two running instances: the first is stopped, although its creation time is later.
    let twice = observed(&pod).sandbox_ready().running("app", t(7200)).running("app", t(100));
    let plan = decide(&case(pod.clone(), twice.build(), t(200)).inputs());
    let stopped: Vec<&str> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::StopContainer(stop) => Some(stop.instance.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(stopped, ["app-0"]);
    // The next instance gets an unused number.
    let mut crashed = seen;
    crashed.instances[0].state = crashed.instances[1].state.clone();
    let plan = decide(&case(pod, crashed, t(20_000)).inputs());
    let next = plan.steps.iter().filter_map(Step::start).map(|start| start.attempt);
    assert_eq!(next.collect::<Vec<_>>(), [super::super::NextAttempt::Number(2)]);
}

#[test]
fn unreadable_pod_is_left_alone_until_it_is_deleted() {
    let readable = pod("web").container("app").container("b");
    let nameless = |pod: &mut serde_json::Value| pod["spec"]["containers"][1]["name"] = "".into();
    let unreadable = readable.clone().edit(nameless);
    let of = |pod: crate::pod::Pod| {
        // One container has exited, the other is running.
        let seen = observed(&pod).sandbox_ready().exited("app", 1, t(1)).running("b", t(1)).build();
        let mut case = case(pod, seen, t(500));
        case.lifecycle.request(Request::Update, &case.pod);
        decide(&case.inputs())
    };
    assert!(!of(readable.build()).steps.is_empty());
    let plan = of(unreadable.clone().build());
    assert!(plan.steps.is_empty() && !plan.stage_done, "{plan:?}");
    assert!(plan.why.text.contains("a container without a name"), "{}", plan.why.text);
    let plan = of(unreadable.deleted(400, 7).build());
    let Some(Step::KillPod(kill)) = plan.steps.first() else { panic!("not stopped: {plan:?}") };
    let stops: Vec<_> = kill.stops.iter().map(|stop| (&*stop.container, stop.grace)).collect();
    assert_eq!(stops, [("b", Duration::from_secs(7))]);
}

#[test]
fn containers_show_what_they_wait_for_while_the_network_is_not_ready() {
    let pod = pod("web").container("app").build();
    let seen = observed(&pod).sandbox_ready().build();
    let mut case = case(pod, seen, t(101));
    let (name, key) = ("app".into(), case.pod.containers[0].backoff_key);
    let (reason, wait) = (StartError::ErrImagePull, Duration::from_secs(30));
    case.attempts.note_start_failure(&name, key, reason, "gone".into(), t(100), wait);
    case.local_state.network = Err("no plugin".into());
    let plan = decide(&case.inputs());
    assert!(plan.steps.is_empty(), "{plan:?}");
    assert_eq!(plan.waiting.get("app").map(|w| w.reason.as_str()), Some("ErrImagePull"));
}

#[test]
fn containers_show_what_they_wait_for_while_others_are_stopped() {
    let rule = json!({ "restartPolicy": "Never", "restartPolicyRules": [
        { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } },
    ]});
    let pod = pod("web").container("app").container("b").container_with("c", rule).build();
    let running = observed(&pod).sandbox_ready().running("b", t(1)).running("c", t(1)).build();
    let trigger = observed(&pod).sandbox_ready().running("b", t(1)).exited("c", 42, t(100)).build();
    let lost = observed(&pod).sandbox("s0", 0, false).running("b", t(1)).build();
    let named = |name: &str| pod.containers.iter().find(|c| &*c.name == name).unwrap().backoff_key;
    for (what, seen, cgroup, kill_fails) in [
        ("the pod cgroup is missing", &running, false, false),
        ("all containers restart", &trigger, true, false),
        ("the old sandbox cannot be stopped", &lost, true, true),
    ] {
        let mut case = case(pod.clone(), seen.clone(), t(101));
        let (reason, wait) = (StartError::ErrImagePull, Duration::from_secs(30));
        let name: Arc<str> = "app".into();
        case.attempts.note_start_failure(&name, named("app"), reason, "gone".into(), t(100), wait);
        case.local_state.cgroup = cgroup;
        if kill_fails {
            case.attempts.note_step_failure(PodStep::Kill, "stuck".into(), t(100), wait);
        }
        let plan = decide(&case.inputs());
        assert!(plan.steps.iter().all(|step| step.start().is_none()), "{what}: {plan:?}");
        let shown = plan.waiting.get("app").map(|waiting| waiting.reason.as_str());
        assert_eq!(shown, Some("ErrImagePull"), "{what}: {plan:?}");
    }
}

#[test]
fn deadline_ends_pods_that_are_held_back_or_have_no_network() {
    use crate::time::Stopwatch;
    let pod = pod("web").spec("activeDeadlineSeconds", json!(60)).container("app").build();
    let nothing = observed(&pod).build();
    let mut case = case(pod, nothing, t(10));
    case.local_state.active = Some(Stopwatch::running_since(t(0).wall, t(10)));
    let hold = Hold { reason: "R".into(), message: "later".into() };
    for (hold, network) in [(Some(hold), Ok(())), (None, Err("no plugin".to_owned()))] {
        let waits_for_network = network.is_err();
        (case.local_state.hold, case.local_state.network) = (hold, network);
        let plan = decide(&case.inputs());
        let want = if waits_for_network { t(11) } else { t(60) };
        assert_eq!(plan.wake_at, Some(want.mono), "{plan:?}");
    }
}

#[test]
fn container_that_succeeded_under_on_failure_stays_done_in_a_new_sandbox() {
    let pod = pod("job").restart(RestartPolicy::OnFailure).container("done").container("failed");
    let pod = pod.build();
    let seen = observed(&pod)
        .sandbox("s0", 0, false)
        .exited("done", 0, t(1))
        .exited("failed", 1, t(1))
        .build();
    let steps = steps_of(&case(pod, seen, t(500)));
    assert!(steps.contains(&"start failed#1".to_owned()), "{steps:?}");
    assert!(!steps.iter().any(|step| step.starts_with("start done")), "{steps:?}");
}

#[test]
fn pod_that_changes_between_its_own_and_the_hosts_network_gets_a_new_sandbox() {
    let (own, hosts) =
        (pod("web").container("app").build(), pod("web").host_network().container("app").build());
    for (before, after) in [(&own, &hosts), (&hosts, &own)] {
        let seen = observed(before).sandbox_ready().running("app", t(1)).build();
        let steps = steps_of(&case(after.clone(), seen, t(5)));
        assert!(steps.contains(&"sandbox 1".to_owned()), "{steps:?}");
    }
}

#[test]
fn never_restarted_pod_gets_a_new_sandbox_until_a_regular_container_has_begun() {
    let pod = || pod("job").restart(RestartPolicy::Never);
    let pod = pod().init("first").sidecar("side").container("app").build();
    let lost = || observed(&pod).sandbox("s0", 0, false);
    for (case_name, seen, again) in [
        ("init container succeeded", lost().exited("first", 0, t(1)), true),
        ("init container failed", lost().exited("first", 1, t(1)), false),
        ("init container runs, its exit code decides", lost().running("first", t(1)), false),
        ("init container is lost", lost().instance("first", State::Unknown, t(1)), false),
        (
            "sidecar ended with the sandbox",
            lost().exited("first", 0, t(1)).exited("side", 137, t(2)),
            true,
        ),
        (
            "regular container was only created",
            lost().exited("first", 0, t(1)).instance("app", State::Created, t(2)),
            true,
        ),
        (
            "regular container succeeded",
            lost().exited("first", 0, t(1)).exited("app", 0, t(2)),
            false,
        ),
        ("regular container failed", lost().exited("first", 0, t(1)).exited("app", 1, t(2)), false),
    ] {
        let steps = steps_of(&case(pod.clone(), seen.build(), t(5)));
        let created = steps.contains(&"sandbox 1".to_owned());
        let initialized = steps.iter().any(|step| step.starts_with("start first"));
        assert_eq!((created, initialized), (again, again), "{case_name}: {steps:?}");
    }
}

#[test]
fn restart_of_all_containers_stops_the_others_at_once() {
    let rules = json!({
        "restartPolicy": "Never",
        "restartPolicyRules": [
            { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [7] } },
        ],
    });
    let hook = json!({ "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } } });
    let pod = pod("web").grace(60).container_with("app", rules).container_with("other", hook);
    let pod = pod.build();
    let seen = observed(&pod).sandbox_ready().exited("app", 7, t(1)).running("other", t(1)).build();
    let plan = decide(&case(pod, seen, t(5)).inputs());
    let Some(Step::StopContainer(stop)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!((&*stop.container, stop.grace, stop.pre_stop), ("other", Duration::ZERO, false));
}
