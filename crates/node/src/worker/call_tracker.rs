//! Call tracker: runs each mutating runtime call of one pod to its end.
//!
//! The worker may stop waiting for a call, but the next plan of the pod begins only when all calls
//! of the last one have ended: the effect of two concurrent calls on one container is undefined.
//! One exception: a second stop may shorten the grace period of a container that is being stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::ids::ContainerId;
use podwright_cri as cri;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

/// Time for a hook to end by itself after its container has ended.
const HOOK_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Default)]
pub(crate) struct CallTracker {
    in_progress: Arc<watch::Sender<usize>>,
    /// Containers that are being stopped, with the shortest grace period of any stop.
    stopping: Arc<Mutex<BTreeMap<ContainerId, Duration>>>,
    /// preStop hooks in progress.
    hooks: Arc<Mutex<BTreeMap<ContainerId, Hook>>>,
}

/// A hook, started once no matter how often its container is stopped.
#[derive(Clone, Debug)]
struct Hook {
    ended: watch::Receiver<Option<Result<(), String>>>,
    /// Aborted when the last reference is dropped.
    task: Arc<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl CallTracker {
    /// Stops a container; until that is done, [`Self::shorten_grace`] can shorten its grace period.
    pub(crate) async fn stop(
        &self,
        runtime: &cri::Client,
        id: ContainerId,
        grace: Duration,
    ) -> Result<(), cri::Error> {
        finished(self.begin_stop(runtime, id, grace)).await
    }

    /// Runs the preStop hook of a container, or waits for it if it is already running: it must not
    /// run twice when the grace period is shortened. `None`: it exceeds the limit and continues
    /// until its container has ended.
    pub(super) async fn hook(
        &self,
        id: &ContainerId,
        limit: Duration,
        run: impl Future<Output = Result<(), String>> + Send + 'static,
    ) -> Option<Result<(), String>> {
        let Hook { mut ended, task: _kept } =
            self.hooks.lock().entry(id.clone()).or_insert_with(|| start_hook(run)).clone();
        match tokio::time::timeout(limit, ended.wait_for(Option::is_some)).await {
            Ok(Ok(end)) => end.clone(),
            // Only a task that panicked ends without a result.
            Ok(Err(_)) => Some(Err("the hook was aborted".into())),
            Err(_) => None,
        }
    }

    /// Whether the preStop hook of a container is in progress, or was run, in this process.
    pub(super) fn has_hook(&self, id: &ContainerId) -> bool {
        self.hooks.lock().contains_key(id)
    }

    /// Aborts the hooks of containers that are no longer running.
    pub(super) fn retain_hooks(&self, of: impl Fn(&ContainerId) -> bool) {
        self.hooks.lock().retain(|id, _| of(id));
    }

    /// Limits the grace period of all containers that are being stopped.
    pub(super) fn shorten_grace(&self, runtime: &cri::Client, grace: Duration) {
        let slow = |(id, given): (&ContainerId, &Duration)| (*given > grace).then(|| id.clone());
        let slow: Vec<ContainerId> = self.stopping.lock().iter().filter_map(slow).collect();
        for id in slow {
            // Not awaited here: `idle` waits for it.
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

    /// Runs a call that cannot be cancelled. Dropping the returned future drops only the wait.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> T {
        finished(self.begin(call)).await
    }

    fn begin<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.in_progress.send_modify(|count| *count += 1);
        let guard = CallGuard(self.in_progress.clone());
        tokio::spawn(async move {
            let _guard = guard;
            call.await
        })
    }

    /// Waits until no call is in progress.
    pub(super) async fn idle(&self) {
        let mut count = self.in_progress.subscribe();
        // The sender is owned by `self`.
        let _ = count.wait_for(|count| *count == 0).await;
    }
}

impl Hook {
    /// Waits briefly, then aborts: a command ends with its container, a sleep does not.
    async fn end(mut self) {
        let _ = tokio::time::timeout(HOOK_EXIT_TIMEOUT, self.ended.wait_for(Option::is_some)).await;
    }
}

fn start_hook(run: impl Future<Output = Result<(), String>> + Send + 'static) -> Hook {
    let (result, ended) = watch::channel(None);
    let task = tokio::spawn(async move { drop(result.send_replace(Some(run.await))) });
    Hook { ended, task: Arc::new(AbortOnDrop(task.abort_handle())) }
}

async fn finished<T>(task: JoinHandle<T>) -> T {
    match task.await {
        Ok(result) => result,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The tokio runtime is shutting down; the caller is dropped as well.
            Err(_) => std::future::pending().await,
        },
    }
}

struct CallGuard(Arc<watch::Sender<usize>>);

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hook_runs_once_when_its_container_is_stopped_several_times() {
        let call_tracker = CallTracker::default();
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
        // The grace period is shortened: the first wait is dropped after five seconds.
        let first = tokio::time::timeout(s(5), call_tracker.hook(&id, s(60), run())).await;
        assert!(first.is_err());
        assert_eq!(call_tracker.hook(&id, s(30), run()).await, Some(Ok(())));
        assert_eq!((began.elapsed(), *runs.lock()), (s(20), 1));
        let slow = ContainerId::new("slow");
        assert_eq!(call_tracker.hook(&slow, s(3), run()).await, None, "it continues");
        assert_eq!(call_tracker.hook(&slow, s(18), run()).await, Some(Ok(())));
        assert_eq!(*runs.lock(), 2);
        let (ended, mut seen) = watch::channel(());
        let hangs = async move {
            let _ended = ended;
            std::future::pending().await
        };
        let gone = ContainerId::new("gone");
        assert_eq!(call_tracker.hook(&gone, s(1), hangs).await, None);
        call_tracker.retain_hooks(|id| *id != gone);
        assert!(seen.changed().await.is_err(), "it ends with its container");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_waits_for_a_call_whose_caller_was_dropped() {
        let call_tracker = CallTracker::default();
        let began = tokio::time::Instant::now();
        let call = call_tracker.run(tokio::time::sleep(Duration::from_secs(30)));
        assert!(tokio::time::timeout(Duration::from_secs(1), call).await.is_err());
        call_tracker.idle().await;
        assert_eq!(began.elapsed(), Duration::from_secs(30));
    }
}
