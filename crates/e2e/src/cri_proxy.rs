//! CRI proxy between an agent and its runtime: forwards everything, and records each call that
//! changes something, with its response.
//!
//! It forwards bytes instead of serving the CRI: the runtime serves more than the CRI on the same
//! socket, and an agent must reach all of it. Only recorded calls are decoded.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::stream;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use podwright_proto::FILE_DESCRIPTOR_SET;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The recorded calls: they change something, or run something in a container.
const RECORDED: [&str; 12] = [
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "UpdatePodSandboxResources",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "UpdateContainerResources",
    "ExecSync",
    "PullImage",
    "RemoveImage",
];

/// Length and compression flag before each gRPC message.
const PREFIX: usize = 5;

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// One call: messages are protobuf JSON with proto names, environment variables as text.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub request: Value,
    pub outcome: CallOutcome,
}

#[derive(Clone, Debug, PartialEq)]
pub enum CallOutcome {
    InProgress,
    Response(Value),
    Error(tonic::Code, String),
}

/// A proxy socket for the runtime, and the calls recorded on it.
pub struct CriProxy {
    socket: PathBuf,
    log: Arc<CallLog>,
    _listening: DropGuard,
}

struct CallLog {
    runtime: PathBuf,
    pool: DescriptorPool,
    calls: Mutex<Vec<Call>>,
}

impl CriProxy {
    /// Listens at `socket` and forwards to the runtime at `runtime`.
    pub fn start(socket: &Path, runtime: &Path) -> Result<Self> {
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("listening at {}", socket.display()))?;
        let log = Arc::new(CallLog {
            runtime: runtime.to_owned(),
            pool: DescriptorPool::decode(FILE_DESCRIPTOR_SET)?,
            calls: Mutex::default(),
        });
        let (stop, tapping) = (CancellationToken::new(), log.clone());
        let listening = stop.clone();
        tokio::spawn(async move {
            while let Some(Ok((line, _))) = listening.run_until_cancelled(listener.accept()).await {
                let (log, open) = (tapping.clone(), listening.clone());
                tokio::spawn(
                    async move { open.run_until_cancelled(proxy_connection(line, log)).await },
                );
            }
        });
        Ok(Self { socket: socket.to_owned(), log, _listening: stop.drop_guard() })
    }

    /// The value of `--container-runtime-endpoint`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Passes all calls so far, in order, to `inspect`.
    pub fn read<T>(&self, inspect: impl FnOnce(&[Call]) -> T) -> T {
        inspect(&self.log.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Serves one connection over one to the runtime; when either is closed, both are.
async fn proxy_connection(line: UnixStream, log: Arc<CallLog>) -> Result<()> {
    let runtime = UnixStream::connect(&log.runtime).await?;
    let (sender, upstream) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(runtime)).await?;
    let service = service_fn(move |request| {
        let (sender, log) = (sender.clone(), log.clone());
        async move { pass(sender, request, &log).await }
    });
    let downstream = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(line), service);
    tokio::select! {
        end = upstream => end?,
        end = downstream => end?,
    }
    Ok(())
}

async fn pass(
    mut runtime: SendRequest<Body>,
    request: Request<Incoming>,
    log: &CallLog,
) -> Result<Response<Body>, hyper::Error> {
    let Some(method) = log.method(request.uri().path()) else {
        let request = request.map(BodyExt::boxed_unsync);
        let response = runtime.send_request(request).await?;
        return Ok(response.map(BodyExt::boxed_unsync));
    };
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let place = log.record(&method, &bytes);
    let whole = Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
    let response = runtime.send_request(Request::from_parts(parts, whole)).await?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned();
    let bytes = body.to_bytes();
    log.note(place, outcome(&method.response, &parts.headers, trailers.as_ref(), &bytes));
    let data = (!bytes.is_empty()).then(|| Frame::data(bytes));
    let frames = data.into_iter().chain(trailers.map(Frame::trailers)).map(Ok::<_, hyper::Error>);
    let frames: Vec<_> = frames.collect();
    Ok(Response::from_parts(parts, StreamBody::new(stream::iter(frames)).boxed_unsync()))
}

/// A recorded method with its request and response types.
struct Method {
    method: String,
    request: MessageDescriptor,
    response: MessageDescriptor,
}

impl CallLog {
    fn method(&self, path: &str) -> Option<Method> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        if !RECORDED.contains(&method) {
            return None;
        }
        let service = self.pool.get_service_by_name(service)?;
        let found = service.methods().find(|found| found.name() == method)?;
        let (request, response) = (found.input(), found.output());
        Some(Method { method: method.to_owned(), request, response })
    }

    fn record(&self, method: &Method, bytes: &[u8]) -> usize {
        let request = decoded(&method.request, bytes);
        let call =
            Call { method: method.method.clone(), request, outcome: CallOutcome::InProgress };
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(call);
        calls.len() - 1
    }

    fn note(&self, place: usize, outcome: CallOutcome) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(call) = calls.get_mut(place) {
            call.outcome = outcome;
        }
    }
}

fn outcome(
    response: &MessageDescriptor,
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    bytes: &[u8],
) -> CallOutcome {
    // A response with an error and no message has its status in the headers.
    let status = trailers.and_then(tonic::Status::from_header_map);
    let status = status.or_else(|| tonic::Status::from_header_map(headers));
    match status {
        Some(status) if status.code() != tonic::Code::Ok => {
            CallOutcome::Error(status.code(), status.message().to_owned())
        }
        Some(_) | None => CallOutcome::Response(decoded(response, bytes)),
    }
}

/// The message of one gRPC frame as JSON, or an error text if it cannot be decoded.
fn decoded(kind: &MessageDescriptor, frame: &[u8]) -> Value {
    let message = frame.get(PREFIX..).unwrap_or_default();
    let options = SerializeOptions::new().use_proto_field_name(true);
    let json = DynamicMessage::decode(kind.clone(), message)
        .map_err(anyhow::Error::from)
        .and_then(|m| Ok(m.serialize_with_options(serde_json::value::Serializer, &options)?));
    match json {
        Ok(mut json) => {
            show_variables(&mut json);
            json
        }
        Err(error) => Value::String(format!("not a {}: {error}", kind.full_name())),
    }
}

/// Values of environment variables are bytes, which JSON shows as base64; nearly all are text.
fn show_variables(request: &mut Value) {
    let envs = request.pointer_mut("/config/envs").and_then(Value::as_array_mut);
    for env in envs.into_iter().flatten() {
        let Some(value) = env.get_mut("value") else { continue };
        let bytes = value.as_str().and_then(|text| STANDARD.decode(text).ok());
        if let Some(bytes) = bytes {
            *value = Value::String(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn frame_is_decoded_to_proto_names_with_readable_variables() {
        let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
        let kind = pool.get_message_by_name("runtime.v1.CreateContainerRequest").unwrap();
        let reported = json!({
            "pod_sandbox_id": "s1",
            "config": { "metadata": { "name": "c" }, "envs": [{ "key": "A", "value": "Yg==" }] },
        });
        let message = DynamicMessage::deserialize(kind.clone(), &reported).unwrap();
        let mut frame = vec![0; PREFIX];
        frame.extend(prost_reflect::prost::Message::encode_to_vec(&message));
        let shown = decoded(&kind, &frame);
        assert_eq!(shown["config"]["envs"][0]["value"], "b");
        assert_eq!(shown["pod_sandbox_id"], "s1");
        assert!(decoded(&kind, b"\0\0\0\0\x01\xff").is_string(), "an invalid frame is reported");
    }

    #[test]
    fn only_mutating_calls_are_recorded() {
        let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
        let log = CallLog { runtime: PathBuf::new(), pool, calls: Mutex::default() };
        for (path, want) in [
            ("/runtime.v1.RuntimeService/StopContainer", true),
            ("/runtime.v1.ImageService/PullImage", true),
            ("/runtime.v1.RuntimeService/ListContainers", false),
            ("/containerd.services.events.v1.Events/Subscribe", false),
            ("/nonsense", false),
        ] {
            assert_eq!(log.method(path).is_some(), want, "{path}");
        }
    }
}
