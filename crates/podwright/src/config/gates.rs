//! Feature gates.
//!
//! Gates are passed as a value and never global, so that tests can set their own and the inputs of
//! a decision are complete.

mod effects;
mod known;

use std::collections::BTreeMap;

use effects::Effect;
use known::GATES;

use super::suggestion::did_you_mean;

/// How mature a gate's feature is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Stable,
    Deprecated,
}

/// A gate as Kubernetes v1.36 defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    pub name: &'static str,
    pub stage: Stage,
    pub default: bool,
    /// The value can no longer be changed.
    pub locked: bool,
}

/// Switches for all gates of a stage that are not set by name.
const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

/// Feature gates: defaults and explicit settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    set: BTreeMap<String, bool>,
}

impl FeatureGates {
    /// Accepts valid settings; invalid ones are returned with the reason.
    pub fn from_settings(settings: &BTreeMap<String, bool>) -> (Self, Vec<(String, String)>) {
        let mut gates = Self::default();
        let mut errors = Vec::new();
        for (name, on) in settings {
            match refusal(name, *on) {
                Some(message) => errors.push((name.clone(), message)),
                None => {
                    gates.set.insert(name.clone(), *on);
                }
            }
        }
        (gates, errors)
    }

    /// Whether a gate is on; an unknown gate is off.
    pub fn enabled(&self, name: &str) -> bool {
        if let Some(on) = self.set.get(name) {
            return *on;
        }
        let Some(gate) = find(name) else { return false };
        let whole_stage = match gate.stage {
            Stage::Alpha => self.set.get(ALL_ALPHA),
            Stage::Beta => self.set.get(ALL_BETA),
            Stage::Stable | Stage::Deprecated => None,
        };
        match whole_stage {
            Some(on) if !gate.locked => *on,
            _ => gate.default,
        }
    }

    /// Gates that have a value, set by name or by stage, that this program does not follow.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let changed = GATES.iter().filter(|gate| self.enabled(gate.name) != gate.default);
        let not_followed = changed.filter(|gate| match effects::of(gate.name) {
            Effect::Works | Effect::Elsewhere => false,
            Effect::Library => true,
            Effect::Absent => self.enabled(gate.name),
            Effect::Always => !self.enabled(gate.name),
        });
        not_followed.map(|gate| gate.name).collect()
    }
}

/// The gate of that name.
pub fn find(name: &str) -> Option<&'static Gate> {
    GATES.binary_search_by(|gate| gate.name.cmp(name)).ok().and_then(|at| GATES.get(at))
}

/// Why a gate cannot be set to this value.
fn refusal(name: &str, on: bool) -> Option<String> {
    if name == ALL_ALPHA || name == ALL_BETA {
        return None;
    }
    let Some(gate) = find(name) else {
        let names = GATES.iter().map(|gate| gate.name);
        return Some(format!("is set for an unknown feature gate{}", did_you_mean(name, names)));
    };
    (gate.locked && gate.default != on)
        .then(|| format!("cannot be set: the gate is locked to {}", gate.default))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn gates(settings: &[(&str, bool)]) -> (FeatureGates, Vec<(String, String)>) {
        let settings = settings.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
        FeatureGates::from_settings(&settings)
    }

    #[test]
    fn gate_table_is_sorted_and_unique() {
        for pair in GATES.windows(2) {
            assert!(pair[0].name < pair[1].name, "{} before {}", pair[0].name, pair[1].name);
        }
        for pair in effects::EFFECTS.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} before {}", pair[0].0, pair[1].0);
        }
        for (name, _) in effects::EFFECTS {
            assert!(find(name).is_some_and(|gate| !gate.locked), "{name}");
        }
    }

    #[test]
    fn gates_have_upstream_defaults() {
        let gates = FeatureGates::default();
        for on in [
            "InPlacePodVerticalScaling",
            "PodLevelResources",
            "KubeletFineGrainedAuthz",
            "KubeletPSI",
            "ImageVolume",
            "UserNamespacesSupport",
            "NodeSwap",
            "DynamicResourceAllocation",
            "ExtendWebSocketsToKubelet",
            "KubeletEnsureSecretPulledImages",
            "NodeDeclaredFeatures",
        ] {
            assert!(gates.enabled(on), "{on}");
        }
        for off in [
            "EventedPLEG",
            "MemoryQoS",
            "PodAndContainerStatsFromCRI",
            "ClusterTrustBundleProjection",
            "PodCertificateRequest",
            "PodsAPI",
            "CRIListStreaming",
            "NoSuchGate",
        ] {
            assert!(!gates.enabled(off), "{off}");
        }
    }

    #[test]
    fn explicit_setting_overrides_stage_and_stage_overrides_default() {
        let (gates, errors) = gates(&[
            ("AllAlpha", true),
            ("MemoryQoS", false),
            ("AllBeta", false),
            ("GracefulNodeShutdown", true),
        ]);
        assert_eq!(errors, []);
        assert!(gates.enabled("EventedPLEG"), "alpha, by AllAlpha");
        assert!(!gates.enabled("MemoryQoS"), "alpha, but set by name");
        assert!(!gates.enabled("PodLevelResources"), "beta, by AllBeta");
        assert!(gates.enabled("GracefulNodeShutdown"), "beta, but set by name");
        assert!(gates.enabled("NodeSwap"), "stable is not touched");
    }

    #[test]
    fn unknown_and_locked_gates_are_refused_with_a_suggestion() {
        for (name, on, want) in [
            ("NodeSwap", true, None),
            ("NodeSwap", false, Some("cannot be set: the gate is locked to true")),
            (
                "EventedPleg",
                true,
                Some(r#"is set for an unknown feature gate (did you mean "EventedPLEG"?)"#),
            ),
            ("Zzzzzzzzzzzzzzzzzzzzzz", true, Some("is set for an unknown feature gate")),
        ] {
            let (_, errors) = gates(&[(name, on)]);
            let found = errors.first().map(|(_, message)| message.as_str());
            assert_eq!(found, want, "{name}={on}");
        }
    }

    #[test]
    fn gate_is_reported_if_its_value_is_not_followed() {
        for (settings, want) in [
            (&[("PodsAPI", true)][..], &["PodsAPI"][..]),
            (&[("MemoryQoS", false)], &[]),
            // Both values work.
            (&[("KubeletCrashLoopBackOffMax", false), ("ContainerStopSignals", true)], &[]),
            // What does not exist here is off.
            (&[("GracefulNodeShutdown", false), ("RotateKubeletServerCertificate", false)], &[]),
            // The event stream is used where the runtime has one.
            (&[("EventedPLEG", true)], &[]),
            (&[("PLEGOnDemandRelist", false)], &["PLEGOnDemandRelist"]),
            // Of other programs.
            (&[("SchedulerAsyncPreemption", false), ("StorageVersionAPI", true)], &[]),
        ] {
            assert_eq!(gates(settings).0.without_effect(), want, "{settings:?}");
        }
    }

    #[test]
    fn stage_switches_report_the_gates_that_they_change() {
        let alpha = gates(&[("AllAlpha", true)]).0.without_effect();
        assert!(alpha.contains(&"PodsAPI") && !alpha.contains(&"MemoryQoS"), "{alpha:?}");
        assert!(!alpha.contains(&"ContainerStopSignals"), "{alpha:?}");
        let set = gates(&[("AllAlpha", true), ("PodsAPI", false)]).0;
        assert!(!set.without_effect().contains(&"PodsAPI"));
        let beta = gates(&[("AllBeta", false)]).0.without_effect();
        assert!(beta.contains(&"PLEGOnDemandRelist") && beta.contains(&"AtomicFIFO"), "{beta:?}");
        assert!(!beta.contains(&"PodLevelResources"), "{beta:?}");
        assert_eq!(gates(&[("AllAlpha", false), ("AllBeta", true)]).0.without_effect().len(), 4);
    }
}
