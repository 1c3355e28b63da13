//! Intended differences, one function each. Every one has a row in docs/differences.md, or is
//! documented as not significant where the recordings are described.

use serde_json::{Value, json};

use super::observation::{Call, Event, Observation};
use super::transitions;

/// The reason of a sandbox that cannot be created; upstream gives none.
const NO_SANDBOX: &str = "PodSandboxNotReady";

/// Dead containers are removed in batches shortly after an exit; upstream's timers differ.
pub(super) fn call_counts(call: &Call) -> bool {
    !matches!(call.method.as_str(), "RemoveContainer" | "RemovePodSandbox")
}

/// Huge page sizes and values computed from the machine's memory depend on the machine.
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

/// Whether a probe is interrupted by the exit of its container, and reported, depends on timing.
pub(super) fn event_may_be_missing(event: &Event) -> bool {
    event.reason == "Unhealthy" && event.message.contains("errored and resulted in unknown state")
}

/// So does the kind of interruption: it is cancelled, or its command is killed with the container
/// and prints nothing.
pub(super) fn event_may_be_extra(event: &Event) -> bool {
    let died = event.reason == "Unhealthy" && event.message.ends_with("probe failed: ");
    died || event_may_be_missing(event)
}

/// Whether a status matches the recorded one. A crash loop keeps changing: if the recording ends
/// with an exit or the hook that caused it, the back-off after the same exit also matches.
pub(super) fn is_status(recorded: &Value, ours: &Value) -> bool {
    let (recorded, ours) = (status(recorded), status(ours));
    recorded == ours || termination_only(&recorded) == termination_only(&ours)
}

/// A status in which an exited container, or one in back-off, shows only its termination.
fn termination_only(status: &Value) -> Value {
    let mut status = status.clone();
    for list in transitions::LISTS {
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
/// conditions is not compared, nor why there is no sandbox.
pub(super) fn status(status: &Value) -> Value {
    const NO_LIMIT: &str = "9007199254740988Ki";
    let mut status = amounts(status);
    let conditions = status["conditions"].as_array().cloned();
    if let Some(conditions) = conditions {
        let by_type = conditions.into_iter().map(|mut condition| {
            if condition["reason"] == NO_SANDBOX
                && let Some(fields) = condition.as_object_mut()
            {
                fields.remove("reason");
                fields.remove("message");
            }
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

/// A mirror pod is deleted as soon as its pod has finished, possibly before the final status.
pub(super) fn may_skip_final_status(recorded: &Observation) -> bool {
    recorded.is_mirrored
}

/// Upstream, which has removed the previous container by then, shows a termination a second time as
/// the last state. In that case the last state is not compared.
pub(super) fn without_echo(recorded: &Value, mut reported: Value) -> Value {
    for list in transitions::LISTS {
        let containers = recorded[list].as_array().into_iter().flatten();
        for (index, container) in containers.enumerate() {
            if transitions::echoes(container)
                && let Some(reported) = reported[list][index].as_object_mut()
            {
                reported.remove("lastState");
            }
        }
    }
    reported
}

/// A debugging container in another container's process namespace is killed by the kernel if that
/// container exits first, and exits by SIGTERM otherwise. Why there is no sandbox is not compared.
pub(super) fn transition(reported: &Value) -> Value {
    const KILLED: [i64; 2] = [137, 143];
    let mut reported = amounts(reported);
    let conditions = reported.get_mut("conditions").and_then(Value::as_object_mut);
    for condition in conditions.into_iter().flat_map(|conditions| conditions.values_mut()) {
        if condition[1] == NO_SANDBOX {
            *condition = json!([condition[0], null, null]);
        }
    }
    let debuggers = reported["ephemeralContainerStatuses"].as_array_mut().into_iter().flatten();
    for debugger in debuggers {
        let code = debugger.pointer_mut("/state/terminated/exitCode");
        if let Some(code) = code.filter(|code| code.as_i64().is_some_and(|c| KILLED.contains(&c))) {
            *code = json!("<killed>");
        }
    }
    reported
}

/// Capacity and usage of the node depend on the machine and on other pods.
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
