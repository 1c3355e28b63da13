//! Mutating calls of one pod, each of which runs to its end.
//!
//! The worker may stop waiting for a call, but the pod's next plan begins only when all calls of
//! the last one have ended: two of them at once on one container would be anybody's guess.

use std::sync::Arc;

use tokio::sync::watch;

#[derive(Clone, Debug, Default)]
pub(super) struct Lane(Arc<watch::Sender<usize>>);

impl Lane {
    /// Runs a call that nobody can cancel. Dropping the returned future drops only the wait.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.0.send_modify(|count| *count += 1);
        let under_way = UnderWay(self.0.clone());
        let task = tokio::spawn(async move {
            let _under_way = under_way;
            call.await
        });
        match task.await {
            Ok(result) => result,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down around us; there is nobody left to answer.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Waits until no call is under way.
    pub(super) async fn idle(&self) {
        let mut count = self.0.subscribe();
        // The sender lives as long as `self`.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

struct UnderWay(Arc<watch::Sender<usize>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_nobody_waits_for_ends_before_the_lane_is_idle() {
        let lane = Lane::default();
        let began = tokio::time::Instant::now();
        let call = lane.run(tokio::time::sleep(Duration::from_secs(30)));
        assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
        lane.idle().await;
        assert_eq!(began.elapsed(), Duration::from_secs(30));
    }
}
