//! Repository checks.
//!
//! Why automated: a rule that nothing checks erodes. Each check tests one rule, names every fault
//! at once, and states the fix.

mod attacks;
mod decisions;
mod deny;
mod dependencies;
mod licences;
mod links;
mod manifests;
mod rust_text;
mod serde_names;
mod sources;
mod spdx;
mod tree;
mod unsafe_code;
mod words;

use std::collections::BTreeMap;
use std::process::ExitCode;

use crate::cargo::{Edges, Workspace};

/// Result of one check.
#[derive(Debug)]
struct Finding {
    /// The rule in a few words.
    rule: &'static str,
    /// What was checked, with numbers, so that a check of nothing is visible.
    seen: String,
    faults: Vec<String>,
}

pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let findings = check(workspace)?;
    let mut broken = 0;
    for Finding { rule, seen, faults } in &findings {
        let mark = if faults.is_empty() { "ok  " } else { "FAIL" };
        println!("{mark} {rule} ({seen})");
        for fault in faults {
            println!("     {fault}");
        }
        broken += usize::from(!faults.is_empty());
    }
    if broken == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    println!("{broken} of {} checks failed", findings.len());
    Ok(ExitCode::FAILURE)
}

fn check(workspace: &Workspace) -> anyhow::Result<Vec<Finding>> {
    let members = workspace.members()?;
    let files = tree::files(&workspace.root)?;
    let sources = sources::read(&workspace.root, &files)?;
    let pure = dependencies::PURE.iter().map(|member| Ok((*member, workspace.tree_of(member)?)));
    let pure = pure.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(vec![
        dependencies::layers(&members),
        dependencies::purity(&pure),
        dependencies::bans(&workspace.packages(Edges::All)?),
        licences::allowed(&workspace.packages(Edges::Build)?),
        deny::has_the_same_lists(&workspace.root)?,
        manifests::lints(&members)?,
        manifests::clippy_settings(&workspace.root, &files)?,
        sources::length(&sources),
        sources::names(&files),
        unsafe_code::is_counted_and_justified(&workspace.root, &sources)?,
        sources::ignored_tests(&sources),
        serde_names::are_explicit(&sources),
        links::lead_to_a_file(&workspace.root, &files)?,
        attacks::are_shown_by_tests(&workspace.root, &sources)?,
        decisions::have_a_status(&workspace.root, &files)?,
        words::in_messages(&sources),
        words::in_commit_subjects(&workspace.root),
    ])
}

pub(crate) fn list_licences(workspace: &Workspace) -> anyhow::Result<()> {
    let mut by_licence: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in workspace.packages(Edges::Build)? {
        let named = format!("{} {}", package.name, package.version);
        by_licence.entry(package.licence).or_default().push(named);
    }
    for (licence, packages) in by_licence {
        println!("{licence}");
        for package in packages {
            println!("    {package}");
        }
    }
    Ok(())
}
