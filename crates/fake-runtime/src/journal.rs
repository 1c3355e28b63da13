//! Record of calls, and detection of invalid ones.
//!
//! The rules are those a node agent must follow with any runtime. They are checked here, where all
//! calls pass, and not in each test: a simulation that ends well but violated a rule has failed.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Code;

use super::faults::Fault;
use super::instances::{InstanceChange, InstanceEvent};
use super::rpc::{About, PodRef, Rpc};

/// Upstream's minimum grace period of a container.
const LEAST_GRACE: i64 = 2;

/// One call, as received by the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Counts all calls, from zero.
    pub seq: u64,
    pub rpc: Rpc,
    pub about: About,
    /// The timeout of a StopContainer.
    pub grace: Option<i64>,
    /// The injected fault.
    pub fault: Option<Fault>,
    /// Since the fake was started.
    pub at: Duration,
    /// Absent while it is under way.
    pub end: Option<(Duration, Outcome)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Failed(Code),
    /// The caller went away, or its deadline passed, before there was a response.
    Abandoned,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {:?} {}", self.seq, self.at, self.rpc)?;
        if let Some(pod) = &self.about.pod {
            write!(f, " {}", pod.name)?;
        }
        for part in [&self.about.container, &self.about.image].into_iter().flatten() {
            write!(f, " {part}")?;
        }
        if let Some(seconds) = self.grace {
            write!(f, " within {seconds} s")?;
        }
        if let Some(fault) = &self.fault {
            write!(f, " [{fault:?}]")?;
        }
        match &self.end {
            None => f.write_str(": under way"),
            Some((at, outcome)) => write!(f, ": {outcome:?} at {at:?}"),
        }
    }
}

/// Something a node agent must never do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two instances of one container ran at the same time.
    TwoRunning { pod: PodRef, container: String, ids: [String; 2] },
    /// A sandbox was created while another one of the pod was ready and not being stopped.
    TwoReady { pod: PodRef, ids: [String; 2] },
    /// A call was made while another one on the same object was under way.
    Overlap { pod: PodRef, under_way: Box<Call>, made: Box<Call> },
    /// A container was given less than the minimum grace period.
    ShortGrace { pod: PodRef, container: String, seconds: i64 },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TwoRunning { pod, container, ids: [first, second] } => {
                write!(f, "pod {pod}: {container} runs twice, as {first} and {second}")
            }
            Self::TwoReady { pod, ids: [first, second] } => {
                write!(f, "pod {pod}: sandbox {second} made while {first} is ready")
            }
            Self::Overlap { pod, under_way, made } => {
                write!(f, "pod {pod}: [{made}] was made during [{under_way}]")
            }
            Self::ShortGrace { pod, container, seconds } => {
                write!(f, "pod {pod}: {container} was given {seconds} s to end")
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Journal {
    /// How many calls are kept.
    keep: usize,
    calls: VecDeque<Call>,
    counts: BTreeMap<Rpc, u64>,
    /// The newest answered call of each method.
    answered: watch::Sender<BTreeMap<Rpc, u64>>,
    next: u64,
    /// Calls that change pods and whose callers still wait.
    under_way: BTreeMap<u64, UnderWay>,
    violations: Vec<Violation>,
    pub(super) instance_changes: Vec<InstanceChange>,
}

#[derive(Debug)]
struct UnderWay {
    call: Call,
    line: Option<u64>,
    deadline: Option<Instant>,
}

/// A call at the moment it arrives.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) rpc: Rpc,
    pub(super) about: About,
    pub(super) at: Duration,
    /// The connection it came by.
    pub(super) line: Option<u64>,
    pub(super) deadline: Option<Instant>,
    pub(super) grace: Option<i64>,
    pub(super) fault: Option<Fault>,
}

impl Journal {
    pub(super) fn new(keep: usize) -> Self {
        Self {
            keep,
            calls: VecDeque::new(),
            counts: BTreeMap::new(),
            answered: watch::Sender::default(),
            next: 0,
            under_way: BTreeMap::new(),
            violations: Vec::new(),
            instance_changes: Vec::new(),
        }
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.iter().cloned().collect()
    }

    /// The number of the next call.
    pub(super) fn next_seq(&self) -> u64 {
        self.next
    }

    pub(super) fn count(&self, rpc: Rpc) -> u64 {
        self.counts.get(&rpc).copied().unwrap_or(0)
    }

    pub(super) fn clear_calls(&mut self) {
        self.calls.retain(|call| call.end.is_none());
    }

    pub(super) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    pub(super) fn report(&mut self, violation: Violation) {
        tracing::error!(%violation, "fake runtime: rule violated");
        self.violations.push(violation);
    }

    pub(super) fn arrive(&mut self, arrival: Arrival) -> u64 {
        let Arrival { rpc, about, at, line, deadline, grace, fault } = arrival;
        let seq = self.next;
        self.next += 1;
        *self.counts.entry(rpc).or_default() += 1;
        let call = Call { seq, rpc, about, grace, fault, at, end: None };
        if rpc == Rpc::StartContainer {
            self.note_instance(at, &call.about, InstanceEvent::StartRequested);
        }
        if rpc.changes_pods() {
            self.check(&call);
            self.under_way.insert(seq, UnderWay { call: call.clone(), line, deadline });
        }
        self.calls.push_back(call);
        while self.calls.len() > self.keep {
            self.calls.pop_front();
        }
        seq
    }

    fn check(&mut self, made: &Call) {
        let Some(pod) = made.about.pod.clone() else { return };
        if let (Some(seconds), Some(container)) = (made.grace, made.about.container.clone())
            && seconds < LEAST_GRACE
        {
            self.report(Violation::ShortGrace { pod: pod.clone(), container, seconds });
        }
        let now = Instant::now();
        let clashes: Vec<Call> = self
            .under_way
            .values()
            // A call past its deadline is no longer waited for, even if that was not processed yet.
            .filter(|other| other.deadline.is_none_or(|deadline| now < deadline))
            .filter(|other| other.call.about.pod.as_ref().is_some_and(|p| p.uid == pod.uid))
            .filter(|other| clash(&other.call, made) && !hurries(made, &other.call))
            .map(|other| other.call.clone())
            .collect();
        for under_way in clashes {
            let (under_way, made) = (Box::new(under_way), Box::new(made.clone()));
            self.report(Violation::Overlap { pod: pod.clone(), under_way, made });
        }
    }

    pub(super) fn end(&mut self, seq: u64, at: Duration, outcome: Outcome) {
        self.under_way.remove(&seq);
        let place = self.calls.partition_point(|call| call.seq < seq);
        if let Some(call) = self.calls.get_mut(place).filter(|call| call.seq == seq)
            && call.end.is_none()
        {
            call.end = Some((at, outcome));
        }
    }

    /// The response of a call was sent.
    pub(super) fn note_response(&mut self, rpc: Rpc, seq: u64) {
        self.answered.send_modify(|newest| {
            let newest = newest.entry(rpc).or_default();
            *newest = seq.max(*newest);
        });
    }

    /// The newest answered call of each method, from now on.
    pub(super) fn answered(&self) -> watch::Receiver<BTreeMap<Rpc, u64>> {
        self.answered.subscribe()
    }

    /// The connection is gone, and with it all callers that waited for a response.
    pub(super) fn cut(&mut self, line: u64, at: Duration) {
        let gone: Vec<u64> = self
            .under_way
            .iter()
            .filter(|(_, call)| call.line == Some(line))
            .map(|(seq, _)| *seq)
            .collect();
        for seq in gone {
            self.end(seq, at, Outcome::Abandoned);
        }
    }
}

/// A shorter grace period for a container that is already being stopped: allowed.
fn hurries(made: &Call, under_way: &Call) -> bool {
    let shorter = made.grace.zip(under_way.grace).is_some_and(|(now, before)| now < before);
    made.rpc == Rpc::StopContainer && shorter
}

/// Whether two calls on one pod conflict.
///
/// A dead container may be removed while its successor starts, and different containers of a pod
/// are independent; but stopping a sandbox kills everything in it, regardless of grace periods.
fn clash(a: &Call, b: &Call) -> bool {
    let same_sandbox = a.about.sandbox_id.is_some() && a.about.sandbox_id == b.about.sandbox_id;
    match (&a.about.container, &b.about.container) {
        (None, None) => same_sandbox || (a.rpc == Rpc::RunPodSandbox && b.rpc == a.rpc),
        (Some(_), None) => same_sandbox && ends_sandbox(b.rpc),
        (None, Some(_)) => same_sandbox && ends_sandbox(a.rpc),
        (Some(first), Some(second)) => {
            let removes = |call: &Call| call.rpc == Rpc::RemoveContainer;
            let same_instance =
                a.about.container_id.is_some() && a.about.container_id == b.about.container_id;
            first == second && (same_instance || !(removes(a) || removes(b)))
        }
    }
}

fn ends_sandbox(rpc: Rpc) -> bool {
    matches!(rpc, Rpc::StopPodSandbox | Rpc::RemovePodSandbox)
}

#[cfg(test)]
mod tests {
    use super::*;
    use podwright_core::ids::{PodName, PodUid};

    fn about(container: Option<(&str, &str)>, sandbox: Option<&str>) -> About {
        About {
            pod: Some(PodRef { uid: PodUid::new("u"), name: PodName::new("n", "web") }),
            container: container.map(|(name, _)| name.into()),
            container_id: container.map(|(_, id)| id.into()).filter(|id: &String| !id.is_empty()),
            sandbox_id: sandbox.map(Into::into),
            image: None,
        }
    }

    fn arrival(rpc: Rpc, about: About, grace: Option<i64>) -> Arrival {
        let at = Duration::ZERO;
        Arrival { rpc, about, at, line: Some(1), deadline: None, grace, fault: None }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_calls_on_one_object_are_a_violation() {
        let sandbox = || about(None, Some("s1"));
        let app = |id| about(Some(("app", id)), Some("s1"));
        let log = |id| about(Some(("log", id)), Some("s1"));
        let new = || about(None, None);
        for (case, first, second, want) in [
            ("start and stop", (Rpc::StartContainer, app("1")), (Rpc::StopContainer, app("1")), 1),
            ("kill and create", (Rpc::StopContainer, app("1")), (Rpc::CreateContainer, app("")), 1),
            ("two containers", (Rpc::StopContainer, app("1")), (Rpc::StopContainer, log("2")), 0),
            (
                "removal of a dead instance",
                (Rpc::StartContainer, app("2")),
                (Rpc::RemoveContainer, app("1")),
                0,
            ),
            (
                "removal of the same instance",
                (Rpc::StopContainer, app("1")),
                (Rpc::RemoveContainer, app("1")),
                1,
            ),
            (
                "sandbox ended under a stop",
                (Rpc::StopContainer, app("1")),
                (Rpc::StopPodSandbox, sandbox()),
                1,
            ),
            (
                "create in a sandbox that ends",
                (Rpc::RemovePodSandbox, sandbox()),
                (Rpc::CreateContainer, app("")),
                1,
            ),
            ("two runs", (Rpc::RunPodSandbox, new()), (Rpc::RunPodSandbox, new()), 1),
            ("a look", (Rpc::StartContainer, app("1")), (Rpc::ContainerStatus, app("1")), 0),
        ] {
            let mut journal = Journal::new(10);
            for (rpc, about) in [first, second] {
                journal.arrive(arrival(rpc, about, None));
            }
            assert_eq!(journal.violations().len(), want, "{case}: {:?}", journal.violations());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn finished_call_conflicts_with_none() {
        let app = || about(Some(("app", "1")), Some("s1"));
        let mut journal = Journal::new(10);
        let start = journal.arrive(arrival(Rpc::StartContainer, app(), None));
        journal.end(start, Duration::ZERO, Outcome::Done);
        let stop = Arrival {
            deadline: Some(Instant::now() + Duration::from_secs(1)),
            ..arrival(Rpc::StopContainer, app(), Some(30))
        };
        journal.arrive(stop);
        tokio::time::advance(Duration::from_secs(1)).await;
        journal.arrive(Arrival { line: Some(2), ..arrival(Rpc::StopContainer, app(), Some(30)) });
        journal.cut(2, Duration::ZERO);
        journal.arrive(arrival(Rpc::RemoveContainer, app(), None));
        assert_eq!(journal.violations(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_shorter_grace_period_may_overtake_a_stop() {
        for (second, want) in [(30, 1), (60, 1), (5, 0)] {
            let mut journal = Journal::new(10);
            for grace in [30, second] {
                let app = about(Some(("app", "1")), Some("s1"));
                journal.arrive(arrival(Rpc::StopContainer, app, Some(grace)));
            }
            assert_eq!(journal.violations().len(), want, "{second}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn grace_period_below_two_seconds_is_a_violation() {
        for (grace, want) in [(0, 1), (1, 1), (2, 0)] {
            let mut journal = Journal::new(10);
            let app = about(Some(("app", "1")), None);
            journal.arrive(arrival(Rpc::StopContainer, app, Some(grace)));
            assert_eq!(journal.violations().len(), want, "{grace}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_old_calls_are_still_counted() {
        let mut journal = Journal::new(3);
        for _ in 0..10 {
            let seq = journal.arrive(arrival(Rpc::Version, About::default(), None));
            journal.end(seq, Duration::ZERO, Outcome::Done);
        }
        let kept: Vec<u64> = journal.calls().iter().map(|call| call.seq).collect();
        assert_eq!((kept, journal.count(Rpc::Version)), (vec![7, 8, 9], 10));
    }
}
