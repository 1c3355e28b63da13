//! Defaults and validation of pods, compared with the answers of a real kube-apiserver.
//!
//! The recordings are not part of this repository: `PODWRIGHT_GOLDEN` names their folder.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test, and one that reads files"
)]

use k8s_openapi::api::core::v1::Pod;
use podwright_core::pod::{defaults, validation};
use podwright_core::schema;
use podwright_testkit::report;
use serde_json::{Value, json};

/// The cases of a recording, with what was scrubbed from it replaced by something that reads.
fn cases(file: &str) -> Option<Vec<Value>> {
    let text = std::fs::read_to_string(report::recordings()?.join("api").join(file)).unwrap();
    let text = text.replace("<time>", "2026-01-02T03:04:05Z").replace("<rand>", "x2b4c");
    Some(serde_json::from_str(&text).unwrap())
}

fn find<'a>(cases: &'a [Value], about: &str) -> &'a Value {
    cases.iter().find(|case| case["about"] == about).unwrap()
}

/// The posted object as the server holds it before validation.
fn received(body: &Value) -> Option<Pod> {
    let shape = schema::find("Pod").unwrap();
    let mut pod: Pod = serde_json::from_value(schema::decode(shape, body).ok()?.value).unwrap();
    defaults::apply(&mut pod);
    pod.metadata.namespace.get_or_insert("apigold".to_owned());
    Some(pod)
}

fn written(pod: &Pod) -> Value {
    let value = serde_json::to_value(pod).unwrap();
    schema::decode(schema::find("Pod").unwrap(), &value).unwrap().value
}

/// The spec of an answer without what admission added to it.
fn without_admission(answer: &Value) -> Value {
    let mut spec = answer["spec"].clone();
    let is_token = |value: &Value| value["name"].as_str().unwrap().starts_with("kube-api-access-");
    let fields = spec.as_object_mut().unwrap();
    for name in
        ["tolerations", "priority", "preemptionPolicy", "serviceAccount", "serviceAccountName"]
    {
        fields.remove(name);
    }
    fields["volumes"].as_array_mut().unwrap().retain(|volume| !is_token(volume));
    for container in fields["containers"].as_array_mut().unwrap() {
        container["volumeMounts"].as_array_mut().unwrap().retain(|mount| !is_token(mount));
    }
    // lists that admission alone filled are gone again
    written(&received(&json!({"spec": spec})).unwrap())["spec"].clone()
}

#[test]
fn defaults_are_the_recorded_ones() {
    let Some(cases) = cases("pod-defaults.json") else { return };
    let created = cases.iter().filter(|case| case["method"] == "POST" && case["status"] == 201);
    let mut compared = 0;
    for case in created {
        let spec = written(&received(&case["body"]).unwrap())["spec"].clone();
        assert_eq!(spec, without_admission(&case["answer"]), "{}", case["about"]);
        compared += 1;
    }
    report::golden("pod defaults", compared, compared);
}

fn causes(errors: &[validation::FieldError]) -> Value {
    let cause = |e: &validation::FieldError| json!({"reason": e.reason, "message": e.message, "field": e.field});
    errors.iter().map(cause).collect()
}

#[test]
fn pods_are_refused_for_the_recorded_causes() {
    let Some(cases) = cases("pod-invalid.json") else { return };
    let mut compared = 0;
    for case in cases.iter().filter(|case| case["body"].is_object()) {
        // what is refused for its address or its type is not for validation to see
        let (422 | 201) = case["status"].as_i64().unwrap() else { continue };
        let pod = received(&case["body"]).unwrap();
        let want = case["answer"]["details"]["causes"].clone();
        let want = if want.is_null() { json!([]) } else { want };
        assert_eq!(causes(&validation::create(&pod)), want, "{}", case["about"]);
        compared += 1;
    }
    report::golden("pod validation", compared, compared);
}

#[test]
fn a_value_of_the_wrong_type_is_refused_in_the_recorded_words() {
    let Some(cases) = cases("pod-invalid.json") else { return };
    let case = find(&cases, "wrong type");
    let error = schema::decode(schema::find("Pod").unwrap(), &case["body"]).unwrap_err();
    let message = format!("Pod in version \"v1\" cannot be handled as a Pod: {error}");
    assert_eq!(case["answer"]["message"], message);
}

#[test]
fn changes_are_refused_for_the_recorded_causes() {
    let Some(cases) = cases("pod-update.json") else { return };
    let stored = received(&find(&cases, "json patch")["answer"]).unwrap();
    let refused = |about: &str| find(&cases, about)["answer"]["details"]["causes"].clone();

    let mut changed = stored.clone();
    changed.spec.as_mut().unwrap().host_network = Some(true);
    assert_eq!(causes(&validation::update(&changed, &stored)), refused("immutable field"));

    let mut changed = stored.clone();
    let containers = &mut changed.spec.as_mut().unwrap().containers;
    let mut second = containers[0].clone();
    second.name = "d".to_owned();
    containers.push(second);
    assert_eq!(causes(&validation::update(&changed, &stored)), refused("add a container"));

    let with_debugger = received(&find(&cases, "ephemeral container")["answer"]).unwrap();
    assert_eq!(validation::update_ephemeral_containers(&with_debugger, &stored), []);
    let mut without = with_debugger.clone();
    without.spec.as_mut().unwrap().ephemeral_containers = None;
    assert_eq!(
        causes(&validation::update_ephemeral_containers(&without, &with_debugger)),
        refused("ephemeral container removed")
    );

    let reported = received(&find(&cases, "conditions merge by type")["answer"]).unwrap();
    assert_eq!(validation::update_status(&reported, &stored), []);
    report::golden("pod updates", 5, 5);
}

#[test]
fn every_pod_that_was_accepted_is_accepted() {
    let Some(golden) = report::recordings() else { return };
    let mut accepted = 0;
    for entry in std::fs::read_dir(golden.join("pods")).unwrap() {
        let path = entry.unwrap().path();
        let case: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let objects = case["objects"].as_array().unwrap();
        for object in objects.iter().filter(|object| object["kind"] == "Pod") {
            let mut pod = received(object).unwrap();
            // admission names the account before validation
            let spec = pod.spec.as_mut().unwrap();
            spec.service_account_name.get_or_insert("default".to_owned());
            assert_eq!(validation::create(&pod), [], "{}", path.display());
            accepted += 1;
        }
    }
    report::golden("pods accepted", accepted, accepted);
}
