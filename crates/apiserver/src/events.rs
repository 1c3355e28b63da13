//! Events: two API groups, `v1` and `events.k8s.io/v1`, over one set of objects.
//!
//! They are stored in the older form, which can represent everything of the newer.

use serde_json::{Map, Value};

use crate::object::Object;
use crate::registry::{EVENTS, EVENTS_V1, Resource};

/// Renamed fields: older, newer.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// The resource in whose form objects of this one are stored.
pub fn stored_as(resource: &'static Resource) -> &'static Resource {
    if resource == &EVENTS_V1 { &EVENTS } else { resource }
}

/// From the form of `resource` to the one that is stored.
pub fn to_stored(resource: &'static Resource, object: Object) -> Object {
    if resource != &EVENTS_V1 {
        return object;
    }
    rename(object, &EVENTS, |name| {
        RENAMED.iter().find(|(_, newer)| *newer == name).map(|(older, _)| *older)
    })
}

/// From the stored form to that of `resource`.
pub fn from_stored(resource: &'static Resource, object: Object) -> Object {
    if resource != &EVENTS_V1 {
        return object;
    }
    rename(object, &EVENTS_V1, |name| {
        RENAMED.iter().find(|(older, _)| *older == name).map(|(_, newer)| *newer)
    })
}

fn rename(
    mut object: Object,
    resource: &Resource,
    name_of: impl Fn(&str) -> Option<&'static str>,
) -> Object {
    object.edit(|value| {
        if let Value::Object(old) = value {
            let mut new = Map::new();
            for (name, field) in std::mem::take(old) {
                let name = name_of(&name).map_or(name, str::to_owned);
                new.insert(name, field);
            }
            *old = new;
        }
    });
    object.set_type(resource);
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn event_converts_between_both_forms() {
        let newer = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
            "regarding": {"kind": "Pod"}, "note": "n", "reportingController": "c", "reportingInstance": "i",
            "reason": "R", "type": "Normal", "eventTime": null, "deprecatedCount": 2
        });
        let older = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"kind": "Pod"}, "message": "n", "reportingComponent": "c", "reportingInstance": "i",
            "reason": "R", "type": "Normal", "eventTime": null, "count": 2
        });
        let object = Object::try_from(newer.clone()).unwrap_or_else(|e| panic!("{e}"));
        let stored = to_stored(&EVENTS_V1, object);
        assert_eq!(stored.value(), &older);
        assert_eq!(from_stored(&EVENTS_V1, stored).value(), &newer);
    }
}
