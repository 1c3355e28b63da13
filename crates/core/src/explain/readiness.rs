//! Why a pod that runs is not ready: which probe fails, and what it was answered.

use k8s_openapi::api::core::v1;

use crate::pod::{Container, Pod, ProbeKind};
use crate::probe::answers::{ProbeAnswers, ProbeRecord};
use crate::probe::check::Timing;

/// A failing probe, as a user reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingProbe {
    pub text: String,
    pub fix: String,
}

/// The first probe that keeps a running container from being ready, or will have it restarted.
pub fn failing_probe(
    pod: &Pod,
    status: &v1::PodStatus,
    answers: &ProbeAnswers,
) -> Option<FailingProbe> {
    let running = |container: &Container| {
        let regular = status.container_statuses.iter().flatten();
        let mut all = regular.chain(status.init_container_statuses.iter().flatten());
        let found = all.find(|it| it.name == *container.name)?;
        found.state.as_ref()?.running.as_ref().map(|_| found)
    };
    pod.containers.iter().filter(|container| container.kind.is_probed()).find_map(|container| {
        let status = running(container)?;
        let record = |kind| answers.get(&container.name, kind);
        if container.probe(ProbeKind::Startup).is_some() && status.started == Some(false) {
            return Some(failing(container, ProbeKind::Startup, record(ProbeKind::Startup)));
        }
        if container.probe(ProbeKind::Readiness).is_some() && !status.ready {
            return Some(failing(container, ProbeKind::Readiness, record(ProbeKind::Readiness)));
        }
        let liveness = record(ProbeKind::Liveness).filter(|record| !record.last.passed);
        liveness.map(|record| failing(container, ProbeKind::Liveness, Some(record)))
    })
}

fn failing(container: &Container, kind: ProbeKind, record: Option<&ProbeRecord>) -> FailingProbe {
    let (name, probe) = (&container.name, kind.as_str().to_lowercase());
    let state = match kind {
        ProbeKind::Startup => "has not started up",
        ProbeKind::Readiness => "is not ready",
        ProbeKind::Liveness => "is about to be restarted",
    };
    let timing = container.probe(kind).map(Timing::of);
    let failures = timing.map_or(0, |timing| timing.failures);
    let (said, fix) = match record {
        None => (format!("its {probe} probe has not run yet"), wait_for(container, kind)),
        Some(record) if record.last.passed => (
            format!("its {probe} probe passed {} in a row", times(record.in_a_row)),
            wait_for(container, kind),
        ),
        Some(record) => {
            let count = match kind {
                ProbeKind::Readiness => times(record.in_a_row),
                ProbeKind::Startup | ProbeKind::Liveness => {
                    format!("{} of {failures} times", record.in_a_row)
                }
            };
            (
                format!("its {probe} probe failed {count} in a row, last: {}", record.last.text),
                format!(
                    "make {name} pass {}, or correct the probe; its log may say more",
                    check(container, kind)
                ),
            )
        }
    };
    FailingProbe { text: format!("{name} {state}: {said}"), fix }
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn wait_for(container: &Container, kind: ProbeKind) -> String {
    let timing = container.probe(kind).map(Timing::of);
    let (delay, period) =
        timing.map_or((0, 0), |timing| (timing.delay.as_secs(), timing.period.as_secs()));
    format!("wait: the probe starts after {delay}s and runs every {period}s")
}

/// What the probe asks, such as `GET /healthz on port 8080`.
pub fn check(container: &Container, kind: ProbeKind) -> String {
    let Some(probe) = container.probe(kind) else { return "the probe".to_owned() };
    let port = |port: &k8s_openapi::apimachinery::pkg::util::intstr::IntOrString| {
        use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
        match port {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(name) => name.clone(),
        }
    };
    if let Some(http) = &probe.http_get {
        let path = http.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
        return format!("GET {path} on port {}", port(&http.port));
    }
    if let Some(tcp) = &probe.tcp_socket {
        return format!("a connection to port {}", port(&tcp.port));
    }
    if let Some(grpc) = &probe.grpc {
        return format!("the gRPC health check on port {}", grpc.port);
    }
    let command = probe.exec.as_ref().and_then(|exec| exec.command.as_deref()).unwrap_or_default();
    format!("the command {}", super::excerpt(&command.join(" "), 60))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::builders::pod;
    use crate::ids::ContainerId;
    use crate::probe::ProbeOutcome;

    fn status(ready: bool, started: bool) -> v1::PodStatus {
        let status = json!({"containerStatuses": [{"name": "app", "ready": ready, "started": started,
            "restartCount": 0, "image": "i", "imageID": "", "state": {"running": {}}}]});
        serde_json::from_value(status).unwrap()
    }

    fn answers(kind: ProbeKind, outcomes: &[ProbeOutcome]) -> ProbeAnswers {
        let (mut answers, app): (_, Arc<str>) = (ProbeAnswers::default(), "app".into());
        for outcome in outcomes {
            let id = ContainerId::new("i");
            answers.record(&app, kind, &id, (outcome, None), Timestamp::UNIX_EPOCH);
        }
        answers
    }

    fn probed(field: &str, probe: Value) -> Pod {
        let fields = serde_json::Map::from_iter([(field.to_owned(), probe)]);
        pod("web").container_with("app", Value::Object(fields)).build()
    }

    #[test]
    fn probe_that_keeps_a_pod_from_being_ready_is_named_with_its_last_answer() {
        let bad = || ProbeOutcome::Failure("status 503: warming up".into());
        let get = json!({"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 5});
        let (startup, readiness, liveness) =
            (ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness);
        for (field, kind, outcomes, ready, started, text, fix) in [
            (
                "readinessProbe",
                readiness,
                vec![bad(), bad()],
                (false),
                true,
                "app is not ready: its readiness probe failed 2 times in a row, last: status 503: \
                 warming up",
                "GET /ready on port 8080",
            ),
            ("readinessProbe", readiness, vec![], false, true, "has not run yet", "every 5s"),
            (
                "readinessProbe",
                readiness,
                vec![bad(), ProbeOutcome::Success],
                false,
                true,
                "passed once in a row",
                "wait",
            ),
            (
                "startupProbe",
                startup,
                vec![bad()],
                false,
                false,
                "app has not started up: its startup probe failed 1 of 3 times in a row",
                "/ready",
            ),
            (
                "livenessProbe",
                liveness,
                vec![bad()],
                true,
                true,
                "app is about to be restarted: its liveness probe failed 1 of 3",
                "/ready",
            ),
        ] {
            let pod = probed(field, get.clone());
            let answers = answers(kind, &outcomes);
            let found = failing_probe(&pod, &status(ready, started), &answers).unwrap();
            assert!(found.text.contains(text), "{}", found.text);
            assert!(found.fix.contains(fix), "{}", found.fix);
        }
    }

    #[test]
    fn nothing_is_said_about_ready_containers_and_containers_that_do_not_run() {
        let pod = probed("readinessProbe", json!({"tcpSocket": {"port": "web"}}));
        let none = ProbeAnswers::default();
        assert_eq!(failing_probe(&pod, &status(true, true), &none), None);
        assert_eq!(failing_probe(&pod, &v1::PodStatus::default(), &none), None);
        let passed = answers(ProbeKind::Liveness, &[ProbeOutcome::Success]);
        assert_eq!(failing_probe(&pod, &status(true, true), &passed), None);
    }

    #[test]
    fn checks_are_described() {
        for (probe, want) in [
            (json!({"httpGet": {"port": 80}}), "GET / on port 80"),
            (json!({"tcpSocket": {"port": "web"}}), "a connection to port web"),
            (json!({"grpc": {"port": 9}}), "the gRPC health check on port 9"),
            (json!({"exec": {"command": ["cat", "/ok"]}}), "the command cat /ok"),
        ] {
            let pod = probed("livenessProbe", probe);
            assert_eq!(check(&pod.containers[0], ProbeKind::Liveness), want);
        }
    }
}
