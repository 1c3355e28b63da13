use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::patch::apply;
use super::scene::{Scene, object, pod};
use crate::lifecycle::{Lifecycle, Request};
use crate::pod::{ContainerKind, ProbeKind};
use crate::probe::{ProbeVerdict, ProbeVerdicts};
use crate::status::manager::{Acceptance, ReportTrigger};
use crate::status::merge::merge;
use crate::status::normal::{equal, normalise};
use crate::status::patch::patch;
use crate::status::phase_of;

const CONTAINERS: [&str; 4] = ["init:i", "sidecar:s", "a", "b"];
const NAMES: [&str; 4] = ["i", "s", "a", "b"];

/// An event that happens to the pod.
#[derive(Clone, Debug)]
enum Event {
    Sandbox,
    SandboxDies,
    Runs(usize),
    Exits(usize, i32),
    CrashLoops(usize),
    Lost(usize),
    Forgotten(usize),
    ProbeVerdicts(usize, bool),
    Delete,
    Evict,
    Hold(bool),
    Stopped,
    LifeGoesOn,
    AgentRestarts,
    ApiSays(&'static str),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let which = || 0..NAMES.len();
    let code = prop_oneof![Just(0), Just(1), Just(42), Just(9)];
    prop_oneof![
        2 => Just(Event::Sandbox),
        1 => Just(Event::SandboxDies),
        4 => which().prop_map(Event::Runs),
        4 => (which(), code).prop_map(|(name, code)| Event::Exits(name, code)),
        2 => which().prop_map(Event::CrashLoops),
        1 => which().prop_map(Event::Lost),
        2 => which().prop_map(Event::Forgotten),
        1 => (which(), any::<bool>()).prop_map(|(name, yes)| Event::ProbeVerdicts(name, yes)),
        1 => Just(Event::Delete),
        1 => Just(Event::Evict),
        1 => any::<bool>().prop_map(Event::Hold),
        1 => Just(Event::Stopped),
        1 => Just(Event::LifeGoesOn),
        1 => Just(Event::AgentRestarts),
        1 => prop_oneof![Just("Failed"), Just("Succeeded")].prop_map(Event::ApiSays),
        2 => (1..40u64).prop_map(Event::Wait),
    ]
}

/// Events that do not depend on the agent's memory.
fn ordinary() -> impl Strategy<Value = Event> {
    event().prop_filter("the agent's own doing", |event| match event {
        Event::Sandbox
        | Event::SandboxDies
        | Event::Runs(_)
        | Event::Exits(_, _)
        | Event::Lost(_)
        | Event::Forgotten(_)
        | Event::ProbeVerdicts(_, _)
        | Event::Hold(_)
        | Event::Wait(_) => true,
        Event::CrashLoops(_)
        | Event::Delete
        | Event::Evict
        | Event::Stopped
        | Event::LifeGoesOn
        | Event::AgentRestarts
        | Event::ApiSays(_) => false,
    })
}

fn apply_event(scene: &mut Scene, event: &Event) {
    match event {
        Event::Sandbox => drop_result(scene.sandbox(&["10.0.0.5"])),
        Event::SandboxDies => drop_result(scene.sandbox_dies()),
        Event::Runs(name) => drop_result(scene.runs(NAMES[*name])),
        Event::Exits(name, code) => drop_result(scene.exits(NAMES[*name], *code)),
        Event::CrashLoops(name) => drop_result(scene.crash_loops(NAMES[*name], 1)),
        Event::Lost(name) => {
            if scene.observed.newest(NAMES[*name]).is_some() {
                scene.newest(NAMES[*name]).state = crate::observed::State::Unknown;
            }
        }
        Event::Forgotten(name) => drop_result(scene.forgets(NAMES[*name])),
        Event::ProbeVerdicts(name, yes) => {
            if scene.observed.newest(NAMES[*name]).is_some() {
                let verdict = if *yes { ProbeVerdict::Success } else { ProbeVerdict::Failure };
                scene.probe(NAMES[*name], ProbeKind::Readiness, verdict);
            }
        }
        Event::Delete => drop_result(scene.delete()),
        Event::Evict => drop_result(scene.evict("no memory")),
        Event::Hold(true) => drop_result(scene.hold("Held", "for a while")),
        Event::Hold(false) => scene.local_state.hold = None,
        Event::Stopped => drop_result(scene.stopped()),
        Event::LifeGoesOn => {
            if scene.plan().stage_done {
                scene.lifecycle.stopped();
            }
        }
        Event::AgentRestarts => {
            if scene.entry.is_some() {
                scene.sent();
                scene.entry = None;
            }
        }
        Event::ApiSays(phase) => drop_result(scene.edit(|o| {
            let over = ["Succeeded", "Failed"].iter().any(|over| o["status"]["phase"] == *over);
            if !over {
                o["status"]["phase"] = (*phase).into();
            }
        })),
        Event::Wait(seconds) => drop_result(scene.wait(*seconds)),
    }
}

fn drop_result(_: &mut Scene) {}

fn scene(policy: &str, restart_all: bool) -> Scene {
    Scene::edited(policy, &CONTAINERS, |o| {
        o["spec"]["containers"][0]["readinessProbe"] = json!({ "exec": {} });
        if restart_all {
            o["spec"]["containers"][0]["restartPolicy"] = "Never".into();
            o["spec"]["containers"][0]["restartPolicyRules"] = json!([{
                "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [9] },
            }]);
        }
    })
}

fn restart_counts(status: &PodStatus) -> Vec<(&str, i32)> {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let all = lists.into_iter().flatten().flatten();
    all.map(|status| (status.name.as_str(), status.restart_count)).collect()
}

fn has_one_state(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref().unwrap();
    let states = [state.running.is_some(), state.waiting.is_some(), state.terminated.is_some()];
    states.into_iter().filter(|is| *is).count() == 1
}

fn policy() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")]
}

proptest! {
    #[test]
    fn reports_never_go_back_under_any_events(
        policy in policy(),
        restart_all in any::<bool>(),
        events in vec(event(), 1..30),
    ) {
        let mut scene = scene(policy, restart_all);
        let mut before: Option<PodStatus> = None;
        for event in events {
            apply_event(&mut scene, &event);
            let update = scene.accept(ReportTrigger::Sync, scene.status());
            let refused = matches!(update, Acceptance::Refused(_));
            if let Acceptance::Accepted { entry, left_out } = update {
                prop_assert!(left_out.is_empty());
                scene.entry = Some(entry);
            }
            let Some(entry) = &scene.entry else { continue };
            let status = &*entry.status;
            let api = scene.pod.api_phase;
            if let Some(before) = &before {
                let reported = phase_of(before);
                // The agent's own phase may only be overridden by the API's.
                let kept = !reported.is_terminal() || phase_of(status) == reported;
                prop_assert!(kept || phase_of(status) == api, "{event:?}");
                for (name, count) in restart_counts(before) {
                    let now = restart_counts(status).into_iter().find(|(n, _)| *n == name);
                    prop_assert!(now.unwrap().1 >= count, "{name}: {event:?}");
                }
                prop_assert_eq!(&before.start_time, &status.start_time);
            }
            prop_assert!(!api.is_terminal() || phase_of(status) == api || refused);
            prop_assert!(status.container_statuses.iter().flatten().all(has_one_state));
            let shown = merge(&scene.pod.object, status, true, scene.now.wall);
            prop_assert!(!api.is_terminal() || phase_of(&shown) == api);
            before = Some(status.clone());
        }
    }

    #[test]
    fn status_settles_without_events(
        policy in policy(),
        restart_all in any::<bool>(),
        events in vec(event(), 1..20),
    ) {
        let mut scene = scene(policy, restart_all);
        for event in events {
            apply_event(&mut scene, &event);
        }
        for _ in 0..3 {
            if let Acceptance::Accepted { entry, .. } =
                scene.accept(ReportTrigger::Sync, scene.status())
            {
                scene.entry = Some(entry);
            }
        }
        let Some(entry) = scene.entry.clone() else { return Ok(()) };
        match scene.accept(ReportTrigger::Sync, scene.status()) {
            Acceptance::Unchanged | Acceptance::Refused(_) => {}
            Acceptance::Accepted { entry: again, .. } => {
                prop_assert!(scene.pod.deletion.is_some());
                prop_assert!(equal(&entry.status, &again.status));
            }
        }
    }

    #[test]
    fn restarted_agent_continues_from_the_last_report(
        policy in policy(),
        events in vec(ordinary(), 1..20),
    ) {
        let mut scene = scene(policy, false);
        for event in events {
            apply_event(&mut scene, &event);
            if let Acceptance::Accepted { entry, .. } =
                scene.accept(ReportTrigger::Sync, scene.status())
            {
                if phase_of(&entry.status).is_terminal() {
                    scene.lifecycle.complete();
                }
                scene.entry = Some(entry);
            }
        }
        // A refused report is not in the API, and is not repeated either.
        let is_unchanged = scene.accept(ReportTrigger::Sync, scene.status()) == Acceptance::Unchanged;
        let reported = scene.reported().clone();
        scene.sent();
        scene.entry = None;
        scene.probed = ProbeVerdicts::default();
        scene.lifecycle = Lifecycle::begin(&scene.pod, scene.observed.is_alive());
        scene.lifecycle.request(Request::Create, &scene.pod);
        scene.agent_started = scene.now.wall;
        scene.wait(3);
        let Acceptance::Accepted { entry, .. } = scene.accept(ReportTrigger::Sync, scene.status()) else {
            return Ok(());
        };
        prop_assert!(!is_unchanged || equal(&reported, &entry.status));
    }

    #[test]
    fn normalising_is_idempotent(status in status()) {
        let pod = pod(object("Always", &CONTAINERS), |_| {});
        let mut once = status;
        normalise(&pod, &mut once);
        let mut twice = once.clone();
        normalise(&pod, &mut twice);
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn patch_turns_before_into_after(before in status(), after in status()) {
        let pod = pod(object("Always", &CONTAINERS), |_| {});
        let by_type = |mut status: PodStatus| {
            normalise(&pod, &mut status);
            let conditions = status.conditions.iter_mut();
            conditions.for_each(|list| list.sort_by(|a, b| a.type_.cmp(&b.type_)));
            status
        };
        match patch(&before, &after, "u1") {
            Some(patch) => prop_assert_eq!(by_type(apply(&patch, &before)), by_type(after)),
            None => prop_assert_eq!(by_type(before), by_type(after)),
        }
    }

    #[test]
    fn equal_statuses_need_no_patch(status in status()) {
        prop_assert_eq!(patch(&status, &status, "u1"), None);
    }
}

/// Any status, with the fields that a patch treats differently.
fn status() -> impl Strategy<Value = PodStatus> {
    let word = || prop_oneof![Just(None), Just(Some("")), Just(Some("x")), Just(Some("y"))];
    let amounts = || {
        prop_oneof![
            Just(json!({})),
            Just(json!({ "cpu": "1" })),
            Just(json!({ "cpu": "0.5", "memory": "1024Ki" })),
            Just(json!({ "memory": "64Mi" })),
        ]
    };
    let texts = (word(), word(), word());
    let lists = (
        subset(&["Ready", "Initialized", "example.com/ok", "DisruptionTarget"]),
        vec(word(), 4),
        subset(&["10.0.0.1", "fd00::1", "10.0.0.2"]),
        subset(&["10.0.0.1", "10.0.0.2"]),
    );
    let containers = (vec(container(), 0..4), vec(container(), 0..3));
    (texts, lists, containers, amounts(), amounts(), any::<bool>()).prop_map(
        |(
            (phase, reason, message),
            (types, answers, pod_ips, host_ips),
            (regular, init),
            a,
            b,
            set,
        )| {
            let conditions: Vec<Value> = types
                .iter()
                .zip(answers)
                .map(|(type_, answer)| {
                    json!({
                        "type": type_, "status": answer.unwrap_or("True"), "reason": answer,
                    })
                })
                .collect();
            let ip = |ips: &[&str]| ips.iter().map(|ip| json!({ "ip": ip })).collect::<Vec<_>>();
            let named = |list: Vec<Value>, kinds: [ContainerKind; 2]| -> Vec<Value> {
                let pod = pod(object("Always", &CONTAINERS), |_| {});
                let names = pod.containers.iter().filter(|c| kinds.contains(&c.kind)).rev();
                names
                    .zip(list)
                    .map(|(container, mut status)| {
                        status["name"] = (*container.name).into();
                        status
                    })
                    .collect()
            };
            let mut status = json!({
                "phase": phase, "reason": reason, "message": message,
                "podIPs": ip(&pod_ips), "hostIPs": ip(&host_ips), "conditions": conditions,
                "containerStatuses": named(regular, [ContainerKind::Regular; 2]),
                "initContainerStatuses": named(init, [ContainerKind::Init, ContainerKind::Sidecar]),
                "startTime": "2023-11-14T00:00:00.5Z",
            });
            if set {
                status["resources"] = json!({ "limits": a, "requests": b });
                status["allocatedResources"] = status["resources"]["requests"].clone();
            }
            // Without fractions of seconds, which the server does not store.
            let status: PodStatus = serde_json::from_value(status).unwrap();
            serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap()
        },
    )
}

fn subset(of: &'static [&'static str]) -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(of, 0..=of.len()).prop_shuffle()
}

fn container() -> impl Strategy<Value = Value> {
    let state = || {
        prop_oneof![
            Just(json!({})),
            Just(json!({ "running": { "startedAt": "2023-11-14T00:00:00.25Z" } })),
            Just(json!({ "waiting": { "reason": "R", "message": "" } })),
            Just(json!({ "terminated": { "exitCode": 1, "message": "€".repeat(3000) } })),
        ]
    };
    (state(), state(), any::<bool>(), 0..3i32).prop_map(|(state, last, ready, count)| {
        json!({
            "name": "", "image": "i", "imageID": "", "ready": ready, "restartCount": count,
            "state": state, "lastState": last, "resources": { "limits": { "cpu": "0.5" } },
        })
    })
}
