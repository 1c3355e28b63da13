//! Which pods are stuck: they need attention, or wait longer than such a step takes.

use std::time::Duration;

use crate::plan::Topic;

/// A start, pull or mount that takes longer is worth a look.
const SLOW: Duration = Duration::from_secs(30);
/// Stopping lasts as long as the grace period.
const SLOW_STOP: Duration = Duration::from_secs(60);

/// Whether a pod with this reason, unchanged for `since`, is shown as stuck.
pub fn is_stuck(topic: Topic, since: Duration) -> bool {
    match topic {
        Topic::Waits | Topic::Fails(_) | Topic::Held | Topic::NetworkNotReady => true,
        Topic::Starts | Topic::Releases => since >= SLOW,
        Topic::Stops => since >= SLOW_STOP,
        Topic::Runs | Topic::Over => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempts::PodStep;

    #[test]
    fn pod_is_stuck_by_its_topic_and_time() {
        for (topic, seconds, stuck) in [
            (Topic::Runs, 1_000, false),
            (Topic::Over, 1_000, false),
            (Topic::Starts, 5, false),
            (Topic::Starts, 30, true),
            (Topic::Stops, 30, false),
            (Topic::Stops, 60, true),
            (Topic::Releases, 31, true),
            (Topic::Held, 0, true),
            (Topic::Waits, 0, true),
            (Topic::Fails(PodStep::Volumes), 0, true),
            (Topic::NetworkNotReady, 0, true),
        ] {
            assert_eq!(is_stuck(topic, Duration::from_secs(seconds)), stuck, "{topic:?}");
        }
    }
}
