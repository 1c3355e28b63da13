#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod change;
mod container;
mod spec;
mod volume;

use serde_json::{Value, json};

use super::*;
use crate::defaults;
use crate::schema;

/// A defaulted pod from a spec with only the relevant fields.
fn pod(spec: &Value) -> Pod {
    let mut given = json!({"containers": [{"name": "c", "image": "a:1"}]});
    merge(&mut given, spec);
    let object = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": given});
    read(&object)
}

fn read(object: &Value) -> Pod {
    let value = schema::decode(schema::find("Pod").unwrap(), object).unwrap().value;
    let mut pod: Pod = serde_json::from_value(value).unwrap();
    defaults::apply(&mut pod);
    pod
}

fn merge(into: &mut Value, from: &Value) {
    for (key, value) in from.as_object().unwrap() {
        match into.get_mut(key) {
            Some(own) if own.is_object() && value.is_object() => merge(own, value),
            _ => into[key] = value.clone(),
        }
    }
}

fn lines(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// Validation errors of a pod with this spec.
fn of_spec(spec: &Value) -> Vec<String> {
    lines(&create(&pod(spec)))
}

/// Validation errors of a pod with this container.
fn of_container(container: &Value) -> Vec<String> {
    let mut given = json!({"name": "c", "image": "a:1"});
    merge(&mut given, container);
    of_spec(&json!({"containers": [given]}))
}

fn check(cases: &[(Value, &[&str])], of: impl Fn(&Value) -> Vec<String>) {
    for (given, want) in cases {
        assert_eq!(of(given), *want, "{given}");
    }
}
