//! The open connections, and which of them takes the next stream.

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
use tower::BoxError;

use super::credentials::Credentials;
use super::dial::{Dialed, Dialer};
use super::retry::{self, Failure};

type Sent = Full<Bytes>;

pub(super) struct Pool {
    credentials: Arc<Credentials>,
    /// Filled in order: the last ones empty first, and go when the server closes them.
    lines: Mutex<Vec<Shared>>,
    /// Whoever holds it dials; everyone else waits for what comes of it.
    dialer: tokio::sync::Mutex<Dialer>,
    /// What went wrong last, for those who do not wait any longer.
    problem: Mutex<Option<String>>,
}

/// An HTTP/2 connection.
#[derive(Clone)]
struct Shared {
    sender: http2::SendRequest<Sent>,
    open: Arc<AtomicUsize>,
    /// How many streams the server allows; it may change its mind.
    most: Arc<AtomicUsize>,
    /// With which credentials it was opened.
    generation: u64,
}

/// A place on a connection.
pub(super) enum Line {
    Shared(http2::SendRequest<Sent>, Place),
    /// The server speaks HTTP/1.1 only: a connection for this one request.
    Single(http1::SendRequest<Sent>),
}

/// Counts as an open stream as long as it lives.
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
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
            dialer: tokio::sync::Mutex::new(Dialer::new(credentials.clone())),
            credentials,
            lines: Mutex::default(),
            problem: Mutex::default(),
        }
    }

    /// A place for one request, on a new connection if need be. With `patience` it fails when the
    /// server could not be reached for so long.
    pub(super) async fn line(&self, patience: Option<Duration>) -> Result<Line, BoxError> {
        // Dropping the wait may drop a dial half way, which leaves nothing behind.
        match patience {
            None => Ok(self.find_or_dial().await),
            Some(patience) => match tokio::time::timeout(patience, self.find_or_dial()).await {
                Ok(line) => Ok(line),
                Err(_) => {
                    let problem = self.problem.lock().clone();
                    let why = problem.unwrap_or_else(|| format!("no connection in {patience:?}"));
                    Err(format!("cannot reach the API server: {why}").into())
                }
            },
        }
    }

    async fn find_or_dial(&self) -> Line {
        loop {
            if let Some(line) = self.free() {
                return line;
            }
            let mut dialer = self.dialer.lock().await;
            // Somebody else may have dialed while we waited.
            if let Some(line) = self.free() {
                return line;
            }
            let generation = self.credentials.generation();
            match dialer.dial().await {
                Ok(Dialed::Http1(sender)) => return Line::Single(sender),
                Ok(Dialed::Http2 { sender, most }) => {
                    *self.problem.lock() = None;
                    let open = Arc::new(AtomicUsize::new(0));
                    self.lines.lock().push(Shared { sender, open, most, generation });
                }
                Err(problem) => *self.problem.lock() = Some(problem),
            }
        }
    }

    /// The first connection with room. Those of old credentials end with their last stream.
    fn free(&self) -> Option<Line> {
        let generation = self.credentials.refresh();
        let mut lines = self.lines.lock();
        lines.retain(|line| line.generation == generation && !line.sender.is_closed());
        let line = lines.iter().find(|line| line.open.load(Relaxed) < line.most.load(Relaxed))?;
        line.open.fetch_add(1, Relaxed);
        Some(Line::Shared(line.sender.clone(), Place(line.open.clone())))
    }

    pub(super) async fn send(
        &self,
        line: Line,
        mut request: Request<Sent>,
    ) -> Result<Response<Held>, SendError> {
        match line {
            Line::Shared(mut sender, place) => {
                request.headers_mut().remove(http::header::HOST);
                *request.version_mut() = http::Version::HTTP_2;
                let failed = |error: hyper::client::conn::TrySendError<Request<Sent>>| {
                    let returned = error.message().is_some();
                    let source = error.into_error();
                    SendError { failure: retry::failure(&source, returned), source }
                };
                match sender.try_send_request(request).await {
                    Ok(response) => Ok(response.map(|body| Held { body, _place: Some(place) })),
                    Err(error) => {
                        // It may still carry what it carries, but nothing more.
                        self.lines.lock().retain(|line| !Arc::ptr_eq(&line.open, &place.0));
                        Err(failed(error))
                    }
                }
            }
            Line::Single(mut sender) => {
                let failed = |source| SendError { failure: Failure::Broken, source };
                let response = sender.send_request(origin_form(request)).await.map_err(failed)?;
                Ok(response.map(|body| Held { body, _place: None }))
            }
        }
    }

    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.lines.lock().len()
    }
}

/// HTTP/1.1 wants the host in a header and only the path in its first line.
fn origin_form(mut request: Request<Sent>) -> Request<Sent> {
    if let Some(host) = request.uri().authority().and_then(|a| a.as_str().parse().ok()) {
        request.headers_mut().insert(http::header::HOST, host);
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(Default::default, Into::into);
    request
}

/// The body of an answer, which holds its stream's place until it is read or dropped.
pub struct Held {
    body: Incoming,
    _place: Option<Place>,
}

impl Body for Held {
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
