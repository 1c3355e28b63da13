//! Check of the form of `docs/decisions`: each decision has a title and a status.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Finding, tree};

const DIRECTORY: &str = "docs/decisions";
const STATUSES: &[&str] = &["proposed", "accepted", "rejected", "superseded"];

pub(super) fn have_a_status(root: &Path, files: &[PathBuf]) -> anyhow::Result<Finding> {
    let mut faults = Vec::new();
    let mut decisions = 0;
    for path in files.iter().filter(|path| is_decision(path)) {
        let text = std::fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        decisions += 1;
        faults.extend(faults_of(&text).map(|fault| format!("{}: {fault}", path.display())));
    }
    let seen = format!("{decisions} decisions");
    Ok(Finding { rule: "every decision has a title and a status", seen, faults })
}

/// The directory's README describes decisions and is not one.
fn is_decision(path: &Path) -> bool {
    path.parent() == Some(Path::new(DIRECTORY))
        && tree::has_extension(path, "md")
        && path.file_name().is_some_and(|name| name != "README.md")
}

fn faults_of(text: &str) -> impl Iterator<Item = String> {
    let titled = text
        .lines()
        .next()
        .is_some_and(|line| line.strip_prefix("# ").is_some_and(|title| !title.trim().is_empty()));
    let status = text.lines().find_map(|line| line.strip_prefix("Status:"));
    let first_word = status.and_then(|status| status.split_whitespace().next());
    let known = first_word.is_some_and(|word| {
        STATUSES.contains(&word.trim_end_matches([',', '.', ';']).to_lowercase().as_str())
    });
    let untitled = (!titled).then(|| "begin with a title, as in: # We write it in Rust".to_owned());
    let unknown = (!known).then(|| format!("add a line with Status: {}", STATUSES.join(" | ")));
    untitled.into_iter().chain(unknown)
}

#[cfg(test)]
mod tests {
    use super::super::tree::tests::repository;
    use super::*;

    #[test]
    fn a_decision_needs_a_title_and_a_known_status() {
        for (text, faults) in [
            ("# We do it\n\nStatus: accepted\n\nBecause.\n", 0),
            ("# We did it\n\nStatus: Superseded by 0007.\n", 0),
            ("# We do it\n\nBecause.\n", 1),
            ("# We do it\n\nStatus: maybe\n", 1),
            ("We do it\n\nStatus: accepted\n", 1),
            ("# \n", 2),
            ("", 2),
        ] {
            assert_eq!(faults_of(text).count(), faults, "{text:?}");
        }
    }

    #[test]
    fn only_decisions_are_checked() {
        let root = repository(&[
            ("docs/decisions/0001-rust.md", "no title"),
            ("docs/decisions/README.md", "no title"),
            ("docs/other.md", "no title"),
        ]);
        let finding = have_a_status(root.path(), &tree::files(root.path()).unwrap()).unwrap();
        assert_eq!(finding.seen, "1 decisions");
        assert_eq!(finding.faults.len(), 2);
    }
}
