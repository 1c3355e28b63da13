//! Settings that are accepted and change nothing.
//!
//! A file written for upstream must load, so every field is known; but nobody should believe in a
//! protection that is not there. What was changed from its default and is on this list is named in
//! one warning at start. An entry goes away with the commit that makes it work.

use serde_json::Value;

use super::field::FieldPath;
use super::kubelet::KubeletConfiguration;

/// Fields without effect; with a field, everything below it.
pub const INERT: [&str; 39] = [
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
    // Moving processes between cgroups.
    "systemCgroups",
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

/// Whether a field, or what it is a part of, has no effect.
pub fn covers(field: &str) -> bool {
    let field = FieldPath::of(field);
    INERT.iter().any(|inert| field.starts_with(&FieldPath::of(inert)))
}

/// The fields of a configuration that are set to no effect.
pub fn set_in_vain(configuration: &KubeletConfiguration) -> Vec<&'static str> {
    let document = |configuration: &KubeletConfiguration| {
        serde_json::to_value(configuration).unwrap_or(Value::Null)
    };
    let (default, actual) = (document(&KubeletConfiguration::default()), document(configuration));
    INERT
        .into_iter()
        .filter(|field| {
            let field = FieldPath::of(field);
            field.find(&default) != field.find(&actual)
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::super::decode::decode;
    use super::*;

    #[test]
    fn every_entry_is_a_field() {
        for field in INERT {
            let misread = FieldPath::of(field).document_with(Value::Bool(true));
            let decoded = decode(&misread);
            assert!(decoded.unknown.is_empty(), "{field}");
        }
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
    fn a_part_of_an_inert_field_is_inert() {
        assert!(covers("logging.options.text.splitStream"));
        assert!(covers("evictionHard"));
        assert!(!covers("logging.format"));
        assert!(!covers("maxPods"));
    }
}
