//! Check that deny.toml has the same lists as the checks here, so that cargo-deny gives the same
//! result.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context as _;

use super::{Finding, dependencies, licences};

const FILE: &str = "deny.toml";

pub(super) fn has_the_same_lists(root: &Path) -> anyhow::Result<Finding> {
    let text =
        std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    Ok(compare(&text, &licences::expressions(), &dependencies::banned()))
}

fn compare(text: &str, licences: &BTreeSet<String>, bans: &BTreeSet<String>) -> Finding {
    let lists = [("licenses", "allow", licences), ("bans", "deny", bans)];
    let faults = lists.iter().flat_map(|(section, key, ours)| {
        let theirs = list(text, section, key);
        let lacks = ours.difference(&theirs).map(|name| format!("lacks {name}"));
        let has =
            theirs.difference(ours).map(|name| format!("has {name}, which tidy does not have"));
        let faults_of_list =
            lacks.chain(has).map(|fault| format!("{FILE}: {section}.{key} {fault}"));
        faults_of_list.collect::<Vec<_>>()
    });
    Finding {
        rule: "deny.toml has the same licences and bans as tidy",
        seen: format!("{} licences, {} bans", licences.len(), bans.len()),
        faults: faults.collect(),
    }
}

/// Entries of a list with one per line, as the file is written.
fn list(text: &str, section: &str, key: &str) -> BTreeSet<String> {
    let (header, opening) = (format!("[{section}]"), format!("{key} = ["));
    let section = text.lines().skip_while(|line| *line != header).skip(1);
    let section = section.take_while(|line| !line.starts_with('['));
    let entries = section.skip_while(|line| *line != opening).skip(1);
    let entries = entries.take_while(|line| *line != "]");
    entries.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_list_that_differs_is_a_fault_on_either_side() {
        let text = "[licenses]\nversion = 2\nallow = [\n    \"MIT\",\n    \"GPL-3.0-only\",\n]\n\n\
                    [bans]\nallow = [\n    \"other\",\n]\ndeny = [\n    \"openssl\",\n]\n";
        let faults = compare(text, &set(&["MIT", "ISC"]), &set(&["openssl"])).faults;
        assert_eq!(
            faults,
            [
                "deny.toml: licenses.allow lacks ISC",
                "deny.toml: licenses.allow has GPL-3.0-only, which tidy does not have",
            ]
        );
        assert_eq!(compare("", &set(&["MIT"]), &set(&["openssl"])).faults.len(), 2);
    }
}
