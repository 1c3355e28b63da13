use k8s_openapi::api::core::v1::{Pod as ApiPod, PodStatus};
use serde_json::{Value, json};

use super::scene::{Scene, condition_of, outcome, t};
use crate::status::conditions::condition;
use crate::status::ending::terminate_pod;
use crate::status::merge::merge;

fn api(status: &Value) -> ApiPod {
    serde_json::from_value(json!({ "metadata": { "generation": 4 }, "status": status })).unwrap()
}

fn ours(status: Value) -> PodStatus {
    serde_json::from_value(status).unwrap()
}

#[test]
fn foreign_conditions_and_fields_stay_and_own_ones_are_replaced() {
    let api = api(&json!({
        "phase": "Pending",
        "nominatedNodeName": "n",
        "resourceClaimStatuses": [{ "name": "claim" }],
        "conditions": [
            { "type": "Ready", "status": "False" },
            { "type": "example.com/ok", "status": "True" },
        ],
    }));
    let ours = ours(json!({
        "phase": "Running",
        "conditions": [
            { "type": "example.com/ok", "status": "False" },
            { "type": "Ready", "status": "True" },
        ],
    }));
    let merged = merge(&api, &ours, true, t(9));
    assert_eq!(
        serde_json::to_value(merged).unwrap(),
        json!({
            "phase": "Running",
            "nominatedNodeName": "n",
            "resourceClaimStatuses": [{ "name": "claim" }],
            "conditions": [
                { "type": "example.com/ok", "status": "True" },
                { "type": "Ready", "status": "True" },
            ],
        })
    );
}

#[test]
fn terminal_phase_waits_until_no_container_can_run() {
    let api = api(&json!({ "phase": "Running", "reason": "Told", "message": "before" }));
    let ours = ours(json!({
        "phase": "Failed", "reason": "Evicted", "message": "no memory",
        "conditions": [
            { "type": "DisruptionTarget", "status": "True" },
            { "type": "Ready", "status": "False", "reason": "PodFailed" },
        ],
    }));
    let early = merge(&api, &ours, true, t(9));
    assert_eq!(outcome(&early), ["Running", "Told", "before"]);
    assert_eq!(condition_of(&early, "DisruptionTarget"), None);
    assert_eq!(condition_of(&early, "Ready").unwrap()[1], "PodFailed", "the rest is sent");
    let late = merge(&api, &ours, false, t(9));
    assert_eq!(outcome(&late), ["Failed", "Evicted", "no memory"]);
    let disrupted = condition(&late, "DisruptionTarget").unwrap();
    assert_eq!(
        disrupted.last_transition_time.as_ref().unwrap().0,
        t(9),
        "dated when the pod ended"
    );
}

#[test]
fn terminal_phase_in_the_api_stays() {
    let api = api(&json!({ "phase": "Succeeded", "reason": "Done" }));
    for phase in ["Running", "Pending", "Failed"] {
        let merged = merge(&api, &ours(json!({ "phase": phase })), false, t(9));
        assert_eq!(outcome(&merged), ["Succeeded", "Done", ""], "{phase}");
    }
}

#[test]
fn pod_with_terminal_phase_is_not_ready() {
    let ready = ours(json!({
        "phase": "Failed",
        "conditions": [
            { "type": "Ready", "status": "True" },
            { "type": "ContainersReady", "status": "True" },
        ],
    }));
    let merged = merge(&api(&json!({ "phase": "Running" })), &ready, false, t(9));
    for type_ in ["Ready", "ContainersReady"] {
        assert_eq!(condition_of(&merged, type_), Some(["False", "PodFailed", ""]));
        assert_eq!(condition(&merged, type_).unwrap().observed_generation, Some(4));
    }
    let mut sent = api(&json!({}));
    sent.status = Some(merged.clone());
    assert_eq!(
        merge(&sent, &ready, false, t(99)),
        merged,
        "a later merge keeps the transition times"
    );
}

fn status(init: &[(&str, Value)], regular: &[(&str, Value)]) -> Value {
    let list = |list: &[(&str, Value)]| -> Value {
        let one = |(name, state): &(&str, Value)| {
            json!({
                "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": state, "started": true,
            })
        };
        list.iter().map(one).collect()
    };
    json!({
        "phase": "Running",
        "initContainerStatuses": list(init),
        "containerStatuses": list(regular),
    })
}

#[test]
fn container_without_observed_exit_ends_with_137() {
    let wait = || json!({ "waiting": {} });
    let run = || json!({ "running": {} });
    let done = || json!({ "terminated": { "exitCode": 0 } });
    for (case, containers, init, regular, init_codes, regular_codes) in [
        ("no init containers", &["c"][..], vec![], vec![("c", wait())], vec![], vec![Some(137)]),
        ("it ended", &["c"], vec![], vec![("c", done())], vec![], vec![Some(0)]),
        (
            "nothing ever started: the first init container failed",
            &["init:i", "init:j", "c"],
            vec![("i", wait()), ("j", wait())],
            vec![("c", wait())],
            vec![Some(137), None],
            vec![None],
        ),
        (
            "the second init container ran",
            &["init:i", "init:j", "init:k", "c"],
            vec![("i", wait()), ("j", run()), ("k", wait())],
            vec![("c", wait())],
            vec![Some(137), Some(137), None],
            vec![None],
        ),
        (
            "the last init container was done",
            &["init:i", "c"],
            vec![("i", done())],
            vec![("c", wait())],
            vec![Some(0)],
            vec![Some(137)],
        ),
        (
            "the last one is a sidecar that started",
            &["sidecar:s", "c"],
            vec![("s", run())],
            vec![("c", wait())],
            vec![Some(137)],
            vec![Some(137)],
        ),
        (
            "a regular container ran",
            &["init:i", "c", "d"],
            vec![("i", wait())],
            vec![("c", run()), ("d", wait())],
            vec![Some(137)],
            vec![Some(137), Some(137)],
        ),
    ] {
        let scene = Scene::edited("Always", containers, |o| o["status"] = status(&init, &regular));
        let last = scene.pod.object.status.clone().unwrap();
        let end = terminate_pod(&scene.pod, &last);
        let codes = |list: &Option<Vec<k8s_openapi::api::core::v1::ContainerStatus>>| {
            let code = |c: &k8s_openapi::api::core::v1::ContainerStatus| {
                c.state.as_ref().unwrap().terminated.as_ref().map(|end| end.exit_code)
            };
            list.iter().flatten().map(code).collect::<Vec<_>>()
        };
        assert_eq!(codes(&end.init_container_statuses), init_codes, "{case}, init");
        assert_eq!(codes(&end.container_statuses), regular_codes, "{case}, regular");
        assert_eq!(end.phase.as_deref(), Some("Failed"), "{case}");
    }
}
