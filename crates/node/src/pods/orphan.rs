//! Ends a pod that only the runtime knows.

use podwright_core::attempts::{Attempts, PodStep};
use podwright_core::ids::{PodName, PodUid};
use podwright_core::plan::{self, Step, kill};

use crate::causes::chain;
use crate::tools::Tools;

const RETRY: std::time::Duration = std::time::Duration::from_secs(2);

/// Tries until nothing of the pod is alive. There is no spec: no hooks, no status.
pub(super) async fn end(tools: &Tools, uid: &PodUid, name: &PodName) {
    let mut attempts = Attempts::default();
    loop {
        match tools.pleg.look(uid, name).await {
            Ok(observed) => {
                let plan = plan::orphan(&observed, &attempts, tools.clock.now());
                if plan.stage_done {
                    return;
                }
                for step in &plan.steps {
                    if let Step::KillPod(kill) = step {
                        stop(tools, kill, &mut attempts).await;
                    }
                }
                if !plan.steps.is_empty() && attempts.step_failure(PodStep::Kill).is_none() {
                    continue;
                }
            }
            Err(error) => tracing::warn!(pod = %name, error = chain(&error), "will look again"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn stop(tools: &Tools, kill: &plan::KillPod, attempts: &mut Attempts) {
    let mut failed = None;
    let all = kill.stops.iter().map(|stop| async {
        let grace = kill::remaining(stop.grace, std::time::Duration::ZERO);
        (&stop.instance, tools.runtime.stop_container(&stop.instance, grace).await)
    });
    for (instance, stopped) in futures::future::join_all(all).await {
        match stopped {
            Ok(()) => attempts.note_stopped(instance.clone(), tools.clock.now().mono),
            Err(error) => failed = Some(error),
        }
    }
    for sandbox in &kill.sandboxes {
        match tools.runtime.stop_sandbox(sandbox).await {
            Ok(()) => {
                attempts.note_sandbox_stopped(sandbox.clone(), tools.clock.now().mono);
            }
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        None => attempts.note_step_done(PodStep::Kill),
        Some(error) => {
            let now = tools.clock.now();
            attempts.note_step_failure(PodStep::Kill, error.to_string(), now, RETRY);
        }
    }
}
