//! Unread responses: hands a response over in small pieces and notices when the client takes none.
//!
//! A client that grants no flow-control window, or does not read its socket, makes the server keep
//! the response for as long as the connection is open. A stream that a person reads, such as a log
//! in a pager, may pause; an answer of an API may not. So a handler opts in with [`UnreadLimit`].
//!
//! Pieces, because HTTP/2 takes a whole frame of the body as soon as one byte of window is open,
//! and the response would no longer count as being sent while all of it is still in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Bytes that are handed over at a time: what a connection may hold of a response that is not
/// read, for each of its streams.
pub(crate) const PIECE_BYTES: usize = 8 << 10;

/// In the extensions of a response: the connection is closed if the client takes nothing of the
/// body for this long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadLimit(pub Duration);

/// The responses of one connection that wait for the client, each with its deadline.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnreadResponses(Arc<Mutex<Deadlines>>);

#[derive(Debug, Default)]
struct Deadlines {
    last_id: u64,
    by_id: BTreeMap<u64, Instant>,
}

impl UnreadResponses {
    /// Begins to watch a response.
    pub(crate) fn begin(&self, UnreadLimit(limit): UnreadLimit) -> UnreadResponse {
        let mut deadlines = self.0.lock();
        deadlines.last_id += 1;
        let response = UnreadResponse { all: self.clone(), id: deadlines.last_id, limit };
        deadlines.by_id.insert(response.id, Instant::now() + limit);
        response
    }

    /// Returns once a response has waited for the client until its deadline.
    pub(crate) async fn wait_overdue(&self, check: Duration) {
        loop {
            tokio::time::sleep(check).await;
            let now = Instant::now();
            if self.0.lock().by_id.values().any(|deadline| *deadline <= now) {
                return;
            }
        }
    }
}

/// One response; dropped with its body.
#[derive(Debug)]
pub(crate) struct UnreadResponse {
    all: UnreadResponses,
    id: u64,
    limit: Duration,
}

impl UnreadResponse {
    /// The client is ready for more.
    pub(crate) fn taken(&self) {
        self.all.0.lock().by_id.remove(&self.id);
    }

    /// The client has been given something, and nothing else can be sent until it is ready again.
    pub(crate) fn given(&self) {
        self.all.0.lock().by_id.insert(self.id, Instant::now() + self.limit);
    }
}

impl Drop for UnreadResponse {
    fn drop(&mut self) {
        self.taken();
    }
}

/// Takes the next piece of `rest`. It is copied, so that it does not keep all of the response in
/// memory.
pub(crate) fn next_piece(rest: &mut Bytes) -> Bytes {
    let piece = rest.split_to(rest.len().min(PIECE_BYTES));
    Bytes::copy_from_slice(&piece)
}
