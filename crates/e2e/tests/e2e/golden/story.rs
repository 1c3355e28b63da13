//! Transitions of a status, compared as a story.
//!
//! A watcher sees some moments of a pod's life and not others, and two lives are never seen at the
//! same moments. So a whole status is not looked for among the recorded ones; each *thread* of it
//! is followed: the phase, every condition, every container. The rule for one thread:
//!
//! - what we tell was told by upstream, too, word for word, and in the same order; we may leave
//!   moments out, never go back and never invent one;
//! - or it is a moment that upstream's story passed through unseen and whose content is known
//!   from what it told before or after: an exit that later shows as last state, a run between two
//!   ends, the back-off after an exit ([`passed_through`]);
//! - or it is a condition that says no more than the containers beside it say ([`follows`]).
//!
//! Where the story ends is compared elsewhere, and whole.

use serde_json::{Value, json};

use super::difference::Difference;
use super::meant;

pub(super) const LISTS: [&str; 3] =
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

pub(super) fn compare(list: &str, recorded: &[Value], ours: &[Value]) -> Option<Difference> {
    let recorded: Vec<Value> = recorded.iter().map(meant::transition).collect();
    let ours: Vec<Value> = ours.iter().map(meant::transition).collect();
    let mut threads = vec![Thread::Head];
    for told in recorded.iter().chain(&ours) {
        for thread in Thread::all_in(told) {
            if !threads.contains(&thread) {
                threads.push(thread);
            }
        }
    }
    threads.iter().find_map(|thread| follow(list, thread, &recorded, &ours))
}

/// One line of the story.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Thread {
    /// Phase, reason, message, and whether it is being deleted.
    Head,
    Condition(String),
    Container(&'static str, String),
}

impl Thread {
    fn all_in(told: &Value) -> Vec<Self> {
        let conditions = told["conditions"].as_object().into_iter().flatten();
        let conditions = conditions.map(|(kind, _)| Self::Condition(kind.clone()));
        let containers = LISTS.into_iter().flat_map(|list| {
            let names = told[list].as_array().into_iter().flatten();
            let name = |c: &Value| c["name"].as_str().unwrap_or_default().to_owned();
            names.map(move |c| Self::Container(list, name(c)))
        });
        conditions.chain(containers).collect()
    }

    /// What a transition says on this line; null if nothing.
    fn of(&self, told: &Value) -> Value {
        match self {
            Self::Head => {
                let fields = ["phase", "reason", "message", "deleting", "gone"];
                let said = fields.into_iter().filter(|field| !told[*field].is_null());
                Value::Object(said.map(|field| (field.to_owned(), told[field].clone())).collect())
            }
            Self::Condition(kind) => told["conditions"][kind].clone(),
            Self::Container(list, name) => {
                let all = told[*list].as_array().into_iter().flatten();
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

fn follow(list: &str, thread: &Thread, recorded: &[Value], ours: &[Value]) -> Option<Difference> {
    let mut story: Vec<Value> = recorded.iter().map(|told| thread.of(told)).collect();
    story.dedup();
    let mut reached = 0;
    for told in ours {
        let said = thread.of(told);
        let ahead = story.iter().enumerate().skip(reached);
        if let Some((place, _)) = ahead.into_iter().find(|(_, moment)| is_same(moment, &said)) {
            reached = place;
            continue;
        }
        let explained = match thread {
            Thread::Head => ran_unseen(&story, reached, &said),
            Thread::Condition(kind) => {
                follows(kind, &said, told) || precedes(kind, &said, &story, reached)
            }
            Thread::Container(..) => passed_through(&story, reached, &said),
        };
        if !explained {
            let expected = story.get(reached..).unwrap_or_default().to_vec();
            return Some(Difference::new(list, thread.shown(), Value::Array(expected), said));
        }
    }
    None
}

fn is_same(moment: &Value, said: &Value) -> bool {
    let without_last = |container: &Value| {
        let mut container = container.clone();
        container.as_object_mut().map(|fields| fields.remove("lastState"));
        container
    };
    moment == said || (echoes(moment) && without_last(moment) == without_last(said))
}

/// Whether a container's end is told again as its last state; see [`meant::without_echo`].
pub(super) fn echoes(container: &Value) -> bool {
    let end = &container["state"]["terminated"];
    end.is_object() && *end == container["lastState"]["terminated"]
}

/// The sandbox was not ready before it was.
fn precedes(kind: &str, said: &Value, story: &[Value], reached: usize) -> bool {
    let ready = |moment: &Value| moment[0] == "True";
    kind == "PodReadyToStartContainers"
        && *said == json!(["False", null, null])
        && !story.get(reached).is_some_and(ready)
        && story.iter().skip(reached).any(ready)
}

/// A pod that ends was running before, whether or not anybody saw it.
fn ran_unseen(story: &[Value], reached: usize, said: &Value) -> bool {
    let ends = story.iter().skip(reached).any(|moment| {
        matches!(moment["phase"].as_str(), Some("Succeeded" | "Failed"))
            && moment["deleting"] == said["deleting"]
    });
    said["phase"] == "Running" && said["reason"].is_null() && ends
}

/// A moment of a container that upstream did not show, but whose content it tells.
fn passed_through(story: &[Value], reached: usize, said: &Value) -> bool {
    let count = |container: &Value| container["restartCount"].as_i64().unwrap_or(0);
    let end = |container: &Value| container["lastState"]["terminated"].clone();
    let around = || story.iter().skip(reached);
    let state = &said["state"];
    if state["running"].is_object() {
        // It ran: the same start is shown later as ended, or as what the next one follows.
        return story.iter().skip(reached + 1).any(|moment| {
            let ended = moment["state"]["terminated"].is_object()
                && count(moment) == count(said)
                && moment["lastState"] == said["lastState"];
            ended || (end(moment).is_object() && count(moment) == count(said) + 1)
        });
    }
    if state["terminated"].is_object() {
        // It ended: a later moment shows that end as the last one.
        let exit = &state["terminated"];
        return around().any(|moment| end(moment) == *exit && count(moment) >= count(said))
            && said["ready"] == false;
    }
    // It rests after an exit that is told of.
    let resting = state["waiting"]["reason"] == "CrashLoopBackOff"
        && state["waiting"]["message"].as_str().is_some_and(|text| text.starts_with("back-off "));
    let told = around().any(|moment| {
        (moment["state"]["terminated"] == end(said) && count(moment) == count(said))
            || (end(moment) == end(said) && count(moment) >= count(said))
    });
    resting && told && end(said).is_object()
}

/// Whether a condition is what the containers beside it amount to.
fn follows(kind: &str, said: &Value, told: &Value) -> bool {
    let names = |list: &str, counts: &dyn Fn(&Value) -> bool| -> Vec<String> {
        let all = told[list].as_array().into_iter().flatten();
        let counted = all.filter(|container| counts(container));
        counted.map(|c| c["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let (reason, text, open) = match kind {
        "Ready" | "ContainersReady" => {
            // A sidecar is the init container that runs on.
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
    *said == want
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
    fn moments_may_be_left_out_or_guessed_but_not_invented() {
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
            ("moments left out", left_out, true),
            ("back to an earlier moment", back, false),
            ("an end that shows later as the last one", guessed, true),
            ("an end that never was", other_code, false),
            ("the rest after an end", rests, true),
            ("a rest after an end that never was", rests_after_nothing, false),
            ("another count", restarted, false),
        ] {
            assert_eq!(compare("story", &recorded, &ours).is_none(), same, "{case}");
        }
    }

    #[test]
    fn a_condition_says_what_the_containers_say() {
        let told = json!({ "containerStatuses": [
            { "name": "a", "ready": true, "state": { "running": {} } },
            { "name": "b", "ready": false, "state": { "running": {} } }] });
        let says = |names: &str| {
            json!([
                "False",
                "ContainersNotReady",
                format!("containers with unready status: [{names}]")
            ])
        };
        assert!(follows("Ready", &says("b"), &told));
        assert!(!follows("Ready", &says("a b"), &told));
        assert!(!follows("Ready", &json!(["True", null, null]), &told));
        assert!(!follows("PodScheduled", &json!(["True", null, null]), &told));
    }
}
