//! Tests of the probe schedule, on a clock that the test moves.

use serde_json::{Value, json};

use super::*;
use crate::builders::{observed, pod, t};

const FAILED: fn() -> ProbeOutcome = || ProbeOutcome::Failure("no".into());

/// A pod, its observed state, and its schedule.
struct Fixture {
    pod: Pod,
    observed: ObservedPod,
    reported: Option<PodStatus>,
    agent_started: Now,
    ending: bool,
    schedule: Schedule,
}

impl Fixture {
    /// Container `c`, started at second 100 under an agent that started at second 0.
    fn new(probes: Value) -> Self {
        Self::of(pod("p").container_with("c", probes).build())
    }

    fn of(pod: Pod) -> Self {
        let observed = observed(&pod).sandbox_ready().running("c", t(100)).build();
        let schedule = Schedule::of(&pod).unwrap();
        Self { pod, observed, reported: None, agent_started: t(0), ending: false, schedule }
    }

    fn inspect(&mut self, now: Now) -> Vec<SettledVerdict> {
        let sight = ProbeInputs {
            pod: &self.pod,
            observed: &self.observed,
            ending: self.ending,
            reported: self.reported.as_ref(),
            agent_started: self.agent_started.wall,
        };
        self.schedule.inspect(&sight, now)
    }

    /// Runs until `until` with this outcome for every probe. Returns when each probe ran, in
    /// milliseconds after second 100, and the settled verdicts.
    fn run(&mut self, until: u64, outcome: &ProbeOutcome) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(at) = self.schedule.wake_at().filter(|at| *at <= t(until).mono) {
            for ask in self.schedule.due(at) {
                let after = at.since(t(100).mono).as_millis();
                let recorded = self.schedule.record(&ask, outcome, at);
                assert!(recorded.current);
                let verdict = recorded.settled.map(|settled| format!(" {:?}", settled.verdict));
                let counts = if recorded.counts { "" } else { " (early)" };
                let kind = ask.kind.as_str();
                lines.push(format!("{after} {kind}{counts}{}", verdict.unwrap_or_default()));
            }
        }
        lines
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
fn pod_without_probes_has_no_schedule() {
    assert!(Schedule::of(&pod("p").container("c").init("i").build()).is_none());
    let plain_init = pod("p").container("c").edit(|pod| {
        let mut init = readiness(json!({}));
        init["name"] = json!("i");
        pod["spec"]["initContainers"] = json!([init]);
    });
    assert!(Schedule::of(&plain_init.build()).is_none(), "a plain init container is not probed");
}

#[test]
fn only_readiness_and_startup_probes_run_early() {
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
            "readiness with a delay runs after it",
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
        let mut fixture = Fixture::new(probes);
        fixture.inspect(t(100));
        let lines: Vec<String> = fixture.run(123, &FAILED()).into_iter().take(want.len()).collect();
        assert_eq!(lines, want, "{case}");
    }
}

#[test]
fn failing_startup_probe_allows_failure_threshold_periods() {
    let mut fixture = Fixture::new(startup(json!({ "periodSeconds": 2, "failureThreshold": 3 })));
    fixture.inspect(t(100));
    let lines = fixture.run(200, &FAILED());
    assert_eq!(
        lines,
        [
            "0 Startup (early)",
            "250 Startup (early)",
            "1000 Startup (early)",
            "2000 Startup",
            "4000 Startup",
            "6000 Startup Failure"
        ],
        "no run follows"
    );
}

#[test]
fn only_consecutive_failures_settle_a_verdict() {
    let mut fixture = Fixture::new(liveness(json!({})));
    fixture.inspect(t(100));
    let answers = [FAILED(), FAILED(), ProbeOutcome::Success, FAILED(), FAILED()];
    for (n, answer) in answers.iter().enumerate() {
        let lines = fixture.run(110 + 10 * n as u64, answer);
        assert!(lines.len() == 1 && !lines[0].contains("Failure"), "{n}: {lines:?}");
    }
    assert_eq!(fixture.run(160, &FAILED()), ["60000 Liveness Failure"]);
    assert_eq!(fixture.schedule.wake_at(), None, "done until another instance runs");
}

#[test]
fn readiness_settles_by_its_thresholds_and_keeps_running() {
    let fields = json!({ "successThreshold": 2, "failureThreshold": 2, "periodSeconds": 1 });
    let mut fixture = Fixture::new(readiness(fields));
    fixture.inspect(t(100));
    assert_eq!(
        fixture.run(102, &ProbeOutcome::Success),
        ["1000 Readiness", "2000 Readiness Success"]
    );
    assert_eq!(fixture.run(103, &FAILED()), ["3000 Readiness"]);
    assert_eq!(fixture.run(104, &FAILED()), ["4000 Readiness Failure"]);
    assert_eq!(fixture.run(106, &ProbeOutcome::Success)[1], "6000 Readiness Success");
}

#[test]
fn probe_error_changes_nothing() {
    let fields = json!({ "failureThreshold": 2, "periodSeconds": 1 });
    let mut fixture = Fixture::new(liveness(fields));
    fixture.inspect(t(100));
    fixture.run(101, &FAILED());
    assert_eq!(fixture.run(103, &ProbeOutcome::error("?")), ["2000 Liveness", "3000 Liveness"]);
    assert_eq!(fixture.run(104, &FAILED()), ["4000 Liveness Failure"], "the count continues");
}

#[test]
fn other_probes_wait_for_the_startup_probe() {
    let mut probes = startup(json!({ "periodSeconds": 5 }));
    probes["readinessProbe"] = probe(json!({ "initialDelaySeconds": 2 }));
    probes["livenessProbe"] = probe(json!({}));
    let mut fixture = Fixture::new(probes);
    fixture.inspect(t(100));
    let lines = fixture.run(104, &FAILED());
    assert!(lines.iter().all(|line| line.contains("Startup")), "{lines:?}");
    let lines = fixture.run(120, &ProbeOutcome::Success);
    assert_eq!(
        lines,
        [
            "5000 Startup Success",
            "5000 Readiness Success",
            "15000 Readiness Success",
            "15000 Liveness",
        ],
        "startup is done; liveness begins a period later and its success settles nothing"
    );
}

#[test]
fn new_instance_starts_without_outcomes() {
    let mut fixture = Fixture::new(liveness(json!({ "failureThreshold": 1 })));
    fixture.inspect(t(100));
    assert_eq!(fixture.run(110, &FAILED()), ["10000 Liveness Failure"]);
    fixture.observed = observed(&fixture.pod)
        .sandbox_ready()
        .exited("c", 137, t(100))
        .running("c", t(112))
        .build();
    fixture.inspect(t(112));
    assert_eq!(fixture.run(122, &FAILED()), ["22000 Liveness Failure"]);
}

#[test]
fn outcome_for_a_removed_instance_is_ignored() {
    let mut fixture = Fixture::new(liveness(json!({ "failureThreshold": 1 })));
    fixture.inspect(t(100));
    let due = fixture.schedule.due(t(110).mono);
    assert!(fixture.schedule.watches(&due[0].instance));
    fixture.observed = observed(&fixture.pod).sandbox_ready().exited("c", 0, t(111)).build();
    fixture.inspect(t(111));
    assert_eq!(
        fixture.schedule.record(&due[0], &FAILED(), t(112).mono),
        RecordedOutcome::default()
    );
    assert!(!fixture.schedule.watches(&due[0].instance));
    assert_eq!(fixture.schedule.wake_at(), None, "no container is running");
}

#[test]
fn slow_probe_delays_the_next_run_but_not_the_period() {
    let mut fixture = Fixture::new(liveness(json!({ "periodSeconds": 10, "timeoutSeconds": 30 })));
    fixture.inspect(t(100));
    let due = fixture.schedule.due(t(110).mono);
    assert_eq!(fixture.schedule.wake_at(), None, "one run at a time");
    assert!(fixture.schedule.due(t(125).mono).is_empty());
    fixture.schedule.record(&due[0], &ProbeOutcome::Success, t(115).mono);
    assert_eq!(fixture.schedule.wake_at(), Some(t(120).mono));
    let due = fixture.schedule.due(t(120).mono);
    fixture.schedule.record(&due[0], &ProbeOutcome::Success, t(148).mono);
    assert_eq!(fixture.schedule.wake_at(), Some(t(148).mono), "it is already late");
}

/// Report of the previous agent process about instance `c-0`.
fn reported(started: bool) -> Option<PodStatus> {
    let status = json!({ "containerStatuses": [{
        "name": "c", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
        "containerID": "containerd://c-0", "started": started,
    }] });
    Some(serde_json::from_value(status).unwrap())
}

#[test]
fn after_an_agent_restart_nothing_settles_before_a_probe_has_run() {
    let mut probes = startup(json!({ "failureThreshold": 1 }));
    probes["readinessProbe"] = probe(json!({}));
    for (case, report, settled, asked) in [
        ("started before", reported(true), true, "Readiness"),
        ("not started yet", reported(false), false, "Startup"),
        ("never reported", None, false, "Startup"),
    ] {
        let mut fixture = Fixture::new(probes.clone());
        fixture.agent_started = t(500);
        fixture.reported = report;
        let lines = fixture.inspect(t(501));
        let success =
            |s: &SettledVerdict| (s.kind, s.verdict) == (ProbeKind::Startup, ProbeVerdict::Success);
        assert_eq!(lines.iter().any(success), settled, "{case}");
        assert_eq!(lines.len(), usize::from(settled), "{case}: and nothing else");
        let first = fixture.schedule.wake_at().unwrap();
        assert!(first >= t(501).mono && first < t(511).mono, "{case}: within a period");
        assert_eq!(fixture.schedule.due(first)[0].kind.as_str(), asked, "{case}");
    }
}

#[test]
fn sidecar_that_was_reported_as_started_is_not_started_up_again_after_an_agent_restart() {
    let pod = pod("p").sidecar_with("c", startup(json!({}))).container("app").build();
    let mut fixture = Fixture::of(pod);
    fixture.agent_started = t(500);
    let mut report = reported(true).unwrap();
    report.init_container_statuses = report.container_statuses.take();
    fixture.reported = Some(report);
    let settled = fixture.inspect(t(501));
    let verdicts: Vec<_> = settled.iter().map(|s| (s.kind, s.verdict)).collect();
    assert_eq!(verdicts, [(ProbeKind::Startup, ProbeVerdict::Success)]);
    assert_eq!(fixture.schedule.wake_at(), None, "the startup probe does not run again");
}

#[test]
fn first_outcome_settles_for_an_unreported_adopted_container() {
    for (case, report, first) in [("unreported", None, true), ("reported", reported(true), false)] {
        let mut fixture = Fixture::new(readiness(json!({})));
        fixture.agent_started = t(500);
        fixture.reported = report;
        fixture.inspect(t(501));
        let lines = fixture.run(511, &FAILED());
        assert_eq!(lines[0].contains("Failure"), first, "{case}: {lines:?}");
    }
}

#[test]
fn after_an_agent_restart_probes_are_spread_over_their_period() {
    let moments: std::collections::BTreeSet<Mono> = (0..50)
        .map(|n| {
            let pod = pod(&format!("p{n}")).container_with("c", liveness(json!({}))).build();
            let mut fixture = Fixture::of(pod);
            fixture.agent_started = t(500);
            fixture.inspect(t(501));
            fixture.schedule.wake_at().unwrap()
        })
        .collect();
    assert!(moments.len() > 40, "{} of 50", moments.len());
}

#[test]
fn agent_older_than_the_period_probes_an_old_container_at_once() {
    let mut fixture = Fixture::new(liveness(json!({})));
    fixture.inspect(t(300));
    assert_eq!(fixture.schedule.wake_at(), Some(t(300).mono));
}

#[test]
fn terminating_pod_keeps_only_readiness_and_sidecar_probes() {
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
        let mut fixture = Fixture::of(builder.build());
        fixture.inspect(t(100));
        fixture.ending = true;
        fixture.inspect(t(105));
        let due = fixture.schedule.due(t(110).mono);
        let kinds: Vec<&str> = due.iter().map(|ask| ask.kind.as_str()).collect();
        assert_eq!(kinds, want, "{case}");
    }
}

#[test]
fn clock_step_back_delays_a_probe_by_at_most_its_initial_delay() {
    let mut fixture = Fixture::new(liveness(json!({ "initialDelaySeconds": 30 })));
    fixture.inspect(Now { wall: t(10).wall, mono: t(100).mono });
    assert_eq!(fixture.schedule.wake_at(), Some(t(130).mono));
}
