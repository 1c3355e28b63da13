use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

use super::super::conditions::READY_TO_START;
use super::scene::{Scene, condition_of, container, phase};
use crate::attempts::PodStep;
use crate::builders::t;
use crate::pod::ProbeKind;
use crate::probe::ProbeVerdict;
use crate::resize::{PendingReason, PendingResize, ResizeProgress, ResizeState};
use crate::status::conditions::{ConditionOwner, owner, ready_is_stale};

fn types(status: &k8s_openapi::api::core::v1::PodStatus) -> Vec<&str> {
    status.conditions.iter().flatten().map(|condition| condition.type_.as_str()).collect()
}

#[test]
fn conditions_have_upstreams_order_with_foreign_ones_first() {
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["status"] = json!({ "conditions": [
            { "type": "Ready", "status": "False" },
            { "type": "example.com/ok", "status": "True" },
        ]});
        o["spec"]["containers"][0]["restartPolicy"] = "Never".into();
        o["spec"]["containers"][0]["restartPolicyRules"] = json!([
            { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [9] } },
        ]);
    });
    let resizing = ResizeState { progress: Some(progress(None)), ..ResizeState::default() };
    scene.local_state.resizing = Arc::new(resizing);
    scene.sandbox(&["10.0.0.5"]).runs("c").evict("no memory");
    assert_eq!(
        types(&scene.status()),
        [
            "example.com/ok",
            "PodResizeInProgress",
            "DisruptionTarget",
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled",
            "AllContainersRestarting",
        ]
    );
}

#[test]
fn ready_to_start_is_reported_while_its_feature_gate_is_on() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c");
    assert!(types(&scene.status()).contains(&"PodReadyToStartContainers"));
    scene.local_state.features.pod_ready_to_start_containers_condition = false;
    assert_eq!(types(&scene.status()), ["Initialized", "Ready", "ContainersReady", "PodScheduled"]);
}

#[test]
fn own_conditions_have_the_generation_except_one() {
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["metadata"]["generation"] = 7.into();
        o["spec"]["containers"][0]["restartPolicy"] = "Never".into();
        o["spec"]["containers"][0]["restartPolicyRules"] = json!([
            { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [9] } },
        ]);
    });
    let status = scene.sandbox(&["10.0.0.5"]).runs("c").status();
    assert_eq!(status.observed_generation, Some(7));
    for condition in status.conditions.unwrap() {
        let want = (condition.type_ != "AllContainersRestarting").then_some(7);
        assert_eq!(condition.observed_generation, want, "{}", condition.type_);
    }
}

#[test]
fn ready_to_start_containers_requires_a_usable_sandbox() {
    for (case, host_network, ips, extra, want) in [
        ("with an address", false, &["10.0.0.5"][..], false, "True"),
        ("without one", false, &[], false, "False"),
        ("on the host network", true, &[], false, "True"),
        ("beside another ready one", false, &["10.0.0.5"], true, "False"),
    ] {
        let mut scene = Scene::edited("Always", &["c"], |o| {
            o["spec"]["hostNetwork"] = host_network.into();
        });
        if extra {
            scene.sandbox(ips);
        }
        scene.sandbox(ips);
        scene.observed.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = true);
        let status = scene.status();
        assert_eq!(condition_of(&status, "PodReadyToStartContainers").unwrap()[0], want, "{case}");
    }
    let none = Scene::new("Always", &["c"]).status();
    assert_eq!(condition_of(&none, "PodReadyToStartContainers"), Some(["False", "", ""]));
}

#[test]
fn pod_without_a_sandbox_says_what_prevents_one() {
    let wait = std::time::Duration::from_secs(1);
    let id = "0123456789abcdef".repeat(4);
    let failure = format!("failed to setup network for sandbox \"{id}\": no bridge");
    let words = "failed to setup network for sandbox \"…\": no bridge";
    let of = |scene: &Scene| {
        let status = scene.status();
        let [state, reason, message] = condition_of(&status, READY_TO_START).unwrap();
        [state, reason, message].map(str::to_owned)
    };
    let mut scene = Scene::new("Always", &["c"]);
    scene.attempts.note_step_failure(PodStep::Sandbox, failure, t(1), wait);
    assert_eq!(of(&scene), ["False", "PodSandboxNotReady", words]);
    scene.local_state.network = Err("no plugin".into());
    assert_eq!(of(&scene), ["False", "PodSandboxNotReady", "network is not ready: no plugin"]);
    scene.sandbox(&["10.0.0.5"]);
    scene.observed.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = true);
    assert_eq!(of(&scene), ["True", "", ""]);
}

#[test]
fn initialized_names_the_incomplete_init_containers() {
    let mut scene = Scene::new("Always", &["sidecar:s", "init:i", "c"]);
    let init = |scene: &Scene| scene.status();
    let initialized =
        |s: &Scene| condition_of(&init(s), "Initialized").map(|a| a.map(str::to_owned)).unwrap();
    let not = |names: &str| {
        let message = format!("containers with incomplete status: [{names}]");
        ["False".to_owned(), "ContainersNotInitialized".to_owned(), message]
    };
    assert_eq!(initialized(&scene), not("s i"));
    scene.sandbox(&["10.0.0.5"]).runs("s");
    assert_eq!(initialized(&scene), not("i"));
    scene.exits("i", 0);
    assert_eq!(initialized(&scene), ["True", "", ""].map(str::to_owned));
    scene.runs("c").report().exits("s", 1);
    assert_eq!(initialized(&scene), ["True", "", ""].map(str::to_owned), "the sidecar restarts");
}

#[test]
fn pod_is_initialized_again_in_a_new_sandbox_and_pending_until_then() {
    let mut scene = Scene::new("Always", &["init:i", "init:j", "c"]);
    let shown = |scene: &Scene| {
        let status = scene.status();
        (phase(&status).to_owned(), condition_of(&status, "Initialized").unwrap()[0].to_owned())
    };
    let pending = ("Pending".to_owned(), "False".to_owned());
    let running = ("Running".to_owned(), "True".to_owned());
    scene.sandbox(&["10.0.0.5"]).exits("i", 0).exits("j", 0).runs("c").report();
    assert_eq!(shown(&scene), running);
    scene.sandbox_dies().report();
    scene.forgets("i").forgets("j").sandbox(&["10.0.0.6"]).report();
    assert_eq!(shown(&scene), pending, "the sandbox is new");
    scene.runs("i").report();
    assert_eq!(shown(&scene), pending, "the first runs again");
    scene.exits("i", 0).report();
    assert_eq!(shown(&scene), pending, "the second is still to come");
    scene.runs("j").report();
    assert_eq!(shown(&scene), pending, "the second runs again");
    scene.exits("j", 0).report();
    assert_eq!(shown(&scene), running, "the container that ran before comes back");
    scene.runs("c").report();
    assert_eq!(shown(&scene), running);
}

#[test]
fn containers_ready_names_the_unready_containers() {
    let mut scene = Scene::edited("Always", &["sidecar:s", "init:i", "a", "b"], |o| {
        o["spec"]["initContainers"][0]["readinessProbe"] = json!({ "exec": {} });
        o["spec"]["containers"][1]["readinessProbe"] = json!({ "exec": {} });
    });
    scene.sandbox(&["10.0.0.5"]).runs("s").exits("i", 0).runs("a").runs("b");
    let want = ["False", "ContainersNotReady", "containers with unready status: [s b]"];
    let status = scene.status();
    assert_eq!(condition_of(&status, "ContainersReady"), Some(want));
    assert_eq!(condition_of(&status, "Ready"), Some(want));
    scene.probe("s", ProbeKind::Readiness, ProbeVerdict::Success);
    scene.probe("b", ProbeKind::Readiness, ProbeVerdict::Success);
    assert_eq!(condition_of(&scene.status(), "Ready"), Some(["True", "", ""]));
}

#[test]
fn ready_waits_for_readiness_gates_and_names_them() {
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["spec"]["readinessGates"] =
            json!([{ "conditionType": "a.io/x" }, { "conditionType": "b.io/y" }]);
        o["status"] = json!({ "conditions": [{ "type": "b.io/y", "status": "False" }] });
    });
    scene.sandbox(&["10.0.0.5"]);
    assert_eq!(condition_of(&scene.status(), "Ready").unwrap()[1], "ContainersNotReady");
    scene.runs("c");
    let status = scene.status();
    assert_eq!(
        condition_of(&status, "Ready"),
        Some([
            "False",
            "ReadinessGatesNotReady",
            "corresponding condition of pod readiness gate \"a.io/x\" does not exist., \
             the status of pod readiness gate \"b.io/y\" is not \"True\", but False",
        ])
    );
    assert_eq!(condition_of(&status, "ContainersReady"), Some(["True", "", ""]));
}

#[test]
fn changed_readiness_gate_makes_ready_stale() {
    let mut scene = Scene::edited("Always", &["sidecar:s", "c"], |o| {
        o["spec"]["readinessGates"] = json!([{ "conditionType": "a.io/x" }]);
    });
    scene.sandbox(&["10.0.0.5"]).runs("s").runs("c").report().sent();
    assert!(!ready_is_stale(&scene.pod));
    scene.edit(|o| {
        let conditions = o["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({ "type": "a.io/x", "status": "True" }));
    });
    assert!(ready_is_stale(&scene.pod));
    scene.report().sent();
    assert!(!ready_is_stale(&scene.pod));
}

#[test]
fn finished_pod_is_not_ready() {
    for (code, phase_word, reason, initialized) in
        [(0, "Succeeded", "PodCompleted", "PodCompleted"), (3, "Failed", "PodFailed", "")]
    {
        let mut scene = Scene::new("Never", &["c"]);
        let status = scene.sandbox(&["10.0.0.5"]).exits("c", code).status();
        assert_eq!(phase(&status), phase_word);
        assert_eq!(condition_of(&status, "Ready"), Some(["False", reason, ""]));
        assert_eq!(condition_of(&status, "ContainersReady"), Some(["False", reason, ""]));
        assert_eq!(condition_of(&status, "Initialized"), Some(["True", initialized, ""]));
    }
    let mut evicted = Scene::new("Always", &["c"]);
    let status = evicted.sandbox(&["10.0.0.5"]).runs("c").evict("no memory").status();
    assert!(container(&status, "c").ready, "the container's own readiness is unchanged");
    assert_eq!(condition_of(&status, "Ready"), Some(["False", "PodFailed", ""]));
}

#[test]
fn disruption_target_is_set_once_and_kept() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.sandbox(&["10.0.0.5"]).runs("c").evict("no memory").report();
    let want = Some(["True", "TerminationByKubelet", "no memory"]);
    assert_eq!(condition_of(scene.reported(), "DisruptionTarget"), want);
    scene.exits("c", 137).stopped().report();
    assert_eq!(condition_of(scene.reported(), "DisruptionTarget"), want);
}

fn progress(error: Option<&str>) -> ResizeProgress {
    let error = error.map(str::to_owned);
    ResizeProgress { generation: Some(3), error, since: Timestamp::UNIX_EPOCH }
}

#[test]
fn resize_conditions_end_with_the_pod() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.local_state.resizing = Arc::new(ResizeState {
        pending: Some(PendingResize {
            why: PendingReason::Deferred,
            message: "no capacity".into(),
            generation: Some(3),
            since: Timestamp::UNIX_EPOCH,
        }),
        progress: Some(progress(Some("in use"))),
        ..ResizeState::default()
    });
    scene.sandbox(&["10.0.0.5"]).runs("c").report();
    assert_eq!(
        condition_of(scene.reported(), "PodResizePending"),
        Some(["True", "Deferred", "no capacity"])
    );
    assert_eq!(
        condition_of(scene.reported(), "PodResizeInProgress"),
        Some(["True", "Error", "in use"])
    );
    scene.delete().exits("c", 0).stopped();
    assert_eq!(condition_of(&scene.status(), "PodResizePending"), None);
}

#[test]
fn all_containers_restarting_is_true_until_the_last_instance_is_removed() {
    let mut scene = Scene::edited("Never", &["a", "b"], |o| {
        o["spec"]["containers"][0]["restartPolicy"] = "Never".into();
        o["spec"]["containers"][0]["restartPolicyRules"] = json!([
            { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [9] } },
        ]);
    });
    scene.sandbox(&["10.0.0.5"]).runs("a").runs("b").report();
    let restarting = |scene: &Scene| {
        condition_of(scene.reported(), "AllContainersRestarting").unwrap()[..2]
            .iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(restarting(&scene), ["False", ""]);
    scene.exits("a", 9).report();
    assert_eq!(restarting(&scene), ["True", "RestartAllContainersStarted"]);
    scene.forgets("b").report();
    assert_eq!(restarting(&scene), ["True", "RestartAllContainersStarted"]);
    scene.forgets("a").report();
    assert_eq!(restarting(&scene), ["False", ""]);
    assert_eq!(phase(scene.reported()), "Running");
}

#[test]
fn condition_types_have_owners() {
    for (type_, want) in [
        ("Ready", ConditionOwner::Agent),
        ("PodResizePending", ConditionOwner::Agent),
        ("AllContainersRestarting", ConditionOwner::Agent),
        ("DisruptionTarget", ConditionOwner::Shared),
        ("example.com/ok", ConditionOwner::Foreign),
        ("", ConditionOwner::Foreign),
    ] {
        assert_eq!(owner(type_), want, "{type_}");
    }
}
