//! The kubelet server: port 10250 as the rest of the ecosystem knows it.
//!
//! kube-apiserver comes here for logs and commands, metrics-server and Prometheus for numbers. A
//! [`Server`] answers requests, wherever they come from: [`listen`] brings those that arrive over
//! TLS and lets in only whom the cluster lets in; an API server in the same process brings its own
//! and has asked that question itself.

mod answer;
pub mod auth;
pub mod certificate;
mod fresh;
mod health;
pub mod listen;
mod logs;
mod pages;
mod pods;
mod query;
mod route;
mod streaming;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue};
use http::{Request, StatusCode};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use answer::{Answer, Body, BodyError};
use answer::{JSON, whole, words};
use listen::Listeners;
use query::Query;
use route::{Miss, Route, Surface};
use streaming::{Asked, Streaming};

use crate::node::Node;
use crate::pods::Directory;
use crate::stats::Stats;
use crate::tools::Tools;

/// How long requests and streams that are under way may go on after the node was told to stop.
const DRAIN: Duration = Duration::from_secs(2);

/// What is served, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `enableDebuggingHandlers`: logs and commands are served.
    pub debugging: bool,
    /// `streamingConnectionIdleTimeout`; `None`: a stream may be silent for ever.
    pub stream_idle: Option<Duration>,
    /// What `/configz` shows.
    pub configuration: Bytes,
    /// Pods that were not looked after for so long are not looked after.
    pub sync_patience: Duration,
    /// What this program calls itself, and what it was built from.
    pub version: &'static str,
    pub commit: &'static str,
}

/// Answers requests.
pub struct Server {
    tools: Arc<Tools>,
    directory: Arc<Directory>,
    streaming: Streaming,
    stats: Arc<Stats>,
    settings: Settings,
    /// The node stops; nothing that could go on for ever is begun or kept up.
    stop: CancellationToken,
}

impl Server {
    pub fn new(
        node: &Node,
        stats: Arc<Stats>,
        settings: Settings,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let streaming = Streaming {
            tools: node.tools.clone(),
            directory: node.directory.clone(),
            idle: settings.stream_idle.filter(|idle| !idle.is_zero()),
            under_way: TaskTracker::new(),
            cut: CancellationToken::new(),
        };
        Arc::new(Self {
            tools: node.tools.clone(),
            directory: node.directory.clone(),
            streaming,
            stats,
            settings,
            stop,
        })
    }

    /// Serves until stopped: at the ports, if there are any, and whoever calls [`Self::handle`].
    pub async fn run(self: Arc<Self>, listeners: Option<Listeners>) {
        let (metrics, stop) = (self.tools.metrics.clone(), self.stop.clone());
        let measuring = self.stats.measure_disks(stop.clone());
        match listeners {
            Some(listeners) => {
                tokio::join!(measuring, listeners.serve(self.clone(), metrics, stop));
            }
            None => {
                measuring.await;
                self.drain().await;
            }
        }
    }

    /// Answers a request of somebody who was let in.
    ///
    /// For exec, attach and port-forward the request carries [`hyper::upgrade::OnUpgrade`] among its
    /// extensions, as hyper's own server puts it there; its body is not used.
    pub async fn handle<B>(&self, request: Request<B>) -> Answer {
        let surface = if self.settings.debugging { Surface::Full } else { Surface::NoDebugging };
        self.answer(surface, request).await
    }

    /// Answers at the port where nobody is asked for a name.
    async fn handle_stranger<B>(&self, request: Request<B>) -> Answer {
        self.answer(Surface::ReadOnly, request).await
    }

    async fn answer<B>(&self, surface: Surface, mut request: Request<B>) -> Answer {
        let route = match route::route(surface, request.method(), request.uri().path()) {
            Ok(route) => route,
            Err(miss) => return missed(miss),
        };
        match route {
            Route::Health(check) => self.health(check, &Query::of(request.uri())),
            Route::Pods => pods::wanted(&self.directory, &self.tools.status),
            Route::RunningPods => pods::running(&self.tools.runtime).await,
            Route::Configuration => {
                whole(StatusCode::OK, JSON, self.settings.configuration.clone())
            }
            Route::Metrics(page) => self.metrics(page).await,
            Route::Summary => self.summary(&Query::of(request.uri())).await,
            Route::Logs(target) => self.logs(&target, &Query::of(request.uri())).await,
            Route::Exec(target) => {
                let asked = Asked::of(&mut request);
                self.streaming.exec(&target, asked).await
            }
            Route::Attach(target) => {
                let asked = Asked::of(&mut request);
                self.streaming.attach(&target, asked).await
            }
            Route::PortForward { pod, uid } => {
                let asked = Asked::of(&mut request);
                self.streaming.port_forward(&pod, uid.as_deref(), asked).await
            }
            Route::Run(target) => self.streaming.run(&target, &Query::of(request.uri())).await,
        }
    }

    /// Waits for what is under way, but not for long; then ends it.
    async fn drain(&self) {
        self.streaming.under_way.close();
        let _ = tokio::time::timeout(DRAIN, self.streaming.under_way.wait()).await;
        self.streaming.cut.cancel();
        self.streaming.under_way.wait().await;
    }
}

fn missed(miss: Miss) -> Answer {
    match miss {
        Miss::NotFound => words(StatusCode::NOT_FOUND, "404 page not found\n"),
        Miss::Malformed => words(StatusCode::NOT_FOUND, "404: Page Not Found"),
        Miss::Disabled => words(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n"),
        Miss::Method { allowed } => {
            let mut answer = words(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            answer
        }
    }
}
