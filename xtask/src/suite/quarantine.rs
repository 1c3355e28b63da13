//! Quarantine: cases that are known to fail beside others and pass alone, each with a date and a
//! reason. A quarantined case does not fail a run if it passes alone; it is always listed.

use anyhow::{Context as _, ensure};
use jiff::civil::Date;

pub(crate) const FILE: &str = "testbed/quarantine";

/// With more entries the suite is not trustworthy.
const MOST: usize = 3;

/// After this time an entry is listed as overdue.
const OVERDUE_DAYS: i32 = 28;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quarantine(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) case: String,
    pub(crate) since: Date,
    pub(crate) reason: String,
}

impl Quarantine {
    /// A line is `CASE DATE REASON…`; empty lines and lines that begin with `#` are ignored. A CASE
    /// is a test, or a part of one that the test itself tries again: `TEST/PART`.
    pub(crate) fn parse(text: &str, today: Date) -> anyhow::Result<Self> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entries = lines.map(Entry::parse).collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(
            entries.len() <= MOST,
            "{FILE} has {} entries and may have {MOST}: fix a case before you add one",
            entries.len()
        );
        for (number, entry) in entries.iter().enumerate() {
            let Entry { case, since, .. } = entry;
            // An entry in the future would become overdue later than others.
            ensure!(*since <= today, "{FILE}: {case} is quarantined since {since}, in the future");
            let mut others = entries.iter().take(number);
            ensure!(!others.any(|other| other.case == *case), "{FILE}: {case} is there twice");
        }
        Ok(Self(entries))
    }

    pub(crate) fn has(&self, case: &str) -> bool {
        self.0.iter().any(|entry| entry.case == case)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.0
    }
}

impl Entry {
    /// The test, without its part.
    pub(crate) fn test(&self) -> &str {
        self.case.split_once('/').map_or(self.case.as_str(), |(test, _)| test)
    }

    fn parse(line: &str) -> anyhow::Result<Self> {
        let form = || format!("{FILE}: {line:?} is not CASE YYYY-MM-DD REASON");
        let mut parts = line.splitn(3, char::is_whitespace).map(str::trim);
        let case = parts.next().with_context(form)?.to_owned();
        let since = parts.next().with_context(form)?.parse().ok().with_context(form)?;
        let reason = parts.next().filter(|reason| !reason.is_empty()).with_context(form)?;
        Ok(Self { case, since, reason: reason.to_owned() })
    }

    /// Whether it should have been fixed by now.
    pub(crate) fn is_overdue(&self, today: Date) -> bool {
        today.since(self.since).is_ok_and(|age| age.get_days() > OVERDUE_DAYS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Quarantine> {
        Quarantine::parse(text, jiff::civil::date(2026, 11, 18))
    }

    #[test]
    fn entry_needs_a_case_a_date_and_a_reason() {
        let text = "# comment\n\nup::case 2026-11-01 the runtime loses the first byte\n";
        let quarantine = parse(text).unwrap();
        assert!(quarantine.has("up::case") && !quarantine.has("up"));
        assert_eq!(quarantine.entries()[0].reason, "the runtime loses the first byte");
        for line in
            ["up::case", "up::case 2026-11-01", "up::case soon reason", "up::case 2026-11-01  "]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn three_entries_are_allowed_and_four_are_an_error() {
        let entries = |count: usize| {
            (0..count).map(|n| format!("a::b{n} 2026-11-01 reason\n")).collect::<String>()
        };
        assert!(parse(&entries(3)).is_ok());
        let error = parse(&entries(4)).unwrap_err().to_string();
        assert!(error.contains("4 entries"), "{error}");
    }

    #[test]
    fn entry_of_tomorrow_and_entry_that_is_there_twice_are_errors() {
        for (text, fault) in [
            ("a::b 2026-11-18 reason", None),
            ("a::b 2026-11-19 reason", Some("in the future")),
            ("a::b 2026-11-01 reason\na::b 2026-11-02 another", Some("there twice")),
            ("a::b/1 2026-11-01 reason\na::b/2 2026-11-02 another", None),
        ] {
            let message = parse(text).err().map(|error| error.to_string());
            assert_eq!(message.is_some(), fault.is_some(), "{text}: {message:?}");
            assert!(message.unwrap_or_default().contains(fault.unwrap_or_default()), "{text}");
        }
    }

    #[test]
    fn entry_is_overdue_after_four_weeks() {
        let quarantine = parse("a 2026-11-01 reason").unwrap();
        for (today, overdue) in [("2026-11-29", false), ("2026-11-30", true), ("2027-01-01", true)]
        {
            let today = today.parse().unwrap();
            assert_eq!(quarantine.entries()[0].is_overdue(today), overdue, "{today}");
        }
    }
}
