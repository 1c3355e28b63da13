//! Recorded responses of kube-apiserver, replayed: the same requests in the same order must get the
//! same responses, normalised the same way.
//!
//! The recordings are in the directory that `PODWRIGHT_GOLDEN` names; without it nothing is
//! compared, and the test says so. Known and intended differences are in one table with their
//! reason: a failing case that is not listed fails the test, and so does a listed case that passes.
use std::collections::BTreeMap;

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt as _;
use podwright_apiserver::registry::RESOURCES;
use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};
use podwright_testkit::report;
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// File, case, reason for the difference.
const OPEN: &[(&str, &str, &str)] = &[("discovery", "/api/v1", "services are read-only here")];

/// Cases whose field managers are not compared.
const OTHER_MANAGERS: [&str; 3] = [
    "node table",              // its Node was not created by the kubelet here
    "token review of garbage", // what is not stored is not tracked here
    "can I",
];

/// In the order of recording: each builds on the state that the earlier ones left.
const FILES: [&str; 7] =
    ["discovery", "pod-defaults", "pod-invalid", "pod-update", "list-watch", "delete", "others"];

#[tokio::test(start_paused = true)]
async fn responses_match_the_recording() {
    let Some(directory) = report::recordings() else { return };
    let mut replay = Replay::start().await;
    let (mut matched, mut total) = (0, 0);
    let mut failures = Vec::new();
    for file in FILES {
        replay.set_up(file, &directory).await;
        let text = std::fs::read_to_string(directory.join(format!("api/{file}.json"))).unwrap();
        let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
        for case in cases {
            let about = case["about"].as_str().unwrap().to_owned();
            let open = OPEN.iter().find(|(f, a, _)| *f == file && *a == about);
            let difference = replay.play(file, &case).await;
            total += 1;
            match (open, difference) {
                (None, None) => matched += 1,
                (Some(_), Some(_)) => {}
                (None, Some(difference)) => failures.push(format!("{file}: {about}: {difference}")),
                (Some((_, _, why)), None) => {
                    failures
                        .push(format!("{file}: {about}: matches, though listed as open ({why})"));
                }
            }
        }
    }
    report::golden("api", matched, total);
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n\n"));
}

struct Replay {
    server: ApiServer,
    /// Our response to the creation of the pod that a stale client later sends back.
    first_small: Value,
}

impl Replay {
    async fn start() -> Self {
        let clock = Clock::system();
        let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
        let server = ApiServer::start(store, Settings::new(clock, Ids::seeded(1))).await.unwrap();
        let replay = Self { server, first_small: Value::Null };
        replay.must("POST", "/api/v1/namespaces", json!({"metadata": {"name": "apigold"}})).await;
        replay
    }

    /// Creates objects whose creation is not in the recording.
    async fn set_up(&self, file: &str, directory: &std::path::Path) {
        let ns = "/api/v1/namespaces/apigold";
        match file {
            "list-watch" => {
                for i in 0..5 {
                    let map = json!({"metadata": {"name": format!("l{i}"), "labels": {"i": i.to_string()}},
                        "data": {"k": i.to_string()}});
                    self.must("POST", &format!("{ns}/configmaps"), map).await;
                }
                let node = std::fs::read_to_string(directory.join("node.json")).unwrap();
                let mut node: Value =
                    serde_json::from_str(&node.replace("<time>", "2024-01-01T00:00:00Z")).unwrap();
                for field in ["resourceVersion", "uid", "managedFields", "creationTimestamp"] {
                    node["metadata"].as_object_mut().unwrap().remove(field);
                }
                self.must("POST", "/api/v1/nodes", node).await;
            }
            "delete" => {
                let pod = json!({"metadata": {"name": "d1"}, "spec": {"schedulerName": "none", "nodeName": "elsewhere",
                    "containers": [{"name": "c", "image": "busybox"}]}});
                self.must("POST", &format!("{ns}/pods"), pod).await;
                let held = json!({"metadata": {"name": "fin", "finalizers": ["x.example/y"]}});
                self.must("POST", &format!("{ns}/configmaps"), held).await;
                let binding = json!({"metadata": {"name": "small"}, "target": {"kind": "Node", "name": "elsewhere"}});
                self.must("POST", &format!("{ns}/pods/small/binding"), binding).await;
            }
            _ => {}
        }
    }

    async fn must(&self, method: &str, path: &str, body: Value) {
        let (status, response) = self.send(method, path, &BTreeMap::new(), body.to_string()).await;
        assert!(status < 300, "set-up {method} {path}: {status} {response}");
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &BTreeMap<String, String>,
        body: String,
    ) -> (u16, String) {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.contains_key("Content-Type") {
            request = request.header("Content-Type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(body)).unwrap();
        let service = self.server.service(Identity::admin());
        let response = service.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// The difference between our response and the recorded one, if any.
    async fn play(&mut self, file: &str, case: &Value) -> Option<String> {
        let method = case["method"].as_str().unwrap();
        let path = case["path"].as_str().unwrap();
        let headers: BTreeMap<String, String> =
            serde_json::from_value(case.get("headers").cloned().unwrap_or(json!({}))).unwrap();
        let about = case["about"].as_str().unwrap();
        let body = match &case["body"] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            _ if about == "stale update" => self.first_small.to_string(),
            body => body.to_string().replace("<uid>", "00000000-0000-4000-8000-000000000000"),
        };
        if about == "ephemeral container" {
            // The recording leaves out the request that removed the condition again.
            let gone = json!({"status": {"conditions": [{"type": "x/y", "$patch": "delete"}]}});
            let kind = "application/strategic-merge-patch+json".to_owned();
            let headers = [("Content-Type".to_owned(), kind)].into();
            let path = "/api/v1/namespaces/apigold/pods/small/status";
            let (status, response) = self.send("PATCH", path, &headers, gone.to_string()).await;
            assert_eq!(status, 200, "{response}");
        }
        let (status, text) = self.send(method, path, &headers, body).await;
        if about == "the smallest pod" {
            self.first_small = serde_json::from_str(&text).unwrap();
        }
        let mut wanted = scrub(expected(file, case));
        let found = match &case["answer"] {
            Value::String(_) if path.contains("watch=1") => watched(&text),
            Value::String(_) => Value::String(text),
            _ => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        };
        let mut found = only_served(file, path, scrub(found));
        if OTHER_MANAGERS.contains(&about) {
            drop_managers(&mut wanted);
            drop_managers(&mut found);
        }
        if json!(status) != case["status"] {
            return Some(format!("status {status} instead of {}: {found}", case["status"]));
        }
        let found = match (&wanted, found) {
            // The recording of a watch ends in the middle of a line.
            (Value::Array(wanted), Value::Array(found)) if path.contains("watch=1") => {
                Value::Array(found.into_iter().take(wanted.len()).collect())
            }
            (_, found) => found,
        };
        let mut differences = Vec::new();
        compare("", &wanted, &found, &mut differences);
        (!differences.is_empty()).then(|| differences.join("\n    "))
    }
}

/// Discovery of what both serve. Kinds that are not served have no verbs here.
fn only_served(file: &str, path: &str, mut response: Value) -> Value {
    if file == "discovery" {
        if let Some(groups) = response.get_mut("groups").and_then(Value::as_array_mut) {
            // metrics-server serves resource metrics, not kube-apiserver.
            let served = RESOURCES.iter().filter(|r| r.group != "metrics.k8s.io");
            groups.retain(|group| served.clone().any(|r| group["name"] == r.group));
        }
        let resources = response.get_mut("resources").and_then(Value::as_array_mut);
        if let Some(resources) = resources {
            resources.retain(|entry| {
                let name = entry["name"].as_str().unwrap();
                let (plural, sub) = name.split_once('/').unwrap_or((name, ""));
                RESOURCES.iter().any(|r| {
                    r.plural == plural
                        && r.group.is_empty() == (path == "/api/v1")
                        && (sub.is_empty() || r.subresource(sub).is_some())
                })
            });
        }
    }
    response
}

/// The recorded response without what is not served here.
fn expected(file: &str, case: &Value) -> Value {
    let mut response = case["answer"].clone();
    let path = case["path"].as_str().unwrap();
    if path.contains("watch=1") {
        return watched(response.as_str().unwrap());
    }
    response = only_served(file, path, response);
    if path == "/version" {
        for field in [
            "gitVersion",
            "gitCommit",
            "goVersion",
            "compiler",
            "platform",
            "buildDate",
            "gitTreeState",
        ] {
            response[field] = json!("<build>");
        }
    }
    response
}

/// The complete lines of a watch.
fn watched(text: &str) -> Value {
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    Value::Array(lines.map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Replaces what differs between runs.
fn scrub(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .filter_map(|(key, value)| match key.as_str() {
                    "managedFields" => Some((key, of_clients(value)?)),
                    _ => Some((key, value)),
                })
                .map(|(key, value)| {
                    let value = match key.as_str() {
                        "resourceVersion" => json!("<rv>"),
                        "continue" => json!("<token>"),
                        "ca.crt" => json!("<certificate>"),
                        "serverAddress" => json!("<address>"),
                        "gitVersion" | "gitCommit" | "goVersion" | "compiler" | "platform"
                        | "buildDate" | "gitTreeState" => json!("<build>"),
                        "name" if value.as_str().is_some_and(|name| name.starts_with("gen-")) => {
                            json!("<generated>")
                        }
                        "cells" => scrub_cells(value),
                        _ => scrub(value),
                    };
                    (key, value)
                })
                .collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(scrub).collect()),
        Value::String(text) => Value::String(scrub_text(&text)),
        other => other,
    }
}

/// Without the managers that are components of a control plane, sorted by name.
fn of_clients(mut managers: Value) -> Option<Value> {
    let list = managers.as_array_mut()?;
    list.retain(|entry| entry["manager"] != "kube-controller-manager");
    // Their order follows from the second in which each wrote.
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    list.sort_by_key(|entry| ["operation", "manager", "subresource"].map(|name| text(entry, name)));
    (!list.is_empty()).then_some(managers)
}

fn drop_managers(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("managedFields");
            map.values_mut().for_each(drop_managers);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_managers),
        _ => {}
    }
}

/// Ages depend on the time of the recording.
fn scrub_cells(cells: Value) -> Value {
    let Value::Array(cells) = cells else { return cells };
    let is_age = |text: &str| {
        let digits = text.trim_end_matches(['s', 'm', 'h', 'd']);
        text.ends_with(['s', 'm', 'h', 'd'])
            && digits.chars().all(|c| c.is_ascii_digit() || "mhd".contains(c))
    };
    cells
        .into_iter()
        .map(|cell| match cell {
            Value::String(text) if is_age(&text) => json!("<dur>"),
            other => scrub(other),
        })
        .collect()
}

fn scrub_text(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = uid_at(rest) {
            out.push_str("<uid>");
            rest = after;
        } else if let Some(after) = time_at(rest) {
            out.push_str("<time>");
            rest = after;
        } else if let Some(after) = rest.strip_prefix("kube-api-access-").and_then(|r| r.get(5..)) {
            out.push_str("kube-api-access-<rand>");
            rest = after.strip_prefix('>').unwrap_or(after); // the recording's own placeholder is longer
        } else if let Some(after) = rest.strip_prefix("current: ") {
            out.push_str("current: <rv>");
            rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        } else {
            let mut chars = rest.chars();
            out.extend(chars.next());
            rest = chars.as_str();
        }
    }
    out
}

fn uid_at(text: &str) -> Option<&str> {
    let (uid, after) = text.split_at_checked(36)?;
    let shaped = uid.chars().enumerate().all(|(at, c)| match at {
        8 | 13 | 18 | 23 => c == '-',
        _ => c.is_ascii_hexdigit(),
    });
    shaped.then_some(after)
}

fn time_at(text: &str) -> Option<&str> {
    let (time, after) = text.split_at_checked(20)?;
    time.parse::<jiff::Timestamp>().is_ok().then_some(after)
}

fn compare(path: &str, wanted: &Value, found: &Value, differences: &mut Vec<String>) {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            for key in wanted.keys().chain(found.keys().filter(|key| !wanted.contains_key(*key))) {
                let below = format!("{path}.{key}");
                match (wanted.get(key), found.get(key)) {
                    (Some(wanted), Some(found)) => compare(&below, wanted, found, differences),
                    (Some(wanted), None) => {
                        differences.push(format!("{below}: missing, recorded {wanted}"));
                    }
                    (None, Some(found)) => {
                        differences.push(format!("{below}: not recorded, found {found}"));
                    }
                    (None, None) => {}
                }
            }
        }
        (Value::Array(wanted), Value::Array(found)) => {
            if wanted.len() != found.len() {
                differences.push(format!(
                    "{path}: {} entries, recorded {}",
                    found.len(),
                    wanted.len()
                ));
            }
            for (at, (wanted, found)) in wanted.iter().zip(found).enumerate() {
                compare(&format!("{path}[{at}]"), wanted, found, differences);
            }
        }
        (wanted, found) if wanted != found => {
            differences.push(format!("{path}: found {found}\n      recorded {wanted}"));
        }
        _ => {}
    }
}
