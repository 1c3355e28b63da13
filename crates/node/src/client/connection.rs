//! HTTP/2 connections to the API server.
//!
//! A node holds about one watch for each object its pods use. Over HTTP/1.1 each would be a
//! connection, and a busy node would keep hundreds; so all requests share HTTP/2 connections, as few
//! as the server's stream limit allows, and a stream above the limit opens another connection instead
//! of waiting for a watch that may never end. Pings detect a peer that vanished. A GOAWAY loses no
//! request: requests that the server did not begin are sent again on another connection. While the
//! server is unreachable, one dial at a time retries, watches wait for it, and all other requests
//! fail after a short timeout.
//!
//! This is a tower service below `kube::Client`; of Kubernetes it only uses that a GET with a query
//! is a list or a watch.

pub mod credentials;
mod dial;
mod exec;
mod pool;
mod retry;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use kube::client::{Body, ClientBuilder, ConfigExt};
use tower::BoxError;
use tower::util::option_layer;

use self::credentials::{Credentials, CredentialsError};
use self::exec::ExecAuth;
use self::pool::{Pool, ResponseBody, SendError};
use crate::telemetry::metrics::RequestMetrics;

/// How long a request waits for an unreachable server, unless it is a list or a watch.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a request that is not a watch. The server itself gives up at 60 s.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(75);
/// Maximum number of retries after 429.
const MAX_BUSY_RETRIES: u32 = 10;
/// Delay before such a retry if the server gives none, or an excessive one.
const BUSY_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_BUSY_RETRY_DELAY: Duration = Duration::from_secs(60);

/// How the agent names itself in requests, in upstream's form: the API server takes the part before
/// the slash for the manager in `managedFields`.
pub fn user_agent() -> String {
    let architecture = podwright_host::machine::architecture();
    let own = concat!("podwright/", env!("CARGO_PKG_VERSION"));
    format!("kubelet/v1.36.4 (linux/{architecture}) {own}")
}

/// Connections to one API server. Clones share them.
#[derive(Clone)]
pub struct Connections {
    pool: Arc<Pool>,
    metrics: Arc<RequestMetrics>,
}

impl Connections {
    pub fn new(credentials: Arc<Credentials>, metrics: Arc<RequestMetrics>) -> Self {
        Self { pool: Arc::new(Pool::new(credentials)), metrics }
    }

    /// A client with its own connections.
    pub fn client(
        credentials: &Arc<Credentials>,
        metrics: &Arc<RequestMetrics>,
    ) -> Result<kube::Client, CredentialsError> {
        let config = credentials.config();
        let refused = |source| credentials.refused(source);
        let auth = config.auth_layer().map_err(refused)?;
        let headers = config.extra_headers_layer().map_err(refused)?;
        let connections = Self::new(credentials.clone(), metrics.clone());
        let namespace = config.default_namespace.clone();
        if config.auth_info.exec.is_some() {
            let renewing = ExecAuth::new(connections, credentials.clone(), auth);
            let builder = ClientBuilder::new(renewing, namespace);
            return Ok(builder.with_layer(&headers).with_layer(&config.base_uri_layer()).build());
        }
        let builder = ClientBuilder::new(connections, namespace);
        Ok(builder
            .with_layer(&headers)
            .with_layer(&option_layer(auth))
            .with_layer(&config.base_uri_layer())
            .build())
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<ResponseBody>, BoxError> {
        let (parts, body) = request.into_parts();
        // Requests to the API are small; the body is kept so that it can be sent again.
        let body = body.collect().await?.to_bytes();
        let retryable = RetryableRequest { parts, body };
        for _ in 0..MAX_BUSY_RETRIES {
            let response = self.send_and_count(&retryable).await?;
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                return Ok(response);
            }
            let Some(wait) = retry_after(&response) else { return Ok(response) };
            tracing::debug!(?wait, uri = %retryable.parts.uri, "API server is busy, retrying");
            drop(response);
            tokio::time::sleep(wait).await;
        }
        self.send_and_count(&retryable).await
    }

    async fn send_and_count(
        &self,
        retryable: &RetryableRequest,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let began = tokio::time::Instant::now();
        let answer = self.send_request(retryable).await;
        let (host, method) = (retryable.host(), &retryable.parts.method);
        let code = answer.as_ref().ok().map(|response| response.status().as_u16());
        self.metrics.answered(host, method, code);
        if !retryable.is_watch() {
            self.metrics.took(host, method, began.elapsed());
        }
        answer
    }

    /// Sends until the server has received the request, but never twice if it is not idempotent.
    async fn send_request(
        &self,
        retryable: &RetryableRequest,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let mut failures = 0;
        loop {
            let timeout = (!retryable.may_wait()).then_some(UNREACHABLE_TIMEOUT);
            let line = self.pool.stream_slot(timeout).await?;
            let sending = self.pool.send(line, retryable.request());
            let sent = match retryable.is_watch() {
                true => sending.await,
                false => match tokio::time::timeout(RESPONSE_TIMEOUT, sending).await {
                    Ok(sent) => sent,
                    Err(_) => return Err(format!("no response within {RESPONSE_TIMEOUT:?}").into()),
                },
            };
            match sent {
                Ok(response) => return Ok(response),
                Err(SendError { failure, source }) => {
                    if !retry::may_retry(&retryable.parts.method, failure, failures) {
                        return Err(source.into());
                    }
                    failures += 1;
                    tracing::debug!(error = %source, uri = %retryable.parts.uri, "retrying request");
                }
            }
        }
    }
}

/// A request that can be sent more than once.
struct RetryableRequest {
    parts: http::request::Parts,
    body: Bytes,
}

impl RetryableRequest {
    fn request(&self) -> Request<Full<Bytes>> {
        Request::from_parts(self.parts.clone(), Full::new(self.body.clone()))
    }

    fn host(&self) -> &str {
        self.parts.uri.authority().map(http::uri::Authority::as_str).unwrap_or_default()
    }

    fn query(&self) -> &str {
        self.parts.uri.query().unwrap_or_default()
    }

    /// Lists and watches may wait for an unreachable server: they recover together with it.
    fn may_wait(&self) -> bool {
        self.parts.method == Method::GET && !self.query().is_empty()
    }

    fn is_watch(&self) -> bool {
        self.query().split('&').any(|part| matches!(part, "watch=true" | "watch=1"))
    }
}

fn retry_after(response: &Response<ResponseBody>) -> Option<Duration> {
    let retry_header = response.headers().get(header::RETRY_AFTER)?;
    let seconds = retry_header.to_str().ok().and_then(|text| text.parse().ok());
    Some(seconds.map_or(BUSY_RETRY_DELAY, Duration::from_secs).min(MAX_BUSY_RETRY_DELAY))
}

impl tower::Service<Request<Body>> for Connections {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

#[cfg(test)]
mod tests;
