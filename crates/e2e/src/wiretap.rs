//! A tap on the line between an agent and its runtime: everything passes, and each call that
//! changes something is written down, with its answer.
//!
//! Why bytes and not a server of CRI: the runtime serves more on the same socket than CRI, and an
//! agent must find all of it. Only what is written down is decoded.

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

/// The calls that are written down: they change something, or run something in a container.
const TAPPED: [&str; 12] = [
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

/// One call: messages are protobuf JSON with proto names, variables as text.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub request: Value,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    UnderWay,
    Answer(Value),
    Refusal(tonic::Code, String),
}

/// A socket that leads to the runtime, and what was said through it.
pub struct Wiretap {
    socket: PathBuf,
    book: Arc<Book>,
    _listening: DropGuard,
}

struct Book {
    runtime: PathBuf,
    pool: DescriptorPool,
    calls: Mutex<Vec<Call>>,
}

impl Wiretap {
    /// Listens at `socket` for whoever would talk to the runtime at `runtime`.
    pub fn start(socket: &Path, runtime: &Path) -> Result<Self> {
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("listening at {}", socket.display()))?;
        let book = Arc::new(Book {
            runtime: runtime.to_owned(),
            pool: DescriptorPool::decode(FILE_DESCRIPTOR_SET)?,
            calls: Mutex::default(),
        });
        let (stop, tapping) = (CancellationToken::new(), book.clone());
        let listening = stop.clone();
        tokio::spawn(async move {
            while let Some(Ok((line, _))) = listening.run_until_cancelled(listener.accept()).await {
                let (book, open) = (tapping.clone(), listening.clone());
                tokio::spawn(async move { open.run_until_cancelled(pass_line(line, book)).await });
            }
        });
        Ok(Self { socket: socket.to_owned(), book, _listening: stop.drop_guard() })
    }

    /// What `--container-runtime-endpoint` takes.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Shows every call so far, in the order in which they were made.
    pub fn read<T>(&self, look: impl FnOnce(&[Call]) -> T) -> T {
        look(&self.book.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Serves one connection over one to the runtime; when either ends, both do.
async fn pass_line(line: UnixStream, book: Arc<Book>) -> Result<()> {
    let runtime = UnixStream::connect(&book.runtime).await?;
    let (sender, upstream) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(runtime)).await?;
    let service = service_fn(move |request| {
        let (sender, book) = (sender.clone(), book.clone());
        async move { pass(sender, request, &book).await }
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
    book: &Book,
) -> Result<Response<Body>, hyper::Error> {
    let Some(spoken) = book.spoken(request.uri().path()) else {
        let request = request.map(BodyExt::boxed_unsync);
        let answer = runtime.send_request(request).await?;
        return Ok(answer.map(BodyExt::boxed_unsync));
    };
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let place = book.write_down(&spoken, &bytes);
    let whole = Full::new(bytes).map_err(|never| match never {}).boxed_unsync();
    let answer = runtime.send_request(Request::from_parts(parts, whole)).await?;
    let (parts, body) = answer.into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned();
    let bytes = body.to_bytes();
    book.note(place, outcome(&spoken.answer, &parts.headers, trailers.as_ref(), &bytes));
    let data = (!bytes.is_empty()).then(|| Frame::data(bytes));
    let frames = data.into_iter().chain(trailers.map(Frame::trailers)).map(Ok::<_, hyper::Error>);
    let frames: Vec<_> = frames.collect();
    Ok(Response::from_parts(parts, StreamBody::new(stream::iter(frames)).boxed_unsync()))
}

/// A method whose calls are written down, and what it is asked and answers.
struct Spoken {
    method: String,
    request: MessageDescriptor,
    answer: MessageDescriptor,
}

impl Book {
    fn spoken(&self, path: &str) -> Option<Spoken> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        if !TAPPED.contains(&method) {
            return None;
        }
        let service = self.pool.get_service_by_name(service)?;
        let found = service.methods().find(|found| found.name() == method)?;
        let (request, answer) = (found.input(), found.output());
        Some(Spoken { method: method.to_owned(), request, answer })
    }

    fn write_down(&self, spoken: &Spoken, bytes: &[u8]) -> usize {
        let request = decoded(&spoken.request, bytes);
        let call = Call { method: spoken.method.clone(), request, outcome: Outcome::UnderWay };
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(call);
        calls.len() - 1
    }

    fn note(&self, place: usize, outcome: Outcome) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(call) = calls.get_mut(place) {
            call.outcome = outcome;
        }
    }
}

fn outcome(
    answer: &MessageDescriptor,
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    bytes: &[u8],
) -> Outcome {
    // A refusal without an answer has its status where the headers are.
    let status = trailers.and_then(tonic::Status::from_header_map);
    let status = status.or_else(|| tonic::Status::from_header_map(headers));
    match status {
        Some(status) if status.code() != tonic::Code::Ok => {
            Outcome::Refusal(status.code(), status.message().to_owned())
        }
        Some(_) | None => Outcome::Answer(decoded(answer, bytes)),
    }
}

/// The message in one gRPC frame as JSON; a text saying so if it is none.
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

/// The values of variables are bytes, which JSON shows as base64; nearly always they are text.
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
    fn a_frame_is_told_in_proto_names_with_readable_variables() {
        let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
        let kind = pool.get_message_by_name("runtime.v1.CreateContainerRequest").unwrap();
        let told = json!({
            "pod_sandbox_id": "s1",
            "config": { "metadata": { "name": "c" }, "envs": [{ "key": "A", "value": "Yg==" }] },
        });
        let message = DynamicMessage::deserialize(kind.clone(), &told).unwrap();
        let mut frame = vec![0; PREFIX];
        frame.extend(prost_reflect::prost::Message::encode_to_vec(&message));
        let shown = decoded(&kind, &frame);
        assert_eq!(shown["config"]["envs"][0]["value"], "b");
        assert_eq!(shown["pod_sandbox_id"], "s1");
        assert!(decoded(&kind, b"\0\0\0\0\x01\xff").is_string(), "nonsense is told as such");
    }

    #[test]
    fn only_writing_calls_are_written_down() {
        let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
        let book = Book { runtime: PathBuf::new(), pool, calls: Mutex::default() };
        for (path, want) in [
            ("/runtime.v1.RuntimeService/StopContainer", true),
            ("/runtime.v1.ImageService/PullImage", true),
            ("/runtime.v1.RuntimeService/ListContainers", false),
            ("/containerd.services.events.v1.Events/Subscribe", false),
            ("/nonsense", false),
        ] {
            assert_eq!(book.spoken(path).is_some(), want, "{path}");
        }
    }
}
