//! Arbitrary client or manifest input never makes decoding, defaulting or validation panic or take
//! long.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use k8s_openapi::api::core::v1::Pod;
use podwright_api::schema::{self, Side, Struct, Type};
use podwright_api::{defaults, validation};
use podwright_testkit::mutation;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};

/// An object with every field set.
fn full(shape: &Struct) -> Value {
    let fields = shape.fields.iter().filter(|field| field.side != Side::Internal);
    fields.map(|field| (field.name.to_owned(), sample(&field.ty))).collect::<Map<_, _>>().into()
}

fn sample(ty: &Type) -> Value {
    match ty {
        Type::String(_) => json!("text"),
        Type::Bool => json!(true),
        Type::Int32 | Type::Int64 | Type::IntOrString => json!(7),
        Type::Bytes => json!("eA=="),
        Type::Quantity => json!("3"),
        Type::Time | Type::MicroTime => json!("2026-01-02T03:04:05Z"),
        Type::Any => json!({"f:a": {}}),
        Type::Pointer(inner) => sample(inner),
        Type::List(inner) => json!([sample(inner), sample(inner)]),
        Type::Map(inner) => json!({"cpu": sample(inner)}),
        Type::Struct(name) => full(schema::find(name).unwrap()),
    }
}

/// JSON pointers to every value in an object.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| pointers(value, &format!("{at}/{name}"), all));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, value)| pointers(value, &format!("{at}/{index}"), all));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn replacement() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i32..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,40}".prop_map(Value::from),
        "[-./:_@a-zA-Z0-9]{0,80}".prop_map(Value::from),
        prop_oneof![
            Just("Always"),
            Just("Localhost"),
            Just("windows"),
            Just("linux"),
            Just("Exists"),
            Just("-1Gi"),
            Just("1e90"),
            Just("hugepages-0"),
            Just("metadata.labels['']"),
            Just("..")
        ]
        .prop_map(Value::from),
    ]
}

fn read(object: &Value) -> Option<Pod> {
    let decoded = schema::decode(schema::find("Pod").unwrap(), object).ok()?;
    let mut pod: Pod = serde_json::from_value(decoded.value).expect("decoded value has the type");
    defaults::apply(&mut pod);
    Some(pod)
}

proptest! {
    #![proptest_config(mutation::config_of(96))]

    #[test]
    fn arbitrary_pods_do_not_panic(edits in prop::collection::vec((any::<Index>(), replacement()), 0..12)) {
        let whole = full(schema::find("Pod").unwrap());
        let old = read(&whole).unwrap();
        let mut object = whole;
        for (index, value) in edits {
            let mut all = Vec::new();
            pointers(&object, "", &mut all);
            let at: &String = index.get(&all);
            *object.pointer_mut(at).unwrap() = value;
        }
        if let Some(new) = read(&object) {
            let _ = validation::create(&new);
            let _ = validation::update(&new, &old);
            let _ = validation::update(&old, &new);
            let _ = validation::update_status(&new, &old);
            let _ = validation::update_ephemeral_containers(&new, &old);
            let _ = validation::resize(&new, &old);
        }
    }

    #[test]
    fn decoding_is_idempotent(edits in prop::collection::vec((any::<Index>(), replacement()), 0..6)) {
        let shape = schema::find("Pod").unwrap();
        let mut object = full(shape);
        for (index, value) in edits {
            let mut all = Vec::new();
            pointers(&object, "", &mut all);
            let at: &String = index.get(&all);
            *object.pointer_mut(at).unwrap() = value;
        }
        if let Ok(once) = schema::decode(shape, &object) {
            let twice = schema::decode(shape, &once.value).unwrap();
            prop_assert_eq!(twice.value, once.value);
            prop_assert!(twice.unknown.is_empty());
        }
    }
}
