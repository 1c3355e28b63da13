//! Probes: checks, their schedule, and the verdicts that follow from their outcomes.
//!
//! [`schedule`] decides which probe of a pod is due and when outcomes settle a verdict; [`check`]
//! parses a probe; [`http`] evaluates an HTTP response; [`answers`] keeps what was answered last, for
//! users. The node agent runs the probes. A settled
//! verdict is stored in [`ProbeVerdicts`], an input of the pod's next plan and of its status.

pub mod answers;
pub mod check;
pub mod http;
pub mod schedule;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::ContainerId;
use crate::pod::ProbeKind;

/// Result of a probe after its thresholds are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeVerdict {
    #[serde(rename = "Success")]
    Success,
    #[serde(rename = "Failure")]
    Failure,
    /// The probe ran, but no verdict has settled yet.
    #[serde(rename = "Unknown")]
    Unknown,
}

/// Settled verdicts, by container instance: a restarted container has none.
///
/// No verdict means upstream's initial value: not ready, alive, not yet started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeVerdicts {
    #[serde(rename = "verdicts")]
    verdicts: BTreeMap<ContainerId, BTreeMap<ProbeKind, ProbeVerdict>>,
}

impl ProbeVerdicts {
    pub fn verdict(&self, instance: &ContainerId, kind: ProbeKind) -> Option<ProbeVerdict> {
        self.verdicts.get(instance)?.get(&kind).copied()
    }

    pub fn failed(&self, instance: &ContainerId, kind: ProbeKind) -> bool {
        self.verdict(instance, kind) == Some(ProbeVerdict::Failure)
    }

    /// Returns whether this changed anything.
    pub fn set(&mut self, instance: &ContainerId, kind: ProbeKind, verdict: ProbeVerdict) -> bool {
        let old = self.verdicts.entry(instance.clone()).or_default().insert(kind, verdict);
        old != Some(verdict)
    }

    /// Drops instances that no longer exist.
    pub fn retain(&mut self, keep: impl Fn(&ContainerId) -> bool) {
        self.verdicts.retain(|id, _| keep(id));
    }
}

/// Outcome of one probe run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    Success,
    /// A success with a warning event.
    Warning(String),
    /// The container answered wrongly, or not in time.
    Failure(String),
    /// The probe could not run, which says nothing about the container.
    Error {
        text: String,
        /// Upstream's name for the resulting state; part of the event message.
        state: &'static str,
    },
}

impl ProbeOutcome {
    pub fn error(text: impl Into<String>) -> Self {
        Self::Error { text: text.into(), state: "unknown" }
    }

    /// The event for this outcome; none for a plain success.
    pub fn event(&self, kind: ProbeKind) -> Option<ProbeEvent> {
        let kind = kind.as_str();
        match self {
            Self::Success => None,
            Self::Warning(text) => Some(ProbeEvent {
                reason: "ProbeWarning",
                message: format!("{kind} probe warning: {text}"),
            }),
            Self::Failure(text) => Some(ProbeEvent {
                reason: "Unhealthy",
                message: format!("{kind} probe failed: {text}"),
            }),
            Self::Error { text, state } => Some(ProbeEvent {
                reason: "Unhealthy",
                message: format!("{kind} probe errored and resulted in {state} state: {text}"),
            }),
        }
    }
}

/// A warning event about a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeEvent {
    pub reason: &'static str,
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_event_has_upstreams_text() {
        let failure = |text: &str| ProbeOutcome::Failure(text.into());
        for (outcome, kind, want) in [
            (ProbeOutcome::Success, ProbeKind::Liveness, None),
            (
                failure("HTTP probe failed with statuscode: 500"),
                ProbeKind::Readiness,
                Some((
                    "Unhealthy",
                    "Readiness probe failed: HTTP probe failed with statuscode: 500",
                )),
            ),
            (failure(""), ProbeKind::Liveness, Some(("Unhealthy", "Liveness probe failed: "))),
            (
                ProbeOutcome::error("invalid port number: 0"),
                ProbeKind::Startup,
                Some((
                    "Unhealthy",
                    "Startup probe errored and resulted in unknown state: invalid port number: 0",
                )),
            ),
            (
                ProbeOutcome::Warning("Probe terminated redirects, Response body: moved".into()),
                ProbeKind::Readiness,
                Some((
                    "ProbeWarning",
                    "Readiness probe warning: Probe terminated redirects, Response body: moved",
                )),
            ),
        ] {
            let event = outcome.event(kind);
            let event = event.as_ref().map(|event| (event.reason, event.message.as_str()));
            assert_eq!(event, want, "{outcome:?}");
        }
    }

    #[test]
    fn verdicts_are_kept_by_instance_and_dropped_with_it() {
        let (old, new) = (ContainerId::new("old"), ContainerId::new("new"));
        let mut probed = ProbeVerdicts::default();
        assert!(probed.set(&old, ProbeKind::Liveness, ProbeVerdict::Failure));
        assert!(!probed.set(&old, ProbeKind::Liveness, ProbeVerdict::Failure), "unchanged");
        assert!(probed.failed(&old, ProbeKind::Liveness));
        assert_eq!(probed.verdict(&new, ProbeKind::Liveness), None);
        probed.retain(|id| *id == new);
        assert_eq!(probed, ProbeVerdicts::default());
    }
}
