use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;

use super::scene::{Scene, answer, container, object, pod, t};
use crate::lifecycle::Request;
use crate::pod::{Pod, Source};
use crate::status::conditions::condition;
use crate::status::dropped::Dropped;
use crate::status::manager::{
    Acceptance, Entry, Occasion, Remains, Update, accept, can_be_deleted, changes_ready, is_urgent,
    needs_reconcile, needs_update, resources_are_reclaimed, set_container_readiness,
    set_container_startup,
};
use crate::status::normal::{equal, normalise};

fn status(value: serde_json::Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn accepted(acceptance: Acceptance) -> (Entry, Vec<String>) {
    match acceptance {
        Acceptance::Accepted { entry, left_out } => (entry, left_out),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_report_is_numbered_and_the_same_again_is_dropped() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.report();
    assert_eq!(scene.entry.as_ref().unwrap().version, 1);
    assert_eq!(scene.accept(Occasion::Sync, scene.status()), Acceptance::Unchanged);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    assert_eq!(scene.entry.as_ref().unwrap().version, 2);
}

#[test]
fn a_pod_being_deleted_and_a_pod_at_its_end_are_heard_even_if_nothing_is_new() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report().delete().report();
    let again = scene.accept(Occasion::Sync, scene.status());
    assert_eq!(accepted(again).0.version, 3);
    let probe = scene.accept(Occasion::Probe, scene.reported().clone());
    assert_eq!(probe, Acceptance::Unchanged);
    let (end, _) = accepted(scene.accept(Occasion::End, scene.reported().clone()));
    assert_eq!((end.version, end.finished), (3, true));
    scene.entry = Some(end);
    let (later, _) = accepted(scene.accept(Occasion::Sync, scene.reported().clone()));
    assert!(later.finished, "there is no way back from the end");
}

#[test]
fn the_clock_of_a_change_runs_from_the_first_that_was_not_sent() {
    let mut scene = Scene::new("Always", &["c"]);
    let first = scene.now.mono;
    scene.report().wait(5).sandbox(&["10.0.0.5"]).runs("c").report();
    assert_eq!(scene.entry.as_ref().unwrap().changed_at, Some(first));
    assert_eq!(scene.entry.as_mut().unwrap().note_sent(1), None, "version 2 waits");
    assert_eq!(scene.entry.as_mut().unwrap().note_sent(2), Some(first));
    scene.wait(5).exits("c", 1).report();
    assert_eq!(scene.entry.as_ref().unwrap().changed_at, Some(scene.now.mono));
}

#[test]
fn a_condition_dates_from_its_last_change_of_status() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.report().wait(10);
    let since = |scene: &Scene, type_: &str| {
        condition(scene.reported(), type_).unwrap().last_transition_time.clone().unwrap().0
    };
    scene.sandbox(&["10.0.0.5"]).report();
    assert_eq!(since(&scene, "Ready"), t(0));
    assert_eq!(since(&scene, "PodReadyToStartContainers"), t(10));
    scene.wait(10).runs("c").report();
    assert_eq!(since(&scene, "Ready"), t(20));
    assert_eq!(since(&scene, "PodScheduled"), t(0));
}

#[test]
fn the_start_time_is_that_of_the_first_report_and_stays() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.report().wait(60).sandbox(&["10.0.0.5"]).runs("c").report();
    assert_eq!(scene.reported().start_time.as_ref().unwrap().0, t(0));
    let mut forged = scene.status();
    forged.start_time = None;
    forged.reason = Some("Other".into());
    let (entry, _) = accepted(scene.accept(Occasion::Sync, forged));
    assert_eq!(entry.status.start_time.as_ref().unwrap().0, t(0));
}

#[test]
fn the_observed_generation_never_decreases() {
    let mut scene = Scene::edited("Always", &["c"], |o| o["metadata"]["generation"] = 5.into());
    scene.report().edit(|o| o["metadata"]["generation"] = 4.into());
    scene.sandbox(&["10.0.0.5"]).report();
    assert_eq!(scene.reported().observed_generation, Some(5));
}

#[test]
fn a_static_pods_first_report_builds_on_its_mirror() {
    let object = serde_json::from_value(object("Always", &["c"])).unwrap();
    let pod = Pod::parse(object, Source::File).unwrap();
    let mirror = status(json!({ "startTime": "2023-11-14T00:00:00Z" }));
    let scene = Scene::of(pod);
    let (pod, now) = (&scene.pod, scene.now);
    let update = Update { pod, cached: None, mirror: Some(&mirror), occasion: Occasion::Sync, now };
    let (entry, _) = accepted(accept(&update, scene.status()));
    assert_eq!(entry.status.start_time, mirror.start_time);
}

#[test]
fn a_condition_that_is_not_ours_is_reported_and_left_out_unless_it_is_only_carried() {
    let theirs = json!({ "type": "example.com/ok", "status": "True" });
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["status"] = json!({ "conditions": [theirs] });
    });
    scene.sandbox(&["10.0.0.5"]).runs("c");
    let (entry, left_out) = accepted(scene.accept(Occasion::Sync, scene.status()));
    assert_eq!(left_out, Vec::<String>::new());
    assert!(answer(&entry.status, "example.com/ok").is_some());

    let mut wrong = scene.status();
    for condition in wrong.conditions.iter_mut().flatten() {
        if condition.type_ == "example.com/ok" {
            condition.status = "False".into();
        }
    }
    let (entry, left_out) = accepted(scene.accept(Occasion::Sync, wrong));
    assert_eq!(left_out, ["example.com/ok"]);
    assert_eq!(answer(&entry.status, "example.com/ok"), None);
    assert!(answer(&entry.status, "Ready").is_some(), "the rest is kept");
}

#[test]
fn which_ended_containers_may_run_again() {
    let rule = json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
    let all = json!([
        { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } }
    ]);
    for (case, policy, kind, code, rules, refused) in [
        ("Always", "Always", "c", 0, None, false),
        ("OnFailure after a failure", "OnFailure", "c", 1, None, false),
        ("OnFailure after success", "OnFailure", "c", 0, None, true),
        ("Never", "Never", "c", 1, None, true),
        ("a rule that matches", "Never", "c", 42, Some(&rule), false),
        ("a rule that does not match", "Never", "c", 1, Some(&rule), true),
        ("any rule that restarts all", "Never", "c", 1, Some(&all), false),
        ("an init container, Never", "Never", "init:c", 1, None, true),
        ("an init container, OnFailure", "OnFailure", "init:c", 1, None, false),
        ("a sidecar", "Never", "sidecar:c", 0, None, false),
    ] {
        let scene = Scene::edited(policy, &[kind, "other"], |o| {
            if let Some(rules) = rules {
                o["spec"]["containers"][0]["restartPolicy"] = "Never".into();
                o["spec"]["containers"][0]["restartPolicyRules"] = rules.clone();
            }
        });
        let field = if kind == "c" { "containerStatuses" } else { "initContainerStatuses" };
        let shown = |state: serde_json::Value| {
            status(json!({ field: [{
                "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": state,
            }]}))
        };
        let end = shown(json!({ "terminated": { "exitCode": code } }));
        let (entry, _) = accepted(scene.accept(Occasion::Sync, end));
        let update = Update {
            pod: &scene.pod,
            cached: Some(&entry),
            mirror: None,
            occasion: Occasion::Sync,
            now: scene.now,
        };
        let again = accept(&update, shown(json!({ "running": {} })));
        assert_eq!(matches!(again, Acceptance::Refused(_)), refused, "{case}");
    }
}

#[test]
fn a_readiness_verdict_changes_the_container_and_both_conditions() {
    let mut scene = Scene::new("Always", &["sidecar:s", "c"]);
    scene.sandbox(&["10.0.0.5"]).runs("s").runs("c").report();
    let told = scene.reported();
    let set = |id: &str, ready| set_container_readiness(&scene.pod, told, id, ready);
    assert_eq!(set("containerd://c-0", true), None, "no news");
    assert_eq!(set("containerd://c-9", false), None, "not a container of this status");
    for (id, name) in [("containerd://c-0", "c"), ("containerd://s-0", "s")] {
        let status = set(id, false).unwrap();
        assert!(!container(&status, name).ready);
        let message = format!("containers with unready status: [{name}]");
        let want = Some(["False", "ContainersNotReady", message.as_str()]);
        assert_eq!(answer(&status, "Ready"), want);
        assert_eq!(answer(&status, "ContainersReady"), want);
        assert!(changes_ready(told, &status));
    }
}

#[test]
fn a_startup_verdict_changes_the_container_only() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    let told = scene.reported();
    assert_eq!(set_container_startup(told, "containerd://c-0", true), None);
    let status = set_container_startup(told, "containerd://c-0", false).unwrap();
    assert_eq!(container(&status, "c").started, Some(false));
    assert!(!changes_ready(told, &status));
}

#[test]
fn statuses_are_equal_if_they_answer_alike() {
    let base = || {
        status(json!({
            "phase": "Running",
            "conditions": [
                { "type": "Ready", "status": "True", "observedGeneration": 1,
                  "lastTransitionTime": "2023-11-14T00:00:00Z" },
                { "type": "example.com/ok", "status": "True" },
            ],
        }))
    };
    type Edit = fn(&mut PodStatus);
    let cases: [(&str, Edit, bool); 9] = [
        ("another date", |s| s.conditions.as_mut().unwrap()[0].last_transition_time = None, true),
        (
            "another generation",
            |s| s.conditions.as_mut().unwrap()[0].observed_generation = None,
            true,
        ),
        ("another order", |s| s.conditions.as_mut().unwrap().reverse(), true),
        ("another's answer", |s| s.conditions.as_mut().unwrap()[1].status = "False".into(), true),
        ("another's condition gone", |s| drop(s.conditions.as_mut().unwrap().pop()), true),
        ("our answer", |s| s.conditions.as_mut().unwrap()[0].status = "False".into(), false),
        ("our reason", |s| s.conditions.as_mut().unwrap()[0].reason = Some("X".into()), false),
        ("our condition gone", |s| drop(s.conditions.as_mut().unwrap().remove(0)), false),
        ("the phase", |s| s.phase = Some("Failed".into()), false),
    ];
    for (case, edit, want) in cases {
        let mut other = base();
        edit(&mut other);
        assert_eq!(equal(&base(), &other), want, "{case}");
        assert_eq!(equal(&other, &base()), want, "{case}, the other way round");
    }
}

#[test]
fn a_status_that_went_to_the_server_and_back_equals_itself() {
    let mut scene = Scene::edited("Always", &["init:i", "c"], |o| {
        o["spec"]["containers"][0]["resources"] =
            json!({ "requests": { "cpu": "0.5", "memory": "1024Ki" } });
    });
    scene.now.wall = "2023-11-14T12:00:00.987654321Z".parse().unwrap();
    scene.sandbox(&["10.0.0.5"]).exits("i", 0).runs("c").report();
    let sent = serde_json::to_value(scene.reported()).unwrap();
    let requests = &sent["containerStatuses"][0]["resources"]["requests"];
    assert_eq!(requests, &json!({ "cpu": "500m", "memory": "1Mi" }), "as the server spells it");
    let back: PodStatus = serde_json::from_value(sent).unwrap();
    let entry = scene.entry.as_ref().unwrap();
    assert!(!needs_reconcile(&scene.pod, &back, entry, &Dropped::default()));
}

#[test]
fn what_is_empty_is_not_there() {
    let pod = pod(object("Always", &["c"]), |_| {});
    let mut empty = status(json!({
        "phase": "Pending", "reason": "", "podIPs": [], "observedGeneration": 0, "conditions": [],
        "containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "containerID": "", "volumeMounts": [], "state": { "waiting": { "reason": "" } },
            "allocatedResources": {},
        }],
    }));
    normalise(&pod, &mut empty);
    assert_eq!(
        serde_json::to_value(&empty).unwrap(),
        json!({
            "phase": "Pending",
            "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "waiting": {} }, "lastState": {},
            }],
        })
    );
}

#[test]
fn a_message_is_not_cut_inside_a_character() {
    let pod = pod(object("Always", &["c"]), |_| {});
    let mut long = status(json!({ "containerStatuses": [{
        "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": 1, "message": "€".repeat(5000) } },
    }]}));
    normalise(&pod, &mut long);
    let end = container(&long, "c").state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.message.as_deref(), Some("€".repeat(4096).as_str()));
}

#[test]
fn the_api_server_is_owed_what_it_was_not_sent() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.report();
    let entry = scene.entry.clone().unwrap();
    for (sent, want) in [(None, true), (Some(0), true), (Some(1), false), (Some(2), false)] {
        let owed = needs_update(&entry, sent, Some(&scene.pod.object), Remains::default());
        assert_eq!(owed, want, "{sent:?}");
    }
}

#[test]
fn an_object_may_go_when_its_pod_is_over_and_nothing_of_it_is_left() {
    let everything = |deleted: bool, mirror: bool, phase: &str, finished: bool, remains| {
        let mut scene = Scene::edited("Always", &["c"], |o| {
            o["status"] = json!({ "phase": phase });
            if mirror {
                o["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "x" });
            }
            if deleted {
                o["metadata"]["deletionTimestamp"] = "2023-11-14T00:00:00Z".into();
            }
        });
        scene.life.request(Request::Update, &scene.pod);
        scene.report();
        let mut entry = scene.entry.clone().unwrap();
        entry.finished = finished;
        let may_go = can_be_deleted(&scene.pod.object, &entry, remains);
        let owed = needs_update(&entry, Some(entry.version), Some(&scene.pod.object), remains);
        assert_eq!(owed, may_go);
        may_go
    };
    let none = Remains::default();
    assert!(everything(true, false, "Failed", true, none));
    assert!(!everything(false, false, "Failed", true, none), "nobody asked for it");
    assert!(!everything(true, true, "Failed", true, none), "it is a mirror");
    assert!(!everything(true, false, "Running", true, none), "the API shows no end");
    assert!(!everything(true, false, "Failed", false, none), "it is not finished");
    for remains in [
        Remains { containers: true, ..none },
        Remains { volumes: true, ..none },
        Remains { cgroup: true, ..none },
    ] {
        assert!(!everything(true, false, "Failed", true, remains), "{remains:?}");
    }
}

#[test]
fn a_status_that_shows_a_running_container_has_not_reclaimed_its_resources() {
    let mut scene = Scene::new("Always", &["c"]);
    let running = scene.sandbox(&["10.0.0.5"]).runs("c").status();
    assert!(!resources_are_reclaimed(&running, Remains::default()));
    assert!(resources_are_reclaimed(&scene.exits("c", 0).status(), Remains::default()));
}

#[test]
fn what_an_old_server_drops_is_no_difference_until_it_learns_the_field() {
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": "1" } });
    });
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    let entry = scene.entry.clone().unwrap();
    let patch = crate::status::patch::patch(&PodStatus::default(), &entry.status, "u1").unwrap();
    // A server that knows neither of these fields.
    let mut kept = serde_json::to_value(&*entry.status).unwrap();
    for field in ["hostIPs", "resources", "allocatedResources", "observedGeneration"] {
        kept.as_object_mut().unwrap().remove(field);
    }
    let c = kept["containerStatuses"][0].as_object_mut().unwrap();
    c.remove("resources");
    c.remove("allocatedResources");
    let kept: PodStatus = serde_json::from_value(kept).unwrap();

    let mut dropped = Dropped::default();
    assert!(needs_reconcile(&scene.pod, &kept, &entry, &dropped));
    dropped.learn(&patch, &kept);
    assert!(!needs_reconcile(&scene.pod, &kept, &entry, &dropped));
    let worth = crate::status::patch::worth_sending(&kept, &entry.status, "u1", &dropped);
    assert_eq!(worth, None);

    let mut edited = kept.clone();
    edited.container_statuses.as_mut().unwrap()[0].ready = false;
    assert!(needs_reconcile(&scene.pod, &edited, &entry, &dropped), "a real edit still shows");

    dropped.learn(&patch, &entry.status);
    assert_eq!(dropped, Dropped::default(), "the server was upgraded");
}

#[test]
fn an_empty_object_that_the_server_leaves_out_teaches_nothing() {
    let mut dropped = Dropped::default();
    let sent = json!({ "status": { "resources": {}, "reason": null, "podIPs": [] } });
    dropped.learn(&sent, &PodStatus::default());
    assert!(dropped.is_empty());
}

#[test]
fn what_someone_acts_on_does_not_wait_for_more() {
    let ready = |answer: &str| json!({ "conditions": [{ "type": "Ready", "status": answer }] });
    let debugger = |state: serde_json::Value| {
        json!({ "ephemeralContainerStatuses": [{
            "name": "debugger", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": state,
        }] })
    };
    let waiting = debugger(json!({ "waiting": { "reason": "ContainerCreating" } }));
    let pulling = debugger(json!({ "waiting": { "reason": "ErrImagePull" } }));
    let running = debugger(json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } }));
    let ended = debugger(json!({ "terminated": { "exitCode": 0 } }));
    for (old, new, want) in [
        (json!({ "podIP": "10.0.0.1" }), json!({ "podIP": "10.0.0.2" }), false),
        (ready("False"), ready("True"), true),
        (json!({ "phase": "Pending" }), json!({ "phase": "Running" }), true),
        (json!({}), waiting.clone(), false),
        (waiting.clone(), pulling, false),
        (waiting, running.clone(), true),
        (running, ended, true),
    ] {
        let case = format!("{old} to {new}");
        let (old, new) = (status(old), status(new));
        assert_eq!(is_urgent(Some(&old), &new, Occasion::Sync), want, "{case}");
    }
    let over = status(json!({ "phase": "Failed" }));
    assert!(is_urgent(None, &over, Occasion::Sync), "a first report of an end");
    assert!(!is_urgent(None, &status(json!({ "phase": "Pending" })), Occasion::Sync));
    assert!(is_urgent(Some(&over), &over, Occasion::End), "its deletion waits for it");
}
