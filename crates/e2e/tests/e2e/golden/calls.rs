//! Calls to the runtime, compared in order and content.
//!
//! Some things depend on time and nothing else, and are evened out on both sides:
//! - a probe runs as often as the pod lives; of a container's probes with the same command only the
//!   first call counts, at its place, and none after the end of the recording or in a deletion,
//! - containers that stop together are told to stop at once, in any order,
//! - the same holds for what is removed together,
//! - a hook takes its part of the grace, and so does waiting for one's turn to stop,
//! - what is refused is tried again, and that may fall into the deletion,
//! - a sandbox is stopped once more before it is removed, and when that is, is chance.

use serde_json::{Value, json};

use super::account::Call;
use super::difference::{Difference, first};
use super::meant;

pub(super) fn compare(list: &str, recorded: &[Call], ours: &[Call]) -> Option<Difference> {
    let (want, mut got) = (evened(recorded), evened(ours));
    while got.len() > want.len() && got.last().is_some_and(is_probe) {
        got.pop();
    }
    for (index, (stop, got)) in want.iter().zip(&mut got).enumerate() {
        let before = want.get(..index).unwrap_or_default();
        if before.iter().any(|hook| follows_hook(hook, stop)) {
            // A hook that took as long as the recorded one may be rounded to a second less.
            forgive_waiting(stop, got, 1);
        } else if before.last().is_some_and(|last| last.method == "StopContainer") {
            forgive_waiting(stop, got, 0);
        }
    }
    for index in 0..want.len().max(got.len()) {
        let place = format!("#{index} of {}: ", outline(&got));
        let difference = match (want.get(index), got.get(index)) {
            (Some(want), Some(got)) if want.method == got.method => {
                first(list, &content(want), &content(got))
                    .map(|difference| difference.at(&want.method))
            }
            (want, got) => {
                let shown = |call: Option<&Call>| call.map_or("(nothing)".to_owned(), shown);
                Some(Difference::new(list, "", shown(want), shown(got)))
            }
        };
        if let Some(difference) = difference {
            return Some(difference.at(place));
        }
    }
    None
}

fn evened(calls: &[Call]) -> Vec<Call> {
    let mut kept: Vec<Call> = Vec::new();
    for call in calls.iter().filter(|call| meant::call_counts(call)) {
        let may_repeat = is_probe(call) || call.method == "StopPodSandbox";
        if !(may_repeat && kept.iter().any(|seen| seen == call)) {
            kept.push(call.clone());
        }
    }
    let mut start = 0;
    while let Some(first) = kept.get(start) {
        let method = first.method.clone();
        let together = kept.iter().skip(start).take_while(|call| call.method == method).count();
        if matches!(method.as_str(), "StopContainer" | "RemoveContainer")
            && let Some(group) = kept.get_mut(start..start + together)
        {
            group.sort_by_key(|call| call.request.to_string());
        }
        start += together;
    }
    kept
}

/// Whether there are more calls than were recorded.
pub(super) fn outnumber(ours: &[Call], recorded: &[Call]) -> bool {
    let count = |calls: &[Call]| evened(calls).iter().filter(|call| !is_probe(call)).count();
    count(ours) > count(recorded)
}

/// The calls of a deletion that did not merely fall into it.
pub(super) fn of_deletion(calls: &[Call]) -> Vec<Call> {
    let belongs = |call: &&Call| !is_probe(call) && call.error.is_none();
    calls.iter().filter(belongs).cloned().collect()
}

/// A container that stops after others, or after a hook, has what they left of the grace: at least
/// two seconds, and no more than was recorded.
fn forgive_waiting(want: &Call, got: &mut Call, rounding: u64) {
    const LEAST: u64 = 2;
    let timeout = |call: &Call| call.request["timeout"].as_str()?.parse::<u64>().ok();
    if want.method == "StopContainer"
        && got.method == "StopContainer"
        && let (Some(most), Some(given)) = (timeout(want), timeout(got))
        && (LEAST..=most + rounding).contains(&given)
    {
        got.request["timeout"] = want.request["timeout"].clone();
    }
}

/// A hook may run as long as the container's grace; a probe has a limit of its own.
fn is_probe(call: &Call) -> bool {
    call.method == "ExecSync" && !call.request["timeout"].is_null()
}

fn follows_hook(hook: &Call, stop: &Call) -> bool {
    hook.method == "ExecSync"
        && !is_probe(hook)
        && stop.method == "StopContainer"
        && stop.request["container_id"] == hook.request["container_id"]
}

/// What is compared of a call: all of it, in one order.
fn content(call: &Call) -> Value {
    let mut request = meant::request(&call.request);
    if let Some(envs) = request.pointer_mut("/config/envs").and_then(Value::as_array_mut) {
        envs.sort_by_key(|env| env["key"].to_string());
    }
    let error = call.error.as_deref().map(|error| match error.split_once(": ") {
        Some((code, message)) => format!("{}: {message}", plain_code(code)),
        None => error.to_owned(),
    });
    json!({ "request": request, "error": error })
}

/// `INVALID_ARGUMENT` and `InvalidArgument` are the same code.
fn plain_code(code: &str) -> String {
    code.replace('_', "").to_lowercase()
}

fn shown(call: &Call) -> String {
    let subject = ["container_id", "pod_sandbox_id"].map(|field| &call.request[field]);
    let subject = subject.into_iter().find_map(Value::as_str).unwrap_or_default();
    let name = call.request["config"]["metadata"]["name"].as_str().unwrap_or_default();
    format!("{} {subject} {name}", call.method)
}

fn outline(calls: &[Call]) -> String {
    calls.iter().map(|call| call.method.as_str()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, request: Value) -> Call {
        Call { method: method.into(), request, error: None }
    }

    #[test]
    fn probes_repeat_and_stops_overtake_each_other_but_nothing_else_does() {
        let stop = |id: &str| call("StopContainer", json!({ "container_id": id }));
        let probe = || call("ExecSync", json!({ "cmd": ["true"], "timeout": "1" }));
        let hook = || call("ExecSync", json!({ "cmd": ["true"] }));
        let hooked = |left: &str| {
            let hook = json!({ "cmd": ["true"], "container_id": "a" });
            let stop = json!({ "container_id": "a", "timeout": left });
            vec![call("ExecSync", hook), call("StopContainer", stop)]
        };
        let start = |id: &str| call("StartContainer", json!({ "container_id": id }));
        for (case, recorded, ours, same) in [
            ("one probe or many", vec![probe()], vec![probe(), probe()], true),
            ("a hook is run once", vec![hook()], vec![hook(), hook()], false),
            ("stops", vec![stop("a"), stop("b")], vec![stop("b"), stop("a")], true),
            ("starts", vec![start("a"), start("b")], vec![start("b"), start("a")], false),
            (
                "a stop does not overtake a start",
                vec![stop("a"), start("b")],
                vec![start("b"), stop("a")],
                false,
            ),
            ("another content", vec![stop("a")], vec![stop("b")], false),
            ("a probe after the end", vec![start("a")], vec![start("a"), probe()], true),
            ("a hook after the end", vec![start("a")], vec![start("a"), hook()], false),
            ("less is left by the hook", hooked("28"), hooked("20"), true),
            ("the hook took no time", hooked("28"), hooked("29"), true),
            ("the hook is not counted", hooked("28"), hooked("30"), false),
            ("nothing is left by the hook", hooked("28"), hooked("1"), false),
        ] {
            assert_eq!(compare("calls", &recorded, &ours).is_none(), same, "{case}");
        }
    }
}
