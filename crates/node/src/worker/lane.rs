//! Mutating calls of one pod, each of which runs to its end.
//!
//! The worker may stop waiting for a call, but the pod's next plan begins only when all calls of
//! the last one have ended: two of them at once on one container would be anybody's guess. One
//! exception: a container that is being stopped may be given less time by a second stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::ids::ContainerId;
use podwright_cri as cri;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

/// For a hook to notice that its container has ended.
const AFTERMATH: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    under_way: Arc<watch::Sender<usize>>,
    /// Containers that are being stopped, with the least time any stop gave them.
    stopping: Arc<Mutex<BTreeMap<ContainerId, Duration>>>,
    /// Hooks that run before a container is stopped.
    hooks: Arc<Mutex<BTreeMap<ContainerId, Hook>>>,
}

/// A hook, begun once, however often its container is to be stopped.
#[derive(Clone, Debug)]
struct Hook {
    ended: watch::Receiver<Option<Result<(), String>>>,
    /// Ends with the last who cares for it.
    task: Arc<Task>,
}

#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Lane {
    /// Stops a container; until that is done, [`Self::hurry`] can give it less time.
    pub(super) async fn stop(
        &self,
        runtime: &cri::Client,
        id: ContainerId,
        grace: Duration,
    ) -> Result<(), cri::Error> {
        finished(self.begin_stop(runtime, id, grace)).await
    }

    /// Runs a container's last hook, or waits for it if it was begun before: a pod that is given less
    /// time meanwhile does not do it twice. `None`: it takes too long; it goes on until its container
    /// has ended.
    pub(super) async fn hook(
        &self,
        id: &ContainerId,
        limit: Duration,
        run: impl Future<Output = Result<(), String>> + Send + 'static,
    ) -> Option<Result<(), String>> {
        let Hook { mut ended, task: _kept } =
            self.hooks.lock().entry(id.clone()).or_insert_with(|| begun(run)).clone();
        match tokio::time::timeout(limit, ended.wait_for(Option::is_some)).await {
            Ok(Ok(end)) => end.clone(),
            // Only a task that panicked ends without a word.
            Ok(Err(_)) => Some(Err("the hook was cut off".into())),
            Err(_) => None,
        }
    }

    /// Ends the hooks of containers that ended by themselves.
    pub(super) fn keep_hooks(&self, of: impl Fn(&ContainerId) -> bool) {
        self.hooks.lock().retain(|id, _| of(id));
    }

    /// Whatever is being stopped gets no more than this from now on.
    pub(super) fn hurry(&self, runtime: &cri::Client, grace: Duration) {
        let slow = |(id, given): (&ContainerId, &Duration)| (*given > grace).then(|| id.clone());
        let slow: Vec<ContainerId> = self.stopping.lock().iter().filter_map(slow).collect();
        for id in slow {
            // Nobody waits for it by itself: the lane is not idle before it has ended.
            drop(self.begin_stop(runtime, id, grace));
        }
    }

    fn begin_stop(
        &self,
        runtime: &cri::Client,
        id: ContainerId,
        grace: Duration,
    ) -> JoinHandle<Result<(), cri::Error>> {
        self.stopping.lock().insert(id.clone(), grace);
        let (runtime, stopping) = (runtime.clone(), self.stopping.clone());
        let hooks = self.hooks.clone();
        self.begin(async move {
            let stopped = runtime.stop_container(&id, grace).await;
            stopping.lock().remove(&id);
            let over = if stopped.is_ok() { hooks.lock().remove(&id) } else { None };
            if let Some(hook) = over {
                tokio::spawn(hook.end());
            }
            stopped
        })
    }

    /// Runs a call that nobody can cancel. Dropping the returned future drops only the wait.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        finished(self.begin(call)).await
    }

    fn begin<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.under_way.send_modify(|count| *count += 1);
        let under_way = UnderWay(self.under_way.clone());
        tokio::spawn(async move {
            let _under_way = under_way;
            call.await
        })
    }

    /// Waits until no call is under way.
    pub(super) async fn idle(&self) {
        let mut count = self.under_way.subscribe();
        // The sender lives as long as `self`.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

impl Hook {
    /// Its container has ended, and so will a command in it; a sleep would not.
    async fn end(mut self) {
        let _ = tokio::time::timeout(AFTERMATH, self.ended.wait_for(Option::is_some)).await;
    }
}

fn begun(run: impl Future<Output = Result<(), String>> + Send + 'static) -> Hook {
    let (tell, ended) = watch::channel(None);
    let task = tokio::spawn(async move { drop(tell.send_replace(Some(run.await))) });
    Hook { ended, task: Arc::new(Task(task.abort_handle())) }
}

async fn finished<T>(task: JoinHandle<T>) -> T {
    match task.await {
        Ok(result) => result,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down around us; there is nobody left to answer.
            Err(_) => std::future::pending().await,
        },
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
    async fn a_hook_is_run_once_however_often_its_container_is_to_be_stopped() {
        let lane = Lane::default();
        let runs = Arc::new(Mutex::new(0));
        let run = || {
            let runs = runs.clone();
            async move {
                *runs.lock() += 1;
                tokio::time::sleep(Duration::from_secs(20)).await;
                Ok(())
            }
        };
        let (id, s) = (ContainerId::new("c"), Duration::from_secs);
        let began = tokio::time::Instant::now();
        // Less time: the first wait is given up after five seconds.
        let first = tokio::time::timeout(s(5), lane.hook(&id, s(60), run())).await;
        assert!(first.is_err());
        assert_eq!(lane.hook(&id, s(30), run()).await, Some(Ok(())));
        assert_eq!((began.elapsed(), *runs.lock()), (s(20), 1));
        let slow = ContainerId::new("slow");
        assert_eq!(lane.hook(&slow, s(3), run()).await, None, "it goes on");
        assert_eq!(lane.hook(&slow, s(18), run()).await, Some(Ok(())));
        assert_eq!(*runs.lock(), 2);
        let (ended, mut seen) = watch::channel(());
        let hangs = async move {
            let _ended = ended;
            std::future::pending().await
        };
        let gone = ContainerId::new("gone");
        assert_eq!(lane.hook(&gone, s(1), hangs).await, None);
        lane.keep_hooks(|id| *id != gone);
        assert!(seen.changed().await.is_err(), "it ends with its container");
    }

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
