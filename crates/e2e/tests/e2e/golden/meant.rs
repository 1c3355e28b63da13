//! The differences that we mean, one function each. Every one has its row in docs/differences.md,
//! or is named as not significant where the recordings are described.

use serde_json::{Value, json};

use super::account::{Account, Call, Event};
use super::story;

/// What is dead is removed in rounds, a moment after something ended; upstream's timers are others.
pub(super) fn call_counts(call: &Call) -> bool {
    !matches!(call.method.as_str(), "RemoveContainer" | "RemovePodSandbox")
}

/// Sizes of huge pages and what is computed from the machine's memory are the machine's.
pub(super) fn request(request: &Value) -> Value {
    let mut request = request.clone();
    for resources in ["/config/linux/resources", "/linux"] {
        let Some(resources) = request.pointer_mut(resources).and_then(Value::as_object_mut) else {
            continue;
        };
        resources.remove("hugepage_limits");
        let score = resources.get("oom_score_adj").and_then(Value::as_str);
        if score
            .and_then(|score| score.parse().ok())
            .is_some_and(|score: i64| (3..1000).contains(&score))
        {
            resources.insert("oom_score_adj".into(), json!("<by memory>"));
        }
    }
    request
}

/// Whether a probe is interrupted by the end of its container, and is told of, is chance.
pub(super) fn event_may_lack(event: &Event) -> bool {
    event.reason == "Unhealthy" && event.message.contains("errored and resulted in unknown state")
}

/// So is how: it is called off, or its command dies with the container and has said nothing.
pub(super) fn event_may_come(event: &Event) -> bool {
    let died = event.reason == "Unhealthy" && event.message.ends_with("probe failed: ");
    died || event_may_lack(event)
}

/// Whether a status is the recorded one. A crash loop never stands still: where the recording ends
/// with an exit or the hook that caused it, the rest after that very exit is as good.
pub(super) fn is_status(recorded: &Value, ours: &Value) -> bool {
    let (recorded, ours) = (status(recorded), status(ours));
    recorded == ours || at_rest(&recorded) == at_rest(&ours)
}

/// A status in which a container that ended, or rests after it, shows only how it ended.
fn at_rest(status: &Value) -> Value {
    let mut status = status.clone();
    for list in story::LISTS {
        for container in status[list].as_array_mut().into_iter().flatten() {
            let reason = container["state"]["waiting"]["reason"].as_str();
            let rests = matches!(reason, Some("CrashLoopBackOff" | "PostStartHookError"));
            let end = if rests { "lastState" } else { "state" };
            let end = container[end]["terminated"].clone();
            if let (true, Some(fields)) = (end.is_object(), container.as_object_mut()) {
                fields.remove("lastState");
                fields.insert("state".into(), json!({ "terminated": end }));
            }
        }
    }
    status
}

/// Memory without a limit is left out; upstream reads a number back from cgroup v1. The order of
/// conditions is not compared.
pub(super) fn status(status: &Value) -> Value {
    const NO_LIMIT: &str = "9007199254740988Ki";
    let mut status = amounts(status);
    let conditions = status["conditions"].as_array().cloned();
    if let Some(conditions) = conditions {
        let by_type = conditions.into_iter().map(|condition| {
            (condition["type"].as_str().unwrap_or_default().to_owned(), condition)
        });
        status["conditions"] = Value::Object(by_type.collect());
    }
    if let Some(resources) = status["resources"].as_object_mut()
        && resources.get("limits").is_some_and(|limits| *limits == json!({ "memory": NO_LIMIT }))
    {
        resources.remove("limits");
    }
    status
}

/// A mirror goes as soon as its pod has ended, and may take the pod's last words with it.
pub(super) fn goes_silently(recorded: &Account) -> bool {
    recorded.is_mirrored
}

/// Upstream, which by then has removed the container before, shows the end of a container a second
/// time as its last state. Where it does, the last state is not compared.
pub(super) fn without_echo(recorded: &Value, mut told: Value) -> Value {
    for list in story::LISTS {
        let containers = recorded[list].as_array().into_iter().flatten();
        for (index, container) in containers.enumerate() {
            if story::echoes(container)
                && let Some(told) = told[list][index].as_object_mut()
            {
                told.remove("lastState");
            }
        }
    }
    told
}

/// A debugging container in another's process namespace is killed by the kernel when that ends
/// first, and ends by SIGTERM when it does not.
pub(super) fn transition(told: &Value) -> Value {
    const KILLED: [i64; 2] = [137, 143];
    let mut told = amounts(told);
    let debuggers = told["ephemeralContainerStatuses"].as_array_mut().into_iter().flatten();
    for debugger in debuggers {
        let code = debugger.pointer_mut("/state/terminated/exitCode");
        if let Some(code) = code.filter(|code| code.as_i64().is_some_and(|c| KILLED.contains(&c))) {
            *code = json!("<killed>");
        }
    }
    told
}

/// What the node has and has in use depends on the machine and on who else runs.
pub(super) fn amounts(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(amounts_in(text)),
        Value::Array(list) => list.iter().map(amounts).collect(),
        Value::Object(object) => {
            object.iter().map(|(field, value)| (field.clone(), amounts(value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

pub(super) fn amounts_in(text: &str) -> String {
    match text.split_once(", used: ") {
        Some((head, tail)) if tail.contains(", capacity: ") => {
            format!("{head}, used: <amount>, capacity: <amount>")
        }
        _ => text.to_owned(),
    }
}
