//! The API server's audit log: who asked for what. This is how a test counts an agent's requests.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use http::StatusCode;
use serde::Deserialize;

/// Every request once, when it is answered; a watch when it begins, because it may never end.
pub(crate) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [{ "level": "Metadata" }]
}
"#;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    pub user: String,
    pub verb: String,
    /// Empty for a request that names none, such as `/readyz`.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub uri: String,
    pub agent: String,
    pub status: StatusCode,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    response_status: Option<Response>,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Response {
    code: u16,
}

/// Forgets what was asked so far. The server appends, so it goes on writing at the new end.
pub(crate) fn forget(log: &Path) -> Result<()> {
    fs::File::create(log).map(drop).with_context(|| format!("emptying {}", log.display()))
}

pub(crate) fn read(log: &Path) -> Result<Vec<Audited>> {
    match fs::read_to_string(log) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", log.display())),
    }
}

/// One event in each line; the last line may still be in the writing.
fn parse(log: &str) -> Vec<Audited> {
    let events = log.lines().filter_map(|line| serde_json::from_str::<Event>(line).ok());
    events.filter(counts).map(Audited::from).collect()
}

/// A request that takes long is told of twice; only its beginning counts.
fn counts(event: &Event) -> bool {
    match event.stage.as_str() {
        "ResponseStarted" => true,
        "ResponseComplete" => event.verb != "watch",
        _ => false,
    }
}

impl From<Event> for Audited {
    fn from(event: Event) -> Self {
        let code = event.response_status.map_or(0, |response| response.code);
        Self {
            user: event.user.username,
            verb: event.verb,
            resource: event.object_ref.resource,
            subresource: event.object_ref.subresource,
            namespace: event.object_ref.namespace,
            name: event.object_ref.name,
            uri: event.request_uri,
            agent: event.user_agent,
            status: StatusCode::from_u16(code).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_counted_once() {
        let event = |stage: &str, verb: &str| {
            format!(
                r#"{{"stage":"{stage}","verb":"{verb}","requestURI":"/api/v1/nodes/n",
                "user":{{"username":"u"}},"responseStatus":{{"code":200}},
                "objectRef":{{"resource":"nodes","name":"n"}}}}"#
            )
            .replace('\n', " ")
        };
        for (case, log, want) in [
            ("a get", event("ResponseComplete", "get"), 1),
            ("a watch under way", event("ResponseStarted", "watch"), 1),
            (
                "a watch that ended",
                event("ResponseStarted", "watch") + "\n" + &event("ResponseComplete", "watch"),
                1,
            ),
            ("a line in the writing", event("ResponseComplete", "get") + "\n{\"sta", 1),
            ("nothing", String::new(), 0),
        ] {
            assert_eq!(parse(&log).len(), want, "{case}");
        }
    }
}
