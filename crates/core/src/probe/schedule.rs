//! Probe schedule: when each probe of a pod runs, and which outcomes settle a verdict.
//!
//! A container that just started gets one whole period before an outcome can count against it, so
//! that it has `failureThreshold` full periods to start. Successes need not wait: readiness and
//! startup probes without `initialDelaySeconds` also run a few times early in the first period,
//! when only a success counts.
//!
//! After a restart the agent finds all containers at once. Their probes then begin at different
//! points of their periods, and the reported state of an instance holds until a probe has
//! finished.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::check::Timing;
use super::{ProbeOutcome, ProbeVerdict};
use crate::ids::ContainerId;
use crate::observed::{Instance, ObservedPod, State as Seen};
use crate::pod::{Container, ContainerKind, Pod, ProbeKind};
use crate::time::{Mono, Now};

/// Times of the early runs after a container's start. Most servers listen within a second.
const EARLY: [Duration; 3] = [Duration::ZERO, Duration::from_millis(250), Duration::from_secs(1)];
/// Upper bound of a container's age; it exceeds every possible delay.
const MAX_AGE: Duration = Duration::from_secs(u32::MAX as u64);

/// The probes of one pod.
#[derive(Debug)]
pub struct Schedule {
    containers: Vec<ContainerProbes>,
}

/// Current facts about the pod.
#[derive(Clone, Copy, Debug)]
pub struct ProbeInputs<'a> {
    pub pod: &'a Pod,
    pub observed: &'a ObservedPod,
    /// The pod is being stopped.
    pub ending: bool,
    /// The last reported status, by this agent process or the one before.
    pub reported: Option<&'a PodStatus>,
    pub agent_started: Timestamp,
}

/// One probe to run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueProbe {
    pub container: Arc<str>,
    pub instance: ContainerId,
    pub kind: ProbeKind,
}

/// A verdict that holds until another one settles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledVerdict {
    pub instance: ContainerId,
    pub kind: ProbeKind,
    pub verdict: ProbeVerdict,
}

/// Effect of a probe outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedOutcome {
    /// It belongs to the instance that is running now.
    pub current: bool,
    /// It counts and is reported as an event.
    pub counts: bool,
    pub settled: Option<SettledVerdict>,
}

/// The probes of one container.
#[derive(Debug)]
struct ContainerProbes {
    name: Arc<str>,
    kind: ContainerKind,
    /// The instance that runs.
    instance: Option<ContainerId>,
    /// When it started.
    began: Mono,
    probes: Vec<ProbeState>,
}

/// One probe of one container.
#[derive(Debug)]
struct ProbeState {
    kind: ProbeKind,
    timing: Timing,
    next_run: NextRun,
    /// The last outcome, and how often it came in a row.
    last: Option<bool>,
    run: u32,
    /// Offset in its period at which it begins after a restart of the agent, in thousandths.
    spread: u32,
}

/// When a probe runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextRun {
    /// The container is not running, or has not started up.
    Waiting,
    Early {
        index: usize,
        /// Start of the early runs.
        from: Mono,
    },
    At(Mono),
    InFlight {
        due: Mono,
        early: Option<(usize, Mono)>,
    },
    /// Its verdict on this instance is final.
    Done,
}

impl Schedule {
    /// `None`: the pod has no probes.
    pub fn of(pod: &Pod) -> Option<Self> {
        let containers: Vec<ContainerProbes> = pod
            .containers
            .iter()
            .filter_map(|container| ContainerProbes::of(pod, container))
            .collect();
        (!containers.is_empty()).then_some(Self { containers })
    }

    /// Updates the schedule from the observed state. Returns verdicts that follow from the last
    /// report.
    pub fn inspect(&mut self, sight: &ProbeInputs<'_>, now: Now) -> Vec<SettledVerdict> {
        let mut settled = Vec::new();
        for container in &mut self.containers {
            settled.extend(container.inspect(sight, now));
        }
        settled
    }

    /// Whether verdicts on this instance are still needed.
    pub fn watches(&self, instance: &ContainerId) -> bool {
        self.containers.iter().any(|container| container.instance.as_ref() == Some(instance))
    }

    /// The probes to run now. Each runs again only after its outcome was recorded.
    pub fn due(&mut self, now: Mono) -> Vec<DueProbe> {
        let mut due = Vec::new();
        for container in &mut self.containers {
            let Some(instance) = &container.instance else { continue };
            for probe in &mut container.probes {
                if probe.take(now) {
                    due.push(DueProbe {
                        container: container.name.clone(),
                        instance: instance.clone(),
                        kind: probe.kind,
                    });
                }
            }
        }
        due
    }

    /// When the next probe is due.
    pub fn wake_at(&self) -> Option<Mono> {
        let watches = self.containers.iter().flat_map(|container| &container.probes);
        watches.filter_map(ProbeState::due_at).min()
    }

    /// Records an outcome. One for an instance that no longer runs is ignored.
    pub fn record(&mut self, ask: &DueProbe, outcome: &ProbeOutcome, now: Mono) -> RecordedOutcome {
        let current = self.containers.iter_mut().find(|container| container.name == ask.container);
        let current =
            current.filter(|container| container.instance.as_ref() == Some(&ask.instance));
        current.map(|container| container.record(ask, outcome, now)).unwrap_or_default()
    }
}

impl ContainerProbes {
    fn of(pod: &Pod, container: &Container) -> Option<Self> {
        let kinds = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];
        let probe = |kind| {
            let timing = Timing::of(container.probe(kind)?);
            Some(ProbeState {
                kind,
                timing,
                next_run: NextRun::Waiting,
                last: None,
                run: 0,
                spread: spread(pod.uid.as_str(), &container.name, kind),
            })
        };
        let probes: Vec<ProbeState> = kinds.into_iter().filter_map(probe).collect();
        (!probes.is_empty()).then(|| Self {
            name: container.name.clone(),
            kind: container.kind,
            instance: None,
            began: Mono::ZERO,
            probes,
        })
    }

    fn inspect(&mut self, sight: &ProbeInputs<'_>, now: Now) -> Option<SettledVerdict> {
        let newest = sight.observed.newest(&self.name);
        let running = newest.and_then(|instance| Some((instance, started(instance)?)));
        let mut settled = None;
        match running {
            None => {
                self.instance = None;
                self.probes.iter_mut().for_each(ProbeState::reset);
            }
            Some((instance, _)) if self.instance.as_ref() == Some(&instance.id) => {}
            Some((instance, started)) => settled = self.begin(sight, instance, started, now),
        }
        if sight.ending && self.kind == ContainerKind::Regular {
            // The container is being stopped, so failures are expected. Readiness probes go on, so
            // that traffic is routed away.
            for probe in &mut self.probes {
                match probe.kind {
                    ProbeKind::Startup | ProbeKind::Liveness => probe.next_run = NextRun::Done,
                    ProbeKind::Readiness => {}
                }
            }
        }
        settled
    }

    /// A new instance is running.
    fn begin(
        &mut self,
        sight: &ProbeInputs<'_>,
        instance: &Instance,
        started: Timestamp,
        now: Now,
    ) -> Option<SettledVerdict> {
        self.instance = Some(instance.id.clone());
        self.began = now.mono_at(started, MAX_AGE);
        self.probes.iter_mut().for_each(ProbeState::reset);
        let adopted = started < sight.agent_started;
        let report = report_of(sight.reported, instance);
        if adopted && report.is_none() {
            // The readiness is unknown; the first outcome decides.
            let readiness = self.probes.iter_mut().filter(|w| w.kind == ProbeKind::Readiness);
            readiness.for_each(|probe| {
                probe.last = Some(false);
                probe.run = probe.timing.failures.saturating_sub(1);
            });
        }
        let age = now.age_of(sight.agent_started, MAX_AGE);
        let began = self.began;
        let startup = self.probes.iter_mut().find(|probe| probe.kind == ProbeKind::Startup);
        match startup {
            Some(startup) if report.is_some_and(|report| report.started == Some(true)) => {
                startup.next_run = NextRun::Done;
            }
            Some(startup) => {
                startup.open(began, began, now.mono, adopted.then_some(age));
                return None;
            }
            None => {
                self.open_others(began, now.mono, adopted.then_some(age));
                return None;
            }
        }
        self.open_others(began, now.mono, adopted.then_some(age));
        Some(SettledVerdict {
            instance: instance.id.clone(),
            kind: ProbeKind::Startup,
            verdict: ProbeVerdict::Success,
        })
    }

    /// The container has started up: readiness and liveness probes begin.
    fn open_others(&mut self, started_up: Mono, now: Mono, adopted: Option<Duration>) {
        let began = self.began;
        for probe in self.probes.iter_mut().filter(|probe| probe.kind != ProbeKind::Startup) {
            probe.open(began, started_up, now, adopted);
        }
    }

    fn record(&mut self, ask: &DueProbe, outcome: &ProbeOutcome, now: Mono) -> RecordedOutcome {
        let Some(probe) = self.probes.iter_mut().find(|probe| probe.kind == ask.kind) else {
            return RecordedOutcome::default();
        };
        let NextRun::InFlight { due, early } = probe.next_run else {
            return RecordedOutcome::default();
        };
        let passed = match outcome {
            ProbeOutcome::Success | ProbeOutcome::Warning(_) => true,
            ProbeOutcome::Failure(_) => false,
            ProbeOutcome::Error { .. } => {
                probe.reschedule(due, early, now);
                return RecordedOutcome { current: true, counts: early.is_none(), settled: None };
            }
        };
        probe.reschedule(due, early, now);
        if early.is_some() && !passed {
            return RecordedOutcome { current: true, ..RecordedOutcome::default() };
        }
        let recorded = RecordedOutcome { current: true, counts: true, settled: None };
        let Some(verdict) = probe.count(passed, due, now) else { return recorded };
        if ask.kind == ProbeKind::Startup && verdict == ProbeVerdict::Success {
            self.open_others(now, now, None);
        }
        // Liveness is assumed anyway, so its success changes nothing.
        let changes_state = (ask.kind, verdict) != (ProbeKind::Liveness, ProbeVerdict::Success);
        let settled = SettledVerdict { instance: ask.instance.clone(), kind: ask.kind, verdict };
        RecordedOutcome { settled: changes_state.then_some(settled), ..recorded }
    }
}

impl ProbeState {
    fn reset(&mut self) {
        self.next_run = NextRun::Waiting;
        self.last = None;
        self.run = 0;
    }

    /// Schedules the first run. `adopted`: the age of an agent that found the container running.
    fn open(&mut self, began: Mono, started_up: Mono, now: Mono, adopted: Option<Duration>) {
        let Timing { delay, period, .. } = self.timing;
        let earliest = (began + delay).max(started_up);
        let is_old = now.since(earliest) >= period;
        self.next_run = match adopted {
            Some(age) if age < period => {
                NextRun::At((now + period * self.spread / 1000).max(earliest))
            }
            Some(_) | None if is_old || !delay.is_zero() => NextRun::At(earliest.max(now)),
            Some(_) | None if self.may_run_early() => NextRun::Early { index: 0, from: earliest },
            Some(_) | None => NextRun::At(earliest + period),
        };
    }

    /// Whether a single success settles the verdict.
    fn may_run_early(&self) -> bool {
        match self.kind {
            ProbeKind::Startup | ProbeKind::Readiness => self.timing.successes == 1,
            ProbeKind::Liveness => false,
        }
    }

    fn due_at(&self) -> Option<Mono> {
        match self.next_run {
            NextRun::Waiting | NextRun::InFlight { .. } | NextRun::Done => None,
            NextRun::Early { index, from } => Some(from + early(index).unwrap_or_default()),
            NextRun::At(at) => Some(at),
        }
    }

    /// Marks the probe as in flight if it is due.
    fn take(&mut self, now: Mono) -> bool {
        let Some(due) = self.due_at().filter(|due| *due <= now) else { return false };
        let early = match self.next_run {
            NextRun::Early { index, from } => Some((index, from)),
            NextRun::Waiting | NextRun::At(_) | NextRun::InFlight { .. } | NextRun::Done => None,
        };
        self.next_run = NextRun::InFlight { due, early };
        true
    }

    /// Schedules the next run after an outcome.
    fn reschedule(&mut self, due: Mono, ran_early: Option<(usize, Mono)>, now: Mono) {
        let period = self.timing.period;
        self.next_run = match ran_early {
            None => NextRun::At((due + period).max(now)),
            Some((index, from)) => match early(index + 1) {
                Some(moment) if moment < period => NextRun::Early { index: index + 1, from },
                Some(_) | None => NextRun::At((from + period).max(now)),
            },
        };
    }

    /// Counts an outcome; returns a verdict once enough came in a row.
    fn count(&mut self, passed: bool, due: Mono, now: Mono) -> Option<ProbeVerdict> {
        self.run = if self.last == Some(passed) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(passed);
        let (enough, verdict) = match passed {
            true => (self.timing.successes, ProbeVerdict::Success),
            false => (self.timing.failures, ProbeVerdict::Failure),
        };
        if self.run < enough {
            return None;
        }
        let is_final = match self.kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => verdict == ProbeVerdict::Failure,
            ProbeKind::Readiness => false,
        };
        self.next_run =
            if is_final { NextRun::Done } else { NextRun::At((due + self.timing.period).max(now)) };
        Some(verdict)
    }
}

fn early(index: usize) -> Option<Duration> {
    EARLY.get(index).copied()
}

fn started(instance: &Instance) -> Option<Timestamp> {
    match instance.state {
        Seen::Running { started } => Some(started),
        Seen::Created | Seen::Exited(_) | Seen::Unknown => None,
    }
}

/// The last report about this instance.
fn report_of<'a>(
    reported: Option<&'a PodStatus>,
    instance: &Instance,
) -> Option<&'a ContainerStatus> {
    let reported = reported?;
    let lists = [&reported.container_statuses, &reported.init_container_statuses];
    let same = |status: &&ContainerStatus| {
        let id = status.container_id.as_deref().and_then(|shown| shown.split_once("://"));
        id.is_some_and(|(_, id)| id == instance.id.as_str())
    };
    lists.into_iter().flatten().flatten().find(same)
}

/// A number below 1000 that differs between probes and is stable.
fn spread(uid: &str, container: &str, kind: ProbeKind) -> u32 {
    let bytes = uid.bytes().chain(container.bytes()).chain(kind.as_str().bytes());
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    bytes.fold(0x811c_9dc5, fnv) % 1000
}

#[cfg(test)]
mod tests;
