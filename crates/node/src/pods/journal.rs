//! Pod journal: the last decisions about a pod and calls for it, kept in memory for `podwright
//! why`.

use std::collections::VecDeque;

use jiff::Timestamp;
use podwright_core::plan::Why;
use podwright_core::time::Now;
use serde::{Deserialize, Serialize};

/// Enough to follow what happened, little enough to keep for every pod.
const KEPT: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    #[serde(rename = "at")]
    pub at: Timestamp,
    #[serde(rename = "text")]
    pub text: String,
    /// How often the same text was noted in a row.
    #[serde(rename = "times")]
    pub times: u32,
}

/// A runtime call in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Underway {
    #[serde(rename = "since")]
    pub since: Timestamp,
    #[serde(rename = "what")]
    pub what: String,
}

#[derive(Clone, Debug, Default)]
pub struct Journal {
    entries: VecDeque<JournalEntry>,
    why: Option<Why>,
    why_since: Option<Timestamp>,
    underway: Option<Underway>,
}

impl Journal {
    pub fn note(&mut self, now: Now, text: impl Into<String>) {
        let text = text.into();
        if let Some(last) = self.entries.back_mut().filter(|last| last.text == text) {
            last.times = last.times.saturating_add(1);
            return;
        }
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(JournalEntry { at: now.wall, text, times: 1 });
    }

    /// Records the reason of the newest plan. Its time is when this reason began.
    pub fn decided(&mut self, now: Now, why: &Why) {
        if self.why.as_ref() != Some(why) {
            self.why = Some(why.clone());
            self.why_since = Some(now.wall);
        }
    }

    pub fn begin(&mut self, now: Now, what: impl Into<String>) {
        self.underway = Some(Underway { since: now.wall, what: what.into() });
    }

    pub fn end(&mut self) {
        self.underway = None;
    }

    pub fn why(&self) -> Option<(&Why, Timestamp)> {
        Some((self.why.as_ref()?, self.why_since?))
    }

    pub fn underway(&self) -> Option<&Underway> {
        self.underway.as_ref()
    }

    pub fn entries(&self) -> impl Iterator<Item = &JournalEntry> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use podwright_core::plan::Topic;
    use podwright_core::time::Mono;

    use super::*;

    fn at(second: i64) -> Now {
        Now { wall: Timestamp::from_second(second).unwrap(), mono: Mono::ZERO }
    }

    #[test]
    fn journal_keeps_the_newest_entries_and_counts_repetitions() {
        let mut journal = Journal::default();
        for second in 0..100 {
            journal.note(at(second), format!("step {}", second / 2));
        }
        let entries: Vec<_> = journal.entries().collect();
        assert_eq!(entries.len(), KEPT);
        assert_eq!((entries[KEPT - 1].text.as_str(), entries[KEPT - 1].times), ("step 49", 2));
    }

    #[test]
    fn unchanged_reason_keeps_its_first_time() {
        let mut journal = Journal::default();
        journal.decided(at(1), &Why::new(Topic::Waits, "waits"));
        journal.decided(at(5), &Why::new(Topic::Waits, "waits"));
        assert_eq!(journal.why().unwrap().1, at(1).wall);
        journal.decided(at(9), &Why::new(Topic::Runs, "runs"));
        assert_eq!(journal.why().unwrap().1, at(9).wall);
    }
}
