//! When probes are asked and what settles, on a clock that the test moves.

use serde_json::{Value, json};

use super::*;
use crate::builders::{observed, pod, t};

const FAILED: fn() -> Outcome = || Outcome::Failure("no".into());

/// A pod, what runs of it, and its schedule.
struct Scene {
    pod: Pod,
    observed: ObservedPod,
    reported: Option<PodStatus>,
    agent_started: Now,
    ending: bool,
    schedule: Schedule,
}

impl Scene {
    /// Container `c`, started at second 100 under an agent that started at second 0.
    fn new(probes: Value) -> Self {
        Self::of(pod("p").container_with("c", probes).build())
    }

    fn of(pod: Pod) -> Self {
        let observed = observed(&pod).sandbox_ready().running("c", t(100)).build();
        let schedule = Schedule::of(&pod).unwrap();
        Self { pod, observed, reported: None, agent_started: t(0), ending: false, schedule }
    }

    fn look(&mut self, now: Now) -> Vec<Settled> {
        let sight = Sight {
            pod: &self.pod,
            observed: &self.observed,
            ending: self.ending,
            reported: self.reported.as_ref(),
            agent_started: self.agent_started.wall,
        };
        self.schedule.look(&sight, now)
    }

    /// Runs until `until` with this answer to everything; tells when what was asked, in
    /// milliseconds after second 100, and what settled.
    fn run(&mut self, until: u64, outcome: &Outcome) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(at) = self.schedule.wake_at().filter(|at| *at <= t(until).mono) {
            for ask in self.schedule.due(at) {
                let after = at.since(t(100).mono).as_millis();
                let heard = self.schedule.answer(&ask, outcome, at);
                assert!(heard.current);
                let verdict = heard.settled.map(|settled| format!(" {:?}", settled.verdict));
                let counts = if heard.counts { "" } else { " (early)" };
                let kind = ask.kind.as_str();
                told.push(format!("{after} {kind}{counts}{}", verdict.unwrap_or_default()));
            }
        }
        told
    }
}

fn probe(fields: Value) -> Value {
    let mut probe = json!({ "exec": { "command": ["x"] }, "periodSeconds": 10 });
    let Value::Object(fields) = fields else { panic!("fields") };
    probe.as_object_mut().unwrap().extend(fields);
    probe
}

fn readiness(fields: Value) -> Value {
    json!({ "readinessProbe": probe(fields) })
}

fn liveness(fields: Value) -> Value {
    json!({ "livenessProbe": probe(fields) })
}

fn startup(fields: Value) -> Value {
    json!({ "startupProbe": probe(fields) })
}

#[test]
fn a_pod_without_probes_has_no_schedule() {
    assert!(Schedule::of(&pod("p").container("c").init("i").build()).is_none());
    let plain_init = pod("p").container("c").edit(|pod| {
        let mut init = readiness(json!({}));
        init["name"] = json!("i");
        pod["spec"]["initContainers"] = json!([init]);
    });
    assert!(Schedule::of(&plain_init.build()).is_none(), "a plain init container is not probed");
}

#[test]
fn the_first_question_comes_early_only_where_an_answer_can_do_no_harm() {
    let early = ["0 Readiness (early)", "250 Readiness (early)", "1000 Readiness (early)"];
    for (case, probes, want) in [
        (
            "readiness",
            readiness(json!({})),
            [&early[..], &["10000 Readiness", "20000 Readiness"]].concat(),
        ),
        (
            "readiness with a short period",
            readiness(json!({ "periodSeconds": 1, "failureThreshold": 99 })),
            [&early[..2], &["1000 Readiness", "2000 Readiness"]].concat(),
        ),
        (
            "readiness that must succeed more than once",
            readiness(json!({ "successThreshold": 2 })),
            vec!["10000 Readiness", "20000 Readiness"],
        ),
        (
            "readiness with a delay is asked when it says",
            readiness(json!({ "initialDelaySeconds": 5 })),
            vec!["5000 Readiness", "15000 Readiness"],
        ),
        ("liveness", liveness(json!({})), vec!["10000 Liveness", "20000 Liveness"]),
        (
            "liveness with a delay",
            liveness(json!({ "initialDelaySeconds": 3 })),
            vec!["3000 Liveness", "13000 Liveness"],
        ),
    ] {
        let mut scene = Scene::new(probes);
        scene.look(t(100));
        let told: Vec<String> = scene.run(123, &FAILED()).into_iter().take(want.len()).collect();
        assert_eq!(told, want, "{case}");
    }
}

#[test]
fn a_failing_startup_probe_leaves_the_container_all_its_periods() {
    let mut scene = Scene::new(startup(json!({ "periodSeconds": 2, "failureThreshold": 3 })));
    scene.look(t(100));
    let told = scene.run(200, &FAILED());
    assert_eq!(
        told,
        [
            "0 Startup (early)",
            "250 Startup (early)",
            "1000 Startup (early)",
            "2000 Startup",
            "4000 Startup",
            "6000 Startup Failure"
        ],
        "and it is not asked any more after that"
    );
}

#[test]
fn row_28_only_failures_in_a_row_settle() {
    let mut scene = Scene::new(liveness(json!({})));
    scene.look(t(100));
    let answers = [FAILED(), FAILED(), Outcome::Success, FAILED(), FAILED()];
    for (n, answer) in answers.iter().enumerate() {
        let told = scene.run(110 + 10 * n as u64, answer);
        assert!(told.len() == 1 && !told[0].contains("Failure"), "{n}: {told:?}");
    }
    assert_eq!(scene.run(160, &FAILED()), ["60000 Liveness Failure"]);
    assert_eq!(scene.schedule.wake_at(), None, "held until another instance runs");
}

#[test]
fn readiness_settles_by_its_thresholds_and_goes_on() {
    let fields = json!({ "successThreshold": 2, "failureThreshold": 2, "periodSeconds": 1 });
    let mut scene = Scene::new(readiness(fields));
    scene.look(t(100));
    assert_eq!(scene.run(102, &Outcome::Success), ["1000 Readiness", "2000 Readiness Success"]);
    assert_eq!(scene.run(103, &FAILED()), ["3000 Readiness"]);
    assert_eq!(scene.run(104, &FAILED()), ["4000 Readiness Failure"]);
    assert_eq!(scene.run(106, &Outcome::Success)[1], "6000 Readiness Success");
}

#[test]
fn a_question_that_could_not_be_asked_changes_nothing() {
    let fields = json!({ "failureThreshold": 2, "periodSeconds": 1 });
    let mut scene = Scene::new(liveness(fields));
    scene.look(t(100));
    scene.run(101, &FAILED());
    assert_eq!(scene.run(103, &Outcome::error("?")), ["2000 Liveness", "3000 Liveness"]);
    assert_eq!(scene.run(104, &FAILED()), ["4000 Liveness Failure"], "the run goes on");
}

#[test]
fn the_other_probes_wait_for_the_startup_probe() {
    let mut probes = startup(json!({ "periodSeconds": 5 }));
    probes["readinessProbe"] = probe(json!({ "initialDelaySeconds": 2 }));
    probes["livenessProbe"] = probe(json!({}));
    let mut scene = Scene::new(probes);
    scene.look(t(100));
    let told = scene.run(104, &FAILED());
    assert!(told.iter().all(|line| line.contains("Startup")), "{told:?}");
    let told = scene.run(120, &Outcome::Success);
    assert_eq!(
        told,
        [
            "5000 Startup Success",
            "5000 Readiness Success",
            "15000 Readiness Success",
            "15000 Liveness",
        ],
        "startup is asked no more; liveness begins a period later and its success is no news"
    );
}

#[test]
fn a_new_instance_starts_from_nothing() {
    let mut scene = Scene::new(liveness(json!({ "failureThreshold": 1 })));
    scene.look(t(100));
    assert_eq!(scene.run(110, &FAILED()), ["10000 Liveness Failure"]);
    scene.observed =
        observed(&scene.pod).sandbox_ready().exited("c", 137, t(100)).running("c", t(112)).build();
    scene.look(t(112));
    assert_eq!(scene.run(122, &FAILED()), ["22000 Liveness Failure"]);
}

#[test]
fn an_answer_to_an_instance_that_is_gone_is_not_heard() {
    let mut scene = Scene::new(liveness(json!({ "failureThreshold": 1 })));
    scene.look(t(100));
    let asks = scene.schedule.due(t(110).mono);
    assert!(scene.schedule.watches(&asks[0].instance));
    scene.observed = observed(&scene.pod).sandbox_ready().exited("c", 0, t(111)).build();
    scene.look(t(111));
    assert_eq!(scene.schedule.answer(&asks[0], &FAILED(), t(112).mono), Heard::default());
    assert!(!scene.schedule.watches(&asks[0].instance));
    assert_eq!(scene.schedule.wake_at(), None, "nothing runs, nothing is asked");
}

#[test]
fn a_slow_answer_delays_the_next_question_but_not_the_rhythm() {
    let mut scene = Scene::new(liveness(json!({ "periodSeconds": 10, "timeoutSeconds": 30 })));
    scene.look(t(100));
    let asks = scene.schedule.due(t(110).mono);
    assert_eq!(scene.schedule.wake_at(), None, "one question at a time");
    assert!(scene.schedule.due(t(125).mono).is_empty());
    scene.schedule.answer(&asks[0], &Outcome::Success, t(115).mono);
    assert_eq!(scene.schedule.wake_at(), Some(t(120).mono));
    let asks = scene.schedule.due(t(120).mono);
    scene.schedule.answer(&asks[0], &Outcome::Success, t(148).mono);
    assert_eq!(scene.schedule.wake_at(), Some(t(148).mono), "it is late already");
}

/// What the agent before this one reported of instance `c-0`.
fn reported(started: bool) -> Option<PodStatus> {
    let status = json!({ "containerStatuses": [{
        "name": "c", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
        "containerID": "containerd://c-0", "started": started,
    }] });
    Some(serde_json::from_value(status).unwrap())
}

#[test]
fn row_29_after_a_restart_of_the_agent_nothing_settles_before_a_probe_has_spoken() {
    let mut probes = startup(json!({ "failureThreshold": 1 }));
    probes["readinessProbe"] = probe(json!({}));
    for (case, report, settled, asked) in [
        ("started before", reported(true), true, "Readiness"),
        ("not started yet", reported(false), false, "Startup"),
        ("never reported", None, false, "Startup"),
    ] {
        let mut scene = Scene::new(probes.clone());
        scene.agent_started = t(500);
        scene.reported = report;
        let told = scene.look(t(501));
        let success = |s: &Settled| (s.kind, s.verdict) == (ProbeKind::Startup, Verdict::Success);
        assert_eq!(told.iter().any(success), settled, "{case}");
        assert_eq!(told.len(), usize::from(settled), "{case}: and nothing else");
        let first = scene.schedule.wake_at().unwrap();
        assert!(first >= t(501).mono && first < t(511).mono, "{case}: within a period");
        assert_eq!(scene.schedule.due(first)[0].kind.as_str(), asked, "{case}");
    }
}

#[test]
fn of_an_adopted_container_that_nobody_reported_the_first_answer_settles() {
    for (case, report, first) in [("unreported", None, true), ("reported", reported(true), false)] {
        let mut scene = Scene::new(readiness(json!({})));
        scene.agent_started = t(500);
        scene.reported = report;
        scene.look(t(501));
        let told = scene.run(511, &FAILED());
        assert_eq!(told[0].contains("Failure"), first, "{case}: {told:?}");
    }
}

#[test]
fn after_a_restart_of_the_agent_probes_begin_at_different_moments() {
    let moments: std::collections::BTreeSet<Mono> = (0..50)
        .map(|n| {
            let pod = pod(&format!("p{n}")).container_with("c", liveness(json!({}))).build();
            let mut scene = Scene::of(pod);
            scene.agent_started = t(500);
            scene.look(t(501));
            scene.schedule.wake_at().unwrap()
        })
        .collect();
    assert!(moments.len() > 40, "{} of 50", moments.len());
}

#[test]
fn an_agent_older_than_the_period_asks_an_old_container_at_once() {
    let mut scene = Scene::new(liveness(json!({})));
    scene.look(t(300));
    assert_eq!(scene.schedule.wake_at(), Some(t(300).mono));
}

#[test]
fn while_the_pod_ends_only_readiness_and_sidecars_are_still_asked() {
    let both = json!({ "readinessProbe": probe(json!({})), "livenessProbe": probe(json!({})) });
    for (case, sidecar, want) in [
        ("a regular container", false, vec!["Readiness"]),
        ("a sidecar", true, vec!["Readiness", "Liveness"]),
    ] {
        let builder = pod("p");
        let builder = match sidecar {
            true => builder.sidecar_with("c", both.clone()).container("main"),
            false => builder.container_with("c", both.clone()),
        };
        let mut scene = Scene::of(builder.build());
        scene.look(t(100));
        scene.ending = true;
        scene.look(t(105));
        let due = scene.schedule.due(t(110).mono);
        let kinds: Vec<&str> = due.iter().map(|ask| ask.kind.as_str()).collect();
        assert_eq!(kinds, want, "{case}");
    }
}

#[test]
fn a_clock_set_back_delays_a_probe_by_no_more_than_its_delay() {
    let mut scene = Scene::new(liveness(json!({ "initialDelaySeconds": 30 })));
    scene.look(Now { wall: t(10).wall, mono: t(100).mono });
    assert_eq!(scene.schedule.wake_at(), Some(t(130).mono));
}
