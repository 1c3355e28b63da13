//! Invariant of removal: nothing of a pod stays in the runtime when the pod is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_fake_runtime::{PodRef, Snapshot};

use super::facts::{Facts, node_uid};

/// Garbage collection runs every minute and may have to try again.
pub(super) const GARBAGE_COLLECTION_TIME: Duration = Duration::from_secs(5 * 60);

/// Sandboxes and containers, dead ones included, of pods that are gone from the API for longer than
/// garbage collection takes. A static pod is gone with its mirror pod.
pub(super) fn kept_too_long(facts: &Facts, snapshot: &Snapshot, now: Duration) -> Vec<String> {
    let mut gone: BTreeMap<&str, Option<Duration>> = BTreeMap::new();
    for recorded in &facts.recorded_pods {
        gone.insert(node_uid(&recorded.pod), recorded.gone.then_some(recorded.at));
    }
    let is_due = |pod: &PodRef| {
        let gone = gone.get(pod.uid.as_str()).copied().flatten();
        gone.is_some_and(|at| now > at + GARBAGE_COLLECTION_TIME)
    };
    let sandboxes = snapshot.sandboxes.iter().filter(|sandbox| is_due(&sandbox.pod));
    let containers = snapshot.containers.iter().filter(|container| is_due(&container.pod));
    let sandboxes = sandboxes
        .map(|s| format!("{} is gone and still has a sandbox (ready: {})", s.pod, s.ready));
    let containers = containers.map(|c| {
        format!("{} is gone and still has the container {} ({:?})", c.pod, c.name, c.state)
    });
    sandboxes.chain(containers).collect()
}
