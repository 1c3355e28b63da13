//! Settings that are accepted but have no effect.
//!
//! Files written for upstream must load, so every field is known; but users must not rely on
//! settings that are not implemented. Settings of this list that differ from their default are
//! named in one warning at start. The commit that implements a setting removes it from the list.

use serde_json::Value;

use super::field::FieldPath;
use super::kubelet::KubeletConfiguration;

/// Fields without effect, including everything below them.
pub const INERT: [&str; 28] = [
    // Always on where the kernel has it.
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
    // Alpha upstream: memory protected for pods.
    "memoryReservationPolicy",
    // Pods always have their own cgroups.
    "cgroupsPerQOS",
    // Without effect upstream as well.
    "hairpinMode",
    "iptablesDropBit",
    "iptablesMasqueradeBit",
    // The content type is always JSON, changes are always watched, the control plane attaches
    // volumes.
    "configMapAndSecretChangeDetectionStrategy",
    "contentType",
    "enableControllerAttachDetach",
    "volumePluginDir",
    // Not implemented.
    "enableContentionProfiling",
    "enableDebugFlagsHandler",
    "enableProfilingHandler",
    "enableSystemLogHandler",
    "enableSystemLogQuery",
    "serverTLSBootstrap",
    "showHiddenMetricsForVersion",
    "tracing",
    // Logs are not buffered.
    "logging.flushFrequency",
    "logging.options",
];

/// Settings without effect that exist only as flags, as fields of [`super::options::NodeOptions`].
const INERT_OPTIONS: [&str; 2] = ["exitOnLockContention", "lockFile"];

/// Values of fields without effect that match the actual behaviour.
const DONE_ANYWAY: [(&str, bool); 2] = [("cgroupsPerQOS", true), ("kernelMemcgNotification", true)];

/// Whether a setting that exists only as a flag has no effect.
pub fn covers_option(option: &str) -> bool {
    INERT_OPTIONS.contains(&option)
}

/// Whether a field, or what it is a part of, has no effect.
pub fn covers(field: &str) -> bool {
    let field = FieldPath::of(field);
    INERT.iter().any(|inert| field.starts_with(&FieldPath::of(inert)))
}

/// The fields of a configuration that are set and have no effect.
pub fn fields_without_effect(configuration: &KubeletConfiguration) -> Vec<&'static str> {
    let default = document(&KubeletConfiguration::default());
    let actual = document(configuration);
    INERT
        .into_iter()
        .filter(|name| {
            let field = FieldPath::of(name);
            field.find(&default) != field.find(&actual) && !matches_behaviour(name, configuration)
        })
        .collect()
}

/// Whether the value of a field without effect matches the actual behaviour.
pub fn matches_behaviour(field: &str, configuration: &KubeletConfiguration) -> bool {
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
    fn only_changed_fields_are_reported() {
        let mut configuration = KubeletConfiguration::default();
        assert_eq!(fields_without_effect(&configuration), Vec::<&str>::new());
        configuration.max_pods = 5;
        configuration.hairpin_mode = super::super::kubelet::HairpinMode::None;
        configuration.content_type = "application/json".to_owned();
        assert_eq!(fields_without_effect(&configuration), ["hairpinMode", "contentType"]);
    }

    #[test]
    fn values_that_match_the_behaviour_are_not_reported() {
        let with =
            |cgroups| KubeletConfiguration { cgroups_per_qos: cgroups, ..Default::default() };
        assert_eq!(fields_without_effect(&with(true)), Vec::<&str>::new());
        assert_eq!(fields_without_effect(&with(false)), ["cgroupsPerQOS"]);
    }

    #[test]
    fn parts_of_an_inert_field_are_inert() {
        assert!(covers("logging.options.text.splitStream"));
        assert!(covers("cpuManagerPolicy"));
        assert!(!covers("logging.format"));
        assert!(!covers("maxPods"));
    }
}
