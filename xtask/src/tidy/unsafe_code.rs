//! Where the compiler's guarantees end, how often, and why it is all right there.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;

use super::Finding;
use super::sources::{Source, lines_with_word};

/// Where they may end: at the kernel.
const HOMES: &[&str] = &["crates/host", "crates/pause"];

/// Where readers are told how often they do.
const TOLD_IN: &str = "docs/security.md";

pub(super) fn is_told_and_justified(root: &Path, sources: &[Source]) -> anyhow::Result<Finding> {
    let told = std::fs::read_to_string(root.join(TOLD_IN))
        .with_context(|| format!("cannot read {TOLD_IN}"))?;
    Ok(check(sources, &told))
}

fn check(sources: &[Source], told: &str) -> Finding {
    let mut counts: BTreeMap<&str, usize> = HOMES.iter().map(|home| (*home, 0)).collect();
    let mut faults = Vec::new();
    for Source { path, text, code, .. } in sources {
        let home = HOMES.iter().find(|home| path.starts_with(home));
        for (line, _) in lines_with_word(code, "unsafe") {
            let path = path.display();
            match home {
                None => faults.push(format!("{path}:{line}: unsafe")),
                Some(home) => *counts.entry(home).or_default() += 1,
            }
            if home.is_some() && !has_reason(text, line) {
                faults.push(format!("{path}:{line}: say why above it, as in: // SAFETY: …"));
            }
        }
    }
    for (home, count) in &counts {
        match told_of(told, home) {
            Some(told) if told == *count => {}
            Some(told) => {
                faults.push(format!("{TOLD_IN}: tells of {told} in {home}, which has {count}"));
            }
            None => {
                faults.push(format!("{TOLD_IN}: add how many there are: `{home}` ({count})"));
            }
        }
    }
    let seen: Vec<_> = counts.iter().map(|(home, count)| format!("{count} in {home}")).collect();
    Finding {
        law: "unsafe code stays where the kernel is, counted and with its reason",
        seen: seen.join(", "),
        faults,
    }
}

/// Whether a reason stands beside a line, counted from 1: in a comment on it or right above it, or
/// in an attribute there.
fn has_reason(text: &str, line: usize) -> bool {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let mut upwards = lines.iter().rev().map(|line| line.trim_start());
    let own = upwards.next();
    let above = upwards.take_while(|line| line.starts_with("//") || line.starts_with("#["));
    own.into_iter().chain(above).any(gives_reason)
}

fn gives_reason(line: &str) -> bool {
    let in_comment = line
        .split_once("// SAFETY:")
        .is_some_and(|(_, reason)| reason.contains(char::is_alphanumeric));
    in_comment || (line.starts_with("#[") && line.contains("reason = \""))
}

/// The number in `` `crates/host` (1) ``.
fn told_of(text: &str, home: &str) -> Option<usize> {
    let (_, after) = text.split_once(&format!("`{home}` ("))?;
    let (number, _) = after.split_once(')')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::sources;
    use super::super::tree;
    use super::super::tree::tests::repository;
    use super::*;

    const TOLD: &str = "only in `crates/host` (1) and `crates/pause` (0), each";

    fn of(files: &[(&str, &str)], told: &str) -> Finding {
        let mut all = vec![(TOLD_IN, told)];
        all.extend(files);
        let root = repository(&all);
        let files = tree::files(root.path()).unwrap();
        let sources = sources::read(root.path(), &files).unwrap();
        is_told_and_justified(root.path(), &sources).unwrap()
    }

    #[test]
    fn unsafe_is_counted_at_home_and_a_fault_elsewhere() {
        let finding = of(
            &[
                ("crates/host/src/a.rs", "// SAFETY: it is.\nunsafe { a() }\n"),
                ("crates/core/src/b.rs", "fn a() {}\n\nfn b() { unsafe { c() } }\n"),
                ("crates/core/src/c.rs", "// unsafe\nlet s = \"unsafe\"; not_unsafe()\n"),
            ],
            TOLD,
        );
        assert_eq!(finding.faults, ["crates/core/src/b.rs:3: unsafe"]);
        assert_eq!(finding.seen, "1 in crates/host, 0 in crates/pause");
    }

    #[test]
    fn a_number_that_is_wrong_or_missing_is_a_fault() {
        let files = [("crates/host/src/a.rs", "// SAFETY: it is.\nunsafe { a() }\n")];
        for (told, faults) in [
            (TOLD, vec![]),
            (
                "`crates/host` (2) and `crates/pause` (0)",
                vec!["docs/security.md: tells of 2 in crates/host, which has 1"],
            ),
            (
                "`crates/host` (1) and `crates/pause`",
                vec!["docs/security.md: add how many there are: `crates/pause` (0)"],
            ),
        ] {
            assert_eq!(of(&files, told).faults, faults, "{told}");
        }
    }

    #[test]
    fn each_needs_a_reason_of_its_own_right_there() {
        for (source, justified) in [
            ("// SAFETY: it is.\nunsafe { a() }\n", true),
            ("// SAFETY: it is,\n// for two reasons.\nunsafe { a() }\n", true),
            ("let a = unsafe { a() }; // SAFETY: it is.\n", true),
            ("// SAFETY: it is.\n#[inline]\nunsafe fn a() {}\n", true),
            ("#[allow(unsafe_code, reason = \"it is\")]\nunsafe extern {}\n", true),
            ("unsafe { a() }\n", false),
            ("// SAFETY:\nunsafe { a() }\n", false),
            ("// It is.\nunsafe { a() }\n", false),
            ("#[allow(unsafe_code)]\nunsafe extern {}\n", false),
            ("// SAFETY: it is.\nb();\nunsafe { a() }\n", false),
            ("// SAFETY: it is.\n\nunsafe { a() }\n", false),
        ] {
            let faults = of(&[("crates/host/src/a.rs", source)], TOLD).faults;
            assert_eq!(faults.is_empty(), justified, "{source}: {faults:?}");
        }
    }

    #[test]
    fn what_shares_a_reason_shares_it_without_a_gap() {
        let source =
            "// SAFETY: it is.\n#[unsafe(no_mangle)]\n#[unsafe(naked)]\nunsafe fn a() {}\n";
        let told = "`crates/host` (0) and `crates/pause` (3)";
        assert_eq!(of(&[("crates/pause/program/a.rs", source)], told).faults, [""; 0]);
        let source = "// SAFETY: it is.\nunsafe { a() }\nunsafe { b() }\n";
        let faults =
            of(&[("crates/host/src/a.rs", source)], "`crates/host` (2) `crates/pause` (0)");
        assert_eq!(
            faults.faults,
            ["crates/host/src/a.rs:3: say why above it, as in: // SAFETY: …"]
        );
    }
}
