//! gRPC health check, `grpc.health.v1.Health/Check`, over the same HTTP server.
//!
//! Written without a gRPC library: one call with one field each way is a framed message and a
//! trailer, and a test server that shares no code with the client under test cannot share its bugs.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;

use super::health::Health;

pub(super) fn router(health: Arc<Health>) -> Router {
    Router::new()
        .route("/grpc.health.v1.Health/Check", post(check))
        .with_state(health)
        .fallback(|| async { failure(Status::Unimplemented, "this server only answers Check") })
}

/// The gRPC status codes used here.
#[derive(Clone, Copy)]
enum Status {
    Ok = 0,
    InvalidArgument = 3,
    NotFound = 5,
    Unimplemented = 12,
}

#[derive(prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(prost::Message)]
struct HealthCheckResponse {
    /// An enumeration; see the two constants.
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

/// The empty service name and `liveness` report liveness, `readiness` reports readiness; other
/// names are unknown.
async fn check(State(health): State<Arc<Health>>, body: Bytes) -> Response {
    let Some(Ok(request)) = unframe(body).map(HealthCheckRequest::decode) else {
        return failure(Status::InvalidArgument, "not a health request");
    };
    let verdicts = health.now();
    let serving = match request.service.as_str() {
        "" | "liveness" => verdicts.live,
        "readiness" => verdicts.ready,
        _ => return failure(Status::NotFound, "unknown service"),
    };
    let status = if serving { SERVING } else { NOT_SERVING };
    let reply = frame(&HealthCheckResponse { status });
    let trailers = async { Some(Ok(status_headers(Status::Ok))) };
    grpc(Body::new(Full::new(reply).with_trailers(trailers)))
}

/// A message on the wire: compression flag, length, payload.
fn unframe(mut body: Bytes) -> Option<Bytes> {
    let compressed = body.try_get_u8().ok()?;
    let length = usize::try_from(body.try_get_u32().ok()?).ok()?;
    (compressed == 0 && length == body.len()).then_some(body)
}

fn frame(message: &HealthCheckResponse) -> Bytes {
    let message = message.encode_to_vec();
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put(message.as_slice());
    framed.freeze()
}

/// A response without a message has its status in the headers.
fn failure(status: Status, message: &'static str) -> Response {
    let mut response = grpc(Body::empty());
    response.headers_mut().extend(status_headers(status));
    response.headers_mut().insert("grpc-message", HeaderValue::from_static(message));
    response
}

fn grpc(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn status_headers(status: Status) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from(status as u16));
    headers
}
