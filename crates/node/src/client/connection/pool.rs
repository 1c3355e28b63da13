//! Connection pool: the open connections and the choice of one for the next stream.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tower::BoxError;

use super::credentials::Credentials;
use super::dial::{Dialed, Dialer};
use super::retry::{self, Failure};

type Sent = Full<Bytes>;

pub(super) struct Pool {
    credentials: Arc<Credentials>,
    /// Filled in order: the last ones become idle first and are dropped when the server closes them.
    pooled: Mutex<Vec<PooledConnection>>,
    /// The holder of this lock dials; the others wait for its result.
    dialer: Arc<tokio::sync::Mutex<Dialer>>,
    /// The last dial error, for requests that time out.
    problem: Mutex<Option<String>>,
}

/// An HTTP/2 connection.
#[derive(Clone)]
struct PooledConnection {
    sender: http2::SendRequest<Sent>,
    open: Arc<AtomicUsize>,
    /// The server's stream limit, which may change.
    most: Arc<AtomicUsize>,
    /// The generation of its credentials.
    generation: u64,
}

/// A slot for one request on a connection.
pub(super) enum StreamSlot {
    Shared(http2::SendRequest<Sent>, OpenStream),
    /// The server supports HTTP/1.1 only: a connection for this one request.
    Single(http1::SendRequest<Sent>),
}

/// Counts as an open stream until dropped.
pub(super) struct OpenStream(Arc<AtomicUsize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct SendError {
    pub(super) failure: Failure,
    pub(super) source: hyper::Error,
}

impl Pool {
    pub(super) fn new(credentials: Arc<Credentials>) -> Self {
        Self {
            dialer: Arc::new(tokio::sync::Mutex::new(Dialer::new(credentials.clone()))),
            credentials,
            pooled: Mutex::default(),
            problem: Mutex::default(),
        }
    }

    /// A slot for one request, on a new connection if necessary. With `timeout` it fails when the
    /// server was unreachable for so long.
    pub(super) async fn stream_slot(
        self: &Arc<Self>,
        timeout: Option<Duration>,
    ) -> Result<StreamSlot, BoxError> {
        // Dropping this does not cancel a dial, which continues in its own task.
        match timeout {
            None => Ok(self.find_or_dial().await),
            Some(timeout) => match tokio::time::timeout(timeout, self.find_or_dial()).await {
                Ok(line) => Ok(line),
                Err(_) => {
                    let problem = self.problem.lock().clone();
                    let why = problem.unwrap_or_else(|| format!("no connection in {timeout:?}"));
                    Err(format!("cannot reach the API server: {why}").into())
                }
            },
        }
    }

    async fn find_or_dial(self: &Arc<Self>) -> StreamSlot {
        loop {
            if let Some(line) = self.free() {
                return line;
            }
            let dialer = self.dialer.clone().lock_owned().await;
            // Another request may have dialed in the meantime.
            if let Some(line) = self.free() {
                return line;
            }
            // A dial that takes longer than the caller's timeout serves the next request.
            let dialing = tokio::spawn(self.clone().dial(dialer));
            if let Ok(Some(line)) = dialing.await {
                return line;
            }
        }
    }

    /// One attempt to open a connection. `None`: it failed, or the connection is in `pooled`.
    async fn dial(self: Arc<Self>, mut dialer: OwnedMutexGuard<Dialer>) -> Option<StreamSlot> {
        let generation = self.credentials.generation();
        match dialer.dial().await {
            Ok(Dialed::Http1(sender)) => return Some(StreamSlot::Single(sender)),
            Ok(Dialed::Http2 { sender, most }) => {
                *self.problem.lock() = None;
                let open = Arc::new(AtomicUsize::new(0));
                self.pooled.lock().push(PooledConnection { sender, open, most, generation });
            }
            Err(problem) => *self.problem.lock() = Some(problem),
        }
        None
    }

    /// The first connection below its limit. Those with old credentials end with their last stream.
    fn free(&self) -> Option<StreamSlot> {
        let generation = self.credentials.refresh();
        let mut pooled = self.pooled.lock();
        pooled.retain(|line| line.generation == generation && !line.sender.is_closed());
        let line = pooled.iter().find(|line| line.open.load(Relaxed) < line.most.load(Relaxed))?;
        line.open.fetch_add(1, Relaxed);
        Some(StreamSlot::Shared(line.sender.clone(), OpenStream(line.open.clone())))
    }

    pub(super) async fn send(
        &self,
        line: StreamSlot,
        mut request: Request<Sent>,
    ) -> Result<Response<ResponseBody>, SendError> {
        match line {
            StreamSlot::Shared(mut sender, open_stream) => {
                request.headers_mut().remove(http::header::HOST);
                *request.version_mut() = http::Version::HTTP_2;
                let failed = |error: hyper::client::conn::TrySendError<Request<Sent>>| {
                    let returned = error.message().is_some();
                    let source = error.into_error();
                    SendError { failure: retry::failure(&source, returned), source }
                };
                match sender.try_send_request(request).await {
                    Ok(response) => {
                        Ok(response
                            .map(|body| ResponseBody { body, _open_stream: Some(open_stream) }))
                    }
                    Err(error) => {
                        // The connection keeps its open streams but takes no new ones.
                        self.pooled.lock().retain(|line| !Arc::ptr_eq(&line.open, &open_stream.0));
                        Err(failed(error))
                    }
                }
            }
            StreamSlot::Single(mut sender) => {
                let failed = |source| SendError { failure: Failure::Broken, source };
                let response = sender.send_request(origin_form(request)).await.map_err(failed)?;
                Ok(response.map(|body| ResponseBody { body, _open_stream: None }))
            }
        }
    }

    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.pooled.lock().len()
    }
}

/// HTTP/1.1 needs the host in a header and only the path in the request line.
fn origin_form(mut request: Request<Sent>) -> Request<Sent> {
    if let Some(host) = request.uri().authority().and_then(|a| a.as_str().parse().ok()) {
        request.headers_mut().insert(http::header::HOST, host);
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(Default::default, Into::into);
    request
}

/// The body of a response, which holds its stream slot until it is read or dropped.
pub struct ResponseBody {
    body: Incoming,
    _open_stream: Option<OpenStream>,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
