//! Notes that a test prints about itself: skipped, measured, tried again, compared with recordings.
//!
//! Why not `println!`: libtest captures the output of a passing test, so a test that did nothing
//! looks like one that passed. A note is one line on standard error, `TEST: kind: text`; the
//! summary of `./test` counts and lists it.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Skips this test, for this reason.
pub fn skipped(reason: &str) {
    note("skipped", reason);
}

/// A measurement of a test.
pub fn figure(text: &str) {
    note("figure", text);
}

/// A part of this test failed beside others and passed when it was tried again. It counts like such
/// a case: it fails the run, outside of CI and of the quarantine, where it is `TEST/PART`.
pub fn unsteady(part: &str, text: &str) {
    note("unsteady", &format!("{part}: {text}"));
}

/// Something that is not under test was tried again, such as a stalled emulator.
pub fn retried(text: &str) {
    note("retried", text);
}

/// How many recordings were compared, and how many of them match. None at all is a failure.
#[allow(clippy::panic, reason = "this is an assertion")]
pub fn golden(what: &str, matched: usize, total: usize) {
    assert!(total > 0, "golden {what}: the directory has no recordings");
    note("golden", &format!("{what} {matched} of {total}"));
}

/// A time limit was exceeded. `test` is passed, since the report comes from another thread.
pub fn exceeded(test: &str, text: &str) {
    write(test, "limit", text);
}

/// Prints the notes found in the output of a test in another process.
pub fn repeat(printed: &str) {
    const KINDS: [&str; 5] = ["skipped", "figure", "unsteady", "retried", "golden"];
    for line in printed.lines() {
        let mut parts = line.splitn(3, ": ");
        if let (Some(test), Some(kind), Some(text)) = (parts.next(), parts.next(), parts.next())
            && KINDS.contains(&kind)
            && !test.contains(' ')
        {
            write(test, kind, text);
        }
    }
}

/// In one write, since other threads write as well.
fn note(kind: &str, text: &str) {
    write(std::thread::current().name().unwrap_or("test"), kind, text);
}

fn write(test: &str, kind: &str, text: &str) {
    let text = text.replace('\n', " ");
    let _ = std::io::stderr().write_all(format!("{test}: {kind}: {text}\n").as_bytes());
}

/// Whether this is CI, where optional test inputs are required.
pub(crate) fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// The directory of recordings that `PODWRIGHT_GOLDEN` names. Where it names none the test is
/// skipped, and with `CI=true` it fails. An empty directory always fails.
#[allow(clippy::panic, reason = "this is an assertion")]
pub fn recordings() -> Option<PathBuf> {
    match find_recordings(std::env::var_os("PODWRIGHT_GOLDEN").map(PathBuf::from), in_ci()) {
        Ok(Some(directory)) => Some(directory),
        Ok(None) => {
            skipped("PODWRIGHT_GOLDEN names no directory of recordings");
            None
        }
        Err(fault) => panic!("{fault}"),
    }
}

fn find_recordings(named: Option<PathBuf>, ci: bool) -> Result<Option<PathBuf>, String> {
    let Some(directory) = named else {
        return if ci {
            Err("PODWRIGHT_GOLDEN is not set, and with CI=true recordings are compared".to_owned())
        } else {
            Ok(None)
        };
    };
    for part in ["pods", "api", "server"] {
        if is_empty(&directory.join(part)) {
            return Err(format!(
                "PODWRIGHT_GOLDEN: {} has no recordings",
                directory.join(part).display()
            ));
        }
    }
    Ok(Some(directory))
}

/// Whether it is empty or missing.
fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
}

/// Whether this process has the effective user id 0.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Skips the test, with a note, when it does not run as root.
#[macro_export]
macro_rules! needs_root {
    () => {
        if !$crate::report::is_root() {
            return $crate::report::skipped("needs root");
        }
    };
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_optional_outside_ci_and_never_empty() {
        assert_eq!(find_recordings(None, false), Ok(None));
        assert!(find_recordings(None, true).is_err());
        let directory =
            std::env::temp_dir().join(format!("podwright-report-{}", std::process::id()));
        for part in ["pods", "api", "server"] {
            let found = find_recordings(Some(directory.clone()), false);
            assert!(found.is_err(), "{part} is missing: {found:?}");
            std::fs::create_dir_all(directory.join(part)).unwrap();
            assert!(find_recordings(Some(directory.clone()), false).is_err(), "{part} is empty");
            std::fs::write(directory.join(part).join("a.json"), "{}").unwrap();
        }
        assert_eq!(find_recordings(Some(directory.clone()), true), Ok(Some(directory.clone())));
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    #[should_panic(expected = "no recordings")]
    fn comparison_of_no_recordings_fails() {
        golden("nothing", 0, 0);
    }
}
