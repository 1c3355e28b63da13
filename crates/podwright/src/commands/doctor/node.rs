//! The node of `podwright up`, if there is one here: whether it runs and is well.

use std::path::{Path, PathBuf};

use super::{Finding, Plan};
use crate::commands::status::node::{self, NodeLine};
use crate::service;
use crate::standalone::agent::Agent;
use crate::standalone::runtime::Runtime;
use crate::standalone::{Layout, Record};

const CHECK: &str = "node";

/// How a node that stands alone is found.
#[derive(Debug)]
pub(super) enum Standing {
    /// Nobody started one here, or it was taken down.
    Absent,
    /// It cannot be seen, and why.
    Hidden(String),
    Here(Box<Node>),
}

#[derive(Debug)]
pub(super) struct Node {
    layout: Layout,
    endpoint: String,
    /// Where the runtime looks for the pod network, if the runtime is the node's own.
    networks: Option<PathBuf>,
    agent: bool,
    runtime: bool,
    /// As the API server shows it; none if it does not answer.
    shown: Option<Shown>,
}

#[derive(Debug)]
struct Shown {
    name: String,
    ready: bool,
}

impl Standing {
    pub(super) fn look(state: &Path) -> Self {
        let layout = Layout::new(state);
        let found = layout
            .record()
            .and_then(|record| record.map(|record| Node::look(&layout, &record)).transpose());
        match found {
            Ok(None) => Self::Absent,
            Ok(Some(node)) => Self::Here(Box::new(node)),
            Err(error) => Self::Hidden(format!("{error:#}")),
        }
    }

    /// What a node would stand on here, unless somebody says otherwise: what one stands on already.
    pub(super) fn plan(&self) -> Plan {
        match self {
            Self::Here(node) if node.runtime => {
                let mut plan = Plan::with_runtime(Some(&node.endpoint));
                if let Some(networks) = &node.networks {
                    plan.networks.clone_from(networks);
                }
                plan
            }
            Self::Here(_) | Self::Hidden(_) | Self::Absent => Plan::with_runtime(None),
        }
    }

    pub(super) fn examine(&self) -> Vec<Finding> {
        match self {
            Self::Absent => Vec::new(),
            Self::Hidden(why) => {
                let says = format!("whether one runs cannot be seen: {why}");
                vec![Finding::warning(CHECK, says, "run it as root")]
            }
            Self::Here(node) => node.examine(),
        }
    }
}

impl Node {
    fn look(layout: &Layout, record: &Record) -> anyhow::Result<Self> {
        let runtime = Runtime::of(layout, record)?;
        let agent = Agent::of(layout).daemon().running()?.is_some();
        let reactor = service::runtime()?;
        let look = async || node::look(&layout.kubeconfig()).await;
        let shown = if agent { reactor.block_on(look()) } else { None };
        let private = record.wishes.runtime.is_none();
        Ok(Self {
            layout: layout.clone(),
            endpoint: format!("unix://{}", runtime.socket().display()),
            networks: private.then(|| layout.cni().join("net.d")),
            agent,
            runtime: reactor.block_on(runtime.is_up())?,
            shown: shown.map(|NodeLine { name, ready, .. }| Shown { name, ready }),
        })
    }

    fn examine(&self) -> Vec<Finding> {
        let state = self.layout.state().display();
        let log = self.layout.agent_log();
        let again = format!("podwright up --state-dir {state}");
        let mut findings = Vec::new();
        if !self.runtime {
            let says = format!("the runtime of the node in {state} does not answer");
            findings.push(Finding::failure(CHECK, says, format!("start it again: {again}")));
        }
        findings.push(match &self.shown {
            _ if !self.agent => Finding::failure(
                CHECK,
                format!("the agent of the node in {state} does not run"),
                format!("start it again: {again}; the end of {} says why it went", log.display()),
            ),
            None => Finding::failure(
                CHECK,
                format!("the API server of the node in {state} does not answer"),
                format!("see {}", log.display()),
            ),
            Some(Shown { name, ready: false }) => Finding::failure(
                CHECK,
                format!("{name} in {state} runs and is not Ready"),
                format!("see what it says: kubectl describe node {name}"),
            ),
            Some(Shown { name, ready: true }) => {
                Finding::ok(CHECK, format!("{name} in {state} runs and is Ready"))
            }
        });
        findings
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::commands::doctor::Verdict;

    fn node(agent: bool, runtime: bool, ready: Option<bool>) -> Standing {
        Standing::Here(Box::new(Node {
            layout: Layout::new(Path::new("/s")),
            endpoint: "unix:///run/s.sock".to_owned(),
            networks: Some("/s/cni/net.d".into()),
            agent,
            runtime,
            shown: ready.map(|ready| Shown { name: "n1".to_owned(), ready }),
        }))
    }

    #[test]
    fn a_node_that_runs_is_said_to_be_well_or_what_is_wrong_with_it() {
        for (standing, want) in [
            (Standing::Absent, vec![]),
            (
                Standing::Hidden("try sudo".to_owned()),
                vec![(Verdict::Warning, "whether one runs cannot be seen: try sudo")],
            ),
            (node(true, true, Some(true)), vec![(Verdict::Ok, "n1 in /s runs and is Ready")]),
            (
                node(true, true, Some(false)),
                vec![(Verdict::Failure, "n1 in /s runs and is not Ready")],
            ),
            (
                node(true, true, None),
                vec![(Verdict::Failure, "the API server of the node in /s does not answer")],
            ),
            (
                node(false, false, None),
                vec![
                    (Verdict::Failure, "the runtime of the node in /s does not answer"),
                    (Verdict::Failure, "the agent of the node in /s does not run"),
                ],
            ),
        ] {
            let findings = standing.examine();
            let found: Vec<_> = findings.iter().map(|f| (f.verdict, f.says.as_str())).collect();
            assert_eq!(found, want);
        }
    }

    #[test]
    fn what_a_running_node_stands_on_is_what_is_looked_at() {
        let plan = node(true, true, Some(true)).plan();
        assert_eq!(plan.configuration.container_runtime_endpoint, "unix:///run/s.sock");
        assert_eq!(plan.networks, Path::new("/s/cni/net.d"));
        let usual = Plan::with_runtime(None);
        let dead = node(true, false, None).plan();
        assert_eq!(dead.networks, usual.networks);
        assert_eq!(dead.runtime, usual.runtime);
    }
}
