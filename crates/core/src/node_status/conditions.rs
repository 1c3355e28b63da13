//! Node conditions: MemoryPressure, DiskPressure, PIDPressure and Ready.

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::resources::EPHEMERAL_STORAGE;
use super::{NodeEvent, NodeObservation, Settings};

/// Resource pressure on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

/// Reason why the node is not ready; reported in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// The runtime does not respond, or was not called yet.
    Unresponsive(String),
    /// The pod lifecycle information from the runtime is out of date.
    Pleg(String),
    /// The runtime reports that it is not ready.
    Runtime(String),
    Network(String),
    Storage(String),
    ShuttingDown,
}

impl Problem {
    pub fn text(&self) -> String {
        match self {
            Self::Unresponsive(text)
            | Self::Runtime(text)
            | Self::Network(text)
            | Self::Storage(text) => text.clone(),
            Self::Pleg(text) => format!("PLEG is not healthy: {text}"),
            Self::ShuttingDown => "node is shutting down".to_owned(),
        }
    }
}

/// Texts of a pressure condition while it is true and while it is false.
struct ConditionTexts {
    kind: &'static str,
    present: ConditionText,
    absent: ConditionText,
}

struct ConditionText {
    reason: &'static str,
    message: &'static str,
    event: &'static str,
}

const MEMORY: ConditionTexts = ConditionTexts {
    kind: "MemoryPressure",
    present: ConditionText {
        reason: "KubeletHasInsufficientMemory",
        message: "kubelet has insufficient memory available",
        event: "NodeHasInsufficientMemory",
    },
    absent: ConditionText {
        reason: "KubeletHasSufficientMemory",
        message: "kubelet has sufficient memory available",
        event: "NodeHasSufficientMemory",
    },
};

const DISK: ConditionTexts = ConditionTexts {
    kind: "DiskPressure",
    present: ConditionText {
        reason: "KubeletHasDiskPressure",
        message: "kubelet has disk pressure",
        event: "NodeHasDiskPressure",
    },
    absent: ConditionText {
        reason: "KubeletHasNoDiskPressure",
        message: "kubelet has no disk pressure",
        event: "NodeHasNoDiskPressure",
    },
};

const PIDS: ConditionTexts = ConditionTexts {
    kind: "PIDPressure",
    present: ConditionText {
        reason: "KubeletHasInsufficientPID",
        message: "kubelet has insufficient PID available",
        event: "NodeHasInsufficientPID",
    },
    absent: ConditionText {
        reason: "KubeletHasSufficientPID",
        message: "kubelet has sufficient PID available",
        event: "NodeHasSufficientPID",
    },
};

const READY: &str = "Ready";

/// Writes the conditions. Ready is last, so that a reader of Ready also has the others.
pub(super) fn publish(
    status: &mut v1::NodeStatus,
    settings: &Settings,
    seen: &NodeObservation,
    now: Timestamp,
    notices: &mut Vec<NodeEvent>,
) {
    let missing = missing_capacity(status, settings);
    let conditions = status.conditions.get_or_insert_default();
    let mut emit = |event: &'static str| {
        notices.push(NodeEvent {
            warning: false,
            reason: event,
            message: format!("Node {} status is now: {event}", settings.name),
        });
    };
    let Pressure { memory, disk, pids } = seen.pressure;
    for (texts, under) in [(MEMORY, memory), (DISK, disk), (PIDS, pids)] {
        let text = if under { &texts.present } else { &texts.absent };
        let (condition, changed) =
            condition(conditions, texts.kind, under, text.reason, text.message, now);
        if changed {
            emit(text.event);
        }
        put(conditions, condition);
    }
    let problems = problems(&seen.problems, missing);
    let ready = problems.is_none();
    let reason = if ready { "KubeletReady" } else { "KubeletNotReady" };
    let message = problems.as_deref().unwrap_or("kubelet is posting ready status");
    let known = conditions.iter().any(|condition| condition.type_ == READY);
    let (condition, changed) = condition(conditions, READY, ready, reason, message, now);
    // The first report of a new node is not a change.
    if changed && known {
        emit(if ready { "NodeReady" } else { "NodeNotReady" });
    }
    put(conditions, condition);
}

/// The text of one problem, or a list of several without duplicates.
fn problems(problems: &[Problem], missing: Option<String>) -> Option<String> {
    let mut sorted: Vec<&Problem> = problems.iter().collect();
    sorted.sort();
    let mut texts: Vec<String> = Vec::new();
    for text in sorted.into_iter().map(Problem::text).chain(missing) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

fn missing_capacity(status: &v1::NodeStatus, settings: &Settings) -> Option<String> {
    const NEEDED: [&str; 4] = ["cpu", "memory", "pods", EPHEMERAL_STORAGE];
    let has = |name: &str| status.capacity.as_ref().is_some_and(|list| list.contains_key(name));
    let needed = NEEDED
        .into_iter()
        .filter(|name| *name != EPHEMERAL_STORAGE || !settings.ignores_local_storage);
    let missing: Vec<&str> = needed.filter(|name| !has(name)).collect();
    (!missing.is_empty())
        .then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}

/// The current condition, and whether its status differs from the reported one.
fn condition(
    shown: &[v1::NodeCondition],
    kind: &str,
    status: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> (v1::NodeCondition, bool) {
    let status = if status { "True" } else { "False" };
    let before = shown.iter().find(|condition| condition.type_ == kind);
    let same = before.filter(|before| before.status == status);
    let since = same.and_then(|same| same.last_transition_time.clone());
    let condition = v1::NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(whole_seconds(now))),
        last_transition_time: since.or_else(|| Some(Time(whole_seconds(now)))),
    };
    (condition, same.is_none())
}

/// The API stores whole seconds; without rounding, its response would always differ.
fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn put(conditions: &mut Vec<v1::NodeCondition>, condition: v1::NodeCondition) {
    match conditions.iter_mut().find(|known| known.type_ == condition.type_) {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}
