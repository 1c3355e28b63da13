//! Termination of a pod by the node itself (eviction, preemption, shutdown), with a bounded wait.

use std::time::Duration;

use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::{Kill, Request, Stage};
use podwright_core::pod::Pod;

use super::PodIndex;
use crate::report::events::{Recorder, Severity};

/// Minimum wait: the runtime needs some time even for a grace period of zero.
const MIN_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum EndError {
    #[error("no pod with UID {0} runs on this node")]
    Unknown(PodUid),
    #[error("pod {name}: not stopped after {waited:?}, still stopping")]
    ExceededGracePeriod { name: PodName, waited: Duration },
}

/// Requests termination and waits until none of the containers can run, at most 1.5 times the grace
/// period.
///
/// Dropping the future drops only the wait. If the pod is already terminating, the shorter grace
/// period and the newest termination reason apply.
pub async fn end(
    events: &Recorder,
    pod_index: &PodIndex,
    uid: &PodUid,
    kill: Kill,
) -> Result<(), EndError> {
    let handle = pod_index.handle(uid).ok_or_else(|| EndError::Unknown(uid.clone()))?;
    let mut desired = handle.desired();
    handle.request(Request::Kill(kill));
    let pod = handle.pod();
    let grace = handle.lifecycle().grace().unwrap_or(pod.grace);
    let limit = wait_limit(grace);
    let stopped = desired.wait_for(|desired| desired.lifecycle.stage() >= Stage::Terminated);
    if tokio::time::timeout(limit, stopped).await.is_ok() {
        return Ok(());
    }
    report_exceeded(events, &pod, grace);
    Err(EndError::ExceededGracePeriod { name: pod.name.clone(), waited: limit })
}

/// How long to wait for a pod to stop, by its grace period.
pub(super) fn wait_limit(grace: Duration) -> Duration {
    grace.saturating_mul(3).checked_div(2).unwrap_or(grace).max(MIN_WAIT)
}

/// Records an event for a pod that did not stop in time.
pub(super) fn report_exceeded(events: &Recorder, pod: &Pod, grace: Duration) {
    let text = format!("Pod did not stop within its grace period of {} s", grace.as_secs());
    events.pod(pod, Severity::Warning, "ExceededGracePeriod", text);
}
