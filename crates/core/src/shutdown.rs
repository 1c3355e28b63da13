//! Graceful node shutdown: which pods end in which order, and how much time each gets.
//!
//! The machine's login manager holds a shutdown back while the agent ends its pods. Pods are grouped
//! by priority and the groups end one after the other, the lowest priority first, so that what other
//! pods depend on ends last.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::admission::SYSTEM_CRITICAL;
use crate::lifecycle::Kill;
use crate::pod::Pod;

/// Reason of a pod that ended because of the shutdown.
pub const REASON: &str = "Terminated";
pub const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Reason of the node's Events.
pub const EVENT: &str = "Shutdown";
pub const DETECTED: &str = "Shutdown manager detected shutdown event";
pub const CANCELLED: &str = "Shutdown manager detected shutdown cancellation";

/// Minimum grace period; zero would mean an immediate SIGKILL.
const MIN_GRACE: Duration = Duration::from_secs(1);

/// Pods from one priority up to that of the next group, and the time that they have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownGroup {
    pub priority: i32,
    pub period: Duration,
}

/// The groups of a node, by ascending priority. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownGroups(Vec<ShutdownGroup>);

impl ShutdownGroups {
    /// `shutdownGracePeriodByPodPriority`. `None`: nothing is configured, so pods are not ended.
    pub fn by_priority(mut groups: Vec<ShutdownGroup>) -> Option<Self> {
        groups.sort_by_key(|group| group.priority);
        (!groups.is_empty()).then_some(Self(groups))
    }

    /// `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`, which is a part of it. Fractions
    /// of a second do not count.
    pub fn with_critical(whole: Duration, critical: Duration) -> Option<Self> {
        if whole.is_zero() {
            return None;
        }
        let normal = whole.as_secs().saturating_sub(critical.as_secs());
        Self::by_priority(vec![
            ShutdownGroup { priority: 0, period: Duration::from_secs(normal) },
            ShutdownGroup {
                priority: SYSTEM_CRITICAL,
                period: Duration::from_secs(critical.as_secs()),
            },
        ])
    }

    pub fn groups(&self) -> &[ShutdownGroup] {
        &self.0
    }

    /// How long the shutdown must be held back for all groups.
    pub fn total(&self) -> Duration {
        self.0.iter().fold(Duration::ZERO, |total, group| total.saturating_add(group.period))
    }

    /// The position of the group of a pod: the highest whose priority is not above the pod's, and the
    /// lowest group for a pod below all.
    pub fn group_of(&self, pod: &Pod) -> usize {
        let own = priority(pod);
        self.0.iter().rposition(|group| group.priority <= own).unwrap_or(0)
    }
}

/// Only the spec counts: a static pod without a priority class is in the lowest group.
fn priority(pod: &Pod) -> i32 {
    pod.object.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default()
}

/// How a pod ends that has `period` at most.
pub fn kill(pod: &Pod, period: Duration) -> Kill {
    Kill::evict(REASON, MESSAGE, Some(pod.grace.min(period).max(MIN_GRACE)))
}

/// What remains between two signals of the login manager, which repeats itself after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownChange {
    /// The machine goes down: end the pods.
    Begin,
    /// The shutdown was cancelled.
    Cancel,
    Nothing,
}

/// The change from one announcement to the next.
pub fn change(is_shutting_down: bool, announced: bool) -> ShutdownChange {
    match (is_shutting_down, announced) {
        (false, true) => ShutdownChange::Begin,
        (true, false) => ShutdownChange::Cancel,
        (false, false) | (true, true) => ShutdownChange::Nothing,
    }
}

/// First line of the login manager's configuration that the agent writes. A file without it
/// belongs to an administrator.
pub const OVERRIDE_MARK: &str = "# Kubelet logind override";

/// Configuration with which the login manager holds a shutdown back for so long. It reads whole
/// seconds.
pub fn delay_override(total: Duration) -> String {
    format!("{OVERRIDE_MARK}\n[Login]\nInhibitDelayMaxSec={}\n", total.as_secs())
}

/// Whether the login manager must be configured for a longer delay.
pub fn needs_override(current: Duration, total: Duration) -> bool {
    current < total
}

/// The last shutdown, as it is kept on disk and reported by metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownRecord {
    #[serde(rename = "startTime", with = "zero_time", default)]
    pub start: Option<Timestamp>,
    /// `None` while pods are being ended.
    #[serde(rename = "endTime", with = "zero_time", default)]
    pub end: Option<Timestamp>,
}

impl ShutdownRecord {
    /// Seconds since 1970 for a metric; zero for no time.
    pub fn seconds(time: Option<Timestamp>) -> f64 {
        time.map_or(0.0, |time| time.as_duration().as_secs_f64())
    }
}

/// Times as upstream writes them: no time is the first moment of year 1.
mod zero_time {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    const ZERO: &str = "0001-01-01T00:00:00Z";

    #[allow(clippy::ref_option, reason = "serde passes a reference")]
    pub(super) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => time.serialize(serializer),
            None => ZERO.serialize(serializer),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let time = Option::<Timestamp>::deserialize(deserializer)?;
        Ok(time.filter(|time| *time > Timestamp::UNIX_EPOCH))
    }
}

#[cfg(test)]
mod tests;
