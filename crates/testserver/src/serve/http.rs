//! HTTP pages of the test server.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use tokio::sync::watch;

use super::health::Health;

pub(super) fn router(
    page: String,
    health: Arc<Health>,
    exit: watch::Sender<Option<u8>>,
    log_requests: bool,
) -> Router {
    let router = Router::new()
        .route("/", get(|| async { page }))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/set/{kind}/{value}", post(set))
        .with_state(health)
        .route("/exit/{code}", post(request_exit).with_state(Arc::new(exit)))
        .route("/status/{code}", any(status))
        .route("/delay/{milliseconds}", any(delay))
        .route("/redirect", any(redirect))
        .route("/env", get(env))
        .route("/headers", any(headers))
        .route("/bytes/{count}", get(bytes));
    if log_requests { router.layer(middleware::from_fn(log)) } else { router }
}

async fn healthz(State(health): State<Arc<Health>>) -> (StatusCode, &'static str) {
    if health.now().live {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "not live\n")
    }
}

async fn readyz(State(health): State<Arc<Health>>) -> (StatusCode, &'static str) {
    if health.now().ready {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum HealthKind {
    Live,
    Ready,
}

async fn set(State(health): State<Arc<Health>>, Path((kind, value)): Path<(HealthKind, bool)>) {
    match kind {
        HealthKind::Live => health.set_live(value),
        HealthKind::Ready => health.set_ready(value),
    }
}

async fn request_exit(
    State(exit): State<Arc<watch::Sender<Option<u8>>>>,
    Path(code): Path<u8>,
) -> &'static str {
    exit.send_replace(Some(code));
    "goodbye\n"
}

async fn status(Path(code): Path<u16>) -> Response {
    match StatusCode::from_u16(code) {
        // Interim codes are not final responses; a client would wait for another.
        Ok(code) if !code.is_informational() => (code, format!("{code}\n")).into_response(),
        _ => (StatusCode::BAD_REQUEST, "no such status\n").into_response(),
    }
}

async fn delay(Path(milliseconds): Path<u64>) -> String {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    format!("after {milliseconds} ms\n")
}

#[derive(Deserialize)]
struct Redirect {
    to: String,
}

async fn redirect(Query(redirect): Query<Redirect>) -> impl IntoResponse {
    (StatusCode::FOUND, [(header::LOCATION, redirect.to)])
}

async fn env() -> String {
    let mut variables: Vec<_> = std::env::vars_os().collect();
    variables.sort();
    lines(
        variables
            .iter()
            .map(|(name, value)| (name.to_string_lossy(), "=", value.to_string_lossy())),
    )
}

async fn headers(headers: HeaderMap) -> String {
    lines(
        headers.iter().map(|(name, value)| (name, ": ", String::from_utf8_lossy(value.as_bytes()))),
    )
}

fn lines<N: std::fmt::Display, V: std::fmt::Display>(
    pairs: impl Iterator<Item = (N, &'static str, V)>,
) -> String {
    pairs.fold(String::new(), |mut text, (name, between, value)| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}{between}{value}");
        text
    })
}

/// This many bytes, in pieces, never all in memory.
async fn bytes(Path(count): Path<u64>) -> Body {
    const PIECE: &[u8; 4096] = &[b'x'; 4096];
    Body::from_stream(futures::stream::unfold(count, |left| async move {
        let size = usize::try_from(left).map_or(PIECE.len(), |left| left.min(PIECE.len()));
        let piece = PIECE.get(..size).filter(|piece| !piece.is_empty())?;
        Some((Ok::<_, Infallible>(Bytes::from_static(piece)), left - size as u64))
    }))
}

/// `GET /healthz 200 kube-probe/1.36`
async fn log(request: Request, next: Next) -> Response {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let agent = request.headers().get(header::USER_AGENT).cloned();
    let response = next.run(request).await;
    let agent =
        agent.as_ref().map_or("-".into(), |agent| String::from_utf8_lossy(agent.as_bytes()));
    println!("{method} {uri} {} {agent}", response.status().as_u16());
    response
}
