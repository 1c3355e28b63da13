//! Streams between a person and a container: exec, attach, port-forward.
//!
//! The protocol (SPDY or WebSocket, its channels, terminals and exit codes) is spoken by the
//! runtime's own streaming server, which listens on loopback. We ask the CRI for a URL there, repeat
//! the client's request to it, and then carry bytes both ways without looking at them. Each
//! direction has one small buffer and reads on only when the other side took what was read: a slow
//! reader slows the writer down and fills no memory. The first side that ends ends both.

mod carry;
mod options;
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

use super::answer::{Answer, words};
use super::query::Query;
use super::route::Target;
use crate::pods::Directory;
use crate::tools::Tools;
use upgrade::Handover;

/// A runtime that has too much to do is asked again after this time.
const RETRY_SECONDS: &str = "60";

/// What streams need; the rest of the server is none of their business.
pub(super) struct Streaming {
    pub(super) tools: Arc<Tools>,
    pub(super) directory: Arc<Directory>,
    /// How long a stream may be silent; `None`: for ever.
    pub(super) idle: Option<Duration>,
    /// Streams under way.
    pub(super) under_way: TaskTracker,
    /// Ends them all.
    pub(super) cut: CancellationToken,
}

/// What a client sent, as far as streams care.
pub(super) struct Asked {
    headers: HeaderMap,
    method: http::Method,
    query: Query,
    upgrade: Option<OnUpgrade>,
}

impl Asked {
    pub(super) fn of<B>(request: &mut Request<B>) -> Self {
        Self {
            headers: request.headers().clone(),
            method: request.method().clone(),
            query: Query::of(request.uri()),
            // Also that of an API server in this process, which hands its client's on.
            upgrade: request.extensions_mut().remove::<OnUpgrade>(),
        }
    }
}

impl Streaming {
    pub(super) async fn exec(&self, target: &Target, asked: Asked) -> Answer {
        let streams = match options::streams(&asked.query) {
            Ok(streams) => streams,
            Err(problem) => return words(StatusCode::BAD_REQUEST, problem),
        };
        let Some(pod) = self.pod(&target.pod) else { return no_such_pod() };
        let Some(id) = self.running(&pod, &target.container).await else {
            return not_running(&target.container);
        };
        let command = asked.query.all("command").map(str::to_owned).collect();
        let url = self.tools.runtime.exec_url(&id, command, streams).await;
        self.hand_over(url, asked, options::Purpose::Process).await
    }

    pub(super) async fn attach(&self, target: &Target, asked: Asked) -> Answer {
        let streams = match options::streams(&asked.query) {
            Ok(streams) => streams,
            Err(problem) => return words(StatusCode::BAD_REQUEST, problem),
        };
        let Some(pod) = self.pod(&target.pod) else { return no_such_pod() };
        if !self.is_meant(&pod, target.uid.as_deref()) {
            let name = format!("{}_{}", pod.name.name, pod.name.namespace);
            return words(StatusCode::INTERNAL_SERVER_ERROR, format!("pod {name} not found"));
        }
        let Some(id) = self.running(&pod, &target.container).await else {
            return not_running(&target.container);
        };
        // A process that runs has a terminal or has none; whoever attaches does not choose.
        let tty = options::has_terminal(&pod.object, &target.container);
        let streams = cri::Streams { tty, stderr: streams.stderr && !tty, ..streams };
        let url = self.tools.runtime.attach_url(&id, streams).await;
        self.hand_over(url, asked, options::Purpose::Process).await
    }

    pub(super) async fn port_forward(
        &self,
        name: &PodName,
        uid: Option<&str>,
        asked: Asked,
    ) -> Answer {
        let ports = match options::ports(&asked.headers, &asked.query) {
            Ok(ports) => ports,
            Err(problem) => return words(StatusCode::BAD_REQUEST, problem),
        };
        let Some(pod) = self.pod(name) else { return no_such_pod() };
        if !self.is_meant(&pod, uid) {
            return words(StatusCode::NOT_FOUND, "pod not found");
        }
        let seen = self.tools.pleg.look(&pod.uid, &pod.name).await;
        let sandbox = match &seen {
            Ok(seen) => seen.ready_sandbox(),
            Err(error) => return words(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        let Some(sandbox) = sandbox else {
            let text = format!("failed to find sandboxID for pod {}", pod.described());
            return words(StatusCode::INTERNAL_SERVER_ERROR, text);
        };
        let url = self.tools.runtime.port_forward_url(&sandbox.id, ports).await;
        self.hand_over(url, asked, options::Purpose::Ports).await
    }

    /// Runs a command to its end and answers with what it printed.
    pub(super) async fn run(&self, target: &Target, query: &Query) -> Answer {
        let Some(pod) = self.pod(&target.pod) else { return no_such_pod() };
        let Some(id) = self.running(&pod, &target.container).await else {
            return not_running(&target.container);
        };
        let command = query.first("cmd").unwrap_or_default();
        let command = command.split(' ').map(str::to_owned).collect();
        match self.tools.runtime.exec(&id, command, None).await {
            Ok(output) => {
                let mut text = output.stdout;
                text.extend_from_slice(&output.stderr);
                match output.exit_code {
                    0 => super::answer::whole(StatusCode::OK, super::answer::PLAIN, text),
                    code => {
                        let text = String::from_utf8_lossy(&text);
                        let text = format!("command terminated with exit code {code}: {text}");
                        words(StatusCode::INTERNAL_SERVER_ERROR, text)
                    }
                }
            }
            Err(error) => refused(&error),
        }
    }

    fn pod(&self, name: &PodName) -> Option<Arc<Pod>> {
        self.directory.pod_by_name(name)
    }

    /// Whether a UID from outside, be it the mirror's, means this pod.
    fn is_meant(&self, pod: &Pod, uid: Option<&str>) -> bool {
        uid.is_none_or(|uid| self.directory.resolve(uid).is_some_and(|other| other.uid == pod.uid))
    }

    /// The running instance of a container. What was seen last may be a moment old, so what is not
    /// there is looked for.
    async fn running(&self, pod: &Pod, container: &str) -> Option<ContainerId> {
        let running = |seen: &podwright_core::observed::ObservedPod| {
            let instance = seen.newest(container).filter(|instance| instance.is_running())?;
            Some(instance.id.clone())
        };
        if let Some(id) = self.tools.pleg.cached(&pod.uid).as_deref().and_then(running) {
            return Some(id);
        }
        let seen = self.tools.pleg.look(&pod.uid, &pod.name).await.ok()?;
        running(&seen)
    }

    /// Lets the client talk to the runtime's streaming server.
    async fn hand_over(
        &self,
        url: Result<String, cri::Error>,
        asked: Asked,
        purpose: options::Purpose,
    ) -> Answer {
        let url = match url {
            Ok(url) => url,
            Err(error) => return refused(&error),
        };
        if !upgrade::is_asked_for(&asked.headers) {
            return words(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required\n");
        }
        if let Err(problem) = options::protocol(&asked.headers, purpose) {
            return words(StatusCode::BAD_REQUEST, problem);
        }
        let Some(client) = asked.upgrade else {
            // HTTP/2 has no upgrades, and its clients know that.
            return words(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required\n");
        };
        let handover = upgrade::repeat(&url, asked.method, &asked.headers).await;
        match handover {
            Ok(Handover::Refused(answer)) => answer,
            Ok(Handover::Open { answer, runtime }) => {
                let carried = carry::both_ways(client, runtime, self.idle);
                let cut = self.cut.clone();
                self.under_way.spawn(async move {
                    cut.run_until_cancelled(carried).await;
                });
                answer
            }
            Err(error) => {
                tracing::warn!(%error, "the runtime's streaming server cannot be used");
                words(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            }
        }
    }
}

fn no_such_pod() -> Answer {
    words(StatusCode::NOT_FOUND, "pod does not exist")
}

fn not_running(container: &str) -> Answer {
    let text = format!("container not found ({container:?})");
    words(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// A CRI call that failed, in upstream's codes.
fn refused(error: &cri::Error) -> Answer {
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
    let mut answer = words(status, error.rpc_text());
    if status == StatusCode::TOO_MANY_REQUESTS {
        let seconds = http::HeaderValue::from_static(RETRY_SECONDS);
        answer.headers_mut().insert(http::header::RETRY_AFTER, seconds);
    }
    answer
}
