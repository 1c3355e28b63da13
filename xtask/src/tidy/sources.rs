//! Checks of the form of Rust sources: length, file names, ignored tests.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Finding, rust_text, tree};

/// A longer file should be split.
const LINES: usize = 700;

/// Exceptions for the length, each with its reason.
const LONG: &[(&str, &str)] = &[];

/// File names that say nothing about the content.
const EMPTY_NAMES: &[&str] = &["common", "helper", "helpers", "misc", "util", "utils"];

/// Ignored tests that are allowed, one entry per test, with the reason.
const IGNORED: &[(&str, &str)] = &[];

/// A Rust file.
pub(super) struct Source {
    pub(super) path: PathBuf,
    lines: usize,
    pub(super) text: String,
    /// Without comments and strings.
    pub(super) code: String,
}

pub(super) fn read(root: &Path, files: &[PathBuf]) -> anyhow::Result<Vec<Source>> {
    let rust = files.iter().filter(|path| tree::has_extension(path, "rs"));
    rust.map(|path| {
        let text = std::fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Source {
            path: path.clone(),
            lines: text.lines().count(),
            code: rust_text::code_only(&text),
            text,
        })
    })
    .collect()
}

pub(super) fn length(sources: &[Source]) -> Finding {
    length_with(sources, LONG)
}

fn length_with(sources: &[Source], exceptions: &[(&str, &str)]) -> Finding {
    let excepted = |path: &Path| exceptions.iter().any(|(long, _)| path == Path::new(long));
    let checked: Vec<&Source> = sources.iter().filter(|source| ships(&source.path)).collect();
    let mut faults: Vec<String> = checked
        .iter()
        .filter(|source| source.lines > LINES && !excepted(&source.path))
        .map(|source| {
            format!("{}: {} lines; split it by topic", source.path.display(), source.lines)
        })
        .collect();
    for (long, _) in exceptions {
        let still = checked.iter().any(|s| s.path == Path::new(long) && s.lines > LINES);
        if !still {
            faults.push(format!("{long}: is no longer too long; remove it from the list"));
        }
    }
    let longest = checked.iter().map(|source| source.lines).max().unwrap_or_default();
    let seen = format!("{} files, the longest {longest} lines", checked.len());
    Finding { rule: "no source is longer than 700 lines", seen, faults }
}

/// `crates/*/src/…` and our own.
pub(super) fn ships(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    matches!(parts.as_slice(), ["crates", _, "src", ..] | ["xtask", "src", ..])
}

pub(super) fn names(files: &[PathBuf]) -> Finding {
    let rust: Vec<&PathBuf> = files.iter().filter(|path| tree::has_extension(path, "rs")).collect();
    let empty = |path: &Path| {
        path.with_extension("")
            .iter()
            .any(|part| part.to_str().is_some_and(|part| EMPTY_NAMES.contains(&part)))
    };
    Finding {
        rule: "modules are named after their content",
        seen: format!("{} files", rust.len()),
        faults: rust
            .iter()
            .filter(|path| empty(path))
            .map(|path| format!("{}: name it after its content", path.display()))
            .collect(),
    }
}

pub(super) fn ignored_tests(sources: &[Source]) -> Finding {
    ignored_tests_with(sources, IGNORED)
}

fn ignored_tests_with(sources: &[Source], exceptions: &[(&str, &str)]) -> Finding {
    let mut tests = 0;
    let mut faults = Vec::new();
    let mut excused: Vec<&Path> = exceptions.iter().map(|(path, _)| Path::new(path)).collect();
    for Source { path, code, .. } in sources {
        tests += attributes(code, "test").count();
        for line in attributes(code, "ignore") {
            match excused.iter().position(|it| it == path) {
                Some(index) => drop(excused.swap_remove(index)),
                None => {
                    let fault = "ignored test; run it or remove it";
                    faults.push(format!("{}:{line}: {fault}", path.display()));
                }
            }
        }
    }
    let stale = excused
        .iter()
        .map(|path| format!("{}: has no ignored test; remove it from the list", path.display()));
    faults.extend(stale);
    Finding { rule: "no test is ignored", seen: format!("{tests} tests"), faults }
}

/// Lines with an attribute that contains the word.
fn attributes<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> {
    lines_with_word(code, word)
        .filter(|(_, line)| line.trim_start().starts_with("#["))
        .map(|it| it.0)
}

/// Lines, counted from 1, that contain the word as a whole word.
pub(super) fn lines_with_word<'a>(
    code: &'a str,
    word: &'a str,
) -> impl Iterator<Item = (usize, &'a str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    (1..).zip(code.lines()).filter(move |(_, line)| line.split(|c| !is_part(c)).any(|w| w == word))
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::repository;
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        let root = repository(files);
        read(root.path(), &tree::files(root.path()).unwrap()).unwrap()
    }

    #[test]
    fn long_file_is_a_fault_in_product_code() {
        let long = "//\n".repeat(701);
        let fits = "//\n".repeat(700);
        let sources = sources(&[
            ("crates/a/src/deep/long.rs", &long),
            ("crates/a/src/fits.rs", &fits),
            ("crates/a/tests/long.rs", &long),
        ]);
        let faults = length(&sources).faults;
        assert_eq!(faults, ["crates/a/src/deep/long.rs: 701 lines; split it by topic"]);

        let excepted = length_with(&sources, &[("crates/a/src/deep/long.rs", "a table")]);
        assert_eq!(excepted.faults, [""; 0]);
        let stale = length_with(&sources, &[("crates/a/src/fits.rs", "it was")]);
        assert_eq!(stale.faults.len(), 2);
    }

    #[test]
    fn meaningless_name_is_a_fault_for_files_and_directories() {
        let names_of = |paths: &[&str]| {
            names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>()).faults.len()
        };
        assert_eq!(names_of(&["a/src/utils.rs", "a/src/common/mod.rs", "a/tests/helpers/x.rs"]), 3);
        assert_eq!(names_of(&["a/src/commons.rs", "a/src/lib.rs", "docs/common.md"]), 0);
    }

    #[test]
    fn ignored_test_is_a_fault_and_other_uses_of_the_word_are_not() {
        let sources = sources(&[(
            "crates/a/src/a.rs",
            "#[test]\n#[ignore = \"slow\"]\nfn t() {}\n#[tokio::test]\nfn u() { ignore(x) }\n",
        )]);
        let finding = ignored_tests_with(&sources, &[]);
        assert_eq!(finding.faults, ["crates/a/src/a.rs:2: ignored test; run it or remove it"]);
        assert_eq!(finding.seen, "2 tests");

        let excused = ignored_tests_with(&sources, &[("crates/a/src/a.rs", "why")]);
        assert_eq!(excused.faults, [""; 0]);
        let stale = ignored_tests_with(&sources, &[("crates/a/src/a.rs", "why"); 2]);
        assert_eq!(stale.faults.len(), 1);
    }
}
