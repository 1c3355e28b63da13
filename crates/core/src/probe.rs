//! Probes: what is asked of a container, when, and what the answers mean.
//!
//! [`schedule`] says which probe of a pod is due and when its answers settle a verdict; [`check`]
//! says what a probe does; [`http`] judges an HTTP answer. Asking itself is the shell's part.
//! A settled verdict goes into [`Probed`], an input of the pod's next plan and of its status.

pub mod check;
pub mod http;
pub mod schedule;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::ContainerId;
use crate::pod::ProbeKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    #[serde(rename = "Success")]
    Success,
    #[serde(rename = "Failure")]
    Failure,
    /// Probed without a settled answer yet.
    #[serde(rename = "Unknown")]
    Unknown,
}

/// Settled verdicts, by instance: a restarted container starts with none.
///
/// None means what upstream stores as a probe's first value: not ready, alive, not yet started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    #[serde(rename = "verdicts")]
    verdicts: BTreeMap<ContainerId, BTreeMap<ProbeKind, Verdict>>,
}

impl Probed {
    pub fn verdict(&self, instance: &ContainerId, kind: ProbeKind) -> Option<Verdict> {
        self.verdicts.get(instance)?.get(&kind).copied()
    }

    pub fn failed(&self, instance: &ContainerId, kind: ProbeKind) -> bool {
        self.verdict(instance, kind) == Some(Verdict::Failure)
    }

    /// Returns whether this changed anything.
    pub fn set(&mut self, instance: &ContainerId, kind: ProbeKind, verdict: Verdict) -> bool {
        let old = self.verdicts.entry(instance.clone()).or_default().insert(kind, verdict);
        old != Some(verdict)
    }

    /// Forgets instances that are no longer there.
    pub fn retain(&mut self, keep: impl Fn(&ContainerId) -> bool) {
        self.verdicts.retain(|id, _| keep(id));
    }
}

/// What came of asking once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// A success that people should know more about.
    Warning(String),
    /// The container gave the wrong answer, or none in time.
    Failure(String),
    /// The question could not be asked; that says nothing about the container.
    Error {
        text: String,
        /// What upstream calls the state this results in; part of the event's text.
        state: &'static str,
    },
}

impl Outcome {
    pub fn error(text: impl Into<String>) -> Self {
        Self::Error { text: text.into(), state: "unknown" }
    }

    /// What the container's events say about it; nothing about a plain success.
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

/// A warning about a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeEvent {
    pub reason: &'static str,
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_told_in_the_words_people_match_on() {
        let failure = |text: &str| Outcome::Failure(text.into());
        for (outcome, kind, want) in [
            (Outcome::Success, ProbeKind::Liveness, None),
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
                Outcome::error("invalid port number: 0"),
                ProbeKind::Startup,
                Some((
                    "Unhealthy",
                    "Startup probe errored and resulted in unknown state: invalid port number: 0",
                )),
            ),
            (
                Outcome::Warning("Probe terminated redirects, Response body: moved".into()),
                ProbeKind::Readiness,
                Some((
                    "ProbeWarning",
                    "Readiness probe warning: Probe terminated redirects, Response body: moved",
                )),
            ),
        ] {
            let told = outcome.event(kind);
            let told = told.as_ref().map(|event| (event.reason, event.message.as_str()));
            assert_eq!(told, want, "{outcome:?}");
        }
    }

    #[test]
    fn verdicts_are_kept_by_instance_and_forgotten_with_it() {
        let (old, new) = (ContainerId::new("old"), ContainerId::new("new"));
        let mut probed = Probed::default();
        assert!(probed.set(&old, ProbeKind::Liveness, Verdict::Failure));
        assert!(!probed.set(&old, ProbeKind::Liveness, Verdict::Failure), "that is no news");
        assert!(probed.failed(&old, ProbeKind::Liveness));
        assert_eq!(probed.verdict(&new, ProbeKind::Liveness), None);
        probed.retain(|id| *id == new);
        assert_eq!(probed, Probed::default());
    }
}
