//! Comparison of runtime calls in order and content.
//!
//! Time-dependent differences are normalized on both sides:
//! - the number of probe runs depends on the pod's lifetime; of a container's probes with the same
//!   command only the first call counts, at its position, and none after the end of the recording
//!   or in a deletion,
//! - containers that stop together are stopped concurrently, in any order,
//! - the same holds for concurrent removals,
//! - a hook uses a part of the grace period, and so does waiting for earlier containers to stop,
//! - a failed call is retried, and the retry may fall into the deletion,
//! - a sandbox is stopped again before it is removed, at any time.

use serde_json::{Value, json};

use super::difference::{Difference, first};
use super::intended;
use super::observation::Call;

pub(super) fn compare(list: &str, recorded: &[Call], ours: &[Call]) -> Option<Difference> {
    let (want, mut got) = (normalized(recorded), normalized(ours));
    while got.len() > want.len() && got.last().is_some_and(is_probe) {
        got.pop();
    }
    for (index, (stop, got)) in want.iter().zip(&mut got).enumerate() {
        let before = want.get(..index).unwrap_or_default();
        if before.iter().any(|hook| follows_hook(hook, stop)) {
            // A hook that took as long as the recorded one may be rounded to a second less.
            allow_shorter_grace(stop, got, 1);
        } else if before.last().is_some_and(|last| last.method == "StopContainer") {
            allow_shorter_grace(stop, got, 0);
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

fn normalized(calls: &[Call]) -> Vec<Call> {
    let mut kept: Vec<Call> = Vec::new();
    for call in calls.iter().filter(|call| intended::call_counts(call)) {
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

/// Whether there are more calls than recorded.
pub(super) fn exceed(ours: &[Call], recorded: &[Call]) -> bool {
    let count = |calls: &[Call]| normalized(calls).iter().filter(|call| !is_probe(call)).count();
    count(ours) > count(recorded)
}

/// The calls that belong to the deletion and do not only coincide with it.
pub(super) fn of_deletion(calls: &[Call]) -> Vec<Call> {
    let belongs = |call: &&Call| !is_probe(call) && call.error.is_none();
    calls.iter().filter(belongs).cloned().collect()
}

/// A container that stops after others, or after a hook, gets the rest of the grace period: at
/// least two seconds, and no more than recorded.
fn allow_shorter_grace(want: &Call, got: &mut Call, rounding: u64) {
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

/// A hook may use the container's whole grace period; a probe has its own limit.
fn is_probe(call: &Call) -> bool {
    call.method == "ExecSync" && !call.request["timeout"].is_null()
}

fn follows_hook(hook: &Call, stop: &Call) -> bool {
    hook.method == "ExecSync"
        && !is_probe(hook)
        && stop.method == "StopContainer"
        && stop.request["container_id"] == hook.request["container_id"]
}

/// The compared content of a call, in canonical order.
fn content(call: &Call) -> Value {
    let mut request = intended::request(&call.request);
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
    fn only_probes_may_repeat_and_only_stops_may_be_reordered() {
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
            ("different content", vec![stop("a")], vec![stop("b")], false),
            ("a probe after the end", vec![start("a")], vec![start("a"), probe()], true),
            ("a hook after the end", vec![start("a")], vec![start("a"), hook()], false),
            ("the hook used more time", hooked("28"), hooked("20"), true),
            ("the hook took no time", hooked("28"), hooked("29"), true),
            ("the hook is not subtracted", hooked("28"), hooked("30"), false),
            ("the hook used everything", hooked("28"), hooked("1"), false),
        ] {
            assert_eq!(compare("calls", &recorded, &ours).is_none(), same, "{case}");
        }
    }
}
