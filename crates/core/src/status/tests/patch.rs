use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value, json};

use crate::status::patch::patch;

/// Strategic merge as the API server does it, for the fields of a pod's status.
pub(super) fn apply(patch: &Value, status: &PodStatus) -> PodStatus {
    let Value::Object(mut target) = serde_json::to_value(status).unwrap() else { panic!() };
    merge(&mut target, patch["status"].as_object().unwrap());
    serde_json::from_value(Value::Object(target)).unwrap()
}

fn merge(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (field, value) in patch.iter().filter(|(field, _)| !field.starts_with('$')) {
        let key = match field.as_str() {
            "conditions" => Some("type"),
            "podIPs" | "hostIPs" => Some("ip"),
            _ => None,
        };
        match (key, value) {
            (_, Value::Null) => drop(target.remove(field)),
            (Some(key), Value::Array(changes)) => {
                let list = target.entry(field.as_str()).or_insert_with(|| json!([]));
                merge_list(list.as_array_mut().unwrap(), key, changes);
            }
            (_, Value::Object(changes)) => {
                let inner = target.entry(field.as_str()).or_insert_with(|| json!({}));
                merge(inner.as_object_mut().unwrap(), changes);
            }
            (_, value) => drop(target.insert(field.clone(), value.clone())),
        }
    }
    for (field, order) in patch.iter() {
        let Some(field) = field.strip_prefix("$setElementOrder/") else { continue };
        let order = order.as_array().unwrap();
        let key = order[0].as_object().unwrap().keys().next().unwrap();
        let position =
            |e: &Value| order.iter().position(|o| o[key] == e[key]).unwrap_or(usize::MAX);
        target[field].as_array_mut().unwrap().sort_by_key(position);
    }
}

fn merge_list(list: &mut Vec<Value>, key: &str, changes: &[Value]) {
    for change in changes {
        let position = list.iter().position(|element| element[key] == change[key]);
        match (change["$patch"].as_str(), position) {
            (Some("delete"), Some(position)) => drop(list.remove(position)),
            (Some(_), _) => {}
            (None, None) => list.push(change.clone()),
            (None, Some(position)) => {
                merge(list[position].as_object_mut().unwrap(), change.as_object().unwrap());
            }
        }
    }
}

#[test]
fn patch_contains_only_changes() {
    let c = |ready: bool| {
        json!({
            "name": "c", "image": "i", "imageID": "x", "ready": ready, "restartCount": 0,
            "state": { "running": {} }, "lastState": {},
        })
    };
    for (case, before, after, want) in [
        ("nothing", json!({ "phase": "Running" }), json!({ "phase": "Running" }), None),
        (
            "a field",
            json!({ "phase": "Pending", "reason": "R" }),
            json!({ "phase": "Running" }),
            Some(json!({ "phase": "Running", "reason": null })),
        ),
        (
            "one container: the whole list is sent",
            json!({ "containerStatuses": [c(false)] }),
            json!({ "containerStatuses": [c(true)] }),
            Some(json!({ "containerStatuses": [c(true)] })),
        ),
        (
            "one field of one condition",
            json!({ "conditions": [
                { "type": "A", "status": "True" },
                { "type": "B", "status": "False", "reason": "R" },
            ]}),
            json!({ "conditions": [
                { "type": "A", "status": "True" },
                { "type": "B", "status": "True" },
            ]}),
            Some(json!({
                "$setElementOrder/conditions": [{ "type": "A" }, { "type": "B" }],
                "conditions": [{ "type": "B", "status": "True", "reason": null }],
            })),
        ),
        (
            "one condition removed, another added",
            json!({ "conditions": [{ "type": "A", "status": "True" }] }),
            json!({ "conditions": [{ "type": "B", "status": "True" }] }),
            Some(json!({
                "$setElementOrder/conditions": [{ "type": "B" }],
                "conditions": [
                    { "type": "B", "status": "True" },
                    { "$patch": "delete", "type": "A" },
                ],
            })),
        ),
        (
            "only the order of conditions",
            json!({ "conditions": [{ "type": "A", "status": "" }, { "type": "B", "status": "" }] }),
            json!({ "conditions": [{ "type": "B", "status": "" }, { "type": "A", "status": "" }] }),
            None,
        ),
        (
            "first conditions: no directives, which an old server may not know",
            json!({}),
            json!({ "conditions": [{ "type": "A", "status": "True" }] }),
            Some(json!({ "conditions": [{ "type": "A", "status": "True" }] })),
        ),
        (
            "another address",
            json!({ "hostIP": "1.1.1.1", "hostIPs": [{ "ip": "1.1.1.1" }] }),
            json!({ "hostIP": "2.2.2.2", "hostIPs": [{ "ip": "2.2.2.2" }] }),
            Some(json!({
                "hostIP": "2.2.2.2",
                "$setElementOrder/hostIPs": [{ "ip": "2.2.2.2" }],
                "hostIPs": [{ "ip": "2.2.2.2" }, { "$patch": "delete", "ip": "1.1.1.1" }],
            })),
        ),
        (
            "addresses change order",
            json!({ "podIPs": [{ "ip": "a" }, { "ip": "b" }] }),
            json!({ "podIPs": [{ "ip": "b" }, { "ip": "a" }] }),
            Some(json!({ "$setElementOrder/podIPs": [{ "ip": "b" }, { "ip": "a" }] })),
        ),
        (
            "one amount",
            json!({ "resources": { "limits": { "cpu": "1", "memory": "1Gi" } } }),
            json!({ "resources": { "limits": { "cpu": "2" } } }),
            Some(json!({ "resources": { "limits": { "cpu": "2", "memory": null } } })),
        ),
        (
            "no conditions any more",
            json!({ "conditions": [{ "type": "A", "status": "True" }] }),
            json!({}),
            Some(json!({ "conditions": null })),
        ),
    ] {
        let status = |value: &Value| serde_json::from_value::<PodStatus>(value.clone()).unwrap();
        let (before, after) = (status(&before), status(&after));
        let got = patch(&before, &after, "u1");
        let want = want.map(|status| json!({ "metadata": { "uid": "u1" }, "status": status }));
        assert_eq!(got, want, "{case}");
        if let Some(got) = got {
            assert_eq!(apply(&got, &before), after, "{case}, applied");
        }
    }
}
