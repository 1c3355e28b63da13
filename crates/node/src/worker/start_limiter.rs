//! Start limiter: limits how many pods start at the same time.
//!
//! containerd creates sandboxes no faster with a hundred concurrent calls than with four; each of
//! them only takes longer. So starts are queued: static and critical pods first, then the oldest,
//! and among pods of the same age the one closest to running, so that a started pod is completed
//! before the next one begins. A call that hangs returns its permit after a while: ten pods with a
//! broken network must not keep the eleventh from starting.

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
const HANG_TIMEOUT: Duration = Duration::from_secs(5);

/// The steps of a start, the last one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartStep {
    StartContainer,
    CreateContainer,
    RunSandbox,
    SetUpVolume,
}

/// Position in the queue: smaller is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    ordinary: bool,
    /// Pods that failed before are started after those that did not: a network that is broken for a
    /// hundred pods may work for the next one.
    failed: bool,
    /// In seconds, so that pods created together are equal.
    created: Option<Timestamp>,
    act: StartStep,
}

impl Rank {
    pub fn of(pod: &Pod, act: StartStep) -> Self {
        let priority = pod.object.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        Self {
            ordinary: !pod.is_static() && priority < SYSTEM_CRITICAL,
            failed: false,
            created: pod.object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            act,
        }
    }

    /// The rank of a pod with failed attempts.
    pub fn after_failure(self, failed: bool) -> Self {
        Self { failed, ..self }
    }
}

#[derive(Debug)]
struct Waiter {
    rank: Rank,
    arrival: u64,
    admit: oneshot::Sender<StartPermit>,
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
pub struct StartLimiter(Arc<Mutex<Queue>>);

/// A permit for one start call. Returned when dropped.
#[derive(Debug)]
pub struct StartPermit(Option<StartLimiter>);

impl StartPermit {
    /// Holds the permit while `call` runs, at most for `HANG_TIMEOUT`.
    pub async fn during<T>(self, call: impl Future<Output = T>) -> T {
        tokio::pin!(call);
        tokio::select! { biased;
            result = &mut call => return result,
            () = tokio::time::sleep(HANG_TIMEOUT) => drop(self),
        }
        call.await
    }
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        if let Some(start_limiter) = self.0.take() {
            start_limiter.release();
        }
    }
}

impl StartLimiter {
    pub fn new(permits: usize) -> Self {
        let queue = Queue { free: permits.max(1), arrivals: 0, waiting: BinaryHeap::new() };
        Self(Arc::new(Mutex::new(queue)))
    }

    /// Waits for a permit. Dropping the future leaves the queue.
    pub async fn acquire(&self, rank: Rank) -> StartPermit {
        let admitted = {
            let mut queue = self.0.lock();
            if queue.free > 0 && queue.waiting.is_empty() {
                queue.free -= 1;
                return StartPermit(Some(self.clone()));
            }
            let (admit, admitted) = oneshot::channel();
            let arrival = queue.arrivals;
            queue.arrivals += 1;
            queue.waiting.push(Reverse(Waiter { rank, arrival, admit }));
            admitted
        };
        // The sender is in the queue, which `self` keeps.
        admitted.await.unwrap_or(StartPermit(None))
    }

    fn release(&self) {
        let mut queue = self.0.lock();
        queue.free += 1;
        while queue.free > 0 {
            let Some(Reverse(next)) = queue.waiting.pop() else { break };
            queue.free -= 1;
            // A waiter that left returns the permit unused; disarm it, or its drop would lock
            // again.
            if let Err(mut permit) = next.admit.send(StartPermit(Some(self.clone()))) {
                permit.0 = None;
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
        Rank { ordinary, failed: false, created, act: StartStep::RunSandbox }
    }

    /// The order in which these get the only permit, all of them waiting for it.
    async fn order(waiting: &[(&'static str, Rank)]) -> Vec<&'static str> {
        let start_limiter = StartLimiter::new(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = start_limiter.acquire(rank(true, 0)).await;
        let mut tasks = Vec::new();
        for &(name, rank) in waiting {
            let (start_limiter, order) = (start_limiter.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                start_limiter.acquire(rank).await.during(async { order.lock().push(name) }).await;
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
    async fn among_pods_of_the_same_age_the_most_advanced_start_goes_first() {
        let at = |second, act| Rank { act, ..rank(true, second) };
        let waiting = [
            ("third", at(1, StartStep::RunSandbox)),
            ("younger", at(2, StartStep::StartContainer)),
            ("fourth", at(1, StartStep::RunSandbox)),
            ("second", at(1, StartStep::CreateContainer)),
            ("first", at(1, StartStep::StartContainer)),
        ];
        assert_eq!(order(&waiting).await, ["first", "second", "third", "fourth", "younger"]);
    }

    #[tokio::test(start_paused = true)]
    async fn hung_call_returns_its_permit() {
        let start_limiter = StartLimiter::new(2);
        let began = tokio::time::Instant::now();
        for _ in 0..10 {
            let start_limiter = start_limiter.clone();
            tokio::spawn(async move {
                start_limiter
                    .acquire(rank(true, 0))
                    .await
                    .during(std::future::pending::<()>())
                    .await;
            });
        }
        tokio::task::yield_now().await;
        start_limiter.acquire(rank(true, 1)).await.during(async {}).await;
        assert!(began.elapsed() <= HANG_TIMEOUT * 5, "ten hung calls with two permits");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_waiter_does_not_keep_a_permit() {
        let start_limiter = StartLimiter::new(1);
        let held = start_limiter.acquire(rank(true, 0)).await;
        {
            let gone = start_limiter.acquire(rank(true, 1));
            tokio::pin!(gone);
            assert!(futures::poll!(&mut gone).is_pending());
        }
        drop(held);
        start_limiter.acquire(rank(true, 2)).await.during(async {}).await;
    }
}
