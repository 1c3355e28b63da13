//! Tasks of one HTTP/2 connection, which end with the call that it is for.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// Dropping it ends the tasks, whatever the server does.
#[derive(Default)]
pub(crate) struct ConnectionTasks(Arc<Mutex<JoinSet<()>>>);

impl ConnectionTasks {
    pub(crate) fn executor(&self) -> ConnectionExecutor {
        ConnectionExecutor(Arc::downgrade(&self.0))
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.lock().spawn(work);
    }

    /// Lets the connection close properly, so that the server does not log a broken one.
    pub(crate) async fn close(self) {
        let mut tasks = std::mem::take(&mut *self.0.lock());
        let gone = async { while tasks.join_next().await.is_some() {} };
        // A connection that does not close in time is aborted.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, gone).await;
    }
}

/// Weak, because the tasks hold it too and would otherwise keep themselves alive.
#[derive(Clone)]
pub(crate) struct ConnectionExecutor(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for ConnectionExecutor {
    fn execute(&self, work: F) {
        if let Some(tasks) = self.0.upgrade() {
            tasks.lock().spawn(work);
        }
    }
}
