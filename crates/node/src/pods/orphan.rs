//! Termination of an orphaned pod, which only the runtime knows.

use podwright_core::attempts::{Attempts, PodStep};
use podwright_core::ids::{PodName, PodUid};
use podwright_core::plan::{self, Step, kill};

use crate::error_chain::chain;
use crate::runtime::RuntimeAccess;

const RETRY: std::time::Duration = std::time::Duration::from_secs(2);

/// Retries until no container or sandbox of the pod runs. There is no spec, so no hooks and no
/// status.
pub(super) async fn end(runtime: &RuntimeAccess, uid: &PodUid, name: &PodName) {
    let mut attempts = Attempts::default();
    loop {
        match runtime.pleg.inspect(uid, name).await {
            Ok(observed) => {
                let plan = plan::orphan(&observed, &attempts, runtime.clock.now());
                if plan.stage_done {
                    return;
                }
                for step in &plan.steps {
                    if let Step::KillPod(kill) = step {
                        stop(runtime, kill, &mut attempts).await;
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

async fn stop(runtime: &RuntimeAccess, kill: &plan::KillPod, attempts: &mut Attempts) {
    let mut failed = None;
    let all = kill.stops.iter().map(|stop| async {
        let grace = kill::remaining(stop.grace, std::time::Duration::ZERO);
        (&stop.instance, runtime.client.stop_container(&stop.instance, grace).await)
    });
    for (instance, stopped) in futures::future::join_all(all).await {
        match stopped {
            Ok(()) => attempts.note_stopped(instance.clone(), runtime.clock.now().mono),
            Err(error) => failed = Some(error),
        }
    }
    for sandbox in &kill.sandboxes {
        match runtime.client.stop_sandbox(sandbox).await {
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
