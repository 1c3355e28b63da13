//! Last answers of the probes of a pod, for its explanation.
//!
//! One record for each probe of a container, so the memory is bounded by the spec. What decides
//! is the verdict; this is only what a user wants to see of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ProbeOutcome;
use crate::explain::excerpt;
use crate::ids::ContainerId;
use crate::pod::ProbeKind;

/// Characters of an answer that are kept.
const KEPT: usize = 200;

/// What a probe was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeAnswer {
    #[serde(rename = "at")]
    pub at: Timestamp,
    #[serde(rename = "passed")]
    pub passed: bool,
    /// Such as `status 503: starting`; an excerpt.
    #[serde(rename = "text")]
    pub text: String,
}

/// The answers of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeRecord {
    /// The instance that gave them.
    pub instance: ContainerId,
    pub last: ProbeAnswer,
    /// How often the last result came in a row.
    pub in_a_row: u32,
    pub passed: u32,
    pub failed: u32,
    /// The last failure; also of an earlier instance, which it may have ended.
    pub last_failure: Option<ProbeAnswer>,
}

/// Records by container and probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeAnswers(BTreeMap<(Arc<str>, ProbeKind), ProbeRecord>);

impl ProbeAnswers {
    /// `answer`: what the container said; without one the outcome says it.
    pub fn record(
        &mut self,
        container: &Arc<str>,
        kind: ProbeKind,
        instance: &ContainerId,
        (outcome, answer): (&ProbeOutcome, Option<&str>),
        at: Timestamp,
    ) {
        let (passed, said) = match outcome {
            ProbeOutcome::Success => (true, "passed"),
            ProbeOutcome::Warning(text) => (true, text.as_str()),
            ProbeOutcome::Failure(text) | ProbeOutcome::Error { text, .. } => {
                (false, text.as_str())
            }
        };
        let text = excerpt(answer.filter(|answer| !answer.is_empty()).unwrap_or(said), KEPT);
        let answer = ProbeAnswer { at, passed, text };
        let failure = (!passed).then(|| answer.clone());
        let count = |counts: bool| u32::from(counts);
        let key = (container.clone(), kind);
        match self.0.get_mut(&key) {
            Some(record) if record.instance == *instance => {
                let repeated = record.last.passed == passed;
                record.in_a_row = if repeated { record.in_a_row.saturating_add(1) } else { 1 };
                record.passed = record.passed.saturating_add(count(passed));
                record.failed = record.failed.saturating_add(count(!passed));
                record.last = answer;
                record.last_failure = failure.or(record.last_failure.take());
            }
            earlier => {
                let last_failure =
                    failure.or(earlier.and_then(|record| record.last_failure.take()));
                let (passed, failed) = (count(passed), count(!passed));
                let instance = instance.clone();
                let record = ProbeRecord {
                    instance,
                    last: answer,
                    in_a_row: 1,
                    passed,
                    failed,
                    last_failure,
                };
                self.0.insert(key, record);
            }
        }
    }

    pub fn get(&self, container: &str, kind: ProbeKind) -> Option<&ProbeRecord> {
        let mut all = self.0.iter();
        let (_, record) = all.find(|((name, it), _)| &**name == container && *it == kind)?;
        Some(record)
    }

    /// The records of one container.
    pub fn of<'a>(
        &'a self,
        container: &'a str,
    ) -> impl Iterator<Item = (ProbeKind, &'a ProbeRecord)> {
        let own = self.0.iter().filter(move |((name, _), _)| &**name == container);
        own.map(|((_, kind), record)| (*kind, record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn answers_are_counted_for_each_instance_and_the_last_failure_outlives_it() {
        let mut answers = ProbeAnswers::default();
        let (app, kind): (Arc<str>, _) = ("app".into(), ProbeKind::Liveness);
        let (old, new) = (ContainerId::new("old"), ContainerId::new("new"));
        let failure = ProbeOutcome::Failure("HTTP probe failed with statuscode: 500".into());
        let success = (&ProbeOutcome::Success, Some("status 200: fine"));
        answers.record(&app, kind, &old, success, at(1));
        answers.record(&app, kind, &old, (&failure, Some("status 500: broken")), at(2));
        answers.record(&app, kind, &old, (&failure, None), at(3));
        let record = answers.get("app", kind).unwrap();
        assert_eq!((record.in_a_row, record.passed, record.failed), (2, 1, 2));
        assert_eq!(record.last.text, "HTTP probe failed with statuscode: 500");
        answers.record(&app, kind, &new, (&ProbeOutcome::Success, None), at(4));
        let record = answers.get("app", kind).unwrap();
        assert_eq!((record.in_a_row, record.passed, record.failed), (1, 1, 0));
        assert_eq!((record.last.text.as_str(), record.last.passed), ("passed", true));
        assert_eq!(record.last_failure.as_ref().map(|answer| answer.at), Some(at(3)));
        assert_eq!(answers.get("app", ProbeKind::Readiness), None);
        assert_eq!(answers.of("other").count(), 0);
    }

    #[test]
    fn long_answer_is_cut() {
        let mut answers = ProbeAnswers::default();
        let (app, id) = ("app".into(), ContainerId::new("i"));
        let long = ProbeOutcome::Failure("x\n".repeat(10_000));
        answers.record(&app, ProbeKind::Startup, &id, (&long, None), at(1));
        let text = &answers.get("app", ProbeKind::Startup).unwrap().last.text;
        assert_eq!(text.chars().count(), KEPT + 1, "{text}");
    }
}
