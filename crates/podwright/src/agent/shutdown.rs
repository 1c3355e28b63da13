//! Graceful node shutdown as it is configured.

use std::path::PathBuf;
use std::time::Duration;

use podwright_core::shutdown::{ShutdownGroup, ShutdownGroups};
use podwright_host::login::{LoginBus, OVERRIDE_DIR};
use podwright_node::pods::shutdown::{Announcements, ShutdownSettings};

use crate::config::gates::FeatureGates;
use crate::config::kubelet::KubeletConfiguration;

/// `None`: nothing is configured, or the feature is off.
pub(super) fn settings(
    configuration: &KubeletConfiguration,
    gates: &FeatureGates,
) -> Option<ShutdownSettings> {
    if !gates.enabled("GracefulNodeShutdown") {
        return None;
    }
    let by_priority = &configuration.shutdown_grace_period_by_pod_priority;
    let groups = match by_priority.as_slice() {
        [] => ShutdownGroups::with_critical(
            configuration.shutdown_grace_period.to_std(),
            configuration.shutdown_grace_period_critical_pods.to_std(),
        ),
        groups => ShutdownGroups::by_priority(
            groups
                .iter()
                .map(|group| ShutdownGroup {
                    priority: group.priority,
                    period: Duration::from_secs(
                        u64::try_from(group.shutdown_grace_period_seconds).unwrap_or(0),
                    ),
                })
                .collect(),
        ),
    }?;
    Some(ShutdownSettings {
        groups,
        records: gates.enabled("GracefulNodeShutdownBasedOnPodPriority"),
        announcements: Announcements::Login {
            bus: LoginBus::System,
            override_dir: PathBuf::from(OVERRIDE_DIR),
        },
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_core::admission::SYSTEM_CRITICAL;

    use super::*;
    use crate::config::duration::GoDuration;
    use crate::config::kubelet::ShutdownGracePeriod;

    fn gates(off: &[&str]) -> FeatureGates {
        let settings = off.iter().map(|name| ((*name).to_owned(), false)).collect();
        FeatureGates::from_settings(&settings).0
    }

    fn groups(settings: &ShutdownSettings) -> Vec<(i32, u64)> {
        let groups = settings.groups.groups().iter();
        groups.map(|group| (group.priority, group.period.as_secs())).collect()
    }

    #[test]
    fn shutdown_is_graceful_only_if_it_is_configured() {
        let mut configuration = KubeletConfiguration::default();
        assert!(settings(&configuration, &gates(&[])).is_none());
        configuration.shutdown_grace_period = GoDuration::from_secs(30);
        configuration.shutdown_grace_period_critical_pods = GoDuration::from_secs(10);
        let found = settings(&configuration, &gates(&[])).unwrap();
        assert_eq!(groups(&found), [(0, 20), (SYSTEM_CRITICAL, 10)]);
        assert!(found.records);
        let without = gates(&["GracefulNodeShutdownBasedOnPodPriority"]);
        assert!(!settings(&configuration, &without).unwrap().records);
        assert!(settings(&configuration, &gates(&["GracefulNodeShutdown"])).is_none());
    }

    #[test]
    fn groups_by_priority_are_sorted() {
        let group = |priority, seconds| ShutdownGracePeriod {
            priority,
            shutdown_grace_period_seconds: seconds,
        };
        let configuration = KubeletConfiguration {
            shutdown_grace_period_by_pod_priority: vec![group(100, 7), group(-5, 3)],
            ..KubeletConfiguration::default()
        };
        let found = settings(&configuration, &gates(&[])).unwrap();
        assert_eq!(groups(&found), [(-5, 3), (100, 7)]);
    }
}
