//! Termination of an orphaned pod, which only the runtime knows.

use std::sync::Arc;

use parking_lot::Mutex;
use podwright_core::attempts::{Attempts, PodStep};
use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::{Lifecycle, Request};
use podwright_core::plan::{self, Step, kill};
use podwright_core::pod::Pod;

use crate::error_chain::chain;
use crate::runtime::RuntimeAccess;
use crate::worker::call_tracker::CallTracker;

const RETRY: std::time::Duration = std::time::Duration::from_secs(2);

/// The lifecycle of an orphaned pod that is being ended.
#[derive(Debug)]
pub struct OrphanHandle {
    uid: PodUid,
    name: PodName,
    lifecycle: Mutex<Lifecycle>,
}

impl OrphanHandle {
    pub(super) fn new(uid: PodUid, name: PodName) -> Arc<Self> {
        Arc::new(Self { uid, name, lifecycle: Mutex::new(Lifecycle::orphan()) })
    }

    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    pub fn name(&self) -> &PodName {
        &self.name
    }

    pub fn lifecycle(&self) -> Lifecycle {
        self.lifecycle.lock().clone()
    }

    /// Notes that an admitted pod with the same UID starts when this one has ended.
    pub(super) fn note_successor(&self, pod: &Pod) {
        self.lifecycle.lock().request(Request::Create, pod);
    }

    pub(super) fn has_successor(&self) -> bool {
        self.lifecycle.lock().is_recreated()
    }
}

/// Retries until no container or sandbox of the pod runs. There is no spec, so no hooks and no
/// status.
pub(super) async fn end(runtime: &RuntimeAccess, orphan: &OrphanHandle) {
    let calls = CallTracker::default();
    let mut attempts = Attempts::default();
    let (uid, name) = (&orphan.uid, &orphan.name);
    loop {
        match runtime.pleg.inspect(uid, name).await {
            Ok(observed) => {
                let plan = plan::orphan(&observed, &attempts, runtime.clock.now());
                if plan.stage_done {
                    orphan.lifecycle.lock().stopped();
                    return;
                }
                for step in &plan.steps {
                    if let Step::KillPod(kill) = step {
                        stop(runtime, &calls, kill, &mut attempts).await;
                    }
                }
                if !plan.steps.is_empty() && attempts.step_failure(PodStep::Kill).is_none() {
                    continue;
                }
            }
            Err(error) => {
                tracing::warn!(pod = %name, error = chain(&error), "inspect orphaned pod failed, retrying");
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// The calls are tracked: a node that stops drops only the wait for them.
async fn stop(
    runtime: &RuntimeAccess,
    calls: &CallTracker,
    kill: &plan::KillPod,
    attempts: &mut Attempts,
) {
    let mut failed = None;
    let all = kill.stops.iter().map(|stop| async {
        let grace = kill::remaining(stop.grace, std::time::Duration::ZERO);
        (&stop.instance, calls.stop(&runtime.client, stop.instance.clone(), grace).await)
    });
    for (instance, stopped) in futures::future::join_all(all).await {
        match stopped {
            Ok(()) => attempts.note_stopped(instance.clone(), runtime.clock.now().mono),
            Err(error) => failed = Some(error),
        }
    }
    for sandbox in &kill.sandboxes {
        let (client, id) = (runtime.client.clone(), sandbox.clone());
        match calls.run(async move { client.stop_sandbox(&id).await }).await {
            Ok(()) => {
                attempts.note_sandbox_stopped(sandbox.clone(), runtime.clock.now().mono);
            }
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        None => attempts.note_step_done(PodStep::Kill),
        Some(error) => {
            let now = runtime.clock.now();
            attempts.note_step_failure(PodStep::Kill, error.to_string(), now, RETRY);
        }
    }
}
