//! Blocking work off the async worker threads.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

/// Runs the work on a thread that may block.
///
/// On a single-threaded runtime, as in tests and simulations, it runs as an ordinary task: a
/// simulation must have the same order every time, and threads finish in any order.
pub fn blocking<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => tokio::spawn(async move { act() }),
        _ => tokio::task::spawn_blocking(act),
    }
}

/// Does the work right here and lets the other tasks of this worker thread go on elsewhere: for
/// short work, such as a write that must be on the disk before the caller goes on.
pub fn in_place<T>(act: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(act),
        // A test, or a thread that no task waits for.
        Ok(_) | Err(_) => act(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn work_runs_in_place_on_a_single_threaded_runtime() {
        let here = std::thread::current().id();
        assert_eq!(blocking(move || std::thread::current().id()).await.unwrap(), here);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn work_runs_on_another_thread_on_a_multi_threaded_runtime() {
        let worker = tokio::spawn(async { std::thread::current().id() }).await.unwrap();
        assert_ne!(blocking(|| std::thread::current().id()).await.unwrap(), worker);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_go_on_while_work_is_done_in_place() {
        let (release, released) = std::sync::mpsc::channel();
        let waiting = tokio::spawn(async move {
            // A second task, on the only worker thread.
            tokio::spawn(async move { release.send(()) });
            in_place(|| released.recv_timeout(std::time::Duration::from_secs(30)))
        });
        waiting.await.unwrap().unwrap();
    }

    #[test]
    fn work_is_done_in_place_without_a_runtime() {
        assert_eq!(in_place(|| 1), 1);
    }
}
