//! Which probe of a pod is asked when, and which answers settle a verdict.
//!
//! A container that just started gets one whole period before an answer can count against it, so
//! that it has `failureThreshold` periods to come up and not one less. Good news is not kept
//! waiting for that: readiness and startup probes without a delay of their own are also asked a
//! few times early in that first period, when only a success counts.
//!
//! An agent that was restarted finds all its containers at once. Their probes begin at different
//! moments of their period, and what was reported of an instance holds until a probe has spoken.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::check::Timing;
use super::{Outcome, Verdict};
use crate::ids::ContainerId;
use crate::observed::{Instance, ObservedPod, State as Seen};
use crate::pod::{Container, ContainerKind, Pod, ProbeKind};
use crate::time::{Mono, Now};

/// When, after a container started, it is asked early. Most servers listen within the second.
const EARLY: [Duration; 3] = [Duration::ZERO, Duration::from_millis(250), Duration::from_secs(1)];
/// A container's age matters no longer once it is older than any delay.
const OLD: Duration = Duration::from_secs(u32::MAX as u64);

/// The probes of one pod.
#[derive(Debug)]
pub struct Schedule {
    containers: Vec<Watched>,
}

/// What is known of the pod at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    pub pod: &'a Pod,
    pub observed: &'a ObservedPod,
    /// The pod is being stopped.
    pub ending: bool,
    /// The last report of the pod, by this agent or the one before it.
    pub reported: Option<&'a PodStatus>,
    pub agent_started: Timestamp,
}

/// One question to put to a container now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub container: Arc<str>,
    pub instance: ContainerId,
    pub kind: ProbeKind,
}

/// A verdict that holds until another one settles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub instance: ContainerId,
    pub kind: ProbeKind,
    pub verdict: Verdict,
}

/// What an answer leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// It belongs to the instance that runs now.
    pub current: bool,
    /// It is worth an event: it counts.
    pub counts: bool,
    pub settled: Option<Settled>,
}

#[derive(Debug)]
struct Watched {
    name: Arc<str>,
    kind: ContainerKind,
    /// The instance that runs.
    instance: Option<ContainerId>,
    /// When it started.
    began: Mono,
    probes: Vec<Watch>,
}

/// One probe of one container.
#[derive(Debug)]
struct Watch {
    kind: ProbeKind,
    timing: Timing,
    turn: Turn,
    /// The last answer and how often it came in a row.
    last: Option<bool>,
    run: u32,
    /// Where in its period it begins after a restart of the agent, in thousandths.
    spread: u32,
}

/// When a probe is asked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The container does not run, or has not started up.
    Waiting,
    Early {
        index: usize,
        /// What the early moments are counted from.
        from: Mono,
    },
    At(Mono),
    Asked {
        due: Mono,
        early: Option<(usize, Mono)>,
    },
    /// It has said all it will say of this instance.
    Held,
}

impl Schedule {
    /// `None`: the pod has no probes.
    pub fn of(pod: &Pod) -> Option<Self> {
        let containers: Vec<Watched> =
            pod.containers.iter().filter_map(|container| Watched::of(pod, container)).collect();
        (!containers.is_empty()).then_some(Self { containers })
    }

    /// Takes note of what runs. Returns verdicts that follow from what was reported before.
    pub fn look(&mut self, sight: &Sight<'_>, now: Now) -> Vec<Settled> {
        let mut settled = Vec::new();
        for watched in &mut self.containers {
            settled.extend(watched.look(sight, now));
        }
        settled
    }

    /// The instances whose verdicts are worth keeping.
    pub fn watches(&self, instance: &ContainerId) -> bool {
        self.containers.iter().any(|watched| watched.instance.as_ref() == Some(instance))
    }

    /// The questions to ask now. Each is asked again only after it was answered.
    pub fn due(&mut self, now: Mono) -> Vec<Ask> {
        let mut asks = Vec::new();
        for watched in &mut self.containers {
            let Some(instance) = &watched.instance else { continue };
            for watch in &mut watched.probes {
                if watch.take(now) {
                    asks.push(Ask {
                        container: watched.name.clone(),
                        instance: instance.clone(),
                        kind: watch.kind,
                    });
                }
            }
        }
        asks
    }

    /// When the next question is due.
    pub fn wake_at(&self) -> Option<Mono> {
        let watches = self.containers.iter().flat_map(|watched| &watched.probes);
        watches.filter_map(Watch::due_at).min()
    }

    /// Takes an answer. One to an instance that is gone says nothing.
    pub fn answer(&mut self, ask: &Ask, outcome: &Outcome, now: Mono) -> Heard {
        let asked = self.containers.iter_mut().find(|watched| watched.name == ask.container);
        let asked = asked.filter(|watched| watched.instance.as_ref() == Some(&ask.instance));
        asked.map(|watched| watched.answer(ask, outcome, now)).unwrap_or_default()
    }
}

impl Watched {
    fn of(pod: &Pod, container: &Container) -> Option<Self> {
        let kinds = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];
        let watch = |kind| {
            let timing = Timing::of(container.probe(kind)?);
            Some(Watch {
                kind,
                timing,
                turn: Turn::Waiting,
                last: None,
                run: 0,
                spread: spread(pod.uid.as_str(), &container.name, kind),
            })
        };
        let probes: Vec<Watch> = kinds.into_iter().filter_map(watch).collect();
        (!probes.is_empty()).then(|| Self {
            name: container.name.clone(),
            kind: container.kind,
            instance: None,
            began: Mono::ZERO,
            probes,
        })
    }

    fn look(&mut self, sight: &Sight<'_>, now: Now) -> Option<Settled> {
        let newest = sight.observed.newest(&self.name);
        let running = newest.and_then(|instance| Some((instance, started(instance)?)));
        let mut settled = None;
        match running {
            None => {
                self.instance = None;
                self.probes.iter_mut().for_each(Watch::reset);
            }
            Some((instance, _)) if self.instance.as_ref() == Some(&instance.id) => {}
            Some((instance, started)) => settled = self.begin(sight, instance, started, now),
        }
        if sight.ending && self.kind == ContainerKind::Regular {
            // It is on its way out; that it does not answer any more is no surprise. Readiness
            // goes on: who still sends it requests should know.
            for watch in &mut self.probes {
                match watch.kind {
                    ProbeKind::Startup | ProbeKind::Liveness => watch.turn = Turn::Held,
                    ProbeKind::Readiness => {}
                }
            }
        }
        settled
    }

    /// A new instance runs.
    fn begin(
        &mut self,
        sight: &Sight<'_>,
        instance: &Instance,
        started: Timestamp,
        now: Now,
    ) -> Option<Settled> {
        self.instance = Some(instance.id.clone());
        self.began = now.mono_at(started, OLD);
        self.probes.iter_mut().for_each(Watch::reset);
        let adopted = started < sight.agent_started;
        let report = report_of(sight.reported, instance);
        if adopted && report.is_none() {
            // Nobody knows whether it was ready; the first answer is all there is.
            let readiness = self.probes.iter_mut().filter(|w| w.kind == ProbeKind::Readiness);
            readiness.for_each(|watch| {
                watch.last = Some(false);
                watch.run = watch.timing.failures.saturating_sub(1);
            });
        }
        let age = now.age_of(sight.agent_started, OLD);
        let began = self.began;
        let startup = self.probes.iter_mut().find(|watch| watch.kind == ProbeKind::Startup);
        match startup {
            Some(startup) if report.is_some_and(|report| report.started == Some(true)) => {
                startup.turn = Turn::Held;
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
        Some(Settled {
            instance: instance.id.clone(),
            kind: ProbeKind::Startup,
            verdict: Verdict::Success,
        })
    }

    /// The container has started up: readiness and liveness have their turn.
    fn open_others(&mut self, started_up: Mono, now: Mono, adopted: Option<Duration>) {
        let began = self.began;
        for watch in self.probes.iter_mut().filter(|watch| watch.kind != ProbeKind::Startup) {
            watch.open(began, started_up, now, adopted);
        }
    }

    fn answer(&mut self, ask: &Ask, outcome: &Outcome, now: Mono) -> Heard {
        let Some(watch) = self.probes.iter_mut().find(|watch| watch.kind == ask.kind) else {
            return Heard::default();
        };
        let Turn::Asked { due, early } = watch.turn else { return Heard::default() };
        let passed = match outcome {
            Outcome::Success | Outcome::Warning(_) => true,
            Outcome::Failure(_) => false,
            Outcome::Error { .. } => {
                watch.rest(due, early, now);
                return Heard { current: true, counts: early.is_none(), settled: None };
            }
        };
        watch.rest(due, early, now);
        if early.is_some() && !passed {
            return Heard { current: true, ..Heard::default() };
        }
        let heard = Heard { current: true, counts: true, settled: None };
        let Some(verdict) = watch.count(passed, due, now) else { return heard };
        if ask.kind == ProbeKind::Startup && verdict == Verdict::Success {
            self.open_others(now, now, None);
        }
        // That a container is alive is what everyone assumes.
        let is_news = (ask.kind, verdict) != (ProbeKind::Liveness, Verdict::Success);
        let settled = Settled { instance: ask.instance.clone(), kind: ask.kind, verdict };
        Heard { settled: is_news.then_some(settled), ..heard }
    }
}

impl Watch {
    fn reset(&mut self) {
        self.turn = Turn::Waiting;
        self.last = None;
        self.run = 0;
    }

    /// Sets the first question. `adopted`: an agent of this age found the container running.
    fn open(&mut self, began: Mono, started_up: Mono, now: Mono, adopted: Option<Duration>) {
        let Timing { delay, period, .. } = self.timing;
        let may_ask = (began + delay).max(started_up);
        let is_old = now.since(may_ask) >= period;
        self.turn = match adopted {
            Some(age) if age < period => Turn::At((now + period * self.spread / 1000).max(may_ask)),
            Some(_) | None if is_old || !delay.is_zero() => Turn::At(may_ask.max(now)),
            Some(_) | None if self.may_ask_early() => Turn::Early { index: 0, from: may_ask },
            Some(_) | None => Turn::At(may_ask + period),
        };
    }

    /// Whether a success may be believed the moment it is seen.
    fn may_ask_early(&self) -> bool {
        match self.kind {
            ProbeKind::Startup | ProbeKind::Readiness => self.timing.successes == 1,
            ProbeKind::Liveness => false,
        }
    }

    fn due_at(&self) -> Option<Mono> {
        match self.turn {
            Turn::Waiting | Turn::Asked { .. } | Turn::Held => None,
            Turn::Early { index, from } => Some(from + early(index).unwrap_or_default()),
            Turn::At(at) => Some(at),
        }
    }

    /// Whether it is asked now; then it waits for the answer.
    fn take(&mut self, now: Mono) -> bool {
        let Some(due) = self.due_at().filter(|due| *due <= now) else { return false };
        let early = match self.turn {
            Turn::Early { index, from } => Some((index, from)),
            Turn::Waiting | Turn::At(_) | Turn::Asked { .. } | Turn::Held => None,
        };
        self.turn = Turn::Asked { due, early };
        true
    }

    /// Sets the next question after one was answered.
    fn rest(&mut self, due: Mono, asked_early: Option<(usize, Mono)>, now: Mono) {
        let period = self.timing.period;
        self.turn = match asked_early {
            None => Turn::At((due + period).max(now)),
            Some((index, from)) => match early(index + 1) {
                Some(moment) if moment < period => Turn::Early { index: index + 1, from },
                Some(_) | None => Turn::At((from + period).max(now)),
            },
        };
    }

    /// Counts an answer; a verdict once there are enough of them in a row.
    fn count(&mut self, passed: bool, due: Mono, now: Mono) -> Option<Verdict> {
        self.run = if self.last == Some(passed) { self.run.saturating_add(1) } else { 1 };
        self.last = Some(passed);
        let (enough, verdict) = match passed {
            true => (self.timing.successes, Verdict::Success),
            false => (self.timing.failures, Verdict::Failure),
        };
        if self.run < enough {
            return None;
        }
        let over = match self.kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => verdict == Verdict::Failure,
            ProbeKind::Readiness => false,
        };
        self.turn = if over { Turn::Held } else { Turn::At((due + self.timing.period).max(now)) };
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

/// What was last reported of this very instance.
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

/// A number below a thousand, different for most probes and the same each time.
fn spread(uid: &str, container: &str, kind: ProbeKind) -> u32 {
    let bytes = uid.bytes().chain(container.bytes()).chain(kind.as_str().bytes());
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    bytes.fold(0x811c_9dc5, fnv) % 1000
}

#[cfg(test)]
mod tests;
