//! The four conditions of a node, in upstream's words.

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Notice, Seen};

/// Of what the machine runs short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

/// Why the node is not ready; listed in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// The runtime does not answer, or was not asked yet.
    Silent(String),
    /// What we know of the runtime is out of date.
    Pleg(String),
    /// The runtime says that it is not ready.
    Runtime(String),
    Network(String),
    Storage(String),
    ShuttingDown,
}

impl Problem {
    fn text(&self) -> String {
        match self {
            Self::Silent(text)
            | Self::Runtime(text)
            | Self::Network(text)
            | Self::Storage(text) => text.clone(),
            Self::Pleg(text) => format!("PLEG is not healthy: {text}"),
            Self::ShuttingDown => "node is shutting down".to_owned(),
        }
    }
}

/// What a pressure is called while it is there, and while it is not.
struct Words {
    kind: &'static str,
    there: Word,
    absent: Word,
}

struct Word {
    reason: &'static str,
    message: &'static str,
    event: &'static str,
}

const MEMORY: Words = Words {
    kind: "MemoryPressure",
    there: Word {
        reason: "KubeletHasInsufficientMemory",
        message: "kubelet has insufficient memory available",
        event: "NodeHasInsufficientMemory",
    },
    absent: Word {
        reason: "KubeletHasSufficientMemory",
        message: "kubelet has sufficient memory available",
        event: "NodeHasSufficientMemory",
    },
};

const DISK: Words = Words {
    kind: "DiskPressure",
    there: Word {
        reason: "KubeletHasDiskPressure",
        message: "kubelet has disk pressure",
        event: "NodeHasDiskPressure",
    },
    absent: Word {
        reason: "KubeletHasNoDiskPressure",
        message: "kubelet has no disk pressure",
        event: "NodeHasNoDiskPressure",
    },
};

const PIDS: Words = Words {
    kind: "PIDPressure",
    there: Word {
        reason: "KubeletHasInsufficientPID",
        message: "kubelet has insufficient PID available",
        event: "NodeHasInsufficientPID",
    },
    absent: Word {
        reason: "KubeletHasSufficientPID",
        message: "kubelet has sufficient PID available",
        event: "NodeHasSufficientPID",
    },
};

const READY: &str = "Ready";

/// Writes the conditions, Ready last: who sees it sees the others as well.
pub(super) fn publish(
    status: &mut v1::NodeStatus,
    node: &str,
    seen: &Seen,
    now: Timestamp,
    notices: &mut Vec<Notice>,
) {
    let missing = missing_capacity(status);
    let conditions = status.conditions.get_or_insert_default();
    let mut tell = |event: &'static str| {
        notices.push(Notice {
            warning: false,
            reason: event,
            message: format!("Node {node} status is now: {event}"),
        });
    };
    let Pressure { memory, disk, pids } = seen.pressure;
    for (words, under) in [(MEMORY, memory), (DISK, disk), (PIDS, pids)] {
        let word = if under { &words.there } else { &words.absent };
        let (condition, changed) =
            condition(conditions, words.kind, under, word.reason, word.message, now);
        if changed {
            tell(word.event);
        }
        put(conditions, condition);
    }
    let problems = problems(&seen.problems, missing);
    let ready = problems.is_none();
    let reason = if ready { "KubeletReady" } else { "KubeletNotReady" };
    let message = problems.as_deref().unwrap_or("kubelet is posting ready status");
    let known = conditions.iter().any(|condition| condition.type_ == READY);
    let (condition, changed) = condition(conditions, READY, ready, reason, message, now);
    // The first word on a new node is no change.
    if changed && known {
        tell(if ready { "NodeReady" } else { "NodeNotReady" });
    }
    put(conditions, condition);
}

/// One problem is its text; several are a list, none of them twice.
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

fn missing_capacity(status: &v1::NodeStatus) -> Option<String> {
    const NEEDED: [&str; 4] = ["cpu", "memory", "pods", "ephemeral-storage"];
    let has = |name: &str| status.capacity.as_ref().is_some_and(|list| list.contains_key(name));
    let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !has(name)).collect();
    (!missing.is_empty())
        .then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}

/// The condition as of now, and whether its status is another than what is shown.
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

/// The API keeps no more; what is compared with its answer must not have more either.
fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

fn put(conditions: &mut Vec<v1::NodeCondition>, condition: v1::NodeCondition) {
    match conditions.iter_mut().find(|known| known.type_ == condition.type_) {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}
