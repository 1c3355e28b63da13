//! Checks of the node of `podwright up`, if there is one: agent, runtime, API server, readiness.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::{Finding, Plan};
use crate::commands::objects::Objects;
use crate::commands::status::node::NodeLine;
use crate::config::options::ROOT_DIR;
use crate::service;
use crate::standalone::agent::Agent;
use crate::standalone::containerd::Containerd;
use crate::standalone::runtime::Runtime;
use crate::standalone::supervisor::SupervisionNote;
use crate::standalone::{Layout, Record};

const CHECK: &str = "node";

/// The standalone node of a state directory.
#[derive(Debug)]
pub(super) enum StandaloneNode {
    /// None was started, or it was stopped.
    Absent,
    /// Its record cannot be read, with the reason.
    Unreadable(String),
    Here(Box<Node>),
}

#[derive(Debug)]
pub(super) struct Node {
    layout: Layout,
    endpoint: String,
    /// CNI configuration directory, if the runtime is the private containerd.
    networks: Option<PathBuf>,
    agent: bool,
    runtime: bool,
    /// As reported by the agent that supervises the private containerd.
    supervision: Option<SupervisionNote>,
    /// As reported by the API server; none if it does not respond.
    reported: Option<ReportedNode>,
}

#[derive(Debug)]
struct ReportedNode {
    name: String,
    ready: bool,
}

impl StandaloneNode {
    pub(super) fn read(state: &Path) -> Self {
        let layout = Layout::new(state);
        let found = layout
            .record()
            .and_then(|record| record.map(|record| Node::read(&layout, &record)).transpose());
        match found {
            Ok(None) => Self::Absent,
            Ok(Some(node)) => Self::Here(Box::new(node)),
            Err(error) => Self::Unreadable(format!("{error:#}")),
        }
    }

    /// The root directories of agents whose manifests are checked.
    pub(super) fn roots(&self) -> Vec<PathBuf> {
        let mut roots = vec![PathBuf::from(ROOT_DIR)];
        match self {
            Self::Here(node) => roots.push(node.layout.root_dir()),
            Self::Unreadable(_) | Self::Absent => {}
        }
        roots
    }

    /// The default plan: with the state directory of a node, if there is one, and with its runtime
    /// and network if it is running.
    pub(super) fn plan(&self) -> Plan {
        let mut plan = self.plan_of_runtime();
        match self {
            Self::Here(node) => node.layout.state().clone_into(&mut plan.options.root_dir),
            Self::Unreadable(_) | Self::Absent => {}
        }
        plan
    }

    fn plan_of_runtime(&self) -> Plan {
        match self {
            Self::Here(node) if node.runtime => {
                let mut plan = Plan::with_runtime(Some(&node.endpoint));
                if let Some(networks) = &node.networks {
                    plan.networks.clone_from(networks);
                }
                plan
            }
            Self::Here(_) | Self::Unreadable(_) | Self::Absent => Plan::with_runtime(None),
        }
    }

    pub(super) fn examine(&self) -> Vec<Finding> {
        match self {
            Self::Absent => Vec::new(),
            Self::Unreadable(why) => {
                let message = format!("cannot tell whether a node is running: {why}");
                vec![Finding::warning(CHECK, message, "run with sudo")]
            }
            Self::Here(node) => node.examine(),
        }
    }
}

impl Node {
    fn read(layout: &Layout, record: &Record) -> anyhow::Result<Self> {
        let runtime = Runtime::of(layout, record)?;
        let agent = Agent::of(layout).daemon().running()?.is_some();
        let reactor = service::runtime()?;
        let read = async || Objects::read(&layout.kubeconfig()).await.ok()?.node();
        let reported = if agent { reactor.block_on(read()) } else { None };
        let private = record.up_options.runtime.is_none();
        Ok(Self {
            layout: layout.clone(),
            endpoint: format!("unix://{}", runtime.socket().display()),
            networks: private.then(|| layout.cni().join("net.d")),
            agent,
            supervision: agent.then(|| SupervisionNote::read(layout)).flatten(),
            runtime: reactor.block_on(runtime.is_up())?,
            reported: reported.map(|NodeLine { name, ready, .. }| ReportedNode { name, ready }),
        })
    }

    fn examine(&self) -> Vec<Finding> {
        let state = self.layout.state().display();
        let log = self.layout.agent_log();
        let again = format!("podwright up --state-dir {state}");
        let mut findings = Vec::new();
        let now = Timestamp::now();
        let problem = self.supervision.as_ref().and_then(|note| note.problem(now));
        let restart = self.supervision.as_ref().and_then(|note| note.recent_restart(now));
        let runtime_log = Containerd::new(&self.layout).log();
        if let Some(problem) = problem {
            let message = format!("the runtime of the node in {state} is down: {problem}");
            let fix = format!("see the end of {}; the agent retries", runtime_log.display());
            findings.push(Finding::failure(CHECK, message, fix));
        } else if !self.runtime {
            let message = format!("the runtime of the node in {state} does not respond");
            findings.push(Finding::failure(CHECK, message, format!("start it again: {again}")));
        } else if let Some(restart) = restart {
            let fix = format!("see {}", runtime_log.display());
            findings.push(Finding::warning(CHECK, restart, fix));
        }
        findings.push(match &self.reported {
            _ if !self.agent => Finding::failure(
                CHECK,
                format!("the agent of the node in {state} is not running"),
                format!("start it again: {again}; see the end of {}", log.display()),
            ),
            None => Finding::failure(
                CHECK,
                format!("the API server of the node in {state} does not respond"),
                format!("see {}", log.display()),
            ),
            Some(ReportedNode { name, ready: false }) => Finding::failure(
                CHECK,
                format!("{name} in {state} is running and not Ready"),
                format!("see the conditions: kubectl describe node {name}"),
            ),
            Some(ReportedNode { name, ready: true }) => {
                Finding::ok(CHECK, format!("{name} in {state} is running and Ready"))
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
    use crate::standalone::supervisor::LastExit;

    fn node(agent: bool, runtime: bool, ready: Option<bool>) -> StandaloneNode {
        StandaloneNode::Here(Box::new(Node {
            layout: Layout::new(Path::new("/s")),
            endpoint: "unix:///run/s.sock".to_owned(),
            networks: Some("/s/cni/net.d".into()),
            agent,
            runtime,
            supervision: None,
            reported: ready.map(|ready| ReportedNode { name: "n1".to_owned(), ready }),
        }))
    }

    #[test]
    fn findings_follow_the_state_of_the_node() {
        for (standalone_node, want) in [
            (StandaloneNode::Absent, vec![]),
            (
                StandaloneNode::Unreadable("run with sudo".to_owned()),
                vec![(Verdict::Warning, "cannot tell whether a node is running: run with sudo")],
            ),
            (node(true, true, Some(true)), vec![(Verdict::Ok, "n1 in /s is running and Ready")]),
            (
                node(true, true, Some(false)),
                vec![(Verdict::Failure, "n1 in /s is running and not Ready")],
            ),
            (
                node(true, true, None),
                vec![(Verdict::Failure, "the API server of the node in /s does not respond")],
            ),
            (
                node(false, false, None),
                vec![
                    (Verdict::Failure, "the runtime of the node in /s does not respond"),
                    (Verdict::Failure, "the agent of the node in /s is not running"),
                ],
            ),
        ] {
            let findings = standalone_node.examine();
            let found: Vec<_> = findings.iter().map(|f| (f.verdict, f.message.as_str())).collect();
            assert_eq!(found, want);
        }
    }

    #[test]
    fn supervised_runtime_that_is_down_or_was_restarted_is_reported_with_its_reason() {
        let exit = |at| LastExit { at, reason: "containerd exited: no space".to_owned() };
        let down = SupervisionNote {
            problem: Some("containerd exited: no space".to_owned()),
            last_exit: Some(exit(Timestamp::now())),
            ..SupervisionNote::default()
        };
        let restarted = SupervisionNote { problem: None, restarts: 1, ..down.clone() };
        let long_ago =
            SupervisionNote { last_exit: Some(exit(Timestamp::UNIX_EPOCH)), ..restarted.clone() };
        for (note, runs, want) in [
            (down, false, Some((Verdict::Failure, "is down: containerd exited: no space"))),
            (restarted, true, Some((Verdict::Warning, "started again once"))),
            (long_ago, true, None),
        ] {
            let StandaloneNode::Here(mut node) = node(true, runs, Some(true)) else { panic!() };
            node.supervision = Some(note);
            let findings = node.examine();
            let first = findings.first().filter(|_| findings.len() > 1);
            assert_eq!(first.map(|it| it.verdict), want.map(|(verdict, _)| verdict));
            let (message, text) = (first.map_or("", |it| &it.message), want.map_or("", |it| it.1));
            assert!(message.contains(text), "{message}");
        }
    }

    #[test]
    fn running_node_determines_the_runtime_and_network_to_check() {
        let plan = node(true, true, Some(true)).plan();
        assert_eq!(plan.configuration.container_runtime_endpoint, "unix:///run/s.sock");
        assert_eq!(plan.networks, Path::new("/s/cni/net.d"));
        assert_eq!(plan.options.root_dir, Path::new("/s"), "the disk of the node is checked");
        let default = Plan::with_runtime(None);
        let stopped = node(true, false, None).plan();
        assert_eq!(stopped.networks, default.networks);
        assert_eq!(stopped.runtime, default.runtime);
    }
}
