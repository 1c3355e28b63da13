//! Snapshots: text files with the output that users can see, compared with the current output.
//!
//! A change of behaviour changes such a file in the same commit, where a reviewer sees it. To
//! rewrite the files: `PODWRIGHT_BLESS=1`.

use std::fmt::Write as _;
use std::path::Path;

/// If set, the files are written instead of compared.
pub const BLESS: &str = "PODWRIGHT_BLESS";

/// Compares `shown` with `tests/snapshots/NAME.txt` of the crate whose directory this is; call it
/// with `env!("CARGO_MANIFEST_DIR")`.
///
/// # Panics
///
/// If they differ, with the difference and how to accept it.
#[track_caller]
pub fn check(crate_directory: &str, name: &str, shown: &str) {
    let path = Path::new(crate_directory).join("tests/snapshots").join(format!("{name}.txt"));
    if is_blessed(std::env::var_os(BLESS).is_some(), crate::report::in_ci()) {
        let written = std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))
            .and_then(|()| std::fs::write(&path, shown));
        assert!(written.is_ok(), "write {}: {written:?}", path.display());
        return;
    }
    let accepted = std::fs::read_to_string(&path);
    let accepted = accepted.unwrap_or_else(|error| format!("(cannot be read: {error})\n"));
    if let Some(difference) = difference(&accepted, shown) {
        let package = Path::new(crate_directory).file_name().unwrap_or_default();
        panic!(
            "{} differs from the current output (- accepted, + shown):\n{difference}\nTo accept it: \
             {BLESS}=1 cargo test --workspace --all-features, in crates/{}; then read `git diff`",
            path.display(),
            package.display(),
        );
    }
}

/// Whether the files are written. In CI that is refused: a test would pass with any output.
fn is_blessed(asked: bool, ci: bool) -> bool {
    assert!(!(asked && ci), "{BLESS} is set, and with CI=true snapshots are compared");
    asked
}

/// The lines that differ, each with a sign; `None` if none does.
fn difference(accepted: &str, shown: &str) -> Option<String> {
    if accepted == shown {
        return None;
    }
    let (a, b): (Vec<&str>, Vec<&str>) = (accepted.lines().collect(), shown.lines().collect());
    // Length of the longest common subsequence of the remaining lines of both.
    let width = b.len() + 1;
    let mut common = vec![0_usize; (a.len() + 1) * width];
    let at = |i: usize, j: usize| i * width + j;
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            let best = match a.get(i) == b.get(j) {
                true => common.get(at(i + 1, j + 1)).map_or(0, |same| same + 1),
                false => {
                    let of = |i, j| common.get(at(i, j)).copied().unwrap_or(0);
                    of(i + 1, j).max(of(i, j + 1))
                }
            };
            if let Some(place) = common.get_mut(at(i, j)) {
                *place = best;
            }
        }
    }
    let (mut i, mut j, mut text) = (0, 0, String::new());
    while i < a.len() || j < b.len() {
        let of = |i, j| common.get(at(i, j)).copied().unwrap_or(0);
        match (a.get(i), b.get(j)) {
            (Some(one), Some(other)) if one == other => (i, j) = (i + 1, j + 1),
            (Some(one), other) if other.is_none() || of(i + 1, j) >= of(i, j + 1) => {
                let _ = writeln!(text, "-{} {one}", i + 1);
                i += 1;
            }
            (_, Some(other)) => {
                let _ = writeln!(text, "+{} {other}", j + 1);
                j += 1;
            }
            (Some(_) | None, None) => break,
        }
    }
    if text.is_empty() {
        text.push_str("(only how the last line ends)\n");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_that_differ_are_shown() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        let shown = difference("a\nb\nc\nd\n", "a\nx\nc\nd\ne\n");
        assert_eq!(shown.as_deref(), Some("-2 b\n+2 x\n+5 e\n"));
        assert!(difference("a\n", "a").is_some());
    }

    #[test]
    fn snapshots_are_written_only_on_request() {
        assert!(is_blessed(true, false) && !is_blessed(false, false) && !is_blessed(false, true));
    }

    #[test]
    #[should_panic(expected = "with CI=true snapshots are compared")]
    fn snapshots_are_never_written_in_ci() {
        is_blessed(true, true);
    }

    #[test]
    #[should_panic(expected = "PODWRIGHT_BLESS=1")]
    fn snapshot_that_differs_fails_and_says_how_to_accept() {
        check(env!("CARGO_MANIFEST_DIR"), "none-of-this-name", "text\n");
    }
}
