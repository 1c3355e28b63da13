//! Rewriting of pods on their way to the agent, as from an API server that is newer than the agent.
//!
//! The embedded server refuses unknown values, as kube-apiserver of the same version does. An agent
//! that is older than its server receives them all the same.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt;
use http::Response;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use serde_json::Value;

/// Edits a pod on its way to the agent.
pub(super) type Rewrite = Arc<dyn Fn(&mut Value) + Send + Sync>;

/// A complete response: one pod or a list.
pub(super) async fn answer(
    answer: Response<Body>,
    edit: &Rewrite,
) -> Result<Response<Body>, axum::Error> {
    let (mut parts, body) = answer.into_parts();
    let body = body.collect().await?.to_bytes();
    parts.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(parts, Body::from(edited(&body, edit))))
}

/// A streaming response: one event per line.
pub(super) fn watch(body: Body, edit: Rewrite) -> Body {
    let mut rest = Vec::new();
    let chunks = body.into_data_stream().map(move |chunk| {
        chunk.map(|chunk| {
            rest.extend_from_slice(&chunk);
            let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let lines: Vec<u8> = rest.drain(..whole).collect();
            let mut out = Vec::new();
            for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                out.extend(edited(line, &edit));
                out.push(b'\n');
            }
            Bytes::from(out)
        })
    });
    Body::from_stream(chunks)
}

fn edited(json: &[u8], edit: &Rewrite) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(json) else { return json.to_vec() };
    let event = value.get("object").is_some();
    let object = if event { &mut value["object"] } else { &mut value };
    match object["kind"].as_str() {
        Some("Pod") => edit(object),
        Some("PodList") => {
            for pod in object["items"].as_array_mut().into_iter().flatten() {
                edit(pod);
            }
        }
        Some(_) | None => {}
    }
    value.to_string().into_bytes()
}
