//! Explanation of the state of a pod: what it waits for, since when, what failed, and the fix.

use jiff::{SignedDuration, Timestamp};
use podwright_core::admission::Rejection;
use podwright_core::attempts::PodStep;
use podwright_core::lifecycle::Stage;
use podwright_core::observed::{Instance, State};
use podwright_core::plan::{self, Case};
use podwright_core::pod::Pod;
use podwright_core::time::{Mono, Now};
use serde::{Deserialize, Serialize};

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
}

impl Explanation {
    pub fn of(case: &Case, journal: &Journal) -> Self {
        let plan = plan::decide(&case.inputs());
        // The journal has the reason of the call in progress; without one the plan made now has it.
        let noted = journal.why().map(|(why, since)| (why.clone(), Some(since)));
        let (why, since) = noted.unwrap_or_else(|| (plan.why.clone(), None));
        let next = plan.wake_at.filter(|_| journal.underway().is_none());
        let pod = &case.pod;
        let containers = pod.containers.iter().map(|container| {
            let newest = case.observed.newest(&container.name);
            let waiting = plan.waiting.get(&container.name);
            ContainerLine {
                name: container.name.to_string(),
                state: waiting
                    .map_or_else(|| state(newest), |w| format!("waiting: {}", w.reason.as_str())),
                restarts: newest.map_or(0, |instance| instance.attempt),
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
            recent: journal.entries().cloned().collect(),
            as_of: case.now.wall,
        }
    }
}

impl Explanation {
    /// Explains a pod without a worker: rejected, waiting for admission, or finished.
    pub fn without_a_worker(
        pod: &Pod,
        admitted: Option<Result<(), Rejection>>,
        as_of: Timestamp,
    ) -> Self {
        let (stage, why, fix) = match admitted {
            Some(Err(Rejection { reason, message })) => (
                Stage::Finished,
                format!("rejected: {message} ({reason})"),
                Some(
                    "create a new pod that fits, or free resources first; a rejected pod is not retried",
                ),
            ),
            Some(Ok(())) => (Stage::Finished, "finished".to_owned(), None),
            None => (
                Stage::Syncing,
                "not admitted yet: waiting for the Node object from the API server, or for \
                 preempted pods to end"
                    .to_owned(),
                Some("check that the API server is reachable"),
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
            fix: fix.map(str::to_owned),
            underway: None,
            failed: Vec::new(),
            next: None,
            containers: containers.collect(),
            recent: Vec::new(),
            as_of,
        }
    }
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
        let shown = Explanation::of(&case, &journal);
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
            let shown = Explanation::without_a_worker(&pod, admitted, t(5).wall);
            assert_eq!((shown.stage, shown.fix.is_some()), (stage, fix), "{case}");
            assert!(shown.why.contains(text), "{case}: {}", shown.why);
            assert_eq!(shown.containers[0].state, "not created", "{case}");
        }
    }

    #[test]
    fn call_in_progress_is_shown_without_a_next_attempt() {
        let pod = pod("web").container("app").build();
        let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
        let case = case(pod, seen, t(105));
        let mut journal = Journal::default();
        journal.begin(t(100), "stopping app");
        let shown = Explanation::of(&case, &journal);
        assert_eq!(shown.underway.unwrap().what, "stopping app");
        assert_eq!(shown.next, None);
        assert_eq!(shown.containers[0].state, "running");
    }
}
