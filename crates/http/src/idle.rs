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

use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;

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
    pub(crate) fn until_read<B>(self, response: Response<B>) -> Response<TrackedBody<B>> {
        response.map(|body| TrackedBody { body, _request: self })
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
    _request: ActiveRequest,
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
            let response = active.until_read(Response::new(Full::new(Bytes::from("here"))));
            // The client reads slowly.
            tokio::time::sleep(Duration::from_secs(500)).await;
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "here");
        });
        requests.wait_idle(LIMIT).await;
        assert_eq!(began.elapsed().as_secs(), 1000 + 500 + LIMIT.as_secs());
        request.await.unwrap();
    }
}
