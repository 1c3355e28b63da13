//! Comparison of status transitions.
//!
//! A watcher sees only some of the states of a pod, and two runs are never seen at the same times.
//! So statuses are not compared as a whole; each *part* is followed separately: the phase, every
//! condition, every container. The rule for one part:
//!
//! - every state we report was also reported by upstream, exactly, and in the same order; we may
//!   skip states, but never go back or add one;
//! - or it is a state that upstream passed through unseen, whose content is known from earlier or
//!   later reports: an exit that later shows as last state, a run between two exits, the back-off
//!   after an exit ([`passed_through`]);
//! - or it is a condition that follows from the containers in the same status ([`follows`]).
//!
//! The final status is compared elsewhere, as a whole.

use serde_json::{Value, json};

use super::difference::Difference;
use super::intended;

pub(super) const LISTS: [&str; 3] =
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

pub(super) fn compare(list: &str, recorded: &[Value], ours: &[Value]) -> Option<Difference> {
    let recorded: Vec<Value> = recorded.iter().map(intended::transition).collect();
    let ours: Vec<Value> = ours.iter().map(intended::transition).collect();
    let mut parts = vec![StatusPart::Head];
    for reported in recorded.iter().chain(&ours) {
        for part in StatusPart::all_in(reported) {
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    parts.iter().find_map(|part| follow(list, part, &recorded, &ours))
}

/// One separately compared part of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
enum StatusPart {
    /// Phase, reason, message, and whether it is being deleted.
    Head,
    Condition(String),
    Container(&'static str, String),
}

impl StatusPart {
    fn all_in(reported: &Value) -> Vec<Self> {
        let conditions = reported["conditions"].as_object().into_iter().flatten();
        let conditions = conditions.map(|(kind, _)| Self::Condition(kind.clone()));
        let containers = LISTS.into_iter().flat_map(|list| {
            let names = reported[list].as_array().into_iter().flatten();
            let name = |c: &Value| c["name"].as_str().unwrap_or_default().to_owned();
            names.map(move |c| Self::Container(list, name(c)))
        });
        conditions.chain(containers).collect()
    }

    /// The value of this part in a transition; null if absent.
    fn of(&self, reported: &Value) -> Value {
        match self {
            Self::Head => {
                let fields = ["phase", "reason", "message", "deleting", "gone"];
                let observed = fields.into_iter().filter(|field| !reported[*field].is_null());
                Value::Object(
                    observed.map(|field| (field.to_owned(), reported[field].clone())).collect(),
                )
            }
            Self::Condition(kind) => reported["conditions"][kind].clone(),
            Self::Container(list, name) => {
                let all = reported[*list].as_array().into_iter().flatten();
                all.into_iter().find(|c| c["name"] == name.as_str()).cloned().unwrap_or_default()
            }
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Head => "phase".into(),
            Self::Condition(kind) => format!("condition {kind}"),
            Self::Container(list, name) => format!("{list} {name}"),
        }
    }
}

fn follow(list: &str, part: &StatusPart, recorded: &[Value], ours: &[Value]) -> Option<Difference> {
    let mut transitions: Vec<Value> = recorded.iter().map(|reported| part.of(reported)).collect();
    transitions.dedup();
    let mut reached = 0;
    for reported in ours {
        let observed = part.of(reported);
        let ahead = transitions.iter().enumerate().skip(reached);
        if let Some((place, _)) =
            ahead.into_iter().find(|(_, known_state)| is_same(known_state, &observed))
        {
            reached = place;
            continue;
        }
        let explained = match part {
            StatusPart::Head => ran_unseen(&transitions, reached, &observed),
            StatusPart::Condition(kind) => {
                follows(kind, &observed, reported)
                    || precedes(kind, &observed, &transitions, reached)
            }
            StatusPart::Container(..) => passed_through(&transitions, reached, &observed),
        };
        if !explained {
            let expected = transitions.get(reached..).unwrap_or_default().to_vec();
            return Some(Difference::new(list, part.shown(), Value::Array(expected), observed));
        }
    }
    None
}

fn is_same(known_state: &Value, observed: &Value) -> bool {
    let without_last = |container: &Value| {
        let mut container = container.clone();
        container.as_object_mut().map(|fields| fields.remove("lastState"));
        container
    };
    known_state == observed
        || (echoes(known_state) && without_last(known_state) == without_last(observed))
}

/// Whether a termination is repeated as the last state; see [`intended::without_echo`].
pub(super) fn echoes(container: &Value) -> bool {
    let end = &container["state"]["terminated"];
    end.is_object() && *end == container["lastState"]["terminated"]
}

/// The sandbox was not ready before it was ready.
fn precedes(kind: &str, observed: &Value, transitions: &[Value], reached: usize) -> bool {
    let ready = |known_state: &Value| known_state[0] == "True";
    kind == "PodReadyToStartContainers"
        && *observed == json!(["False", null, null])
        && !transitions.get(reached).is_some_and(ready)
        && transitions.iter().skip(reached).any(ready)
}

/// A finished pod was running before, whether or not that was seen.
fn ran_unseen(transitions: &[Value], reached: usize, observed: &Value) -> bool {
    let ends = transitions.iter().skip(reached).any(|known_state| {
        matches!(known_state["phase"].as_str(), Some("Succeeded" | "Failed"))
            && known_state["deleting"] == observed["deleting"]
    });
    observed["phase"] == "Running" && observed["reason"].is_null() && ends
}

/// A state of a container that upstream did not show, but whose content is known.
fn passed_through(transitions: &[Value], reached: usize, observed: &Value) -> bool {
    let count = |container: &Value| container["restartCount"].as_i64().unwrap_or(0);
    let end = |container: &Value| container["lastState"]["terminated"].clone();
    let around = || transitions.iter().skip(reached);
    let state = &observed["state"];
    if state["running"].is_object() {
        // It ran: the same start is shown later as terminated, or as the predecessor of the next
        // one.
        return transitions.iter().skip(reached + 1).any(|known_state| {
            let ended = known_state["state"]["terminated"].is_object()
                && count(known_state) == count(observed)
                && known_state["lastState"] == observed["lastState"];
            ended || (end(known_state).is_object() && count(known_state) == count(observed) + 1)
        });
    }
    if state["terminated"].is_object() {
        // It exited: a later state shows that termination as the last one.
        let exit = &state["terminated"];
        return around()
            .any(|known_state| end(known_state) == *exit && count(known_state) >= count(observed))
            && observed["ready"] == false;
    }
    // It is in back-off after a known exit.
    let resting = state["waiting"]["reason"] == "CrashLoopBackOff"
        && state["waiting"]["message"].as_str().is_some_and(|text| text.starts_with("back-off "));
    let reported = around().any(|known_state| {
        (known_state["state"]["terminated"] == end(observed)
            && count(known_state) == count(observed))
            || (end(known_state) == end(observed) && count(known_state) >= count(observed))
    });
    resting && reported && end(observed).is_object()
}

/// Whether a condition follows from the containers in the same status.
fn follows(kind: &str, observed: &Value, reported: &Value) -> bool {
    let names = |list: &str, counts: &dyn Fn(&Value) -> bool| -> Vec<String> {
        let all = reported[list].as_array().into_iter().flatten();
        let counted = all.filter(|container| counts(container));
        counted.map(|c| c["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let (reason, text, open) = match kind {
        "Ready" | "ContainersReady" => {
            // A sidecar is an init container that keeps running.
            let sidecar = |c: &Value| c["ready"] == false && c["state"]["terminated"].is_null();
            let mut open = if names(LISTS[1], &|c| !c["state"]["waiting"].is_object()).is_empty() {
                Vec::new()
            } else {
                names(LISTS[0], &sidecar)
            };
            open.extend(names(LISTS[1], &|c| c["ready"] == false));
            ("ContainersNotReady", "containers with unready status", open)
        }
        "Initialized" => {
            let open = names(LISTS[0], &|c| c["ready"] == false);
            ("ContainersNotInitialized", "containers with incomplete status", open)
        }
        _ => return false,
    };
    let want = match open.as_slice() {
        [] => json!(["True", null, null]),
        open => json!(["False", reason, format!("{text}: [{}]", open.join(" "))]),
    };
    *observed == want
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(count: i64, state: &Value, last: &Value) -> Value {
        let ready = state["running"].is_object();
        let one = json!({ "name": "c", "ready": ready, "restartCount": count,
            "state": state, "lastState": last });
        json!({ "phase": "Running", "deleting": false, "conditions": {}, "containerStatuses": [one] })
    }

    fn ended(code: i64) -> Value {
        json!({ "terminated": { "exitCode": code } })
    }

    fn resting(message: &str) -> Value {
        json!({ "waiting": { "reason": "CrashLoopBackOff", "message": message } })
    }

    #[test]
    fn states_may_be_skipped_or_inferred_but_not_added() {
        let (running, nothing) = (json!({ "running": {} }), json!({}));
        let recorded = [
            container(0, &running, &nothing),
            container(1, &running, &ended(1)),
            container(1, &ended(2), &ended(1)),
        ];
        let whole = recorded.to_vec();
        let left_out = vec![recorded[0].clone(), recorded[2].clone()];
        let mut back = whole.clone();
        back.push(recorded[0].clone());
        let guessed =
            vec![recorded[0].clone(), container(0, &ended(1), &nothing), recorded[1].clone()];
        let other_code = vec![container(0, &ended(9), &nothing)];
        let mut rests = whole.clone();
        rests.push(container(1, &resting("back-off 10s restarting"), &ended(2)));
        let mut rests_after_nothing = whole.clone();
        rests_after_nothing.push(container(1, &resting("back-off 10s restarting"), &ended(7)));
        let restarted = vec![container(5, &running, &ended(1))];
        for (case, ours, same) in [
            ("as recorded", whole, true),
            ("states left out", left_out, true),
            ("back to an earlier state", back, false),
            ("a termination that shows later as last state", guessed, true),
            ("an unknown termination", other_code, false),
            ("the back-off after a termination", rests, true),
            ("the back-off after an unknown termination", rests_after_nothing, false),
            ("another restart count", restarted, false),
        ] {
            assert_eq!(compare("story", &recorded, &ours).is_none(), same, "{case}");
        }
    }

    #[test]
    fn condition_follows_from_the_containers() {
        let reported = json!({ "containerStatuses": [
            { "name": "a", "ready": true, "state": { "running": {} } },
            { "name": "b", "ready": false, "state": { "running": {} } }] });
        let condition_for = |names: &str| {
            json!([
                "False",
                "ContainersNotReady",
                format!("containers with unready status: [{names}]")
            ])
        };
        assert!(follows("Ready", &condition_for("b"), &reported));
        assert!(!follows("Ready", &condition_for("a b"), &reported));
        assert!(!follows("Ready", &json!(["True", null, null]), &reported));
        assert!(!follows("PodScheduled", &json!(["True", null, null]), &reported));
    }
}
