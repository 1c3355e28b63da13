use k8s_openapi::api::core::v1::ContainerStatus;
use serde_json::{Value, json};

use super::scene::{Scene, object, outcome, pod, state};
use crate::pod::{Phase, Pod, Source};
use crate::status::container::ContainerStatuses;
use crate::status::phase::compute;

/// A status in short form: `run`, `started` (a running sidecar that started), `wait`, `end 1`,
/// `again 1` (waiting after a termination), `reset 137` (terminated by a restart of all), `blank`.
fn status(name: &str, short: &str) -> ContainerStatus {
    let (word, code) = short.split_once(' ').unwrap_or((short, "0"));
    let end =
        json!({ "terminated": { "exitCode": code.parse::<i32>().unwrap(), "reason": "Error" } });
    let reset = json!({ "terminated": { "exitCode": 137, "reason": "RestartingAllContainers" } });
    let (state, last): (Value, Value) = match word {
        "run" | "started" => (json!({ "running": {} }), json!({})),
        "wait" => (json!({ "waiting": {} }), json!({})),
        "end" => (end, json!({})),
        "again" => (json!({ "waiting": {} }), end),
        "reset" => (json!({ "waiting": {} }), reset),
        "blank" => (json!({}), json!({})),
        other => panic!("{other}"),
    };
    serde_json::from_value(json!({
        "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": state, "lastState": last, "started": word == "started",
    }))
    .unwrap()
}

/// `(container, status)`; a status of `-` is left out.
fn phase_of(pod: &Pod, statuses: &[&str], terminal: bool, initialized: bool) -> Phase {
    let pairs = pod.containers.iter().zip(statuses).filter(|(_, short)| **short != "-");
    let (init, regular): (Vec<_>, Vec<_>) = pairs
        .map(|(c, short)| (c.kind.is_init(), status(&c.name, short)))
        .partition(|(is_init, _)| *is_init);
    let list = |list: Vec<(bool, ContainerStatus)>| list.into_iter().map(|(_, s)| s).collect();
    let (init, regular): (Vec<_>, Vec<_>) = (list(init), list(regular));
    compute(pod, ContainerStatuses { init: &init, regular: &regular }, terminal, initialized)
}

#[test]
fn phase_without_init_containers_follows_from_the_containers() {
    use Phase::{Failed, Pending, Running, Succeeded};
    for (policy, statuses, running_on, at_its_end) in [
        ("Always", ["run", "run"], Running, Running),
        ("Always", ["run", "wait"], Pending, Pending),
        ("Always", ["run", "-"], Pending, Pending),
        ("Always", ["run", "blank"], Pending, Pending),
        ("Always", ["-", "-"], Pending, Pending),
        ("Always", ["run", "again 1"], Running, Running),
        ("Always", ["run", "end 1"], Running, Running),
        ("Always", ["end 0", "end 0"], Running, Succeeded),
        ("Always", ["end 0", "end 1"], Running, Failed),
        ("Always", ["again 0", "again 0"], Running, Failed),
        ("Always", ["end 0", "wait"], Pending, Pending),
        ("Always", ["end 0", "blank"], Pending, Pending),
        ("OnFailure", ["run", "end 0"], Running, Running),
        ("OnFailure", ["end 0", "end 0"], Succeeded, Succeeded),
        ("OnFailure", ["end 0", "end 1"], Running, Failed),
        ("OnFailure", ["end 0", "again 1"], Running, Failed),
        ("Never", ["run", "end 1"], Running, Running),
        ("Never", ["end 0", "end 0"], Succeeded, Succeeded),
        ("Never", ["end 0", "end 1"], Failed, Failed),
        ("Never", ["end 0", "again 1"], Failed, Failed),
        ("Never", ["reset", "reset"], Running, Failed),
    ] {
        let pod = pod(object(policy, &["a", "b"]), |_| {});
        let case = format!("{policy} {statuses:?}");
        assert_eq!(phase_of(&pod, &statuses, false, true), running_on, "{case}");
        assert_eq!(phase_of(&pod, &statuses, true, true), at_its_end, "{case}, terminal");
    }
}

#[test]
fn failed_init_container_fails_the_pod_and_an_unfinished_one_keeps_it_pending() {
    use Phase::{Failed, Pending, Running};
    for (policy, statuses, want) in [
        ("Always", ["-", "wait", "wait"], Pending),
        ("Always", ["run", "wait", "wait"], Pending),
        ("Always", ["wait", "wait", "wait"], Pending),
        ("Always", ["blank", "wait", "wait"], Pending),
        ("Always", ["end 0", "run", "wait"], Pending),
        ("Always", ["end 0", "end 0", "wait"], Pending),
        ("Always", ["end 0", "end 0", "run"], Running),
        ("Always", ["end 1", "wait", "wait"], Pending),
        ("Always", ["end 1", "wait", "run"], Pending),
        ("Always", ["end 1", "end 0", "run"], Running),
        ("Always", ["end 0", "again 0", "end 137"], Pending),
        ("OnFailure", ["again 1", "wait", "wait"], Pending),
        ("OnFailure", ["end 0", "end 1", "wait"], Pending),
        ("Never", ["end 1", "wait", "wait"], Failed),
        ("Never", ["again 1", "wait", "wait"], Failed),
        ("Never", ["end 0", "end 1", "run"], Failed),
        ("Never", ["reset", "reset", "wait"], Pending),
    ] {
        let pod = pod(object(policy, &["init:i1", "init:i2", "c"]), |_| {});
        assert_eq!(phase_of(&pod, &statuses, false, false), want, "{policy} {statuses:?}");
    }
}

#[test]
fn sidecar_counts_until_started_and_never_after_termination() {
    use Phase::{Failed, Pending, Running, Succeeded};
    for (policy, statuses, initialized, want) in [
        ("Always", ["run", "wait"], false, Pending),
        ("Always", ["started", "wait"], false, Pending),
        ("Always", ["started", "run"], true, Running),
        ("Always", ["run", "run"], false, Pending),
        ("Always", ["run", "run"], true, Running),
        ("Always", ["wait", "run"], true, Pending),
        ("Always", ["again 1", "run"], true, Running),
        ("Always", ["end 1", "run"], true, Running),
        ("Always", ["-", "run"], true, Pending),
        ("Never", ["started", "end 0"], true, Running),
        ("Never", ["end 137", "end 0"], true, Succeeded),
        ("Never", ["end 0", "end 1"], true, Failed),
    ] {
        let pod = pod(object(policy, &["sidecar:s", "c"]), |_| {});
        let case = format!("{policy} {statuses:?} initialized={initialized}");
        assert_eq!(phase_of(&pod, &statuses, false, initialized), want, "{case}");
    }
}

#[test]
fn container_restart_rule_overrides_the_pods_policy() {
    let with_rule = |object: &mut Value| {
        object["spec"]["containers"][0]["restartPolicy"] = "Never".into();
        object["spec"]["containers"][0]["restartPolicyRules"] =
            json!([{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }]);
    };
    let pod = pod(object("Never", &["c"]), with_rule);
    assert_eq!(phase_of(&pod, &["end 42"], false, true), Phase::Running);
    assert_eq!(phase_of(&pod, &["end 1"], false, true), Phase::Failed);
}

#[test]
fn stopped_static_pod_gets_no_terminal_phase() {
    let object = serde_json::from_value(object("Always", &["c"])).unwrap();
    let pod = Pod::parse(object, Source::File).unwrap();
    assert_eq!(phase_of(&pod, &["end 0"], true, true), Phase::Running);
}

#[test]
fn unchanged_phase_keeps_its_reason_and_a_new_one_does_not() {
    let mut scene = Scene::new("Always", &["c"]);
    scene.edit(|o| {
        o["status"] = json!({ "phase": "Pending", "reason": "Custom", "message": "by a user" });
    });
    let pending = scene.status();
    assert_eq!(outcome(&pending), ["Pending", "Custom", "by a user"]);
    scene.sandbox(&["10.0.0.5"]).runs("c");
    let running = scene.status();
    assert_eq!(outcome(&running), ["Running", "", ""]);
}

#[test]
fn held_pod_is_pending_with_the_reason_of_the_hold() {
    let mut scene = Scene::new("Always", &["init:i", "c"]);
    scene.hold("Maintenance", "until noon").report();
    let held = scene.reported();
    assert_eq!(outcome(held), ["Pending", "Maintenance", "until noon"]);
    for name in ["i", "c"] {
        assert_eq!(state(held, name), "waiting Blocked");
    }
    scene.local_state.hold = None;
    let lifted = scene.status();
    assert_eq!(outcome(&lifted), ["Pending", "", ""]);
}

#[test]
fn hold_stops_a_running_pod_but_keeps_its_terminations() {
    let mut running = Scene::new("Always", &["c"]);
    running.sandbox(&["10.0.0.5"]).runs("c").report();
    running.hold("Maintenance", "until noon").exits("c", 137);
    let status = running.status();
    assert_eq!(outcome(&status), ["Pending", "Maintenance", "until noon"]);
    assert_eq!(state(&status, "c"), "terminated 137 Error");

    let mut done = Scene::new("Never", &["c"]);
    done.sandbox(&["10.0.0.5"]).exits("c", 0).report();
    let status = done.hold("Maintenance", "until noon").status();
    assert_eq!(outcome(&status), ["Succeeded", "", ""]);
}

#[test]
fn terminal_phase_and_reason_stay() {
    let mut scene = Scene::edited("Always", &["c"], |o| {
        o["status"] = json!({ "phase": "Failed", "reason": "NodeLost", "message": "gone" });
    });
    scene.sandbox(&["10.0.0.5"]).runs("c").evict("too late");
    let status = scene.status();
    assert_eq!(outcome(&status), ["Failed", "NodeLost", "gone"]);
}
