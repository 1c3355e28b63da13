//! Streaming endpoints: exec, attach and port-forward.
//!
//! The streaming server of the runtime, on loopback, implements the protocol (SPDY or WebSocket, its
//! channels, terminals and exit codes). This module gets a URL from the CRI, repeats the client's
//! request there, and then copies bytes in both directions. Each direction has one small buffer and
//! reads only after the other side took what was read, so a slow reader applies back pressure. The
//! first side that closes ends both.

mod options;
mod relay;
mod upgrade;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use hyper::upgrade::OnUpgrade;
use podwright_core::ids::{ContainerId, PodName};
use podwright_core::pod::Pod;
use podwright_cri as cri;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::query::Query;
use super::response::{HttpResponse, plain_text};
use super::route::Target;
use crate::pods::PodIndex;
use crate::runtime::pleg::{Inspector, Pleg};
use upgrade::Handover;

/// `Retry-After` when the runtime reports resource exhaustion.
const RETRY_SECONDS: &str = "60";

/// The components of the node that the streaming endpoints use.
#[derive(Clone)]
pub struct StreamingDependencies {
    pub runtime: cri::Client,
    pub pleg: Arc<Pleg>,
    pub pod_index: Arc<PodIndex>,
}

pub(super) struct Streaming {
    pub(super) dependencies: StreamingDependencies,
    /// Idle timeout of a stream; `None`: no timeout.
    pub(super) idle: Option<Duration>,
    /// Open streams.
    pub(super) open_streams: TaskTracker,
    /// Ends all streams.
    pub(super) abort: CancellationToken,
}

/// The parts of a request that streaming needs.
pub(super) struct StreamRequest {
    headers: HeaderMap,
    method: http::Method,
    query: Query,
    upgrade: Option<OnUpgrade>,
}

impl StreamRequest {
    pub(super) fn of<B>(request: &mut Request<B>) -> Self {
        Self {
            headers: request.headers().clone(),
            method: request.method().clone(),
            query: Query::of(request.uri()),
            // Also set by the embedded API server, which passes its client's upgrade on.
            upgrade: request.extensions_mut().remove::<OnUpgrade>(),
        }
    }
}

impl Streaming {
    pub(super) async fn exec(
        &self,
        target: &Target,
        stream_request: StreamRequest,
    ) -> HttpResponse {
        let streams = match options::streams(&stream_request.query) {
            Ok(streams) => streams,
            Err(problem) => return plain_text(StatusCode::BAD_REQUEST, problem),
        };
        let Some(pod) = self.pod(&target.pod) else { return no_such_pod() };
        let Some(id) = self.running(&pod, &target.container).await else {
            return not_running(&target.container);
        };
        let command = stream_request.query.all("command").map(str::to_owned).collect();
        let url = self.dependencies.runtime.exec_url(&id, command, streams).await;
        self.hand_over(url, stream_request, options::Purpose::Process).await
    }

    pub(super) async fn attach(
        &self,
        target: &Target,
        stream_request: StreamRequest,
    ) -> HttpResponse {
        let streams = match options::streams(&stream_request.query) {
            Ok(streams) => streams,
            Err(problem) => return plain_text(StatusCode::BAD_REQUEST, problem),
        };
        let Some(pod) = self.pod(&target.pod) else { return no_such_pod() };
        if !self.is_meant(&pod, target.uid.as_deref()) {
            let name = format!("{}_{}", pod.name.name, pod.name.namespace);
            return plain_text(StatusCode::INTERNAL_SERVER_ERROR, format!("pod {name} not found"));
        }
        let Some(id) = self.running(&pod, &target.container).await else {
            return not_running(&target.container);
        };
        // Whether there is a terminal is a property of the running process, not of the attach request.
        let tty = options::has_terminal(&pod.object, &target.container);
        let streams = cri::Streams { tty, stderr: streams.stderr && !tty, ..streams };
        let url = self.dependencies.runtime.attach_url(&id, streams).await;
        self.hand_over(url, stream_request, options::Purpose::Process).await
    }

    pub(super) async fn port_forward(
        &self,
        name: &PodName,
        uid: Option<&str>,
        stream_request: StreamRequest,
    ) -> HttpResponse {
        let ports = match options::ports(&stream_request.headers, &stream_request.query) {
            Ok(ports) => ports,
            Err(problem) => return plain_text(StatusCode::BAD_REQUEST, problem),
        };
        let Some(pod) = self.pod(name) else { return no_such_pod() };
        if !self.is_meant(&pod, uid) {
            return plain_text(StatusCode::NOT_FOUND, "pod not found");
        }
        let seen = self.dependencies.pleg.inspect_for(Inspector::Other, &pod.uid, &pod.name).await;
        let sandbox = match &seen {
            Ok(seen) => seen.ready_sandbox(),
            Err(error) => return plain_text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        let Some(sandbox) = sandbox else {
            let text = format!("failed to find sandboxID for pod {}", pod.described());
            return plain_text(StatusCode::INTERNAL_SERVER_ERROR, text);
        };
        let url = self.dependencies.runtime.port_forward_url(&sandbox.id, ports).await;
        self.hand_over(url, stream_request, options::Purpose::Ports).await
    }

    /// Runs a command to completion and responds with its output.
    pub(super) async fn run(&self, target: &Target, query: &Query) -> HttpResponse {
        let Some(pod) = self.pod(&target.pod) else { return no_such_pod() };
        let Some(id) = self.running(&pod, &target.container).await else {
            return not_running(&target.container);
        };
        let command = query.first("cmd").unwrap_or_default();
        let command = command.split(' ').map(str::to_owned).collect();
        match self.dependencies.runtime.exec(&id, command, None).await {
            Ok(output) => {
                let mut text = output.stdout;
                text.extend_from_slice(&output.stderr);
                match output.exit_code {
                    0 => super::response::full_body(StatusCode::OK, super::response::PLAIN, text),
                    code => {
                        let text = String::from_utf8_lossy(&text);
                        let text = format!("command terminated with exit code {code}: {text}");
                        plain_text(StatusCode::INTERNAL_SERVER_ERROR, text)
                    }
                }
            }
            Err(error) => refused(&error),
        }
    }

    fn pod(&self, name: &PodName) -> Option<Arc<Pod>> {
        self.dependencies.pod_index.pod_by_name(name)
    }

    /// Whether a UID from a client, possibly of the mirror pod, refers to this pod.
    fn is_meant(&self, pod: &Pod, uid: Option<&str>) -> bool {
        uid.is_none_or(|uid| {
            self.dependencies.pod_index.resolve(uid).is_some_and(|other| other.uid == pod.uid)
        })
    }

    /// The running instance of a container. Inspects the pod if the cached state has none, because it
    /// may be outdated.
    async fn running(&self, pod: &Pod, container: &str) -> Option<ContainerId> {
        let running = |seen: &podwright_core::observed::ObservedPod| {
            let instance = seen.newest(container).filter(|instance| instance.is_running())?;
            Some(instance.id.clone())
        };
        if let Some(id) = self.dependencies.pleg.cached(&pod.uid).as_deref().and_then(running) {
            return Some(id);
        }
        let seen =
            self.dependencies.pleg.inspect_for(Inspector::Other, &pod.uid, &pod.name).await.ok()?;
        running(&seen)
    }

    /// Connects the client to the runtime's streaming server.
    async fn hand_over(
        &self,
        url: Result<String, cri::Error>,
        stream_request: StreamRequest,
        purpose: options::Purpose,
    ) -> HttpResponse {
        let url = match url {
            Ok(url) => url,
            Err(error) => return refused(&error),
        };
        if !upgrade::is_asked_for(&stream_request.headers) {
            return plain_text(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required\n");
        }
        if let Err(problem) = options::protocol(&stream_request.headers, purpose) {
            return plain_text(StatusCode::BAD_REQUEST, problem);
        }
        let Some(client) = stream_request.upgrade else {
            // HTTP/2 has no upgrades.
            return plain_text(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required\n");
        };
        let handover = upgrade::repeat(&url, stream_request.method, &stream_request.headers).await;
        match handover {
            Ok(Handover::Refused(answer)) => answer,
            Ok(Handover::Open { answer, runtime }) => {
                let carried = relay::run(client, runtime, self.idle);
                let abort = self.abort.clone();
                self.open_streams.spawn(async move {
                    abort.run_until_cancelled(carried).await;
                });
                answer
            }
            Err(error) => {
                tracing::warn!(%error, "cannot use the runtime's streaming server");
                plain_text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            }
        }
    }
}

fn no_such_pod() -> HttpResponse {
    plain_text(StatusCode::NOT_FOUND, "pod does not exist")
}

fn not_running(container: &str) -> HttpResponse {
    let text = format!("container not found ({container:?})");
    plain_text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// Response to a failed CRI call, with upstream's status codes.
fn refused(error: &cri::Error) -> HttpResponse {
    let status = match error.kind {
        cri::Kind::NotFound => StatusCode::NOT_FOUND,
        cri::Kind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
        cri::Kind::Unimplemented
        | cri::Kind::TimedOut
        | cri::Kind::Unavailable
        | cri::Kind::AlreadyExists
        | cri::Kind::BadReply
        | cri::Kind::Other => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut answer = plain_text(status, error.rpc_text());
    if status == StatusCode::TOO_MANY_REQUESTS {
        let seconds = http::HeaderValue::from_static(RETRY_SECONDS);
        answer.headers_mut().insert(http::header::RETRY_AFTER, seconds);
    }
    answer
}
/// Reads the options of a stream in every way, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub(super) fn is_readable(headers: &HeaderMap, query: &Query) -> bool {
    let purposes = [options::Purpose::Process, options::Purpose::Ports];
    let spoken = purposes.iter().all(|purpose| options::protocol(headers, *purpose).is_ok());
    let ports = options::ports(headers, query).is_ok();
    let passed_on = upgrade::is_passed_on(headers);
    options::streams(query).is_ok() && spoken && ports && passed_on
}
