//! Work that would hold up a worker thread.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::JoinHandle;

/// Does the work on a thread that may wait for the kernel.
///
/// A runtime of one thread is a test's or a simulation's. There it becomes a task like any other:
/// a simulation must end in the same order every time, and threads come back as they please.
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
    async fn on_one_thread_it_is_done_there() {
        let here = std::thread::current().id();
        assert_eq!(blocking(move || std::thread::current().id()).await.unwrap(), here);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn on_more_it_is_done_elsewhere() {
        let worker = tokio::spawn(async { std::thread::current().id() }).await.unwrap();
        assert_ne!(blocking(|| std::thread::current().id()).await.unwrap(), worker);
    }
}
