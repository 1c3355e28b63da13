//! The phase: one word for where a pod is in its life, and why.
//!
//! It is counted from what the container statuses show. A pod that is over stays as it ended: no
//! later count, deadline or eviction changes the word or the reason.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

use super::container::{BLOCKED, RESTARTING_ALL, Shown, find};
use super::{Sources, phase_of, text};
use crate::lifecycle::Stage;
use crate::plan::{Hold, Inputs};
use crate::pod::{AfterExit, Container, ContainerKind, Phase, Pod};

pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub phase: Phase,
    pub reason: Option<String>,
    pub message: Option<String>,
}

impl Outcome {
    fn new(phase: Phase, reason: &str, message: &str) -> Self {
        Self { phase, reason: text(reason), message: text(message) }
    }

    /// The phase goes on, so whatever was said about it still holds.
    fn kept(phase: Phase, said_by: [Option<&PodStatus>; 2]) -> Self {
        let said = || said_by.into_iter().flatten().filter(|status| phase_of(status) == phase);
        let of = |field: fn(&PodStatus) -> Option<&String>| {
            said().find_map(|status| field(status).filter(|text| !text.is_empty())).cloned()
        };
        Self { phase, reason: of(|s| s.reason.as_ref()), message: of(|s| s.message.as_ref()) }
    }
}

pub(super) fn outcome(sources: &Sources<'_>, shown: Shown<'_>) -> Outcome {
    let inputs = sources.inputs;
    let (api, old) = (sources.api(), sources.old());
    let over = [api, old].into_iter().flatten().map(phase_of).find(|phase| phase.is_terminal());
    if let Some(phase) = over {
        return Outcome::kept(phase, [old, api]);
    }
    if let Some(obituary) = inputs.life.obituary() {
        return Outcome::new(Phase::Failed, &obituary.reason, &obituary.message);
    }
    if is_past_deadline(inputs) {
        return Outcome::new(Phase::Failed, DEADLINE_EXCEEDED, DEADLINE_MESSAGE);
    }
    let initialized = has_regular_in_sandbox(inputs);
    let phase = compute(inputs.pod, shown, sources.is_terminal(), initialized);
    if let Some(hold) = hold(inputs).filter(|_| !phase.is_terminal()) {
        return Outcome::new(Phase::Pending, &hold.reason, &hold.message);
    }
    // What a hold said ends with the hold, though the pod goes on pending.
    if old.is_some_and(was_held) {
        return Outcome::new(phase, "", "");
    }
    Outcome::kept(phase, [old, api])
}

/// Soft admission speaks only to pods that should run.
pub(super) fn hold<'a>(inputs: &Inputs<'a>) -> Option<&'a Hold> {
    match inputs.life.stage() {
        Stage::Syncing => inputs.surroundings.hold.as_ref(),
        Stage::Terminating | Stage::Terminated | Stage::Finished => None,
    }
}

fn was_held(status: &PodStatus) -> bool {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    lists.into_iter().flatten().flatten().any(|container| {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(BLOCKED))
    })
}

fn is_past_deadline(inputs: &Inputs<'_>) -> bool {
    let Some(limit) = inputs.pod.active_deadline else { return false };
    let active = inputs.surroundings.active;
    active.is_some_and(|active| active.elapsed(inputs.now.mono) >= limit)
}

/// A regular container exists in the sandbox of today: initialisation is behind it.
fn has_regular_in_sandbox(inputs: &Inputs<'_>) -> bool {
    let Some(sandbox) = inputs.observed.newest_sandbox().filter(|s| s.ready) else { return false };
    inputs.observed.instances.iter().filter(|i| i.sandbox == sandbox.id).any(|i| {
        let kind = inputs.pod.container(&i.container).map(|c| c.kind);
        kind == Some(ContainerKind::Regular)
    })
}

/// What one container's status says, as far as the phase is concerned.
#[derive(Clone, Copy)]
enum Shape<'a> {
    Running,
    Ended(&'a ContainerStateTerminated),
    /// It ended before and waits for its next start.
    WaitsAgain(&'a ContainerStateTerminated),
    Waits,
    Unknown,
}

fn shape(status: Option<&ContainerStatus>) -> Shape<'_> {
    let Some(status) = status else { return Shape::Unknown };
    let Some(state) = &status.state else { return Shape::Unknown };
    let ended_before = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    match (&state.running, &state.terminated, &state.waiting, ended_before) {
        (Some(_), _, _, _) => Shape::Running,
        (None, Some(end), _, _) => Shape::Ended(end),
        (None, None, Some(_), Some(end)) => Shape::WaitsAgain(end),
        (None, None, Some(_), None) => Shape::Waits,
        (None, None, None, _) => Shape::Unknown,
    }
}

#[derive(Default)]
struct Tally {
    /// Plain init containers that failed and stay so.
    init_failed: bool,
    init_pending: bool,
    sidecar_pending: bool,
    running: bool,
    waiting: bool,
    unknown: bool,
    /// Regular containers that do not run.
    stopped: usize,
    /// Those of them that stay so.
    done: usize,
    /// Those of them that exited with zero.
    succeeded: usize,
}

/// The phase that the container statuses add up to.
///
/// `terminal`: nothing will be started again, whatever the restart policies say. `initialized`: a
/// regular container exists in the current sandbox.
pub fn compute(pod: &Pod, shown: Shown<'_>, terminal: bool, initialized: bool) -> Phase {
    let tally = count(pod, shown);
    if tally.init_failed {
        return Phase::Failed;
    }
    if tally.init_pending || (tally.sidecar_pending && !initialized) || tally.waiting {
        return Phase::Pending;
    }
    if tally.unknown {
        return Phase::Pending;
    }
    if tally.running {
        return Phase::Running;
    }
    if tally.stopped == 0 {
        return Phase::Pending;
    }
    let stays_stopped = (terminal && !pod.is_static()) || tally.done == tally.stopped;
    match (stays_stopped, tally.succeeded == tally.stopped) {
        (false, _) => Phase::Running,
        (true, true) => Phase::Succeeded,
        (true, false) => Phase::Failed,
    }
}

fn count(pod: &Pod, shown: Shown<'_>) -> Tally {
    let mut tally = Tally::default();
    for container in &pod.containers {
        match container.kind {
            ContainerKind::Init => {
                count_init(&mut tally, pod, container, shape(find(shown.init, &container.name)));
            }
            ContainerKind::Sidecar => {
                let status = find(shown.init, &container.name);
                let started = status.is_some_and(|status| status.started == Some(true));
                count_sidecar(&mut tally, started, shape(status));
            }
            ContainerKind::Regular => {
                let shape = shape(find(shown.regular, &container.name));
                count_regular(&mut tally, pod, container, shape);
            }
            ContainerKind::Ephemeral => {}
        }
    }
    tally
}

fn count_init(tally: &mut Tally, pod: &Pod, container: &Container, shape: Shape<'_>) {
    match shape {
        Shape::Running | Shape::Waits | Shape::Unknown => tally.init_pending = true,
        Shape::Ended(end) | Shape::WaitsAgain(end) => {
            tally.init_failed |= end.exit_code != 0 && !comes_back(pod, container, end);
        }
    }
}

/// A sidecar that ended says nothing about the pod.
fn count_sidecar(tally: &mut Tally, started: bool, shape: Shape<'_>) {
    match shape {
        Shape::Running => {
            tally.running = true;
            tally.sidecar_pending |= !started;
        }
        Shape::Ended(_) | Shape::WaitsAgain(_) => {}
        Shape::Waits => {
            tally.sidecar_pending = true;
            tally.waiting = true;
        }
        Shape::Unknown => tally.unknown = true,
    }
}

fn count_regular(tally: &mut Tally, pod: &Pod, container: &Container, shape: Shape<'_>) {
    match shape {
        Shape::Running => tally.running = true,
        Shape::Ended(end) => {
            tally.stopped += 1;
            tally.done += usize::from(!comes_back(pod, container, end));
            tally.succeeded += usize::from(end.exit_code == 0);
        }
        Shape::WaitsAgain(end) => {
            tally.stopped += 1;
            tally.done += usize::from(!comes_back(pod, container, end));
        }
        Shape::Waits => tally.waiting = true,
        Shape::Unknown => tally.unknown = true,
    }
}

fn comes_back(pod: &Pod, container: &Container, end: &ContainerStateTerminated) -> bool {
    let after = container.after_exit(end.exit_code, pod.restart_policy);
    after != AfterExit::Stay || end.reason.as_deref() == Some(RESTARTING_ALL)
}
