//! Pod phase, with reason and message.
//!
//! It is computed from the container statuses. A terminal phase is final: no later status,
//! deadline or eviction changes it or its reason.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

use super::container::{BLOCKED, ContainerStatuses, RESTARTING_ALL, find};
use super::{StatusSources, phase_of, text};
use crate::lifecycle::Stage;
use crate::plan::{Hold, Inputs};
use crate::pod::{AfterExit, Container, ContainerKind, Phase, Pod};

pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// Phase, reason and message of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PhaseOutcome {
    pub phase: Phase,
    pub reason: Option<String>,
    pub message: Option<String>,
}

impl PhaseOutcome {
    fn new(phase: Phase, reason: &str, message: &str) -> Self {
        Self { phase, reason: text(reason), message: text(message) }
    }

    /// The phase did not change, so its reason and message are kept.
    fn kept(phase: Phase, reports: [Option<&PodStatus>; 2]) -> Self {
        let same = || reports.into_iter().flatten().filter(|status| phase_of(status) == phase);
        let of = |field: fn(&PodStatus) -> Option<&String>| {
            same().find_map(|status| field(status).filter(|text| !text.is_empty())).cloned()
        };
        Self { phase, reason: of(|s| s.reason.as_ref()), message: of(|s| s.message.as_ref()) }
    }
}

pub(super) fn outcome(sources: &StatusSources<'_>, shown: ContainerStatuses<'_>) -> PhaseOutcome {
    let inputs = sources.inputs;
    let (api, old) = (sources.api(), sources.old());
    let over = [api, old].into_iter().flatten().map(phase_of).find(|phase| phase.is_terminal());
    if let Some(phase) = over {
        return PhaseOutcome::kept(phase, [old, api]);
    }
    if let Some(termination_reason) = inputs.lifecycle.termination_reason() {
        return PhaseOutcome::new(
            Phase::Failed,
            &termination_reason.reason,
            &termination_reason.message,
        );
    }
    if is_past_deadline(inputs) {
        return PhaseOutcome::new(Phase::Failed, DEADLINE_EXCEEDED, DEADLINE_MESSAGE);
    }
    let initialized = has_regular_in_sandbox(inputs);
    let phase = match compute(inputs.pod, shown, sources.is_terminal(), initialized) {
        Phase::Running if left_to_initialize(inputs).is_some_and(|left| !left.is_empty()) => {
            Phase::Pending
        }
        phase => phase,
    };
    if let Some(hold) = hold(inputs).filter(|_| !phase.is_terminal()) {
        return PhaseOutcome::new(Phase::Pending, &hold.reason, &hold.message);
    }
    // The reason of a hold ends with the hold, even if the pod stays pending.
    if old.is_some_and(was_held) {
        return PhaseOutcome::new(phase, "", "");
    }
    PhaseOutcome::kept(phase, [old, api])
}

/// Soft admission applies only to pods that should be running.
pub(super) fn hold<'a>(inputs: &Inputs<'a>) -> Option<&'a Hold> {
    match inputs.lifecycle.stage() {
        Stage::Syncing => inputs.local_state.hold.as_ref(),
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
    let active = inputs.local_state.active;
    active.is_some_and(|active| active.elapsed(inputs.now.mono) >= limit)
}

/// A regular container exists in the current sandbox: initialization is complete.
fn has_regular_in_sandbox(inputs: &Inputs<'_>) -> bool {
    let Some(sandbox) = inputs.observed.newest_sandbox().filter(|s| s.ready) else { return false };
    inputs.observed.instances.iter().filter(|i| i.sandbox == sandbox.id).any(|i| {
        let kind = inputs.pod.container(&i.container).map(|c| c.kind);
        kind == Some(ContainerKind::Regular)
    })
}

/// Init containers that have not run in the pod's new sandbox yet. `None`: the pod is in its first
/// sandbox, or a regular container has started in the new one.
pub(super) fn left_to_initialize<'a>(inputs: &Inputs<'a>) -> Option<Vec<&'a str>> {
    let observed = inputs.observed;
    let sandbox = observed.newest_sandbox().filter(|s| s.ready && s.attempt > 0)?;
    if has_regular_in_sandbox(inputs) {
        return None;
    }
    let is_left = |container: &&Container| {
        observed.newest(&container.name).is_none_or(|newest| newest.sandbox != sandbox.id)
    };
    Some(inputs.pod.init_containers().filter(is_left).map(|c| &*c.name).collect())
}

/// State of one container, as far as it matters for the phase.
#[derive(Clone, Copy)]
enum ContainerShape<'a> {
    Running,
    Ended(&'a ContainerStateTerminated),
    /// It terminated before and waits for its restart.
    WaitingAgain(&'a ContainerStateTerminated),
    Waiting,
    Unknown,
}

fn shape(status: Option<&ContainerStatus>) -> ContainerShape<'_> {
    let Some(status) = status else { return ContainerShape::Unknown };
    let Some(state) = &status.state else { return ContainerShape::Unknown };
    let ended_before = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    match (&state.running, &state.terminated, &state.waiting, ended_before) {
        (Some(_), _, _, _) => ContainerShape::Running,
        (None, Some(end), _, _) => ContainerShape::Ended(end),
        (None, None, Some(_), Some(end)) => ContainerShape::WaitingAgain(end),
        (None, None, Some(_), None) => ContainerShape::Waiting,
        (None, None, None, _) => ContainerShape::Unknown,
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
    /// Regular containers that are not running.
    stopped: usize,
    /// Those of them that are not restarted.
    done: usize,
    /// Those of them that exited with zero.
    succeeded: usize,
}

/// Computes the phase from the container statuses.
///
/// `terminal`: no container will be started again, whatever the restart policies are.
/// `initialized`: a regular container exists in the current sandbox.
pub fn compute(
    pod: &Pod,
    shown: ContainerStatuses<'_>,
    terminal: bool,
    initialized: bool,
) -> Phase {
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

fn count(pod: &Pod, shown: ContainerStatuses<'_>) -> Tally {
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

fn count_init(tally: &mut Tally, pod: &Pod, container: &Container, shape: ContainerShape<'_>) {
    match shape {
        ContainerShape::Running | ContainerShape::Waiting | ContainerShape::Unknown => {
            tally.init_pending = true;
        }
        ContainerShape::Ended(end) => {
            tally.init_failed |= end.exit_code != 0 && !is_restarted(pod, container, end);
        }
        // After a success it waits because its sandbox is new and initialization starts over.
        ContainerShape::WaitingAgain(end) if end.exit_code == 0 => tally.init_pending = true,
        ContainerShape::WaitingAgain(end) => {
            tally.init_failed |= !is_restarted(pod, container, end);
        }
    }
}

/// A terminated sidecar does not affect the phase.
fn count_sidecar(tally: &mut Tally, started: bool, shape: ContainerShape<'_>) {
    match shape {
        ContainerShape::Running => {
            tally.running = true;
            tally.sidecar_pending |= !started;
        }
        ContainerShape::Ended(_) | ContainerShape::WaitingAgain(_) => {}
        ContainerShape::Waiting => {
            tally.sidecar_pending = true;
            tally.waiting = true;
        }
        ContainerShape::Unknown => tally.unknown = true,
    }
}

fn count_regular(tally: &mut Tally, pod: &Pod, container: &Container, shape: ContainerShape<'_>) {
    match shape {
        ContainerShape::Running => tally.running = true,
        ContainerShape::Ended(end) => {
            tally.stopped += 1;
            tally.done += usize::from(!is_restarted(pod, container, end));
            tally.succeeded += usize::from(end.exit_code == 0);
        }
        ContainerShape::WaitingAgain(end) => {
            tally.stopped += 1;
            tally.done += usize::from(!is_restarted(pod, container, end));
        }
        ContainerShape::Waiting => tally.waiting = true,
        ContainerShape::Unknown => tally.unknown = true,
    }
}

fn is_restarted(pod: &Pod, container: &Container, end: &ContainerStateTerminated) -> bool {
    let after = container.after_exit(end.exit_code, pod.restart_policy);
    after != AfterExit::Stay || end.reason.as_deref() == Some(RESTARTING_ALL)
}
