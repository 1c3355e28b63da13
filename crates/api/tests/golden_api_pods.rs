//! Defaulting and validation of pods compared with responses of a real kube-apiserver.
//!
//! The recordings are not part of this repository: `PODWRIGHT_GOLDEN` names their directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test, and one that reads files"
)]

use k8s_openapi::api::core::v1::Pod;
use podwright_api::schema;
use podwright_api::{defaults, validation};
use podwright_testkit::report;
use serde_json::{Value, json};

/// Cases of a recording, with scrubbed values replaced by valid ones.
fn cases(file: &str) -> Option<Vec<Value>> {
    let text = std::fs::read_to_string(report::recordings()?.join("api").join(file)).unwrap();
    let text = text.replace("<time>", "2026-01-02T03:04:05Z").replace("<rand>", "x2b4c");
    Some(serde_json::from_str(&text).unwrap())
}

fn find<'a>(cases: &'a [Value], about: &str) -> &'a Value {
    cases.iter().find(|case| case["about"] == about).unwrap()
}

/// The posted object as the server has it before validation.
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

/// Spec of a response without the fields that admission added.
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
    // Lists that contained only entries from admission are removed again.
    written(&received(&json!({"spec": spec})).unwrap())["spec"].clone()
}

#[test]
fn defaults_match_the_recordings() {
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
        // Requests with a wrong path or type are refused before validation.
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
fn wrong_type_is_refused_with_the_recorded_message() {
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
fn recorded_accepted_pods_are_accepted() {
    let Some(golden) = report::recordings() else { return };
    let mut accepted = 0;
    for entry in std::fs::read_dir(golden.join("pods")).unwrap() {
        let path = entry.unwrap().path();
        let case: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let objects = case["objects"].as_array().unwrap();
        for object in objects.iter().filter(|object| object["kind"] == "Pod") {
            let mut pod = received(object).unwrap();
            // Admission sets the service account before validation.
            let spec = pod.spec.as_mut().unwrap();
            spec.service_account_name.get_or_insert("default".to_owned());
            assert_eq!(validation::create(&pod), [], "{}", path.display());
            accepted += 1;
        }
    }
    report::golden("pods accepted", accepted, accepted);
}
