//! Liveness and readiness: read by probes, set by tests.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HealthState {
    pub(super) live: bool,
    pub(super) ready: bool,
}

pub(super) struct Health(watch::Sender<HealthState>);

impl Health {
    pub(super) fn new(ready: bool) -> Self {
        Self(watch::Sender::new(HealthState { live: true, ready }))
    }

    pub(super) fn now(&self) -> HealthState {
        *self.0.borrow()
    }

    pub(super) fn set_live(&self, live: bool) {
        self.0.send_modify(|state| state.live = live);
    }

    pub(super) fn set_ready(&self, ready: bool) {
        self.0.send_modify(|state| state.ready = ready);
    }

    /// Starts the tasks that change the health over time and mirror it in a file.
    pub(super) fn schedule(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        ready_after: Option<Duration>,
        fail_after: Option<Duration>,
        file: Option<PathBuf>,
    ) {
        if let Some(after) = ready_after {
            let health = Arc::clone(self);
            tasks.spawn(async move {
                tokio::time::sleep(after).await;
                health.set_ready(true);
            });
        }
        if let Some(after) = fail_after {
            let health = Arc::clone(self);
            tasks.spawn(async move {
                tokio::time::sleep(after).await;
                health.set_live(false);
            });
        }
        if let Some(path) = file {
            let state = self.0.subscribe();
            tasks.spawn(show_as_file(path, state));
        }
    }
}

async fn show_as_file(path: PathBuf, mut state: watch::Receiver<HealthState>) {
    loop {
        let live = state.borrow_and_update().live;
        if let Err(error) = show(&path, live) {
            println!("cannot show health in {}: {error}", path.display());
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

fn show(path: &Path, live: bool) -> io::Result<()> {
    if live {
        return std::fs::write(path, "ok\n");
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
