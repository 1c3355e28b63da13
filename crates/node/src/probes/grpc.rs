//! The gRPC health check, `grpc.health.v1.Health/Check`.
//!
//! One call with one field each way, on a connection of its own. A gRPC channel would keep that
//! connection, its buffers and its tasks around for the next call; a probe wants none of it.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use podwright_core::probe::Outcome;
use podwright_core::probe::check::USER_AGENT;
use podwright_core::time::go_duration;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::http_get::{authority, connect, dial_error};

/// An answer is a few bytes; more is not a health check.
const MAX_ANSWER: usize = 4096;
const FAREWELL: Duration = Duration::from_millis(100);

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `ServingStatus`, as its names go.
fn status_name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".into(),
        1 => "SERVING".into(),
        2 => "NOT_SERVING".into(),
        3 => "SERVICE_UNKNOWN".into(),
        other => other.to_string(),
    }
}

pub(super) async fn check(address: IpAddr, port: u16, service: &str, timeout: Duration) -> Outcome {
    let place = authority(&address.to_string(), port);
    let deadline = tokio::time::Instant::now() + timeout;
    let connected = tokio::time::timeout_at(deadline, connect(&address.to_string(), port)).await;
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let text = dial_error(&address.to_string(), port, &error);
            return Outcome::Failure(format!(
                "error: failed to connect service at {place:?}: {text}"
            ));
        }
        Err(_) => {
            let within = go_duration(timeout);
            return Outcome::Failure(format!(
                "timeout: failed to connect service {place:?} within {within}: \
                 context deadline exceeded"
            ));
        }
    };
    let answer = tokio::time::timeout_at(deadline, call(stream, &place, service)).await;
    let late = || {
        let within = go_duration(timeout);
        Err(Refusal::Broken(format!("timeout: health rpc did not complete within {within}")))
    };
    match answer.unwrap_or_else(|_| late()) {
        Ok(1) => Outcome::Success,
        Ok(status) => {
            let status = status_name(status);
            Outcome::Failure(format!("service unhealthy (responded with {status:?})"))
        }
        Err(refusal) => Outcome::Failure(refusal.told()),
    }
}

/// No health status came.
enum Refusal {
    Status { code: tonic::Code, message: String },
    Broken(String),
}

impl Refusal {
    fn broken(error: &dyn std::error::Error) -> Self {
        Self::Broken(format!("error: health rpc probe failed: {}", crate::causes::chain(error)))
    }

    fn told(&self) -> String {
        match self {
            Self::Broken(text) => text.clone(),
            Self::Status { code: tonic::Code::Unimplemented, message } => format!(
                "error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): {message}"
            ),
            Self::Status { code, message } => {
                let code = match code {
                    tonic::Code::Cancelled => "Canceled".to_owned(),
                    code => format!("{code:?}"),
                };
                format!("error: health rpc probe failed: rpc error: code = {code} desc = {message}")
            }
        }
    }
}

async fn call(stream: TcpStream, place: &str, service: &str) -> Result<i32, Refusal> {
    // What the connection spawns ends with this call, whatever the other side does.
    let tasks = Arc::new(Mutex::new(JoinSet::new()));
    let handshake = http2::handshake(Within(Arc::downgrade(&tasks)), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| Refusal::broken(&error))?;
    tasks.lock().spawn(async move {
        // How it ends, the call learns itself.
        let _ = connection.await;
    });
    let request = Request::post(format!("http://{place}/grpc.health.v1.Health/Check"))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, USER_AGENT)
        .body(Full::new(frame(&HealthCheckRequest { service: service.to_owned() })))
        .map_err(|error| Refusal::broken(&error))?;
    let response = sender.send_request(request).await.map_err(|error| Refusal::broken(&error))?;
    if response.status() != StatusCode::OK {
        let message =
            format!("unexpected HTTP status code received from server: {}", response.status());
        return Err(Refusal::Status { code: tonic::Code::Unknown, message });
    }
    refusal(response.headers())?;
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|error| Refusal::broken(&*error))?;
    drop(sender);
    take_leave(&tasks).await;
    if let Some(trailers) = body.trailers() {
        refusal(trailers)?;
    }
    let message = unframe(body.to_bytes()).and_then(|m| HealthCheckResponse::decode(m).ok());
    let nonsense = || Refusal::Status {
        code: tonic::Code::Internal,
        message: "the answer is no health status".into(),
    };
    Ok(message.ok_or_else(nonsense)?.status)
}

/// Lets the connection say goodbye, so that the server does not log a broken one.
async fn take_leave(tasks: &Mutex<JoinSet<()>>) {
    let mut tasks = std::mem::take(&mut *tasks.lock());
    let gone = async { while tasks.join_next().await.is_some() {} };
    // Who does not take its leave is cut off.
    let _ = tokio::time::timeout(FAREWELL, gone).await;
}

/// The gRPC status among headers or trailers, if it is there and not OK.
fn refusal(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(code) = headers.get("grpc-status") else { return Ok(()) };
    let code = code.to_str().ok().and_then(|code| code.parse().ok()).map(tonic::Code::from_i32);
    match code.unwrap_or(tonic::Code::Unknown) {
        tonic::Code::Ok => Ok(()),
        code => {
            let message = headers.get("grpc-message").map(|m| percent_decoded(m.as_bytes()));
            Err(Refusal::Status { code, message: message.unwrap_or_default() })
        }
    }
}

fn percent_decoded(text: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.first_chunk::<2>().and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *byte == b'%') {
            Some(escaped) => {
                decoded.push(escaped);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                decoded.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// A message on the wire: a byte that says whether it is compressed, its length, itself.
fn frame(message: &HealthCheckRequest) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(5 + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    framed.put(message.encode_to_vec().as_slice());
    framed.freeze()
}

fn unframe(mut body: Bytes) -> Option<Bytes> {
    let compressed = body.try_get_u8().ok()?;
    let length = usize::try_from(body.try_get_u32().ok()?).ok()?;
    (compressed == 0 && length == body.len()).then_some(body)
}

/// Runs what a connection spawns for as long as its call lasts. Weak, or the tasks, which hold
/// this too, would keep themselves alive.
#[derive(Clone)]
struct Within(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Within {
    fn execute(&self, work: F) {
        if let Some(tasks) = self.0.upgrade() {
            tasks.lock().spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_its_frame() {
        let request = HealthCheckRequest { service: "a".into() };
        let framed = frame(&request);
        assert_eq!(HealthCheckRequest::decode(unframe(framed.clone()).unwrap()).unwrap(), request);
        for bad in [&b""[..], &b"\0\0\0\0"[..], &framed[..6], b"\x01\0\0\0\0"] {
            assert!(unframe(Bytes::copy_from_slice(bad)).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_refusal_is_told_in_upstreams_words() {
        let headers = |code: &str, message: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", code.parse().unwrap());
            headers.insert("grpc-message", message.parse().unwrap());
            headers
        };
        for (code, message, want) in [
            ("0", "", None),
            (
                "5",
                "unknown%20service%",
                Some(
                    "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service%",
                ),
            ),
            (
                "12",
                "no",
                Some(
                    "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): no",
                ),
            ),
            (
                "x",
                "no",
                Some("error: health rpc probe failed: rpc error: code = Unknown desc = no"),
            ),
        ] {
            let told = refusal(&headers(code, message)).err().map(|refusal| refusal.told());
            assert_eq!(told.as_deref(), want, "{code}");
        }
    }
}
