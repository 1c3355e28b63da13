//! Snapshot of the runtime for tests, without calls over the connection.

use std::net::IpAddr;

use super::containers::State;
use super::rpc::PodRef;
use super::runtime_state::RuntimeState;

/// Everything in the runtime at one moment. Lists are in order of creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub sandboxes: Vec<SandboxView>,
    pub containers: Vec<ContainerView>,
    /// First names of the images that are present.
    pub images: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxView {
    pub id: String,
    pub pod: PodRef,
    pub attempt: u32,
    pub ready: bool,
    pub ips: Vec<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerView {
    pub id: String,
    pub sandbox: String,
    pub pod: PodRef,
    pub name: String,
    pub attempt: u32,
    pub state: ContainerState,
    /// The user id in its configuration.
    pub user: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    Created,
    Running,
    Exited { code: i32 },
    Unknown,
}

impl Snapshot {
    /// Whether no pod left anything behind.
    pub fn has_no_pods(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// The containers of a pod: a name, `namespace/name` or a UID.
    pub fn containers_of<'a>(&'a self, pod: &'a str) -> impl Iterator<Item = &'a ContainerView> {
        self.containers.iter().filter(move |container| container.pod.is(pod))
    }

    pub fn sandboxes_of<'a>(&'a self, pod: &'a str) -> impl Iterator<Item = &'a SandboxView> {
        self.sandboxes.iter().filter(move |sandbox| sandbox.pod.is(pod))
    }

    /// Names of a pod's running containers.
    pub fn running<'a>(&'a self, pod: &'a str) -> Vec<&'a str> {
        let containers = self.containers_of(pod);
        let running = containers.filter(|container| container.state == ContainerState::Running);
        running.map(|container| container.name.as_str()).collect()
    }

    /// The state of the newest instance of a container.
    pub fn state(&self, pod: &str, container: &str) -> Option<ContainerState> {
        let instances = self.containers_of(pod).filter(|view| view.name == container);
        instances.last().map(|view| view.state)
    }
}

impl RuntimeState {
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut sandboxes: Vec<_> = self.sandboxes.values().collect();
        sandboxes.sort_by_key(|sandbox| sandbox.created_at);
        let sandboxes = sandboxes.into_iter().map(|sandbox| SandboxView {
            id: sandbox.id.clone(),
            pod: sandbox.pod.clone(),
            attempt: sandbox.attempt(),
            ready: sandbox.ready,
            ips: sandbox.ips.clone(),
        });
        let mut containers: Vec<_> = self.containers.values().collect();
        containers.sort_by_key(|container| container.created_at);
        let containers = containers.into_iter().map(|container| ContainerView {
            id: container.id.clone(),
            sandbox: container.sandbox.clone(),
            pod: container.pod.clone(),
            name: container.name.clone(),
            attempt: container.attempt(),
            state: match &container.state {
                State::Created => ContainerState::Created,
                State::Running => ContainerState::Running,
                State::Exited(exit) => ContainerState::Exited { code: exit.code },
                State::Unknown => ContainerState::Unknown,
            },
            user: container.user(),
        });
        let first_name = |image: podwright_proto::cri::Image| {
            let names = image.repo_tags.into_iter().chain(image.repo_digests);
            names.chain([image.id]).next()
        };
        Snapshot {
            sandboxes: sandboxes.collect(),
            containers: containers.collect(),
            images: self.images.all().into_iter().filter_map(first_name).collect(),
        }
    }

    /// The newest running instance of a container.
    pub(super) fn living(&self, pod: &str, container: &str) -> Option<String> {
        let living = self
            .containers
            .values()
            .filter(|known| known.name == container && known.pod.is(pod) && known.state.is_alive());
        living.max_by_key(|known| known.created_at).map(|known| known.id.clone())
    }

    /// The newest ready sandbox of a pod.
    pub(super) fn ready_sandbox(&self, pod: &str) -> Option<String> {
        let ready = self.sandboxes.values().filter(|sandbox| sandbox.ready && sandbox.pod.is(pod));
        ready.max_by_key(|sandbox| sandbox.created_at).map(|sandbox| sandbox.id.clone())
    }
}
