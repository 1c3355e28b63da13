//! Audit log of the API server, with which a test counts an agent's requests.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use http::StatusCode;
use serde::Deserialize;

/// Logs each request once, on completion; a watch is logged when it starts, because it may never
/// complete.
pub(crate) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [{ "level": "Metadata" }]
}
"#;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedRequest {
    pub user: String,
    pub verb: String,
    /// Empty for a request without a resource, such as `/readyz`.
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

/// Truncates the log. The server opened it for appending and continues at the new end.
pub(crate) fn truncate(log: &Path) -> Result<()> {
    fs::File::create(log).map(drop).with_context(|| format!("emptying {}", log.display()))
}

pub(crate) fn read(log: &Path) -> Result<Vec<AuditedRequest>> {
    match fs::read_to_string(log) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", log.display())),
    }
}

/// One event per line; the last line may be incomplete.
fn parse(log: &str) -> Vec<AuditedRequest> {
    let events = log.lines().filter_map(|line| serde_json::from_str::<Event>(line).ok());
    events.filter(is_counted).map(AuditedRequest::from).collect()
}

/// A long-running request is logged twice; only its start counts.
fn is_counted(event: &Event) -> bool {
    match event.stage.as_str() {
        "ResponseStarted" => true,
        "ResponseComplete" => event.verb != "watch",
        _ => false,
    }
}

impl From<Event> for AuditedRequest {
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
            ("an open watch", event("ResponseStarted", "watch"), 1),
            (
                "a closed watch",
                event("ResponseStarted", "watch") + "\n" + &event("ResponseComplete", "watch"),
                1,
            ),
            ("an incomplete line", event("ResponseComplete", "get") + "\n{\"sta", 1),
            ("nothing", String::new(), 0),
        ] {
            assert_eq!(parse(&log).len(), want, "{case}");
        }
    }
}
