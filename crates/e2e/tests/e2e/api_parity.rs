//! Parity of the embedded API server with a real kube-apiserver: both get the same requests and
//! must respond alike.
//!
//! The recordings of the current release define the exact messages; this test shows that nothing
//! was tuned to the recordings. Where the bed's server may be too old, the comparison is excluded
//! by name, with the reason: an unlisted difference fails.

mod cases;

use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use kube::client::Body;
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};
use podwright_e2e::bed::Bed;
use podwright_e2e::wait;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::cases::{Case, NAMESPACE, cases};
use crate::privilege::{figure, needs_root};

const LIMIT: Duration = Duration::from_secs(180);

/// Fields that releases after 1.20 show, or no longer show: excluded from the comparison at any
/// depth.
const NEWER_FIELDS: [&str; 9] = [
    "managedFields",
    "selfLink",
    "generation",
    "observedGeneration",
    "recursiveReadOnly",
    "resizePolicy",
    "remainingItemCount",
    "ca.crt",
    "defaultMode",
];

struct ApiResponse {
    code: u16,
    body: Value,
}

async fn ask(client: &kube::Client, case: &Case) -> ApiResponse {
    let body = match &case.body {
        Value::Null => Vec::new(),
        Value::String(text) => text.clone().into_bytes(),
        body => body.to_string().into_bytes(),
    };
    let request = Request::builder()
        .method(case.method)
        .uri(&case.path)
        .header("Content-Type", case.content_type)
        .header("Accept", "application/json")
        .body(Body::from(body))
        .unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body);
    ApiResponse {
        code,
        body: serde_json::from_str(&text).unwrap_or(Value::String(text.into_owned())),
    }
}

/// Removes server-specific values.
fn scrubbed(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !NEWER_FIELDS.contains(&key.as_str()));
            let each = kept.map(|(key, value)| {
                let value = match key.as_str() {
                    "uid" | "resourceVersion" | "continue" => json!("<own>"),
                    _ => scrubbed(value),
                };
                (key.clone(), value)
            });
            each.collect()
        }
        Value::Array(list) => list.iter().map(scrubbed).collect(),
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => json!("<time>"),
        Value::String(text) if text.starts_with("kube-api-access-") => json!("kube-api-access"),
        Value::String(text) if text.starts_with("default-token-") => json!("kube-api-access"),
        other => other.clone(),
    }
}

/// Collects the paths where two responses differ.
fn differences(path: &str, real: &Value, ours: &Value, found: &mut Vec<String>) {
    match (real, ours) {
        (Value::Object(real), Value::Object(ours)) => {
            let more = ours.keys().filter(|key| !real.contains_key(*key));
            for key in real.keys().chain(more) {
                let none = Value::Null;
                let (real, ours) = (real.get(key), ours.get(key));
                let below = format!("{path}.{key}");
                differences(&below, real.unwrap_or(&none), ours.unwrap_or(&none), found);
            }
        }
        (Value::Array(real), Value::Array(ours)) if real.len() == ours.len() => {
            for (at, (real, ours)) in real.iter().zip(ours).enumerate() {
                differences(&format!("{path}[{at}]"), real, ours, found);
            }
        }
        (real, ours) if real == ours => {}
        (real, ours) => found.push(format!("{path}: theirs {real}, ours {ours}")),
    }
}

fn compare(case: &Case, real: &ApiResponse, ours: &ApiResponse) -> Option<String> {
    let message =
        |reply: &ApiResponse| reply.body["message"].as_str().unwrap_or_default().to_owned();
    if real.code != ours.code || real.body["reason"] != ours.body["reason"] {
        return Some(format!(
            "theirs {} {} {:?}, ours {} {} {:?}",
            real.code,
            real.body["reason"],
            message(real),
            ours.code,
            ours.body["reason"],
            message(ours)
        ));
    }
    let mut found = Vec::new();
    if case.newer_words.is_none() {
        differences("", &scrubbed(&real.body), &scrubbed(&ours.body), &mut found);
    }
    (!found.is_empty()).then(|| found.join("\n    "))
}

/// The embedded server with its controllers, without a node, so that nothing is bound.
async fn embedded(stop: CancellationToken) -> kube::Client {
    let clock = Clock::system();
    let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
    let mut settings = Settings::new(clock, Ids::system());
    settings.token_key = Some(TokenKey::new(&[7; 32]));
    let server = ApiServer::start(store, settings).await.unwrap();
    let service = server.service(Identity::admin());
    tokio::spawn(async move { server.run_controllers(stop).await });
    kube::Client::new(service, "default")
}

async fn set_up_namespace(client: &kube::Client) {
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    let made = ask(client, &Case::post("make", "/api/v1/namespaces", namespace)).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let account = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default");
    let there = async || Ok(ask(client, &Case::get("account", &account)).await.code == 200);
    wait::until_true("the namespace to have its default objects", LIMIT, there).await.unwrap();
}

#[tokio::test]
async fn embedded_api_server_responds_like_kube_apiserver() {
    needs_root!();
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let stop = CancellationToken::new();
    let (real, ours) = (bed.client().await.unwrap(), embedded(stop.clone()).await);
    set_up_namespace(&real).await;
    set_up_namespace(&ours).await;
    let (mut failures, mut alike) = (Vec::new(), 0);
    for case in cases() {
        let (theirs, reply) = (ask(&real, &case).await, ask(&ours, &case).await);
        match compare(&case, &theirs, &reply) {
            None => alike += 1,
            Some(difference) => failures.push(format!("{}: {difference}", case.about)),
        }
    }
    figure(&format!("alike: {alike} of {}", alike + failures.len()));
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    stop.cancel();
    drop(real);
    bed.close().unwrap();
}
