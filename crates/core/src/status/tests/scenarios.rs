//! Scenarios of pod statuses, from the plan to what the API shows.

use k8s_openapi::api::core::v1::{Pod as ApiPod, PodStatus};
use serde_json::json;

use super::patch::apply;
use super::scene::{Scene, condition_of, container, last_state, outcome, phase, state};
use crate::lifecycle::{Request, Stage};
use crate::plan::Step;
use crate::status::conditions::ready_is_stale;
use crate::status::dropped::Dropped;
use crate::status::ending::terminate_pod;
use crate::status::manager::{
    Acceptance, PodLeftovers, ReportTrigger, can_be_deleted, needs_reconcile,
};
use crate::status::merge::merge;
use crate::status::patch::patch;
use crate::status::rejected;
use crate::time::Stopwatch;

/// Sends the last report to the API, as the status manager does; returns the status in the API.
fn send(scene: &mut Scene, may_run: bool) -> PodStatus {
    let api: &ApiPod = &scene.pod.object;
    let shown = api.status.clone().unwrap_or_default();
    let merged = merge(api, scene.reported(), may_run, scene.now.wall);
    let result = patch(&shown, &merged, "u1").map_or(shown.clone(), |p| apply(&p, &shown));
    let value = serde_json::to_value(&result).unwrap();
    scene.edit(|o| o["status"] = value);
    result
}

/// Teardown is done: sends the final report and returns the status in the API.
fn finish(scene: &mut Scene) -> PodStatus {
    let last = scene.entry.as_ref().map(|entry| (*entry.status).clone());
    let last = last.or_else(|| scene.pod.object.status.clone()).unwrap_or_default();
    let end = terminate_pod(&scene.pod, &last);
    let Acceptance::Accepted { entry, .. } = scene.accept(ReportTrigger::End, end) else {
        panic!()
    };
    scene.entry = Some(entry);
    send(scene, false)
}

fn can_be_removed(scene: &Scene) -> bool {
    can_be_deleted(&scene.pod.object, scene.entry.as_ref().unwrap(), PodLeftovers::default())
}

#[test]
fn rejected_pod_is_failed_and_removed_once_deleted() {
    let mut scene = Scene::new("Always", &["c"]);
    let refusal = rejected(&scene.pod, "OutOfmemory", "Node didn't have enough resource");
    let Acceptance::Accepted { entry, .. } = scene.accept(ReportTrigger::Sync, refusal) else {
        panic!()
    };
    scene.entry = Some(entry);
    let shown = send(&mut scene, false);
    let message = "Pod was rejected: Node didn't have enough resource";
    assert_eq!(outcome(&shown), ["Failed", "OutOfmemory", message]);
    assert_eq!(shown.qos_class.as_deref(), Some("BestEffort"));
    assert!(shown.start_time.is_some() && shown.conditions.is_none());
    scene.delete();
    assert!(!can_be_removed(&scene), "it is not finished yet");
    assert_eq!(outcome(&finish(&mut scene)), ["Failed", "OutOfmemory", message]);
    assert!(can_be_removed(&scene));
}

#[test]
fn deleted_pod_shows_how_its_containers_ended() {
    for (code, want) in [(0, "Succeeded"), (137, "Failed")] {
        let mut scene = Scene::new("Always", &["c"]);
        scene.sandbox(&["10.0.0.5"]).runs("c").report();
        send(&mut scene, true);
        scene.delete().report();
        assert_eq!(phase(&send(&mut scene, true)), "Running", "exit {code}, still stopping");
        scene.exits("c", code).stopped().report();
        assert_eq!(phase(scene.reported()), want, "exit {code}");
        scene.lifecycle.stopped();
        assert_eq!(phase(&send(&mut scene, false)), want, "exit {code}");
        assert!(!can_be_removed(&scene));
        finish(&mut scene);
        assert!(can_be_removed(&scene));
    }
}

#[test]
fn pod_deleted_before_any_container_existed_has_failed() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.delete().report();
    assert_eq!(phase(scene.reported()), "Pending");
    scene.lifecycle.stopped();
    let shown = finish(&mut scene);
    assert_eq!(phase(&shown), "Failed");
    assert_eq!(state(&shown, "c"), "terminated 137 ContainerStatusUnknown");
    assert!(can_be_removed(&scene));
}

#[test]
fn eviction_is_reported_once_the_containers_have_stopped() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    send(&mut scene, true);
    scene.evict("The node was low on resource: memory.").report();
    let stopping = send(&mut scene, true);
    assert_eq!(outcome(&stopping), ["Running", "", ""]);
    assert_eq!(condition_of(&stopping, "DisruptionTarget"), None);
    scene.exits("c", 0).stopped().report();
    scene.lifecycle.stopped();
    scene.report();
    let shown = send(&mut scene, false);
    assert_eq!(outcome(&shown), ["Failed", "Evicted", "The node was low on resource: memory."]);
    assert_eq!(condition_of(&shown, "Ready"), Some(["False", "PodFailed", ""]));
    assert_eq!(
        condition_of(&shown, "DisruptionTarget").unwrap()[..2],
        ["True", "TerminationByKubelet"]
    );
}

#[test]
fn pod_with_a_crash_loop_and_a_running_container_is_running() {
    let mut scene = Scene::new("Always", &["a", "b"]);
    let status = scene.sandbox(&["10.0.0.5"]).runs("a").crash_loops("b", 1).status();
    assert_eq!(phase(&status), "Running");
    assert_eq!(state(&status, "b"), "waiting CrashLoopBackOff");
    assert_eq!(last_state(&status, "b"), "terminated 1 Error");
}

#[test]
fn failed_init_container_fails_the_pod_or_is_restarted() {
    for (policy, want) in [("Never", "Failed"), ("OnFailure", "Pending")] {
        let mut scene = Scene::new(policy, &["init:i", "c"]);
        let status = scene.sandbox(&["10.0.0.5"]).exits("i", 1).status();
        assert_eq!(phase(&status), want, "{policy}");
    }
}

#[test]
fn restarting_sidecar_leaves_the_pod_running_and_initialized() {
    let mut scene = Scene::new("Always", &["sidecar:s", "c"]);
    scene.sandbox(&["10.0.0.5"]).runs("s").runs("c").report().crash_loops("s", 1);
    let status = scene.status();
    assert_eq!(
        (phase(&status), state(&status, "s").as_str()),
        ("Running", "waiting CrashLoopBackOff")
    );
    assert_eq!(condition_of(&status, "Initialized").unwrap()[0], "True");
}

#[test]
fn pod_with_init_containers_may_be_pending_again_in_a_new_sandbox() {
    let mut scene = Scene::new("Always", &["init:i", "c"]);
    scene.sandbox(&["10.0.0.5"]).exits("i", 0).runs("c").report();
    assert_eq!(phase(scene.reported()), "Running");
    scene.sandbox_dies().report().forgets("i").sandbox(&["10.0.0.6"]).runs("i").report();
    assert_eq!(phase(scene.reported()), "Pending");
}

#[test]
fn container_removed_externally_has_exit_code_137() {
    let mut scene = Scene::new("Always", &["c"]);
    let status = scene.sandbox(&["10.0.0.5"]).runs("c").report().forgets("c").status();
    assert_eq!(last_state(&status, "c"), "terminated 137 ContainerStatusUnknown");
    assert_eq!(container(&status, "c").restart_count, 1);
}

#[test]
fn pod_succeeded_in_the_api_is_killed_and_stays_succeeded() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    scene.edit(|o| o["status"] = json!({ "phase": "Succeeded" }));
    scene.lifecycle.request(Request::Update, &scene.pod);
    assert_eq!(scene.lifecycle.stage(), Stage::Terminating);
    assert!(matches!(scene.plan().steps[..], [Step::KillPod(_)]));
    assert_eq!(phase(scene.report().reported()), "Succeeded");
    scene.exits("c", 137).stopped().report();
    assert_eq!(phase(&send(&mut scene, false)), "Succeeded");
}

#[test]
fn finished_container_of_a_never_restarting_pod_cannot_run_again() {
    let mut scene = Scene::new("Never", &["c", "d"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 0).runs("d").report();
    let before = scene.entry.clone();
    scene.runs("c");
    let refused = scene.accept(ReportTrigger::Sync, scene.status());
    let Acceptance::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.container, "c");
    assert_eq!(scene.entry, before);
}

#[test]
fn satisfied_readiness_gate_makes_the_pod_ready() {
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["spec"]["readinessGates"] = json!([{ "conditionType": "example.com/ok" }]);
    });
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    send(&mut scene, true);
    assert_eq!(condition_of(scene.reported(), "Ready").unwrap()[1], "ReadinessGatesNotReady");
    scene.edit(|o| {
        let conditions = o["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({ "type": "example.com/ok", "status": "True" }));
    });
    assert!(ready_is_stale(&scene.pod));
    scene.report();
    assert_eq!(condition_of(&send(&mut scene, true), "Ready"), Some(["True", "", ""]));
}

#[test]
fn recreated_pod_does_not_get_the_old_report() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    let body = patch(&PodStatus::default(), scene.reported(), "u1").unwrap();
    assert_eq!(body["metadata"]["uid"], "u1", "the server refuses it for another object");
}

#[test]
fn foreign_edit_of_the_status_is_repaired_and_foreign_conditions_are_kept() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    let shown = send(&mut scene, true);
    let entry = scene.entry.clone().unwrap();
    assert!(!needs_reconcile(&scene.pod, &shown, &entry, &Dropped::default()));
    scene.edit(|o| {
        o["status"]["phase"] = "Pending".into();
        o["status"]["podIP"] = "6.6.6.6".into();
        o["status"]["containerStatuses"][0]["restartCount"] = 77.into();
        let conditions = o["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "Ready");
        conditions.push(json!({ "type": "example.com/ok", "status": "True" }));
    });
    let edited = scene.pod.object.status.clone().unwrap();
    assert!(needs_reconcile(&scene.pod, &edited, &entry, &Dropped::default()));
    let repaired = send(&mut scene, true);
    assert!(!needs_reconcile(&scene.pod, &repaired, &entry, &Dropped::default()));
    assert_eq!(condition_of(&repaired, "example.com/ok"), Some(["True", "", ""]));
    assert_eq!(repaired.pod_ip.as_deref(), Some("10.0.0.5"));
}

#[test]
fn unchanged_status_sends_no_request() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    let shown = send(&mut scene, true);
    scene.wait(10).report();
    let merged = merge(&scene.pod.object, scene.reported(), true, scene.now.wall);
    assert_eq!(patch(&shown, &merged, "u1"), None);
}

#[test]
fn long_termination_message_is_cut_to_the_containers_share() {
    let mut scene = Scene::new("Never", &["init:i", "c", "d"]);
    scene.sandbox(&["10.0.0.5"]).exits("i", 0).exits("c", 1).runs("d");
    if let crate::observed::State::Exited(exit) = &mut scene.newest("c").state {
        exit.message = "x".repeat(10 * 1024);
    }
    let status = scene.report().reported();
    let end = container(status, "c").state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.message.as_ref().unwrap().len(), 4096);
}

#[test]
fn restart_rule_keeps_the_pod_running_only_for_its_exit_code() {
    for (code, want) in [(42, "Running"), (1, "Failed")] {
        let mut scene = Scene::edited("Never", &["c"], |o| {
            o["spec"]["containers"][0]["restartPolicy"] = "Never".into();
            o["spec"]["containers"][0]["restartPolicyRules"] =
                json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
        });
        scene.sandbox(&["10.0.0.5"]).runs("c").report().exits("c", code).report();
        assert_eq!(phase(scene.reported()), want, "exit {code}");
        if code == 42 {
            scene.runs("c").report();
            assert_eq!(container(scene.reported(), "c").restart_count, 1);
        }
    }
}

#[test]
fn pod_past_its_deadline_has_failed_once_stopped() {
    let mut scene =
        Scene::edited("Always", &["c"], |o| o["spec"]["activeDeadlineSeconds"] = 60.into());
    scene.local_state.active = Some(Stopwatch::running_since(scene.now.wall, scene.now));
    scene.sandbox(&["10.0.0.5"]).runs("c").wait(59).report();
    assert_eq!(phase(&send(&mut scene, true)), "Running");
    scene.wait(1).report();
    let message = "Pod was active on the node longer than the specified deadline";
    let exceeded = ["Failed", "DeadlineExceeded", message];
    assert_eq!(outcome(scene.reported()), exceeded);
    scene.lifecycle.complete();
    let stopping = send(&mut scene, true);
    assert_eq!(phase(&stopping), "Running");
    assert_eq!(condition_of(&stopping, "Ready"), Some(["False", "PodFailed", ""]));
    scene.exits("c", 0).stopped().report();
    scene.lifecycle.stopped();
    assert_eq!(outcome(scene.report().reported()), exceeded, "though it exited with zero");
    assert_eq!(outcome(&send(&mut scene, false)), exceeded);
}
