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
}
