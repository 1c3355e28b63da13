use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;

use super::scene::{Scene, condition_of, container, object, pod, t};
use crate::lifecycle::Request;
use crate::pod::{Pod, Source};
use crate::status::conditions::{ALL_RESTARTING, condition};
use crate::status::delay::Urgency;
use crate::status::dropped::Dropped;
use crate::status::manager::{
    Acceptance, CachedStatus, PodLeftovers, ReportTrigger, StatusUpdate, accept, can_be_deleted,
    changes_ready, needs_reconcile, needs_update, resources_are_reclaimed, set_container_readiness,
    set_container_startup, set_sandbox_ready, urgency,
};
use crate::status::normal::{equal, normalise};

fn status(value: serde_json::Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn accepted(acceptance: Acceptance) -> (CachedStatus, Vec<String>) {
    match acceptance {
        Acceptance::Accepted { entry, left_out } => (entry, left_out),
        other => panic!("{other:?}"),
    }
}

#[test]
fn report_gets_a_version_and_an_unchanged_one_is_dropped() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.report();
    assert_eq!(scene.entry.as_ref().unwrap().version, 1);
    assert_eq!(scene.accept(ReportTrigger::Sync, scene.status()), Acceptance::Unchanged);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    assert_eq!(scene.entry.as_ref().unwrap().version, 2);
}

#[test]
fn unchanged_report_is_accepted_once_after_a_deletion_request_and_at_the_end() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report().delete();
    let unchanged = scene.reported().clone();
    let (deleting, _) = accepted(scene.accept(ReportTrigger::Sync, unchanged.clone()));
    assert_eq!((deleting.version, deleting.deleting), (2, true));
    scene.entry = Some(deleting);
    assert_eq!(scene.accept(ReportTrigger::Sync, unchanged), Acceptance::Unchanged);
    let probe = scene.accept(ReportTrigger::Probe, scene.reported().clone());
    assert_eq!(probe, Acceptance::Unchanged);
    let (end, _) = accepted(scene.accept(ReportTrigger::End, scene.reported().clone()));
    assert_eq!((end.version, end.finished), (3, true));
    scene.entry = Some(end);
    assert_eq!(scene.accept(ReportTrigger::Sync, scene.reported().clone()), Acceptance::Unchanged);
    let mut changed = scene.reported().clone();
    changed.reason = Some("Other".into());
    let (later, _) = accepted(scene.accept(ReportTrigger::Sync, changed));
    assert!(later.finished, "finished is final");
}

#[test]
fn changed_at_is_the_first_unsent_change() {
    let mut scene = Scene::new("Always", &["c"]);
    let first = scene.now.mono;
    scene.report().wait(5).sandbox(&["10.0.0.5"]).runs("c").report();
    assert_eq!(scene.entry.as_ref().unwrap().changed_at, Some(first));
    assert_eq!(scene.entry.as_mut().unwrap().note_sent(1), None, "version 2 is pending");
    assert_eq!(scene.entry.as_mut().unwrap().note_sent(2), Some(first));
    scene.wait(5).exits("c", 1).report();
    assert_eq!(scene.entry.as_ref().unwrap().changed_at, Some(scene.now.mono));
}

#[test]
fn transition_time_is_the_last_change_of_status() {
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
fn start_time_is_that_of_the_first_report() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.report().wait(60).sandbox(&["10.0.0.5"]).runs("c").report();
    assert_eq!(scene.reported().start_time.as_ref().unwrap().0, t(0));
    let mut forged = scene.status();
    forged.start_time = None;
    forged.reason = Some("Other".into());
    let (entry, _) = accepted(scene.accept(ReportTrigger::Sync, forged));
    assert_eq!(entry.status.start_time.as_ref().unwrap().0, t(0));
}

#[test]
fn observed_generation_never_decreases() {
    let mut scene = Scene::edited("Always", &["c"], |o| o["metadata"]["generation"] = 5.into());
    scene.report().edit(|o| o["metadata"]["generation"] = 4.into());
    scene.sandbox(&["10.0.0.5"]).report();
    assert_eq!(scene.reported().observed_generation, Some(5));
}

#[test]
fn first_report_of_a_static_pod_builds_on_its_mirror() {
    let object = serde_json::from_value(object("Always", &["c"])).unwrap();
    let pod = Pod::parse(object, Source::File).unwrap();
    let mirror = status(json!({ "startTime": "2023-11-14T00:00:00Z" }));
    let scene = Scene::of(pod);
    let (pod, now) = (&scene.pod, scene.now);
    let update = StatusUpdate {
        pod,
        cached: None,
        mirror: Some(&mirror),
        occasion: ReportTrigger::Sync,
        now,
    };
    let (entry, _) = accepted(accept(&update, scene.status()));
    assert_eq!(entry.status.start_time, mirror.start_time);
}

#[test]
fn report_continues_a_mirror_pod_that_is_delivered_after_it_once() {
    let object = serde_json::from_value(object("Always", &["c"])).unwrap();
    let mut scene = Scene::of(Pod::parse(object, Source::File).unwrap());
    scene.sandbox(&["10.0.0.5"]).runs("c");
    let (own, _) = accepted(scene.accept(ReportTrigger::Sync, scene.status()));
    let mut entry = own.clone();
    let earlier = |day: u32| {
        let time = format!("2023-11-{day:02}T00:00:00Z");
        let condition = |type_: &str, status: &str| json!({ "type": type_, "status": status, "lastTransitionTime": time });
        let conditions = [condition("Ready", "True"), condition("PodScheduled", "False")];
        status(json!({ "startTime": time, "conditions": conditions }))
    };
    let since = |entry: &CachedStatus, type_: &str| {
        condition(&entry.status, type_).unwrap().last_transition_time.clone()
    };
    let mirror = earlier(2);
    entry.continue_mirror(&mirror);
    assert_eq!(entry.status.start_time, mirror.start_time);
    assert_eq!(since(&entry, "Ready"), mirror.start_time);
    for other in ["PodScheduled", "Initialized"] {
        assert_eq!(since(&entry, other), since(&own, other), "{other}");
    }
    assert_eq!(entry.version, own.version);
    let continued = entry.clone();
    entry.continue_mirror(&earlier(1));
    assert_eq!(entry, continued);
}

#[test]
fn foreign_condition_is_left_out_unless_carried_over_unchanged() {
    let theirs = json!({ "type": "example.com/ok", "status": "True" });
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["status"] = json!({ "conditions": [theirs] });
    });
    scene.sandbox(&["10.0.0.5"]).runs("c");
    let (entry, left_out) = accepted(scene.accept(ReportTrigger::Sync, scene.status()));
    assert_eq!(left_out, Vec::<String>::new());
    assert!(condition_of(&entry.status, "example.com/ok").is_some());

    let mut wrong = scene.status();
    for condition in wrong.conditions.iter_mut().flatten() {
        if condition.type_ == "example.com/ok" {
            condition.status = "False".into();
        }
    }
    let (entry, left_out) = accepted(scene.accept(ReportTrigger::Sync, wrong));
    assert_eq!(left_out, ["example.com/ok"]);
    assert_eq!(condition_of(&entry.status, "example.com/ok"), None);
    assert!(condition_of(&entry.status, "Ready").is_some(), "the rest is kept");
}

#[test]
fn terminated_containers_run_again_only_if_the_policy_allows() {
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
        let (entry, _) = accepted(scene.accept(ReportTrigger::Sync, end));
        let update = StatusUpdate {
            pod: &scene.pod,
            cached: Some(&entry),
            mirror: None,
            occasion: ReportTrigger::Sync,
            now: scene.now,
        };
        let again = accept(&update, shown(json!({ "running": {} })));
        assert_eq!(matches!(again, Acceptance::Refused(_)), refused, "{case}");
    }
}

#[test]
fn readiness_verdict_changes_the_container_and_both_conditions() {
    let mut scene = Scene::new("Always", &["sidecar:s", "c"]);
    scene.sandbox(&["10.0.0.5"]).runs("s").runs("c").report();
    let reported = scene.reported();
    let set = |id: &str, ready| set_container_readiness(&scene.pod, reported, id, ready);
    assert_eq!(set("containerd://c-0", true), None, "unchanged");
    assert_eq!(set("containerd://c-9", false), None, "not a container of this status");
    for (id, name) in [("containerd://c-0", "c"), ("containerd://s-0", "s")] {
        let status = set(id, false).unwrap();
        assert!(!container(&status, name).ready);
        let message = format!("containers with unready status: [{name}]");
        let want = Some(["False", "ContainersNotReady", message.as_str()]);
        assert_eq!(condition_of(&status, "Ready"), want);
        assert_eq!(condition_of(&status, "ContainersReady"), want);
        assert!(changes_ready(reported, &status));
    }
}

#[test]
fn startup_verdict_changes_only_the_container() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    let reported = scene.reported();
    assert_eq!(set_container_startup(reported, "containerd://c-0", true), None);
    let status = set_container_startup(reported, "containerd://c-0", false).unwrap();
    assert_eq!(container(&status, "c").started, Some(false));
    assert!(!changes_ready(reported, &status));
}

#[test]
fn statuses_are_equal_if_own_fields_are() {
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
        (
            "status of a foreign condition",
            |s| s.conditions.as_mut().unwrap()[1].status = "False".into(),
            true,
        ),
        ("foreign condition removed", |s| drop(s.conditions.as_mut().unwrap().pop()), true),
        ("own status", |s| s.conditions.as_mut().unwrap()[0].status = "False".into(), false),
        ("own reason", |s| s.conditions.as_mut().unwrap()[0].reason = Some("X".into()), false),
        ("own condition removed", |s| drop(s.conditions.as_mut().unwrap().remove(0)), false),
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
fn status_read_back_from_the_server_equals_itself() {
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
fn empty_values_equal_missing_ones() {
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
fn message_is_not_cut_inside_a_character() {
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
fn unsent_version_needs_an_update() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.report();
    let entry = scene.entry.clone().unwrap();
    for (sent, want) in [(None, true), (Some(0), true), (Some(1), false), (Some(2), false)] {
        let owed = needs_update(&entry, sent, Some(&scene.pod.object), PodLeftovers::default());
        assert_eq!(owed, want, "{sent:?}");
    }
}

#[test]
fn object_can_be_deleted_when_its_pod_finished_without_leftovers() {
    let everything = |deleted: bool, mirror: bool, phase: &str, finished: bool, leftovers| {
        let mut scene = Scene::edited("Always", &["c"], |o| {
            o["status"] = json!({ "phase": phase });
            if mirror {
                o["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "x" });
            }
            if deleted {
                o["metadata"]["deletionTimestamp"] = "2023-11-14T00:00:00Z".into();
            }
        });
        scene.lifecycle.request(Request::Update, &scene.pod);
        scene.report();
        let mut entry = scene.entry.clone().unwrap();
        entry.finished = finished;
        let may_go = can_be_deleted(&scene.pod.object, &entry, leftovers);
        let owed = needs_update(&entry, Some(entry.version), Some(&scene.pod.object), leftovers);
        assert_eq!(owed, may_go);
        may_go
    };
    let none = PodLeftovers::default();
    assert!(everything(true, false, "Failed", true, none));
    assert!(!everything(false, false, "Failed", true, none), "no deletion requested");
    assert!(!everything(true, true, "Failed", true, none), "it is a mirror pod");
    assert!(!everything(true, false, "Running", true, none), "no terminal phase in the API");
    assert!(!everything(true, false, "Failed", false, none), "it is not finished");
    for leftovers in [
        PodLeftovers { containers: true, ..none },
        PodLeftovers { volumes: true, ..none },
        PodLeftovers { cgroup: true, ..none },
    ] {
        assert!(!everything(true, false, "Failed", true, leftovers), "{leftovers:?}");
    }
}

#[test]
fn status_with_a_running_container_has_not_reclaimed_its_resources() {
    let mut scene = Scene::new("Always", &["c"]);
    let running = scene.sandbox(&["10.0.0.5"]).runs("c").status();
    assert!(!resources_are_reclaimed(&running, PodLeftovers::default()));
    assert!(resources_are_reclaimed(&scene.exits("c", 0).status(), PodLeftovers::default()));
}

#[test]
fn field_dropped_by_the_server_is_no_difference_until_it_is_kept() {
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
    assert!(needs_reconcile(&scene.pod, &edited, &entry, &dropped), "a real edit is detected");

    dropped.learn(&patch, &entry.status);
    assert_eq!(dropped, Dropped::default(), "the server was upgraded");
}

#[test]
fn dropped_empty_object_is_not_recorded() {
    let mut dropped = Dropped::default();
    let sent = json!({ "status": { "resources": {}, "reason": null, "podIPs": [] } });
    dropped.learn(&sent, &PodStatus::default());
    assert!(dropped.is_empty());
}

#[test]
fn urgent_changes_are_sent_without_delay() {
    let ready =
        |condition_of: &str| json!({ "conditions": [{ "type": "Ready", "status": condition_of }] });
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
    let restarting = |condition_of: &str| json!({ "conditions": [{ "type": ALL_RESTARTING, "status": condition_of }] });
    let waits = |reason: &str| {
        json!({ "containerStatuses": [{
            "name": "app", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": reason } },
        }] })
    };
    for (old, new, want) in [
        (json!({ "podIP": "10.0.0.1" }), json!({ "podIP": "10.0.0.2" }), false),
        (restarting("False"), restarting("True"), true),
        (waits("ContainerCreating"), waits("PodInitializing"), false),
        (waits("ContainerCreating"), waits("ErrImagePull"), true),
        (waits("ErrImagePull"), waits("ImagePullBackOff"), false),
        (waits("CrashLoopBackOff"), waits("CreateContainerError"), true),
        (ready("False"), ready("True"), true),
        (json!({ "phase": "Pending" }), json!({ "phase": "Running" }), true),
        (json!({}), waiting.clone(), false),
        (waiting.clone(), pulling, false),
        (waiting, running.clone(), true),
        (running, ended, true),
    ] {
        let want = if want { Urgency::Urgent } else { Urgency::Minor };
        let case = format!("{old} to {new}");
        let (old, new) = (status(old), status(new));
        assert_eq!(urgency(Some(&old), &new, ReportTrigger::Sync), want, "{case}");
    }
    let over = status(json!({ "phase": "Failed" }));
    let pending = status(json!({ "phase": "Pending" }));
    for (case, old, new, trigger, want) in [
        ("a first report that is terminal", None, &over, ReportTrigger::Sync, Urgency::Urgent),
        ("a first report", None, &pending, ReportTrigger::Sync, Urgency::Minor),
        ("the deletion waits for it", Some(&over), &over, ReportTrigger::End, Urgency::Urgent),
    ] {
        assert_eq!(urgency(old, new, trigger), want, "{case}");
    }
}

#[test]
fn sandbox_ready_changes_only_its_condition_and_only_once() {
    let shown = |ready: &str| {
        status(json!({ "phase": "Pending", "conditions": [
            { "type": "PodReadyToStartContainers", "status": ready },
            { "type": "Initialized", "status": "False" },
        ] }))
    };
    assert_eq!(set_sandbox_ready(&shown("False")), Some(shown("True")));
    assert_eq!(set_sandbox_ready(&shown("True")), None);
    let mut failing = shown("False");
    let condition = &mut failing.conditions.as_mut().unwrap()[0];
    (condition.reason, condition.message) = (Some("NoSandbox".into()), Some("why".into()));
    assert_eq!(set_sandbox_ready(&failing), Some(shown("True")), "without the reason it was not");
    assert_eq!(set_sandbox_ready(&status(json!({ "phase": "Pending" }))), None);
}
