//! Settings that are accepted and change nothing.
//!
//! A file written for upstream must load, so every field is known; but nobody should believe in a
//! protection that is not there. What was changed from its default and is on this list is named in
//! one warning at start. An entry goes away with the commit that makes it work.

use serde_json::Value;

use super::field::FieldPath;
use super::kubelet::KubeletConfiguration;

/// Fields without effect; with a field, everything below it.
pub const INERT: [&str; 47] = [
    // Eviction.
    "evictionHard",
    "evictionMaxPodGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "kernelMemcgNotification",
    // CPU, memory and topology managers.
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "cpuManagerReconcilePeriod",
    "memoryManagerPolicy",
    "reservedMemory",
    "topologyManagerPolicy",
    "topologyManagerPolicyOptions",
    "topologyManagerScope",
    // Node shutdown.
    "shutdownGracePeriod",
    "shutdownGracePeriodByPodPriority",
    "shutdownGracePeriodCriticalPods",
    // Alpha upstream: memory QoS and reservations per QoS class.
    "memoryReservationPolicy",
    "memoryThrottlingFactor",
    "qosReserved",
    // Pods have cgroups of their own, and ephemeral storage is counted, whatever is said.
    "cgroupsPerQOS",
    "localStorageCapacityIsolation",
    // Moving processes between cgroups.
    "systemCgroups",
    // Requests and events have no rate for the whole node.
    "eventBurst",
    "eventRecordQPS",
    "kubeAPIBurst",
    "kubeAPIQPS",
    // Pods are looked at when something happened; only `/healthz/syncloop` waits as long.
    "syncFrequency",
    // Rules of packet filters are others'.
    "makeIPTablesUtilChains",
    // Without effect upstream, too.
    "hairpinMode",
    "iptablesDropBit",
    "iptablesMasqueradeBit",
    // The API is spoken in JSON, changes are always watched, volumes are attached elsewhere.
    "configMapAndSecretChangeDetectionStrategy",
    "contentType",
    "enableControllerAttachDetach",
    "volumePluginDir",
    // Served nowhere.
    "enableContentionProfiling",
    "enableDebugFlagsHandler",
    "enableProfilingHandler",
    "enableSystemLogHandler",
    "enableSystemLogQuery",
    "serverTLSBootstrap",
    "showHiddenMetricsForVersion",
    "tracing",
    // The log is written line by line.
    "logging.flushFrequency",
    "logging.options",
];

/// Settings without effect that exist only as flags, as fields of [`super::options::NodeOptions`].
const INERT_OPTIONS: [&str; 2] = ["exitOnLockContention", "lockFile"];

/// Values of fields without effect that happen to say what is done: whoever asks for them has them.
const DONE_ANYWAY: [(&str, bool); 2] = [("cgroupsPerQOS", true), ("makeIPTablesUtilChains", false)];

/// Whether a setting that exists only as a flag has no effect.
pub fn covers_option(option: &str) -> bool {
    INERT_OPTIONS.contains(&option)
}

/// Whether a field, or what it is a part of, has no effect.
pub fn covers(field: &str) -> bool {
    let field = FieldPath::of(field);
    INERT.iter().any(|inert| field.starts_with(&FieldPath::of(inert)))
}

/// The fields of a configuration that are set to no effect.
pub fn set_in_vain(configuration: &KubeletConfiguration) -> Vec<&'static str> {
    let default = document(&KubeletConfiguration::default());
    let actual = document(configuration);
    INERT
        .into_iter()
        .filter(|name| {
            let field = FieldPath::of(name);
            field.find(&default) != field.find(&actual) && !is_done_anyway(name, configuration)
        })
        .collect()
}

/// Whether what a field without effect asks for is done all the same.
pub fn is_done_anyway(field: &str, configuration: &KubeletConfiguration) -> bool {
    let Some((_, done)) = DONE_ANYWAY.iter().find(|(name, _)| *name == field) else { return false };
    FieldPath::of(field).find(&document(configuration)) == Some(&Value::Bool(*done))
}

fn document(configuration: &KubeletConfiguration) -> Value {
    serde_json::to_value(configuration).unwrap_or(Value::Null)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::super::decode::decode;
    use super::super::options::NodeOptions;
    use super::*;

    #[test]
    fn every_entry_is_a_field() {
        for field in INERT {
            let misread = FieldPath::of(field).document_with(Value::Bool(true));
            let decoded = decode(&misread);
            assert!(decoded.unknown.is_empty(), "{field}");
        }
        let options = serde_json::to_value(NodeOptions::default()).unwrap();
        assert!(INERT_OPTIONS.iter().all(|option| options.get(option).is_some()));
        assert!(DONE_ANYWAY.iter().all(|(field, _)| INERT.contains(field)));
    }

    #[test]
    fn only_what_was_changed_is_set_in_vain() {
        let mut configuration = KubeletConfiguration::default();
        assert_eq!(set_in_vain(&configuration), Vec::<&str>::new());
        configuration.max_pods = 5;
        configuration.hairpin_mode = super::super::kubelet::HairpinMode::None;
        configuration.eviction_hard.insert("memory.available".to_owned(), "1Gi".to_owned());
        assert_eq!(set_in_vain(&configuration), ["evictionHard", "hairpinMode"]);
    }

    #[test]
    fn what_is_done_anyway_is_not_asked_for_in_vain() {
        let with = |cgroups, chains| KubeletConfiguration {
            cgroups_per_qos: cgroups,
            make_iptables_util_chains: chains,
            ..Default::default()
        };
        assert_eq!(set_in_vain(&with(true, false)), Vec::<&str>::new());
        assert_eq!(set_in_vain(&with(false, true)), ["cgroupsPerQOS"]);
    }

    #[test]
    fn a_part_of_an_inert_field_is_inert() {
        assert!(covers("logging.options.text.splitStream"));
        assert!(covers("evictionHard"));
        assert!(!covers("logging.format"));
        assert!(!covers("maxPods"));
    }
}
