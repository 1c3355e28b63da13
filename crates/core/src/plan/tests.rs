//! Tests of the plan for each situation of a pod.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::builders::{case, observed, pod, t};
use crate::lifecycle::{Kill, Request};
use crate::observed::State;
use crate::pod::{Pod, ProbeKind, RestartPolicy};
use crate::probe::ProbeVerdict;

/// The steps of a plan in short form, for comparison.
pub(super) fn steps_of(case: &Case) -> Vec<String> {
    decide(&case.inputs()).steps.iter().map(step_text).collect()
}

fn step_text(step: &Step) -> String {
    match step {
        Step::EnsureCgroup => "cgroup".into(),
        Step::MakeDirectories => "directories".into(),
        Step::MountVolumes => "volumes".into(),
        Step::KillPod(kill) => format!(
            "kill[{}]",
            kill.stops.iter().map(|s| &*s.container).collect::<Vec<_>>().join(",")
        ),
        Step::StopContainer(stop) => format!("stop {}", stop.container),
        Step::RemoveInstances { ids, logs: Logs::Removed, .. } => format!("remove {}", ids.len()),
        Step::RemoveInstances { ids, logs: Logs::Kept, .. } => {
            format!("remove {} but their logs", ids.len())
        }
        Step::CreateSandbox { attempt } => format!("sandbox {attempt}"),
        Step::Resize(resize) => {
            let names: Vec<&str> = resize.updates.iter().map(|u| &*u.container).collect();
            format!("resize[{}]{}", names.join(","), if resize.whole { " and whole" } else { "" })
        }
        Step::StartContainer(start) => match start.attempt {
            NextAttempt::Number(n) => format!("start {}#{n}", start.container),
            NextAttempt::PastLogs(n) => format!("start {}>{n}", start.container),
        },
        Step::UnmountVolumes => "unmount".into(),
        Step::DestroyCgroup => "destroy cgroup".into(),
    }
}

const PREPARED: [&str; 3] = ["cgroup", "directories", "volumes"];

pub(super) fn prepared(rest: &[&str]) -> Vec<String> {
    PREPARED.iter().chain(rest).map(|s| (*s).to_owned()).collect()
}

fn web() -> Pod {
    pod("web").container("app").build()
}

#[test]
fn new_pod_gets_a_sandbox_and_its_containers() {
    let pod = pod("web").container("app").container("log").build();
    let nothing = observed(&pod).build();
    let want = prepared(&["sandbox 0", "start app>0", "start log>0"]);
    assert_eq!(steps_of(&case(pod, nothing, t(0))), want);
}

#[test]
fn running_pod_needs_nothing() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let plan = decide(&case(pod, seen, t(5)).inputs());
    assert_eq!((plan.steps, plan.wake_at), (vec![], None));
}

#[test]
fn dead_sandbox_of_a_never_restarting_pod_is_only_stopped() {
    let pod = pod("job").restart(RestartPolicy::Never).container("app").build();
    let seen = observed(&pod).sandbox("s0", 0, false).exited("app", 1, t(1)).build();
    assert_eq!(steps_of(&case(pod, seen, t(5))), ["kill[]"]);
}

#[test]
fn dead_sandbox_without_containers_is_replaced() {
    let pod = pod("job").restart(RestartPolicy::Never).container("app").build();
    let seen = observed(&pod).sandbox("s0", 0, false).build();
    let mut want = vec!["kill[]".to_owned()];
    want.extend(prepared(&["sandbox 1", "start app>0"]));
    assert_eq!(steps_of(&case(pod, seen, t(5))), want);
}

#[test]
fn two_ready_sandboxes_are_both_replaced() {
    let pod = web();
    let seen = observed(&pod).sandbox("s0", 0, true).sandbox("s1", 1, true).build();
    let case = case(pod, seen, t(5));
    let plan = decide(&case.inputs());
    let Some(Step::KillPod(kill)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!((kill.sandboxes.len(), kill.replaced), (2, true));
    assert!(plan.steps.contains(&Step::CreateSandbox { attempt: 2 }));
}

#[test]
fn sandbox_without_address_is_replaced_unless_on_the_host_network() {
    let pods = [web(), pod("web").host_network().container("app").build()];
    for (pod, replaced) in pods.into_iter().zip([true, false]) {
        let seen = observed(&pod)
            .sandbox_ready()
            .edit_sandbox(|s| s.ips = Some(vec![]))
            .running("app", t(1))
            .build();
        let steps = steps_of(&case(pod.clone(), seen, t(5)));
        assert_eq!(steps.contains(&"sandbox 1".to_owned()), replaced);
    }
}

#[test]
fn init_containers_run_again_after_a_reboot() {
    let pod = pod("web").init("first").container("app").build();
    let seen = observed(&pod)
        .sandbox("s0", 0, false)
        .exited("first", 0, t(1))
        .exited("app", 137, t(2))
        .build();
    let mut want = vec!["kill[]".to_owned(), "remove 1".to_owned()];
    want.extend(prepared(&["sandbox 1", "start first#1"]));
    assert_eq!(steps_of(&case(pod, seen, t(900))), want);
}

#[test]
fn removed_init_container_does_not_run_again_but_a_missing_sidecar_does() {
    let pod = pod("web").init("first").sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    assert_eq!(steps_of(&case(pod, seen, t(5))), prepared(&["start proxy>0"]));
}

#[test]
fn oom_killed_init_container_has_failed_even_with_exit_code_zero() {
    let pod = pod("web").restart(RestartPolicy::OnFailure).init("first").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited_for("first", 0, "OOMKilled", t(1)).build();
    assert_eq!(steps_of(&case(pod, seen, t(900))), ["kill[]"], "code 0 is not restarted");
}

#[test]
fn sidecar_restarts_under_any_policy() {
    let pod = pod("job").restart(RestartPolicy::Never).sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited("proxy", 0, t(1)).running("app", t(2)).build();
    assert_eq!(steps_of(&case(pod, seen, t(900))), prepared(&["start proxy#1"]));
}

#[test]
fn sidecar_stops_when_regular_containers_have_finished() {
    let pod = pod("job").restart(RestartPolicy::Never).sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("proxy", t(1)).exited("app", 0, t(2)).build();
    assert_eq!(steps_of(&case(pod, seen, t(5))), ["kill[proxy]"]);
}

#[test]
fn next_init_container_waits_only_for_the_sidecars_startup_probe() {
    let probes = json!({
        "startupProbe": { "exec": { "command": ["true"] } },
        "livenessProbe": { "exec": { "command": ["true"] } },
    });
    let pod = pod("web").sidecar_with("proxy", probes).init("second").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("proxy", t(1)).build();
    let mut case = case(pod, seen, t(5));
    assert_eq!(steps_of(&case), Vec::<String>::new());
    case.probed.set(&ContainerId::new("proxy-0"), ProbeKind::Startup, ProbeVerdict::Success);
    assert_eq!(steps_of(&case), prepared(&["start second>0"]));
}

#[test]
fn init_containers_run_one_after_the_other() {
    let pod = pod("web").init("first").init("second").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited("first", 0, t(1)).build();
    assert_eq!(steps_of(&case(pod.clone(), seen, t(5))), prepared(&["start second>0"]));
    let seen =
        observed(&pod).sandbox_ready().exited("first", 0, t(1)).running("second", t(2)).build();
    assert_eq!(steps_of(&case(pod, seen, t(5))), Vec::<String>::new());
}

#[test]
fn container_in_unknown_state_is_stopped_before_its_restart() {
    let pod = pod("job").restart(RestartPolicy::Never).container("app").build();
    let seen = observed(&pod).sandbox_ready().instance("app", State::Unknown, t(1)).build();
    let mut want = vec!["stop app".to_owned()];
    want.extend(prepared(&["start app#1"]));
    assert_eq!(steps_of(&case(pod, seen, t(5))), want);
}

#[test]
fn changed_image_restarts_the_container_under_any_policy() {
    let before = pod("job").restart(RestartPolicy::Never).container("app").build();
    let seen = observed(&before).sandbox_ready().running("app", t(1)).build();
    let after = pod("job")
        .restart(RestartPolicy::Never)
        .container_with("app", json!({ "image": "other" }))
        .build();
    let case = case(after, seen, t(5));
    let plan = decide(&case.inputs());
    let Some(Step::StopContainer(stop)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(stop.message, "Container app definition changed, will be restarted");
    assert_eq!(steps_of(&case).last().map(String::as_str), Some("start app#1"));
}

#[test]
fn failed_liveness_probe_kills_and_the_policy_decides_the_restart() {
    // Without a restart of its only container, the whole pod is stopped.
    for (policy, first, starts) in
        [(RestartPolicy::Never, "kill[app]", false), (RestartPolicy::Always, "stop app", true)]
    {
        let probe = json!({ "livenessProbe": { "exec": { "command": ["false"] } } });
        let pod = pod("web").restart(policy).container_with("app", probe).build();
        let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
        let mut case = case(pod, seen, t(5));
        case.probed.set(&ContainerId::new("app-0"), ProbeKind::Liveness, ProbeVerdict::Failure);
        let steps = steps_of(&case);
        assert_eq!(steps.first().map(String::as_str), Some(first), "{policy:?}");
        assert_eq!(steps.contains(&"start app#1".to_owned()), starts, "{policy:?}");
    }
}

#[test]
fn restart_rule_applies_only_to_its_exit_codes() {
    let rules = json!({
        "restartPolicy": "Never",
        "restartPolicyRules": [
            { "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } },
        ],
    });
    let pod = pod("job").restart(RestartPolicy::Never).container_with("app", rules).build();
    for (code, want) in [(42, prepared(&["start app#1"])), (1, vec!["kill[]".to_owned()])] {
        let seen = observed(&pod).sandbox_ready().exited("app", code, t(1)).build();
        assert_eq!(steps_of(&case(pod.clone(), seen, t(900))), want, "exit code {code}");
    }
}

#[test]
fn crashed_container_waits_for_the_end_of_its_backoff() {
    let pod = web();
    let limits = BackoffLimits::DEFAULT;
    let first = observed(&pod).sandbox_ready().exited("app", 1, t(100)).build();
    let mut case = case(pod.clone(), first.clone(), t(100));
    assert_eq!(steps_of(&case), prepared(&["start app#1"]), "the first crash restarts at once");
    let (name, key) = ("app".into(), pod.containers[0].backoff_key);
    case.attempts.note_restart(&name, key, &first.instances[0], t(100), &limits);
    case.observed =
        observed(&pod).sandbox_ready().exited("app", 1, t(100)).exited("app", 1, t(101)).build();
    case.attempts.note_exit(&name, key, &case.observed.instances[0], t(101));
    case.now = t(105);
    let plan = decide(&case.inputs());
    assert_eq!((plan.steps.len(), plan.wake_at), (0, Some(t(111).mono)));
    let waiting = &plan.waiting["app"];
    assert_eq!(waiting.reason.as_str(), "CrashLoopBackOff");
    assert_eq!(
        waiting.message,
        "back-off 10s restarting failed container=app pod=web_default(uid-web)"
    );
    case.now = t(111);
    assert_eq!(steps_of(&case), prepared(&["start app#2"]));
}

#[test]
fn kill_by_the_agent_counts_backoff_from_the_exit_before() {
    let probe = json!({ "livenessProbe": { "exec": { "command": ["false"] } } });
    let pod = pod("web").container_with("app", probe).build();
    let fails = |seen: ObservedPod, id: &str, now| {
        let mut case = case(pod.clone(), seen, now);
        case.probed.set(&ContainerId::new(id), ProbeKind::Liveness, ProbeVerdict::Failure);
        case
    };
    let last_start = |case: &Case| {
        let plan = decide(&case.inputs());
        plan.steps.last().and_then(Step::start).map(|start| start.after.clone())
    };
    let first = observed(&pod).sandbox_ready().running("app", t(1)).build();
    assert_eq!(last_start(&fails(first, "app-0", t(5))), Some(None), "nothing exited before");
    let second =
        observed(&pod).sandbox_ready().exited("app", 137, t(10)).running("app", t(11)).build();
    let killed = second.instances.last().unwrap().clone();
    let mut case = fails(second, "app-1", t(40));
    assert_eq!(last_start(&case), Some(Some(killed.id.clone())), "the previous kill counts");
    let key = pod.containers[0].backoff_key;
    case.attempts.note_restart(&"app".into(), key, &killed, t(35), &BackoffLimits::DEFAULT);
    assert_eq!(steps_of(&case).last().map(String::as_str), Some("start app#2"), "10 s are over");
    case.attempts.note_restart(&"app".into(), key, &killed, t(36), &BackoffLimits::DEFAULT);
    case.attempts.note_restart(&"app".into(), key, &killed, t(37), &BackoffLimits::DEFAULT);
    assert_eq!(steps_of(&case).last().map(String::as_str), Some("stop app"), "40 s are not");
}

#[test]
fn probe_grace_period_applies_to_its_kill_but_not_to_a_deletion() {
    let probe = json!({ "livenessProbe": {
        "exec": { "command": ["false"] }, "terminationGracePeriodSeconds": 5,
    } });
    let build = || pod("web").grace(60).container_with("app", probe.clone());
    let pod = build().build();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let mut alive = case(pod, seen.clone(), t(5));
    alive.probed.set(&ContainerId::new("app-0"), ProbeKind::Liveness, ProbeVerdict::Failure);
    let plan = decide(&alive.inputs());
    let Some(Step::StopContainer(stop)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(stop.grace, Duration::from_secs(5));
    let deleted = build().deleted(5, 60).build();
    let mut ending = case(deleted.clone(), seen, t(5));
    ending.lifecycle.request(Request::Update, &deleted);
    let plan = decide(&ending.inputs());
    let Some(Step::KillPod(kill)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(kill.stops[0].grace, Duration::from_secs(60));
}

#[test]
fn shorter_grace_period_of_a_request_applies_to_every_container() {
    let pod = pod("web").grace(60).sidecar("side").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("side", t(1)).running("app", t(1)).build();
    let requested = Some(Duration::from_secs(7));
    let kill = kill::pod(&pod, &seen, &Attempts::default(), requested).unwrap();
    let given: Vec<_> = kill.stops.iter().map(|stop| stop.grace.as_secs()).collect();
    assert_eq!(given, [7, 7]);
}

#[test]
fn container_stopped_in_a_deleted_pod_has_the_grace_period_of_the_deletion() {
    let probe = json!({ "livenessProbe": {
        "exec": { "command": ["false"] }, "terminationGracePeriodSeconds": 5,
    } });
    let pod = pod("web").grace(60).container_with("app", probe).deleted(5, 20).build();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let (container, instance) = (&pod.containers[0], &seen.instances[0]);
    let stop = kill::container(&pod, container, instance, StopCause::LivenessFailed, "x".into());
    assert_eq!(stop.grace, Duration::from_secs(20));
}

#[test]
fn sidecars_stop_last_and_in_reverse() {
    let pod = pod("web").sidecar("one").sidecar("two").container("app").ephemeral("shell").build();
    let seen = observed(&pod)
        .sandbox_ready()
        .running("one", t(1))
        .running("two", t(2))
        .running("app", t(3))
        .running("shell", t(4))
        .build();
    let kill = kill::pod(&pod, &seen, &Attempts::default(), None).unwrap();
    let mut orders: Vec<_> = kill.stops.iter().map(|s| (s.order, &*s.container)).collect();
    orders.sort_unstable();
    let want = [(None, "shell"), (Some(0), "app"), (Some(1), "two"), (Some(2), "one")];
    assert_eq!(orders, want, "no container waits for a shell");
}

#[test]
fn pre_stop_hook_uses_grace_period_but_never_all_of_it() {
    let s = Duration::from_secs;
    for (grace, spent, want) in [(30, 0, 30), (30, 10, 20), (1, 1, 2), (5, 9, 2)] {
        assert_eq!(kill::remaining(s(grace), s(spent)), s(want), "{grace} - {spent}");
    }
}

#[test]
fn sandbox_waits_for_containers_that_the_runtime_was_not_asked_to_stop() {
    for (unreached, failed_attempts, want) in
        [(0, 0, true), (0, 1, true), (1, 0, false), (2, 2, false), (1, 3, true), (1, 9, true)]
    {
        let stops = kill::stops_sandboxes(unreached, failed_attempts);
        assert_eq!(stops, want, "{unreached} unreached after {failed_attempts} failures");
    }
}

#[test]
fn interrupted_pre_stop_hook_is_not_run_twice_and_a_sleep_has_its_time_left() {
    use kill::{HookState, PreStop, Stop, StopCause};
    let s = Duration::from_secs;
    let exec = json!({ "exec": { "command": ["/bin/a"] } });
    let sleep = json!({ "sleep": { "seconds": 20 } });
    let (started, free) = (HookState::Running, HookState::NotRunning);
    for (about, hook, grace, earlier, state, want) in [
        ("first attempt", Some(&exec), 30, None, free, PreStop::Run),
        ("first attempt of a sleep", Some(&sleep), 30, None, free, PreStop::Run),
        ("this process runs it", Some(&exec), 30, Some(s(3)), started, PreStop::Run),
        ("begun before a restart", Some(&exec), 30, Some(s(3)), free, PreStop::Nothing),
        ("sleep goes on", Some(&sleep), 30, Some(s(3)), free, PreStop::FinishSleep(s(17))),
        ("up to the grace period", Some(&sleep), 10, Some(s(3)), free, PreStop::FinishSleep(s(7))),
        ("sleep is over", Some(&sleep), 30, Some(s(25)), free, PreStop::Nothing),
        ("no hook", None, 30, None, free, PreStop::Nothing),
    ] {
        let lifecycle = hook.map(|hook| json!({ "preStop": hook }));
        let fields = lifecycle.map(|lifecycle| ("lifecycle", lifecycle));
        let pod = pod("p").container_with("c", fields.into_iter().collect()).build();
        let stop = |pre_stop| Stop {
            instance: ContainerId::new("c-1"),
            container: "c".into(),
            grace: s(grace),
            pre_stop,
            order: None,
            cause: StopCause::Pod,
            message: String::new(),
        };
        let container = pod.container("c");
        assert_eq!(kill::pre_stop(&stop(true), container, earlier, state), want, "{about}");
        let without = kill::pre_stop(&stop(false), container, earlier, state);
        assert_eq!(without, PreStop::Nothing, "{about}, without hooks");
        assert_eq!(kill::pre_stop(&stop(true), None, earlier, state), PreStop::Nothing, "{about}");
    }
}

#[test]
fn held_pod_is_stopped_with_a_reason_and_starts_after_the_hold() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let mut held = case(pod, seen, t(5));
    held.local_state.hold = Some(Hold { reason: "Held".into(), message: "maintenance".into() });
    let plan = decide(&held.inputs());
    assert_eq!(plan.steps.iter().map(step_text).collect::<Vec<_>>(), ["kill[app]"]);
    assert_eq!(plan.waiting["app"].reason, WaitReason::Blocked);
    assert_eq!(plan.waiting["app"].message, "maintenance");
    held.local_state.hold = None;
    assert_eq!(steps_of(&held), Vec::<String>::new());
}

#[test]
fn without_network_only_host_network_pods_start() {
    let down = |pod: Pod| {
        let nothing = observed(&pod).build();
        let mut case = case(pod, nothing, t(5));
        case.local_state.network = Err("cni plugin not initialized".into());
        case
    };
    let plan = decide(&down(web()).inputs());
    assert_eq!((plan.steps.len(), plan.wake_at), (0, Some(t(6).mono)));
    assert_eq!(plan.why.text, "network is not ready: cni plugin not initialized");
    let host = pod("web").host_network().container("app").build();
    assert_eq!(steps_of(&down(host)), prepared(&["sandbox 0", "start app>0"]));
}

#[test]
fn containers_without_their_cgroup_are_stopped() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let mut case = case(pod, seen, t(5));
    case.local_state.cgroup = false;
    assert_eq!(steps_of(&case), ["kill[app]"]);
}

#[test]
fn failed_step_is_not_retried_during_backoff() {
    let pod = web();
    let nothing = observed(&pod).build();
    let mut case = case(pod, nothing, t(5));
    let wait = Duration::from_secs(10);
    case.attempts.note_step_failure(PodStep::Volumes, "no such secret".into(), t(5), wait);
    let plan = decide(&case.inputs());
    assert_eq!(plan.wake_at, Some(t(15).mono));
    assert!(plan.why.text.contains("no such secret"));
    assert!(!plan.steps.iter().any(|s| matches!(s, Step::CreateSandbox { .. })));
    case.now = t(15);
    assert_eq!(steps_of(&case), prepared(&["sandbox 0", "start app>0"]));
}

#[test]
fn attempt_number_that_may_be_in_use_is_skipped() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().build();
    let mut case = case(pod.clone(), seen, t(5));
    case.attempts.note_attempt_taken(&"app".into(), pod.containers[0].backoff_key, 0);
    assert_eq!(steps_of(&case), prepared(&["start app>1"]));
}

#[test]
fn terminating_pod_starts_nothing() {
    let pod = pod("web").init("first").sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("proxy", t(1)).build();
    let mut case = case(pod.clone(), seen, t(5));
    case.lifecycle.request(Request::Kill(Kill::default()), &pod);
    assert_eq!(steps_of(&case), ["kill[proxy]"]);
    case.observed = observed(&pod).sandbox("sandbox", 0, false).build();
    case.attempts.note_sandbox_stopped(SandboxId::new("sandbox"), Mono::default());
    assert!(decide(&case.inputs()).stage_done);
    case.lifecycle.stopped();
    assert_eq!(steps_of(&case), ["unmount", "destroy cgroup"]);
}

#[test]
fn pod_stopped_with_its_node_keeps_its_volumes_and_starts_nothing() {
    let pod = pod("web").sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("proxy", t(1)).running("app", t(1)).build();
    let mut case = case(pod.clone(), seen, t(5));
    case.lifecycle.request(Request::StopNode, &pod);
    assert_eq!(steps_of(&case), ["kill[app,proxy]"]);
    case.observed = observed(&pod).sandbox("sandbox", 0, false).build();
    case.attempts.note_sandbox_stopped(SandboxId::new("sandbox"), Mono::default());
    assert!(decide(&case.inputs()).stage_done);
    case.lifecycle.stopped();
    assert_eq!(steps_of(&case), [] as [&str; 0], "neither released nor started");
}

#[test]
fn container_that_survives_its_stop_is_stopped_again_after_a_backoff() {
    let pod = web();
    let running = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let mut case = case(pod.clone(), running.clone(), t(5));
    case.lifecycle.request(Request::Kill(Kill::default()), &pod);
    assert_eq!(steps_of(&case), ["kill[app]"]);
    let app = running.newest("app").unwrap().id.clone();
    case.attempts.note_stopped(app, case.now.mono);
    case.attempts.note_sandbox_stopped(running.sandboxes[0].id.clone(), case.now.mono);
    let plan = decide(&case.inputs());
    assert_eq!((plan.steps.len(), plan.wake_at), (0, Some(t(15).mono)));
    assert_eq!(plan.why.topic, Topic::Fails(PodStep::Kill));
    assert!(plan.why.text.contains("still shows it running"), "{}", plan.why.text);
    case.now = t(15);
    assert_eq!(steps_of(&case), ["kill[app]"], "then it is stopped again");
    // A container that did stop is dropped and delays nothing.
    case.observed = observed(&pod).sandbox("sandbox", 0, false).build();
    case.attempts.forget_stopped(&case.observed);
    assert!(decide(&case.inputs()).stage_done);
}

#[test]
fn restart_all_rule_removes_every_instance_and_the_trigger_last() {
    let rules = json!({
        "restartPolicy": "Never",
        "restartPolicyRules": [
            { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [7] } },
        ],
    });
    let pod = pod("web").init("first").container("log").container_with("app", rules).build();
    let seen = observed(&pod)
        .sandbox_ready()
        .exited("first", 0, t(1))
        .running("log", t(2))
        .exited("app", 7, t(3))
        .build();
    let plan = decide(&case(pod, seen, t(5)).inputs());
    assert_eq!(
        plan.steps.iter().map(step_text).collect::<Vec<_>>(),
        ["stop log", "remove 3 but their logs"]
    );
    let Some(Step::RemoveInstances { ids, .. }) = plan.steps.last() else {
        panic!("{:?}", plan.steps)
    };
    assert_eq!(ids.last(), Some(&ContainerId::new("app-0")));
}

#[test]
fn sidecar_rule_may_restart_all_containers() {
    let rules = json!({
        "restartPolicyRules": [
            { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [88] } },
        ],
    });
    let pod = pod("web").sidecar_with("watcher", rules).container("app").build();
    for (code, want) in [
        (88, vec!["stop app", "remove 2 but their logs"]),
        (1, vec!["cgroup", "directories", "volumes", "start watcher#1"]),
    ] {
        let seen = observed(&pod)
            .sandbox_ready()
            .exited("watcher", code, t(100))
            .running("app", t(3))
            .build();
        assert_eq!(steps_of(&case(pod.clone(), seen, t(500))), want, "{code}");
    }
}

#[test]
fn killing_a_sidecar_has_the_init_container_message() {
    let probe = json!({ "livenessProbe": { "exec": {} } });
    let pod = pod("web").sidecar_with("side", probe).container("app").build();
    let seen = observed(&pod).sandbox_ready().running("side", t(1)).running("app", t(2)).build();
    let mut case = case(pod, seen, t(5));
    case.probed.set(&ContainerId::new("side-0"), ProbeKind::Liveness, ProbeVerdict::Failure);
    let plan = decide(&case.inputs());
    let Some(Step::StopContainer(stop)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(stop.message, "Init container side failed liveness probe");
}

#[test]
fn recorded_case_replays_to_the_same_plan() {
    let pod = pod("web").init("first").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited("first", 1, t(1)).build();
    let case = case(pod, seen, t(5));
    let text = serde_json::to_string(&case).unwrap();
    let replayed: Case = serde_json::from_str(&text).unwrap();
    assert_eq!(decide(&replayed.inputs()), decide(&case.inputs()));
}

/// A pod whose container requests this much CPU.
fn requesting(cpu: &str, policy: &str) -> Pod {
    let fields = json!({
        "resources": { "requests": { "cpu": cpu } },
        "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": policy }],
    });
    pod("web").container_with("app", fields).container("log").build()
}

#[test]
fn resize_is_applied_in_place_or_by_a_restart() {
    use crate::resize::{ActuatedResources, Amounts, ResizeState};
    for (case, policy, cpu, want) in [
        ("nothing to do", "NotRequired", "100m", vec![]),
        ("in place", "NotRequired", "200m", vec!["resize[app]"]),
        (
            "anew",
            "RestartContainer",
            "200m",
            vec![
                "stop app",
                "resize[] and whole",
                "cgroup",
                "directories",
                "volumes",
                "start app#1",
            ],
        ),
    ] {
        let (before, pod) = (requesting("100m", policy), requesting(cpu, policy));
        let seen = observed(&pod).sandbox_ready().running("app", t(0)).running("log", t(0)).build();
        let mut case_ = crate::builders::case(pod, seen, t(10));
        let amounts =
            |c: &crate::pod::Container| (c.name.clone(), Amounts::of_container(&before, c));
        let containers = before.containers.iter().map(amounts).collect();
        let applied = ActuatedResources { containers, pod: None };
        case_.local_state.resizing = Arc::new(ResizeState { applied, ..ResizeState::default() });
        assert_eq!(steps_of(&case_), want, "{case}");
        if want.len() == 1 {
            case_.attempts.note_step_failure(
                PodStep::Resize,
                "no".into(),
                t(10),
                Duration::from_secs(10),
            );
            let plan = decide(&case_.inputs());
            assert_eq!((plan.steps, plan.wake_at), (vec![], Some(t(20).mono)), "{case}: later");
        }
    }
}

#[test]
fn unstarted_instance_is_removed_before_another_starts() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().instance("app", State::Created, t(1)).build();
    let mut case = case(pod, seen, t(5));
    let mut want = vec!["remove 1".to_owned()];
    want.extend(prepared(&["start app#1"]));
    assert_eq!(steps_of(&case), want, "its own start may still be in progress");
    case.attempts.note_step_failure(PodStep::Removal, "no".into(), t(5), Duration::from_secs(10));
    assert_eq!(steps_of(&case), [""; 0], "no replacement starts while it exists");
}

#[test]
fn older_of_two_running_instances_is_stopped() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).running("app", t(2)).build();
    let case = case(pod, seen, t(5));
    let plan = decide(&case.inputs());
    let [Step::StopContainer(stop)] = plan.steps.as_slice() else { panic!("{:?}", plan.steps) };
    assert_eq!((stop.instance.as_str(), stop.cause), ("app-0", StopCause::Duplicate));
}
