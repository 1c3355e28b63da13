//! What a pod needs next, case by case. Rows are those of the behaviour reference.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::builders::{case, observed, pod, t};
use crate::lifecycle::{Kill, Request};
use crate::observed::State;
use crate::pod::{Pod, ProbeKind, RestartPolicy};
use crate::probe::Verdict;

/// A plan in short words, for comparing.
fn told(case: &Case) -> Vec<String> {
    decide(&case.inputs()).steps.iter().map(word).collect()
}

fn word(step: &Step) -> String {
    match step {
        Step::EnsureCgroup => "cgroup".into(),
        Step::MakeDirectories => "directories".into(),
        Step::MountVolumes => "volumes".into(),
        Step::KillPod(kill) => format!(
            "kill[{}]",
            kill.stops.iter().map(|s| &*s.container).collect::<Vec<_>>().join(",")
        ),
        Step::StopContainer(stop) => format!("stop {}", stop.container),
        Step::RemoveInstances { ids, logs: Logs::Removed } => format!("remove {}", ids.len()),
        Step::RemoveInstances { ids, logs: Logs::Kept } => {
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

fn prepared(rest: &[&str]) -> Vec<String> {
    PREPARED.iter().chain(rest).map(|s| (*s).to_owned()).collect()
}

fn web() -> Pod {
    pod("web").container("app").build()
}

#[test]
fn a_new_pod_gets_a_sandbox_and_its_containers() {
    let pod = pod("web").container("app").container("log").build();
    let nothing = observed(&pod).build();
    let want = prepared(&["sandbox 0", "start app>0", "start log>0"]);
    assert_eq!(told(&case(pod, nothing, t(0))), want);
}

#[test]
fn a_pod_that_runs_needs_nothing() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let plan = decide(&case(pod, seen, t(5)).inputs());
    assert_eq!((plan.steps, plan.wake_at), (vec![], None));
}

#[test]
fn row_5_a_dead_sandbox_of_a_run_once_pod_is_only_stopped() {
    let pod = pod("job").restart(RestartPolicy::Never).container("app").build();
    let seen = observed(&pod).sandbox("s0", 0, false).exited("app", 1, t(1)).build();
    assert_eq!(told(&case(pod, seen, t(5))), ["kill[]"]);
}

#[test]
fn row_6_a_dead_sandbox_without_containers_is_replaced() {
    let pod = pod("job").restart(RestartPolicy::Never).container("app").build();
    let seen = observed(&pod).sandbox("s0", 0, false).build();
    let mut want = vec!["kill[]".to_owned()];
    want.extend(prepared(&["sandbox 1", "start app>0"]));
    assert_eq!(told(&case(pod, seen, t(5))), want);
}

#[test]
fn row_7_two_ready_sandboxes_are_both_replaced() {
    let pod = web();
    let seen = observed(&pod).sandbox("s0", 0, true).sandbox("s1", 1, true).build();
    let case = case(pod, seen, t(5));
    let plan = decide(&case.inputs());
    let Some(Step::KillPod(kill)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!((kill.sandboxes.len(), kill.replaced), (2, true));
    assert!(plan.steps.contains(&Step::CreateSandbox { attempt: 2 }));
}

#[test]
fn row_8_a_sandbox_without_an_address_is_replaced_unless_the_network_is_the_hosts() {
    let pods = [web(), pod("web").host_network().container("app").build()];
    for (pod, replaced) in pods.into_iter().zip([true, false]) {
        let seen = observed(&pod)
            .sandbox_ready()
            .edit_sandbox(|s| s.ips = Some(vec![]))
            .running("app", t(1))
            .build();
        let steps = told(&case(pod.clone(), seen, t(5)));
        assert_eq!(steps.contains(&"sandbox 1".to_owned()), replaced);
    }
}

#[test]
fn row_9_after_a_reboot_init_runs_again() {
    let pod = pod("web").init("first").container("app").build();
    let seen = observed(&pod)
        .sandbox("s0", 0, false)
        .exited("first", 0, t(1))
        .exited("app", 137, t(2))
        .build();
    let mut want = vec!["kill[]".to_owned(), "remove 1".to_owned()];
    want.extend(prepared(&["sandbox 1", "start first#1"]));
    assert_eq!(told(&case(pod, seen, t(900))), want);
}

#[test]
fn row_10_forgotten_init_containers_do_not_run_again_but_a_missing_sidecar_does() {
    let pod = pod("web").init("first").sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    assert_eq!(told(&case(pod, seen, t(5))), prepared(&["start proxy>0"]));
}

#[test]
fn row_11_an_init_container_that_was_oom_killed_has_failed_whatever_its_code() {
    let pod = pod("web").restart(RestartPolicy::OnFailure).init("first").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited_for("first", 0, "OOMKilled", t(1)).build();
    assert_eq!(told(&case(pod, seen, t(900))), ["kill[]"], "code 0 is not restarted");
}

#[test]
fn row_12_a_sidecar_comes_back_under_any_policy() {
    let pod = pod("job").restart(RestartPolicy::Never).sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited("proxy", 0, t(1)).running("app", t(2)).build();
    assert_eq!(told(&case(pod, seen, t(900))), prepared(&["start proxy#1"]));
}

#[test]
fn row_13_when_the_work_is_done_the_sidecar_ends_too() {
    let pod = pod("job").restart(RestartPolicy::Never).sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("proxy", t(1)).exited("app", 0, t(2)).build();
    assert_eq!(told(&case(pod, seen, t(5))), ["kill[proxy]"]);
}

#[test]
fn row_14_the_next_init_container_waits_for_a_sidecars_startup_probe_only() {
    let probes = json!({
        "startupProbe": { "exec": { "command": ["true"] } },
        "livenessProbe": { "exec": { "command": ["true"] } },
    });
    let pod = pod("web").sidecar_with("proxy", probes).init("second").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("proxy", t(1)).build();
    let mut case = case(pod, seen, t(5));
    assert_eq!(told(&case), Vec::<String>::new());
    case.probed.set(&ContainerId::new("proxy-0"), ProbeKind::Startup, Verdict::Success);
    assert_eq!(told(&case), prepared(&["start second>0"]));
}

#[test]
fn init_containers_run_one_after_the_other() {
    let pod = pod("web").init("first").init("second").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited("first", 0, t(1)).build();
    assert_eq!(told(&case(pod.clone(), seen, t(5))), prepared(&["start second>0"]));
    let seen =
        observed(&pod).sandbox_ready().exited("first", 0, t(1)).running("second", t(2)).build();
    assert_eq!(told(&case(pod, seen, t(5))), Vec::<String>::new());
}

#[test]
fn row_15_a_container_nobody_knows_about_is_stopped_before_it_starts_again() {
    let pod = pod("job").restart(RestartPolicy::Never).container("app").build();
    let seen = observed(&pod).sandbox_ready().instance("app", State::Unknown, t(1)).build();
    let mut want = vec!["stop app".to_owned()];
    want.extend(prepared(&["start app#1"]));
    assert_eq!(told(&case(pod, seen, t(5))), want);
}

#[test]
fn row_16_an_edited_image_restarts_the_container_under_any_policy() {
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
    assert_eq!(told(&case).last().map(String::as_str), Some("start app#1"));
}

#[test]
fn row_17_a_failed_liveness_probe_kills_and_the_policy_says_what_follows() {
    // Its only container gone for good, the whole pod goes.
    for (policy, first, starts) in
        [(RestartPolicy::Never, "kill[app]", false), (RestartPolicy::Always, "stop app", true)]
    {
        let probe = json!({ "livenessProbe": { "exec": { "command": ["false"] } } });
        let pod = pod("web").restart(policy).container_with("app", probe).build();
        let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
        let mut case = case(pod, seen, t(5));
        case.probed.set(&ContainerId::new("app-0"), ProbeKind::Liveness, Verdict::Failure);
        let steps = told(&case);
        assert_eq!(steps.first().map(String::as_str), Some(first), "{policy:?}");
        assert_eq!(steps.contains(&"start app#1".to_owned()), starts, "{policy:?}");
    }
}

#[test]
fn row_18_a_restart_rule_counts_for_its_codes_only() {
    let rules = json!({
        "restartPolicy": "Never",
        "restartPolicyRules": [
            { "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } },
        ],
    });
    let pod = pod("job").restart(RestartPolicy::Never).container_with("app", rules).build();
    for (code, want) in [(42, prepared(&["start app#1"])), (1, vec!["kill[]".to_owned()])] {
        let seen = observed(&pod).sandbox_ready().exited("app", code, t(1)).build();
        assert_eq!(told(&case(pod.clone(), seen, t(900))), want, "exit code {code}");
    }
}

#[test]
fn row_19_a_crashed_container_waits_out_its_back_off() {
    let pod = web();
    let limits = BackoffLimits::DEFAULT;
    let first = observed(&pod).sandbox_ready().exited("app", 1, t(100)).build();
    let mut case = case(pod.clone(), first.clone(), t(100));
    assert_eq!(told(&case), prepared(&["start app#1"]), "the first crash restarts at once");
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
    assert_eq!(told(&case), prepared(&["start app#2"]));
}

#[test]
fn a_kill_of_our_own_counts_the_exit_before_it() {
    let probe = json!({ "livenessProbe": { "exec": { "command": ["false"] } } });
    let pod = pod("web").container_with("app", probe).build();
    let fails = |seen: ObservedPod, id: &str, now| {
        let mut case = case(pod.clone(), seen, now);
        case.probed.set(&ContainerId::new(id), ProbeKind::Liveness, Verdict::Failure);
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
    assert_eq!(last_start(&case), Some(Some(killed.id.clone())), "the one killed before counts");
    let key = pod.containers[0].backoff_key;
    case.attempts.note_restart(&"app".into(), key, &killed, t(35), &BackoffLimits::DEFAULT);
    assert_eq!(told(&case).last().map(String::as_str), Some("start app#2"), "10 s are over");
    case.attempts.note_restart(&"app".into(), key, &killed, t(36), &BackoffLimits::DEFAULT);
    case.attempts.note_restart(&"app".into(), key, &killed, t(37), &BackoffLimits::DEFAULT);
    assert_eq!(told(&case).last().map(String::as_str), Some("stop app"), "40 s are not");
}

#[test]
fn row_23_a_probes_own_grace_counts_for_its_kill_but_not_for_a_deletion() {
    let probe = json!({ "livenessProbe": {
        "exec": { "command": ["false"] }, "terminationGracePeriodSeconds": 5,
    } });
    let build = || pod("web").grace(60).container_with("app", probe.clone());
    let pod = build().build();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let mut alive = case(pod, seen.clone(), t(5));
    alive.probed.set(&ContainerId::new("app-0"), ProbeKind::Liveness, Verdict::Failure);
    let plan = decide(&alive.inputs());
    let Some(Step::StopContainer(stop)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(stop.grace, Duration::from_secs(5));
    let deleted = build().deleted(5, 60).build();
    let mut ending = case(deleted.clone(), seen, t(5));
    ending.life.request(Request::Update, &deleted);
    let plan = decide(&ending.inputs());
    let Some(Step::KillPod(kill)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(kill.stops[0].grace, Duration::from_secs(60));
}

#[test]
fn row_24_sidecars_stop_last_and_in_reverse() {
    let pod = pod("web").sidecar("one").sidecar("two").container("app").ephemeral("shell").build();
    let seen = observed(&pod)
        .sandbox_ready()
        .running("one", t(1))
        .running("two", t(2))
        .running("app", t(3))
        .running("shell", t(4))
        .build();
    let kill = kill::pod(&pod, &seen, &Attempts::default(), None).unwrap();
    let mut turns: Vec<_> = kill.stops.iter().map(|s| (s.turn, &*s.container)).collect();
    turns.sort_unstable();
    let want = [(None, "shell"), (Some(0), "app"), (Some(1), "two"), (Some(2), "one")];
    assert_eq!(turns, want, "nobody waits for a shell");
}

#[test]
fn a_hook_takes_from_the_grace_but_never_all_of_it() {
    let s = Duration::from_secs;
    for (grace, spent, want) in [(30, 0, 30), (30, 10, 20), (1, 1, 2), (5, 9, 2)] {
        assert_eq!(kill::remaining(s(grace), s(spent)), s(want), "{grace} - {spent}");
    }
}

#[test]
fn a_held_pod_is_stopped_and_says_why_and_starts_when_released() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let mut held = case(pod, seen, t(5));
    held.surroundings.hold = Some(Hold { reason: "Held".into(), message: "maintenance".into() });
    let plan = decide(&held.inputs());
    assert_eq!(plan.steps.iter().map(word).collect::<Vec<_>>(), ["kill[app]"]);
    assert_eq!(plan.waiting["app"].reason, WaitReason::Blocked);
    assert_eq!(plan.waiting["app"].message, "maintenance");
    held.surroundings.hold = None;
    assert_eq!(told(&held), Vec::<String>::new());
}

#[test]
fn without_a_network_only_pods_of_the_hosts_network_start() {
    let down = |pod: Pod| {
        let nothing = observed(&pod).build();
        let mut case = case(pod, nothing, t(5));
        case.surroundings.network = Err("cni plugin not initialized".into());
        case
    };
    let plan = decide(&down(web()).inputs());
    assert_eq!((plan.steps.len(), plan.wake_at), (0, Some(t(6).mono)));
    assert_eq!(plan.why.text, "network is not ready: cni plugin not initialized");
    let host = pod("web").host_network().container("app").build();
    assert_eq!(told(&down(host)), prepared(&["sandbox 0", "start app>0"]));
}

#[test]
fn containers_without_their_cgroup_are_stopped() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let mut case = case(pod, seen, t(5));
    case.surroundings.cgroup = false;
    assert_eq!(told(&case), ["kill[app]"]);
}

#[test]
fn a_failed_step_is_not_tried_again_before_its_time() {
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
    assert_eq!(told(&case), prepared(&["sandbox 0", "start app>0"]));
}

#[test]
fn an_attempt_whose_name_may_be_taken_is_passed_over() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().build();
    let mut case = case(pod.clone(), seen, t(5));
    case.attempts.note_attempt_taken(&"app".into(), pod.containers[0].backoff_key, 0);
    assert_eq!(told(&case), prepared(&["start app>1"]));
}

#[test]
fn a_pod_that_ends_never_starts_anything() {
    let pod = pod("web").init("first").sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("proxy", t(1)).build();
    let mut case = case(pod.clone(), seen, t(5));
    case.life.request(Request::Kill(Kill::default()), &pod);
    assert_eq!(told(&case), ["kill[proxy]"]);
    case.observed = observed(&pod).sandbox("sandbox", 0, false).build();
    case.attempts.note_sandbox_stopped(SandboxId::new("sandbox"), Mono::default());
    assert!(decide(&case.inputs()).stage_done);
    case.life.stopped();
    assert_eq!(told(&case), ["unmount", "destroy cgroup"]);
}

#[test]
fn pod_stopped_with_its_node_keeps_its_volumes_and_starts_nothing() {
    let pod = pod("web").sidecar("proxy").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("proxy", t(1)).running("app", t(1)).build();
    let mut case = case(pod.clone(), seen, t(5));
    case.life.request(Request::StopNode, &pod);
    assert_eq!(told(&case), ["kill[app,proxy]"]);
    case.observed = observed(&pod).sandbox("sandbox", 0, false).build();
    case.attempts.note_sandbox_stopped(SandboxId::new("sandbox"), Mono::default());
    assert!(decide(&case.inputs()).stage_done);
    case.life.stopped();
    assert_eq!(told(&case), [] as [&str; 0], "neither released nor started");
}

#[test]
fn what_survives_its_stop_is_left_alone_for_a_while() {
    let pod = web();
    let running = observed(&pod).sandbox_ready().running("app", t(1)).build();
    let mut case = case(pod.clone(), running.clone(), t(5));
    case.life.request(Request::Kill(Kill::default()), &pod);
    assert_eq!(told(&case), ["kill[app]"]);
    let app = running.newest("app").unwrap().id.clone();
    case.attempts.note_stopped(app, case.now.mono);
    case.attempts.note_sandbox_stopped(running.sandboxes[0].id.clone(), case.now.mono);
    let plan = decide(&case.inputs());
    assert_eq!((plan.steps.len(), plan.wake_at), (0, Some(t(15).mono)));
    assert_eq!(plan.why.topic, Topic::Fails(PodStep::Kill));
    assert!(plan.why.text.contains("still shows it running"), "{}", plan.why.text);
    case.now = t(15);
    assert_eq!(told(&case), ["kill[app]"], "then it is stopped once more");
    // What did stop is forgotten, and holds nothing back.
    case.observed = observed(&pod).sandbox("sandbox", 0, false).build();
    case.attempts.forget_ended(&case.observed);
    assert!(decide(&case.inputs()).stage_done);
}

#[test]
fn a_rule_to_restart_all_removes_every_instance_and_the_trigger_last() {
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
        plan.steps.iter().map(word).collect::<Vec<_>>(),
        ["stop log", "remove 3 but their logs"]
    );
    let Some(Step::RemoveInstances { ids, .. }) = plan.steps.last() else {
        panic!("{:?}", plan.steps)
    };
    assert_eq!(ids.last(), Some(&ContainerId::new("app-0")));
}

#[test]
fn a_sidecar_may_restart_all_others_too() {
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
        assert_eq!(told(&case(pod.clone(), seen, t(500))), want, "{code}");
    }
}

#[test]
fn a_sidecar_is_killed_with_words_of_its_own() {
    let probe = json!({ "livenessProbe": { "exec": {} } });
    let pod = pod("web").sidecar_with("side", probe).container("app").build();
    let seen = observed(&pod).sandbox_ready().running("side", t(1)).running("app", t(2)).build();
    let mut case = case(pod, seen, t(5));
    case.probed.set(&ContainerId::new("side-0"), ProbeKind::Liveness, Verdict::Failure);
    let plan = decide(&case.inputs());
    let Some(Step::StopContainer(stop)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(stop.message, "Init container side failed liveness probe");
}

#[test]
fn a_recorded_case_replays_to_the_same_plan() {
    let pod = pod("web").init("first").container("app").build();
    let seen = observed(&pod).sandbox_ready().exited("first", 1, t(1)).build();
    let case = case(pod, seen, t(5));
    let text = serde_json::to_string(&case).unwrap();
    let replayed: Case = serde_json::from_str(&text).unwrap();
    assert_eq!(decide(&replayed.inputs()), decide(&case.inputs()));
}

/// A pod whose container asks for this much CPU, as a JSON patch of its spec.
fn asking(cpu: &str, policy: &str) -> Pod {
    let fields = json!({
        "resources": { "requests": { "cpu": cpu } },
        "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": policy }],
    });
    pod("web").container_with("app", fields).container("log").build()
}

#[test]
fn a_grant_is_applied_in_place_or_by_a_new_instance() {
    use crate::resize::{Amounts, Applied, Resizing};
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
        let (before, pod) = (asking("100m", policy), asking(cpu, policy));
        let seen = observed(&pod).sandbox_ready().running("app", t(0)).running("log", t(0)).build();
        let mut case_ = crate::builders::case(pod, seen, t(10));
        let amounts =
            |c: &crate::pod::Container| (c.name.clone(), Amounts::of_container(&before, c));
        let containers = before.containers.iter().map(amounts).collect();
        let applied = Applied { containers, pod: None };
        case_.surroundings.resizing = Arc::new(Resizing { applied, ..Resizing::default() });
        assert_eq!(told(&case_), want, "{case}");
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
fn an_instance_that_never_ran_goes_before_another_one_starts() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().instance("app", State::Created, t(1)).build();
    let mut case = case(pod, seen, t(5));
    let mut want = vec!["remove 1".to_owned()];
    want.extend(prepared(&["start app#1"]));
    assert_eq!(told(&case), want, "its own start may still be under way");
    case.attempts.note_step_failure(PodStep::Removal, "no".into(), t(5), Duration::from_secs(10));
    assert_eq!(told(&case), [""; 0], "while it is there, nothing takes its place");
}

#[test]
fn of_two_instances_that_run_the_older_one_is_stopped() {
    let pod = web();
    let seen = observed(&pod).sandbox_ready().running("app", t(1)).running("app", t(2)).build();
    let case = case(pod, seen, t(5));
    let plan = decide(&case.inputs());
    let [Step::StopContainer(stop)] = plan.steps.as_slice() else { panic!("{:?}", plan.steps) };
    assert_eq!((stop.instance.as_str(), stop.cause), ("app-0", StopCause::Double));
}
