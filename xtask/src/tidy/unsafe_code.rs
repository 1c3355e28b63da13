//! Check of unsafe code: only in some crates, counted in the documentation, each use with a reason.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;

use super::Finding;
use super::sources::{Source, lines_with_word};

/// Crates that may contain unsafe code: those that call the kernel.
const HOMES: &[&str] = &["crates/host", "crates/pause"];

/// Document that states the counts.
const STATED_IN: &str = "docs/security.md";

pub(super) fn is_counted_and_justified(root: &Path, sources: &[Source]) -> anyhow::Result<Finding> {
    let stated = std::fs::read_to_string(root.join(STATED_IN))
        .with_context(|| format!("cannot read {STATED_IN}"))?;
    Ok(check(sources, &stated))
}

fn check(sources: &[Source], stated: &str) -> Finding {
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
                faults
                    .push(format!("{path}:{line}: state the reason above it, as in: // SAFETY: …"));
            }
        }
    }
    for (home, count) in &counts {
        match stated_count(stated, home) {
            Some(stated) if stated == *count => {}
            Some(stated) => {
                faults.push(format!("{STATED_IN}: states {stated} in {home}, which has {count}"));
            }
            None => {
                faults.push(format!("{STATED_IN}: add the count: `{home}` ({count})"));
            }
        }
    }
    let seen: Vec<_> = counts.iter().map(|(home, count)| format!("{count} in {home}")).collect();
    Finding {
        rule: "unsafe code is only in crates that call the kernel, counted and with its reason",
        seen: seen.join(", "),
        faults,
    }
}

/// Whether a reason is given for a line, counted from 1: in a comment on it or right above it, or
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
fn stated_count(text: &str, home: &str) -> Option<usize> {
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

    const STATED: &str = "only in `crates/host` (1) and `crates/pause` (0), each";

    fn of(files: &[(&str, &str)], stated: &str) -> Finding {
        let mut all = vec![(STATED_IN, stated)];
        all.extend(files);
        let root = repository(&all);
        let files = tree::files(root.path()).unwrap();
        let sources = sources::read(root.path(), &files).unwrap();
        is_counted_and_justified(root.path(), &sources).unwrap()
    }

    #[test]
    fn unsafe_is_counted_where_allowed_and_a_fault_elsewhere() {
        let finding = of(
            &[
                ("crates/host/src/a.rs", "// SAFETY: it is.\nunsafe { a() }\n"),
                ("crates/core/src/b.rs", "fn a() {}\n\nfn b() { unsafe { c() } }\n"),
                ("crates/core/src/c.rs", "// unsafe\nlet s = \"unsafe\"; not_unsafe()\n"),
            ],
            STATED,
        );
        assert_eq!(finding.faults, ["crates/core/src/b.rs:3: unsafe"]);
        assert_eq!(finding.seen, "1 in crates/host, 0 in crates/pause");
    }

    #[test]
    fn a_number_that_is_wrong_or_missing_is_a_fault() {
        let files = [("crates/host/src/a.rs", "// SAFETY: it is.\nunsafe { a() }\n")];
        for (stated, faults) in [
            (STATED, vec![]),
            (
                "`crates/host` (2) and `crates/pause` (0)",
                vec!["docs/security.md: states 2 in crates/host, which has 1"],
            ),
            (
                "`crates/host` (1) and `crates/pause`",
                vec!["docs/security.md: add the count: `crates/pause` (0)"],
            ),
        ] {
            assert_eq!(of(&files, stated).faults, faults, "{stated}");
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
            let faults = of(&[("crates/host/src/a.rs", source)], STATED).faults;
            assert_eq!(faults.is_empty(), justified, "{source}: {faults:?}");
        }
    }

    #[test]
    fn adjacent_lines_share_a_reason() {
        let source =
            "// SAFETY: it is.\n#[unsafe(no_mangle)]\n#[unsafe(naked)]\nunsafe fn a() {}\n";
        let stated = "`crates/host` (0) and `crates/pause` (3)";
        assert_eq!(of(&[("crates/pause/program/a.rs", source)], stated).faults, [""; 0]);
        let source = "// SAFETY: it is.\nunsafe { a() }\nunsafe { b() }\n";
        let faults =
            of(&[("crates/host/src/a.rs", source)], "`crates/host` (2) `crates/pause` (0)");
        assert_eq!(
            faults.faults,
            ["crates/host/src/a.rs:3: state the reason above it, as in: // SAFETY: …"]
        );
    }
}
