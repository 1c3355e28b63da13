//! What happened to a pod, as either side tells it, and how two accounts are compared.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::difference::{Difference, first};
use super::names::Names;
use super::{calls, meant, story};

#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    /// Writing calls to the runtime before the deletion, in order.
    pub(super) calls: Vec<Call>,
    /// The status as a watcher saw it, summed up, before the deletion.
    pub(super) transitions: Vec<Value>,
    /// Whole statuses; the recorded one is the last before the deletion.
    pub(super) statuses: Vec<Value>,
    /// Values by path below the node's cgroup root, when it ran as posted.
    pub(super) cgroups: BTreeMap<String, Value>,
    pub(super) deletion_calls: Vec<Call>,
    pub(super) deletion_transitions: Vec<Value>,
    pub(super) events: BTreeSet<Event>,
    /// The API shows a mirror of the pod, not the pod.
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
            message: meant::amounts_in(&text(&event["message"])),
            field_path: text(field_path),
        }
    }

    fn shown(&self) -> String {
        let Self { kind, reason, message, field_path } = self;
        format!("{kind} {reason} {field_path}: {message}")
    }
}

impl Account {
    /// The same account in the names that both sides share.
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

    /// The status that the recording ends with, before the deletion.
    pub(super) fn last_status(&self) -> &Value {
        self.statuses.last().unwrap_or(&Value::Null)
    }

    /// Whether the pod had ended by itself.
    fn is_over(&self) -> bool {
        matches!(self.last_status()["phase"].as_str(), Some("Succeeded" | "Failed"))
    }
}

/// The first difference in each list.
pub(super) fn compare(recorded: &Account, ours: &Account) -> Vec<Difference> {
    let [want, got] = [recorded, ours].map(|account| calls::of_deletion(&account.deletion_calls));
    let calls = [
        ("writing calls", &recorded.calls, &ours.calls),
        ("writing calls of the deletion", &want, &got),
    ];
    let stories = [
        ("transitions", &recorded.transitions, &ours.transitions),
        ("transitions of the deletion", &recorded.deletion_transitions, &ours.deletion_transitions),
    ];
    let calls = calls.into_iter().filter_map(|(list, want, got)| calls::compare(list, want, got));
    let stories =
        stories.into_iter().filter_map(|(list, want, got)| story::compare(list, want, got));
    let mut found: Vec<Difference> = calls.chain(stories).collect();
    found.extend(last_status(recorded, ours));
    found.extend(last_transition(recorded, ours));
    found.extend(events(&recorded.events, &ours.events));
    found.extend(cgroups(recorded, ours));
    found
}

/// What the recording ends with must have been reported, whole; what came after it did not
/// happen while upstream was watched.
fn last_status(recorded: &Account, ours: &Account) -> Option<Difference> {
    let want = recorded.last_status();
    if ours.statuses.iter().any(|status| meant::is_status(want, status)) {
        return None;
    }
    let want = meant::status(want);
    let seen: Vec<Value> = ours.statuses.iter().map(meant::status).collect();
    let nearest = seen.iter().min_by_key(|status| super::difference::count(&want, status));
    first("last status", &want, nearest.unwrap_or(&Value::Null))
}

/// The last thing told before the pod is gone. Where the deletion brings nothing new nothing need
/// be told: that it is being deleted is the API server's word, and ours need not say it first.
fn last_transition(recorded: &Account, ours: &Account) -> Option<Difference> {
    let list = "last transition of the deletion";
    if ours.deletion_transitions.last().is_none_or(|told| told["gone"] != true) {
        return Some(Difference::new(list, "", "gone", "still there"));
    }
    let last = |account: &Account| {
        let told = account.deletion_transitions.iter().rev();
        told.filter(|told| told["gone"].is_null()).map(meant::transition).next()
    };
    let (want, got) = (last(recorded), last(ours));
    let before = recorded.transitions.last().map(meant::transition);
    let news = |told: &Value| {
        let mut told = told.clone();
        told["deleting"] = json!(false);
        Some(told) != before
    };
    match (want, got) {
        (None, None) => None,
        (Some(want), None) if !news(&want) || meant::goes_silently(recorded) => None,
        (want, got) => {
            let (want, got) = (want.unwrap_or_default(), got.unwrap_or_default());
            let got = meant::without_echo(&want, got);
            first(list, &meant::without_echo(&want, want.clone()), &got)
        }
    }
}

fn events(recorded: &BTreeSet<Event>, ours: &BTreeSet<Event>) -> Option<Difference> {
    let missing = recorded.difference(ours).find(|event| !meant::event_may_lack(event));
    let extra = ours.difference(recorded).find(|event| !meant::event_may_come(event));
    if missing.is_none() && extra.is_none() {
        return None;
    }
    let shown = |event: Option<&Event>| event.map_or("(none)".to_owned(), Event::shown);
    Some(Difference::new("events", "", shown(missing), shown(extra)))
}

/// Groups of a pod that ran on. Of one that ended some are still there and some are not, as
/// time would have it; those that both saw must agree.
fn cgroups(recorded: &Account, ours: &Account) -> Option<Difference> {
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

/// A pod as the recordings sum its status up.
pub(super) fn transition(pod: &Value) -> Value {
    let status = &pod["status"];
    let mut told = Map::new();
    for field in ["phase", "reason", "message"] {
        told.insert(field.into(), status[field].clone());
    }
    told.insert("deleting".into(), json!(!pod["metadata"]["deletionTimestamp"].is_null()));
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let conditions = conditions.map(|condition| {
        let kind = condition["type"].as_str().unwrap_or_default().to_owned();
        (kind, json!([condition["status"], condition["reason"], condition["message"]]))
    });
    told.insert("conditions".into(), Value::Object(conditions.collect()));
    for list in story::LISTS {
        let Some(containers) = status[list].as_array() else { continue };
        let container = |status: &Value| {
            let fields = ["name", "ready", "started", "restartCount", "state", "lastState"];
            let field = |field: &str| (field.to_owned(), status[field].clone());
            let mut told: Map<String, Value> = fields.into_iter().map(field).collect();
            for empty in ["state", "lastState"] {
                told.entry(empty).and_modify(|state| {
                    if state.is_null() {
                        *state = json!({});
                    }
                });
            }
            Value::Object(told)
        };
        told.insert(list.into(), containers.iter().map(container).collect());
    }
    Value::Object(told)
}
