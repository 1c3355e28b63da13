//! Why a pod is as it is: what it waits for, since when, what was tried, and the way out.

use jiff::{SignedDuration, Timestamp};
use podwright_core::admission::Rejection;
use podwright_core::attempts::PodStep;
use podwright_core::lifecycle::Stage;
use podwright_core::observed::{Instance, State};
use podwright_core::plan::{self, Case};
use podwright_core::pod::Pod;
use podwright_core::time::{Mono, Now};
use serde::{Deserialize, Serialize};

use crate::journal::{Entry, Journal, Underway};

/// The answer to `podwright why`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    #[serde(rename = "namespace")]
    pub namespace: String,
    #[serde(rename = "name")]
    pub name: String,
    #[serde(rename = "uid")]
    pub uid: String,
    /// Where it was read from.
    #[serde(rename = "source")]
    pub source: String,
    #[serde(rename = "stage")]
    pub stage: Stage,
    /// What it does or waits for.
    #[serde(rename = "why")]
    pub why: String,
    /// Since when.
    #[serde(rename = "since")]
    pub since: Option<Timestamp>,
    #[serde(rename = "wayOut")]
    pub way_out: Option<String>,
    /// A call that has not answered yet.
    #[serde(rename = "underway")]
    pub underway: Option<Underway>,
    /// What failed and will be tried again.
    #[serde(rename = "failed")]
    pub failed: Vec<Failed>,
    /// When something happens even if nothing else does.
    #[serde(rename = "next")]
    pub next: Option<Timestamp>,
    #[serde(rename = "containers")]
    pub containers: Vec<ContainerLine>,
    /// What happened lately, the oldest first.
    #[serde(rename = "lately")]
    pub lately: Vec<Entry>,
    /// When it was asked.
    #[serde(rename = "asked")]
    pub asked: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
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
    /// What it does, in a few words.
    #[serde(rename = "state")]
    pub state: String,
    #[serde(rename = "restarts")]
    pub restarts: u32,
}

impl Explanation {
    pub fn of(case: &Case, journal: &Journal) -> Self {
        let plan = plan::decide(&case.inputs());
        // What is under way was decided before; what is not is as it would be decided now.
        let told = journal.why().map(|(why, since)| (why.clone(), Some(since)));
        let (why, since) = told.unwrap_or_else(|| (plan.why.clone(), None));
        let next = plan.wake_at.filter(|_| journal.underway().is_none());
        let pod = &case.pod;
        let containers = pod.containers.iter().map(|container| {
            let newest = case.observed.newest(&container.name);
            let waiting = plan.waiting.get(&container.name);
            ContainerLine {
                name: container.name.to_string(),
                state: waiting
                    .map_or_else(|| state(newest), |w| format!("waits: {}", w.reason.as_str())),
                restarts: newest.map_or(0, |instance| instance.attempt),
            }
        });
        Self {
            namespace: pod.name.namespace.to_string(),
            name: pod.name.name.to_string(),
            uid: pod.uid.to_string(),
            source: pod.source.as_str().to_owned(),
            stage: case.life.stage(),
            why: why.text,
            since,
            way_out: why.way_out,
            underway: journal.underway().cloned(),
            failed: failed(case),
            next: next.map(|at| wall(case.now, at)),
            containers: containers.collect(),
            lately: journal.entries().cloned().collect(),
            asked: case.now.wall,
        }
    }
}

impl Explanation {
    /// Of a pod that nobody works on: it was rejected, waits to be admitted, or is done.
    pub fn without_a_worker(
        pod: &Pod,
        admitted: Option<Result<(), Rejection>>,
        asked: Timestamp,
    ) -> Self {
        let (stage, why, way_out) = match admitted {
            Some(Err(Rejection { reason, message })) => (
                Stage::Finished,
                format!("it was rejected: {message} ({reason})"),
                Some("this pod stays as it is: make another that fits, or make room and do so"),
            ),
            Some(Ok(())) => (Stage::Finished, "it has ended".to_owned(), None),
            None => (
                Stage::Syncing,
                "it is not admitted yet: the node waits for its own object from the API server, or \
                 for pods that make room"
                    .to_owned(),
                Some("see whether the API server can be reached"),
            ),
        };
        let containers = pod.containers.iter().map(|container| ContainerLine {
            name: container.name.to_string(),
            state: state(None),
            restarts: 0,
        });
        Self {
            namespace: pod.name.namespace.to_string(),
            name: pod.name.name.to_string(),
            uid: pod.uid.to_string(),
            source: pod.source.as_str().to_owned(),
            stage,
            why,
            since: None,
            way_out: way_out.map(str::to_owned),
            underway: None,
            failed: Vec::new(),
            next: None,
            containers: containers.collect(),
            lately: Vec::new(),
            asked,
        }
    }
}

/// Steps of the whole pod, then containers in their order.
fn failed(case: &Case) -> Vec<Failed> {
    let now = case.now;
    let steps = case.attempts.step_failures().map(|failure| Failed {
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
        Some(Failed {
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
        PodStep::Cgroup => "making its cgroup",
        PodStep::Directories => "making its folders",
        PodStep::Volumes => "mounting its volumes",
        PodStep::Sandbox => "creating its sandbox",
        PodStep::Kill => "stopping it",
        PodStep::Removal => "removing old containers",
        PodStep::Resize => "resizing it",
        PodStep::Teardown => "releasing what it held",
    }
}

fn state(instance: Option<&Instance>) -> String {
    match instance.map(|instance| &instance.state) {
        None => "not created".into(),
        Some(State::Created) => "created, not started".into(),
        Some(State::Running { .. }) => "runs".into(),
        Some(State::Exited(exit)) => format!("exited with {} ({})", exit.code, exit.reason),
        Some(State::Unknown) => "the runtime does not know".into(),
    }
}

/// The wall time of a monotonic reading, as far as the clock is not moved meanwhile.
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
    fn a_container_that_cannot_be_configured_is_told_with_its_error_count_and_next_try() {
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
        let told = Explanation::of(&case, &journal);
        assert!(told.why.contains("no key k"), "{}", told.why);
        assert_eq!((told.since, told.next), (Some(t(90).wall), Some(t(110).wall)));
        let failed = &told.failed[0];
        assert_eq!((failed.times, failed.since, failed.retry), (2, t(90).wall, t(110).wall));
        assert_eq!(told.containers[0].state, "waits: CreateContainerConfigError");
    }

    #[test]
    fn a_pod_without_a_worker_is_told_of_by_what_was_decided_on_it() {
        let pod = pod("web").container("app").build();
        let rejection = Rejection { reason: "OutOfcpu".into(), message: "no cpu".into() };
        for (case, admitted, stage, words, way_out) in [
            ("rejected", Some(Err(rejection)), Stage::Finished, "no cpu (OutOfcpu)", true),
            ("done", Some(Ok(())), Stage::Finished, "ended", false),
            ("parked", None, Stage::Syncing, "not admitted yet", true),
        ] {
            let told = Explanation::without_a_worker(&pod, admitted, t(5).wall);
            assert_eq!((told.stage, told.way_out.is_some()), (stage, way_out), "{case}");
            assert!(told.why.contains(words), "{case}: {}", told.why);
            assert_eq!(told.containers[0].state, "not created", "{case}");
        }
    }

    #[test]
    fn a_call_under_way_is_told_and_nothing_is_promised_before_it_ends() {
        let pod = pod("web").container("app").build();
        let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
        let case = case(pod, seen, t(105));
        let mut journal = Journal::default();
        journal.begin(t(100), "stopping app");
        let told = Explanation::of(&case, &journal);
        assert_eq!(told.underway.unwrap().what, "stopping app");
        assert_eq!(told.next, None);
        assert_eq!(told.containers[0].state, "runs");
    }
}
