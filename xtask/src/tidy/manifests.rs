//! Checks that every member uses the workspace's lints and clippy settings.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::Finding;
use crate::cargo::Member;

pub(super) fn lints(members: &[Member]) -> anyhow::Result<Finding> {
    let mut faults = Vec::new();
    for member in members {
        let manifest = std::fs::read_to_string(&member.manifest)
            .with_context(|| format!("cannot read {}", member.manifest.display()))?;
        if !takes_workspace_lints(&manifest) {
            faults.push(format!("{}: add `[lints] workspace = true` to its manifest", member.name));
        }
    }
    let seen = format!("{} members", members.len());
    Ok(Finding { rule: "every member has the lints of the workspace", seen, faults })
}

/// clippy reads the nearest `clippy.toml` and no other, so a member's own must repeat the root's.
pub(super) fn clippy_settings(root: &Path, files: &[PathBuf]) -> anyhow::Result<Finding> {
    let read = |path: &Path| {
        std::fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))
    };
    let (ours, theirs): (Vec<_>, Vec<_>) = files
        .iter()
        .filter(|path| path.file_name().is_some_and(|name| name == "clippy.toml"))
        .partition(|path| path.parent() == Some(Path::new("")));
    let mut faults = Vec::new();
    for path in &ours {
        let settings = read(path)?;
        for other in &theirs {
            let repeated = read(other)?;
            let missing = settings
                .lines()
                .filter(|line| !line.is_empty() && !line.starts_with('#'))
                .filter(|line| !repeated.lines().any(|there| there == *line));
            faults.extend(missing.map(|line| format!("{}: lacks {line}", other.display())));
        }
    }
    let seen = format!("{} files", ours.len() + theirs.len());
    Ok(Finding { rule: "clippy's settings are the same everywhere", seen, faults })
}

fn takes_workspace_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    if !lines.any(|line| line == "[lints]") {
        return false;
    }
    lines
        .take_while(|line| !line.starts_with('['))
        .any(|line| line.split_whitespace().collect::<String>() == "workspace=true")
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::super::tree::tests::repository;
    use super::*;

    #[test]
    fn a_member_with_its_own_clippy_settings_repeats_those_of_the_root() {
        let root = repository(&[
            ("clippy.toml", "# why\nallow-unwrap-in-tests = true\nallow-dbg-in-tests = true\n"),
            ("crates/a/clippy.toml", "allow-dbg-in-tests = true\nallow-unwrap-in-tests = true\n"),
            ("crates/b/clippy.toml", "allow-unwrap-in-tests = true\n"),
        ]);
        let finding = clippy_settings(root.path(), &tree::files(root.path()).unwrap()).unwrap();
        assert_eq!(finding.faults, ["crates/b/clippy.toml: lacks allow-dbg-in-tests = true"]);
        assert_eq!(finding.seen, "3 files");
    }

    #[test]
    fn lints_are_read_only_from_their_own_section() {
        for (manifest, taken) in [
            ("[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n", true),
            ("[lints] # ours\nworkspace=true # all\n[dependencies]\n", true),
            ("[package]\nname = \"x\"\n", false),
            ("[lints]\n[dependencies]\nworkspace = true\n", false),
            ("[lints]\n# workspace = true\n", false),
            ("[lints.rust]\nworkspace = true\n", false),
        ] {
            assert_eq!(takes_workspace_lints(manifest), taken, "{manifest}");
        }
    }
}
