//! Problems of manifests: which files are ignored, where, and why.
//!
//! The manifest source writes them, the debug socket reads them. Each new problem is an Event of
//! the node, because a pod that was never accepted has no object of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::report::events::{Recorder, Severity};

/// Problems that are kept; a directory may hold any number of other files.
const KEPT: usize = 1000;
/// Reasons of the Events.
const INVALID: &str = "InvalidManifest";
const UNKNOWN_FIELDS: &str = "UnknownManifestFields";

/// A manifest that is not used as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestProblem {
    #[serde(rename = "file")]
    pub file: String,
    /// From 1, if it is known.
    #[serde(rename = "line")]
    pub line: Option<u64>,
    #[serde(rename = "error")]
    pub error: String,
    #[serde(rename = "effect")]
    pub effect: ManifestEffect,
    #[serde(rename = "since")]
    pub since: Timestamp,
}

/// What the problem does to the pod of the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ManifestEffect {
    /// There is no pod of this manifest.
    #[serde(rename = "Ignored")]
    Ignored,
    /// The pod of the last valid version keeps running.
    #[serde(rename = "PreviousVersionRuns")]
    PreviousVersionRuns,
    /// The pod runs without the named fields.
    #[serde(rename = "FieldsIgnored")]
    FieldsIgnored,
}

impl ManifestEffect {
    pub fn text(self) -> &'static str {
        match self {
            Self::Ignored => "the manifest is ignored until it is fixed",
            Self::PreviousVersionRuns => {
                "the manifest is ignored until it is fixed; the pod of its last valid version \
                 keeps running"
            }
            Self::FieldsIgnored => "the pod runs without these fields",
        }
    }
}

impl ManifestProblem {
    /// `FILE:LINE`, as editors and compilers write it.
    pub fn location(&self) -> String {
        match self.line {
            Some(line) => format!("{}:{line}", self.file),
            None => self.file.clone(),
        }
    }
}

/// The current problems, by file.
#[derive(Clone, Debug, Default)]
pub struct ManifestProblems(Arc<Mutex<BTreeMap<String, ManifestProblem>>>);

impl ManifestProblems {
    pub fn list(&self) -> Vec<ManifestProblem> {
        self.0.lock().values().cloned().collect()
    }

    /// Returns whether the problem is new.
    fn set(&self, problem: &ManifestProblem) -> bool {
        let mut problems = self.0.lock();
        match problems.get_mut(&problem.file) {
            Some(known)
                if known.error == problem.error
                    && known.line == problem.line
                    && known.effect == problem.effect =>
            {
                false
            }
            Some(known) => {
                known.clone_from(problem);
                true
            }
            None => {
                let has_room = problems.len() < KEPT;
                if has_room {
                    problems.insert(problem.file.clone(), problem.clone());
                }
                has_room
            }
        }
    }

    fn clear(&self, file: &str) -> bool {
        self.0.lock().remove(file).is_some()
    }

    fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.0.lock().retain(|file, _| keep(file));
    }
}

/// Where the manifest source reports problems.
pub struct ManifestReporter {
    pub problems: ManifestProblems,
    pub events: Recorder,
    pub node: Arc<str>,
}

impl ManifestReporter {
    /// Logs a new problem and records its Event.
    pub(super) fn report(&self, problem: &ManifestProblem) {
        if !self.problems.set(problem) {
            return;
        }
        let reason = match problem.effect {
            ManifestEffect::Ignored | ManifestEffect::PreviousVersionRuns => INVALID,
            ManifestEffect::FieldsIgnored => UNKNOWN_FIELDS,
        };
        let message =
            format!("{}: {}; {}", problem.location(), problem.error, problem.effect.text());
        self.events.node(&self.node, Severity::Warning, reason, message);
    }

    /// The manifest has no problem.
    pub(super) fn fine(&self, file: &str) {
        if self.problems.clear(file) {
            tracing::info!(file, "manifest is valid again");
        }
    }

    /// Forgets files that no longer exist.
    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.problems.retain(keep);
    }
}

#[cfg(test)]
mod tests {
    use podwright_host::clock::Clock;

    use super::*;

    fn problem(error: &str, effect: ManifestEffect) -> ManifestProblem {
        let (file, since) = ("/m/web.yaml".to_owned(), Timestamp::UNIX_EPOCH);
        ManifestProblem { file, line: Some(3), error: error.into(), effect, since }
    }

    #[tokio::test]
    async fn each_new_problem_is_one_event_of_the_node() {
        let (events, mut recorded) = Recorder::new(Clock::real());
        let problems = ManifestProblems::default();
        let reporter =
            ManifestReporter { problems: problems.clone(), events, node: "node-1".into() };
        let first = problem("no image", ManifestEffect::Ignored);
        reporter.report(&first);
        reporter.report(&first);
        assert_eq!(problems.list(), [first]);
        let event = recorded.try_recv().unwrap();
        assert_eq!(event.object.kind.as_deref(), Some("Node"));
        assert_eq!(event.reason, INVALID);
        let want = "/m/web.yaml:3: no image; the manifest is ignored until it is fixed";
        assert_eq!(event.message, want);
        assert!(recorded.try_recv().is_err(), "repeated");
        reporter.report(&problem("x", ManifestEffect::FieldsIgnored));
        assert_eq!(recorded.try_recv().unwrap().reason, UNKNOWN_FIELDS);
        reporter.fine("/m/web.yaml");
        assert_eq!(problems.list(), []);
        reporter.report(&problem("no image", ManifestEffect::Ignored));
        assert!(recorded.try_recv().is_ok(), "broken again");
        reporter.retain(|file| file != "/m/web.yaml");
        assert_eq!(problems.list(), []);
    }
}
