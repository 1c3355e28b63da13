//! Observation of the machine and the runtime, for the node status.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::node_status::{
    self, Image, MachineResources, NodeObservation, Pressure, Problem, Settings,
};
use podwright_core::time::Mono;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::machine::{self, Machine};
use tokio::sync::watch;

use super::addresses::AddressFinder;
use crate::runtime::pleg::Pleg;
use crate::runtime::state::NodeState;

/// How often images and version are read from the runtime.
const RUNTIME_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout, so that a runtime that hangs does not block the status.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(5);

pub struct StatusObserver {
    settings: Arc<Settings>,
    machine: Machine,
    amounts: MachineResources,
    runtime: cri::Client,
    pleg: Arc<Pleg>,
    state: watch::Receiver<NodeState>,
    shutting_down: watch::Receiver<bool>,
    /// `None`: the node is never under pressure.
    pressure: Option<watch::Receiver<Pressure>>,
    clock: Clock,
    runtime_info: RuntimeInfo,
    addresses: AddressFinder,
    /// The current problem; logged when it changes.
    problem: Option<String>,
}

/// The last values from the runtime.
struct RuntimeInfo {
    at: Option<Mono>,
    version: String,
    images: Option<Vec<Image>>,
}

impl StatusObserver {
    /// `amounts` is the capacity of the machine at the start, `runtime_version` the version of the
    /// runtime at that time: `containerd://1.6.20`.
    pub fn new(
        settings: Arc<Settings>,
        amounts: MachineResources,
        runtime: cri::Client,
        runtime_version: String,
        pleg: Arc<Pleg>,
        state: watch::Receiver<NodeState>,
        clock: Clock,
    ) -> Self {
        let addresses = AddressFinder::new(settings.clone(), clock.clone());
        Self {
            settings,
            machine: Machine::at("/"),
            addresses,
            amounts,
            runtime,
            pleg,
            state,
            shutting_down: watch::channel(false).1,
            pressure: None,
            clock,
            runtime_info: RuntimeInfo { at: None, version: runtime_version, images: None },
            problem: None,
        }
    }

    /// From now on the status also says whether the node is shutting down.
    pub fn following_shutdown(self, shutting_down: watch::Receiver<bool>) -> Self {
        Self { shutting_down, ..self }
    }

    /// With the pressure that the node is under.
    pub fn under(self, pressure: watch::Receiver<Pressure>) -> Self {
        Self { pressure: Some(pressure), ..self }
    }

    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub async fn now(&mut self) -> NodeObservation {
        self.query_runtime().await;
        let found = self.addresses.find().await;
        let identity = self.machine.identity();
        let first =
            [found.as_ref().err().cloned(), identity.as_ref().err().map(ToString::to_string)];
        self.log_problem(first.into_iter().flatten().next());
        let state = self.state.borrow();
        NodeObservation {
            amounts: self.amounts.clone(),
            identity: identity.ok().map(identity_of),
            addresses: found.unwrap_or_default(),
            runtime_version: self.runtime_info.version.clone(),
            images: self.runtime_info.images.clone(),
            handlers: state.handlers.clone(),
            features: state.features,
            pressure: self.pressure.as_ref().map(|now| *now.borrow()).unwrap_or_default(),
            problems: problems(&state, self.pleg.unhealthy(), *self.shutting_down.borrow()),
            volumes_in_use: Some(BTreeSet::new()),
        }
    }

    async fn query_runtime(&mut self) {
        let now = self.clock.now().mono;
        if self.runtime_info.at.is_some_and(|at| now.since(at) < RUNTIME_INTERVAL) {
            return;
        }
        let queries = async { tokio::join!(self.runtime.version(), self.runtime.list_images()) };
        let Ok((version, images)) = tokio::time::timeout(RUNTIME_TIMEOUT, queries).await else {
            return;
        };
        if let Ok(version) = version {
            self.runtime_info.version =
                format!("{}://{}", version.runtime_name, version.runtime_version);
        }
        if let Ok(images) = images {
            let slim = |image: cri::Image| Image {
                tags: image.tags,
                digests: image.digests,
                size: image.size,
            };
            self.runtime_info.images = Some(images.into_iter().map(slim).collect());
            self.runtime_info.at = Some(now);
        }
    }

    fn log_problem(&mut self, problem: Option<String>) {
        if self.problem != problem {
            if let Some(problem) = &problem {
                tracing::warn!(
                    problem,
                    "cannot update a part of the node status, keeping its value"
                );
            }
            self.problem = problem;
        }
    }
}

fn identity_of(identity: machine::Identity) -> node_status::Identity {
    let machine::Identity { machine_id, system_uuid, boot_id, kernel_version, os_image } = identity;
    node_status::Identity { machine_id, system_uuid, boot_id, kernel_version, os_image }
}

/// Reasons why the node cannot run pods.
pub(crate) fn problems(
    state: &NodeState,
    stale: Option<String>,
    shutting_down: bool,
) -> Vec<Problem> {
    let silent = state.reachable.as_ref().err().cloned().map(Problem::Unresponsive);
    let runtime = state.runtime.as_ref().err().cloned().map(Problem::Runtime);
    let network = state.network.as_ref().err().cloned().map(Problem::Network);
    let stale = stale.map(Problem::Pleg);
    let shutdown = shutting_down.then_some(Problem::ShuttingDown);
    [silent, stale, runtime, network, shutdown].into_iter().flatten().collect()
}
