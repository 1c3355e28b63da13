//! Observed behaviour of a pod, from a recording or from our agent, and the comparison of two.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::difference::{Difference, first};
use super::names::Names;
use super::{calls, intended, transitions};

#[derive(Clone, Debug, Default)]
pub(super) struct Observation {
    /// Mutating runtime calls before the deletion, in order.
    pub(super) calls: Vec<Call>,
    /// Status transitions seen by a watcher, summarized, before the deletion.
    pub(super) transitions: Vec<Value>,
    /// Complete statuses; of a recording, the last one before the deletion.
    pub(super) statuses: Vec<Value>,
    /// Values by path below the node's cgroup root, while the pod ran as posted.
    pub(super) cgroups: BTreeMap<String, Value>,
    pub(super) deletion_calls: Vec<Call>,
    pub(super) deletion_transitions: Vec<Value>,
    pub(super) events: BTreeSet<Event>,
    /// The API shows a mirror pod.
    pub(super) is_mirrored: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) request: Value,
    /// `CODE: message`
    pub(super) error: Option<String>,
}

/// An event without its count, which depends on time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    pub(super) kind: String,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) field_path: String,
}

impl Event {
    pub(super) fn recorded(event: &Value) -> Self {
        Self::new(event, &event["fieldPath"])
    }

    pub(super) fn in_api(event: &Value) -> Self {
        Self::new(event, &event["involvedObject"]["fieldPath"])
    }

    fn new(event: &Value, field_path: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            kind: text(&event["type"]),
            reason: text(&event["reason"]),
            message: intended::amounts_in(&text(&event["message"])),
            field_path: text(field_path),
        }
    }

    fn shown(&self) -> String {
        let Self { kind, reason, message, field_path } = self;
        format!("{kind} {reason} {field_path}: {message}")
    }
}

impl Observation {
    /// The same with the ids replaced by shared names.
    pub(super) fn renamed(self, names: &Names) -> Self {
        let values = |list: Vec<Value>| -> Vec<Value> {
            list.iter().map(|value| names.in_value(value)).collect()
        };
        let calls = |list: Vec<Call>| -> Vec<Call> {
            let call = |call: Call| Call {
                request: names.in_value(&call.request),
                error: call.error.map(|error| names.in_text(&error)),
                ..call
            };
            list.into_iter().map(call).collect()
        };
        let event = |event: Event| Event { message: names.in_text(&event.message), ..event };
        let cgroups = self.cgroups.iter();
        Self {
            calls: calls(self.calls),
            transitions: values(self.transitions),
            statuses: values(self.statuses),
            cgroups: cgroups.map(|(path, v)| (names.in_text(path), v.clone())).collect(),
            deletion_calls: calls(self.deletion_calls),
            deletion_transitions: values(self.deletion_transitions),
            events: self.events.into_iter().map(event).collect(),
            is_mirrored: self.is_mirrored,
        }
    }

    /// The last status of the recording before the deletion.
    pub(super) fn last_status(&self) -> &Value {
        self.statuses.last().unwrap_or(&Value::Null)
    }

    /// Whether the pod had finished by itself.
    fn is_over(&self) -> bool {
        matches!(self.last_status()["phase"].as_str(), Some("Succeeded" | "Failed"))
    }
}

/// The first difference in each list.
pub(super) fn compare(recorded: &Observation, ours: &Observation) -> Vec<Difference> {
    let [want, got] =
        [recorded, ours].map(|observation| calls::of_deletion(&observation.deletion_calls));
    let calls = [
        ("mutating calls", &recorded.calls, &ours.calls),
        ("mutating calls of the deletion", &want, &got),
    ];
    let stories = [
        ("transitions", &recorded.transitions, &ours.transitions),
        ("transitions of the deletion", &recorded.deletion_transitions, &ours.deletion_transitions),
    ];
    let calls = calls.into_iter().filter_map(|(list, want, got)| calls::compare(list, want, got));
    let stories =
        stories.into_iter().filter_map(|(list, want, got)| transitions::compare(list, want, got));
    let mut found: Vec<Difference> = calls.chain(stories).collect();
    found.extend(last_status(recorded, ours));
    found.extend(last_transition(recorded, ours));
    found.extend(events(&recorded.events, &ours.events));
    found.extend(cgroups(recorded, ours));
    found
}

/// The recording's final status must have been reported completely; later statuses are ignored,
/// because the recording ended there.
fn last_status(recorded: &Observation, ours: &Observation) -> Option<Difference> {
    let want = recorded.last_status();
    if ours.statuses.iter().any(|status| intended::is_status(want, status)) {
        return None;
    }
    let want = intended::status(want);
    let seen: Vec<Value> = ours.statuses.iter().map(intended::status).collect();
    let nearest = seen.iter().min_by_key(|status| super::difference::count(&want, status));
    first("last status", &want, nearest.unwrap_or(&Value::Null))
}

/// The last transition before the pod is removed. If the deletion adds nothing, no report is
/// needed: the deletion itself is recorded by the API server.
fn last_transition(recorded: &Observation, ours: &Observation) -> Option<Difference> {
    let list = "last transition of the deletion";
    if ours.deletion_transitions.last().is_none_or(|reported| reported["gone"] != true) {
        return Some(Difference::new(list, "", "gone", "still present"));
    }
    let last = |observation: &Observation| {
        let reported = observation.deletion_transitions.iter().rev();
        reported.filter(|reported| reported["gone"].is_null()).map(intended::transition).next()
    };
    let (want, got) = (last(recorded), last(ours));
    let before = recorded.transitions.last().map(intended::transition);
    let news = |reported: &Value| {
        let mut reported = reported.clone();
        reported["deleting"] = json!(false);
        Some(reported) != before
    };
    match (want, got) {
        (None, None) => None,
        (Some(want), None) if !news(&want) || intended::may_skip_final_status(recorded) => None,
        (want, got) => {
            let (want, got) = (want.unwrap_or_default(), got.unwrap_or_default());
            let got = intended::without_echo(&want, got);
            first(list, &intended::without_echo(&want, want.clone()), &got)
        }
    }
}

fn events(recorded: &BTreeSet<Event>, ours: &BTreeSet<Event>) -> Option<Difference> {
    let missing = recorded.difference(ours).find(|event| !intended::event_may_be_missing(event));
    let extra = ours.difference(recorded).find(|event| !intended::event_may_be_extra(event));
    if missing.is_none() && extra.is_none() {
        return None;
    }
    let shown = |event: Option<&Event>| event.map_or("(none)".to_owned(), Event::shown);
    Some(Difference::new("events", "", shown(missing), shown(extra)))
}

/// Cgroups of a pod that kept running. For a finished pod their removal depends on time; those
/// present on both sides must match.
fn cgroups(recorded: &Observation, ours: &Observation) -> Option<Difference> {
    let (mut want, mut got) = (recorded.cgroups.clone(), ours.cgroups.clone());
    if recorded.is_over() {
        let both: BTreeSet<String> =
            want.keys().filter(|p| got.contains_key(*p)).cloned().collect();
        want.retain(|path, _| both.contains(path));
        got.retain(|path, _| both.contains(path));
    }
    let object = |groups: BTreeMap<String, Value>| Value::Object(groups.into_iter().collect());
    first("cgroups", &object(want), &object(got))
}

/// A pod's status, summarized as in the recordings.
pub(super) fn transition(pod: &Value) -> Value {
    let status = &pod["status"];
    let mut reported = Map::new();
    for field in ["phase", "reason", "message"] {
        reported.insert(field.into(), status[field].clone());
    }
    reported.insert("deleting".into(), json!(!pod["metadata"]["deletionTimestamp"].is_null()));
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.map(|condition| {
        let kind = condition["type"].as_str().unwrap_or_default().to_owned();
        (kind, json!([condition["status"], condition["reason"], condition["message"]]))
    });
    reported.insert("conditions".into(), Value::Object(conditions.collect()));
    for list in transitions::LISTS {
        let Some(containers) = status[list].as_array() else { continue };
        let container = |status: &Value| {
            let fields = ["name", "ready", "started", "restartCount", "state", "lastState"];
            let field = |field: &str| (field.to_owned(), status[field].clone());
            let mut reported: Map<String, Value> = fields.into_iter().map(field).collect();
            for empty in ["state", "lastState"] {
                reported.entry(empty).and_modify(|state| {
                    if state.is_null() {
                        *state = json!({});
                    }
                });
            }
            Value::Object(reported)
        };
        reported.insert(list.into(), containers.iter().map(container).collect());
    }
    Value::Object(reported)
}
