//! Connections on which nothing is asked.
//!
//! An HTTP/1 connection has to bring its next headers in time. An HTTP/2 connection has no such
//! limit of its own: a client that opens one and asks nothing, or does not even greet, would keep
//! its place for ever, and nobody has asked for its name yet. So what is under way on a connection
//! is counted, from the request to the last byte of its answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;

/// How many requests of one connection are under way.
#[derive(Clone, Default)]
pub(crate) struct Business(Arc<watch::Sender<usize>>);

impl Business {
    /// Returns when nothing was under way for so long.
    pub(crate) async fn rests_for(&self, limit: Duration) {
        let mut under_way = self.0.subscribe();
        loop {
            // Both waits end with an error only if the sender is gone, and it is ours.
            let _ = under_way.wait_for(|count| *count == 0).await;
            let next = under_way.wait_for(|count| *count > 0);
            if tokio::time::timeout(limit, next).await.is_err() {
                return;
            }
        }
    }

    /// Something is asked; it is under way until what this returns is dropped.
    pub(crate) fn begin(&self) -> UnderWay {
        self.0.send_modify(|count| *count += 1);
        UnderWay(self.clone())
    }
}

/// A request and its answer, up to the last byte of that.
pub(crate) struct UnderWay(Business);

impl UnderWay {
    pub(crate) fn until_read<B>(self, answer: Response<B>) -> Response<Held<B>> {
        answer.map(|body| Held { body, _under_way: self })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// A body that is under way until it is dropped.
pub struct Held<B> {
    body: B,
    _under_way: UnderWay,
}

impl<B: Body + Unpin> Body for Held<B> {
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
    async fn a_connection_rests_from_the_last_byte_of_its_last_answer() {
        const LIMIT: Duration = Duration::from_secs(90);
        let business = Business::default();
        let under_way = business.begin();
        let began = Instant::now();
        let asked = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1000)).await;
            let answer = under_way.until_read(Response::new(Full::new(Bytes::from("here"))));
            // Read slowly.
            tokio::time::sleep(Duration::from_secs(500)).await;
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "here");
        });
        business.rests_for(LIMIT).await;
        assert_eq!(began.elapsed().as_secs(), 1000 + 500 + LIMIT.as_secs());
        asked.await.unwrap();
    }
}
