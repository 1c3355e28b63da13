//! Verdict of a run: what failed, what was unsteady, what was skipped. The printed summary and the
//! exit code come from this one value, so they cannot disagree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::civil::Date;

use super::log::{Note, NoteKind, Report};
use super::quarantine::Quarantine;
use super::{Kind, Step};

/// With `CI=true` this many unsteady cases outside the quarantine do not fail a run: CI machines
/// are shared.
const TOLERATED_IN_CI: usize = 1;

/// Exit status of `timeout` when the time limit is exceeded.
const TIMED_OUT: i32 = 124;

/// Exit status of a killed command: by `timeout` after the limit, by something else before it.
const KILLED: i32 = 137;

#[derive(Clone, Copy)]
pub(crate) struct Rules {
    /// Whether recordings must be present and one unsteady case is tolerated.
    pub(crate) ci: bool,
    /// Whether the end-to-end suite belongs to this run.
    pub(crate) end_to_end: bool,
    pub(crate) today: Date,
    /// Exit status of the script.
    pub(crate) status: i32,
}

pub(crate) struct Verdict {
    failed: Vec<String>,
    unsteady: Vec<Unsteady>,
    quarantine: Vec<String>,
    notes: Vec<Note>,
    passed: usize,
    ignored: usize,
    /// The name of each step and its seconds.
    times: Vec<(String, u64)>,
    ci: bool,
}

/// A case that failed beside others and passed alone.
#[derive(Debug, PartialEq, Eq)]
struct Unsteady {
    case: String,
    /// Its own note.
    text: String,
    step: String,
    quarantined: bool,
}

impl Verdict {
    /// `planned` are the names of the steps a run should have.
    pub(crate) fn of(
        steps: &[Step],
        planned: &[String],
        quarantine: anyhow::Result<Quarantine>,
        rules: Rules,
    ) -> Self {
        let mut failed = Vec::new();
        let quarantine = quarantine.unwrap_or_else(|error| {
            failed.push(format!("quarantine: {error:#}"));
            Quarantine::default()
        });
        let reports: Vec<Report> = steps.iter().map(|step| Report::of(&step.log)).collect();
        let mut unsteady = Vec::new();
        for (index, (step, report)) in steps.iter().zip(&reports).enumerate() {
            let steady_alone = match step.kind {
                Kind::Cases => passed_alone(steps.get(index + 1..).unwrap_or_default()),
                Kind::Command | Kind::Tests | Kind::Alone(_) => BTreeSet::new(),
            };
            // Judged together with the step that it repeats.
            if matches!(step.kind, Kind::Alone(_)) {
                continue;
            }
            let (mut wrong, again) = judge(step, report, &steady_alone);
            failed.append(&mut wrong);
            let inside = report.notes.iter().filter(|note| note.kind == NoteKind::Unsteady);
            let inside = inside.map(|note| {
                // The part that was tried again is excused, not the whole test.
                let (part, text) = note.text.split_once(": ").unwrap_or((&note.text, ""));
                (format!("{}/{part}", note.test), text.to_owned())
            });
            for (case, text) in again.into_iter().map(|case| (case, String::new())).chain(inside) {
                let quarantined = quarantine.has(&case);
                unsteady.push(Unsteady { case, text, step: step.name.clone(), quarantined });
            }
        }
        let mut notes: Vec<Note> = reports.iter().flat_map(|report| report.notes.clone()).collect();
        notes.sort();
        notes.dedup();
        failed.extend(golden_missing(&notes, &rules));
        failed.extend(differs_from_plan(steps, planned));
        if rules.end_to_end && rules.status == 0 {
            failed.extend(quarantined_not_run(&quarantine, steps, &reports));
        }
        if rules.status != 0 {
            failed.push(format!("./test stopped early, with status {}", rules.status));
        }
        let quarantine = quarantine.entries().iter().map(|entry| {
            let overdue = if entry.is_overdue(rules.today) { ", overdue" } else { "" };
            format!("{} since {}{overdue}: {}", entry.case, entry.since, entry.reason)
        });
        Self {
            failed,
            unsteady,
            quarantine: quarantine.collect(),
            notes,
            passed: steps_count(steps, &reports, Report::passed),
            ignored: steps_count(steps, &reports, Report::ignored),
            times: steps.iter().map(|step| (step.name.clone(), step.seconds)).collect(),
            ci: rules.ci,
        }
    }

    /// How many unsteady cases do not fail the run.
    fn tolerated(&self) -> usize {
        if self.ci { TOLERATED_IN_CI } else { 0 }
    }

    fn unsteady_outside_quarantine(&self) -> usize {
        self.unsteady.iter().filter(|case| !case.quarantined).count()
    }

    pub(crate) fn passed(&self) -> bool {
        self.failed.is_empty() && self.unsteady_outside_quarantine() <= self.tolerated()
    }
}

/// What failed in a step, and which of its cases passed alone afterwards.
fn judge(
    step: &Step,
    report: &Report,
    steady_alone: &BTreeSet<&str>,
) -> (Vec<String>, Vec<String>) {
    let (mut failed, mut unsteady) = (Vec::new(), Vec::new());
    let Step { name, status, limit, .. } = step;
    let runs_tests = match step.kind {
        Kind::Tests | Kind::Cases => true,
        Kind::Command | Kind::Alone(_) => false,
    };
    if runs_tests {
        for binary in &report.binaries {
            for test in &binary.failed {
                if steady_alone.contains(test.as_str()) {
                    unsteady.push(test.clone());
                } else {
                    failed.push(format!("{test} in {}, {name}", binary.name));
                }
            }
            failed.extend(binary.aborted().map(|how| format!("{name}: {how}")));
            match binary.nameless_failures() {
                0 => {}
                1 => failed.push(format!("{name}: 1 failure without a name in {}", binary.name)),
                more => {
                    failed
                        .push(format!("{name}: {more} failures without a name in {}", binary.name));
                }
            }
        }
        let late = report.notes.iter().filter(|note| note.kind == NoteKind::Limit);
        failed.extend(late.map(|note| format!("{}: {}", note.test, note.text)));
        failed.extend(report.not_built.iter().map(|what| format!("{name}: cannot compile {what}")));
    }
    let unmatched = step.filters.iter().filter(|filter| !report.ran(filter));
    failed.extend(unmatched.map(|filter| format!("{name}: no test of {filter} ran")));
    match status {
        None => failed.push(format!("{name}: stopped before its end")),
        Some(status) if *status == TIMED_OUT || (*status == KILLED && step.seconds >= *limit) => {
            failed.push(format!("{name}: exceeded its limit of {} min", limit / 60));
        }
        Some(status) if *status == KILLED => failed.push(format!("{name}: was killed")),
        Some(0) if runs_tests && report.passed() == 0 && failed.is_empty() => {
            failed.push(format!("{name}: no test ran"));
        }
        Some(0) => {}
        Some(_) if !failed.is_empty() || !unsteady.is_empty() => {}
        Some(status) => failed.push(format!("{name}: ended with status {status}")),
    }
    (failed, unsteady)
}

/// The cases that were run again directly after a step and passed.
fn passed_alone(after: &[Step]) -> BTreeSet<&str> {
    let again = after.iter().map_while(|step| match &step.kind {
        Kind::Alone(case) => Some((case.as_str(), step)),
        Kind::Command | Kind::Tests | Kind::Cases => None,
    });
    let passed = again.filter(|(case, step)| {
        let report = Report::of(&step.log);
        let passed = step.status == Some(0) && report.failed().is_empty() && report.passed() == 1;
        // A skipped case has not passed.
        passed && !report.skipped(case)
    });
    passed.map(|(case, _)| case).collect()
}

/// Planned steps that did not run, and steps that are not in the plan.
fn differs_from_plan(steps: &[Step], planned: &[String]) -> Vec<String> {
    let began = |name: &str| steps.iter().any(|step| step.name == name);
    let missing = planned.iter().filter(|name| !began(name));
    let missing = missing.map(|name| format!("{name}: never began"));
    let first = steps.iter().filter(|step| !matches!(step.kind, Kind::Alone(_)));
    let unplanned = first.filter(|step| !planned.contains(&step.name));
    let unplanned = unplanned.map(|step| format!("{}: is not in the plan of ./test", step.name));
    missing.chain(unplanned).collect()
}

/// Quarantine entries whose case does not exist any more or was skipped.
fn quarantined_not_run(quarantine: &Quarantine, steps: &[Step], reports: &[Report]) -> Vec<String> {
    let of_cases = || steps.iter().zip(reports).filter(|(step, _)| step.kind == Kind::Cases);
    let ran = |test: &str| of_cases().any(|(_, report)| report.tried(test));
    let entries = quarantine.entries().iter().filter(|entry| !ran(entry.test()));
    entries.map(|entry| format!("quarantine: {} did not run", entry.case)).collect()
}

/// In CI at least one recording must be compared.
fn golden_missing(notes: &[Note], rules: &Rules) -> Vec<String> {
    let wanted = [("config", true), ("pods", rules.end_to_end)];
    let wanted = wanted.into_iter().filter(|(_, wanted)| *wanted && rules.ci);
    // `config 45 of 45`, and not `config files 45 of 45`, which is about something else.
    let count = |note: &Note, kind: &str| {
        let (matched, total) =
            note.text.strip_prefix(kind)?.strip_prefix(' ')?.split_once(" of ")?;
        total.parse::<usize>().ok()?;
        matched.parse::<usize>().ok()
    };
    let compared = |kind: &str| {
        let mut golden = notes.iter().filter(|note| note.kind == NoteKind::Golden);
        golden.any(|note| count(note, kind).is_some_and(|matched| matched > 0))
    };
    wanted
        .filter(|(kind, _)| !compared(kind))
        .map(|(kind, _)| {
            format!("golden {kind}: no recording was compared, and with CI=true there must be some")
        })
        .collect()
}

/// A sum over the steps that are not repetitions.
fn steps_count(steps: &[Step], reports: &[Report], count: fn(&Report) -> usize) -> usize {
    let first = steps.iter().zip(reports).filter(|(step, _)| !matches!(step.kind, Kind::Alone(_)));
    first.map(|(_, report)| count(report)).sum()
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.times.iter().map(|(_, seconds)| seconds).sum();
        writeln!(out, "time: {}", minutes(total))?;
        for (step, seconds) in &self.times {
            writeln!(out, "  {}  {step}", minutes(*seconds))?;
        }
        let of = |kind| self.notes.iter().filter(move |note| note.kind == kind);
        let golden: BTreeSet<&str> = of(NoteKind::Golden).map(|note| note.text.as_str()).collect();
        let golden = golden.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(out, "golden: {}", if golden.is_empty() { "not run" } else { &golden })?;
        for note in of(NoteKind::Figure) {
            writeln!(out, "figure: {}", note.text)?;
        }
        for note in of(NoteKind::Retried) {
            writeln!(out, "retried: {}: {}", note.test, note.text)?;
        }
        let mut skipped: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for note in of(NoteKind::Skipped) {
            skipped.entry(&note.text).or_default().push(&note.test);
        }
        for (reason, tests) in &skipped {
            writeln!(out, "skipped {}: {reason}: {}", tests.len(), tests.join(", "))?;
        }
        for entry in &self.quarantine {
            writeln!(out, "quarantine: {entry}")?;
        }
        for Unsteady { case, text, step, quarantined } in &self.unsteady {
            let rule = match (quarantined, self.unsteady_outside_quarantine() <= self.tolerated()) {
                (true, _) => "quarantined",
                (false, true) => "tolerated once with CI=true",
                (false, false) => "fails the run",
            };
            let text = if text.is_empty() { String::new() } else { format!(" ({text})") };
            writeln!(
                out,
                "unsteady, failed beside others and passed alone: {case}{text} in {step}; {rule}"
            )?;
        }
        for failure in &self.failed {
            writeln!(out, "failed: {failure}")?;
        }
        writeln!(
            out,
            "{} passed, {} failed, {} unsteady, {} skipped, {} ignored",
            self.passed,
            self.failed.len(),
            self.unsteady.len(),
            skipped.values().map(Vec::len).sum::<usize>(),
            self.ignored,
        )
    }
}

fn minutes(seconds: u64) -> String {
    format!("{} min {:02} s", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests;
