use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;

use super::scene::{Scene, container, last_state, phase, state, t};
use crate::attempts::StartError;
use crate::observed::{Resources, State, User};
use crate::plan::WaitReason;
use crate::pod::ProbeKind;
use crate::probe::Verdict;
use crate::resize::{Amounts, Applied, Progress, Resizing};

#[test]
fn a_container_that_was_never_tried_waits_for_its_turn() {
    let plain = Scene::new("Always", &["c"]).status();
    assert_eq!(state(&plain, "c"), "waiting ContainerCreating");
    let with_init = Scene::new("Always", &["init:i", "c"]).status();
    assert_eq!(state(&with_init, "c"), "waiting PodInitializing");
    assert_eq!(state(&with_init, "i"), "waiting PodInitializing");
    let c = container(&plain, "c");
    assert_eq!((c.image.as_str(), c.image_id.as_str()), ("busybox:latest", ""));
    assert_eq!(
        (&c.container_id, c.started, c.ready, &c.resources),
        (&None, Some(false), false, &None)
    );
}

#[test]
fn each_state_of_the_runtime_is_told_as_upstream_tells_it() {
    let exit = {
        let mut scene = Scene::new("Always", &["c"]);
        scene.exits("c", 3);
        scene.newest("c").state.clone()
    };
    for (case, seen, want) in [
        ("running", State::Running { started: t(0) }, "running"),
        ("created", State::Created, "waiting"),
        ("exited", exit, "terminated 3 Error"),
        ("unknown, never seen to run", State::Unknown, "waiting"),
    ] {
        let mut scene = Scene::new("Always", &["c"]);
        let status = scene.sandbox(&["10.0.0.5"]).instance("c", seen).status();
        assert_eq!(state(&status, "c"), want, "{case}");
        let c = container(&status, "c");
        assert_eq!(c.container_id.as_deref(), Some("containerd://c-0"), "{case}");
        assert_eq!(c.image_id, "sha256:1f2e", "{case}");
    }
}

#[test]
fn the_newest_instance_is_the_state_and_the_one_before_is_the_last_state() {
    let mut scene = Scene::new("Always", &["c"]);
    let status = scene.sandbox(&["10.0.0.5"]).exits("c", 1).exits("c", 2).runs("c").status();
    assert_eq!((state(&status, "c"), last_state(&status, "c")).0, "running");
    assert_eq!(last_state(&status, "c"), "terminated 2 Error");
    assert_eq!(container(&status, "c").restart_count, 2);
}

#[test]
fn history_that_the_runtime_forgot_is_kept_from_the_last_report() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 7).report();
    let newest = scene.newest("c").clone();
    scene.runs("c");
    scene.observed.instances.retain(|instance| instance.id != newest.id);
    let status = scene.status();
    assert_eq!(
        (state(&status, "c").as_str(), last_state(&status, "c").as_str()),
        ("running", "terminated 7 Error")
    );
    scene.report().wait(5);
    let again = scene.status();
    assert_eq!(last_state(&again, "c"), "terminated 7 Error");
    assert_eq!(container(&again, "c").restart_count, 1);
}

#[test]
fn message_that_was_reported_stays_when_its_file_is_gone() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 3);
    let set_message = |scene: &mut Scene, message: &str| {
        if let State::Exited(exit) = &mut scene.newest("c").state {
            exit.message = message.to_owned();
        }
    };
    let message = |status: &PodStatus, last: bool| {
        let c = container(status, "c");
        let state = if last { &c.last_state } else { &c.state };
        state.as_ref().unwrap().terminated.as_ref().unwrap().message.clone()
    };
    set_message(&mut scene, "disk full");
    scene.report();
    set_message(&mut scene, "");
    assert_eq!(message(&scene.status(), false).as_deref(), Some("disk full"));
    // also when it is the end before the last one, and a message that is there counts
    scene.report().runs("c").report();
    assert_eq!(message(scene.reported(), true).as_deref(), Some("disk full"));
    scene.exits("c", 4);
    assert_eq!(message(&scene.status(), false), None, "that of another instance is not its own");
    set_message(&mut scene, "gave up");
    assert_eq!(message(&scene.status(), false).as_deref(), Some("gave up"));
}

#[test]
fn an_end_that_was_reported_stays_when_the_runtime_forgets_it() {
    let mut scene = Scene::new("Never", &["c", "d"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 5).runs("d").report();
    let before = container(scene.reported(), "c").clone();
    let status = scene.forgets("c").status();
    assert_eq!(container(&status, "c"), &before);
}

#[test]
fn a_running_container_that_vanished_ended_with_137_and_counts_as_restarted() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 1).runs("c").report().forgets("c").report();
    let status = scene.reported();
    assert_eq!(state(status, "c"), "waiting ContainerCreating");
    assert_eq!(last_state(status, "c"), "terminated 137 ContainerStatusUnknown");
    assert_eq!((container(status, "c").restart_count, phase(status)), (2, "Running"));
    scene.report();
    assert_eq!(container(scene.reported(), "c").restart_count, 2, "it is counted once");
}

#[test]
fn a_container_that_vanished_while_its_pod_ends_was_not_restarted() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report().delete().forgets("c");
    let status = scene.status();
    assert_eq!(last_state(&status, "c"), "terminated 137 ContainerStatusUnknown");
    assert_eq!(container(&status, "c").restart_count, 0);
}

#[test]
fn a_running_container_whose_state_is_lost_counts_as_ended_once() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    scene.newest("c").state = State::Unknown;
    scene.report().report();
    assert_eq!(state(scene.reported(), "c"), "terminated 137 ContainerStatusUnknown");
    assert_eq!(container(scene.reported(), "c").restart_count, 1);
    scene.runs("c").report();
    let status = scene.reported();
    assert_eq!((state(status, "c").as_str(), container(status, "c").restart_count), ("running", 1));
    assert_eq!(last_state(status, "c"), "terminated 137 ContainerStatusUnknown");
}

#[test]
fn restart_counts_never_go_back() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.edit(|o| {
        o["status"] = json!({ "containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 41,
            "state": { "waiting": {} }, "lastState": {},
        }]});
    });
    assert_eq!(container(&scene.status(), "c").restart_count, 41);
    scene.sandbox(&["10.0.0.5"]).runs("c");
    assert_eq!(container(&scene.status(), "c").restart_count, 41);
}

#[test]
fn an_instance_numbered_from_zero_after_an_end_is_one_restart_more() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 1).exits("c", 1).report().forgets("c").runs("c");
    let status = scene.report().reported();
    assert_eq!(container(status, "c").restart_count, 2);
    scene.report();
    assert_eq!(container(scene.reported(), "c").restart_count, 2, "it is counted once");
}

#[test]
fn a_plain_init_container_that_vanished_behind_a_regular_one_completed() {
    let mut scene = Scene::new("Always", &["init:i", "sidecar:s", "c"]);
    let status = scene.sandbox(&["10.0.0.5"]).runs("c").status();
    assert_eq!(state(&status, "i"), "terminated 0 Completed");
    assert!(container(&status, "i").ready);
    assert_eq!(state(&status, "s"), "waiting PodInitializing", "a sidecar will be started");
}

#[test]
fn a_container_that_cannot_start_waits_with_the_error() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]);
    scene.fails_to_start("c", StartError::CreateContainerConfigError, "secret \"s\" not found");
    let status = scene.status();
    assert_eq!(state(&status, "c"), "waiting CreateContainerConfigError");
    let waiting = container(&status, "c").state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.message.as_deref(), Some("secret \"s\" not found"));
    assert_eq!(last_state(&status, "c"), "nothing");
}

#[test]
fn a_crash_loop_moves_the_end_into_the_last_state_unless_the_pod_ends() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).crash_loops("c", 1).report();
    let status = scene.reported();
    assert_eq!(state(status, "c"), "waiting CrashLoopBackOff");
    assert_eq!(last_state(status, "c"), "terminated 1 Error");
    assert_eq!(phase(status), "Running");
    let ending = scene.delete().status();
    assert_eq!(state(&ending, "c"), "terminated 1 Error");
    assert_eq!(last_state(&ending, "c"), "nothing", "there was no instance before it");
}

#[test]
fn a_running_container_does_not_wait_whatever_the_plan_says_of_its_successor() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c");
    let mut plan = scene.plan();
    let why = crate::plan::Waiting {
        reason: WaitReason::NotStarted(StartError::CrashLoopBackOff),
        message: String::new(),
    };
    plan.waiting.insert("c".into(), why);
    assert_eq!(state(&scene.status_with(&plan), "c"), "running");
}

#[test]
fn all_containers_starting_over_are_removed_and_counted() {
    let mut scene = Scene::edited("Never", &["a", "b"], |o| {
        o["spec"]["containers"][0]["restartPolicy"] = "Never".into();
        o["spec"]["containers"][0]["restartPolicyRules"] = json!([
            { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [9] } },
        ]);
    });
    scene.sandbox(&["10.0.0.5"]).runs("a").runs("b").report().exits("a", 9).report();
    scene.forgets("a").forgets("b").report();
    for name in ["a", "b"] {
        let status = scene.reported();
        assert_eq!(state(status, name), "waiting RestartingAllContainers", "{name}");
        assert_eq!(last_state(status, name), "terminated 137 RestartingAllContainers", "{name}");
        assert_eq!(container(status, name).restart_count, 1, "{name}");
    }
    scene.report().runs("a").runs("b").report();
    for name in ["a", "b"] {
        let status = scene.reported();
        assert_eq!(
            (state(status, name).as_str(), container(status, name).restart_count),
            ("running", 1)
        );
        assert_eq!(last_state(status, name), "terminated 137 RestartingAllContainers", "{name}");
    }
}

#[test]
fn regular_and_ephemeral_containers_are_sorted_by_name_and_init_containers_are_not() {
    let scene = Scene::edited("Always", &["init:z", "init:a", "y", "b"], |o| {
        o["spec"]["ephemeralContainers"] =
            json!([{ "name": "x", "image": "i" }, { "name": "d", "image": "i" }]);
    });
    let status = scene.status();
    let names = |list: &Option<Vec<k8s_openapi::api::core::v1::ContainerStatus>>| {
        list.iter().flatten().map(|c| c.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&status.init_container_statuses), ["z", "a"]);
    assert_eq!(names(&status.container_statuses), ["b", "y"]);
    assert_eq!(names(&status.ephemeral_container_statuses), ["d", "x"]);
    assert_eq!(container(&status, "x").started, None, "nobody asks whether it started");
}

#[test]
fn a_container_is_started_when_its_startup_probe_says_so_or_said_so() {
    use Verdict::{Failure, Success, Unknown};
    for (case, probed, verdict, told, want) in [
        ("no probe", false, None, None, true),
        ("not probed yet", true, None, None, false),
        ("passed", true, Some(Success), None, true),
        ("failed", true, Some(Failure), Some(true), false),
        ("undecided", true, Some(Unknown), None, false),
        ("not probed since the agent restarted", true, None, Some(true), true),
        ("undecided since the agent restarted", true, Some(Unknown), Some(true), true),
    ] {
        let mut scene = Scene::edited("Always", &["c"], |o| {
            if probed {
                o["spec"]["containers"][0]["startupProbe"] = json!({ "exec": {} });
            }
        });
        scene.sandbox(&["10.0.0.5"]).runs("c");
        if let Some(told) = told {
            tell(&mut scene, "containerd://c-0", told, told);
        }
        if let Some(verdict) = verdict {
            scene.probe("c", ProbeKind::Startup, verdict);
        }
        let status = scene.status();
        let c = container(&status, "c");
        assert_eq!((c.started, c.ready), (Some(want), want), "{case}");
    }
}

/// The API shows this of container `c`, from before the agent restarted.
fn tell(scene: &mut Scene, id: &str, started: bool, ready: bool) {
    scene.edit(|o| {
        o["status"] = json!({
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
            "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "restartCount": 0, "containerID": id,
                "state": { "running": {} }, "lastState": {}, "started": started, "ready": ready,
            }],
        });
    });
}

#[test]
fn a_container_is_ready_when_its_readiness_probe_says_so_or_said_so() {
    use Verdict::{Failure, Success, Unknown};
    const SAME: &str = "containerd://c-0";
    const OTHER: &str = "containerd://c-other";
    for (case, started_at, verdict, told, want) in [
        ("not probed yet", 0, None, None, false),
        ("passed", 0, Some(Success), None, true),
        ("failed", -7200, Some(Failure), Some((SAME, true)), false),
        ("undecided", 0, Some(Unknown), None, false),
        ("it was ready before the agent restarted", -7200, None, Some((SAME, true)), true),
        ("it was not ready before the agent restarted", -7200, None, Some((SAME, false)), false),
        ("it was ready and is young", -5, None, Some((SAME, true)), true),
        ("its predecessor was ready", -5, None, Some((OTHER, true)), false),
        ("it is older than the agent, in a ready pod", -7200, None, Some((OTHER, true)), true),
        ("it is older than the agent, in an unready pod", -7200, None, Some((OTHER, false)), false),
    ] {
        let mut scene = Scene::edited("Always", &["c"], |o| {
            o["spec"]["containers"][0]["readinessProbe"] = json!({ "exec": {} });
        });
        scene.sandbox(&["10.0.0.5"]).instance("c", State::Running { started: t(started_at) });
        if let Some((id, ready)) = told {
            tell(&mut scene, id, true, ready);
        }
        if let Some(verdict) = verdict {
            scene.probe("c", ProbeKind::Readiness, verdict);
        }
        assert_eq!(container(&scene.status(), "c").ready, want, "{case}");
    }
}

#[test]
fn resources_are_the_allocated_ones_under_what_the_runtime_enforces() {
    let enforced = |shares, quota, memory| Resources {
        cpu_shares: Some(shares),
        cpu_quota: Some(quota),
        cpu_period: Some(100_000),
        memory_limit: Some(memory),
    };
    for (case, seen, cpu_request, cpu_limit, memory_limit) in [
        ("the runtime says nothing", None, "100m", "200m", "64Mi"),
        ("it says the same", Some(enforced(102, 20_000, 64 << 20)), "100m", "200m", "64Mi"),
        ("it says more", Some(enforced(153, 30_000, 128 << 20)), "150m", "300m", "128Mi"),
        ("it says no limit", Some(enforced(102, -1, 0)), "100m", "200m", "64Mi"),
    ] {
        let mut scene = Scene::edited("Always", &["c"], |o| {
            o["spec"]["containers"][0]["resources"] = json!({
                "requests": { "cpu": "100m", "memory": "32Mi" },
                "limits": { "cpu": "200m", "memory": "64Mi" },
            });
        });
        scene.sandbox(&["10.0.0.5"]).runs("c").newest("c").resources = seen;
        let status = scene.status();
        let c = container(&status, "c");
        let resources = c.resources.as_ref().unwrap();
        let (requests, limits) =
            (resources.requests.as_ref().unwrap(), resources.limits.as_ref().unwrap());
        let got = (&*requests["cpu"].0, &*limits["cpu"].0, &*limits["memory"].0);
        assert_eq!(got, (cpu_request, cpu_limit, memory_limit), "{case}");
        assert_eq!(requests["memory"].0, "32Mi", "{case}");
        assert_eq!(c.allocated_resources.as_ref().unwrap()["cpu"].0, "100m", "{case}");
        assert_eq!(status.allocated_resources.unwrap()["cpu"].0, "100m", "{case}");
    }
}

#[test]
fn the_pods_totals_are_the_allocated_ones() {
    let scene = Scene::edited("Always", &["a", "b"], |o| {
        for i in 0..2 {
            o["spec"]["containers"][i]["resources"] = json!({
                "requests": { "cpu": "100m", "memory": "32Mi" }, "limits": { "memory": "64Mi" },
            });
        }
    });
    let status = scene.status();
    let requests = json!({ "cpu": "200m", "memory": "64Mi" });
    assert_eq!(serde_json::to_value(status.allocated_resources).unwrap(), requests);
    assert_eq!(
        serde_json::to_value(status.resources).unwrap(),
        json!({ "requests": requests, "limits": { "memory": "128Mi" } })
    );
}

#[test]
fn the_pods_totals_are_the_applied_ones_while_a_resize_is_under_way() {
    let granted = json!({
        "requests": { "cpu": "200m", "memory": "64Mi" },
        "limits": { "cpu": "400m", "memory": "128Mi" },
    });
    let before = json!({
        "requests": { "cpu": "100m", "memory": "32Mi" },
        "limits": { "cpu": "200m", "memory": "64Mi" },
    });
    let was = Amounts {
        cpu_request: 100,
        cpu_limit: 200,
        memory_request: 32 << 20,
        memory_limit: 64 << 20,
    };
    let progress = Progress { generation: Some(2), error: None, since: t(0) };
    for (case, field, applied) in [
        ("of the whole", "/spec", Applied { pod: Some(was), ..Applied::default() }),
        (
            "of its only container",
            "/spec/containers/0",
            Applied { containers: [("c".into(), was)].into(), pod: None },
        ),
    ] {
        let mut scene = Scene::edited("Always", &["c"], |o| {
            o.pointer_mut(field).unwrap()["resources"] = granted.clone();
        });
        scene.sandbox(&["10.0.0.5"]).runs("c");
        let mut resizing = Resizing { applied, progress: Some(progress.clone()), pending: None };
        scene.surroundings.resizing = resizing.clone().into();
        let status = scene.status();
        let allocated = serde_json::to_value(status.allocated_resources).unwrap();
        assert_eq!(allocated, granted["requests"], "{case}");
        assert_eq!(serde_json::to_value(status.resources).unwrap(), before, "{case}");
        resizing.progress = None;
        scene.surroundings.resizing = resizing.into();
        let resources = serde_json::to_value(scene.status().resources).unwrap();
        assert_eq!(resources, granted, "{case}, done");
    }
}

#[test]
fn a_tiny_cpu_share_is_not_taken_for_a_change() {
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["spec"]["containers"][0]["resources"] =
            json!({ "requests": { "cpu": "1m" }, "limits": { "cpu": "5m" } });
    });
    scene.sandbox(&["10.0.0.5"]).runs("c").newest("c").resources = Some(Resources {
        cpu_shares: Some(2),
        cpu_quota: Some(1000),
        cpu_period: Some(100_000),
        memory_limit: None,
    });
    let status = scene.status();
    let resources = container(&status, "c").resources.clone().unwrap();
    assert_eq!(resources.requests.unwrap()["cpu"].0, "1m");
    assert_eq!(resources.limits.unwrap()["cpu"].0, "5m");
}

#[test]
fn mounts_are_told_from_the_spec_once_and_stay() {
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["spec"]["containers"][0]["volumeMounts"] = json!([
            { "name": "w", "mountPath": "/w" },
            { "name": "r", "mountPath": "/r", "readOnly": true },
            { "name": "rr", "mountPath": "/rr", "readOnly": true, "recursiveReadOnly": "IfPossible" },
        ]);
    });
    let want = |recursive: &str| {
        json!([
            { "name": "w", "mountPath": "/w" },
            { "name": "r", "mountPath": "/r", "readOnly": true, "recursiveReadOnly": "Disabled" },
            { "name": "rr", "mountPath": "/rr", "readOnly": true, "recursiveReadOnly": recursive },
        ])
    };
    let told = |scene: &Scene| {
        let status = scene.status();
        serde_json::to_value(&container(&status, "c").volume_mounts).unwrap()
    };
    assert_eq!(told(&scene), want("Disabled"));
    scene.recursive_read_only = true;
    assert_eq!(told(&scene), want("Enabled"));
    scene.report();
    scene.recursive_read_only = false;
    assert_eq!(told(&scene), want("Enabled"));
}

#[test]
fn the_user_is_the_one_the_runtime_names() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").newest("c").user =
        Some(User { uid: 7, gid: 8, supplemental_groups: vec![9] });
    let user = serde_json::to_value(&container(&scene.status(), "c").user).unwrap();
    assert_eq!(user, json!({ "linux": { "uid": 7, "gid": 8, "supplementalGroups": [9] } }));
}
