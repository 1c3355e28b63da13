//! Error messages of kube-apiserver, and requests that it accepts against expectation.

use serde_json::{Value, json};

use super::test_server::{NS, TestServer};

const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

#[tokio::test(start_paused = true)]
async fn refusals_have_kube_apiservers_messages() {
    let test_server = TestServer::new().await;
    test_server.map("m").await;
    let maps = format!("{NS}/configmaps");
    let class = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let reviews = "/apis/authorization.k8s.io/v1";
    let manager = "m".repeat(129);
    for (method, path, kind, body, code, message) in [
        (
            "DELETE",
            class.to_owned(),
            JSON,
            Value::Null,
            403,
            "priorityclasses.scheduling.k8s.io \"system-node-critical\" is forbidden: this is a system priority class and cannot be deleted",
        ),
        (
            "POST",
            format!("{maps}?fieldManager={manager}&dryRun=Some"),
            JSON,
            json!({"metadata": {"name": "x"}}),
            422,
            "CreateOptions.meta.k8s.io \"\" is invalid: [fieldManager: Too long: may not be more than 128 bytes, dryRun: Unsupported value: [\"Some\"]: supported values: \"All\"]",
        ),
        (
            "PATCH",
            format!("{maps}/m?force=true&fieldManager=a%07b"),
            MERGE,
            json!({}),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: [force: Forbidden: may not be specified for non-apply patch, fieldManager: Invalid value: \"a\\ab\": invalid character U+0007 (at position 1)]",
        ),
        (
            "POST",
            maps.clone(),
            JSON,
            Value::Null,
            422,
            "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required",
        ),
        (
            "POST",
            events.to_owned(),
            JSON,
            json!({"metadata": {"name": "e"}, "regarding": {"namespace": "default"}, "type": "Odd", "deprecatedCount": 2}),
            422,
            "Event \"e\" is invalid: [eventTime: Required value, type: Invalid value: \"\": has invalid value: Odd, count: Invalid value: \"\": needs to be unset]",
        ),
        (
            "POST",
            format!("{reviews}/selfsubjectaccessreviews"),
            JSON,
            json!({"spec": {}}),
            422,
            ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        (
            "POST",
            format!("{reviews}/subjectaccessreviews"),
            JSON,
            json!({"spec": {"resourceAttributes": {}, "nonResourceAttributes": {"path": "/x"}}}),
            422,
            ".authorization.k8s.io \"\" is invalid: [spec.nonResourceAttributes: Invalid value: {\"Path\":\"/x\",\"Verb\":\"\"}: cannot be specified in combination with resourceAttributes, spec.user: Invalid value: \"\": at least one of user or group must be specified]",
        ),
    ] {
        let text = if method == "DELETE" { String::new() } else { body.to_string() };
        let response = test_server.send(method, &path, kind, text).await;
        assert_eq!((response.code, response.message()), (code, message), "{method} {path} {body}");
    }
}

#[tokio::test(start_paused = true)]
async fn table_includes_what_is_requested_or_names_the_choices() {
    let test_server = TestServer::new().await;
    let ask = async |include: &str| {
        let request = http::Request::get(format!("{NS}/configmaps?includeObject={include}"))
            .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(axum::body::Body::empty())
            .unwrap();
        let response = test_server.raw(request).await;
        let code = response.status().as_u16();
        let text = super::test_server::drained(response.into_body()).await;
        (code, serde_json::from_str::<Value>(&text).unwrap())
    };
    for (include, carried) in [
        ("", "PartialObjectMetadata"),
        ("Metadata", "PartialObjectMetadata"),
        ("Object", "ConfigMap"),
    ] {
        let (code, table) = ask(include).await;
        assert_eq!(
            (code, &table["rows"][0]["object"]["kind"]),
            (200, &json!(carried)),
            "{include}"
        );
    }
    let (code, refused) = ask("All").await;
    assert_eq!(code, 400);
    assert_eq!(
        refused["message"],
        "Unable to convert to Table as requested: includeObject: Invalid value: \"All\": must be 'Metadata', 'Object', 'None', or empty"
    );
    // the option is ignored for anything but tables
    assert_eq!(test_server.get(&format!("{NS}/configmaps?includeObject=All")).await.code, 200);
}

#[tokio::test(start_paused = true)]
async fn negative_limit_is_no_limit_and_a_review_has_a_creation_time() {
    let test_server = TestServer::new().await;
    test_server.map("m").await;
    assert_eq!(test_server.get(&format!("{NS}/configmaps?limit=-1")).await.names().len(), 2);
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let reviewed = test_server.post(reviews, json!({"metadata": {"name": "x"}})).await.ok();
    assert_eq!(reviewed.body["metadata"], json!({"creationTimestamp": "2023-11-14T22:13:20Z"}));
}
