//! Bodies and responses as YAML and as protobuf.

use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use podwright_apiserver::protobuf;
use serde_json::{Value, json};

use super::test_server::{NS, TestServer, pod};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

async fn get(server: &TestServer, path: &str, accept: &str) -> Response<Body> {
    server.raw(Request::get(path).header("Accept", accept).body(Body::empty()).unwrap()).await
}

async fn bytes(response: Response<Body>) -> (u16, String, Vec<u8>) {
    let code = response.status().as_u16();
    let kind = response.headers()["Content-Type"].to_str().unwrap().to_owned();
    (code, kind, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

#[tokio::test(start_paused = true)]
async fn yaml_bodies_are_accepted_and_sent() {
    let server = TestServer::new().await;
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  labels: {\"on\": \"yes\"}\n\
                data:\n  number: \"1\"\n  text: |\n    two\n    lines\n  octal: \"0644\"\n  none: \"null\"\n";
    let made =
        server.send("POST", &format!("{NS}/configmaps"), "application/yaml", text.to_owned()).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let data = json!({"number": "1", "text": "two\nlines\n", "octal": "0644", "none": "null"});
    assert_eq!(made.body["data"], data);
    // what is sent as YAML is accepted as YAML and changes nothing
    let path = format!("{NS}/configmaps/a");
    let (code, kind, yaml) = bytes(get(&server, &path, "application/yaml").await).await;
    assert_eq!((code, &*kind), (200, "application/yaml"));
    let put = server.send("PUT", &path, "application/yaml", String::from_utf8(yaml).unwrap()).await;
    assert_eq!((put.code, &put.body), (200, &made.body));
    let unknown = "metadata: {name: b}\ndata: {k: v}\nnope: 1\n".to_owned();
    let query = format!("{NS}/configmaps?fieldValidation=Strict");
    let refused = server.send("POST", &query, "application/yaml", unknown).await;
    assert_eq!(
        (refused.code, refused.message()),
        (
            400,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"nope\""
        )
    );
    let watch = format!("{NS}/configmaps?watch=1");
    assert_eq!(get(&server, &watch, "application/yaml").await.status(), 406);
}

#[tokio::test(start_paused = true)]
async fn hostile_yaml_is_refused() {
    let server = TestServer::new().await;
    let path = format!("{NS}/configmaps");
    let levels = |open: &str, count: usize| open.repeat(count);
    let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..12 {
        let before = level - 1;
        let names = vec![format!("*a{before}"); 10].join(",");
        bomb.push_str(&format!("a{level}: &a{level} [{names}]\n"));
    }
    for (case, text) in [
        ("nested lists", levels("[", 100_000)),
        ("nested maps", levels("{a: ", 100_000)),
        ("nested blocks", levels("- ", 100_000)),
        ("aliases", bomb),
        ("many documents", "---\n".repeat(10_000)),
        ("not text", "a: \u{0}".to_owned()),
        ("a scalar", "x".to_owned()),
        ("unclosed", "a: [".to_owned()),
    ] {
        let refused = server.send("POST", &path, "application/yaml", text.clone()).await;
        assert_eq!(refused.code, 400, "{case}: {}", refused.body);
        let query = format!("{path}/a?fieldManager=m");
        let refused = server.send("PATCH", &query, "application/apply-patch+yaml", text).await;
        assert_eq!(refused.code, 400, "{case}: {}", refused.body);
    }
}

#[tokio::test(start_paused = true)]
async fn objects_lists_and_writes_are_sent_as_protobuf() {
    let server = TestServer::new().await;
    server.pod("one", "n1").await;
    server.pod("two", "n1").await;
    let path = format!("{NS}/pods/one");
    let plain = server.get(&path).await.body;
    let accept = "application/vnd.kubernetes.protobuf,application/json";
    let (code, kind, body) = bytes(get(&server, &path, accept).await).await;
    assert_eq!((code, &*kind), (200, PROTOBUF));
    let read = protobuf::read(&body).unwrap();
    assert_eq!(without_empty(read), without_empty(plain.clone()));
    // a list has the frames of the API
    let (_, kind, body) = bytes(get(&server, &format!("{NS}/pods"), PROTOBUF).await).await;
    assert_eq!(kind, PROTOBUF);
    assert!(body.starts_with(b"k8s\0") && contains(&body, b"PodList") && contains(&body, b"two"));
    // so has the answer to a write, which may be sent as protobuf, too
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "v"}});
    let request = Request::post(format!("{NS}/configmaps"))
        .header("Content-Type", PROTOBUF)
        .header("Accept", PROTOBUF)
        .body(Body::from(protobuf::encode::object(&map).unwrap()));
    let (code, _, body) = bytes(server.raw(request.unwrap()).await).await;
    assert_eq!(code, 201);
    let read = protobuf::read(&body).unwrap();
    assert_eq!((&read["kind"], &read["data"]), (&json!("ConfigMap"), &map["data"]));
    assert_eq!(read["metadata"]["managedFields"][0]["fieldsV1"]["f:data"]["f:k"], json!({}));
    // metadata only
    let only = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let (_, _, body) = bytes(get(&server, &path, only).await).await;
    let read = protobuf::read(&body).unwrap();
    assert_eq!(
        (&read["kind"], &read["metadata"]["name"]),
        (&json!("PartialObjectMetadata"), &json!("one"))
    );
    // errors are JSON, which clients tell by the type
    let (code, kind, _) = bytes(get(&server, &format!("{NS}/pods/none"), PROTOBUF).await).await;
    assert_eq!((code, &*kind), (404, "application/json"));
}

/// Protobuf does not tell an absent time from an empty one, nor an empty struct from an absent one
/// where the type has no pointer.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| (key, without_empty(value)))
                .filter(|(_, value)| !value.is_null())
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(without_empty).collect()),
        other => other,
    }
}

fn contains(body: &[u8], text: &[u8]) -> bool {
    body.windows(text.len()).any(|window| window == text)
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_sent_as_protobuf() {
    let server = TestServer::new().await;
    server.map("a").await;
    let path = format!("{NS}/configmaps?watch=1&timeoutSeconds=1&resourceVersion=0");
    let accept = "application/vnd.kubernetes.protobuf;stream=watch";
    let response = get(&server, &path, accept).await;
    let (code, kind, body) = bytes(response).await;
    assert_eq!((code, &*kind), (200, accept));
    let length = u32::from_be_bytes(body[..4].try_into().unwrap()) as usize;
    let event = &body[4..4 + length];
    assert!(
        event.starts_with(&[0x0a, 5]) && contains(event, b"ADDED") && contains(event, b"k8s\0")
    );
    let expired = format!("{NS}/configmaps?watch=1&resourceVersion=999999&timeoutSeconds=1");
    let (_, _, body) = bytes(get(&server, &expired, PROTOBUF).await).await;
    assert!(body.is_empty() || contains(&body, b"ERROR"), "{body:?}");
}

#[tokio::test(start_paused = true)]
async fn types_that_are_not_served_are_named() {
    let server = TestServer::new().await;
    let listed = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let refused =
        server.send("POST", &format!("{NS}/pods"), "text/plain", pod("a", "").to_string()).await;
    assert_eq!(
        (refused.code, refused.message()),
        (
            415,
            &*format!(
                "the body of the request was in an unknown format - accepted media types include: {listed}"
            )
        )
    );
    let response = get(&server, &format!("{NS}/pods"), "application/cbor").await;
    let (code, _, body) = bytes(response).await;
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (code, body["message"].as_str().unwrap()),
        (406, &*format!("only the following media types are accepted: {listed}"))
    );
}
