//! Observed state of a pod: what the runtime reports, and when it was read.
//!
//! An observation carries the monotonic time taken *before* the runtime was called. A decision
//! that follows a later action must not use it.

mod listing;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{ContainerId, PodName, PodUid, SandboxId};
use crate::pod::ContainerHash;
use crate::time::Mono;
pub use listing::{ItemKind, ListedItem, ListingTotals, PodChange, RuntimeListing};

/// Everything that the runtime reports about one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedPod {
    #[serde(rename = "uid")]
    pub uid: PodUid,
    #[serde(rename = "name")]
    pub name: PodName,
    /// Newest first.
    #[serde(rename = "sandboxes")]
    pub sandboxes: Vec<Sandbox>,
    /// Every instance the runtime still holds, newest first.
    #[serde(rename = "instances")]
    pub instances: Vec<Instance>,
    #[serde(rename = "as_of")]
    pub as_of: Mono,
}

impl ObservedPod {
    /// A pod of which the runtime has nothing.
    pub fn nothing(uid: PodUid, name: PodName, as_of: Mono) -> Self {
        Self { uid, name, sandboxes: Vec::new(), instances: Vec::new(), as_of }
    }

    /// The newest instance of a container, which is the current one.
    pub fn newest(&self, container: &str) -> Option<&Instance> {
        self.instances.iter().find(|i| &*i.container == container)
    }

    pub fn instances_of<'a>(&'a self, container: &'a str) -> impl Iterator<Item = &'a Instance> {
        self.instances.iter().filter(move |i| &*i.container == container)
    }

    /// The newest exited instance, even if a later one exists.
    pub fn last_exited(&self, container: &str) -> Option<&Instance> {
        self.instances.iter().find(|i| &*i.container == container && i.exit().is_some())
    }

    pub fn newest_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.first()
    }

    pub fn ready_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.iter().find(|s| s.ready)
    }

    pub fn running(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().filter(|i| i.is_running())
    }

    /// The short form in which a relist shows this pod.
    pub fn listing(&self) -> PodListing {
        let sandboxes = self.sandboxes.iter().map(|sandbox| {
            let state = if sandbox.ready { ListedState::Running } else { ListedState::Exited };
            (sandbox.id.as_str().into(), state)
        });
        let containers = self.instances.iter().map(|instance| {
            let state = match instance.state {
                State::Created => ListedState::Created,
                State::Running { .. } => ListedState::Running,
                State::Exited(_) => ListedState::Exited,
                State::Unknown => ListedState::Unknown,
            };
            (instance.id.as_str().into(), state)
        });
        PodListing { sandboxes: sandboxes.collect(), containers: containers.collect() }
    }

    /// A container is running or a sandbox is ready.
    pub fn is_alive(&self) -> bool {
        self.running().next().is_some() || self.ready_sandbox().is_some()
    }

    /// Newest first, by attempt: the wall clock may have been set back between two instances,
    /// which would make a running one look older than its predecessor.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by(|a, b| {
            b.attempt.cmp(&a.attempt).then(b.created.cmp(&a.created)).then(a.id.cmp(&b.id))
        });
        self.instances.sort_by(|a, b| {
            b.attempt.cmp(&a.attempt).then(b.created.cmp(&a.created)).then(a.id.cmp(&b.id))
        });
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    #[serde(rename = "id")]
    pub id: SandboxId,
    #[serde(rename = "attempt")]
    pub attempt: u32,
    #[serde(rename = "created")]
    pub created: Timestamp,
    #[serde(rename = "ready")]
    pub ready: bool,
    /// It uses the host network. `None`: the runtime does not report it.
    #[serde(rename = "host_network")]
    pub host_network: Option<bool>,
    /// Runtime handler of the sandbox; empty for the default handler.
    #[serde(rename = "handler", default)]
    pub handler: String,
    /// `None` until the sandbox was inspected: a list call does not report addresses.
    #[serde(rename = "ips")]
    pub ips: Option<Vec<IpAddr>>,
}

/// One container as the runtime ran it. A restart creates a new instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    #[serde(rename = "id")]
    pub id: ContainerId,
    #[serde(rename = "container")]
    pub container: Arc<str>,
    #[serde(rename = "sandbox")]
    pub sandbox: SandboxId,
    /// The restart count it was created with.
    #[serde(rename = "attempt")]
    pub attempt: u32,
    #[serde(rename = "hash")]
    pub hash: Option<ContainerHash>,
    #[serde(rename = "created")]
    pub created: Timestamp,
    #[serde(rename = "state")]
    pub state: State,
    /// The image as the pod names it.
    #[serde(rename = "image")]
    pub image: String,
    /// The image the runtime resolved it to.
    #[serde(rename = "image_ref")]
    pub image_ref: String,
    #[serde(rename = "resources")]
    pub resources: Option<Resources>,
    #[serde(rename = "user")]
    pub user: Option<User>,
    /// As in a pod's `lifecycle.stopSignal`; `None`: the runtime does not report it.
    #[serde(rename = "stop_signal", default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Absolute path of its log file.
    #[serde(rename = "log_path")]
    pub log_path: Option<String>,
    #[serde(rename = "mounts")]
    pub mounts: Vec<Mount>,
}

impl Instance {
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    pub fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited(exit) => Some(exit),
            State::Created | State::Running { .. } | State::Unknown => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    #[serde(rename = "Created")]
    Created,
    #[serde(rename = "Running")]
    Running {
        #[serde(rename = "started")]
        started: Timestamp,
    },
    #[serde(rename = "Exited")]
    Exited(Exit),
    #[serde(rename = "Unknown")]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    #[serde(rename = "code")]
    pub code: i32,
    /// `Completed`, `Error`, `OOMKilled`, …: as the runtime reports it.
    #[serde(rename = "reason")]
    pub reason: String,
    /// The runtime's message and the termination message, as the API shows them.
    #[serde(rename = "message")]
    pub message: String,
    #[serde(rename = "started")]
    pub started: Timestamp,
    #[serde(rename = "finished")]
    pub finished: Timestamp,
}

impl Exit {
    /// An OOM kill of a child may leave the main process with exit code 0; it still counts as
    /// failed.
    pub fn failed(&self) -> bool {
        self.code != 0 || self.reason == "OOMKilled"
    }
}

/// Resource limits that the runtime currently enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    #[serde(rename = "cpu_shares")]
    pub cpu_shares: Option<i64>,
    #[serde(rename = "cpu_quota")]
    pub cpu_quota: Option<i64>,
    #[serde(rename = "cpu_period")]
    pub cpu_period: Option<i64>,
    #[serde(rename = "memory_limit")]
    pub memory_limit: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    #[serde(rename = "uid")]
    pub uid: i64,
    #[serde(rename = "gid")]
    pub gid: i64,
    #[serde(rename = "supplemental_groups")]
    pub supplemental_groups: Vec<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    #[serde(rename = "container_path")]
    pub container_path: String,
    #[serde(rename = "host_path")]
    pub host_path: String,
    #[serde(rename = "read_only")]
    pub read_only: bool,
    #[serde(rename = "recursive_read_only")]
    pub recursive_read_only: bool,
}

/// State as a list call reports it: enough to detect a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedState {
    #[serde(rename = "Created")]
    Created,
    #[serde(rename = "Running")]
    Running,
    #[serde(rename = "Exited")]
    Exited,
    #[serde(rename = "Unknown")]
    Unknown,
}

/// States of all containers and sandboxes of one pod, by runtime id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodListing {
    #[serde(rename = "sandboxes")]
    pub sandboxes: BTreeMap<Arc<str>, ListedState>,
    #[serde(rename = "containers")]
    pub containers: BTreeMap<Arc<str>, ListedState>,
}

impl PodListing {
    pub fn ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.sandboxes.keys().chain(self.containers.keys())
    }

    /// A container or sandbox of the pod is running.
    pub fn is_alive(&self) -> bool {
        self.sandboxes
            .values()
            .chain(self.containers.values())
            .any(|state| *state == ListedState::Running)
    }

    /// A container of the pod is running; a ready sandbox does not count.
    pub fn runs_container(&self) -> bool {
        self.containers.values().any(|state| *state == ListedState::Running)
    }

    /// State of one sandbox or container.
    pub fn state(&self, id: &str) -> Option<ListedState> {
        self.sandboxes.get(id).or_else(|| self.containers.get(id)).copied()
    }
}

/// Change of a container between two relists. The names are upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodEvent {
    ContainerStarted(Arc<str>),
    ContainerDied(Arc<str>),
    ContainerRemoved(Arc<str>),
    /// Created or unknown: the pod is inspected again, but no event is sent.
    ContainerChanged(Arc<str>),
}

/// Compares two listings of a pod. A sandbox counts like a container: it starts and dies.
pub fn diff(before: &PodListing, after: &PodListing) -> Vec<PodEvent> {
    let ids: BTreeSet<_> = before.ids().chain(after.ids()).collect();
    let mut events = Vec::new();
    for id in ids {
        let (old, new) = (before.state(id), after.state(id));
        if old == new {
            continue;
        }
        match (old, new) {
            (_, Some(ListedState::Running)) => events.push(PodEvent::ContainerStarted(id.clone())),
            (_, Some(ListedState::Exited)) => events.push(PodEvent::ContainerDied(id.clone())),
            (_, Some(ListedState::Created | ListedState::Unknown)) => {
                events.push(PodEvent::ContainerChanged(id.clone()));
            }
            (Some(ListedState::Exited), None) => {
                events.push(PodEvent::ContainerRemoved(id.clone()));
            }
            (_, None) => {
                events.push(PodEvent::ContainerDied(id.clone()));
                events.push(PodEvent::ContainerRemoved(id.clone()));
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_attempt_is_current_whatever_the_creation_times() {
        let pod = crate::builders::pod("web").container("app").build();
        let made = |attempt: u32, second: i64, id: &str| {
            let seen = crate::builders::observed(&pod);
            let seen = seen.instance("app", State::Unknown, crate::builders::t(0));
            let seen = seen.edit_instance(|instance| {
                instance.id = ContainerId::new(id);
                instance.attempt = attempt;
                instance.created = Timestamp::from_second(1_700_000_000 + second).unwrap();
            });
            seen.build().instances.remove(0)
        };
        for (case, instances, want) in [
            ("clocks agree", vec![made(0, 0, "a"), made(1, 5, "b")], ["b", "a"]),
            ("the clock was set back", vec![made(0, 7200, "a"), made(1, 0, "b")], ["b", "a"]),
            ("attempts past nine", vec![made(9, 3, "a"), made(10, 2, "b")], ["b", "a"]),
            ("same attempt, created later", vec![made(2, 1, "a"), made(2, 2, "b")], ["b", "a"]),
            ("nothing distinguishes them", vec![made(2, 1, "b"), made(2, 1, "a")], ["a", "b"]),
        ] {
            let mut seen = crate::builders::observed(&pod).build();
            seen.instances = instances;
            for _ in 0..2 {
                seen.sort();
                let ids: Vec<&str> = seen.instances.iter().map(|i| i.id.as_str()).collect();
                assert_eq!(ids, want, "{case}");
                assert_eq!(seen.newest("app").map(|i| i.id.as_str()), Some(want[0]), "{case}");
                seen.instances.reverse();
            }
        }
    }

    #[test]
    fn state_changes_give_the_events_of_upstream() {
        use ListedState::{Created, Exited, Running, Unknown};
        use PodEvent::{ContainerChanged, ContainerDied, ContainerRemoved, ContainerStarted};
        let id: Arc<str> = "a".into();
        for (case, before, after, want) in [
            ("no change", Some(Running), Some(Running), vec![]),
            ("started", None, Some(Running), vec![ContainerStarted(id.clone())]),
            (
                "started and died between relists",
                None,
                Some(Exited),
                vec![ContainerDied(id.clone())],
            ),
            ("died", Some(Running), Some(Exited), vec![ContainerDied(id.clone())]),
            ("created", None, Some(Created), vec![ContainerChanged(id.clone())]),
            ("lost", Some(Running), Some(Unknown), vec![ContainerChanged(id.clone())]),
            ("removed after its exit", Some(Exited), None, vec![ContainerRemoved(id.clone())]),
            (
                "vanished while running",
                Some(Running),
                None,
                vec![ContainerDied(id.clone()), ContainerRemoved(id.clone())],
            ),
        ] {
            let listing = |state: Option<ListedState>| PodListing {
                containers: state.map(|s| (id.clone(), s)).into_iter().collect(),
                ..PodListing::default()
            };
            assert_eq!(diff(&listing(before), &listing(after)), want, "{case}");
        }
    }
}
