//! Check that the tests named in `docs/security.md` exist: a claim without its test is a promise
//! that nothing keeps.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context as _;

use super::Finding;
use super::sources::Source;

const PAGE: &str = "docs/security.md";
/// Title of the column with the names of tests.
const COLUMN: &str = "shown by";
/// Number of lines between the attribute of a test and its function: other attributes.
const ATTRIBUTES: usize = 6;

pub(super) fn are_shown_by_tests(root: &Path, sources: &[Source]) -> anyhow::Result<Finding> {
    let page =
        std::fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let tests: BTreeSet<&str> = sources.iter().flat_map(|source| tests(&source.code)).collect();
    let claims = claims(&page);
    let mut faults = Vec::new();
    for (line, names) in &claims {
        if names.is_empty() {
            faults.push(format!("{PAGE}:{line}: name a test, or write \"no test\" and why"));
        }
        let missing = names.iter().filter(|name| !tests.contains(*name));
        faults.extend(missing.map(|name| format!("{PAGE}:{line}: there is no test {name}")));
    }
    let names: usize = claims.iter().map(|(_, names)| names.len()).sum();
    let seen = format!("{names} names in {} rows", claims.len());
    Ok(Finding { rule: "attacks are shown by tests that exist", seen, faults })
}

/// Functions after `#[test]` or an attribute such as `#[tokio::test]`.
fn tests(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut left = 0;
    for line in code.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            left = ATTRIBUTES;
        }
        let function = line.trim_start_matches("pub ").trim_start_matches("async ");
        if left > 0
            && let Some(rest) = function.strip_prefix("fn ")
        {
            found.extend(rest.split(['(', '<']).next());
            left = 0;
        }
        left = left.saturating_sub(1);
    }
    found
}

/// The names in the column, by line. Rows that say that there is no test have none and are left out,
/// and so are those that refer to the row above.
fn claims(page: &str) -> Vec<(usize, Vec<&str>)> {
    let mut rows = Vec::new();
    let mut is_table = false;
    for (number, line) in page.lines().enumerate() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
        let last = cells.last().copied().unwrap_or_default();
        if !line.starts_with('|') {
            is_table = false;
        } else if last == COLUMN {
            is_table = true;
        } else if is_table && !last.starts_with("---") {
            let names: Vec<&str> =
                last.split('`').skip(1).step_by(2).filter(|it| is_name(it)).collect();
            let is_excused = last.starts_with("no test") || last == "the same";
            if !is_excused {
                rows.push((number + 1, names));
            }
        }
    }
    rows
}

/// Whether it is a name in Rust and not a file.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_are_found() {
        let code = "#[test]\nfn one() {}\nfn helper() {}\n#[tokio::test(start_paused = true)]\n\
            #[allow(x)]\nasync fn two() {}\n    #[test]\n    fn three(a in b()) {}\n";
        assert_eq!(tests(code), ["one", "two", "three"]);
    }

    #[test]
    fn names_are_read_from_their_column_only() {
        let page = "| it tries | what happens | shown by |\n|---|---|---|\n\
            | `a_b` | `c_d` | `one`, `two` (at a start) |\n| x | y | the same |\n\
            | x | y | no test: `MAX` in `file.rs` |\n| x | y | |\n\n| a | b |\n|---|---|\n| c | `d_e` |\n";
        assert_eq!(claims(page), [(3, vec!["one", "two"]), (6, vec![])]);
    }
}
