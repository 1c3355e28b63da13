//! Explanation of the state of a pod: what it waits for, since when, what failed, and the fix.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1;
use podwright_core::admission::Rejection;
use podwright_core::attempts::PodStep;
use podwright_core::explain::exit::{self, EndedContainer};
use podwright_core::explain::image::{self, MissingImage};
use podwright_core::explain::pending::PendingReason;
use podwright_core::explain::{readiness, unwell};
use podwright_core::lifecycle::{Stage, TerminationCause};
use podwright_core::observed::{Exit, Instance, State};
use podwright_core::plan::{self, Case, Topic, Why};
use podwright_core::pod::{Container, Pod, ProbeKind};
use podwright_core::probe::answers::{ProbeAnswer, ProbeAnswers};
use podwright_core::probe::check::Timing;
use podwright_core::time::{Mono, Now};
use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use crate::pods::journal::{Journal, JournalEntry, Underway};

/// The response to `podwright why`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    #[serde(rename = "namespace")]
    pub namespace: String,
    #[serde(rename = "name")]
    pub name: String,
    #[serde(rename = "uid")]
    pub uid: String,
    /// The pod source.
    #[serde(rename = "source")]
    pub source: String,
    #[serde(rename = "stage")]
    pub stage: Stage,
    /// What the pod does or waits for.
    #[serde(rename = "why")]
    pub why: String,
    /// Since when this reason holds.
    #[serde(rename = "since")]
    pub since: Option<Timestamp>,
    #[serde(rename = "wayOut")]
    pub fix: Option<String>,
    /// A runtime call in progress.
    #[serde(rename = "underway")]
    pub underway: Option<Underway>,
    /// Failed operations that will be retried.
    #[serde(rename = "failed")]
    pub failed: Vec<FailedOperation>,
    /// The next scheduled decision.
    #[serde(rename = "next")]
    pub next: Option<Timestamp>,
    #[serde(rename = "containers")]
    pub containers: Vec<ContainerLine>,
    /// Why no node takes the pod; empty if one does.
    #[serde(rename = "pending", default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<PendingReason>,
    /// The volumes that are not ready.
    #[serde(rename = "volumes", default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeLine>,
    /// Why the node ended the pod, if it did.
    #[serde(rename = "ended", default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<EndedLine>,
    /// Recent events, the oldest first.
    #[serde(rename = "lately")]
    pub recent: Vec<JournalEntry>,
    /// When this explanation was made.
    #[serde(rename = "asked")]
    pub as_of: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedOperation {
    #[serde(rename = "what")]
    pub what: String,
    #[serde(rename = "error")]
    pub error: String,
    #[serde(rename = "times")]
    pub times: u32,
    #[serde(rename = "since")]
    pub since: Timestamp,
    #[serde(rename = "retry")]
    pub retry: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerLine {
    #[serde(rename = "name")]
    pub name: String,
    /// The state in a few words.
    #[serde(rename = "state")]
    pub state: String,
    #[serde(rename = "restarts")]
    pub restarts: u32,
    /// How the last instance that ended did so.
    #[serde(rename = "lastExit", default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<ExitLine>,
    /// When it is started again, if it waits.
    #[serde(rename = "nextStart", default, skip_serializing_if = "Option::is_none")]
    pub next_start: Option<Timestamp>,
    #[serde(rename = "probes", default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeLine>,
}

/// The end of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitLine {
    #[serde(rename = "code")]
    pub code: i32,
    #[serde(rename = "signal")]
    pub signal: Option<String>,
    /// `Error`, `Completed`, `OOMKilled`, …
    #[serde(rename = "reason")]
    pub reason: String,
    #[serde(rename = "message")]
    pub message: String,
    #[serde(rename = "started")]
    pub started: Timestamp,
    #[serde(rename = "finished")]
    pub finished: Timestamp,
    /// Its last lines.
    #[serde(rename = "log")]
    pub log: Vec<String>,
}

/// What a probe was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeLine {
    #[serde(rename = "kind")]
    pub kind: ProbeKind,
    /// Such as `GET /healthz on port 8080`.
    #[serde(rename = "check")]
    pub check: String,
    #[serde(rename = "last")]
    pub last: Option<ProbeAnswer>,
    /// How often the last result came in a row.
    #[serde(rename = "inARow")]
    pub in_a_row: u32,
    #[serde(rename = "passed")]
    pub passed: u32,
    #[serde(rename = "failed")]
    pub failed: u32,
    #[serde(rename = "failureThreshold")]
    pub failure_threshold: u32,
    /// The last failure, also of an earlier instance.
    #[serde(rename = "lastFailure")]
    pub last_failure: Option<ProbeAnswer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLine {
    #[serde(rename = "name")]
    pub name: String,
    /// Such as `configMap settings`.
    #[serde(rename = "source")]
    pub source: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLine {
    #[serde(rename = "cause")]
    pub cause: TerminationCause,
    #[serde(rename = "reason")]
    pub reason: String,
    #[serde(rename = "message")]
    pub message: String,
}

impl Explanation {
    pub fn of(case: &Case, journal: &Journal, evidence: &Evidence) -> Self {
        let plan = plan::decide(&case.inputs());
        // The journal has the reason of the call in progress; without one the plan made now has it.
        let noted = journal.why().map(|(why, since)| (why.clone(), Some(since)));
        let (why, since) = noted.unwrap_or_else(|| (plan.why.clone(), None));
        let why = better_reason(case, why, evidence);
        let next = plan.wake_at.filter(|_| journal.underway().is_none());
        let pod = &case.pod;
        let containers = pod.containers.iter().map(|container| {
            let newest = case.observed.newest(&container.name);
            let waiting = plan.waiting.get(&container.name);
            let exit = case.observed.last_exited(&container.name).and_then(Instance::exit);
            ContainerLine {
                name: container.name.to_string(),
                state: waiting
                    .map_or_else(|| state(newest), |w| format!("waiting: {}", w.reason.as_str())),
                restarts: newest.map_or(0, |instance| instance.attempt),
                last_exit: exit.map(|exit| exit_line(exit, evidence.log(&container.name))),
                next_start: next_start(case, container),
                probes: probes(container, &evidence.answers),
            }
        });
        Self {
            namespace: pod.name.namespace.to_string(),
            name: pod.name.name.to_string(),
            uid: pod.uid.to_string(),
            source: pod.source.as_str().to_owned(),
            stage: case.lifecycle.stage(),
            why: why.text,
            since,
            fix: why.fix,
            underway: journal.underway().cloned(),
            failed: failed(case),
            next: next.map(|at| wall(case.now, at)),
            containers: containers.collect(),
            pending: Vec::new(),
            volumes: evidence.volumes.clone(),
            ended: ended(case),
            recent: journal.entries().cloned().collect(),
            as_of: case.now.wall,
        }
    }
}

impl Explanation {
    /// Explains a pod without a worker: rejected, waiting for admission, or finished.
    ///
    /// `reported`: its last status, which outlives the reason of an eviction in memory. `pending`:
    /// what keeps a rejected pod from fitting now.
    pub fn without_a_worker(
        pod: &Pod,
        admitted: Option<Result<(), Rejection>>,
        reported: Option<&v1::PodStatus>,
        pending: Vec<PendingReason>,
        as_of: Timestamp,
    ) -> Self {
        let (stage, why, fix) = match admitted {
            Some(Err(Rejection { reason, message })) => {
                let fix = match pending.iter().find_map(|reason| reason.fix.as_ref()) {
                    Some(fix) => {
                        format!("{fix}; then create the pod again, a rejected pod is not retried")
                    }
                    None => "create a new pod that fits, or free resources first; a rejected pod \
                             is not retried"
                        .to_owned(),
                };
                (Stage::Finished, format!("rejected: {message} ({reason})"), Some(fix))
            }
            Some(Ok(())) => {
                let ended = reported.and_then(|status| {
                    let object = v1::Pod { status: Some(status.clone()), ..v1::Pod::default() };
                    unwell::reason(&object)
                });
                let why = ended.map_or_else(|| "finished".to_owned(), |it| format!("ended: {it}"));
                (Stage::Finished, why, None)
            }
            None => (
                Stage::Syncing,
                "not admitted yet: waiting for the Node object from the API server, or for \
                 preempted pods to end"
                    .to_owned(),
                Some("check that the API server is reachable".to_owned()),
            ),
        };
        let containers = pod.containers.iter().map(|container| ContainerLine {
            name: container.name.to_string(),
            state: state(None),
            restarts: 0,
            last_exit: None,
            next_start: None,
            probes: Vec::new(),
        });
        Self {
            namespace: pod.name.namespace.to_string(),
            name: pod.name.name.to_string(),
            uid: pod.uid.to_string(),
            source: pod.source.as_str().to_owned(),
            stage,
            why,
            since: None,
            fix,
            underway: None,
            failed: Vec::new(),
            next: None,
            containers: containers.collect(),
            pending,
            volumes: Vec::new(),
            ended: None,
            recent: Vec::new(),
            as_of,
        }
    }
}

/// The reason with what the plan does not know: the answers of probes, logs, images on the node.
fn better_reason(case: &Case, why: Why, evidence: &Evidence) -> Why {
    let pod = &case.pod;
    if case.lifecycle.stage() == Stage::Finished {
        return finished(case, why, evidence);
    }
    match why.topic {
        Topic::Runs => {
            let status = evidence.reported.as_deref();
            let failing =
                status.and_then(|status| readiness::failing_probe(pod, status, &evidence.answers));
            match failing {
                Some(failing) => {
                    Why { text: format!("running; {}", failing.text), ..why }.fix(failing.fix)
                }
                None => why,
            }
        }
        Topic::Waits => match pod.containers.iter().find_map(|it| fix_of(case, it, evidence)) {
            Some(fix) => why.fix(fix),
            None => why,
        },
        Topic::Over => match ended(case) {
            Some(EndedLine { reason, message, .. }) => {
                Why { text: format!("ended by the node: {message} ({reason})"), ..why }
            }
            None => why,
        },
        Topic::Starts
        | Topic::Stops
        | Topic::Fails(_)
        | Topic::Held
        | Topic::NetworkNotReady
        | Topic::Releases => why,
    }
}

/// How a pod ended; its last decision was to release what it had.
fn finished(case: &Case, why: Why, evidence: &Evidence) -> Why {
    let by_node =
        ended(case).map(|it| format!("ended by the node: {} ({})", it.message, it.reason));
    let by_itself = || {
        let status = evidence.reported.as_deref().cloned();
        let reason = unwell::reason(&v1::Pod { status, ..v1::Pod::default() })?;
        Some(format!("ended: {reason}"))
    };
    let text = by_node.or_else(by_itself).unwrap_or_else(|| "finished".to_owned());
    Why { text, ..why }
}

/// The fix for a container that waits to be started again.
fn fix_of(case: &Case, container: &Container, evidence: &Evidence) -> Option<String> {
    let pod = &case.pod;
    let (name, key) = (&container.name, container.backoff_key);
    if let Some(failure) = case.attempts.start_failure(name, key) {
        let fix = image::fix(&MissingImage {
            container: name,
            image: &container.image,
            policy: container.spec.image_pull_policy.as_deref().unwrap_or_default(),
            reason: failure.reason,
            message: &failure.message,
            is_on_node: evidence.images_on_node.contains(&container.image),
        });
        if fix.is_some() {
            return fix;
        }
    }
    let newest = case.observed.newest(name)?;
    let exit = newest.exit()?;
    next_start(case, container)?;
    let failed_probe = failed_probe(container, newest, &evidence.answers);
    let has_log = !evidence.log(name).is_empty();
    Some(exit::fix(&EndedContainer { pod, container, exit, has_log, failed_probe }))
}

/// The probe because of which the agent stopped the instance.
fn failed_probe<'a>(
    container: &Container,
    instance: &Instance,
    answers: &'a ProbeAnswers,
) -> Option<(ProbeKind, &'a str)> {
    [ProbeKind::Liveness, ProbeKind::Startup].into_iter().find_map(|kind| {
        let threshold = Timing::of(container.probe(kind)?).failures;
        let record = answers.get(&container.name, kind)?;
        let ended_it =
            record.instance == instance.id && !record.last.passed && record.in_a_row >= threshold;
        ended_it.then_some((kind, record.last.text.as_str()))
    })
}

/// When a container that waits is started again.
fn next_start(case: &Case, container: &Container) -> Option<Timestamp> {
    let (name, key, now) = (&container.name, container.backoff_key, case.now);
    let newest = case.observed.newest(name);
    if newest.is_some_and(Instance::is_running) || case.lifecycle.is_ending() {
        return None;
    }
    let crash = newest.and_then(|instance| {
        case.attempts.crash_backoff(name, key, instance, now, &case.crash_backoff)
    });
    let failure = case.attempts.start_failure(name, key).map(|failure| failure.retry_at);
    let pull = case.attempts.unpulled(name, key, now).map(|unpulled| unpulled.until);
    let at = crash.map(|(_, until)| until).into_iter().chain(failure).chain(pull).max()?;
    (at > now.mono).then(|| wall(now, at))
}

fn exit_line(exit: &Exit, log: &[String]) -> ExitLine {
    ExitLine {
        code: exit.code,
        signal: exit::signal(exit.code).map(str::to_owned),
        reason: exit.reason.clone(),
        message: exit.message.clone(),
        started: exit.started,
        finished: exit.finished,
        log: log.to_vec(),
    }
}

fn probes(container: &Container, answers: &ProbeAnswers) -> Vec<ProbeLine> {
    let kinds = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];
    let lines = kinds.into_iter().filter_map(|kind| {
        let probe = container.probe(kind)?;
        let record = answers.get(&container.name, kind);
        Some(ProbeLine {
            kind,
            check: readiness::check(container, kind),
            last: record.map(|record| record.last.clone()),
            in_a_row: record.map_or(0, |record| record.in_a_row),
            passed: record.map_or(0, |record| record.passed),
            failed: record.map_or(0, |record| record.failed),
            failure_threshold: Timing::of(probe).failures,
            last_failure: record.and_then(|record| record.last_failure.clone()),
        })
    });
    lines.collect()
}

fn ended(case: &Case) -> Option<EndedLine> {
    let cause = case.lifecycle.cause()?;
    let reason = case.lifecycle.termination_reason()?;
    Some(EndedLine { cause, reason: reason.reason.clone(), message: reason.message.clone() })
}

/// Steps of the pod first, then containers in spec order.
fn failed(case: &Case) -> Vec<FailedOperation> {
    let now = case.now;
    let steps = case.attempts.step_failures().map(|failure| FailedOperation {
        what: step(failure.reason).to_owned(),
        error: failure.message.clone(),
        times: failure.times,
        since: failure.since.wall,
        retry: wall(now, failure.retry_at),
    });
    let starts = case.pod.containers.iter().filter_map(|container| {
        let failure = case.attempts.start_failure(&container.name, container.backoff_key)?;
        let unpulled = case.attempts.unpulled(&container.name, container.backoff_key, now);
        let pull = unpulled.map(|unpulled| unpulled.until);
        Some(FailedOperation {
            what: format!("starting {} ({})", container.name, failure.reason.as_str()),
            error: failure.message.clone(),
            times: failure.times,
            since: failure.since.wall,
            retry: wall(now, pull.map_or(failure.retry_at, |until| until.max(failure.retry_at))),
        })
    });
    steps.chain(starts).collect()
}

fn step(step: PodStep) -> &'static str {
    match step {
        PodStep::Cgroup => "creating the pod cgroup",
        PodStep::Directories => "creating the pod directories",
        PodStep::Volumes => "mounting volumes",
        PodStep::Sandbox => "creating the sandbox",
        PodStep::Kill => "stopping the pod",
        PodStep::Removal => "removing old containers",
        PodStep::Resize => "resizing the pod",
        PodStep::Teardown => "releasing volumes and cgroup",
    }
}

fn state(instance: Option<&Instance>) -> String {
    match instance.map(|instance| &instance.state) {
        None => "not created".into(),
        Some(State::Created) => "created, not started".into(),
        Some(State::Running { .. }) => "running".into(),
        Some(State::Exited(exit)) => format!("exited with {} ({})", exit.code, exit.reason),
        Some(State::Unknown) => "unknown to the runtime".into(),
    }
}

/// The wall time of a monotonic reading, assuming that the clock is not adjusted in between.
fn wall(now: Now, at: Mono) -> Timestamp {
    let ahead = SignedDuration::try_from(at.since(now.mono)).unwrap_or(SignedDuration::ZERO);
    let back = SignedDuration::try_from(now.mono.since(at)).unwrap_or(SignedDuration::ZERO);
    let moved = now.wall.checked_add(ahead).and_then(|time| time.checked_sub(back));
    moved.unwrap_or(now.wall)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podwright_core::attempts::StartError;
    use podwright_core::builders::{case, observed, pod, t};

    use super::*;

    #[test]
    fn failed_container_start_shows_error_count_and_next_attempt() {
        let pod = pod("web").container("app").build();
        let seen = observed(&pod).sandbox_ready().build();
        let key = pod.containers[0].backoff_key;
        let mut case = case(pod, seen, t(105));
        let (reason, wait) = (StartError::CreateContainerConfigError, Duration::from_secs(10));
        let name = "app".into();
        case.attempts.note_start_failure(&name, key, reason, "no key k".into(), t(90), wait);
        case.attempts.note_start_failure(&name, key, reason, "no key k".into(), t(100), wait);
        let mut journal = Journal::default();
        journal.decided(t(90), &plan::decide(&case.inputs()).why);
        let shown = Explanation::of(&case, &journal, &Evidence::default());
        assert!(shown.why.contains("no key k"), "{}", shown.why);
        assert_eq!((shown.since, shown.next), (Some(t(90).wall), Some(t(110).wall)));
        let failed = &shown.failed[0];
        assert_eq!((failed.times, failed.since, failed.retry), (2, t(90).wall, t(110).wall));
        assert_eq!(shown.containers[0].state, "waiting: CreateContainerConfigError");
    }

    #[test]
    fn pod_without_a_worker_is_explained_by_its_admission() {
        let pod = pod("web").container("app").build();
        let rejection = Rejection { reason: "OutOfcpu".into(), message: "no cpu".into() };
        for (case, admitted, stage, text, fix) in [
            ("rejected", Some(Err(rejection)), Stage::Finished, "no cpu (OutOfcpu)", true),
            ("done", Some(Ok(())), Stage::Finished, "finished", false),
            ("parked", None, Stage::Syncing, "not admitted yet", true),
        ] {
            let shown = Explanation::without_a_worker(&pod, admitted, None, Vec::new(), t(5).wall);
            assert_eq!((shown.stage, shown.fix.is_some()), (stage, fix), "{case}");
            assert!(shown.why.contains(text), "{case}: {}", shown.why);
            assert_eq!(shown.containers[0].state, "not created", "{case}");
        }
    }

    #[test]
    fn evicted_pod_keeps_its_reason_after_its_worker_is_gone() {
        let pod = pod("web").container("app").build();
        let status = serde_json::json!({"phase": "Failed", "reason": "Evicted",
            "message": "The node was low on resource: memory."});
        let status: v1::PodStatus = serde_json::from_value(status).unwrap();
        let admitted = Some(Ok(()));
        let shown =
            Explanation::without_a_worker(&pod, admitted, Some(&status), Vec::new(), t(5).wall);
        assert_eq!(shown.why, "ended: The node was low on resource: memory. (Evicted)");
    }

    #[test]
    fn finished_pod_says_how_it_ended_and_not_what_was_done_last() {
        let pod = pod("web").container("app").build();
        let seen = observed(&pod).build();
        let mut case = case(pod, seen, t(105));
        case.lifecycle.complete();
        case.lifecycle.stopped();
        case.lifecycle.released();
        assert_eq!(case.lifecycle.stage(), Stage::Finished);
        let mut journal = Journal::default();
        journal.decided(t(100), &Why::new(Topic::Releases, "releasing volumes and cgroup"));
        let shown = Explanation::of(&case, &journal, &Evidence::default());
        assert_eq!(shown.why, "finished");
    }

    #[test]
    fn image_on_the_node_names_the_pull_policy_and_a_crash_its_log() {
        let pod = pod("web").container("app").container("db").build();
        let exits = observed(&pod).sandbox_ready().running("db", t(1)).build();
        let key = pod.containers[0].backoff_key;
        let mut case = case(pod, exits, t(105));
        let wait = Duration::from_secs(10);
        let (app, reason) = ("app".into(), StartError::ErrImagePull);
        case.attempts.note_start_failure(&app, key, reason, "refused".into(), t(100), wait);
        let mut journal = Journal::default();
        journal.decided(t(100), &plan::decide(&case.inputs()).why);
        let fix = |evidence: &Evidence| Explanation::of(&case, &journal, evidence).fix.unwrap();
        assert!(fix(&Evidence::default()).contains("check the image name"));
        let here = Evidence { images_on_node: ["i".into()].into(), ..Evidence::default() };
        let fix = fix(&here);
        assert!(fix.contains("IfNotPresent") && !fix.contains("check the image name"), "{fix}");
    }

    #[test]
    fn failing_readiness_probe_is_the_reason_of_a_running_pod() {
        let probe = serde_json::json!({"readinessProbe": {"httpGet": {"port": 80}}});
        let pod = pod("web").container_with("app", probe).build();
        let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
        let id = seen.instances[0].id.clone();
        let case = case(pod, seen, t(105));
        let mut evidence = Evidence::default();
        let outcome = podwright_core::probe::ProbeOutcome::Failure("status 503".into());
        let (app, kind) = ("app".into(), ProbeKind::Readiness);
        evidence.answers.record(&app, kind, &id, (&outcome, None), t(100).wall);
        let status = serde_json::json!({"phase": "Running", "containerStatuses": [{"name": "app",
            "ready": false, "started": true, "restartCount": 0, "image": "i", "imageID": "",
            "state": {"running": {}}}]});
        evidence.reported = Some(std::sync::Arc::new(serde_json::from_value(status).unwrap()));
        let shown = Explanation::of(&case, &Journal::default(), &evidence);
        assert!(shown.why.starts_with("running; app is not ready: "), "{}", shown.why);
        assert!(shown.fix.unwrap().contains("GET / on port 80"));
        assert_eq!((shown.containers[0].probes[0].failed, shown.next), (1, None));
    }

    #[test]
    fn call_in_progress_is_shown_without_a_next_attempt() {
        let pod = pod("web").container("app").build();
        let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
        let case = case(pod, seen, t(105));
        let mut journal = Journal::default();
        journal.begin(t(100), "stopping app");
        let shown = Explanation::of(&case, &journal, &Evidence::default());
        assert_eq!(shown.underway.unwrap().what, "stopping app");
        assert_eq!(shown.next, None);
        assert_eq!(shown.containers[0].state, "running");
    }
}
