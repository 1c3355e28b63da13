use k8s_openapi::api::core::v1::PodStatus;
use serde_json::json;

use super::scene::{Scene, container, last_state, object, phase, state, t};
use crate::attempts::StartError;
use crate::observed::{Resources, State, User};
use crate::plan::WaitReason;
use crate::pod::{Pod, ProbeKind, Source};
use crate::probe::ProbeVerdict;
use crate::resize::{ActuatedResources, Amounts, ResizeProgress, ResizeState};

#[test]
fn container_without_attempt_is_waiting() {
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
fn each_runtime_state_is_reported_as_upstream_does() {
    let exit = {
        let mut scene = Scene::new("Always", &["c"]);
        scene.exits("c", 3);
        scene.newest("c").state.clone()
    };
    for (case, seen, want) in [
        ("running", State::Running { started: t(0) }, "running"),
        ("created", State::Created, "waiting"),
        ("exited", exit, "terminated 3 Error"),
        ("unknown, never observed running", State::Unknown, "waiting"),
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
fn newest_instance_is_the_state_and_the_previous_one_the_last_state() {
    let mut scene = Scene::new("Always", &["c"]);
    let status = scene.sandbox(&["10.0.0.5"]).exits("c", 1).exits("c", 2).runs("c").status();
    assert_eq!((state(&status, "c"), last_state(&status, "c")).0, "running");
    assert_eq!(last_state(&status, "c"), "terminated 2 Error");
    assert_eq!(container(&status, "c").restart_count, 2);
}

#[test]
fn last_state_removed_from_the_runtime_is_kept_from_the_last_report() {
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
fn reported_termination_message_stays_when_its_file_is_gone() {
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
    // Also as the last state but one; a message that still exists is used.
    scene.report().runs("c").report();
    assert_eq!(message(scene.reported(), true).as_deref(), Some("disk full"));
    scene.exits("c", 4);
    assert_eq!(message(&scene.status(), false), None, "not that of another instance");
    set_message(&mut scene, "gave up");
    assert_eq!(message(&scene.status(), false).as_deref(), Some("gave up"));
}

#[test]
fn reported_termination_stays_when_the_runtime_removes_the_container() {
    let mut scene = Scene::new("Never", &["c", "d"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 5).runs("d").report();
    let before = container(scene.reported(), "c").clone();
    let status = scene.forgets("c").status();
    assert_eq!(container(&status, "c"), &before);
}

#[test]
fn vanished_running_container_has_exit_code_137_and_counts_as_restarted() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 1).runs("c").report().forgets("c").report();
    let status = scene.reported();
    assert_eq!(state(status, "c"), "waiting ContainerCreating");
    assert_eq!(last_state(status, "c"), "terminated 137 ContainerStatusUnknown");
    assert_eq!((container(status, "c").restart_count, phase(status)), (2, "Running"));
    scene.report();
    assert_eq!(container(scene.reported(), "c").restart_count, 2, "counted once");
}

#[test]
fn container_that_vanished_in_a_terminating_pod_is_not_restarted() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").report().delete().forgets("c");
    let status = scene.status();
    assert_eq!(last_state(&status, "c"), "terminated 137 ContainerStatusUnknown");
    assert_eq!(container(&status, "c").restart_count, 0);
}

#[test]
fn running_container_with_lost_state_counts_as_terminated_once() {
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
fn restart_count_never_decreases() {
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
fn instance_numbered_from_zero_after_a_termination_counts_as_a_restart() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).exits("c", 1).exits("c", 1).report().forgets("c").runs("c");
    let status = scene.report().reported();
    assert_eq!(container(status, "c").restart_count, 2);
    scene.report();
    assert_eq!(container(scene.reported(), "c").restart_count, 2, "counted once");
}

#[test]
fn init_container_removed_after_initialization_is_completed() {
    let mut scene = Scene::new("Always", &["init:i", "sidecar:s", "c"]);
    let status = scene.sandbox(&["10.0.0.5"]).runs("c").status();
    assert_eq!(state(&status, "i"), "terminated 0 Completed");
    assert!(container(&status, "i").ready);
    assert_eq!(state(&status, "s"), "waiting PodInitializing", "a sidecar will be started");
}

#[test]
fn container_that_cannot_start_is_waiting_with_the_error() {
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
fn crash_loop_moves_the_termination_to_last_state_unless_terminating() {
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
fn running_container_is_not_waiting_even_if_its_replacement_is() {
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
fn restart_of_all_containers_is_shown_and_counted() {
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
    assert_eq!(container(&status, "x").started, None, "not reported for ephemeral containers");
}

#[test]
fn started_follows_the_startup_probe_or_the_last_report() {
    use ProbeVerdict::{Failure, Success, Unknown};
    for (case, probed, verdict, last, want) in [
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
        if let Some(last) = last {
            set_reported(&mut scene, "containerd://c-0", last, last);
        }
        if let Some(verdict) = verdict {
            scene.probe("c", ProbeKind::Startup, verdict);
        }
        let status = scene.status();
        let c = container(&status, "c");
        assert_eq!((c.started, c.ready), (Some(want), want), "{case}");
    }
}

/// The API shows this about container `c`, from before the agent restarted.
fn set_reported(scene: &mut Scene, id: &str, started: bool, ready: bool) {
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
fn ready_follows_the_readiness_probe_or_the_last_report() {
    use ProbeVerdict::{Failure, Success, Unknown};
    const SAME: &str = "containerd://c-0";
    const OTHER: &str = "containerd://c-other";
    for (case, started_at, verdict, last, want) in [
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
        if let Some((id, ready)) = last {
            set_reported(&mut scene, id, true, ready);
        }
        if let Some(verdict) = verdict {
            scene.probe("c", ProbeKind::Readiness, verdict);
        }
        assert_eq!(container(&scene.status(), "c").ready, want, "{case}");
    }
}

#[test]
fn last_report_does_not_count_while_the_gate_for_a_change_on_restart_is_on() {
    for (gate, want) in [(false, true), (true, false)] {
        let mut scene = Scene::edited("Always", &["c"], |o| {
            o["spec"]["containers"][0]["readinessProbe"] = json!({ "exec": {} });
            o["spec"]["containers"][0]["startupProbe"] = json!({ "exec": {} });
        });
        scene.sandbox(&["10.0.0.5"]).instance("c", State::Running { started: t(-7200) });
        set_reported(&mut scene, "containerd://c-0", true, true);
        scene.local_state.features.change_container_status_on_kubelet_restart = gate;
        let status = scene.status();
        let shown = container(&status, "c");
        assert_eq!((shown.started, shown.ready), (Some(want), want), "{gate}");
        scene.probe("c", ProbeKind::Startup, ProbeVerdict::Success);
        scene.probe("c", ProbeKind::Readiness, ProbeVerdict::Success);
        assert!(container(&scene.status(), "c").ready, "{gate}");
    }
}

#[test]
fn stop_signal_is_reported_while_its_feature_gate_is_on() {
    for (gate, want) in [(false, None), (true, Some("SIGUSR1"))] {
        let mut scene = Scene::new("Always", &["c"]);
        scene.sandbox(&["10.0.0.5"]).runs("c");
        scene.observed.instances[0].stop_signal = Some("SIGUSR1".into());
        scene.local_state.features.container_stop_signals = gate;
        assert_eq!(container(&scene.status(), "c").stop_signal.as_deref(), want, "{gate}");
    }
}

#[test]
fn enforced_resources_override_allocated_ones() {
    let enforced = |shares, quota, memory| Resources {
        cpu_shares: Some(shares),
        cpu_quota: Some(quota),
        cpu_period: Some(100_000),
        memory_limit: Some(memory),
    };
    for (case, seen, cpu_request, cpu_limit, memory_limit) in [
        ("the runtime reports nothing", None, "100m", "200m", "64Mi"),
        ("it reports the same", Some(enforced(102, 20_000, 64 << 20)), "100m", "200m", "64Mi"),
        ("it reports more", Some(enforced(153, 30_000, 128 << 20)), "150m", "300m", "128Mi"),
        ("it reports no limit", Some(enforced(102, -1, 0)), "100m", "200m", "64Mi"),
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
fn pod_totals_are_the_allocated_resources() {
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
fn pod_totals_are_the_applied_resources_during_a_resize() {
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
    let progress = ResizeProgress { generation: Some(2), error: None, since: t(0) };
    for (case, field, applied) in [
        (
            "of the whole",
            "/spec",
            ActuatedResources { pod: Some(was), ..ActuatedResources::default() },
        ),
        (
            "of its only container",
            "/spec/containers/0",
            ActuatedResources { containers: [("c".into(), was)].into(), pod: None },
        ),
    ] {
        let mut scene = Scene::edited("Always", &["c"], |o| {
            o.pointer_mut(field).unwrap()["resources"] = granted.clone();
        });
        scene.sandbox(&["10.0.0.5"]).runs("c");
        let mut resizing = ResizeState { applied, progress: Some(progress.clone()), pending: None };
        scene.local_state.resizing = resizing.clone().into();
        let status = scene.status();
        let allocated = serde_json::to_value(status.allocated_resources).unwrap();
        assert_eq!(allocated, granted["requests"], "{case}");
        assert_eq!(serde_json::to_value(status.resources).unwrap(), before, "{case}");
        resizing.progress = None;
        scene.local_state.resizing = resizing.into();
        let resources = serde_json::to_value(scene.status().resources).unwrap();
        assert_eq!(resources, granted, "{case}, done");
    }
}

#[test]
fn minimum_cpu_shares_are_not_a_change() {
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
fn volume_mounts_are_reported_from_the_spec_once() {
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
    let mounts_of = |scene: &Scene| {
        let status = scene.status();
        serde_json::to_value(&container(&status, "c").volume_mounts).unwrap()
    };
    assert_eq!(mounts_of(&scene), want("Disabled"));
    scene.recursive_read_only = true;
    assert_eq!(mounts_of(&scene), want("Enabled"));
    scene.report();
    scene.recursive_read_only = false;
    assert_eq!(mounts_of(&scene), want("Enabled"));
}

#[test]
fn user_is_the_one_the_runtime_reports() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").newest("c").user =
        Some(User { uid: 7, gid: 8, supplemental_groups: vec![9] });
    let user = serde_json::to_value(&container(&scene.status(), "c").user).unwrap();
    assert_eq!(user, json!({ "linux": { "uid": 7, "gid": 8, "supplementalGroups": [9] } }));
}

#[test]
fn adopted_container_of_a_static_pod_stays_ready_before_its_mirror_pod_is_seen() {
    for (source, started_at, want) in
        [(Source::File, -7200, true), (Source::File, 0, false), (Source::Api, -7200, false)]
    {
        let mut object = object("Always", &["c"]);
        object["spec"]["containers"][0]["startupProbe"] = json!({ "exec": {} });
        object["spec"]["containers"][0]["readinessProbe"] = json!({ "exec": {} });
        let pod = Pod::parse(serde_json::from_value(object).unwrap(), source).unwrap();
        let mut scene = Scene::of(pod);
        scene.sandbox(&["10.0.0.5"]).instance("c", State::Running { started: t(started_at) });
        let status = scene.status();
        let c = container(&status, "c");
        assert_eq!((c.started, c.ready), (Some(want), want), "{source:?} {started_at}");
    }
}
