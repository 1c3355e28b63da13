//! Lets only so many starts through the runtime at a time.
//!
//! containerd makes sandboxes no faster with a hundred calls under way than with four; it only
//! makes every one of them late. So starts take turns: static and critical pods first, then the
//! oldest, and of those as old the one that is nearest to running: a pod that was begun is ended
//! before the next one begins. A call that hangs gives its place back after a while: ten pods with
//! a broken network must not keep the eleventh from starting.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use podwright_core::admission::SYSTEM_CRITICAL;
use podwright_core::pod::Pod;
use tokio::sync::oneshot;

/// After this long a call is assumed to hang and no longer counts.
const PATIENCE: Duration = Duration::from_secs(5);

/// The acts of a start, the last one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    StartContainer,
    CreateContainer,
    RunSandbox,
    SetUpVolume,
}

/// Who goes first: smaller is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    ordinary: bool,
    /// Whoever failed before waits for those who may not: a network that is broken for a hundred
    /// pods is not broken for the next one.
    failed: bool,
    /// To the second, so that pods made together tie.
    created: Option<Timestamp>,
    act: Act,
}

impl Rank {
    pub fn of(pod: &Pod, act: Act) -> Self {
        let priority = pod.object.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        Self {
            ordinary: !pod.is_static() && priority < SYSTEM_CRITICAL,
            failed: false,
            created: pod.object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            act,
        }
    }

    /// The same for a pod of which something failed before.
    pub fn after_failure(self, failed: bool) -> Self {
        Self { failed, ..self }
    }
}

#[derive(Debug)]
struct Waiter {
    rank: Rank,
    arrival: u64,
    admit: oneshot::Sender<Place>,
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        (self.rank, self.arrival) == (other.rank, other.arrival)
    }
}
impl Eq for Waiter {}
impl PartialOrd for Waiter {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiter {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.rank, self.arrival).cmp(&(other.rank, other.arrival))
    }
}

#[derive(Debug)]
struct Queue {
    free: usize,
    arrivals: u64,
    waiting: BinaryHeap<Reverse<Waiter>>,
}

#[derive(Clone, Debug)]
pub struct Gate(Arc<Mutex<Queue>>);

/// A place in the runtime. Given back when dropped.
#[derive(Debug)]
pub struct Place(Option<Gate>);

impl Place {
    /// Holds the place while `call` runs, but not for long.
    pub async fn during<T>(self, call: impl Future<Output = T>) -> T {
        tokio::pin!(call);
        tokio::select! { biased;
            result = &mut call => return result,
            () = tokio::time::sleep(PATIENCE) => drop(self),
        }
        call.await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.give_back();
        }
    }
}

impl Gate {
    pub fn new(places: usize) -> Self {
        let queue = Queue { free: places.max(1), arrivals: 0, waiting: BinaryHeap::new() };
        Self(Arc::new(Mutex::new(queue)))
    }

    /// Waits until it is this pod's turn. Whoever stops waiting leaves the queue.
    pub async fn enter(&self, rank: Rank) -> Place {
        let admitted = {
            let mut queue = self.0.lock();
            if queue.free > 0 && queue.waiting.is_empty() {
                queue.free -= 1;
                return Place(Some(self.clone()));
            }
            let (admit, admitted) = oneshot::channel();
            let arrival = queue.arrivals;
            queue.arrivals += 1;
            queue.waiting.push(Reverse(Waiter { rank, arrival, admit }));
            admitted
        };
        // The sender lives in the queue, and the queue lives as long as we hold `self`.
        admitted.await.unwrap_or(Place(None))
    }

    fn give_back(&self) {
        let mut queue = self.0.lock();
        queue.free += 1;
        while queue.free > 0 {
            let Some(Reverse(next)) = queue.waiting.pop() else { break };
            queue.free -= 1;
            // A waiter that left returns the place unused; disarm it so as not to lock again.
            if let Err(mut place) = next.admit.send(Place(Some(self.clone()))) {
                place.0 = None;
                queue.free += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(ordinary: bool, second: i64) -> Rank {
        let created = Timestamp::from_second(second).ok();
        Rank { ordinary, failed: false, created, act: Act::RunSandbox }
    }

    /// The order in which these pass a gate of one place, all of them waiting for it.
    async fn order(waiting: &[(&'static str, Rank)]) -> Vec<&'static str> {
        let gate = Gate::new(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = gate.enter(rank(true, 0)).await;
        let mut tasks = Vec::new();
        for &(name, rank) in waiting {
            let (gate, order) = (gate.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                gate.enter(rank).await.during(async { order.lock().push(name) }).await;
            }));
        }
        tokio::task::yield_now().await;
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        Arc::try_unwrap(order).unwrap().into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn critical_pods_go_first_and_then_the_oldest() {
        let waiting =
            [("young", rank(true, 9)), ("old", rank(true, 1)), ("static", rank(false, 10))];
        assert_eq!(order(&waiting).await, ["static", "old", "young"]);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_failed_before_wait_for_those_that_did_not() {
        let waiting = [
            ("old and failed", rank(true, 1).after_failure(true)),
            ("young", rank(true, 9)),
            ("static and failed", rank(false, 10).after_failure(true)),
        ];
        let wanted = ["static and failed", "young", "old and failed"];
        assert_eq!(order(&waiting).await, wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn of_pods_as_old_those_that_were_begun_are_ended_first() {
        let at = |second, act| Rank { act, ..rank(true, second) };
        let waiting = [
            ("third", at(1, Act::RunSandbox)),
            ("younger", at(2, Act::StartContainer)),
            ("fourth", at(1, Act::RunSandbox)),
            ("second", at(1, Act::CreateContainer)),
            ("first", at(1, Act::StartContainer)),
        ];
        assert_eq!(order(&waiting).await, ["first", "second", "third", "fourth", "younger"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_gives_its_place_back() {
        let gate = Gate::new(2);
        let began = tokio::time::Instant::now();
        for _ in 0..10 {
            let gate = gate.clone();
            tokio::spawn(async move {
                gate.enter(rank(true, 0)).await.during(std::future::pending::<()>()).await;
            });
        }
        tokio::task::yield_now().await;
        gate.enter(rank(true, 1)).await.during(async {}).await;
        assert!(began.elapsed() <= PATIENCE * 5, "ten hung calls through two places");
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gave_up_does_not_take_a_place_with_it() {
        let gate = Gate::new(1);
        let held = gate.enter(rank(true, 0)).await;
        {
            let gone = gate.enter(rank(true, 1));
            tokio::pin!(gone);
            assert!(futures::poll!(&mut gone).is_pending());
        }
        drop(held);
        gate.enter(rank(true, 2)).await.during(async {}).await;
    }
}
