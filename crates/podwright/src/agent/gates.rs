//! What feature gates change: the values that decisions get.

use podwright_core::backoff::BackoffLimits;
use podwright_core::pod::features::PodFeatures;

use crate::config::gates::FeatureGates;
use crate::config::kubelet::KubeletConfiguration;

pub(super) fn pod_features(gates: &FeatureGates) -> PodFeatures {
    PodFeatures::of(|name| gates.enabled(name))
}

/// The configuration has a longest delay only with `KubeletCrashLoopBackOffMax`.
pub(super) fn crash_backoff(
    configuration: &KubeletConfiguration,
    gates: &FeatureGates,
) -> BackoffLimits {
    let limits = match gates.enabled("ReduceDefaultCrashLoopBackOffDecay") {
        true => BackoffLimits::REDUCED,
        false => BackoffLimits::DEFAULT,
    };
    match configuration.crash_loop_back_off.max_container_restart_period {
        Some(max) => limits.capped_at(max.to_std()),
        None => limits,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::duration::GoDuration;

    fn gates(settings: &[(&str, bool)]) -> FeatureGates {
        let settings = settings.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
        let (gates, errors) = FeatureGates::from_settings(&settings);
        assert_eq!(errors, []);
        gates
    }

    #[test]
    fn pods_get_the_defaults_of_upstreams_gates() {
        assert_eq!(pod_features(&gates(&[])), PodFeatures::DEFAULT);
    }

    #[test]
    fn gate_of_a_pod_feature_can_be_set() {
        let features = pod_features(&gates(&[("EnvFiles", false), ("ContainerStopSignals", true)]));
        assert!(!features.env_files && features.container_stop_signals);
        assert!(!pod_features(&gates(&[("AllBeta", false)])).pod_level_resources);
    }

    #[test]
    fn crash_backoff_follows_its_gates_and_the_configured_limit() {
        let reduce = ("ReduceDefaultCrashLoopBackOffDecay", true);
        for (settings, max, want) in [
            (&[][..], Some(300), (10, 300)),
            (&[reduce], Some(300), (1, 300)),
            (&[reduce], Some(20), (1, 20)),
            (&[("KubeletCrashLoopBackOffMax", false)], None, (10, 300)),
            (&[("KubeletCrashLoopBackOffMax", false), reduce], None, (1, 60)),
            (&[], Some(2), (2, 2)),
        ] {
            let mut configuration = KubeletConfiguration::default();
            configuration.crash_loop_back_off.max_container_restart_period =
                max.map(GoDuration::from_secs);
            let limits = crash_backoff(&configuration, &gates(settings));
            let (initial, max) = want;
            let want = (Duration::from_secs(initial), Duration::from_secs(max));
            assert_eq!((limits.initial, limits.max), want, "{settings:?}");
        }
    }
}
