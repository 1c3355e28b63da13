#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema;

static NOTHING: FieldSet = FieldSet::new();

fn write<'a>(kind: &'static str, manager: &'a str) -> Write<'a> {
    Write {
        shape: schema::kind("", kind).unwrap(),
        manager,
        api_version: "v1",
        subresource: "",
        now: "2026-01-01T00:00:01Z",
        reset: &NOTHING,
    }
}

/// A stored object as a client created it.
fn created(write: &Write<'_>, object: Value) -> Value {
    let mut object = schema::decode(write.shape, &object).unwrap().value;
    let old = empty(write.shape, &object);
    track(write, &old, &mut object, true);
    object
}

/// Applies and decodes, as the server does.
fn applied(write: &Write<'_>, live: &Value, body: &Value, force: bool) -> Result<Value, String> {
    let object = apply(write, live, body, force).map_err(|error| error.to_string())?;
    Ok(schema::decode(write.shape, &object).unwrap().value)
}

fn nothing(write: &Write<'_>) -> Value {
    empty(write.shape, &json!({"apiVersion": "v1", "kind": write.shape.name}))
}

/// `manager operation [subresource]` and fields of each entry.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let head = |entry: &Value| {
        format!(
            "{} {} {}",
            text(entry, "manager"),
            text(entry, "operation"),
            text(entry, "subresource")
        )
        .trim_end()
        .to_owned()
    };
    list.iter().map(|entry| (head(entry), entry["fieldsV1"].clone())).collect()
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn pod(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec})
}

#[test]
fn applied_fields_belong_to_the_applier() {
    let m1 = write("ConfigMap", "m1");
    let object = applied(&m1, &nothing(&m1), &map(json!({"a": "1"})), false).unwrap();
    assert_eq!(object["data"], json!({"a": "1"}));
    let entry = json!([{"manager": "m1", "operation": "Apply", "apiVersion": "v1",
        "time": "2026-01-01T00:00:01Z", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}}}}]);
    assert_eq!(object["metadata"]["managedFields"], entry);
    // when the same is applied later, then nothing changes, not even the time
    let later = Write { now: "2026-01-01T00:00:09Z", ..m1 };
    assert_eq!(applied(&later, &object, &map(json!({"a": "1"})), false).unwrap(), object);
}

#[test]
fn equal_values_are_owned_by_both_and_others_conflict() {
    let (m1, m2) = (write("ConfigMap", "m1"), write("ConfigMap", "m2"));
    let live = applied(&m1, &nothing(&m1), &map(json!({"a": "1", "b": "1"})), false).unwrap();
    // when another applies the same value, it owns it too, without a time, and sorts first
    let both = applied(&m2, &live, &map(json!({"a": "1"})), false).unwrap();
    let fields = json!({"f:data": {"f:a": {}}});
    assert_eq!(owners(&both)[0], ("m2 Apply".to_owned(), fields.clone()));
    assert_eq!(both["metadata"]["managedFields"][0].get("time"), None);
    // another value is a conflict
    let refused = applied(&m2, &live, &map(json!({"a": "2"})), false).unwrap_err();
    assert_eq!(refused, "Apply failed with 1 conflict: conflict with \"m1\": .data.a");
    // unless forced
    let forced = applied(&m2, &live, &map(json!({"a": "2"})), true).unwrap();
    assert_eq!(forced["data"], json!({"a": "2", "b": "1"}));
    let want =
        [("m1 Apply".to_owned(), json!({"f:data": {"f:b": {}}})), ("m2 Apply".to_owned(), fields)];
    assert_eq!(owners(&forced), want);
    // what only m1 owned goes when m1 leaves it out; what m2 owns too stays
    let dropped = applied(&m1, &both, &map(json!({})), false).unwrap();
    assert_eq!(dropped["data"], json!({"a": "1"}));
}

#[test]
fn conflicts_with_several_managers_are_listed_by_manager() {
    let (m1, m2) = (write("ConfigMap", "m1"), write("ConfigMap", "m2"));
    let live = created(&write("ConfigMap", "curl"), map(json!({"c": "1"})));
    let live = applied(&m2, &live, &map(json!({"b": "1", "a": "1"})), false).unwrap();
    let body = map(json!({"a": "2", "b": "2", "c": "2"}));
    assert_eq!(
        applied(&m1, &live, &body, false).unwrap_err(),
        "Apply failed with 3 conflicts: conflicts with \"curl\" using v1:\n- .data.c\n\
         conflicts with \"m2\":\n- .data.a\n- .data.b"
    );
}

#[test]
fn object_without_managers_belongs_to_before_first_apply() {
    let m1 = write("ConfigMap", "m1");
    let live = map(json!({"a": "1", "b": "1"}));
    let refused = applied(&m1, &live, &map(json!({"a": "2"})), false).unwrap_err();
    assert_eq!(
        refused,
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a"
    );
    let forced = applied(&m1, &live, &map(json!({"a": "2"})), true).unwrap();
    let names: Vec<String> = owners(&forced).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["m1 Apply", "before-first-apply Update"]);
}

#[test]
fn updates_take_what_they_change_from_everybody() {
    let (m1, curl) = (write("ConfigMap", "m1"), write("ConfigMap", "curl"));
    let live = applied(&m1, &nothing(&m1), &map(json!({"a": "1", "b": "1"})), false).unwrap();
    let mut new = live.clone();
    new["data"] = json!({"a": "2", "b": "1"});
    track(&curl, &live, &mut new, false);
    let want = [
        ("m1 Apply".to_owned(), json!({"f:data": {"f:b": {}}})),
        ("curl Update".to_owned(), json!({"f:data": {"f:a": {}}})),
    ];
    assert_eq!(owners(&new), want);
    // the same value again changes nothing
    let mut same = new.clone();
    track(&write("ConfigMap", "other"), &new, &mut same, false);
    assert_eq!(same, new);
}

#[test]
fn an_untracked_object_stays_untracked_until_it_is_applied() {
    let curl = write("ConfigMap", "curl");
    let live =
        created(&curl, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}));
    assert_eq!(owners(&live), []);
    let mut new = live.clone();
    new["data"] = json!({"a": "1"});
    track(&curl, &live, &mut new, false);
    assert_eq!(owners(&new), []);
}

#[test]
fn managers_are_reset_kept_or_replaced_on_request() {
    let curl = write("ConfigMap", "curl");
    let live = created(&curl, map(json!({"a": "1"})));
    let entry = json!([{"manager": "x", "operation": "Apply", "apiVersion": "v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:a": {}}}}]);
    for (list, want) in [
        (json!(null), vec!["curl Update"]),
        (json!([{}]), vec![]),
        (json!([]), vec![]),
        (json!([{"manager": "x", "operation": "Nope"}]), vec!["curl Update"]),
        (
            json!([{"manager": "x".repeat(300), "operation": "Apply", "fieldsType": "FieldsV1"}]),
            vec!["curl Update"],
        ),
        (entry, vec!["x Apply"]),
    ] {
        let mut new = live.clone();
        new["metadata"]["managedFields"] = list.clone();
        track(&curl, &live, &mut new, false);
        let names: Vec<String> = owners(&new).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, want, "{list}");
        // a subresource never changes them
        let mut new = live.clone();
        new["metadata"]["managedFields"] = list;
        track(&Write { subresource: "status", ..curl }, &live, &mut new, false);
        assert_eq!(owners(&new), owners(&live));
    }
}

#[test]
fn the_oldest_updaters_are_merged() {
    let mut live = created(&write("ConfigMap", "u0"), map(json!({"k0": "1"})));
    for index in 1..12 {
        let name = format!("u{index}");
        let time = format!("2026-01-01T00:00:{index:02}Z");
        let mut new = live.clone();
        new["data"][format!("k{index}")] = json!("1");
        track(&Write { now: &time, ..write("ConfigMap", &name) }, &live, &mut new, false);
        live = new;
    }
    let names: Vec<String> = owners(&live).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), 10);
    assert!(names.contains(&"ancient-changes Update".to_owned()), "{names:?}");
    let m1 = write("ConfigMap", "m1");
    assert_eq!(owners(&applied(&m1, &live, &map(json!({"x": "1"})), false).unwrap()).len(), 11);
}

#[test]
fn created_pod_owns_its_defaults_but_not_plain_structs() {
    let spec = json!({"containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always",
        "ports": [{"containerPort": 80, "protocol": "TCP"}]}], "dnsPolicy": "ClusterFirst",
        "securityContext": {}});
    let live = created(&write("Pod", "curl"), pod(spec));
    assert_eq!(
        owners(&live)[0].1,
        json!({"f:spec": {
            "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {},
                "f:imagePullPolicy": {}, "f:resources": {},
                "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}":
                    {".": {}, "f:containerPort": {}, "f:protocol": {}}}}},
            "f:dnsPolicy": {}, "f:securityContext": {}}})
    );
}

#[test]
fn lists_are_merged_by_the_keys_of_the_schema() {
    let (m1, m2) = (write("Pod", "m1"), write("Pod", "m2"));
    let env = |names: &[&str]| -> Vec<Value> {
        names.iter().map(|name| json!({"name": name, "value": "1"})).collect()
    };
    let body = |names: &[&str]| pod(json!({"containers": [{"name": "c", "env": env(names)}]}));
    let live = applied(&m1, &nothing(&m1), &body(&["A", "B", "C"]), false).unwrap();
    let both = applied(&m2, &live, &body(&["D", "A", "E"]), false).unwrap();
    let names: Vec<&str> = both["spec"]["containers"][0]["env"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|env| env["name"].as_str())
        .collect();
    assert_eq!(names, ["D", "A", "B", "C", "E"]);
    // a port without protocol has that of the schema in its key
    let ports = pod(json!({"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}));
    let live = applied(&m1, &nothing(&m1), &ports, false).unwrap();
    assert_eq!(
        owners(&live)[0].1["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"]["f:ports"],
        json!({"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}})
    );
}

#[test]
fn what_is_atomic_is_owned_as_a_whole() {
    let m1 = write("Pod", "m1");
    let body = pod(json!({
        "tolerations": [{"key": "a"}], "nodeSelector": {"x": "y"},
        "containers": [{"name": "c", "command": ["a"], "env": [{"name": "E",
            "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]}));
    let live = applied(&m1, &nothing(&m1), &body, false).unwrap();
    assert_eq!(
        owners(&live)[0].1["f:spec"],
        json!({"f:tolerations": {}, "f:nodeSelector": {}, "f:containers": {"k:{\"name\":\"c\"}":
            {".": {}, "f:name": {}, "f:command": {}, "f:env": {"k:{\"name\":\"E\"}": {".": {},
            "f:name": {}, "f:valueFrom": {"f:secretKeyRef": {}}}}}}})
    );
    let other = pod(json!({"nodeSelector": {"z": "y"}, "tolerations": [{"key": "b"}]}));
    let refused = applied(&write("Pod", "m2"), &live, &other, false).unwrap_err();
    assert_eq!(
        refused,
        "Apply failed with 2 conflicts: conflicts with \"m1\":\n- .spec.nodeSelector\n- .spec.tolerations"
    );
}

#[test]
fn finalizers_and_owners_are_owned_one_by_one() {
    let m1 = write("ConfigMap", "m1");
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1"});
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a",
        "finalizers": ["x.io/f"], "ownerReferences": [owner], "labels": {"l": "1"}}});
    let live = applied(&m1, &nothing(&m1), &body, false).unwrap();
    assert_eq!(
        owners(&live)[0].1,
        json!({"f:metadata": {"f:finalizers": {"v:\"x.io/f\"": {}}, "f:labels": {"f:l": {}},
            "f:ownerReferences": {"k:{\"uid\":\"u-1\"}": {}}}})
    );
}

#[test]
fn element_goes_as_a_whole_unless_another_owns_it() {
    let (m1, curl) = (write("Pod", "m1"), write("Pod", "curl"));
    let two =
        pod(json!({"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}));
    let one = pod(json!({"containers": [{"name": "a", "image": "i"}]}));
    let live = applied(&m1, &nothing(&m1), &two, false).unwrap();
    let mut defaulted = live.clone();
    defaulted["spec"]["containers"][1]["tty"] = json!(true);
    track(&curl, &live, &mut defaulted, false);
    let left = applied(&m1, &defaulted, &one, false).unwrap();
    assert_eq!(left["spec"]["containers"].as_array().unwrap().len(), 1, "{left}");
    // a container that another manager created stays
    let live = created(&curl, two);
    let both =
        applied(&m1, &live, &pod(json!({"containers": [{"name": "b", "tty": true}]})), false)
            .unwrap();
    let left = applied(&m1, &both, &pod(json!({})), false).unwrap();
    assert_eq!(left["spec"]["containers"], live["spec"]["containers"]);
}

#[test]
fn bodies_that_do_not_fit_the_type_are_refused() {
    for (kind, body, why) in [
        ("ConfigMap", json!({"nope": 1}), ".nope: field not declared in schema"),
        (
            "ConfigMap",
            json!({"data": {"y": 2}}),
            ".data.y: expected string, got &value.valueUnstructured{Value:2}",
        ),
        (
            "Pod",
            json!({"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80},
                {"containerPort": 80, "protocol": "TCP"}]}]}}),
            ".spec.containers[name=\"c\"].ports: duplicate entries for key \
             [containerPort=80,protocol=\"TCP\"]",
        ),
        ("Pod", json!({"spec": []}), ".spec: expected map, got &{[]}"),
        (
            "ConfigMap",
            json!({"metadata": {"managedFields": []}}),
            "metadata.managedFields must be nil",
        ),
    ] {
        let m1 = write(kind, "m1");
        assert_eq!(applied(&m1, &nothing(&m1), &body, false).unwrap_err(), why, "{body}");
    }
}

#[test]
fn long_names_do_not_multiply_in_messages() {
    let long = "x".repeat(1 << 20);
    let env = |value: &str| -> Vec<Value> {
        (0..5000).map(|at| json!({"name": format!("e{at}"), "value": value, "nope": 1})).collect()
    };
    let body = |value: &str| {
        let mut env = env(value);
        env.iter_mut().for_each(|entry| _ = entry.as_object_mut().unwrap().remove("nope"));
        pod(json!({"containers": [{"name": long, "env": env}]}))
    };
    let (m1, m2) = (write("Pod", "m1"), write("Pod", "m2"));
    let live = applied(&m1, &nothing(&m1), &body("1"), false).unwrap();
    let refused = applied(&m2, &live, &body("2"), false).unwrap_err();
    assert!(refused.starts_with("Apply failed with 5000 conflicts: conflicts with \"m1\":"));
    assert!(refused.len() < 1 << 20, "{}", refused.len());
    let unknown = pod(json!({"containers": [{"name": long, "env": env("1")}]}));
    let refused = applied(&m1, &nothing(&m1), &unknown, false).unwrap_err();
    assert!(refused.len() < 2 << 20, "{}", refused.len());
}

#[test]
fn kubectl_takes_over_what_client_side_apply_set() {
    let client = write("ConfigMap", "kubectl-client-side-apply");
    let last = map(json!({"a": "1", "b": "1"})).to_string();
    let mut object = map(json!({"a": "1", "b": "9"}));
    object["metadata"]["annotations"] = json!({crate::annotations::LAST_APPLIED: last});
    let live = created(&client, object);
    // the annotation still has the value of a, so kubectl may change it; b was changed since
    let a = map(json!({"a": "2"}));
    let taken = applied(&write("ConfigMap", "kubectl"), &live, &a, false).unwrap();
    assert_eq!(taken["data"], json!({"a": "2", "b": "9"}));
    let refused = applied(&write("ConfigMap", "kubectl"), &live, &map(json!({"b": "2"})), false);
    assert!(refused.unwrap_err().contains(".data.b"));
    assert!(applied(&write("ConfigMap", "m1"), &live, &a, false).is_err(), "kubectl only");
    let mut object = taken;
    rewrite_last_applied("kubectl", &mut object, &a);
    let text =
        object["metadata"]["annotations"][crate::annotations::LAST_APPLIED].as_str().unwrap();
    assert_eq!(text, format!("{a}\n"));
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2i64..3).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ]
}

/// Any JSON with the names of fields of pods.
fn hostile() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        Just("spec".to_owned()),
        Just("metadata".to_owned()),
        Just("containers".to_owned()),
        Just("name".to_owned()),
        Just("ports".to_owned()),
        Just("managedFields".to_owned()),
        Just("labels".to_owned()),
        Just("finalizers".to_owned()),
        Just("f:a".to_owned()),
        Just("fieldsV1".to_owned()),
        Just("k:{\"name\":\"c\"}".to_owned()),
        "[a-z]{0,3}",
    ];
    leaf().prop_recursive(6, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// The fields that are not empty: what is stored leaves empty ones out.
fn filled(fields: Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let fields = fields.as_object().unwrap().clone().into_iter();
    Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
}

/// A valid pod with random parts.
fn some_pod() -> impl Strategy<Value = Value> {
    let pairs = || prop::collection::btree_map("[a-d]", "[x-z]", 0..4);
    let env = prop::collection::btree_map("[A-E]", "[0-2]", 0..5);
    let container = ("[a-c]", prop::option::of("[i-j]"), env, any::<bool>()).prop_map(
        |(name, image, env, tty)| {
            let env = env.into_iter().map(|(name, value)| json!({"name": name, "value": value}));
            let env: Vec<Value> = env.collect();
            let container = filled(json!({"name": name, "image": image, "env": env, "tty": tty}));
            (name, container)
        },
    );
    let finalizers = prop::collection::btree_set("[f-h]/x", 0..3);
    (pairs(), finalizers, prop::collection::vec(container, 0..3), pairs()).prop_map(
        |(labels, finalizers, containers, selector)| {
            let containers: std::collections::BTreeMap<String, Value> =
                containers.into_iter().collect();
            let containers: Vec<Value> = containers.into_values().collect();
            let meta = json!({"name": "a", "labels": labels, "finalizers": finalizers});
            let spec = json!({"containers": containers, "nodeSelector": selector});
            filled(json!({"apiVersion": "v1", "kind": "Pod", "metadata": filled(meta), "spec": filled(spec)}))
        },
    )
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(first in some_pod(), second in some_pod(), third in some_pod()) {
        let (m1, m2) = (write("Pod", "m1"), write("Pod", "m2"));
        let live = applied(&m1, &nothing(&m1), &first, false).unwrap();
        let live = applied(&m2, &live, &second, true).unwrap();
        let once = applied(&m1, &live, &third, true).unwrap();
        let later = Write { now: "2027-01-01T00:00:00Z", ..m1 };
        let twice = applied(&later, &once, &third, false).unwrap();
        prop_assert_eq!(twice, once);
    }

    #[test]
    fn applied_fields_are_owned_and_hold(first in some_pod(), second in some_pod()) {
        let (m1, m2) = (write("Pod", "m1"), write("Pod", "m2"));
        let live = applied(&m1, &nothing(&m1), &first, false).unwrap();
        let live = applied(&m2, &live, &second, true).unwrap();
        // the last applier owns all that it said
        let managers = of(&live);
        let mine = &managers.0.iter().find(|(manager, _)| manager.name == "m2");
        let said = field_set(m2.place(), &second).difference(&unrecorded());
        let owned = mine.map(|(_, owned)| owned.fields.clone()).unwrap_or_default();
        prop_assert_eq!(&owned, &said);
        // what both own, both said with the same value
        let other = managers.0.iter().find(|(manager, _)| manager.name == "m1");
        let other = other.map(|(_, owned)| owned.fields.clone()).unwrap_or_default();
        let differing = compare(m1.place(), &first, &second).modified;
        prop_assert!(other.intersection(&owned).intersection(&differing).is_empty());
        // nobody conflicts with what it owns alone
        prop_assert!(applied(&m2, &live, &second, false).is_ok());
    }

    #[test]
    fn an_apply_of_nothing_removes_what_only_the_applier_owned(first in some_pod(), second in some_pod()) {
        let (m1, m2) = (write("Pod", "m1"), write("Pod", "m2"));
        let live = applied(&m1, &nothing(&m1), &first, false).unwrap();
        let live = applied(&m2, &live, &second, true).unwrap();
        let bare = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
        let left = applied(&m1, &live, &bare, false).unwrap();
        prop_assert!(of(&left).0.keys().all(|manager| manager.name == "m2"));
        let theirs = field_set(m2.place(), &second).difference(&unrecorded());
        let changed = compare(m2.place(), &live, &left);
        prop_assert!(changed.removed.union(&changed.modified).intersection(&theirs).is_empty());
    }

    #[test]
    fn an_update_moves_exactly_what_it_changes(first in some_pod(), second in some_pod()) {
        let (one, other) = (write("Pod", "one"), write("Pod", "other"));
        let live = created(&one, first);
        let mut new = schema::decode(one.shape, &second).unwrap().value;
        track(&other, &live, &mut new, false);
        let managers = of(&new);
        let of_name = |name: &str| managers.0.iter().find(|(manager, _)| manager.name == name)
            .map(|(_, owned)| owned.fields.clone()).unwrap_or_default();
        prop_assert!(of_name("one").intersection(&of_name("other")).is_empty());
    }

    #[test]
    fn hostile_bodies_and_lists_never_panic(live in hostile(), body in hostile(), list in hostile()) {
        let m1 = write("Pod", "m1");
        let _ = apply(&m1, &live, &body, true);
        let mut object = body.clone();
        track(&m1, &live, &mut object, true);
        let mut live = json!({"metadata": {"managedFields": list}, "spec": {"containers": []}});
        let _ = apply(&m1, &live, &body, false);
        let old = live.clone();
        track(&m1, &old, &mut live, false);
    }

    #[test]
    fn field_sets_round_trip(pod in some_pod()) {
        let set = field_set(write("Pod", "m").place(), &pod);
        prop_assert_eq!(FieldSet::parse(&set.encoded()).unwrap(), set);
    }
}
