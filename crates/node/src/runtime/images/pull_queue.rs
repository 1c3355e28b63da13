//! Queue of pulls: limits how many run at a time and lets those of the first rank go first.

use std::sync::Arc;

use parking_lot::Mutex;
use podwright_core::start_order::{QueuePosition, Rank};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

#[derive(Clone)]
pub(super) struct PullQueue(Arc<Mutex<State>>);

struct State {
    free: usize,
    arrivals: u64,
    waiting: Vec<Waiter>,
}

struct Waiter {
    position: QueuePosition,
    admit: oneshot::Sender<PullPermit>,
}

/// A permit for one pull. Returned when dropped; `None`: beyond the limit.
pub(super) struct PullPermit(Option<PullQueue>);

impl Drop for PullPermit {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            let mut state = queue.0.lock();
            state.free += 1;
            queue.admit(&mut state);
        }
    }
}

/// A pull in the queue. Leaves it when dropped.
pub(super) struct QueuedPull {
    place: PullPlace,
    entered: Instant,
    admitted: oneshot::Receiver<PullPermit>,
}

/// Where a pull is in the queue, to give it a better rank.
#[derive(Clone)]
pub(super) struct PullPlace {
    queue: PullQueue,
    arrival: u64,
    raised: Arc<Notify>,
}

impl PullQueue {
    pub(super) fn new(permits: usize) -> Self {
        let state = State { free: permits.max(1), arrivals: 0, waiting: Vec::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn enter(&self, rank: Rank) -> QueuedPull {
        let (admit, admitted) = oneshot::channel();
        let mut state = self.0.lock();
        let arrival = state.arrivals;
        state.arrivals += 1;
        state.waiting.push(Waiter { position: QueuePosition { rank, arrival }, admit });
        self.admit(&mut state);
        let place = PullPlace { queue: self.clone(), arrival, raised: Arc::default() };
        QueuedPull { place, entered: Instant::now(), admitted }
    }

    fn admit(&self, state: &mut State) {
        while state.free > 0 {
            let positions = state.waiting.iter().enumerate();
            let first = positions.min_by_key(|(_, waiter)| waiter.position);
            let Some(first) = first.map(|(index, _)| index) else { break };
            let waiter = state.waiting.swap_remove(first);
            state.free -= 1;
            // A waiter that left returns the permit unused; disarm it, or its drop would lock
            // again.
            if let Err(mut permit) = waiter.admit.send(PullPermit(Some(self.clone()))) {
                permit.0 = None;
                state.free += 1;
            }
        }
    }

    /// False: the pull was admitted before.
    fn leave(&self, arrival: u64) -> bool {
        let mut state = self.0.lock();
        let before = state.waiting.len();
        state.waiting.retain(|waiter| waiter.position.arrival != arrival);
        state.waiting.len() < before
    }
}

impl PullPlace {
    /// A pod of this rank needs the pull as well.
    pub(super) fn raise(&self, rank: Rank) {
        let mut state = self.queue.0.lock();
        let waiter =
            state.waiting.iter_mut().find(|waiter| waiter.position.arrival == self.arrival);
        if let Some(waiter) = waiter.filter(|waiter| rank < waiter.position.rank) {
            waiter.position.rank = rank;
            self.raised.notify_one();
        }
    }

    fn rank(&self) -> Option<Rank> {
        let state = self.queue.0.lock();
        let waiter = state.waiting.iter().find(|waiter| waiter.position.arrival == self.arrival);
        waiter.map(|waiter| waiter.position.rank)
    }
}

impl QueuedPull {
    pub(super) fn place(&self) -> PullPlace {
        self.place.clone()
    }

    /// Waits for a permit, or until a pull of this rank may start without one.
    pub(super) async fn admitted(mut self) -> PullPermit {
        loop {
            let longest = self.place.rank().and_then(Rank::longest_pull_wait);
            let until = longest.map(|longest| self.entered + longest);
            let wait_ends = async move {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! { biased;
                // Cancel-safe: a permit that was sent stays in the channel.
                permit = &mut self.admitted => return permit.unwrap_or(PullPermit(None)),
                // Cancel-safe: the rank is read again in every round.
                () = self.place.raised.notified() => {}
                () = wait_ends => {
                    if self.place.queue.leave(self.place.arrival) {
                        tracing::warn!(
                            "no image pull ended while a pull of a static or critical pod waited, \
                             starting it beyond the limit of parallel pulls"
                        );
                        return PullPermit(None);
                    }
                }
            }
        }
    }
}

impl Drop for QueuedPull {
    fn drop(&mut self) {
        self.place.queue.leave(self.place.arrival);
    }
}
