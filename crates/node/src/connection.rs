//! How the node speaks with its API server.
//!
//! A node holds about one watch for each object its pods use. Over HTTP/1.1 each would be a
//! connection, and a busy node would keep hundreds; so everything shares HTTP/2 connections, as few
//! as the server's stream limit allows, and a stream too many opens the next one instead of waiting
//! for a watch that may never end. A peer that is gone without a word is noticed by pings. A server
//! that goes away (GOAWAY) loses no request: what it did not begin is sent again elsewhere. While
//! it is away, one dial at a time tries to find it, watches wait for that, and everything else
//! fails soon enough for its caller to know.
//!
//! This is a tower service below `kube::Client`; it knows nothing of Kubernetes but that a GET with
//! a query is a list or a watch.

pub mod credentials;
mod dial;
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
use self::pool::{Held, Pool, SendError};
use crate::metrics::RequestMetrics;

/// How long a request waits for a server that cannot be reached, unless it is a list or a watch.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the server may think about a request that is no watch. It gives up itself at 60 s.
const ANSWER: Duration = Duration::from_secs(75);
/// A server that is busy is asked again this often.
const BUSY: u32 = 10;
/// And a server that names no time, or an absurd one, after this long.
const BUSY_WAIT: Duration = Duration::from_secs(1);
const BUSY_MOST: Duration = Duration::from_secs(60);

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

    /// A client over connections of its own.
    pub fn client(
        credentials: &Arc<Credentials>,
        metrics: &Arc<RequestMetrics>,
    ) -> Result<kube::Client, CredentialsError> {
        let config = credentials.config();
        let refused = |source| credentials.refused(source);
        let auth = config.auth_layer().map_err(refused)?;
        let headers = config.extra_headers_layer().map_err(refused)?;
        let connections = Self::new(credentials.clone(), metrics.clone());
        let builder = ClientBuilder::new(connections, config.default_namespace.clone());
        Ok(builder
            .with_layer(&headers)
            .with_layer(&option_layer(auth))
            .with_layer(&config.base_uri_layer())
            .build())
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Held>, BoxError> {
        let (parts, body) = request.into_parts();
        // Requests to the API are small and whole; one that is kept can be sent again.
        let body = body.collect().await?.to_bytes();
        let asked = Asked { parts, body };
        for _ in 0..BUSY {
            let response = self.ask_and_count(&asked).await?;
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                return Ok(response);
            }
            let Some(wait) = retry_after(&response) else { return Ok(response) };
            tracing::debug!(?wait, uri = %asked.parts.uri, "the API server is busy");
            drop(response);
            tokio::time::sleep(wait).await;
        }
        self.ask_and_count(&asked).await
    }

    async fn ask_and_count(&self, asked: &Asked) -> Result<Response<Held>, BoxError> {
        let began = tokio::time::Instant::now();
        let answer = self.ask(asked).await;
        let (host, method) = (asked.host(), &asked.parts.method);
        let code = answer.as_ref().ok().map(|response| response.status().as_u16());
        self.metrics.answered(host, method, code);
        if !asked.is_watch() {
            self.metrics.took(host, method, began.elapsed());
        }
        answer
    }

    /// Sends until the server has it, as far as that cannot be twice.
    async fn ask(&self, asked: &Asked) -> Result<Response<Held>, BoxError> {
        let mut failures = 0;
        loop {
            let patience = (!asked.may_wait()).then_some(PATIENCE);
            let line = self.pool.line(patience).await?;
            let sending = self.pool.send(line, asked.request());
            let sent = match asked.is_watch() {
                true => sending.await,
                false => match tokio::time::timeout(ANSWER, sending).await {
                    Ok(sent) => sent,
                    Err(_) => return Err(format!("no answer within {ANSWER:?}").into()),
                },
            };
            match sent {
                Ok(response) => return Ok(response),
                Err(SendError { failure, source }) => {
                    if !retry::again(&asked.parts.method, failure, failures) {
                        return Err(source.into());
                    }
                    failures += 1;
                    tracing::debug!(error = %source, uri = %asked.parts.uri, "sending it again");
                }
            }
        }
    }
}

/// A request that can be sent more than once.
struct Asked {
    parts: http::request::Parts,
    body: Bytes,
}

impl Asked {
    fn request(&self) -> Request<Full<Bytes>> {
        Request::from_parts(self.parts.clone(), Full::new(self.body.clone()))
    }

    fn host(&self) -> &str {
        self.parts.uri.authority().map(http::uri::Authority::as_str).unwrap_or_default()
    }

    fn query(&self) -> &str {
        self.parts.uri.query().unwrap_or_default()
    }

    /// Lists and watches may wait for a server that is away: they are what recovers with it.
    fn may_wait(&self) -> bool {
        self.parts.method == Method::GET && !self.query().is_empty()
    }

    fn is_watch(&self) -> bool {
        self.query().split('&').any(|part| matches!(part, "watch=true" | "watch=1"))
    }
}

fn retry_after(response: &Response<Held>) -> Option<Duration> {
    let told = response.headers().get(header::RETRY_AFTER)?;
    let seconds = told.to_str().ok().and_then(|text| text.parse().ok());
    Some(seconds.map_or(BUSY_WAIT, Duration::from_secs).min(BUSY_MOST))
}

impl tower::Service<Request<Body>> for Connections {
    type Response = Response<Held>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Held>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

#[cfg(test)]
mod tests;
