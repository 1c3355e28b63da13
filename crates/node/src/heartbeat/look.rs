//! Looks at the machine and the runtime, for the node's status.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::node_status::{self, Amounts, Image, Problem, Seen, Settings};
use podwright_core::time::Mono;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::machine::{self, Machine};
use tokio::sync::watch;

use super::addresses;
use crate::pleg::Pleg;
use crate::tools::NodeState;

/// How often the runtime is asked for its images and its version.
const RUNTIME: Duration = Duration::from_secs(30);
/// How often the node's own name is resolved.
const NAME: Duration = Duration::from_secs(300);
/// The status should not wait for a runtime that hangs.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct Look {
    settings: Arc<Settings>,
    machine: Machine,
    amounts: Amounts,
    runtime: cri::Client,
    pleg: Arc<Pleg>,
    state: watch::Receiver<NodeState>,
    clock: Clock,
    told: Told,
    resolved: Option<(Mono, Vec<IpAddr>)>,
    /// A problem with the machine is told when it begins.
    problem: Option<String>,
}

/// What the runtime said when it was asked last.
struct Told {
    at: Option<Mono>,
    version: String,
    images: Option<Vec<Image>>,
}

impl Look {
    /// `amounts` is what the machine had at the start, `runtime_version` what the runtime said then:
    /// `containerd://1.6.20`.
    pub fn new(
        settings: Arc<Settings>,
        amounts: Amounts,
        runtime: cri::Client,
        runtime_version: String,
        pleg: Arc<Pleg>,
        state: watch::Receiver<NodeState>,
        clock: Clock,
    ) -> Self {
        Self {
            settings,
            machine: Machine::at("/"),
            amounts,
            runtime,
            pleg,
            state,
            clock,
            told: Told { at: None, version: runtime_version, images: None },
            resolved: None,
            problem: None,
        }
    }

    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub async fn now(&mut self) -> Seen {
        self.ask_runtime().await;
        let by_name = self.resolve().await;
        let found = addresses::find(&self.settings, &self.machine, &by_name);
        let identity = self.machine.identity();
        let first =
            [found.as_ref().err().cloned(), identity.as_ref().err().map(ToString::to_string)];
        self.complain(first.into_iter().flatten().next());
        let state = self.state.borrow();
        Seen {
            amounts: self.amounts.clone(),
            identity: identity.ok().map(identity_of),
            addresses: found.unwrap_or_default(),
            runtime_version: self.told.version.clone(),
            images: self.told.images.clone(),
            handlers: state.handlers.clone(),
            features: state.features,
            pressure: node_status::Pressure::default(),
            problems: problems(&state, self.pleg.unhealthy()),
            volumes_in_use: Some(BTreeSet::new()),
        }
    }

    async fn ask_runtime(&mut self) {
        let now = self.clock.now().mono;
        if self.told.at.is_some_and(|at| now.since(at) < RUNTIME) {
            return;
        }
        let asked = async { tokio::join!(self.runtime.version(), self.runtime.list_images()) };
        let Ok((version, images)) = tokio::time::timeout(PATIENCE, asked).await else { return };
        if let Ok(version) = version {
            self.told.version = format!("{}://{}", version.runtime_name, version.runtime_version);
        }
        if let Ok(images) = images {
            let slim = |image: cri::Image| Image {
                tags: image.tags,
                digests: image.digests,
                size: image.size,
            };
            self.told.images = Some(images.into_iter().map(slim).collect());
            self.told.at = Some(now);
        }
    }

    /// What the node's name resolves to; nobody asks if the addresses were given.
    async fn resolve(&mut self) -> Vec<IpAddr> {
        if self.settings.node_ips.iter().any(|ip| !ip.is_unspecified()) {
            return Vec::new();
        }
        let now = self.clock.now().mono;
        if let Some((at, addresses)) = &self.resolved
            && now.since(*at) < NAME
        {
            return addresses.clone();
        }
        let addresses = addresses::resolve(&self.settings.hostname).await;
        self.resolved = Some((now, addresses.clone()));
        addresses
    }

    fn complain(&mut self, problem: Option<String>) {
        if self.problem != problem {
            if let Some(problem) = &problem {
                tracing::warn!(problem, "a part of the node's status keeps its last value");
            }
            self.problem = problem;
        }
    }
}

fn identity_of(identity: machine::Identity) -> node_status::Identity {
    let machine::Identity { machine_id, system_uuid, boot_id, kernel_version, os_image } = identity;
    node_status::Identity { machine_id, system_uuid, boot_id, kernel_version, os_image }
}

fn problems(state: &NodeState, stale: Option<String>) -> Vec<Problem> {
    let silent = state.answering.as_ref().err().cloned().map(Problem::Silent);
    let runtime = state.runtime.as_ref().err().cloned().map(Problem::Runtime);
    let network = state.network.as_ref().err().cloned().map(Problem::Network);
    let stale = stale.map(Problem::Pleg);
    [silent, stale, runtime, network].into_iter().flatten().collect()
}
