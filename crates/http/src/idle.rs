//! Idle connections: counts the requests in progress on a connection.
//!
//! HTTP/1 has a timeout for the next request headers. HTTP/2 has none: a client that opens a
//! connection and sends no request, or not even the preface, would keep its connection permit for
//! ever, before it has authenticated. So the requests in progress are counted, from the request to
//! the last byte of its response.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;

use crate::unread::{UnreadLimit, UnreadResponse, UnreadResponses, next_piece};

/// Number of requests in progress on one connection.
#[derive(Clone, Default)]
pub(crate) struct ActiveRequests(Arc<watch::Sender<usize>>);

impl ActiveRequests {
    /// Returns once no request has been in progress for `limit`.
    pub(crate) async fn wait_idle(&self, limit: Duration) {
        let mut active = self.0.subscribe();
        loop {
            // Both waits fail only if the sender is dropped, and `self` holds it.
            let _ = active.wait_for(|count| *count == 0).await;
            let next = active.wait_for(|count| *count > 0);
            if tokio::time::timeout(limit, next).await.is_err() {
                return;
            }
        }
    }

    /// Counts a request as in progress until the returned guard is dropped.
    pub(crate) fn begin(&self) -> ActiveRequest {
        self.0.send_modify(|count| *count += 1);
        ActiveRequest(self.clone())
    }
}

/// Guard of one request in progress, up to the last byte of its response.
pub(crate) struct ActiveRequest(ActiveRequests);

impl ActiveRequest {
    pub(crate) fn until_read<B: Body>(
        self,
        response: Response<B>,
        unread: &UnreadResponses,
    ) -> Response<TrackedBody<B>> {
        let limit = response.extensions().get::<UnreadLimit>().copied();
        response.map(|body| {
            let limit = limit.filter(|_| !body.is_end_stream());
            let unread = limit.map(|limit| unread.begin(limit));
            TrackedBody { body, rest: Bytes::new(), unread, _request: self }
        })
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// Response body that keeps its request counted as in progress until it is dropped.
pub struct TrackedBody<B> {
    body: B,
    /// What the body has returned and the client has not been given.
    rest: Bytes,
    /// Only for a response with an [`UnreadLimit`], which is given in pieces.
    unread: Option<UnreadResponse>,
    _request: ActiveRequest,
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let Some(unread) = &this.unread else {
            return Pin::new(&mut this.body).poll_frame(context);
        };
        unread.taken();
        if this.rest.is_empty() {
            let polled = Pin::new(&mut this.body).poll_frame(context);
            match polled {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other @ (Poll::Ready(Some(Err(_)) | None) | Poll::Pending) => return other,
            }
        }
        let piece = next_piece(&mut this.rest);
        unread.given();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper().and_then(|upper| upper.checked_add(rest)) {
            hint.set_upper(upper);
        }
        hint
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Full};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_time_starts_at_the_last_byte_of_the_last_response() {
        const LIMIT: Duration = Duration::from_secs(90);
        let requests = ActiveRequests::default();
        let active = requests.begin();
        let began = Instant::now();
        let request = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1000)).await;
            let response = Response::new(Full::new(Bytes::from("here")));
            let response = active.until_read(response, &UnreadResponses::default());
            // The client reads slowly.
            tokio::time::sleep(Duration::from_secs(500)).await;
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "here");
        });
        requests.wait_idle(LIMIT).await;
        assert_eq!(began.elapsed().as_secs(), 1000 + 500 + LIMIT.as_secs());
        request.await.unwrap();
    }
}
