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

use parking_lot::Mutex;
use podwright_core::start_order::{QueuePosition, Rank};
use tokio::sync::oneshot;

/// After this long a call is assumed to hang and no longer counts.
const HANG_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Waiter {
    position: QueuePosition,
    admit: oneshot::Sender<StartPermit>,
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.position == other.position
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
        self.position.cmp(&other.position)
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
            let position = QueuePosition { rank, arrival };
            queue.waiting.push(Reverse(Waiter { position, admit }));
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
    use podwright_core::admission::SYSTEM_CRITICAL;
    use podwright_core::builders::pod;
    use podwright_core::start_order::StartStep;
    use serde_json::json;

    use super::*;

    fn rank(critical: bool, second: i64) -> Rank {
        at(critical, second, StartStep::RunSandbox)
    }

    fn at(critical: bool, second: i64, step: StartStep) -> Rank {
        let created = jiff::Timestamp::from_second(second).unwrap().to_string();
        let pod = pod("p").edit(|pod| pod["metadata"]["creationTimestamp"] = json!(created));
        let priority = if critical { SYSTEM_CRITICAL } else { 0 };
        Rank::of(&pod.spec("priority", json!(priority)).build(), step)
    }

    /// The order in which these get the only permit, all of them waiting for it.
    async fn order(waiting: &[(&'static str, Rank)]) -> Vec<&'static str> {
        let start_limiter = StartLimiter::new(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = start_limiter.acquire(rank(false, 0)).await;
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
            [("young", rank(false, 9)), ("old", rank(false, 1)), ("static", rank(true, 10))];
        assert_eq!(order(&waiting).await, ["static", "old", "young"]);
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_failed_before_wait_for_those_that_did_not() {
        let waiting = [
            ("old and failed", rank(false, 1).after_failure(true)),
            ("young", rank(false, 9)),
            ("static and failed", rank(true, 10).after_failure(true)),
        ];
        let wanted = ["static and failed", "young", "old and failed"];
        assert_eq!(order(&waiting).await, wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn among_pods_of_the_same_age_the_most_advanced_start_goes_first() {
        let at = |second, step| at(false, second, step);
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
                    .acquire(rank(false, 0))
                    .await
                    .during(std::future::pending::<()>())
                    .await;
            });
        }
        tokio::task::yield_now().await;
        start_limiter.acquire(rank(false, 1)).await.during(async {}).await;
        assert!(began.elapsed() <= HANG_TIMEOUT * 5, "ten hung calls with two permits");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_waiter_does_not_keep_a_permit() {
        let start_limiter = StartLimiter::new(1);
        let held = start_limiter.acquire(rank(false, 0)).await;
        {
            let gone = start_limiter.acquire(rank(false, 1));
            tokio::pin!(gone);
            assert!(futures::poll!(&mut gone).is_pending());
        }
        drop(held);
        start_limiter.acquire(rank(false, 2)).await.during(async {}).await;
    }
}
