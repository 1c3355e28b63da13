//! Feature gates: which are on.
//!
//! Gates are a value that is passed to whoever asks, never a global: a test can have its own, and
//! what a decision depended on is in its inputs.

mod known;

use std::collections::BTreeMap;

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
    /// It can no longer be changed.
    pub locked: bool,
}

/// Gates that change what Podwright does. Setting any other is accepted, as shared files need, and
/// said to have no effect.
pub const HEEDED: [&str; 4] = [
    "CustomCPUCFSQuotaPeriod",
    "KubeletCrashLoopBackOffMax",
    "KubeletEnsureSecretPulledImages",
    "KubeletServiceAccountTokenForCredentialProviders",
];

/// Switches for all gates of a stage that are not set by name.
const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

/// Which gates are on: the defaults and what was set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    set: BTreeMap<String, bool>,
}

impl FeatureGates {
    /// Takes the settings that are sound; the others come back with what is wrong with them.
    pub fn from_settings(settings: &BTreeMap<String, bool>) -> (Self, Vec<(String, String)>) {
        let mut gates = Self::default();
        let mut troubles = Vec::new();
        for (name, on) in settings {
            match refusal(name, *on) {
                Some(trouble) => troubles.push((name.clone(), trouble)),
                None => {
                    gates.set.insert(name.clone(), *on);
                }
            }
        }
        (gates, troubles)
    }

    /// Whether a gate is on. One that does not exist is off.
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

    /// Gates that were changed from their default although nothing here depends on them.
    pub fn without_effect(&self) -> Vec<&str> {
        self.set
            .iter()
            .filter(|(name, on)| find(name).map_or(**on, |gate| gate.default != **on))
            .map(|(name, _)| name.as_str())
            .filter(|name| !HEEDED.contains(name))
            .collect()
    }
}

/// The gate of that name.
pub fn find(name: &str) -> Option<&'static Gate> {
    GATES.binary_search_by(|gate| gate.name.cmp(name)).ok().and_then(|at| GATES.get(at))
}

/// Why a gate cannot be set so.
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
    fn the_table_is_sorted_and_has_no_gate_twice() {
        for pair in GATES.windows(2) {
            assert!(pair[0].name < pair[1].name, "{} before {}", pair[0].name, pair[1].name);
        }
        for name in HEEDED {
            assert!(find(name).is_some(), "{name}");
        }
    }

    #[test]
    fn gates_have_the_defaults_of_the_reference() {
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
    fn a_gate_that_is_set_wins_over_its_stage_and_that_over_its_default() {
        let (gates, troubles) = gates(&[
            ("AllAlpha", true),
            ("MemoryQoS", false),
            ("AllBeta", false),
            ("GracefulNodeShutdown", true),
        ]);
        assert_eq!(troubles, []);
        assert!(gates.enabled("EventedPLEG"), "alpha, by AllAlpha");
        assert!(!gates.enabled("MemoryQoS"), "alpha, but set by name");
        assert!(!gates.enabled("PodLevelResources"), "beta, by AllBeta");
        assert!(gates.enabled("GracefulNodeShutdown"), "beta, but set by name");
        assert!(gates.enabled("NodeSwap"), "stable is not touched");
    }

    #[test]
    fn unknown_and_locked_gates_are_refused_with_the_way_out() {
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
            let (_, troubles) = gates(&[(name, on)]);
            let found = troubles.first().map(|(_, trouble)| trouble.as_str());
            assert_eq!(found, want, "{name}={on}");
        }
    }

    #[test]
    fn only_changed_gates_that_nothing_depends_on_are_without_effect() {
        let (gates, _) = gates(&[
            ("EventedPLEG", true),
            ("MemoryQoS", false),
            ("KubeletCrashLoopBackOffMax", false),
        ]);
        assert_eq!(gates.without_effect(), ["EventedPLEG"]);
    }
}
