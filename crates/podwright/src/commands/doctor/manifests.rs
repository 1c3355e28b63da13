//! Checks of the manifests of the agents that run on this machine.

use std::path::PathBuf;

use podwright_node::sources::problems::ManifestProblem;

use super::Finding;
use crate::commands::why::agent::Agent;
use crate::commands::why::page::manifest_text;
use crate::printable::printable;
use crate::service;

const CHECK: &str = "manifests";

/// Asks the agents. One that does not respond is another check's finding.
pub(super) fn examine(roots: &[PathBuf]) -> Vec<Finding> {
    let Ok(reactor) = service::runtime() else { return Vec::new() };
    let problems = reactor.block_on(async {
        let mut problems = Vec::new();
        for root in roots {
            let Ok(agent) = Agent::find(std::slice::from_ref(root)).await else { continue };
            let listed: Vec<ManifestProblem> = agent.ask("/manifests").await.unwrap_or_default();
            problems.extend(listed);
        }
        problems
    });
    findings(&problems)
}

fn findings(problems: &[ManifestProblem]) -> Vec<Finding> {
    let finding = |problem: &ManifestProblem| {
        let message = printable(&manifest_text(problem)).into_owned();
        Finding::warning(CHECK, message, format!("edit {}", printable(&problem.location())))
    };
    problems.iter().map(finding).collect()
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use podwright_node::sources::problems::ManifestEffect;

    use super::*;
    use crate::commands::doctor::Verdict;

    #[test]
    fn each_broken_manifest_is_a_warning_with_file_and_line() {
        let problem = ManifestProblem {
            file: "/m/web.yaml".into(),
            line: Some(3),
            error: "no image".into(),
            effect: ManifestEffect::PreviousVersionRuns,
            since: jiff::Timestamp::UNIX_EPOCH,
        };
        let found = findings(&[problem]);
        assert_eq!(found[0].verdict, Verdict::Warning);
        assert!(found[0].message.starts_with("/m/web.yaml:3: no image; "), "{found:?}");
        assert_eq!(found[0].fix.as_deref(), Some("edit /m/web.yaml:3"));
        assert_eq!(findings(&[]), []);
    }
}
