//! RuntimeClass admission, as kube-apiserver's plugin: a pod gets the overhead and the scheduling
//! rules of its class, and is refused if it contradicts them.

use std::collections::BTreeMap;

use podwright_api::quantity::Quantity;
use serde_json::Value;

use crate::json_edit;

/// Applies a class to the spec of a pod. `None`: the pod names none. The error says why the pod is
/// refused.
pub(super) fn apply(spec: &mut Value, class: Option<&Value>) -> Result<(), String> {
    apply_overhead(spec, class)?;
    let scheduling = class.and_then(|class| class.get("scheduling"));
    match scheduling {
        Some(scheduling) => apply_scheduling(spec, scheduling),
        None => Ok(()),
    }
}

fn apply_overhead(spec: &mut Value, class: Option<&Value>) -> Result<(), String> {
    let of_class = class.and_then(|class| present(class.get("overhead")));
    let given = present(spec.get("overhead"));
    match (of_class, given) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
                .to_owned(),
        ),
        (Some(overhead), given) => {
            let fixed = overhead.get("podFixed");
            let given = given.map(|given| amounts(Some(given))).filter(|given| !given.is_empty());
            if given.is_some_and(|given| given != amounts(fixed)) {
                let text =
                    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                return Err(text.to_owned());
            }
            json_edit::put(spec, &["overhead"], present(fixed).cloned());
            Ok(())
        }
    }
}

fn present(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null())
}

/// Amounts by resource: `1` and `1000m` are the same. What is not a quantity is kept as it is; the
/// validation refuses it later.
fn amounts(list: Option<&Value>) -> BTreeMap<&str, Result<Quantity, &Value>> {
    let list = list.and_then(Value::as_object).into_iter().flatten();
    let amount = |(name, value)| {
        let (name, value): (&String, &Value) = (name, value);
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (name.as_str(), text.parse().map_err(|_| value))
    };
    list.map(amount).collect()
}

/// Adds the node selector and tolerations of the class to those of the pod.
fn apply_scheduling(spec: &mut Value, scheduling: &Value) -> Result<(), String> {
    let selector = scheduling.get("nodeSelector").and_then(Value::as_object);
    for (key, value) in selector.into_iter().flatten() {
        let own = json_edit::map_at(spec, &["nodeSelector"]);
        if let Some(given) = own.get(key).filter(|given| *given != value) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; \
                 pod.spec.nodeSelector[{key}] = {}",
                text(value),
                text(given)
            ));
        }
        own.insert(key.clone(), value.clone());
    }
    let added = scheduling.get("tolerations").and_then(Value::as_array);
    if let Some(added) = added.filter(|added| !added.is_empty()) {
        let own = json_edit::list_at(spec, &["tolerations"]);
        own.extend(added.iter().cloned());
        *own = without_redundant(own);
    }
    Ok(())
}

/// The tolerations without those that another one covers. Of equal ones the first stays.
fn without_redundant(all: &[Value]) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::new();
    for (index, toleration) in all.iter().enumerate() {
        let mut later = all.iter().skip(index + 1);
        let is_covered = kept.iter().any(|other| covers(other, toleration))
            || later.any(|other| other != toleration && covers(other, toleration));
        if !is_covered {
            kept.push(toleration.clone());
        }
    }
    kept
}

/// Whether `wide` tolerates everything that `narrow` does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let text = |toleration: &Value, field: &str| {
        toleration.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let seconds = |toleration: &Value| toleration.get("tolerationSeconds").and_then(Value::as_i64);
    let (key, operator, effect) = (text(wide, "key"), text(wide, "operator"), text(wide, "effect"));
    if text(narrow, "key") != key && !(key.is_empty() && operator == "Exists") {
        return false;
    }
    if text(narrow, "effect") != effect && !effect.is_empty() {
        return false;
    }
    if effect == "NoExecute"
        && let Some(most) = seconds(wide)
        && seconds(narrow).is_none_or(|seconds| seconds > most)
    {
        return false;
    }
    match operator.as_str() {
        "Equal" | "" => {
            text(narrow, "operator") == "Equal" && text(narrow, "value") == text(wide, "value")
        }
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    const MISMATCH: &str =
        "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
    const WITHOUT: &str =
        "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";

    #[test]
    fn pod_has_the_overhead_of_its_class() {
        let class = |overhead: Value| Some(json!({ "handler": "vm", "overhead": overhead }));
        let quarter = || class(json!({ "podFixed": { "cpu": "250m" } }));
        for (case, class, given, want) in [
            ("set by the class", quarter(), Value::Null, Ok(json!({ "cpu": "250m" }))),
            (
                "spelled otherwise",
                quarter(),
                json!({ "cpu": "0.25" }),
                Ok(json!({ "cpu": "250m" })),
            ),
            ("empty", quarter(), json!({}), Ok(json!({ "cpu": "250m" }))),
            ("another amount", quarter(), json!({ "cpu": "1" }), Err(MISMATCH)),
            ("one more", quarter(), json!({ "cpu": "250m", "memory": "1" }), Err(MISMATCH)),
            ("no class", None, json!({ "cpu": "1" }), Err(WITHOUT)),
            ("class without", class(Value::Null), json!({ "cpu": "1" }), Err(WITHOUT)),
            ("class with none", class(json!({})), json!({ "cpu": "1" }), Err(MISMATCH)),
            ("neither", None, Value::Null, Ok(Value::Null)),
        ] {
            let mut spec = json!({ "containers": [] });
            if !given.is_null() {
                spec["overhead"] = given;
            }
            let found = apply(&mut spec, class.as_ref()).map(|()| spec["overhead"].clone());
            assert_eq!(found, want.map_err(str::to_owned), "{case}");
        }
    }

    #[test]
    fn pod_that_contradicts_the_node_selector_of_its_class_is_refused() {
        let class = json!({ "scheduling": { "nodeSelector": { "vm": "yes", "zone": "a" } } });
        let mut spec = json!({ "nodeSelector": { "zone": "a", "disk": "ssd" } });
        apply(&mut spec, Some(&class)).unwrap();
        assert_eq!(spec["nodeSelector"], json!({ "vm": "yes", "zone": "a", "disk": "ssd" }));
        let mut spec = json!({ "nodeSelector": { "zone": "b" } });
        let want = "conflict: runtimeClass.scheduling.nodeSelector[zone] = a; \
                    pod.spec.nodeSelector[zone] = b";
        assert_eq!(apply(&mut spec, Some(&class)), Err(want.to_owned()));
    }

    #[test]
    fn tolerations_that_another_one_covers_are_left_out() {
        let equal = |value: &str| json!({ "key": "vm", "operator": "Equal", "value": value });
        let exists = json!({ "key": "vm", "operator": "Exists" });
        let brief = json!({ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5 });
        let long = json!({ "key": "a", "operator": "Exists", "effect": "NoExecute" });
        for (case, own, added, want) in [
            ("the same", vec![equal("a")], vec![equal("a")], vec![equal("a")]),
            ("wider", vec![equal("a"), equal("b")], vec![exists.clone()], vec![exists.clone()]),
            ("narrower", vec![exists.clone()], vec![equal("a")], vec![exists]),
            ("longer", vec![long.clone()], vec![brief.clone()], vec![long, brief]),
            ("other", vec![equal("a")], vec![equal("b")], vec![equal("a"), equal("b")]),
        ] {
            let class = json!({ "scheduling": { "tolerations": added } });
            let mut spec = json!({ "tolerations": own });
            apply(&mut spec, Some(&class)).unwrap();
            assert_eq!(spec["tolerations"], json!(want), "{case}");
        }
    }
}
