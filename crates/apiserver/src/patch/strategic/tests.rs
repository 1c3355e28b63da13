#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::registry::{NODES, PODS, SECRETS};

fn pod(original: Value, patch: Value) -> Result<Value, PatchError> {
    apply(&PODS, &original, &patch)
}

fn spec(original: Value, patch: Value) -> Value {
    pod(json!({"spec": original}), json!({"spec": patch})).unwrap()["spec"].clone()
}

#[test]
fn elements_are_found_by_their_merge_key() {
    for (case, original, patch, want) in [
        (
            "a container by name",
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}),
            json!({"containers": [{"name": "b", "image": "2"}]}),
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}),
        ),
        (
            "a variable within a container",
            json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "1"}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": null, "valueFrom": {"fieldRef": {"fieldPath": "p"}}}]}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "valueFrom": {"fieldRef": {"fieldPath": "p"}}}]}]}),
        ),
        (
            "a port by number, whatever its protocol",
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 53, "protocol": "UDP", "name": "dns"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 53, "protocol": "UDP", "name": "dns"}, {"containerPort": 53, "protocol": "UDP"}]}]}),
        ),
        (
            "a mount by path",
            json!({"containers": [{"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/a"}]}]}),
            json!({"containers": [{"name": "a", "volumeMounts": [{"name": "w", "mountPath": "/a"}]}]}),
            json!({"containers": [{"name": "a", "volumeMounts": [{"name": "w", "mountPath": "/a"}]}]}),
        ),
        (
            "tolerations are replaced",
            json!({"tolerations": [{"key": "a"}, {"key": "b"}]}),
            json!({"tolerations": [{"key": "c"}]}),
            json!({"tolerations": [{"key": "c"}]}),
        ),
        (
            "a command is replaced",
            json!({"containers": [{"name": "a", "command": ["x", "y"]}]}),
            json!({"containers": [{"name": "a", "command": ["z"]}]}),
            json!({"containers": [{"name": "a", "command": ["z"]}]}),
        ),
    ] {
        assert_eq!(spec(original, patch), want, "{case}");
    }
}

#[test]
fn added_elements_come_before_those_the_patch_does_not_name() {
    // as recorded from kube-apiserver
    let original = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let patch = json!({"status": {"conditions": [{"type": "x/y", "status": "False"}]}});
    assert_eq!(
        pod(original, patch).unwrap(),
        json!({"status": {"conditions": [{"type": "x/y", "status": "False"}, {"type": "Ready", "status": "True"}]}})
    );
}

#[test]
fn null_deletes_and_is_ignored_for_missing_fields() {
    assert_eq!(
        pod(
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"a": null, "c": null}, "annotations": {"d": null, "e": "5"}}, "spec": null})
        )
        .unwrap(),
        json!({"metadata": {"labels": {"b": "2"}, "annotations": {"e": "5"}}})
    );
}

#[test]
fn directives_delete_and_replace() {
    let containers =
        json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]});
    for (case, patch, want) in [
        (
            "an element",
            json!({"containers": [{"$patch": "delete", "name": "a"}]}),
            json!({"containers": [{"name": "b", "image": "1"}]}),
        ),
        (
            "a whole list",
            json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
            json!({"containers": [{"name": "c"}]}),
        ),
        ("an object", json!({"$patch": "replace", "nodeName": "n"}), json!({"nodeName": "n"})),
        ("everything", json!({"$patch": "delete"}), json!({})),
        (
            "a missing element",
            json!({"containers": [{"$patch": "delete", "name": "x"}]}),
            containers.clone(),
        ),
        (
            "in a missing list",
            json!({"volumes": [{"$patch": "delete", "name": "x"}, {"name": "v"}]}),
            json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}], "volumes": [{"name": "v"}]}),
        ),
    ] {
        assert_eq!(spec(containers.clone(), patch), want, "{case}");
    }
}

#[test]
fn values_are_added_to_and_removed_from_sets() {
    let original = json!({"metadata": {"finalizers": ["a", "b", "c"]}});
    for (patch, want) in [
        (json!({"finalizers": ["d"]}), json!(["d", "a", "b", "c"])),
        (json!({"finalizers": ["b"]}), json!(["a", "b", "c"])),
        (json!({"$deleteFromPrimitiveList/finalizers": ["b"]}), json!(["a", "c"])),
        (
            json!({"$deleteFromPrimitiveList/finalizers": ["a", "x"], "finalizers": ["e"]}),
            json!(["e", "b", "c"]),
        ),
        (
            json!({"$setElementOrder/finalizers": ["c", "a"], "$deleteFromPrimitiveList/finalizers": ["b"]}),
            json!(["c", "a"]),
        ),
    ] {
        let got = pod(original.clone(), json!({"metadata": patch})).unwrap();
        assert_eq!(got["metadata"]["finalizers"], want, "{patch}");
    }
}

#[test]
fn order_of_elements_can_be_set() {
    let original = json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
    for (case, patch, want) in [
        (
            "all of them",
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}]}),
            vec!["c", "b", "a"],
        ),
        (
            "with a new one",
            json!({"$setElementOrder/containers": [{"name": "a"}, {"name": "n"}, {"name": "b"}], "containers": [{"name": "n"}]}),
            vec!["a", "n", "b", "c"],
        ),
        (
            "others stay before what they stood before",
            json!({"$setElementOrder/containers": [{"name": "c"}]}),
            vec!["a", "b", "c"],
        ),
        (
            "with one deleted",
            json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"$patch": "delete", "name": "b"}]}),
            vec!["c", "a"],
        ),
    ] {
        let got = spec(original.clone(), patch);
        let names: Vec<&str> = got["containers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, want, "{case}");
    }
}

#[test]
fn another_volume_source_replaces_the_old_one() {
    let original = json!({"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]});
    let patch = json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]});
    assert_eq!(
        spec(original, patch),
        json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]})
    );
}

#[test]
fn the_schema_decides_what_merges() {
    let node = |patch: Value| {
        let original = json!({"spec": {"taints": [{"key": "a"}]}, "status": {
            "addresses": [{"type": "Hostname", "address": "h"}], "images": [{"names": ["x"]}]}});
        apply(&NODES, &original, &patch).unwrap()
    };
    assert_eq!(
        node(json!({"spec": {"taints": [{"key": "b"}]}}))["spec"]["taints"],
        json!([{"key": "b"}])
    );
    assert_eq!(
        node(json!({"status": {"addresses": [{"type": "InternalIP", "address": "i"}]}}))["status"]
            ["addresses"],
        json!([{"type": "InternalIP", "address": "i"}, {"type": "Hostname", "address": "h"}])
    );
    assert_eq!(node(json!({"status": {"images": []}}))["status"]["images"], json!([]));
    assert_eq!(
        apply(&SECRETS, &json!({"data": {"a": "YQ=="}}), &json!({"data": {"b": "Yg=="}})).unwrap(),
        json!({"data": {"a": "YQ==", "b": "Yg=="}})
    );
}

#[test]
fn contradictions_are_reported() {
    let original =
        json!({"spec": {"containers": [{"name": "a"}]}, "metadata": {"finalizers": ["x"]}});
    for (patch, want) in [
        (
            json!({"spec": {"containers": [{"image": "x"}]}}),
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            json!({"spec": {"containers": [{"$patch": "delete"}]}}),
            "map: map[$patch:delete] does not contain declared merge key: name",
        ),
        (
            json!({"spec": {"containers": [{"$patch": "merge", "name": "a"}]}}),
            "merging lists cannot yet be specified in the patch",
        ),
        (json!({"spec": {"$patch": "turn"}}), "unknown patch type: turn in map: map[$patch:turn]"),
        (json!({"spec": {"$retainKeys": "x"}}), "invalid patch format of retainKeys"),
        (
            json!({"spec": {"$retainKeys": ["a"], "nodeName": "n"}}),
            "invalid patch format of retainKeys",
        ),
        (
            json!({"metadata": {"$setElementOrder/finalizers": "x"}}),
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"metadata": {"$setElementOrder": ["x"]}}),
            "invalid patch format of setElementOrder list",
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveList": ["x"]}}),
            "invalid patch format of primitive list",
        ),
        (json!({"metadata": {"finalizers": [1]}}), "list element types are not identical: [x 1]"),
        (
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]}}),
            "The order in patch list:\n[map[name:b]]\n doesn't match $setElementOrder list:\n[map[name:a]]\n",
        ),
    ] {
        assert_eq!(pod(original.clone(), patch.clone()).unwrap_err().to_string(), want, "{patch}");
    }
    assert_eq!(pod(original, json!([])).unwrap_err().to_string(), "invalid JSON document");
}

#[test]
fn long_list_is_merged_in_reasonable_time() {
    let element = |n: usize| json!({"name": format!("e{n}"), "value": "x"});
    let list = |range: std::ops::Range<usize>| range.map(element).collect::<Vec<_>>();
    let original = json!({"containers": [{"name": "a", "env": list(0..20_000)}]});
    let patch = json!({"containers": [{"name": "a", "env": list(10_000..30_000)}]});
    let got = spec(original, patch);
    assert_eq!(got["containers"][0]["env"].as_array().unwrap().len(), 30_000);
}

/// JSON that resembles a pod or a patch of one.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        Just(json!("delete")),
        Just(json!("replace")),
        Just(json!("a")),
        Just(json!(1)),
        Just(json!(true)),
    ];
    let name = prop_oneof![
        Just("spec"),
        Just("metadata"),
        Just("containers"),
        Just("finalizers"),
        Just("env"),
        Just("name"),
        Just("labels"),
        Just("$patch"),
        Just("$retainKeys"),
        Just("$setElementOrder/containers"),
        Just("$setElementOrder/finalizers"),
        Just("$deleteFromPrimitiveList/finalizers"),
        Just("$deleteFromPrimitiveList/containers"),
    ];
    leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..5).prop_map(|fields| {
                fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect::<Object>()
                    .into()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn no_patch_makes_us_panic(original in any_json(), patch in any_json()) {
        let _ = apply(&PODS, &original, &patch);
    }

    #[test]
    fn an_empty_patch_changes_nothing(original in any_json()) {
        prop_assume!(original.is_object());
        prop_assert_eq!(apply(&PODS, &original, &json!({})).unwrap(), original);
    }
}
