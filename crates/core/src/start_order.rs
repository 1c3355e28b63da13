//! Order of starts: which pod's waiting start call or image pull goes next.
//!
//! Static and critical pods go first, then pods without a failed start, then the oldest; of those,
//! the pod closest to running.

use std::time::Duration;

use jiff::Timestamp;

use crate::admission::is_critical;
use crate::pod::Pod;

/// How long the pull of a static or critical pod waits for a permit before it starts beyond the
/// limit: pulls that hang must not keep the node's own components from starting.
const CRITICAL_PULL_WAIT: Duration = Duration::from_secs(60);

/// The steps of a start, the last one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartStep {
    StartContainer,
    CreateContainer,
    PullImage,
    RunSandbox,
    SetUpVolume,
}

/// Position in a queue: smaller is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    ordinary: bool,
    /// Pods that failed before are started after those that did not: a network that is broken for a
    /// hundred pods may work for the next one.
    failed: bool,
    /// In seconds, so that pods created together are equal.
    created: Option<Timestamp>,
    step: StartStep,
}

impl Rank {
    pub fn of(pod: &Pod, step: StartStep) -> Self {
        Self {
            ordinary: !is_critical(pod),
            failed: false,
            created: pod.object.metadata.creation_timestamp.as_ref().map(|time| time.0),
            step,
        }
    }

    /// The rank of a pod with failed attempts.
    pub fn after_failure(self, failed: bool) -> Self {
        Self { failed, ..self }
    }

    /// How long a pull of this rank waits for a permit at most; `None`: until it gets one.
    pub fn longest_pull_wait(self) -> Option<Duration> {
        (!self.ordinary).then_some(CRITICAL_PULL_WAIT)
    }
}

/// Position of a waiter: by rank, and by arrival among equal ranks. Smaller is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePosition {
    pub rank: Rank,
    pub arrival: u64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admission::SYSTEM_CRITICAL;
    use crate::builders::pod;
    use crate::pod::Source;

    fn created(name: &str, second: u32) -> crate::builders::PodBuilder {
        let time = format!("2026-01-01T00:00:{second:02}Z");
        pod(name).edit(|pod| pod["metadata"]["creationTimestamp"] = json!(time))
    }

    fn rank(pod: &Pod) -> Rank {
        Rank::of(pod, StartStep::PullImage)
    }

    /// All waiters in the order in which they go.
    fn order(waiting: Vec<(&'static str, Rank)>) -> Vec<&'static str> {
        let positions = (0..).zip(waiting);
        let mut order: Vec<_> = positions
            .map(|(arrival, (name, rank))| (QueuePosition { rank, arrival }, name))
            .collect();
        // The order of the positions decides, not that of the list.
        order.reverse();
        order.sort_unstable();
        order.into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn static_and_critical_pods_go_first_then_those_without_failures_then_the_oldest() {
        let critical = created("critical", 9).spec("priority", json!(SYSTEM_CRITICAL)).build();
        let by_file = created("file", 20).build_from(Source::File);
        let (old, young) = (created("old", 1).build(), created("young", 8).build());
        let waiting = vec![
            ("young", rank(&young)),
            ("old and failed", rank(&old).after_failure(true)),
            ("old", rank(&old)),
            ("also old", rank(&old)),
            ("static", rank(&by_file)),
            ("critical", rank(&critical)),
        ];
        let wanted = ["critical", "static", "old", "also old", "young", "old and failed"];
        assert_eq!(order(waiting), wanted);
    }

    #[test]
    fn only_pulls_of_static_and_critical_pods_start_beyond_the_limit() {
        let critical = pod("c").spec("priority", json!(SYSTEM_CRITICAL)).build();
        assert_eq!(rank(&critical).longest_pull_wait(), Some(CRITICAL_PULL_WAIT));
        assert_eq!(rank(&pod("p").build()).longest_pull_wait(), None);
    }
}
