//! Pod conditions.
//!
//! A pod's conditions have several writers. The agent sets the types it owns, carries foreign ones
//! over from the API, and shares one (`DisruptionTarget`) with those that disrupt pods.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};

use super::container::{ContainerStatuses, find};
use super::normal::seconds;
use super::phase::left_to_initialize;
use super::{StatusSources, text};
use crate::attempts::PodStep;
use crate::plan::usable_sandbox;
use crate::pod::{AfterExit, Container, ContainerKind, Phase, Pod};
use crate::resize::ResizeState;

pub const READY: &str = "Ready";
pub const CONTAINERS_READY: &str = "ContainersReady";
pub const INITIALIZED: &str = "Initialized";
pub const POD_SCHEDULED: &str = "PodScheduled";
pub const READY_TO_START: &str = "PodReadyToStartContainers";
pub const ALL_RESTARTING: &str = "AllContainersRestarting";
pub const RESIZE_PENDING: &str = "PodResizePending";
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

const TRUE: &str = "True";
const FALSE: &str = "False";

const POD_COMPLETED: &str = "PodCompleted";
const POD_FAILED: &str = "PodFailed";
const UNKNOWN_STATUSES: &str = "UnknownContainerStatuses";
const NOT_READY: &str = "ContainersNotReady";
const NOT_INITIALIZED: &str = "ContainersNotInitialized";
const GATES_NOT_READY: &str = "ReadinessGatesNotReady";
const RESTART_STARTED: &str = "RestartAllContainersStarted";
const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";
const SANDBOX_NOT_READY: &str = "PodSandboxNotReady";
const RESIZE_ERROR: &str = "Error";

/// Writer of a condition type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionOwner {
    Agent,
    Shared,
    Foreign,
}

pub fn owner(type_: &str) -> ConditionOwner {
    match type_ {
        READY | CONTAINERS_READY | INITIALIZED | POD_SCHEDULED | READY_TO_START
        | ALL_RESTARTING | RESIZE_PENDING | RESIZE_IN_PROGRESS => ConditionOwner::Agent,
        DISRUPTION_TARGET => ConditionOwner::Shared,
        _ => ConditionOwner::Foreign,
    }
}

pub fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<&'a PodCondition> {
    in_list(status.conditions.as_deref().unwrap_or_default(), type_)
}

fn in_list<'a>(conditions: &'a [PodCondition], type_: &str) -> Option<&'a PodCondition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

pub fn is_true(status: &PodStatus, type_: &str) -> bool {
    condition(status, type_).is_some_and(|condition| condition.status == TRUE)
}

/// Replaces the condition of the same type, or appends it.
pub(super) fn put(conditions: &mut Vec<PodCondition>, condition: PodCondition) {
    match conditions.iter_mut().find(|other| other.type_ == condition.type_) {
        Some(other) => *other = condition,
        None => conditions.push(condition),
    }
}

/// Status, reason and message of a condition, without its type.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConditionValue {
    yes: bool,
    reason: &'static str,
    message: String,
}

impl ConditionValue {
    fn yes(reason: &'static str) -> Self {
        Self { yes: true, reason, message: String::new() }
    }

    fn no(reason: &'static str, message: String) -> Self {
        Self { yes: false, reason, message }
    }

    fn to(&self, type_: &str, generation: Option<i64>) -> PodCondition {
        PodCondition {
            type_: type_.into(),
            observed_generation: generation,
            status: if self.yes { TRUE } else { FALSE }.into(),
            reason: text(self.reason),
            message: text(&self.message),
            ..PodCondition::default()
        }
    }
}

/// All conditions of a pod, in the order in which they are reported.
pub(super) fn all(
    sources: &StatusSources<'_>,
    shown: ContainerStatuses<'_>,
    phase: Phase,
) -> Vec<PodCondition> {
    let pod = sources.pod();
    let (generation, old) = (pod.generation(), sources.old());
    let mut all = Vec::with_capacity(8);
    let in_api = sources.api().and_then(|api| api.conditions.as_deref()).unwrap_or_default();
    all.extend(in_api.iter().filter(|c| owner(&c.type_) != ConditionOwner::Agent).cloned());
    if !sources.is_terminal() {
        all.extend(resizing(&sources.inputs.local_state.resizing));
    }
    if let Some(disrupted) = disruption(sources) {
        put(&mut all, disrupted);
    }
    if sources.inputs.local_state.features.pod_ready_to_start_containers_condition {
        all.push(ready_to_start(sources).to(READY_TO_START, generation));
    }
    let left = left_to_initialize(sources.inputs);
    let initialized = initialized(pod, shown, phase, old, left.as_deref());
    all.push(initialized.to(INITIALIZED, generation));
    let containers_ready = containers_ready(pod, shown, phase);
    let ready = apply_readiness_gates(pod, &all, &containers_ready);
    all.push(ready.as_ref().unwrap_or(&containers_ready).to(READY, generation));
    all.push(containers_ready.to(CONTAINERS_READY, generation));
    all.push(ConditionValue::yes("").to(POD_SCHEDULED, generation));
    if could_restart_all(pod) {
        // The only condition without a generation, as upstream.
        all.push(restarting_all(sources, phase).to(ALL_RESTARTING, None));
    }
    all
}

/// Whether the pod has a usable sandbox, and if it cannot get one, why.
fn ready_to_start(sources: &StatusSources<'_>) -> ConditionValue {
    let inputs = sources.inputs;
    if usable_sandbox(sources.pod(), inputs.observed).is_some() {
        return ConditionValue::yes("");
    }
    let network = match &inputs.local_state.network {
        Err(error) if !sources.pod().host_network => Some(format!("network is not ready: {error}")),
        Ok(()) | Err(_) => None,
    };
    let steps = [PodStep::Cgroup, PodStep::Directories, PodStep::Volumes, PodStep::Sandbox];
    let failed = || steps.into_iter().find_map(|step| inputs.attempts.step_failure(step));
    let why = network.or_else(|| failed().map(|failed| without_ids(&failed.message)));
    match why.filter(|_| !sources.is_terminal()) {
        Some(why) => ConditionValue::no(SANDBOX_NOT_READY, why),
        None => ConditionValue::no("", String::new()),
    }
}

/// The message without the ids of sandboxes that never were: each attempt has another one, and would
/// change the pod's status.
fn without_ids(message: &str) -> String {
    const ID_LENGTH: usize = 32;
    let is_id =
        |word: &str| word.len() >= ID_LENGTH && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut text = String::with_capacity(message.len());
    for part in message.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let rest = part.get(word.len()..).unwrap_or_default();
        text.push_str(if is_id(word) { "…" } else { word });
        text.push_str(rest);
    }
    text
}

/// Conditions of a pending resize and of one in progress.
fn resizing(resizing: &ResizeState) -> impl Iterator<Item = PodCondition> {
    let common = |type_: &str, generation, since: Timestamp| PodCondition {
        type_: type_.into(),
        status: TRUE.into(),
        observed_generation: generation,
        last_transition_time: Some(seconds(since)),
        ..PodCondition::default()
    };
    let pending = resizing.pending.as_ref().map(|pending| PodCondition {
        reason: text(pending.why.as_str()),
        message: text(&pending.message),
        ..common(RESIZE_PENDING, pending.generation, pending.since)
    });
    let progress = resizing.progress.as_ref().map(|progress| PodCondition {
        reason: progress.error.as_ref().map(|_| RESIZE_ERROR.to_owned()),
        message: progress.error.clone(),
        ..common(RESIZE_IN_PROGRESS, progress.generation, progress.since)
    });
    pending.into_iter().chain(progress)
}

/// Ready and ContainersReady, computed from these container statuses and conditions.
pub(super) fn readiness(
    pod: &Pod,
    shown: ContainerStatuses<'_>,
    conditions: &[PodCondition],
    phase: Phase,
) -> [PodCondition; 2] {
    let containers_ready = containers_ready(pod, shown, phase);
    let ready = apply_readiness_gates(pod, conditions, &containers_ready);
    let ready = ready.as_ref().unwrap_or(&containers_ready).to(READY, pod.generation());
    [ready, containers_ready.to(CONTAINERS_READY, pod.generation())]
}

/// Ready and ContainersReady of a finished pod.
pub(super) fn unready_when_finished(phase: Phase, generation: Option<i64>) -> [PodCondition; 2] {
    let value = ConditionValue::no(end_reason(phase), String::new());
    [value.to(READY, generation), value.to(CONTAINERS_READY, generation)]
}

/// Whether the Ready condition in the API is outdated because a readiness gate has changed.
pub fn ready_is_stale(pod: &Pod) -> bool {
    let gates = pod.object.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    let (Some(status), Some(_)) = (&pod.object.status, gates.filter(|g| !g.is_empty())) else {
        return false;
    };
    let Some(shown) = condition(status, READY) else { return false };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let [ready, _] = readiness(pod, ContainerStatuses::of(status), conditions, pod.api_phase);
    shown.status != ready.status || shown.message != ready.message
}

fn containers_ready(pod: &Pod, shown: ContainerStatuses<'_>, phase: Phase) -> ConditionValue {
    if shown.is_empty() {
        return ConditionValue::no(UNKNOWN_STATUSES, String::new());
    }
    let mut missing = ProblemContainers::new("containers with unknown status");
    let mut unready = ProblemContainers::new("containers with unready status");
    for container in &pod.containers {
        let list = match container.kind {
            ContainerKind::Sidecar => shown.init,
            ContainerKind::Regular => shown.regular,
            ContainerKind::Init | ContainerKind::Ephemeral => continue,
        };
        match find(list, &container.name) {
            None => missing.push(container),
            Some(status) if !status.ready => unready.push(container),
            Some(_) => {}
        }
    }
    let over = match phase {
        Phase::Succeeded => missing.is_empty(),
        Phase::Failed => true,
        Phase::Pending | Phase::Running | Phase::Unknown => false,
    };
    if over {
        return ConditionValue::no(end_reason(phase), String::new());
    }
    match ProblemContainers::sentence([missing, unready]) {
        Some(message) => ConditionValue::no(NOT_READY, message),
        None => ConditionValue::yes(""),
    }
}

fn end_reason(phase: Phase) -> &'static str {
    match phase {
        Phase::Succeeded => POD_COMPLETED,
        Phase::Failed => POD_FAILED,
        Phase::Pending | Phase::Running | Phase::Unknown => "",
    }
}

/// The effect of readiness gates, if the containers are ready.
fn apply_readiness_gates(
    pod: &Pod,
    conditions: &[PodCondition],
    containers: &ConditionValue,
) -> Option<ConditionValue> {
    let gates = pod.object.spec.as_ref()?.readiness_gates.as_ref()?;
    if !containers.yes {
        return None;
    }
    let mut message = String::new();
    for gate in gates {
        let type_ = &gate.condition_type;
        let found = in_list(conditions, type_).map(|condition| condition.status.as_str());
        if found == Some(TRUE) {
            continue;
        }
        if !message.is_empty() {
            message.push_str(", ");
        }
        let written = match found {
            None => write!(
                message,
                "corresponding condition of pod readiness gate {type_:?} does not exist."
            ),
            Some(status) => write!(
                message,
                "the status of pod readiness gate {type_:?} is not \"True\", but {status}"
            ),
        };
        written.ok()?; // writing into a String does not fail
    }
    (!message.is_empty()).then(|| ConditionValue::no(GATES_NOT_READY, message))
}

/// A pod does not become uninitialized in its sandbox, even if its containers are restarted.
fn initialized(
    pod: &Pod,
    shown: ContainerStatuses<'_>,
    phase: Phase,
    old: Option<&PodStatus>,
    left: Option<&[&str]>,
) -> ConditionValue {
    let has_run = |status: &ContainerStatus| {
        let state = status.state.as_ref();
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    let value = init_containers_done(pod, shown, phase, left.unwrap_or_default());
    let may_stay = !value.yes && value.reason == NOT_INITIALIZED && left.is_none();
    let was = shown.regular.iter().any(has_run) || old.is_some_and(|old| is_true(old, INITIALIZED));
    if may_stay && was { ConditionValue::yes("") } else { value }
}

/// `left`: init containers that have not run in the current sandbox yet.
fn init_containers_done(
    pod: &Pod,
    shown: ContainerStatuses<'_>,
    phase: Phase,
    left: &[&str],
) -> ConditionValue {
    let mut missing = ProblemContainers::new("containers with unknown status");
    let mut incomplete = ProblemContainers::new("containers with incomplete status");
    for container in pod.init_containers() {
        match find(shown.init, &container.name) {
            None => missing.push(container),
            Some(status) if left.contains(&&*container.name) || !has_passed(container, status) => {
                incomplete.push(container);
            }
            Some(_) => {}
        }
    }
    if shown.is_empty() && !missing.is_empty() {
        return ConditionValue::no(UNKNOWN_STATUSES, String::new());
    }
    if phase == Phase::Succeeded && missing.is_empty() {
        return ConditionValue::yes(POD_COMPLETED);
    }
    match ProblemContainers::sentence([missing, incomplete]) {
        Some(message) => ConditionValue::no(NOT_INITIALIZED, message),
        None => ConditionValue::yes(""),
    }
}

fn has_passed(container: &Container, status: &ContainerStatus) -> bool {
    match container.kind {
        ContainerKind::Sidecar => status.started == Some(true),
        ContainerKind::Init | ContainerKind::Regular | ContainerKind::Ephemeral => status.ready,
    }
}

/// DisruptionTarget, if the node terminated or terminates the pod.
fn disruption(sources: &StatusSources<'_>) -> Option<PodCondition> {
    let reported = sources.old().and_then(|old| condition(old, DISRUPTION_TARGET));
    if let Some(reported) = reported {
        return Some(reported.clone());
    }
    let message = sources.inputs.lifecycle.termination_reason()?.disruption.clone()?;
    let value = ConditionValue { yes: true, reason: TERMINATION_BY_KUBELET, message };
    Some(value.to(DISRUPTION_TARGET, sources.pod().generation()))
}

pub(super) fn could_restart_all(pod: &Pod) -> bool {
    pod.containers
        .iter()
        .flat_map(|c| &c.rules)
        .any(|rule| rule.then == Some(AfterExit::RestartAll))
}

/// A container exited with a code whose rule restarts all containers.
pub(super) fn is_restarting_all(sources: &StatusSources<'_>) -> bool {
    if !could_restart_all(sources.pod()) {
        return false;
    }
    let begun = sources.old().is_some_and(|old| is_true(old, ALL_RESTARTING));
    let (pod, observed) = (sources.pod(), sources.inputs.observed);
    begun
        || pod.containers.iter().any(|container| {
            let exit = observed.newest(&container.name).and_then(|newest| newest.exit());
            exit.is_some_and(|exit| {
                let after = container.after_exit(exit.code, pod.restart_policy);
                after == AfterExit::RestartAll
            })
        })
}

fn restarting_all(sources: &StatusSources<'_>, phase: Phase) -> ConditionValue {
    if phase.is_terminal() {
        return ConditionValue::no(end_reason(phase), String::new());
    }
    let any_left = sources.pod().containers.iter().any(|container| match container.kind {
        ContainerKind::Init | ContainerKind::Sidecar | ContainerKind::Regular => {
            sources.inputs.observed.newest(&container.name).is_some()
        }
        ContainerKind::Ephemeral => false,
    });
    if !any_left || !is_restarting_all(sources) {
        return ConditionValue::no("", String::new());
    }
    ConditionValue {
        yes: true,
        reason: RESTART_STARTED,
        message: "container exited with restart policy rule".into(),
    }
}

/// Containers with the same problem: `containers with unready status: [a b]`.
struct ProblemContainers<'a> {
    problem: &'static str,
    names: Vec<&'a str>,
}

impl<'a> ProblemContainers<'a> {
    fn new(problem: &'static str) -> Self {
        Self { problem, names: Vec::new() }
    }

    fn push(&mut self, container: &'a Container) {
        self.names.push(&container.name);
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn sentence(problems: [Self; 2]) -> Option<String> {
        let parts: Vec<String> = problems
            .into_iter()
            .filter(|problem| !problem.is_empty())
            .map(|problem| format!("{}: [{}]", problem.problem, problem.names.join(" ")))
            .collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}
