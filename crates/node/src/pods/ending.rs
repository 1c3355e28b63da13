//! Ending a pod from within the node and waiting for it: eviction, preemption, shutdown.

use std::time::Duration;

use podwright_core::ids::{PodName, PodUid};
use podwright_core::lifecycle::{Kill, Request, Stage};

use super::Directory;
use crate::events::Severity;
use crate::tools::Tools;

/// However short the grace is, the runtime needs a moment.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum EndError {
    #[error("no pod with uid {0} runs on this node")]
    Unknown(PodUid),
    #[error("pod {name}: still stopping after {waited:?}; it is being stopped all the same")]
    ExceededGracePeriod { name: PodName, waited: Duration },
}

/// Asks a pod to end and waits until none of its containers can run, at most half again its grace.
///
/// Dropping the future drops only the wait. If it was ending already, the shorter grace counts and
/// the newest obituary.
pub async fn end(
    tools: &Tools,
    directory: &Directory,
    uid: &PodUid,
    kill: Kill,
) -> Result<(), EndError> {
    let cell = directory.cell(uid).ok_or_else(|| EndError::Unknown(uid.clone()))?;
    let mut desired = cell.desired();
    cell.request(Request::Kill(kill));
    let pod = cell.pod();
    let grace = cell.life().grace().unwrap_or(pod.grace);
    let patience = grace.saturating_mul(3).checked_div(2).unwrap_or(grace).max(LEAST_PATIENCE);
    let stopped = desired.wait_for(|desired| desired.life.stage() >= Stage::Terminated);
    if tokio::time::timeout(patience, stopped).await.is_ok() {
        return Ok(());
    }
    let text = format!("The pod did not stop within its grace of {} s", grace.as_secs());
    tools.events.pod(&pod, Severity::Warning, "ExceededGracePeriod", text);
    Err(EndError::ExceededGracePeriod { name: pod.name.clone(), waited: patience })
}
