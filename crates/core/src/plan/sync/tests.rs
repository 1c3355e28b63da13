//! What holds a container back, and what it shows meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::super::{Case, decide};
use super::*;
use crate::builders::{case, observed, pod, t};

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
fn an_exit_shows_as_itself_for_a_moment_and_then_as_its_back_off() {
    for (second, shown, wakes) in [(101, None, 102), (102, Some("CrashLoopBackOff"), 110)] {
        let plan = decide(&crashed_again(second).inputs());
        let waiting = plan.waiting.get("app").map(|waiting| waiting.reason.as_str());
        assert_eq!((waiting, plan.wake_at), (shown, Some(t(wakes).mono)), "second {second}");
        assert!(plan.steps.is_empty(), "it is held back all the while");
        assert!(plan.why.way_out.is_some());
    }
}

#[test]
fn a_failed_post_start_hook_shows_before_the_back_off_it_leads_to() {
    for (second, shown) in [(101, "PostStartHookError"), (102, "CrashLoopBackOff")] {
        let mut case = crashed_again(second);
        fail_hook(&mut case);
        let plan = decide(&case.inputs());
        assert_eq!(plan.waiting["app"].reason.as_str(), shown, "second {second}");
    }
}

#[test]
fn the_first_failed_post_start_hook_is_followed_by_a_start_at_once() {
    let pod = pod("web").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited("app", 0, t(100)).build();
    let mut case = case(pod, seen, t(100));
    fail_hook(&mut case);
    let plan = decide(&case.inputs());
    assert!(plan.steps.iter().any(|step| step.start().is_some()), "{plan:?}");
    assert_eq!(plan.waiting["app"].reason.as_str(), "PostStartHookError");
}
