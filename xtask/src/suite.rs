//! Summary of a test run: reads what each step of `./test` recorded, prints it and decides the exit
//! code.
//!
//! Why here and not in the script: the exit code and the printed list come from one value, the
//! [`verdict::Verdict`], and the rules are tested on logs. A step is a directory with the files that
//! `./test` writes: `name`, `kind`, `limit`, `filters` of tests, `log`, and at its end `status` and
//! `seconds`. A step without a status was stopped, and that is a failure as well. The file `plan`
//! beside them has the names of all steps, so one that never began is noticed.

mod log;
mod quarantine;
mod verdict;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Subcommand;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use quarantine::Quarantine;
use verdict::{Rules, Verdict};

#[derive(Subcommand)]
pub(crate) enum SuiteCommand {
    /// List the tests that failed in one step
    Failed { step: std::path::PathBuf },
    /// Print the summary of a run; the exit code says whether it passed
    Summary {
        run: std::path::PathBuf,
        /// Requested run: quick, full or long
        #[arg(long, default_value = "full")]
        mode: String,
        /// The status the script ended with, if it ended early
        #[arg(long, default_value_t = 0)]
        status: i32,
    },
}

/// Kind of a step; decides how its log is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any command; only its exit status counts.
    Command,
    /// `cargo test`.
    Tests,
    /// `cargo test` of end-to-end cases, several at a time; failed cases are run again, alone.
    Cases,
    /// One case that failed in the step before, alone.
    Alone(String),
}

/// One step of a run, as recorded.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Test name prefixes; one that matches no test is an error.
    pub(crate) filters: Vec<String>,
    pub(crate) log: String,
    /// `None` if the step was stopped before it ended.
    pub(crate) status: Option<i32>,
    pub(crate) limit: u64,
    pub(crate) seconds: u64,
}

impl Step {
    fn read(directory: &Path) -> anyhow::Result<Self> {
        let file = |name: &str| {
            let path = directory.join(name);
            let text =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            anyhow::Ok(String::from_utf8_lossy(&text).into_owned())
        };
        let number = |name: &str| file(name).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let kind = match file("kind")?.trim() {
            "command" => Kind::Command,
            "tests" => Kind::Tests,
            "cases" => Kind::Cases,
            other => match other.strip_prefix("alone ") {
                Some(case) => Kind::Alone(case.to_owned()),
                None => anyhow::bail!("{}: unknown kind {other:?}", directory.display()),
            },
        };
        Ok(Self {
            name: file("name")?.trim().to_owned(),
            kind,
            filters: file("filters").unwrap_or_default().lines().map(str::to_owned).collect(),
            log: file("log").unwrap_or_default(),
            status: file("status").ok().and_then(|text| text.trim().parse().ok()),
            limit: number("limit").unwrap_or_default(),
            seconds: number("seconds").unwrap_or_default(),
        })
    }

    /// The steps of a run, in order.
    fn all(run: &Path) -> anyhow::Result<Vec<Self>> {
        let entries =
            fs::read_dir(run).with_context(|| format!("cannot read {}", run.display()))?;
        let mut directories: Vec<_> =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        directories.sort();
        directories.iter().map(|directory| Self::read(directory)).collect()
    }
}

/// Names of the steps a run should have.
fn plan(run: &Path) -> anyhow::Result<Vec<String>> {
    let path = run.join("plan");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

pub(crate) fn run(command: SuiteCommand, root: &Path) -> anyhow::Result<ExitCode> {
    match command {
        SuiteCommand::Failed { step } => {
            for test in log::Report::of(&Step::read(&step)?.log).failed() {
                println!("{test}");
            }
            Ok(ExitCode::SUCCESS)
        }
        SuiteCommand::Summary { run, mode, status } => {
            let file = root.join(quarantine::FILE);
            let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
            let quarantine = fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))
                .and_then(|text| Quarantine::parse(&text, today));
            let ci = std::env::var("CI").is_ok_and(|value| value == "true");
            let rules = Rules { ci, end_to_end: mode != "quick", today, status };
            let verdict = Verdict::of(&Step::all(&run)?, &plan(&run)?, quarantine, rules);
            print!("{verdict}");
            Ok(if verdict.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_that_was_stopped_has_no_status() {
        let directory = tempfile::tempdir().unwrap();
        for (file, text) in [("name", "lints\n"), ("kind", "alone a::b\n"), ("limit", "60\n")] {
            fs::write(directory.path().join(file), text).unwrap();
        }
        let step = Step::read(directory.path()).unwrap();
        assert_eq!(step.kind, Kind::Alone("a::b".to_owned()));
        assert_eq!((step.name.as_str(), step.status, step.limit), ("lints", None, 60));
    }

    #[test]
    fn filters_of_a_step_are_read_one_a_line() {
        let directory = tempfile::tempdir().unwrap();
        for (file, text) in [("name", "e2e\n"), ("kind", "cases\n"), ("filters", "a::\nb::\n")] {
            fs::write(directory.path().join(file), text).unwrap();
        }
        assert_eq!(Step::read(directory.path()).unwrap().filters, ["a::", "b::"]);
    }

    #[test]
    fn steps_are_in_the_order_they_ran_in() {
        let run = tempfile::tempdir().unwrap();
        for (step, name) in [("010", "third"), ("002", "second"), ("001", "first")] {
            let directory = run.path().join(step);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("name"), name).unwrap();
            fs::write(directory.join("kind"), "command").unwrap();
        }
        let names: Vec<_> = Step::all(run.path()).unwrap().into_iter().map(|s| s.name).collect();
        assert_eq!(names, ["first", "second", "third"]);
    }
}
