//! Rows of the behaviour reference's table "what a test should show", as far as they concern the
//! status. Each test is named after its row.

use k8s_openapi::api::core::v1::{Pod as ApiPod, PodStatus};
use serde_json::json;

use super::patch::apply;
use super::scene::{Scene, answer, container, last_state, outcome, phase, state};
use crate::lifecycle::{Request, Stage};
use crate::plan::Step;
use crate::status::conditions::ready_is_stale;
use crate::status::dropped::Dropped;
use crate::status::ending::terminate_pod;
use crate::status::manager::{
    Acceptance, Occasion, Remains, can_be_deleted, is_same_object, needs_reconcile,
};
use crate::status::merge::merge;
use crate::status::patch::patch;
use crate::status::rejected;
use crate::time::Stopwatch;

/// Sends the last report to the API, as the status manager does; returns what the API then shows.
fn send(scene: &mut Scene, may_run: bool) -> PodStatus {
    let api: &ApiPod = &scene.pod.object;
    let shown = api.status.clone().unwrap_or_default();
    let merged = merge(api, scene.reported(), may_run, scene.now.wall);
    let result = patch(&shown, &merged, "u1").map_or(shown.clone(), |p| apply(&p, &shown));
    let value = serde_json::to_value(&result).unwrap();
    scene.edit(|o| o["status"] = value);
    result
}

/// The teardown is done: the last report, and what the API shows after it.
fn finish(scene: &mut Scene) -> PodStatus {
    let last = scene.entry.as_ref().map(|entry| (*entry.status).clone());
    let last = last.or_else(|| scene.pod.object.status.clone()).unwrap_or_default();
    let end = terminate_pod(&scene.pod, &last);
    let Acceptance::Accepted { entry, .. } = scene.accept(Occasion::End, end) else { panic!() };
    scene.entry = Some(entry);
    send(scene, false)
}

fn may_go(scene: &Scene) -> bool {
    can_be_deleted(&scene.pod.object, scene.entry.as_ref().unwrap(), Remains::default())
}

#[test]
fn row_23_a_rejected_pod_is_failed_and_removed_once_deleted() {
    let mut scene = Scene::new("Always", &["c"]);
    let refusal = rejected(&scene.pod, "OutOfmemory", "Node didn't have enough resource");
    let Acceptance::Accepted { entry, .. } = scene.accept(Occasion::Sync, refusal) else {
        panic!()
    };
    scene.entry = Some(entry);
    let shown = send(&mut scene, false);
    let message = "Pod was rejected: Node didn't have enough resource";
    assert_eq!(outcome(&shown), ["Failed", "OutOfmemory", message]);
    assert_eq!(shown.qos_class.as_deref(), Some("BestEffort"));
    assert!(shown.start_time.is_some() && shown.conditions.is_none());
    scene.delete();
    assert!(!may_go(&scene), "its end is not certain yet");
    assert_eq!(outcome(&finish(&mut scene)), ["Failed", "OutOfmemory", message]);
    assert!(may_go(&scene));
}

#[test]
fn row_24_a_deleted_pod_of_a_deployment_shows_how_it_ended() {
    for (code, want) in [(0, "Succeeded"), (137, "Failed")] {
        let mut scene = Scene::new("Always", &["c"]);
        scene.sandbox(&["10.0.0.5"]).runs("c").report();
        send(&mut scene, true);
        scene.delete().report();
        assert_eq!(phase(&send(&mut scene, true)), "Running", "exit {code}, still stopping");
        scene.exits("c", code).stopped().report();
        assert_eq!(phase(scene.reported()), want, "exit {code}");
        scene.life.stopped();
        assert_eq!(phase(&send(&mut scene, false)), want, "exit {code}");
        assert!(!may_go(&scene));
        finish(&mut scene);
        assert!(may_go(&scene));
    }
}

#[test]
fn row_25_a_pod_deleted_before_any_container_existed_has_failed() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.delete().report();
    assert_eq!(phase(scene.reported()), "Pending");
    scene.life.stopped();
    let shown = finish(&mut scene);
    assert_eq!(phase(&shown), "Failed");
    assert_eq!(state(&shown, "c"), "terminated 137 ContainerStatusUnknown");
    assert!(may_go(&scene));
}

#[test]
fn row_26_an_eviction_shows_when_the_containers_have_stopped_and_all_at_once() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    send(&mut scene, true);
    scene.evict("The node was low on resource: memory.").report();
    let stopping = send(&mut scene, true);
    assert_eq!(outcome(&stopping), ["Running", "", ""]);
    assert_eq!(answer(&stopping, "DisruptionTarget"), None);
    scene.exits("c", 0).stopped().report();
    scene.life.stopped();
    scene.report();
    let shown = send(&mut scene, false);
    assert_eq!(outcome(&shown), ["Failed", "Evicted", "The node was low on resource: memory."]);
    assert_eq!(answer(&shown, "Ready"), Some(["False", "PodFailed", ""]));
    assert_eq!(answer(&shown, "DisruptionTarget").unwrap()[..2], ["True", "TerminationByKubelet"]);
}

#[test]
fn row_27_a_crash_loop_beside_a_running_container_is_running() {
    let mut scene = Scene::new("Always", &["a", "b"]);
    let status = scene.sandbox(&["10.0.0.5"]).runs("a").crash_loops("b", 1).status();
    assert_eq!(phase(&status), "Running");
    assert_eq!(state(&status, "b"), "waiting CrashLoopBackOff");
    assert_eq!(last_state(&status, "b"), "terminated 1 Error");
}

#[test]
fn row_28_a_failed_init_container_fails_the_pod_or_is_tried_again() {
    for (policy, want) in [("Never", "Failed"), ("OnFailure", "Pending")] {
        let mut scene = Scene::new(policy, &["init:i", "c"]);
        let status = scene.sandbox(&["10.0.0.5"]).exits("i", 1).status();
        assert_eq!(phase(&status), want, "{policy}");
    }
}

#[test]
fn row_29_a_sidecar_that_restarts_leaves_the_pod_running_and_initialized() {
    let mut scene = Scene::new("Always", &["sidecar:s", "c"]);
    scene.sandbox(&["10.0.0.5"]).runs("s").runs("c").report().crash_loops("s", 1);
    let status = scene.status();
    assert_eq!(
        (phase(&status), state(&status, "s").as_str()),
        ("Running", "waiting CrashLoopBackOff")
    );
    assert_eq!(answer(&status, "Initialized").unwrap()[0], "True");
}

#[test]
fn row_30_a_pod_with_init_containers_may_be_pending_again_in_a_new_sandbox() {
    let mut scene = Scene::new("Always", &["init:i", "c"]);
    scene.sandbox(&["10.0.0.5"]).exits("i", 0).runs("c").report();
    assert_eq!(phase(scene.reported()), "Running");
    scene.sandbox_dies().report().forgets("i").sandbox(&["10.0.0.6"]).runs("i").report();
    assert_eq!(phase(scene.reported()), "Pending");
}

#[test]
fn row_31_a_container_removed_behind_our_back_ended_with_137() {
    let mut scene = Scene::new("Always", &["c"]);
    let status = scene.sandbox(&["10.0.0.5"]).runs("c").report().forgets("c").status();
    assert_eq!(last_state(&status, "c"), "terminated 137 ContainerStatusUnknown");
    assert_eq!(container(&status, "c").restart_count, 1);
}

#[test]
fn row_32_a_pod_the_api_calls_succeeded_is_killed_and_stays_so() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    scene.edit(|o| o["status"] = json!({ "phase": "Succeeded" }));
    scene.life.request(Request::Update, &scene.pod);
    assert_eq!(scene.life.stage(), Stage::Terminating);
    assert!(matches!(scene.plan().steps[..], [Step::KillPod(_)]));
    assert_eq!(phase(scene.report().reported()), "Succeeded");
    scene.exits("c", 137).stopped().report();
    assert_eq!(phase(&send(&mut scene, false)), "Succeeded");
}

#[test]
fn row_33_a_finished_container_of_a_pod_that_never_restarts_cannot_run_again() {
    let mut scene = Scene::new("Never", &["c", "d"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 0).runs("d").report();
    let before = scene.entry.clone();
    scene.runs("c");
    let refused = scene.accept(Occasion::Sync, scene.status());
    let Acceptance::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.container, "c");
    assert_eq!(scene.entry, before);
}

#[test]
fn row_34_a_gate_that_opens_makes_the_pod_ready() {
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["spec"]["readinessGates"] = json!([{ "conditionType": "example.com/ok" }]);
    });
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    send(&mut scene, true);
    assert_eq!(answer(scene.reported(), "Ready").unwrap()[1], "ReadinessGatesNotReady");
    scene.edit(|o| {
        let conditions = o["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({ "type": "example.com/ok", "status": "True" }));
    });
    assert!(ready_is_stale(&scene.pod));
    scene.report();
    assert_eq!(answer(&send(&mut scene, true), "Ready"), Some(["True", "", ""]));
}

#[test]
fn row_35_a_pod_made_anew_under_the_same_name_gets_nothing_of_the_old_report() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    let body = patch(&PodStatus::default(), scene.reported(), "u1").unwrap();
    assert_eq!(body["metadata"]["uid"], "u1", "the server refuses it for another object");
    let mut anew = (*scene.pod.object).clone();
    assert!(is_same_object(&anew, "u1"));
    anew.metadata.uid = Some("u2".into());
    assert!(!is_same_object(&anew, "u1"));
}

#[test]
fn row_36_a_foreign_edit_of_our_status_is_repaired_and_foreign_conditions_are_kept() {
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
    assert_eq!(answer(&repaired, "example.com/ok"), Some(["True", "", ""]));
    assert_eq!(repaired.pod_ip.as_deref(), Some("10.0.0.5"));
}

#[test]
fn row_37_no_difference_is_no_request() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    let shown = send(&mut scene, true);
    scene.wait(10).report();
    let merged = merge(&scene.pod.object, scene.reported(), true, scene.now.wall);
    assert_eq!(patch(&shown, &merged, "u1"), None);
}

#[test]
fn row_38_a_long_message_is_cut_to_the_containers_share() {
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
fn row_46_a_restart_rule_keeps_the_pod_running_for_its_code_only() {
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
fn row_47_a_pod_past_its_deadline_has_failed_once_it_stopped() {
    let mut scene =
        Scene::edited("Always", &["c"], |o| o["spec"]["activeDeadlineSeconds"] = 60.into());
    scene.surroundings.active = Some(Stopwatch::running_since(scene.now.wall, scene.now));
    scene.sandbox(&["10.0.0.5"]).runs("c").wait(59).report();
    assert_eq!(phase(&send(&mut scene, true)), "Running");
    scene.wait(1).report();
    let message = "Pod was active on the node longer than the specified deadline";
    let exceeded = ["Failed", "DeadlineExceeded", message];
    assert_eq!(outcome(scene.reported()), exceeded);
    scene.life.complete();
    let stopping = send(&mut scene, true);
    assert_eq!(phase(&stopping), "Running");
    assert_eq!(answer(&stopping, "Ready"), Some(["False", "PodFailed", ""]));
    scene.exits("c", 0).stopped().report();
    scene.life.stopped();
    assert_eq!(outcome(scene.report().reported()), exceeded, "though it exited with zero");
    assert_eq!(outcome(&send(&mut scene, false)), exceeded);
}
