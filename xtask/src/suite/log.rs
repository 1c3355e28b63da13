//! Parsed output of `cargo test`, per test binary: announced tests, outcomes, results, and the
//! notes that tests print with `podwright-report`.

use std::collections::BTreeSet;

/// One log.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) binaries: Vec<Binary>,
    pub(crate) notes: Vec<Note>,
    /// Targets that failed to compile.
    pub(crate) not_built: Vec<String>,
}

/// One test binary that was started.
#[derive(Debug, Default)]
pub(crate) struct Binary {
    pub(crate) name: String,
    /// How many tests it announced.
    announced: usize,
    rounds: usize,
    results: usize,
    /// How many failed by the last result. Not a sum: an isolated case prints the output of its own
    /// run, which has a result of its own.
    failed_by_result: usize,
    /// Whether the list of failures before a result is being read.
    in_failures: bool,
    pub(crate) passed: usize,
    pub(crate) ignored: usize,
    /// Tests whose outcome was printed.
    ended: BTreeSet<String>,
    /// Tests that were announced, each named before its outcome.
    started: BTreeSet<String>,
    pub(crate) failed: BTreeSet<String>,
    /// Abnormal exit as reported by cargo: `signal: 6, SIGABRT: …`.
    end: Option<String>,
}

/// Note that a test prints although it passes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Note {
    pub(crate) kind: NoteKind,
    /// The test binary; empty for a step that runs none.
    pub(crate) binary: String,
    pub(crate) test: String,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NoteKind {
    Skipped,
    Figure,
    /// Part of the test failed and passed when tried again.
    Unsteady,
    /// Something outside the product was tried again, such as a stalled emulator.
    Retried,
    Golden,
    /// The test exceeded its time limit; its process ends with it.
    Limit,
}

impl NoteKind {
    const ALL: [(Self, &str); 6] = [
        (Self::Skipped, "skipped"),
        (Self::Figure, "figure"),
        (Self::Unsteady, "unsteady"),
        (Self::Retried, "retried"),
        (Self::Golden, "golden"),
        (Self::Limit, "limit"),
    ];
}

impl Report {
    pub(crate) fn of(log: &str) -> Self {
        let mut report = Self::default();
        for line in log.lines() {
            report.read(line);
        }
        report
    }

    fn read(&mut self, line: &str) {
        if let Some(mut note) = Note::of(line) {
            if let Some(binary) = self.binaries.last_mut() {
                note.binary.clone_from(&binary.name);
                binary.started.extend(named(line).map(|(name, _)| name.to_owned()));
            }
            self.notes.push(note);
            return;
        }
        if let Some(name) = binary(line) {
            self.binaries.push(Binary { name, ..Binary::default() });
            return;
        }
        if let Some(rest) = line.strip_prefix("error: could not compile ") {
            self.not_built.push(rest.to_owned());
            return;
        }
        if self.binaries.is_empty() {
            // A test program that is started directly announces nothing before.
            if !line.starts_with("running ") {
                return;
            }
            self.binaries.push(Binary { name: "tests".to_owned(), ..Binary::default() });
        }
        let Some(binary) = self.binaries.last_mut() else { return };
        binary.read(line);
    }

    /// The tests that failed, of all binaries.
    pub(crate) fn failed(&self) -> BTreeSet<&str> {
        self.binaries.iter().flat_map(|binary| &binary.failed).map(String::as_str).collect()
    }

    /// Whether a test ran whose name has this prefix.
    pub(crate) fn ran(&self, prefix: &str) -> bool {
        self.tests().any(|test| test.starts_with(prefix))
    }

    /// Whether exactly this test ran and was not skipped.
    pub(crate) fn tried(&self, test: &str) -> bool {
        self.tests().any(|ran| ran == test) && !self.skipped(test)
    }

    /// The tests whose names could be read.
    fn tests(&self) -> impl Iterator<Item = &String> {
        self.binaries.iter().flat_map(|binary| binary.started.iter().chain(&binary.ended))
    }

    pub(crate) fn skipped(&self, test: &str) -> bool {
        self.notes.iter().any(|note| note.kind == NoteKind::Skipped && note.test == test)
    }

    pub(crate) fn passed(&self) -> usize {
        self.binaries.iter().map(|binary| binary.passed).sum()
    }

    pub(crate) fn ignored(&self) -> usize {
        self.binaries.iter().map(|binary| binary.ignored).sum()
    }
}

impl Binary {
    fn read(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("    ").filter(|_| self.in_failures) {
            if !name.contains(char::is_whitespace) {
                self.ended.insert(name.to_owned());
                self.failed.insert(name.to_owned());
            }
            return;
        }
        self.in_failures = line == "failures:";
        if let Some(count) = announced(line) {
            self.announced += count;
            self.rounds += 1;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.results += 1;
            self.passed += count_before(result, " passed");
            self.ignored += count_before(result, " ignored");
            self.failed_by_result = count_before(result, " failed");
        } else if let Some((name, outcome)) = outcome(line) {
            self.ended.insert(name.to_owned());
            if outcome.starts_with("FAILED") {
                self.failed.insert(name.to_owned());
            }
        } else if let Some((name, _)) = named(line).or_else(|| runs_long(line)) {
            self.started.insert(name.to_owned());
        } else if let Some(end) = end(line) {
            self.end = Some(end);
        }
    }

    /// Failure of the binary itself: it ended before it printed a result.
    pub(crate) fn aborted(&self) -> Option<String> {
        if self.results > 0 && self.results >= self.rounds {
            return None;
        }
        let end = self.end.as_deref().map(|end| format!(" ({end})")).unwrap_or_default();
        let missing = self.announced.saturating_sub(self.ended.len());
        // Several tests run at a time, and libtest names one before its end only when it runs long.
        let known: Vec<&str> = self.started.difference(&self.ended).map(String::as_str).collect();
        let known =
            if known.is_empty() { String::new() } else { format!(": {}", known.join(", ")) };
        Some(format!(
            "{} ended without a result{end}, {missing} of {} tests have none{known}",
            self.name, self.announced
        ))
    }

    /// How many tests failed beyond those whose names could be read: libtest writes a name and its
    /// outcome separately, and output of another test in between makes both unreadable.
    pub(crate) fn nameless_failures(&self) -> usize {
        self.failed_by_result.saturating_sub(self.failed.len())
    }
}

impl Note {
    /// `NAME: kind: text`; after `test NAME ... ` when tests run one at a time.
    fn of(line: &str) -> Option<Self> {
        let line = named(line).map_or(line, |(_, rest)| rest);
        let (test, rest) = line.split_once(": ")?;
        if test.is_empty() || test.contains(char::is_whitespace) {
            return None;
        }
        let (kind, text) = rest.split_once(": ")?;
        let (kind, _) = NoteKind::ALL.into_iter().find(|(_, name)| *name == kind)?;
        Some(Self { kind, binary: String::new(), test: test.to_owned(), text: text.to_owned() })
    }
}

/// `     Running unittests src/lib.rs (target/debug/deps/core-0123456789abcdef)`
fn binary(line: &str) -> Option<String> {
    if let Some(library) = line.strip_prefix("   Doc-tests ") {
        return Some(format!("{library} (doc tests)"));
    }
    let (source, program) =
        line.strip_prefix("     Running ")?.strip_suffix(')')?.rsplit_once(" (")?;
    let program = program.rsplit('/').next().unwrap_or(program);
    let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
    Some(format!("{program} ({source})"))
}

fn announced(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    rest.strip_suffix(" tests").or_else(|| rest.strip_suffix(" test"))?.parse().ok()
}

fn outcome(line: &str) -> Option<(&str, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let known = ["ok", "FAILED", "ignored"].iter().any(|known| outcome.starts_with(known));
    known.then_some((name.trim_end_matches(" - should panic"), outcome))
}

/// The test that a line begins with, and the rest: `test a::b ... `.
fn named(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name.trim_end_matches(" - should panic"), rest))
}

/// `test a::b has been running for over 60 seconds`
fn runs_long(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.split_once(" has been running for over ")
}

/// `  process didn't exit successfully: `/a/program` (signal: 6, SIGABRT: process abort signal)`
fn end(line: &str) -> Option<String> {
    let rest = line.trim_start().strip_prefix("process didn't exit successfully: ")?;
    Some(rest.rsplit_once(" (")?.1.trim_end_matches(')').to_owned())
}

/// The number before a word: `ok. 12 passed; 0 failed`.
fn count_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "
     Running unittests src/lib.rs (target/debug/deps/podwright_core-0123456789abcdef)

running 2 tests
a::skips: skipped: needs root
test a::skips ... ok
test a::passes ... ok

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests podwright_core

running 1 test
test crates/core/src/lib.rs - example (line 3) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn results_of_every_binary_are_summed() {
        let report = Report::of(PASSED);
        assert_eq!((report.passed(), report.ignored(), report.failed().len()), (3, 1, 0));
        let names: Vec<_> = report.binaries.iter().map(|b| b.name.as_str()).collect();
        assert_eq!(names, ["podwright_core (unittests src/lib.rs)", "podwright_core (doc tests)"]);
        assert!(report.binaries.iter().all(|binary| binary.aborted().is_none()));
    }

    #[test]
    fn binary_that_aborts_is_a_failure_with_its_name() {
        let log = "
     Running tests/e2e/main.rs (target/debug/deps/e2e-0123456789abcdef)

running 3 tests
test a ... ok
thread 'b' has overflowed its stack
error: test failed, to rerun pass `-p podwright-e2e --test e2e`

Caused by:
  process didn't exit successfully: `/x/e2e-0123456789abcdef` (signal: 6, SIGABRT: process abort signal)
";
        let report = Report::of(log);
        assert_eq!(
            report.binaries[0].aborted().unwrap(),
            "e2e (tests/e2e/main.rs) ended without a result \
             (signal: 6, SIGABRT: process abort signal), 2 of 3 tests have none"
        );
    }

    #[test]
    fn named_tests_without_outcome_are_listed() {
        let log = "
     Running tests/e2e/main.rs (target/debug/deps/e2e-01)

running 5 tests
test a::long has been running for over 60 seconds
test a::ended has been running for over 60 seconds
test a::ended ... ok
test a::torn ... a::other: figure: 3 ms
";
        assert_eq!(
            Report::of(log).binaries[0].aborted().unwrap(),
            "e2e (tests/e2e/main.rs) ended without a result, 4 of 5 tests have none: \
             a::long, a::torn"
        );
    }

    #[test]
    fn test_that_ends_the_process_with_success_is_a_failure() {
        let log = "     Running tests/x.rs (target/debug/deps/x-01)\n\nrunning 1 test\n";
        assert!(Report::of(log).binaries[0].aborted().is_some());
    }

    #[test]
    fn output_of_a_nested_run_hides_no_abort_and_adds_no_failure() {
        let log = "
     Running tests/e2e/main.rs (target/debug/deps/e2e-01)

running 2 tests
test in_a_cell ... FAILED
test other ... ok

failures:

---- in_a_cell stdout ----
running 1 test
test in_a_cell ... FAILED
test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s

failures:
    in_a_cell

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.00s
";
        let report = Report::of(log);
        assert_eq!(report.failed(), BTreeSet::from(["in_a_cell"]));
        assert_eq!(report.passed(), 1);
        assert!(report.binaries[0].aborted().is_none());
    }

    #[test]
    fn notes_are_read_between_other_output() {
        for (line, want) in [
            ("a::b: skipped: needs root", Some((NoteKind::Skipped, "a::b", "needs root"))),
            (
                "test a::b ... a::b: figure: 3 ms: fast",
                Some((NoteKind::Figure, "a::b", "3 ms: fast")),
            ),
            ("a: golden: pods 45 of 45", Some((NoteKind::Golden, "a", "pods 45 of 45"))),
            ("the log said: skipped: nothing", None),
            ("skipped: nothing", None),
            ("a::b: other: text", None),
        ] {
            let note = Note::of(line);
            let note = note.as_ref().map(|n| (n.kind, n.test.as_str(), n.text.as_str()));
            assert_eq!(note, want, "{line}");
        }
    }

    #[test]
    fn failed_compilation_is_named() {
        let log = "error: could not compile `podwright-node` (lib) due to 1 previous error\n";
        assert_eq!(Report::of(log).not_built, ["`podwright-node` (lib) due to 1 previous error"]);
    }
}
