//! Journal of container instances: what happened to each of them, whatever the cause.
//!
//! The journal of calls says what an agent requested. Rules about order and about restarts also
//! need the rest: when a container exited and with which code, and what the runtime lost.

use std::fmt;
use std::time::Duration;

use super::journal::Journal;
use super::rpc::{About, PodRef};
use super::runtime_state::RuntimeState;

/// One event in the life of a container instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceChange {
    /// How many calls had arrived: the change came before the call with this `seq`.
    pub before: u64,
    /// Since the fake was started.
    pub at: Duration,
    pub pod: PodRef,
    /// The name of the container within its pod.
    pub container: String,
    pub container_id: String,
    pub sandbox_id: String,
    pub event: InstanceEvent,
}

impl fmt::Display for InstanceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { before, at, pod, container, container_id, event, .. } = self;
        write!(f, "before #{before} {at:?} {} {container} {container_id:.8} {event:?}", pod.name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceEvent {
    /// It existed before the simulated agent.
    Adopted,
    Created,
    /// A StartContainer arrived, whether it succeeds or not.
    StartRequested,
    /// Its process runs.
    Started,
    /// Its process ended, or could not be started.
    Exited {
        code: i32,
    },
    /// The runtime does not know its state any more.
    StateLost,
    /// It was removed without a call of the agent.
    RemovedExternally,
    /// The runtime has nothing of it any more.
    Removed,
}

impl Journal {
    pub(super) fn note_instance(&mut self, at: Duration, about: &About, event: InstanceEvent) {
        let (Some(pod), Some(container), Some(container_id), Some(sandbox_id)) =
            (&about.pod, &about.container, &about.container_id, &about.sandbox_id)
        else {
            return;
        };
        let before = self.next_seq();
        self.instance_changes.push(InstanceChange {
            before,
            at,
            pod: pod.clone(),
            container: container.clone(),
            container_id: container_id.clone(),
            sandbox_id: sandbox_id.clone(),
            event,
        });
    }
}

impl RuntimeState {
    pub(super) fn note_instance(&mut self, id: &str, event: InstanceEvent) {
        let (at, about) = (self.age(), self.about_container(id));
        self.journal.note_instance(at, &about, event);
    }

    /// Drops the changes of pods of which the runtime has nothing any more.
    pub(super) fn drop_old_instance_changes(&mut self) {
        let sandboxes = &self.sandboxes;
        let known = |pod: &PodRef| sandboxes.values().any(|sandbox| sandbox.pod.uid == pod.uid);
        self.journal.instance_changes.retain(|change| known(&change.pod));
    }
}
