//! Why the node is not Ready, and the fix.

use crate::node_status::Problem;

/// The state of the node in one line, and what to do if it is not Ready.
pub fn readiness(problems: &[Problem]) -> (String, Option<String>) {
    let mut sorted: Vec<&Problem> = problems.iter().collect();
    sorted.sort();
    let Some(first) = sorted.first() else {
        return ("the node can run pods".to_owned(), None);
    };
    let texts: Vec<String> = sorted.iter().map(|problem| problem.text()).collect();
    (texts.join("; "), Some(fix(first).to_owned()))
}

fn fix(problem: &Problem) -> &'static str {
    match problem {
        Problem::Unresponsive(_) => {
            "check that the container runtime is running and see its log: podwright doctor"
        }
        Problem::Pleg(_) => {
            "find out why the container runtime is slow: see its log and the load of the machine"
        }
        Problem::Runtime(_) => "see the log of the container runtime",
        Problem::Network(_) => {
            "install a network configuration (CNI) or repair it: podwright doctor"
        }
        Problem::Storage(_) => {
            "see the log of the container runtime and the disk: podwright doctor"
        }
        Problem::ShuttingDown => "wait for the machine to restart",
    }
}

/// What the API says about a node whose agent sees no problem itself.
pub fn reported(ready: Option<&str>) -> Option<(&'static str, &'static str)> {
    match ready {
        Some("True") | None => None,
        Some("Unknown") => Some((
            "the API server has not received the heartbeat of the node for some time",
            "check the connection to the API server and the permissions of the node: see the \
             agent's log",
        )),
        Some(_) => Some((
            "the node can run pods, the API server does not show it yet",
            "wait for the next heartbeat; if this stays, see the agent's log",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_problem_decides_the_fix_and_all_are_named() {
        let network = Problem::Network("cni config uninitialized".into());
        let silent = Problem::Unresponsive("container runtime is down".into());
        for (problems, text, fix) in [
            (vec![], "the node can run pods", None),
            (vec![network.clone()], "cni config uninitialized", Some("CNI")),
            (
                vec![network, silent],
                "container runtime is down; cni config uninitialized",
                Some("runtime is running"),
            ),
            (vec![Problem::Pleg("slow".into())], "PLEG is not healthy: slow", Some("slow")),
            (vec![Problem::ShuttingDown], "node is shutting down", Some("restart")),
        ] {
            let (found, found_fix) = readiness(&problems);
            assert_eq!(found, text);
            let matches = match (&found_fix, fix) {
                (Some(found), Some(fix)) => found.contains(fix),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            assert!(matches, "{found_fix:?}");
        }
    }

    #[test]
    fn lost_heartbeat_is_reported() {
        for (ready, found) in
            [(None, false), (Some("True"), false), (Some("Unknown"), true), (Some("False"), true)]
        {
            assert_eq!(reported(ready).is_some(), found, "{ready:?}");
        }
    }
}
