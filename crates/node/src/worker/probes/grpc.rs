//! gRPC health check, `grpc.health.v1.Health/Check`.
//!
//! One call with one field each way, on its own connection. A gRPC channel would keep the
//! connection, its buffers and its tasks for the next call, which a probe does not need.

use std::net::IpAddr;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;
use podwright_core::probe::ProbeOutcome;
use podwright_core::probe::check::USER_AGENT;
use podwright_core::time::go_duration;
use prost::Message;
use tokio::net::TcpStream;

use crate::client::connection_tasks::ConnectionTasks;
use crate::client::http_get::{authority, connect, dial_error};

/// A response is a few bytes; more is not a health check.
const MAX_RESPONSE: usize = 4096;

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

/// The name of a `ServingStatus`.
fn status_name(status: i32) -> String {
    match status {
        0 => "UNKNOWN".into(),
        1 => "SERVING".into(),
        2 => "NOT_SERVING".into(),
        3 => "SERVICE_UNKNOWN".into(),
        other => other.to_string(),
    }
}

pub(super) async fn check(
    address: IpAddr,
    port: u16,
    service: &str,
    timeout: Duration,
) -> ProbeOutcome {
    let target = authority(&address.to_string(), port);
    let deadline = tokio::time::Instant::now() + timeout;
    let connected = tokio::time::timeout_at(deadline, connect(&address.to_string(), port)).await;
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let text = dial_error(&address.to_string(), port, &error);
            return ProbeOutcome::Failure(format!(
                "error: failed to connect service at {target:?}: {text}"
            ));
        }
        Err(_) => {
            let within = go_duration(timeout);
            return ProbeOutcome::Failure(format!(
                "timeout: failed to connect service {target:?} within {within}: \
                 context deadline exceeded"
            ));
        }
    };
    let response = tokio::time::timeout_at(deadline, call(stream, &target, service)).await;
    let late = || {
        let within = go_duration(timeout);
        Err(CallError::Broken(format!("timeout: health rpc did not complete within {within}")))
    };
    match response.unwrap_or_else(|_| late()) {
        Ok(1) => ProbeOutcome::Success,
        Ok(status) => {
            let status = status_name(status);
            ProbeOutcome::Failure(format!("service unhealthy (responded with {status:?})"))
        }
        Err(error) => ProbeOutcome::Failure(error.text()),
    }
}

/// The call returned no health status.
enum CallError {
    Status { code: tonic::Code, message: String },
    Broken(String),
}

impl CallError {
    fn broken(error: &dyn std::error::Error) -> Self {
        Self::Broken(format!(
            "error: health rpc probe failed: {}",
            crate::error_chain::chain(error)
        ))
    }

    fn text(&self) -> String {
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

async fn call(stream: TcpStream, target: &str, service: &str) -> Result<i32, CallError> {
    let tasks = ConnectionTasks::default();
    let handshake = http2::handshake(tasks.executor(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| CallError::broken(&error))?;
    tasks.spawn(async move {
        // An error of the connection also fails the call.
        let _ = connection.await;
    });
    let request = Request::post(format!("http://{target}/grpc.health.v1.Health/Check"))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, USER_AGENT)
        .body(Full::new(frame(&HealthCheckRequest { service: service.to_owned() })))
        .map_err(|error| CallError::broken(&error))?;
    let response = sender.send_request(request).await.map_err(|error| CallError::broken(&error))?;
    if response.status() != StatusCode::OK {
        let message =
            format!("unexpected HTTP status code received from server: {}", response.status());
        return Err(CallError::Status { code: tonic::Code::Unknown, message });
    }
    grpc_status(response.headers())?;
    let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
    let body = body.map_err(|error| CallError::broken(&*error))?;
    drop(sender);
    tasks.close().await;
    if let Some(trailers) = body.trailers() {
        grpc_status(trailers)?;
    }
    let message = unframe(body.to_bytes()).and_then(|m| HealthCheckResponse::decode(m).ok());
    let invalid = || CallError::Status {
        code: tonic::Code::Internal,
        message: "the response is not a health status".into(),
    };
    Ok(message.ok_or_else(invalid)?.status)
}

/// An error if the headers or trailers have a gRPC status other than OK.
fn grpc_status(headers: &HeaderMap) -> Result<(), CallError> {
    let Some(code) = headers.get("grpc-status") else { return Ok(()) };
    let code = code.to_str().ok().and_then(|code| code.parse().ok()).map(tonic::Code::from_i32);
    match code.unwrap_or(tonic::Code::Unknown) {
        tonic::Code::Ok => Ok(()),
        code => {
            let message = headers.get("grpc-message").map(|m| percent_decoded(m.as_bytes()));
            Err(CallError::Status { code, message: message.unwrap_or_default() })
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

/// A message on the wire: compression flag, length, content.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_survives_framing() {
        let request = HealthCheckRequest { service: "a".into() };
        let framed = frame(&request);
        assert_eq!(HealthCheckRequest::decode(unframe(framed.clone()).unwrap()).unwrap(), request);
        for bad in [&b""[..], &b"\0\0\0\0"[..], &framed[..6], b"\x01\0\0\0\0"] {
            assert!(unframe(Bytes::copy_from_slice(bad)).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn call_errors_have_upstreams_text() {
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
            let text = grpc_status(&headers(code, message)).err().map(|error| error.text());
            assert_eq!(text.as_deref(), want, "{code}");
        }
    }
}
