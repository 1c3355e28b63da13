//! Kubelet server: the HTTP API on port 10250.
//!
//! kube-apiserver uses it for logs and exec, metrics-server and Prometheus for metrics. A
//! [`Server`] handles requests independent of the transport: [`listen`] accepts those over TLS and
//! authenticates and authorizes them; the embedded API server in the same process passes requests
//! on that it has authorized itself.

pub mod auth;
pub mod certificate;
pub mod debug_socket;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health;
pub mod health_port;
pub mod listen;
mod logs;
mod pages;
mod pods;
mod query;
pub mod reload;
mod response;
mod route;
mod streaming;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue};
use http::{Request, StatusCode};
use podwright_core::stats::usage::UsageReport;
use podwright_host::clock::Clock;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use listen::Listeners;
use query::Query;
pub use response::{Body, BodyError, HttpResponse};
use response::{JSON, full_body, plain_text};
use route::{Miss, Route, Surface};
pub use streaming::StreamingDependencies;
use streaming::{StreamRequest, Streaming};

use crate::node::Node;
use crate::pods::PodIndex;
use crate::report::status::StatusManager;
use crate::runtime::logs::Logs;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::stats::Stats;

/// How long requests and streams in progress may continue after the node begins to stop.
const DRAIN: Duration = Duration::from_secs(2);

/// Configuration of the kubelet server.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// `PodLogsQuerySplitStreams`: a client may request only one stream of a log.
    pub split_log_streams: bool,
    /// `enableDebuggingHandlers`: serve logs, exec, attach and port-forward.
    pub debugging: bool,
    /// `streamingConnectionIdleTimeout`; `None`: no timeout.
    pub stream_idle: Option<Duration>,
    /// Content of `/configz`.
    pub configuration: Bytes,
    /// The sync loop is unhealthy when it has not run for this long.
    pub sync_timeout: Duration,
    /// Name and version of this build.
    pub version: &'static str,
    pub commit: &'static str,
}

/// The components of the node that the server uses.
#[derive(Clone)]
pub struct ServerDependencies {
    pub streaming: StreamingDependencies,
    pub clock: Clock,
    pub status: Arc<StatusManager>,
    pub metrics: Arc<Metrics>,
    pub logs: Arc<Logs>,
    pub node_name: Arc<str>,
    pub cgroup_version: u32,
}

/// Handles requests.
pub struct Server {
    dependencies: ServerDependencies,
    pod_index: Arc<PodIndex>,
    streaming: Streaming,
    stats: Arc<Stats>,
    settings: ServerSettings,
    /// Cancelled when the node stops; ends followed logs and streams.
    stop: CancellationToken,
}

impl Server {
    pub fn new(
        node: &Node,
        stats: Arc<Stats>,
        settings: ServerSettings,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let dependencies = node.server_dependencies().clone();
        let streaming = Streaming {
            dependencies: dependencies.streaming.clone(),
            idle: settings.stream_idle.filter(|idle| !idle.is_zero()),
            open_streams: TaskTracker::new(),
            abort: CancellationToken::new(),
        };
        let server = Arc::new(Self {
            pod_index: dependencies.streaming.pod_index.clone(),
            dependencies,
            streaming,
            stats,
            settings,
            stop,
        });
        node.local_server().set(&server);
        server
    }

    /// Serves until stopped: the listeners, if any, and callers of [`Self::handle`].
    pub async fn run(self: Arc<Self>, listeners: Option<Listeners>) {
        let (metrics, stop) = (self.dependencies.metrics.clone(), self.stop.clone());
        match listeners {
            Some(listeners) => listeners.serve(self.clone(), metrics, stop).await,
            None => {
                stop.cancelled().await;
                self.drain().await;
            }
        }
    }

    /// Handles a request that is already authorized.
    ///
    /// For exec, attach and port-forward the request carries [`hyper::upgrade::OnUpgrade`] among its
    /// extensions, as hyper's own server puts it there; its body is not used.
    pub async fn handle<B>(&self, request: Request<B>) -> HttpResponse {
        let surface = if self.settings.debugging { Surface::Full } else { Surface::NoDebugging };
        self.answer(surface, request).await
    }

    pub fn node_name(&self) -> &Arc<str> {
        &self.dependencies.node_name
    }

    /// The current usage of the node and its pods, for the API of resource metrics.
    pub async fn usage(&self) -> UsageReport {
        self.stats.usage().await
    }

    /// Handles a request of the debug socket, which only root may open: reads, even if the ports
    /// serve no logs.
    async fn handle_local<B>(&self, request: Request<B>) -> HttpResponse {
        self.answer(Surface::Full, request).await
    }

    /// Handles a request on the read-only port, which has no authentication.
    async fn handle_read_only<B>(&self, request: Request<B>) -> HttpResponse {
        self.answer(Surface::ReadOnly, request).await
    }

    async fn answer<B>(&self, surface: Surface, mut request: Request<B>) -> HttpResponse {
        let route = match route::route(surface, request.method(), request.uri().path()) {
            Ok(route) => route,
            Err(miss) => return missed(miss),
        };
        match route {
            Route::Health(check) => self.health(check, &Query::of(request.uri())),
            Route::Pods => pods::wanted(&self.pod_index, &self.dependencies.status),
            Route::RunningPods => pods::running(&self.dependencies.streaming.runtime).await,
            Route::Configuration => {
                full_body(StatusCode::OK, JSON, self.settings.configuration.clone())
            }
            Route::Metrics(page) => self.metrics(page).await,
            Route::Summary => self.summary(&Query::of(request.uri())).await,
            Route::Logs(target) => self.logs(&target, &Query::of(request.uri())).await,
            Route::Exec(target) => {
                let stream_request = StreamRequest::of(&mut request);
                self.streaming.exec(&target, stream_request).await
            }
            Route::Attach(target) => {
                let stream_request = StreamRequest::of(&mut request);
                self.streaming.attach(&target, stream_request).await
            }
            Route::PortForward { pod, uid } => {
                let stream_request = StreamRequest::of(&mut request);
                self.streaming.port_forward(&pod, uid.as_deref(), stream_request).await
            }
            Route::Run(target) => self.streaming.run(&target, &Query::of(request.uri())).await,
        }
    }

    /// Waits a short time for requests in progress, then ends them.
    async fn drain(&self) {
        self.streaming.open_streams.close();
        let _ = tokio::time::timeout(DRAIN, self.streaming.open_streams.wait()).await;
        self.streaming.abort.cancel();
        self.streaming.open_streams.wait().await;
    }
}

fn missed(miss: Miss) -> HttpResponse {
    match miss {
        Miss::NotFound => plain_text(StatusCode::NOT_FOUND, "404 page not found\n"),
        Miss::Malformed => plain_text(StatusCode::NOT_FOUND, "404: Page Not Found"),
        Miss::Disabled => {
            plain_text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n")
        }
        Miss::Method { allowed } => {
            let mut answer = plain_text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            answer
        }
    }
}
